"""Debezium's envelope as Kafka Connect and Debezium themselves read it: their jars, in a JVM of their own.

Connect's JSON converter reads our messages by the schema that stands in them, and refuses what does not fit it;
Debezium's transformation takes the row out of the envelope, as users have it done before a sink; another converter
writes that row without a schema, and exact numbers as numbers.
"""

import base64
import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from databus.core import ChangeType
from databus.formats import (
    COLLECTION_ORDER,
    TOTAL_ORDER,
    DebeziumForm,
    TransactionMarks,
    UnsignedForm,
    debezium_messages,
    transaction_messages,
)
from databus.schema import Column, TableSchema, frame_schema
from databus.testing.servers import ServerMissing
from databus.testing.servers._fetch import kept
from databus.testing.servers._java_server import fetch_jars
from tests.formats.made import ALL_KINDS, made

EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - it has no zone
FORM = DebeziumForm(with_schema=True, unsigned=UnsignedForm.PRECISE)
TYPES = {
    ("date", ""): "io.debezium.time.Date",
    ("timestamp", "datetime"): "io.debezium.time.Timestamp",
    ("timestamp", "datetime(6)"): "io.debezium.time.MicroTimestamp",
    ("timestamptz", "timestamp"): "io.debezium.time.ZonedTimestamp",
    ("int64", "time(6)"): "io.debezium.time.MicroTime",
    ("int16", "year"): "io.debezium.time.Year",
    ("string", "json"): "io.debezium.data.Json",
}
_COORDINATES: Final = (
    "io.debezium:debezium-core:3.0.8.Final",
    "org.apache.kafka:connect-json:3.9.1",
    "org.apache.kafka:connect-transforms:3.9.1",
    "org.slf4j:slf4j-nop:1.7.36",
)
_SHA256: Final = "7f2e64dc757ea6a55c2eed3e505c0beeaf2ffead7656aecca2b75bc16ae2619c"


def debezium_jars() -> str:
    """As a Java class path. Raises `ServerMissing`."""
    folder = kept("debezium-core-3.0.8", lambda target: fetch_jars(_COORDINATES, _SHA256, target))
    return ":".join(str(jar) for jar in sorted(folder.glob("*.jar")))


