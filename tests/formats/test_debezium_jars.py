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
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from databus.core import ChangeType
from databus.formats import DebeziumForm, UnsignedForm, debezium_messages
from databus.schema import Column, TableSchema, frame_schema
from databus.testing.servers import ServerMissing
from tests.formats.debezium_jars import debezium_jars
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
