"""Avro that was written in another schema than the table's: by an older or a newer writer, or by Debezium itself."""

import io
import json
from dataclasses import replace
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import UnrepresentableValue
from databus.formats import (
    DebeziumForm,
    debezium_avro_messages,
    debezium_avro_rows,
    debezium_avro_schema,
    own_avro_messages,
    own_avro_rows,
    own_avro_schema,
)
from databus.schema import BUS_FIELDS, Column, TableSchema, forms_of
from tests.formats.made import made
from tests.formats.test_changes import frame

FORM = DebeziumForm()


def columns_of(table, found):
    return [found.rows.column(column.name).to_pylist() for column in table.columns]


def written(name, table, batch):
    """The messages of a writer, its schema, and the reader."""
    if name == "own":
        return own_avro_messages(table, batch, physical="p").values, own_avro_schema(table), own_avro_rows
    values = debezium_avro_messages(table, batch, physical="p", made_us=1).values
    return values, debezium_avro_schema(table, "p", FORM), debezium_avro_rows


@given(made(), st.randoms())
@pytest.mark.parametrize("name", ["own", "debezium"])
def test_columns_in_another_order_and_fewer_of_them_are_read_as_they_were_written(name, it, random):
    """Whatever the writer's columns are: those that the table has come back as in the writer's own table."""
    try:
        values, schema, read = written(name, it.table, it.batch)
    except UnrepresentableValue:
        return  # Debezium's words cannot have each value
    wanted = read(it.table, values)
    chosen = random.sample(it.table.columns, random.randint(1, len(it.table.columns)))
    table = replace(it.table, columns=tuple(chosen), key=())
    found = read(table, values, schema=schema)
    assert columns_of(table, found) == columns_of(table, wanted)
    assert found.rows.column("_seq").equals(wanted.rows.column("_seq"))


@pytest.mark.parametrize("name", ["own", "debezium"])
@pytest.mark.parametrize(
    ("older", "newer", "value"),
    [
        ("int32", "int64", -7),
        ("float32", "float64", 1.5),
        ("decimal(10,2)", "decimal(14,4)", Decimal("-12345678.91")),
    ],
)
def test_a_column_that_has_become_wider_and_one_that_was_added_later(name, older, newer, value):
    before = TableSchema("main.t", (Column("v", older),))
    table = TableSchema("main.t", (Column("added", "string"), Column("v", newer)))
    values, schema, read = written(name, before, frame(older, pa.array([value, None], forms_of(older).arrow)))
    assert columns_of(table, read(table, values, schema=schema)) == [[None, None], [value, None]]


def test_points_in_time_have_the_digits_that_the_writer_s_schema_says():
    kind = forms_of("timestamp").arrow
    before = TableSchema("main.t", (Column("v", "timestamp", db_type="datetime(3)"),))
    values, schema, read = written("debezium", before, frame("timestamp", pa.array([1_001_000], pa.int64()).cast(kind)))
    table = TableSchema("main.t", (Column("v", "timestamp", db_type="datetime(6)"),))
    found = read(table, values, schema=schema).rows.column("v")
    assert found.cast(pa.int64()).to_pylist() == [1_001_000]


@pytest.mark.parametrize("name", ["own", "debezium"])
@pytest.mark.parametrize(
    ("column", "told"),
    [
        (Column("v", "int64"), "v was written as string"),
        (Column("v", "bool"), "v was written as string"),
        (Column("w", "int64", nullable=False), "no field, and null is none of its values for column w"),
    ],
)
def test_what_would_change_a_value_is_refused(name, column, told):
    values, schema, read = written(name, TableSchema("main.t", (Column("v", "string"),)), frame("string", ["1"]))
    with pytest.raises(UnrepresentableValue, match=told):
        read(TableSchema("main.t", (column,)), values, schema=schema)


