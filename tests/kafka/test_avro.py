"""Messages in Avro, with the relay as registry, read by Confluent's deserializer; schemas that change in mid-stream."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import ValidationError

from databus.core import AccessDenied, ConfigError, ServiceUnavailable, UnsupportedFeature
from databus.formats import own_avro_schema
from databus.schema import Column, TableSchema
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.kafka.support import messages_in, new_prefix, output_of
from tests.outputs.harnesses import order
from tests.pipeline.cluster import free_port
from tests.relay.support import Database, scripted

WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("city", "string")))
BROKEN = replace(ORDERS, columns=(*ORDERS.columns, Column("city", "string", nullable=False)))


@pytest.fixture
def registry(tmp_path):
    with scripted(tmp_path / "relay", {"shop": Database()}) as relay:
        yield f"{relay.url}/registry"


def _numbers(kind):
    return TableSchema("main.numbers", (Column("id", kind, nullable=False),), ("id",))


@contextmanager
def topics(kafka, folder, url, *, registry=None, **options):
    """An output, and what is asked of it: to write entries of a log, and what stands in its topic."""
    prefix = new_prefix()
    given = {"url": url, **(registry or {})}
    output = output_of(kafka, folder, prefix, registry=given, **{"format": "avro", **options})
    output.open()
    yield output, f"{prefix}.orders"
    output.close()


def changed(table):
    """Two rows, then a column that is added, and an update and a delete in the new schema."""
    log = ChangeLog()
    log.begin().insert(ORDERS, order(1))
    log.begin().insert(ORDERS, order(2))
    log.begin().schema(table, 1)
    log.begin().update(table, {**order(1), "city": ""}, {**order(1, "new"), "city": "Zürich"})
    log.begin().delete(table, {**order(2), "city": ""})
    return log


def read(kafka, registry, topic, part="value", reader=None):
    """Everything in a topic, by key and in the keys' order, as Confluent's deserializer reads it."""
    client = SchemaRegistryClient({"url": registry})
    deserialize = AvroDeserializer(client, reader)
    context = SerializationContext(topic, MessageField.VALUE if part == "value" else MessageField.KEY)
    return [deserialize(getattr(each, part)(), context) for found in messages_in(kafka, topic) for each in found]


def test_rows_before_and_after_an_added_column_are_read_in_their_own_schemas_and_in_the_newest(
    kafka, tmp_path, registry
):
    log = changed(WIDER)
    with topics(kafka, tmp_path, registry) as (output, topic):
        for batch in log.batches([1, 3, 5]):
            write_batch(output, batch)
    rows = sorted(read(kafka, registry, topic), key=lambda row: (row["_commit_version"], row["_seq"]))
    assert [(row["_change_type"], row["id"], row["note"], row.get("city")) for row in rows] == [
        ("insert", 1, "x", None),
        ("insert", 2, "x", None),
        ("update_preimage", 1, "x", ""),
        ("update_postimage", 1, "new", "Zürich"),
        ("delete", 2, "x", ""),
    ]
    assert "city" not in rows[0]
    assert rows[0]["_source"] == f"shop/{ORDERS.source}"
    newest = SchemaRegistryClient({"url": registry}).get_latest_version(f"{topic}-value")
    assert newest.version == 2
    assert {row["city"] for row in read(kafka, registry, topic, reader=newest.schema.schema_str)} == {
        None,
        "",
        "Zürich",
    }


def test_debeziums_envelopes_and_keys_have_schemas_of_their_own(kafka, tmp_path, registry):
    with topics(kafka, tmp_path, registry, format="debezium_avro") as (output, topic):
        for batch in changed(WIDER).batches([3]):
            write_batch(output, batch)
    events = [each for each in read(kafka, registry, topic) if each is not None]
    events.sort(key=lambda each: json.loads(each["source"]["sequence"]))
    assert [(event["op"], (event["after"] or event["before"])["id"]) for event in events] == [
        ("c", 1), ("c", 2), ("u", 1), ("d", 2)
    ]  # fmt: skip
    assert events[2]["after"]["city"] == "Zürich"
    assert sorted(key["id"] for key in read(kafka, registry, topic, "key")) == [1, 1, 2, 2, 2]
    client = SchemaRegistryClient({"url": registry})
    assert {name: client.get_versions(name) for name in client.get_subjects()} == {
        f"{topic}-key": [1],
        f"{topic}-value": [1, 2],
    }


def test_a_schema_that_may_not_follow_stops_with_what_the_registry_said_and_writes_nothing(kafka, tmp_path, registry):
    log = changed(BROKEN)
    with topics(kafka, tmp_path, registry) as (output, topic):
        write_batch(output, log.batch(0, 3))
        with pytest.raises(UnsupportedFeature, match=r"not BACKWARD(?s:.*)city(?s:.*)register the schema by hand"):
            write_batch(output, log.batch(3, len(log.entries)))
        assert sorted(row["id"] for row in read(kafka, registry, topic)) == [1, 2]


def test_schemas_are_registered_in_the_order_of_the_log_whichever_bucket_their_rows_are_in(kafka, tmp_path, registry):
    """What was widened may not be narrowed, so a task without a row of the older schema has to name that first."""
    narrow, wide = _numbers("int32"), _numbers("int64")
    log = ChangeLog()
    log.begin().insert(narrow, {"id": 3})  # of the second bucket
    log.begin().schema(wide, 2)
    log.begin().insert(wide, {"id": 1})  # of the first
    with topics(kafka, tmp_path, registry, buckets=2) as (output, topic):
        write_batch(output, log.batch(0, 3))
    subject = topic.replace("orders", "numbers")
    assert SchemaRegistryClient({"url": registry}).get_versions(f"{subject}-value") == [1, 2]


def test_a_registry_that_is_away_is_waited_for_and_nothing_is_written_twice(kafka, tmp_path):
    port, log = free_port(), changed(WIDER)
    with topics(kafka, tmp_path, f"http://127.0.0.1:{port}/registry") as (output, topic):
        with pytest.raises(ServiceUnavailable, match="does not answer"):
            write_batch(output, log.batch(0, len(log.entries)))
        with scripted(tmp_path / "late", {"shop": Database()}, listen=f"127.0.0.1:{port}") as relay:
            write_batch(output, log.batch(0, len(log.entries)))
            assert len(read(kafka, f"{relay.url}/registry", topic)) == 5


def test_with_register_false_a_schema_has_to_be_there_and_the_error_shows_it(kafka, tmp_path, registry):
    log = changed(WIDER)
    with topics(kafka, tmp_path, registry, registry={"register": False}) as (output, topic):
        with pytest.raises(ConfigError, match=r'register: true.*"name":"orders"'):
            write_batch(output, log.batch(0, 3))
        schema = Schema(json.dumps(own_avro_schema(ORDERS)), "AVRO")
        SchemaRegistryClient({"url": registry}).register_schema(f"{topic}-value", schema)
        write_batch(output, log.batch(0, 3))
        assert len(read(kafka, registry, topic)) == 2


@pytest.mark.parametrize(("naming", "subject"), [("record", "{record}"), ("topic_record", "{topic}-{record}")])
def test_subjects_can_be_called_by_the_record(kafka, tmp_path, registry, naming, subject):
    with topics(kafka, tmp_path, registry, registry={"subject_naming": naming}) as (output, topic):
        write_batch(output, changed(WIDER).batch(0, 1))
    found = SchemaRegistryClient({"url": registry}).get_subjects()
    assert found == [subject.format(topic=topic, record=ORDERS.source)]


def test_a_token_opens_the_relays_registry_and_a_wrong_one_is_not_shown(kafka, tmp_path):
    right, wrong = "open-sesame-" * 3, "closed-barley-" * 3
    (tmp_path / "token").write_text(right)
    with scripted(tmp_path, {"shop": Database()}, token_file="token") as relay:  # noqa: S106 - a path
        for token in (right, wrong):
            options = {"registry": {"token": token}}
            with topics(kafka, tmp_path, f"{relay.url}/registry", **options) as (output, _):
                assert token not in repr(output.config) + repr(output.part_writer())
                if token == right:
                    write_batch(output, changed(WIDER).batch(0, 1))
                    continue
                with pytest.raises(AccessDenied, match=r"`token`") as found:
                    write_batch(output, changed(WIDER).batch(0, 1))
                assert token not in str(found.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "avro"}, "needs `registry`"),
        ({"registry": {"url": "http://r"}}, "goes with the formats in Avro"),
        ({"format": "avro", "registry": {"url": "r:8081"}}, "begins with http"),
        ({"format": "avro", "registry": {"url": "http://me:word@r"}}, "give `username` and `password`"),
        ({"format": "avro", "registry": {"url": "http://r", "username": "me"}}, "go together"),
        ({"format": "avro", "registry": {"url": "http://r"}, "controls": "inline"}, "goes with `format: json`"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, told):
    class Nowhere:
        bootstrap = "127.0.0.1:1"

    with pytest.raises(ValidationError, match=told) as found:
        output_of(Nowhere, tmp_path, "p", **options)
    assert "me:word" not in str(found.value.errors(include_input=False))
