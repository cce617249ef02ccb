"""Avro messages are read by fastavro in the schemas that are said, and by us; frames are Confluent's."""

import io
import json

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import ConfigError, UnrepresentableValue
from databus.formats import (
    DebeziumForm,
    DecimalForm,
    UnsignedForm,
    confluent_framed,
    confluent_unframed,
    debezium_avro_key_schema,
    debezium_avro_messages,
    debezium_avro_rows,
    debezium_avro_schema,
    debezium_messages,
    debezium_rows,
    own_avro_messages,
    own_avro_rows,
    own_avro_schema,
)
from databus.schema import Column, TableSchema, forms_of
from tests.formats.made import made
from tests.formats.test_changes import frame
from tests.formats.test_messages import loads, us_of
from tests.formats.test_readers import rows

FORMS = [DebeziumForm(unsigned=UnsignedForm.PRECISE), DebeziumForm(DecimalForm.STRING, UnsignedForm.PRECISE)]


def read(value, schema):
    held = io.BytesIO(value)
    found = fastavro.schemaless_reader(held, fastavro.parse_schema(json.loads(json.dumps(schema))))
    assert held.read() == b""
    return found


@given(made())
def test_fastavro_reads_our_own_rows_with_each_value(it):
    schema = own_avro_schema(it.table)
    found = own_avro_messages(it.table, it.batch, physical="p")
    labels = {1: "insert", 2: "update_preimage", 3: "update_postimage", 4: "delete"}
    for value, row in zip(found.values.to_pylist(), it.batch.to_pylist(), strict=True):
        cells = list(read(value, schema).values())
        wanted = [*row.values(), "p/main.t"]
        wanted[len(it.table.columns)] = labels[row["_change_type"]]
        for column, cell, want in zip([*it.table.columns, *[None] * 7], cells, wanted, strict=True):
            timed = column is not None and column.type.startswith("timestamp") and want is not None
            assert (us_of(cell), repr(want is None)) == (us_of(want), "False") if timed else str(cell) == str(want)
    names = [field["name"] for field in schema["fields"]]
    assert [n for n, c in zip(names, it.table.columns, strict=False) if c.name.isascii() and c.name.isidentifier()] == [
        c.name for c in it.table.columns if c.name.isascii() and c.name.isidentifier()
    ]


@given(made())
def test_our_own_rows_come_back_whole(it):
    found = own_avro_rows(it.table, own_avro_messages(it.table, it.batch, physical="p").values)
    assert rows(found.rows) == rows(it.batch)


@given(made())
@pytest.mark.parametrize("form", FORMS, ids=["precise", "strings"])
def test_debezium_s_avro_says_what_its_json_says(form, it):
    text = debezium_messages(it.table, it.batch, physical="p", made_us=5_000_001, form=form)
    found = debezium_avro_messages(it.table, it.batch, physical="p", made_us=5_000_001, form=form)
    schema = debezium_avro_schema(it.table, "p", form)
    key_schema = debezium_avro_key_schema(it.table, "p", form)
    assert found.rows.to_pylist() == text.rows.to_pylist()
    for value, key, line in zip(found.values.to_pylist(), found.keys.to_pylist(), text.values.to_pylist(), strict=True):
        assert (value is None, key is None) == (line is None, not it.table.key)
        if key is not None:
            read(key, key_schema)
        if value is not None:
            said, wanted = read(value, schema), loads(line)
            assert {n: v for n, v in said.items() if n not in ("before", "after")} == {
                n: v for n, v in wanted.items() if n not in ("before", "after")
            }
            assert [said[n] is None for n in ("before", "after")] == [wanted[n] is None for n in ("before", "after")]
    assert {n: h.is_valid().to_pylist() for n, h in found.headers.items()} == {
        n: h.is_valid().to_pylist() for n, h in text.headers.items()
    }
    read_back, read_text = (
        debezium_avro_rows(it.table, found.values, form=form),
        debezium_rows(it.table, text.values, form=form),
    )
    assert rows(read_back.rows) == rows(read_text.rows)
    assert read_back.messages == read_text.messages


@given(made())
def test_fastavro_reads_the_images_of_debezium_s_avro(it):
    form = DebeziumForm(unsigned=UnsignedForm.PRECISE)
    found = debezium_avro_messages(it.table, it.batch, physical="p", made_us=0, form=form)
    python = it.batch.to_pylist()
    for value, at in zip(found.values.to_pylist(), found.rows.to_pylist(), strict=True):
        said = {} if value is None else read(value, debezium_avro_schema(it.table, "p", form))
        if said.get("after") is None:
            continue
        for column, cell in zip(it.table.columns, said["after"].values(), strict=True):
            if not column.type.startswith(("timestamp", "date")):  # which fastavro gives as Connect's numbers
                assert str(cell) == str(python[at][column.name])


def test_a_frame_is_a_zero_and_the_id_of_the_schema():
    values = pa.array([b"ab", None, b""], pa.large_binary())
    framed = confluent_framed(values, 258)
    assert framed.to_pylist() == [b"\x00\x00\x00\x01\x02ab", None, b"\x00\x00\x00\x01\x02"]
    ids, bodies = confluent_unframed(framed)
    assert (ids.tolist(), bodies.to_pylist()) == ([258, -1, 258], values.to_pylist())
    for wrong in (b"\x01\x00\x00\x01\x02ab", b"\x00\x00\x00\x01"):
        with pytest.raises(UnrepresentableValue, match="message 1 has no frame"):
            confluent_unframed(pa.array([b"\x00\x00\x00\x00\x01", wrong]))
    with pytest.raises(ConfigError):
        confluent_framed(values, 1 << 31)


TABLE = TableSchema(
    "main.t", (Column("v", "string"), Column("n", "int64"), Column("b", "bool"), Column("f", "float64"))
)


@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 60), st.binary(max_size=3))
@pytest.mark.parametrize("reader", [own_avro_rows, debezium_avro_rows])
def test_any_bytes_are_read_or_refused_with_a_number(reader, values, at, patch):
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(["x", None]),
            pa.array([1, None]),
            pa.array([True, None]),
            pa.array([1.5, None]),
            *frame("int8", [1, 2]).columns[1:],
        ],
        names=[*TABLE.names, *frame("int8", [1]).schema.names[1:]],
    )
    write = own_avro_messages if reader is own_avro_rows else debezium_avro_messages
    more = {} if reader is own_avro_rows else {"made_us": 0}
    whole = write(TABLE, batch, physical="p", **more).values.to_pylist()
    changed = [whole[0][:at] + patch + whole[0][at + len(patch) :], whole[1][:at]]
    for messages in ([*whole, *values], changed):
        try:
            reader(TABLE, pa.array(messages, pa.binary()))
        except UnrepresentableValue as error:
            assert "message" in str(error) or "main.t." in str(error)  # noqa: PT017 - not every one is refused


@pytest.mark.parametrize("type_name", ["int64", "uint64", "decimal(38,0)", "float32"])
def test_extremes_in_avro_are_exact(type_name):
    from tests.schema.test_schema import EXTREMES

    table = TableSchema("main.t", (Column("v", type_name),))
    batch = frame(type_name, pa.array([*EXTREMES[type_name], None], forms_of(type_name).arrow))
    found = own_avro_rows(table, own_avro_messages(table, batch, physical="p").values)
    assert found.rows.column("v").equals(batch.column("v"))
