"""One definition, and everything derived from it holds each value exactly."""

import datetime as dt
import io
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import BUS_COLUMNS, ConfigError
from databus.schema import (
    TYPE_NAMES,
    Column,
    TableSchema,
    avro_schema,
    diff,
    forms_of,
    frame_schema,
    sink_schema,
    spark_fields,
    widens,
)

CONCRETE = [*[name for name in TYPE_NAMES if "(" not in name], "decimal(38,0)", "decimal(38,38)", "decimal(12,2)"]
names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12).filter(
    lambda n: n not in BUS_COLUMNS
)
tables = st.lists(
    st.tuples(names, st.sampled_from(CONCRETE), st.booleans()), min_size=1, max_size=6, unique_by=lambda c: c[0]
).map(lambda columns: TableSchema("main.t", tuple(Column(n, t, nullable=ok) for n, t, ok in columns), (columns[0][0],)))


@given(tables)
def test_a_definition_read_back_has_the_same_fingerprint(table):
    again = TableSchema.from_json(table.to_json())
    assert again == table
    assert again.fingerprint == table.fingerprint


def test_a_fingerprint_does_not_change_between_releases():
    """It stands in logs on disk: a change here makes them unreadable."""
    table = TableSchema(
        "main.orders", (Column("id", "int64", nullable=False, db_type="INTEGER"), Column("näme", "string")), ("id",)
    )
    assert f"{table.fingerprint:016x}" == FINGERPRINT


FINGERPRINT = "3419e9cca34a8fc6"


@given(tables)
def test_every_definition_has_all_its_forms(table):
    assert frame_schema(table).names == [*table.names, *BUS_COLUMNS]
    assert sink_schema(table).names == list(table.names)
    assert [each["name"] for each in spark_fields(table)] == list(table.names)
    fastavro.parse_schema(avro_schema(table))


EXTREMES = {
    "int8": [-128, 127], "int16": [-(2**15), 2**15 - 1], "int32": [-(2**31), 2**31 - 1], "int64": [-(2**63), 2**63 - 1],
    "uint8": [0, 255], "uint16": [0, 2**16 - 1], "uint32": [0, 2**32 - 1], "uint64": [0, 2**64 - 1],
    "bool": [True, False], "float32": [-1.5, 3.4028234663852886e38], "float64": [5e-324, 1.7976931348623157e308],
    "decimal(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38)], "decimal(38,38)": [Decimal("0." + "9" * 38)],
    "decimal(12,2)": [Decimal("9999999999.99")], "string": ["", "a\0b", "😀"], "binary": [b"", b"\x00\xff"],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "timestamp": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],  # noqa: DTZ001 - it has no zone
    "timestamptz": [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)],
}  # fmt: skip


@pytest.mark.parametrize("type_name", CONCRETE)
def test_extremes_survive_the_sink_and_avro_forms(type_name):
    values = EXTREMES[type_name]
    forms = forms_of(type_name)
    assert pa.array(values, forms.arrow).cast(forms.sink).to_pylist() == values
    schema = fastavro.parse_schema(avro_schema(TableSchema("main.t", (Column("v", type_name),))))
    for value in values:
        buffer = io.BytesIO()
        written = Decimal(value) if type_name == "uint64" else value
        fastavro.schemaless_writer(buffer, schema, {"v": written})
        buffer.seek(0)
        read = fastavro.schemaless_reader(buffer, schema)["v"]
        assert (int(read) if isinstance(value, int) and not isinstance(value, bool) else read) == value


@pytest.mark.parametrize(
    ("columns", "key", "words"),
    [
        ([("a", "int65")], (), "'int65' is not a column type"),
        ([("a", "decimal(39,0)")], (), "precision is 1..38"),
        ([("a", "int64"), ("a", "string")], (), "stands twice"),
        ([("_seq", "int64")], (), "one of the bus's own columns"),
        ([("_source", "string")], (), "one of the bus's own columns"),
        ([("a", "int64")], ("b",), "key column 'b' is not a column"),
        ([("", "int64")], (), "no name"),
    ],
)
def test_what_cannot_be_a_table_is_refused(columns, key, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")) as caught:
        TableSchema("main.t", tuple(Column(*each) for each in columns), key)
    assert words in str(caught.value)


@given(st.sampled_from(CONCRETE), st.sampled_from(CONCRETE))
def test_a_type_widens_only_to_one_that_holds_its_extremes(old, new):
    if widens(old, new):
        values = EXTREMES[old]
        cast = pa.array(values, forms_of(old).arrow).cast(forms_of(new).arrow)
        assert cast.to_pylist() == values


def test_a_diff_names_what_a_copy_must_do():
    old = TableSchema("main.t", (Column("id", "int32"), Column("a", "string"), Column("b", "float64")), ("id",))
    new = TableSchema("main.t", (Column("id", "int64"), Column("b", "int64"), Column("c", "string")), ("id", "c"))
    found = diff(old, new)
    assert (found.widened, found.narrowed, found.dropped) == (("id",), ("b",), ("a",))
    assert [c.name for c in found.added] == ["c"]
    assert found.key_changed
    assert diff(old, old).is_empty