class Connect:
    """Kafka Connect's converters and Debezium's transformation."""

    def __init__(self, jvm: Any) -> None:
        self.jvm = jvm
        self.reader = self._converter(**{"schemas.enable": "true"})
        self.keys = self._converter(is_key=True, **{"schemas.enable": "true"})
        self.writer = self._converter(**{"schemas.enable": "false", "decimal.format": "numeric"})
        self.unwrap = jvm.io.debezium.transforms.ExtractNewRecordState()
        self.unwrap.configure(self._map(**{"delete.tombstone.handling.mode": "rewrite-with-tombstone"}))

    def _map(self, **options: str) -> Any:
        found = self.jvm.java.util.HashMap()
        for name, value in options.items():
            found.put(name, value)
        return found

    def _converter(self, *, is_key: bool = False, **options: str) -> Any:
        converter = self.jvm.org.apache.kafka.connect.json.JsonConverter()
        converter.configure(self._map(**options), is_key)
        return converter

    def read(self, value: bytes | None, converter: Any = None) -> Any:
        """A message as Connect's schema and value."""
        return (converter or self.reader).toConnectData("t", value)

    def row(self, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
        """The row that the transformation leaves of a message; None of a tombstone."""
        of_key, of_value = self.read(key, self.keys), self.read(value)
        record = self.jvm.org.apache.kafka.connect.source.SourceRecord(
            None, None, "t", of_key.schema(), of_key.value(), of_value.schema(), of_value.value()
        )
        left = self.unwrap.apply(record)
        if left.value() is None:
            return None
        return self.plain(left.valueSchema(), left.value())

    def plain(self, schema: Any, value: Any) -> Any:
        """A value of Connect as plain JSON."""
        return json.loads(bytes(self.writer.fromConnectData("t", schema, value)), parse_float=Decimal)


@pytest.fixture(scope="module")
def connect() -> Iterator[Connect]:
    try:
        jars = debezium_jars()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    port, token = launch_gateway(classpath=jars, die_on_exit=True, enable_auth=True, return_proc=False)
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield Connect(gateway.jvm)
    finally:
        gateway.shutdown()


def wanted(column: Column, value: Any) -> Any:  # noqa: PLR0911 - one for each kind
    """What Debezium's documentation says that a value of MySQL becomes."""
    if value is None:
        return None
    if column.type.startswith("decimal"):
        return Decimal(value)
    if column.type == "binary":
        return base64.b64encode(value).decode()
    if column.type == "date":
        return (value - EPOCH.date()).days
    if column.type == "timestamp":
        microseconds = (value - EPOCH) // dt.timedelta(microseconds=1)
        return microseconds if column.db_type in ("", "datetime(6)") else microseconds // 1000
    if column.type == "timestamptz":
        digits = 0 if column.db_type == "timestamp" else 6
        fraction = f".{value.microsecond:06}" if digits else ""
        return f"{value.replace(tzinfo=None, microsecond=0).isoformat()}{fraction}Z"
    return value


def is_finite(row: dict[str, Any]) -> bool:
    """Whether JSON has a number for all of it: Connect reads `"NaN"` for no number at all."""
    return all(not isinstance(value, float) or value - value == 0 for value in row.values())


@given(it=made(kinds=ALL_KINDS))
@settings(max_examples=40, deadline=None)
def test_debezium_s_transformation_finds_the_rows(connect: Connect, it: Any) -> None:
    assume(all(is_finite(row) for _, before, after, _ in it.changes for row in (before or {}, after)))
    found = debezium_messages(it.table, it.batch, physical="p", made_us=0, form=FORM)
    rows = [
        connect.row(key, value) for key, value in zip(found.keys.to_pylist(), found.values.to_pylist(), strict=True)
    ]
    left = [row for row in rows if row is not None and row.pop("__deleted") == "false"]
    expected = [
        {column.name: wanted(column, after[column.name]) for column in it.table.columns}
        for kind, _, after, _ in it.changes
        if kind != "delete"
    ]
    assert [as_held(it.table, row) for row in left] == [as_held(it.table, row) for row in expected]


def as_held(table: TableSchema, row: dict[str, Any]) -> dict[str, Any]:
    """Floating point numbers as their column holds them: Java writes other digits of the same number."""
    of = {"float32": np.float32, "float64": np.float64}
    kinds = {column.name: of.get(column.type) for column in table.columns}
    return {name: value if value is None or not kinds[name] else kinds[name](value) for name, value in row.items()}


@pytest.mark.parametrize(("kind", "name"), TYPES.items(), ids=[f"{kind} {words}" for kind, words in TYPES])
def test_a_column_has_debezium_s_own_schema(connect: Connect, kind: tuple[str, str], name: str) -> None:
    table = TableSchema("main.t", (Column("id", "int64", nullable=False), Column("c", kind[0], db_type=kind[1])))
    schema = frame_schema(table)
    columns = [[1], [None], [int(ChangeType.INSERT)], [7], [1], [dt.datetime.now(dt.UTC)], ["x"], [False]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    (value,) = debezium_messages(table, batch, physical="p", made_us=0, form=FORM).values.to_pylist()
    envelope = connect.read(value).schema()
    assert connect.jvm.io.debezium.data.Envelope.isEnvelopeSchema(envelope)
    ours = envelope.field("after").schema().field("c").schema()
    package, _, plain = name.rpartition(".")
    theirs = getattr(getattr(connect.jvm, package), plain).builder().optional().build()
    assert ours.equals(theirs), f"{ours.name()} {ours.version()} {ours.type()} against {theirs.name()}"


MARKS = TransactionMarks(
    pa.array(["0-1-5", "0-1-5", 'it"s']),
    np.array([7, 7, 8]),
    np.array([False, True, False]),
    np.array([3, 3, 1]),
    np.array([0, 0, 2, 2]),
    pa.array(["a.t", "a.u"]),
    np.array([1, 2]),
)


def test_begins_and_ends_of_transactions_are_what_debezium_writes(connect):
    """In the schemas that its own factory makes."""
    factory = connect.jvm.io.debezium.schema.SchemaFactory.get()
    adjuster = connect.jvm.io.debezium.schema.SchemaNameAdjuster.NO_OP
    messages = transaction_messages(MARKS, with_schema=True)
    values = [connect.read(each) for each in messages.values.to_pylist()]
    keys = [connect.read(each, connect.keys) for each in messages.keys.to_pylist()]
    assert all(each.schema().equals(factory.transactionValueSchema(adjuster)) for each in values)
    assert all(each.schema().equals(factory.transactionKeySchema(adjuster)) for each in keys)
    begin, end, other = (connect.plain(each.schema(), each.value()) for each in values)
    assert begin == {"status": "BEGIN", "id": "0-1-5", "event_count": None, "data_collections": None, "ts_ms": 7}
    tables = [{"data_collection": "a.t", "event_count": 1}, {"data_collection": "a.u", "event_count": 2}]
    assert end == {"status": "END", "id": "0-1-5", "event_count": 3, "data_collections": tables, "ts_ms": 7}
    assert other["id"] == 'it"s'
    assert [connect.plain(each.schema(), each.value())["id"] for each in keys] == ["0-1-5", "0-1-5", 'it"s']
    plain = transaction_messages(MARKS)
    written = [bytes(connect.writer.fromConnectData("t", each.schema(), each.value())) for each in values]
    assert plain.values.to_pylist() == written


def test_a_change_s_place_in_its_transaction_is_debezium_s_block(connect):
    """Both images of an update are one change; one without a place has no block."""
    table = TableSchema("main.t", (Column("id", "int64", nullable=False),), ("id",))
    kinds = [ChangeType.INSERT, ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE, ChangeType.INSERT]
    at = dt.datetime.now(dt.UTC)
    rows = [[1, int(kind), 7, number, at, "x", False] for number, kind in enumerate(kinds, 1)]
    arrays = [
        pa.array(each, field.type) for each, field in zip(zip(*rows, strict=True), frame_schema(table), strict=True)
    ]
    batch = pa.RecordBatch.from_arrays(arrays, schema=frame_schema(table))
    batch = batch.append_column(TOTAL_ORDER, pa.array([4, 5, 5, 0]))
    batch = batch.append_column(COLLECTION_ORDER, pa.array([1, 2, 2, 0]))
    values = debezium_messages(table, batch, physical="p", made_us=0, form=FORM).values.to_pylist()
    read = [connect.read(each) for each in values]
    block = connect.jvm.io.debezium.schema.SchemaFactory.get().transactionBlockSchema()
    assert all(each.schema().field("transaction").schema().equals(block) for each in read)
    assert [connect.plain(each.schema(), each.value())["transaction"] for each in read] == [
        {"id": "x", "total_order": 4, "data_collection_order": 1},
        {"id": "x", "total_order": 5, "data_collection_order": 2},
        None,
    ]
