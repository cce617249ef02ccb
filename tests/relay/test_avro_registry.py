"""The relay's registry of schemas, as Confluent's own client asks it."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from databus.core import CorruptData
from databus.formats import (
    DebeziumForm,
    confluent_framed,
    debezium_avro_schema,
    own_avro_messages,
    own_avro_schema,
)
from databus.relay import Relay
from databus.relay._avro_registry import SchemaRegistry
from databus.schema import Column, TableSchema
from tests.relay.support import ORDERS, Database, ask, get, order, rows_of, scripted

SUBJECT = "shop.main.orders-value"
WIDER = replace(ORDERS, columns=(*ORDERS.columns, Column("city", "string")))


@pytest.fixture
def relay(tmp_path: Path) -> Iterator[Relay]:
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}) as relay:
        yield relay


def client_of(relay: Relay, **more: str) -> SchemaRegistryClient:
    return SchemaRegistryClient({"url": f"{relay.url}/registry", "max.retries": 0, **more})


def avro(table: TableSchema) -> Schema:
    return Schema(json.dumps(own_avro_schema(table)), "AVRO")


def test_confluents_client_registers_finds_and_reads(relay: Relay) -> None:
    client = client_of(relay)
    first = client.register_schema(SUBJECT, avro(ORDERS))
    assert client.register_schema(SUBJECT, avro(ORDERS)) == first, "the same again"
    second = client.register_schema(SUBJECT, avro(WIDER))
    assert second != first
    fresh = client_of(relay)  # the one above remembers
    assert json.loads(fresh.get_schema(first).schema_str) == own_avro_schema(ORDERS)
    assert fresh.get_subjects() == [SUBJECT]
    assert fresh.get_versions(SUBJECT) == [1, 2]
    latest = fresh.get_latest_version(SUBJECT)
    assert (latest.version, latest.schema_id) == (2, second)
    assert fresh.get_version(SUBJECT, 1).schema_id == first
    found = fresh.lookup_schema(SUBJECT, avro(WIDER))
    assert (found.schema_id, found.version) == (second, 2)
    assert fresh.get_compatibility() == "BACKWARD"


def test_a_message_is_read_by_confluents_deserializer(relay: Relay) -> None:
    batch = rows_of(ORDERS, 7, [{"id": 1, "name": "é"}]).batch
    messages = own_avro_messages(ORDERS, batch, physical="shop")
    number = client_of(relay).register_schema(SUBJECT, avro(ORDERS))
    framed = confluent_framed(messages.values, number)
    read = AvroDeserializer(client_of(relay))
    value = read(framed[0].as_py(), SerializationContext("shop.main.orders", MessageField.VALUE))
    assert (value["id"], value["name"], value["_commit_version"]) == (1, "é", 7)


def test_a_schema_that_cannot_read_the_one_before_is_refused(relay: Relay) -> None:
    client = client_of(relay)
    client.register_schema(SUBJECT, avro(ORDERS))
    narrow = replace(ORDERS, columns=(Column("id", "string"), Column("name", "string")))
    with pytest.raises(SchemaRegistryError, match=r"not BACKWARD.*409"):
        client.register_schema(SUBJECT, avro(narrow))
    assert not client.test_compatibility(SUBJECT, avro(narrow))
    assert client.test_compatibility(SUBJECT, avro(WIDER))
    assert client_of(relay).get_versions(SUBJECT) == [1]


def column(kind: str, db_type: str = "") -> TableSchema:
    return replace(ORDERS, columns=(*ORDERS.columns, Column("total", kind, db_type=db_type)))


@pytest.mark.parametrize(
    ("older", "newer", "says"),
    [
        (column("decimal(10,2)"), column("decimal(12,2)"), None),
        (column("decimal(10,2)"), column("decimal(10,4)"), r"/total: a decimal of scale 2 would be read as .* scale 4"),
        (column("decimal(10,2)"), column("string"), "a decimal of scale 2 would be read as string"),
        (column("uint64"), column("decimal(22,2)"), "a decimal of scale 0 would be read as a decimal of scale 2"),
        (column("timestamp"), column("timestamptz"), "local-timestamp-micros would be read as timestamp-micros"),
        (column("int32"), column("int64"), None),
        (column("timestamp", "datetime(3)"), column("timestamp", "datetime(3) null"), None),
    ],
)
def test_a_schema_that_takes_numbers_for_others_is_refused(
    relay: Relay, older: TableSchema, newer: TableSchema, says: str | None
) -> None:
    """Avro's readers in Java read 1.23 of an older message as 0.0123, if the schema of today has two more digits."""
    client = client_of(relay)
    client.register_schema(SUBJECT, avro(older))
    assert client.test_compatibility(SUBJECT, avro(newer)) is (says is None)
    if says is not None:
        with pytest.raises(SchemaRegistryError, match=says):
            client.register_schema(SUBJECT, avro(newer))


def test_debezium_s_milliseconds_are_not_followed_by_microseconds(relay: Relay) -> None:
    client = client_of(relay)
    older, newer = (
        Schema(json.dumps(debezium_avro_schema(column("timestamp", each), "shop", DebeziumForm())), "AVRO")
        for each in ("datetime(3)", "datetime(6)")
    )
    client.register_schema("d-value", older)
    with pytest.raises(SchemaRegistryError, match=r"/before/total: io\.debezium\.time\.Timestamp would be read as"):
        client.register_schema("d-value", newer)


