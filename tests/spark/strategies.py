"""Any table and any rows of it, for property tests: the values that break things, in every supported type."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

from databus.core import ChangeType
from databus.schema import Column, TableSchema, forms_of, frame_schema

_INT_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_UINT_BITS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
SIMPLE_TYPES = (
    "bool", *_INT_BITS, *_UINT_BITS, "float32", "float64", "string", "binary", "date", "timestamp", "timestamptz",
)  # fmt: skip
_FIRST, _LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)  # noqa: DTZ001 - naive on purpose


def _edges(low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from([low, high, 0]) | st.integers(low, high)


def values(type_name: str) -> st.SearchStrategy:
    """Values of a column type as Python holds them."""
    if type_name in _INT_BITS:
        return _edges(-(1 << _INT_BITS[type_name]), (1 << _INT_BITS[type_name]) - 1)
    if type_name in _UINT_BITS:
        return _edges(0, (1 << _UINT_BITS[type_name]) - 1)
    if type_name.startswith("decimal"):
        form = forms_of(type_name).arrow
        units = 10**form.precision - 1
        return _edges(-units, units).map(
            lambda number: Decimal(f"{number}E-{form.scale}")
        )  # the constructor does not round
    return {
        "bool": st.booleans(),
        "float32": st.floats(width=32, allow_nan=False),
        "float64": st.floats(allow_nan=False),
        "string": st.sampled_from(["", "\0", "\U0001f600é", "x" * 300]) | st.text(max_size=20),
        "binary": st.sampled_from([b"", b"\0\xff"]) | st.binary(max_size=20),
        "date": st.dates(),
        "timestamp": st.sampled_from([_FIRST, _LAST]) | st.datetimes(),
        "timestamptz": st.sampled_from([_FIRST, _LAST]).map(_utc) | st.datetimes().map(_utc),
    }[type_name]


def _utc(value: dt.datetime) -> dt.datetime:
    return value.replace(tzinfo=dt.UTC)


_decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})"))
types = st.sampled_from(SIMPLE_TYPES) | _decimals
_names = st.sampled_from(["id", "name", "a b", "ünï", "select", "x.y", "`q`", "_extra", "1st"])


@st.composite
def tables(draw: st.DrawFn, source: str = "main.t") -> TableSchema:
    """A table of up to six columns."""
    names = draw(st.lists(_names, min_size=1, max_size=6, unique=True))
    columns = tuple(Column(name, draw(types), nullable=draw(st.booleans())) for name in names)
    return TableSchema(source, columns, (names[0],) if draw(st.booleans()) else ())


@st.composite
def images(draw: st.DrawFn, table: TableSchema, rows_max: int = 12) -> list[dict[str, object]]:
    """Row images of a table, without the bus's columns."""
    return draw(
        st.lists(
            st.fixed_dictionaries(
                {c.name: st.none() | values(c.type) if c.nullable else values(c.type) for c in table.columns}
            ),
            max_size=rows_max,
        )
    )


def batch_of(
    table: TableSchema, rows: list[dict[str, object]], scn: int, first_seq: int = 1, txid: str | None = None
) -> pa.RecordBatch:
    """A frame's batch of these rows, all of one transaction; change types in turn."""
    count = len(rows)
    kinds = [ChangeType(i % 4 + 1) for i in range(count)]
    stamps = {
        "_change_type": [int(kind) for kind in kinds],
        "_commit_version": [scn] * count,
        "_seq": list(range(first_seq, first_seq + count)),
        "_commit_timestamp": [scn * 1_000_000] * count,
        "_txid": [txid or f"tx-{scn}"] * count,
        "_snapshot": [False] * count,
    }
    schema = frame_schema(table)
    arrays = []
    for field in schema:
        given = stamps.get(field.name) or [row[field.name] for row in rows]
        if pa.types.is_dictionary(field.type):
            arrays.append(pa.array(given, pa.string()).dictionary_encode())
        else:
            arrays.append(
                pa.array(given, pa.int64()).cast(field.type)
                if field.name == "_commit_timestamp"
                else pa.array(given, field.type)
            )
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
