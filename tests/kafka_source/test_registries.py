"""Registries that know less than they should, or nothing, and what becomes of the messages then."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from databus.core import ConfigError, UnrepresentableValue
from databus.formats import confluent_framed, own_avro_messages, own_avro_schema
from tests.kafka_source.support import Follower, Topics
from tests.kafka_source.test_avro import DECLARED, OLDER
from tests.registry import Answer, Question, answering
from tests.relay.support import rows_of

GOOD, BAD = 1, 2


class Registry:
    """Answers what a schema's id is asked for. schemas: as Confluent's registry answers them. proxy: what
    answers in its place, where it is not there: status and body.
    """

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {GOOD: {"schema": json.dumps(own_avro_schema(OLDER))}}
        self.proxy: tuple[int, str] | None = None
        self.asked: list[int] = []
        self.url = ""

    def answer(self, question: Question) -> Answer:
        number = int(question.path.rpartition("/")[2])
        self.asked.append(number)
        if self.proxy is not None:
            return Answer(self.proxy[0], self.proxy[1].encode())
        if number in self.schemas:
            return Answer(200, json.dumps(self.schemas[number]).encode())
        return Answer(404, b'{"error_code": 40403, "message": "Schema not found"}')


@pytest.fixture
def registry() -> Iterator[Registry]:
    found = Registry()
    with answering(found.answer) as server:
        found.url = server.url
        yield found


def message(number: int, schema_id: int) -> bytes:
    values = own_avro_messages(OLDER, rows_of(OLDER, 7, [{"id": number, "name": "a"}]).batch, physical="db").values
    return bytes(confluent_framed(values, schema_id)[0].as_py())


def following(topics: Topics, topic: str, server: Registry, **options: Any) -> Follower:
    given = {
        "format": "own-avro",
        "schemas": {"shop.orders": {**DECLARED, "topic": topic}},
        "registry": {"url": server.url},
        "on_poison": "skip",
        **options,
    }
    return Follower(topics.config(topic, **given))


def ids(follower: Follower) -> list[int]:
    return [row["id"] for row in follower.rows()]


@pytest.mark.parametrize("answer", [(404, "default backend - 404"), (200, "{}"), (200, '{"schema": null}')])
def test_a_proxy_that_answers_for_a_registry_costs_no_message(
    topics: Topics, registry: Registry, answer: tuple[int, str]
) -> None:
    topic = topics.create()
    topics.write(topic, [message(1, GOOD), message(2, GOOD)])
    registry.proxy = answer
    with following(topics, topic, registry) as follower:
        with pytest.raises(ConfigError, match="Is `url` that of a registry's calls"):
            follower.until(lambda: False)
        registry.proxy = None
        follower.kill()
        follower.until(lambda: ids(follower) == [1, 2])
        assert follower.gaps() == []


def test_a_certificate_s_authority_that_is_not_there_costs_no_message(topics: Topics, registry: Registry) -> None:
    topic = topics.create()
    topics.write(topic, [message(1, GOOD)])
    wrong = {"url": registry.url.replace("http:", "https:"), "ca_file": "/no/such/file.pem"}
    with (
        following(topics, topic, registry, registry=wrong) as follower,
        pytest.raises(ConfigError, match="No such file"),
    ):
        follower.until(lambda: False)


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": '"string"'},
        {"schema": '["null","string"]'},
        {"schema": 'syntax = "proto3";', "schemaType": "PROTOBUF"},
        {"schema": '{"type":"object"}', "schemaType": "JSON"},
        {"schema": '{"type":"record","name":"x"}'},
    ],
    ids=["text", "union", "protobuf", "json", "fields"],
)
def test_a_message_whose_schema_is_no_record_is_passed_over(
    topics: Topics, registry: Registry, answer: dict[str, Any]
) -> None:
    topic = topics.create()
    registry.schemas[BAD] = answer
    topics.write(topic, [message(1, GOOD), message(2, BAD), message(3, GOOD)])
    with following(topics, topic, registry) as follower:
        follower.until(lambda: ids(follower) == [1, 3])
        assert "offset 1" in follower.gaps()[0]
    with (
        following(topics, topic, registry, on_poison="stop") as follower,
        pytest.raises(UnrepresentableValue, match="offset 1"),
    ):
        follower.until(lambda: False)


def test_an_id_that_nobody_knows_is_asked_for_once_a_poll(topics: Topics, registry: Registry) -> None:
    """Not for each message, nor for each time that what is wrong is looked for among the others."""
    topic = topics.create()
    topics.write(topic, [message(each, BAD) for each in range(64)] + [message(64, GOOD)])
    with following(topics, topic, registry) as follower:
        polls = 0
        while not ids(follower):
            follower.poll()
            polls += 1
        assert registry.asked.count(BAD) <= polls
        assert sum(int(gap.partition(" ")[0]) for gap in follower.gaps()) == 64


def written_as(**decimal: Any) -> dict[str, Any]:
    """A message's schema whose `name` is a decimal, as registries answer it."""
    schema = own_avro_schema(OLDER)
    fields = [
        {**each, "type": ["null", {"type": "bytes", "logicalType": "decimal", **decimal}]}
        if each["name"] == "name"
        else each
        for each in schema["fields"]
    ]
    return {"schema": json.dumps({**schema, "fields": fields})}


@pytest.mark.parametrize(
    "decimal", [{}, {"precision": 0, "scale": 2}, {"precision": "x"}, {"precision": 5, "scale": 9}]
)
def test_a_decimal_that_is_none_is_passed_over(topics: Topics, registry: Registry, decimal: dict[str, Any]) -> None:
    topic = topics.create()
    registry.schemas[BAD] = written_as(**decimal)
    columns = {**DECLARED["columns"], "name": "decimal(10,2)"}
    topics.write(topic, [message(1, BAD)])
    schemas = {"shop.orders": {**DECLARED, "columns": columns, "topic": topic}}
    with following(topics, topic, registry, schemas=schemas) as follower:
        follower.until(lambda: bool(follower.gaps()))
        assert "name was written as bytes (decimal)" in follower.gaps()[0]


def test_connect_s_decimals_without_a_precision_are_read(topics: Topics, registry: Registry) -> None:
    """Confluent's converter says 64 digits of a decimal whose connector says none: more than any column has."""
    topic = topics.create()
    registry.schemas[BAD] = written_as(precision=64, scale=2)
    table = replace(OLDER, columns=(OLDER.columns[0], replace(OLDER.columns[1], type="binary")))
    row = rows_of(table, 7, [{"id": 1, "name": b"\x01\x02"}]).batch
    framed = confluent_framed(own_avro_messages(table, row, physical="db").values, BAD)
    topics.write(topic, [bytes(framed[0].as_py())])
    columns = {**DECLARED["columns"], "name": "decimal(10,2)"}
    schemas = {"shop.orders": {**DECLARED, "columns": columns, "topic": topic}}
    with following(topics, topic, registry, schemas=schemas) as follower:
        follower.until(lambda: ids(follower) == [1])
        assert str(follower.rows()[0]["name"]) == "2.58"
