"""A tombstone whose delete is not there, since compaction took it or its writer wrote none, removes its row."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from databus.core import UnrepresentableValue
from databus.formats import (
    DebeziumForm,
    confluent_framed,
    debezium_avro_key_schema,
    debezium_avro_messages,
    debezium_avro_schema,
    debezium_messages,
    maxwell_messages,
    own_messages,
)
from databus.schema import Column, TableSchema, frame_schema, key_bytes
from databus.sources.kafka._removals import canonical_columns
from tests.kafka_source.support import Follower, Topics
from tests.relay.support import Database, scripted

SCHEMAS = {"shop.orders": {"columns": {"id": "int64", "part": "string", "name": "string"}, "key": ["id", "part"]}}
COLUMNS = (Column("id", "int64", nullable=False), Column("part", "string", nullable=False), Column("name", "string"))
TABLE = TableSchema("shop.orders", COLUMNS, ("id", "part"))
INSERT, DELETE = 1, 4


def rows(*changes: tuple[int, int, str]) -> pa.RecordBatch:
    """(change type, id, name), as databus writes them."""
    bus = {"_commit_version": 7, "_commit_timestamp": 1, "_txid": "t", "_snapshot": False}
    made = [
        {**bus, "_change_type": kind, "id": number, "part": "a b", "name": name, "_seq": seq}
        for seq, (kind, number, name) in enumerate(changes, 1)
    ]
    return pa.RecordBatch.from_pylist(made, schema=frame_schema(TABLE))


def messages_of(format_: str, batch: pa.RecordBatch, url: str = "") -> list[tuple[bytes | None, bytes | None]]:
    """(key, value) of each message."""
    if format_ == "debezium-avro":
        found = debezium_avro_messages(TABLE, batch, physical="db", made_us=1)
        made = {"keys": debezium_avro_key_schema, "values": debezium_avro_schema}
        ids = {part: registered(url, make(TABLE, "db", DebeziumForm())) for part, make in made.items()}
        found = found._replace(**{part: confluent_framed(getattr(found, part), number) for part, number in ids.items()})
    elif format_ in ("maxwell", "own"):
        found = maxwell_messages(TABLE, batch) if format_ == "maxwell" else own_messages(TABLE, batch, physical="db")
    else:
        form = DebeziumForm(with_schema=format_.endswith("with_schema"))
        found = debezium_messages(TABLE, batch, physical="db", made_us=1, form=form)
    keys, values = found.keys, found.values
    return list(zip(keys.to_pylist(), values.to_pylist(), strict=True))


def write(topics: Topics, name: str, messages: list[tuple[bytes | None, bytes | None]]) -> None:
    producer = Producer({"bootstrap.servers": topics.bootstrap, "linger.ms": 0})
    for key, value in messages:
        producer.produce(name, value, key, 0)
    assert producer.flush(60) == 0


def told(follower: Follower) -> list[tuple[Any, ...]]:
    return [(each["_change_type"], each["id"], each["part"], each["name"]) for each in follower.rows()]


def registered(url: str, schema: dict[str, Any]) -> int:
    return SchemaRegistryClient({"url": url}).register_schema(schema["name"], Schema(json.dumps(schema), "AVRO"))


@pytest.mark.parametrize("format_", ["debezium", "debezium with_schema", "debezium-avro", "maxwell", "own"])
def test_a_tombstone_alone_is_a_delete_of_its_key_and_one_behind_its_delete_says_nothing_more(
    topics: Topics, tmp_path: Path, format_: str
) -> None:
    with scripted(tmp_path, {"shop": Database()}) as relay:
        check_alone(topics, format_, f"{relay.url}/registry")


def check_alone(topics: Topics, format_: str, url: str) -> None:
    name = topics.create()
    word = format_.partition(" ")[0]
    options: dict[str, Any] = {"format": word, "first_images": False, "with_schema": format_.endswith("with_schema")}
    declared = {**SCHEMAS["shop.orders"], "topic": name}
    if word == "debezium-avro":
        options["registry"] = {"url": url}
    first, second = (messages_of(format_, rows((INSERT, number, "x")), url)[0] for number in (1, 2))
    gone = messages_of(format_, rows((DELETE, 2, "x")), url)[:1]
    with Follower(topics.config(name, schemas={"shop.orders": declared}, **options)) as follower:
        write(topics, name, [first, second])
        follower.until(lambda: len(follower.rows()) == 2)
        follower.kill()  # for as long as compaction takes: it leaves the last message of a key
        write(topics, name, [(first[0], None), *gone, (second[0], None), first])
        follower.until(lambda: len(follower.rows()) == 5)
        write(topics, name, gone)
        follower.until(lambda: len(follower.rows()) == 6)
        write(topics, name, [(second[0], None), (first[0], None)])
        follower.until(lambda: len(follower.rows()) == 7)
    assert told(follower) == [
        (INSERT, 1, "a b", "x"),
        (INSERT, 2, "a b", "x"),
        (DELETE, 1, "a b", None),
        (DELETE, 2, "a b", "x"),
        (INSERT, 1, "a b", "x"),
        (DELETE, 2, "a b", "x"),
        (DELETE, 1, "a b", None),
    ]


@pytest.mark.parametrize("first_images", [False, True])
def test_a_tombstone_says_nothing_more_where_capture_was_stopped_between_it_and_its_delete(
    topics: Topics, first_images: bool
) -> None:
    """It is none that stands alone, of which nobody would know the whole row."""
    name = topics.create()
    first, gone = messages_of("debezium", rows((INSERT, 1, "x")))[0], messages_of("debezium", rows((DELETE, 1, "x")))[0]
    options = {"format": "debezium", "schemas": SCHEMAS, "first_images": first_images}
    with Follower(topics.config(name, **options)) as follower:
        write(topics, name, [first, gone])
        follower.until(lambda: len(follower.rows()) == 2)
        follower.kill()
        write(topics, name, [(gone[0], None), first])
        follower.until(lambda: len(follower.rows()) == 3)
    assert [each[0] for each in told(follower)] == [INSERT, DELETE, INSERT]


def test_a_tombstone_before_a_message_that_stops_capture_is_a_delete_whatever_comes_behind_that(topics: Topics) -> None:
    name = topics.create()
    first, gone = messages_of("debezium", rows((INSERT, 1, "x")))[0], messages_of("debezium", rows((DELETE, 1, "x")))[0]
    write(topics, name, [(first[0], None), (b"k", b"{"), first, gone])
    with Follower(topics.config(name, format="debezium", schemas=SCHEMAS)) as follower:
        with pytest.raises(UnrepresentableValue, match="offset 1"):
            follower.until(lambda: False)
        assert told(follower) == [(DELETE, 1, "a b", None)]


def test_where_deletes_are_to_have_whole_rows_or_a_key_says_no_row_a_tombstone_alone_is_poison(topics: Topics) -> None:
    key = json.dumps({"id": 1, "part": "a"}).encode()
    for options, reason in (({"first_images": True}, "a tombstone without its delete"), ({}, "its key")):
        name = topics.create()
        write(topics, name, [(key if options else b"not JSON", None)])
        config = topics.config(name, format="debezium", schemas=SCHEMAS, **options)
        with Follower(config) as follower, pytest.raises(UnrepresentableValue, match=f"offset 0: .*{reason}"):
            follower.until(lambda: False)


def test_where_messages_of_other_tables_are_passed_over_so_are_their_tombstones(topics: Topics) -> None:
    name = topics.create()
    key = json.dumps({"id": 1, "part": "a b"}).encode()
    other = json.dumps({"before": {"id": 1}, "after": None, "op": "d", "source": {"db": "shop", "table": "else"}})
    last = messages_of("debezium", rows((INSERT, 3, "x")))[0]
    write(topics, name, [(key, other.encode()), (key, None), (key, None), last])
    options = {"format": "debezium", "schemas": SCHEMAS, "skip_others": True}
    with Follower(topics.config(name, **options)) as follower:
        follower.until(lambda: len(follower.rows()) == 1)
    assert told(follower) == [(INSERT, 3, "a b", "x")]


KEYS = [
    ("int64", [-5, 1 << 62]),
    ("uint64", [5, (1 << 64) - 1]),
    ("decimal(10,2)", [Decimal("1.50"), Decimal("-7.00")]),
    ("bool", [True, False]),
    ("float64", [1.5, -0.25]),
    ("date", [dt.date(1969, 12, 31), dt.date(2026, 1, 2)]),
    ("timestamp", [dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.datetime(1960, 1, 1)]),  # noqa: DTZ001 - it has no zone
    ("string", ["", "ä b"]),
    ("binary", [b"", b"\xff\x00"]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS)
@pytest.mark.parametrize("is_alone", [False, True])
def test_canonical_keys_are_read_as_they_were_written(kind: str, values: list[Any], is_alone: bool) -> None:
    table = TableSchema("a.b", (Column("k", kind, nullable=False), Column("n", "int64", nullable=False)), ("k", "n"))
    named = frame_schema(table)
    arrays = [pa.array(values, named.field("k").type), pa.array([3, 4], pa.int64())]
    columns = table.columns[: 1 if is_alone else 2]
    found = canonical_columns(columns, key_bytes(arrays[: len(columns)]))
    assert [each.to_pylist() for each in found] == [each.to_pylist() for each in arrays[: len(columns)]]
    for wrong in (b"\x00", b"\x00\x00\x00\x09abc", b""):
        if is_alone and kind in ("string", "binary"):
            continue
        with pytest.raises(UnrepresentableValue):
            canonical_columns(columns, pa.array([wrong], pa.large_binary()))