def test_a_schema_that_names_itself_is_compared_to_its_end(relay: Relay) -> None:
    def nested(kind: str) -> Schema:
        value = {"name": "value", "type": kind}
        inner = {"name": "next", "type": ["null", "node"], "default": None}
        return Schema(json.dumps({"type": "record", "name": "node", "fields": [value, inner]}), "AVRO")

    client = client_of(relay)
    client.register_schema("n-value", nested("int"))
    client.register_schema("n-value", nested("long"))
    assert client_of(relay).get_versions("n-value") == [1, 2]


def test_debezium_schemas_follow_an_added_column(relay: Relay) -> None:
    client = client_of(relay)
    for table in (ORDERS, WIDER):
        client.register_schema(
            "d-value", Schema(json.dumps(debezium_avro_schema(table, "shop", DebeziumForm())), "AVRO")
        )
    assert client_of(relay).get_versions("d-value") == [1, 2]


def test_an_id_is_the_same_in_every_relay(relay: Relay, tmp_path: Path) -> None:
    ours = client_of(relay).register_schema(SUBJECT, avro(ORDERS))
    with scripted(tmp_path / "other", {"shop": Database(groups=[order(1)])}) as other:
        client_of(other).register_schema("x-value", avro(WIDER))
        assert client_of(other).register_schema("another-value", avro(ORDERS)) == ours


def test_what_was_answered_survives_and_what_was_torn_is_written_again(tmp_path: Path) -> None:
    registry = SchemaRegistry(tmp_path)
    made = registry.register(SUBJECT, json.dumps(own_avro_schema(ORDERS)))
    registry.register(SUBJECT, json.dumps(own_avro_schema(WIDER)))
    file = tmp_path / "schemas.jsonl"
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    again = SchemaRegistry(tmp_path)
    assert again.versions(SUBJECT) == [made]
    assert again.register(SUBJECT, json.dumps(own_avro_schema(WIDER))).number == 2
    assert file.read_bytes() == content


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "schemas.jsonl").write_bytes(b'{"subject": 1}\n')
    with pytest.raises(CorruptData, match=r"schemas\.jsonl: line 1 is no schema"):
        SchemaRegistry(tmp_path).subjects()


def test_many_at_once_get_numbers_of_their_own(relay: Relay) -> None:
    def register(number: int) -> int:
        table = replace(ORDERS, columns=(*ORDERS.columns, Column(f"c{number % 8}", "string")))
        return client_of(relay).register_schema("many-value", avro(table))

    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(register, range(16)))
    assert len(ids) == 8
    versions = [client_of(relay).get_version("many-value", number) for number in range(1, 9)]
    assert {each.schema_id for each in versions} == ids
    assert client_of(relay).get_versions("many-value") == list(range(1, 9))


def test_a_table_of_three_thousand_columns_fits(relay: Relay) -> None:
    wide = replace(ORDERS, columns=tuple(Column(f"column_{n:05}", "decimal(38,10)") for n in range(3000)), key=())
    number = client_of(relay).register_schema("wide-value", avro(wide))
    assert json.loads(client_of(relay).get_schema(number).schema_str) == own_avro_schema(wide)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 422, "the body is no JSON"),
        (b"[]", 422, "no member `schema`"),
        (b'{"schema": "{}"}', 422, "this is no Avro schema"),
        (b'{"schema": "\\"int\\"", "schemaType": "PROTOBUF"}', 422, "Avro alone"),
        (b'{"schema": "' + b" " * (9 << 20) + b'"}', 413, "more than"),
    ],
    ids=["no JSON", "a list", "no schema", "protobuf", "too long"],
)
def test_what_is_no_schema_is_refused(relay: Relay, body: bytes, status: int, says: str) -> None:
    answer = ask("POST", relay, "/registry/subjects/x/versions", body=body)
    assert answer.status == status
    assert says in answer.json["message"]
    assert client_of(relay).get_subjects() == []


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/registry/subjects/none/versions", 40401),
        ("/registry/schemas/ids/17", 40403),
        ("/registry/schemas/ids/x", 40403),
        ("/registry/nothing", 40400),
    ],
)
def test_what_is_not_there_is_said_by_confluents_codes(relay: Relay, path: str, code: int) -> None:
    answer = get(relay, path)
    assert answer.status == 404
    assert answer.json["error_code"] == code


def test_a_stranger_without_the_token_gets_nothing(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("correct-horse-1\n")
    with scripted(tmp_path, {"shop": Database(groups=[order(1)])}, token_file=token) as relay:
        with pytest.raises(SchemaRegistryError, match="401"):
            client_of(relay).get_subjects()
        bearer = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "correct-horse-1"}
        known = client_of(relay, **bearer, **{"bearer.auth.logical.cluster": "-", "bearer.auth.identity.pool.id": "-"})
        assert known.get_subjects() == []


def test_a_null_is_no_message() -> None:
    assert confluent_framed(pa.array([None], pa.large_binary()), 1).to_pylist() == [None]