@pytest.mark.parametrize("name", ["own", "debezium"])
@pytest.mark.parametrize(
    ("older", "newer"),
    [
        (["名称", "地址"], ["地址"]),
        (["Größe", "Grüße"], ["Grüße", "Größe"]),
        (["a-b"], ["a_b", "a-b"]),
        (["a b", "a-b"], ["a-b"]),
        (["1", "_1"], ["_1"]),
    ],
)
def test_avro_s_own_readers_take_no_column_for_another_when_a_table_changes(name, older, newer):
    """A reader with the schema of today finds fields by names, also of columns whose names Avro does not allow."""
    before, after = (
        TableSchema("shop.orders", tuple(Column(each, "string") for each in columns)) for columns in (older, newer)
    )
    bus = frame("string", ["a"])
    arrays = [pa.array([each]) for each in older] + bus.columns[1:]
    batch = pa.RecordBatch.from_arrays(arrays, names=[*older, *bus.schema.names[1:]])
    values, schema, _ = written(name, before, batch)
    reader = own_avro_schema(after) if name == "own" else debezium_avro_schema(after, "p", FORM)
    read = fastavro.schemaless_reader(io.BytesIO(values[0].as_py()), parsed(schema), parsed(reader))
    fields = reader["fields"] if name == "own" else reader["fields"][0]["type"][1]["fields"]
    row = read if name == "own" else read["after"]
    found = {field.get("doc", field["name"]): row[field["name"]] for field in fields}
    assert {each: found[each] for each in newer} == {each: each if each in older else None for each in newer}


def parsed(schema):
    return fastavro.parse_schema(json.loads(json.dumps(schema)))


def test_names_that_avro_changes_are_told_apart_or_refused():
    before = TableSchema("main.t", (Column("\\", "string"), Column("ü", "string"), Column("_", "string")))
    bus = frame("string", ["a"])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([name]) for name in "abc"] + bus.columns[1:], names=[*before.names, *bus.schema.names[1:]]
    )
    values, schema, read = written("own", before, batch)
    for name, value in zip(before.names, "abc", strict=True):
        table = TableSchema("main.t", (Column(name, "string"),))
        assert columns_of(table, read(table, values, schema=schema)) == [[value]]
    formerly = [
        {**each, "name": "_" * at, "doc": before.names[at - 1]} for at, each in enumerate(schema["fields"][:3], 1)
    ]
    table = TableSchema("main.t", (Column("ü", "string"),))
    assert columns_of(table, read(table, values, schema={**schema, "fields": formerly + schema["fields"][3:]})) == [
        ["b"]
    ]
    fields = [{key: each[key] for key in each if key != "doc"} for each in schema["fields"]]
    for name in ("_u00fc", "_"):  # by Debezium's `avro_unicode`, and by its `avro`
        with pytest.raises(UnrepresentableValue, match=f"the field {name}, which may be column ü or another"):
            read(TableSchema("main.t", (Column("ü", "string"),)), values, schema={**schema, "fields": fields})
        fields = [each for each in fields if each["name"] != name]


@pytest.mark.parametrize("schema", [{}, {"type": "record"}, {"type": "record", "name": "r", "fields": [{"name": "a"}]}])
@pytest.mark.parametrize("read", [own_avro_rows, debezium_avro_rows])
def test_a_schema_of_something_else_is_refused(read, schema):
    with pytest.raises(UnrepresentableValue, match="schema"):
        read(TableSchema("main.t", (Column("v", "string"),)), pa.array([b"\x00"]), schema=schema)


VALUE = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "state", "type": ["string", "null"], "default": "new", "doc": "what has become of it"},
        {
            "name": "at",
            "type": {"type": "long", "connect.version": 1, "connect.name": "io.debezium.time.MicroTimestamp"},
        },
        {"name": "unknown", "type": ["null", "double"], "default": None},
    ],
    "connect.name": "server1.shop.orders.Value",
}
ENVELOPE = {
    "type": "record",
    "name": "Envelope",
    "namespace": "server1.shop.orders",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "namespace": "io.debezium.connector.mysql",
                "fields": [
                    {"name": "version", "type": "string"},
                    {"name": "connector", "type": "string"},
                    {"name": "name", "type": "string"},
                    {"name": "ts_ms", "type": "long"},
                    {"name": "snapshot", "type": [{"type": "string", "connect.default": "false"}, "null"]},
                    {"name": "db", "type": "string"},
                    {"name": "sequence", "type": ["null", "string"], "default": None},
                    {"name": "table", "type": ["null", "string"], "default": None},
                    {"name": "server_id", "type": "long"},
                    {"name": "gtid", "type": ["null", "string"], "default": None},
                    {"name": "file", "type": "string"},
                    {"name": "pos", "type": "long"},
                    {"name": "row", "type": "int"},
                    {"name": "thread", "type": ["null", "long"], "default": None},
                    {"name": "query", "type": ["null", "string"], "default": None},
                ],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
        {
            "name": "transaction",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "block",
                    "namespace": "event",
                    "fields": [{"name": "id", "type": "string"}, {"name": "total_order", "type": "long"}],
                },
            ],
            "default": None,
        },
    ],
}
"""Of Debezium's MySQL connector, as Confluent's converter registers it; written here by fastavro."""


def test_messages_of_debezium_s_own_connector_are_read_by_their_schema():
    parsed = fastavro.parse_schema(json.loads(json.dumps(ENVELOPE)))

    def message(op, before, after, **more):
        source = {
            "version": "3.0.8.Final", "connector": "mysql", "name": "server1", "ts_ms": 1_700_000_000_000,
            "snapshot": "false", "db": "shop", "table": "orders", "server_id": 1, "gtid": "g:1", "pos": 4, "row": 0,
            "file": "binlog.000001", "thread": 8,
        }  # fmt: skip
        held = io.BytesIO()
        fastavro.schemaless_writer(held, parsed, {"before": before, "after": after, "source": source, "op": op, **more})
        return held.getvalue()

    row = {"id": 1, "state": "new", "at": 1_700_000_000_123_456, "unknown": 1.5}
    values = [
        message("c", None, row, transaction={"id": "t", "total_order": 1}),
        message("u", row, {**row, "state": None}, ts_ms=5),
        message("d", {**row, "state": None}, None),
    ]
    columns = (Column("id", "int64", nullable=False), Column("state", "string"), Column("at", "timestamp"))
    table = TableSchema("shop.orders", columns, ("id",))
    found = debezium_avro_rows(table, pa.array([*values, None]), schema=ENVELOPE).rows
    assert found.column("_change_type").to_pylist() == [1, 2, 3, 4]
    assert found.column("id").to_pylist() == [1, 1, 1, 1]
    assert found.column("state").to_pylist() == ["new", "new", None, None]
    assert set(found.column("at").cast(pa.int64()).to_pylist()) == {1_700_000_000_123_456}
    assert set(found.column("_txid").to_pylist()) == {"g:1"}
    assert found.schema.names[len(columns) :] == [field.name for field in BUS_FIELDS]


def test_tables_of_one_name_in_two_schemas_of_a_database_are_two_tables_by_their_connector_s_schema():
    fields = [{"name": each, "type": "string"} for each in ("db", "schema", "table")]
    source = {"type": "record", "name": "Source", "fields": fields}
    before, after, _, op = ENVELOPE["fields"][:4]
    envelope = {**ENVELOPE, "fields": [before, after, {"name": "source", "type": source}, op]}
    held = io.BytesIO()
    message = {
        "after": {"id": 1, "state": "new", "at": 1},
        "source": {"db": "shop", "schema": "audit", "table": "orders"},
        "op": "c",
    }
    fastavro.schemaless_writer(held, fastavro.parse_schema(json.loads(json.dumps(envelope))), message)
    values = pa.array([held.getvalue()])
    table = TableSchema("shop.audit.orders", (Column("id", "int64", nullable=False),), ("id",))
    assert debezium_avro_rows(table, values, schema=envelope).rows.column("id").to_pylist() == [1]
    for name in ("shop.orders", "shop.sales.orders"):
        with pytest.raises(UnrepresentableValue, match=r"is of shop\.audit\.orders"):
            debezium_avro_rows(replace(table, source=name), values, schema=envelope)
