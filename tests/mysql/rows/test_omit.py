"""Rows above the limit lose their largest values to a marker: a law, compared with a slow twin, and its borders."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from databus.core import LimitExceeded
from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import OMITTED, Omitter, describe

COLUMNS = (
    ColumnDefinition("id", FieldType.LONG, 0, "int", is_nullable=False),
    ColumnDefinition("code", FieldType.VARCHAR, 400, "varchar(100)", charset="utf8mb4", is_nullable=False),
    ColumnDefinition("text", FieldType.BLOB, 4, "longtext", charset="utf8mb4"),
    ColumnDefinition("bytes", FieldType.BLOB, 4, "longblob"),
    ColumnDefinition("doc", FieldType.JSON, 4, "json"),
    ColumnDefinition("state", FieldType.ENUM, 1, "enum('a','b')", charset="latin1", members=("a", "b" * 200)),
    ColumnDefinition("shape", FieldType.GEOMETRY, 4, "geometry"),
)
TABLE = TableDefinition("shop", "t", COLUMNS, ("id", "code"))
SCHEMA = describe(TABLE)
REPLACEABLE = {"text": "", "bytes": "", "doc": '"', "shape": ""}
Row = dict[str, object]

texts = st.text(max_size=5) | st.integers(0, 3_000).map(lambda n: "é" * n)
rows = st.fixed_dictionaries(
    {
        "id": st.integers(-5, 5),
        "code": st.text(max_size=40),
        "text": st.none() | texts,
        "bytes": st.none() | st.integers(0, 3_000).map(bytes),
        "doc": st.none() | texts,
        "state": st.sampled_from(["a", "b" * 200, None]),
        "shape": st.none() | st.integers(0, 2_000).map(bytes),
    }
)


class Here:
    table = "shop.t"

    def row(self, number: int) -> str:
        return f"row {number}"


def size_of(value: object) -> int:
    return len(value.encode() if isinstance(value, str) else value) if isinstance(value, str | bytes) else 0


def slowly(row: Row, limit: int) -> Row | None:
    """What the row becomes; None if it does not fit."""
    row = dict(row)
    left = [name for name in REPLACEABLE if size_of(row[name])]
    while sum(map(size_of, row.values())) > limit:
        marked = {n: f"{REPLACEABLE[n]}{OMITTED} {size_of(row[n])}{REPLACEABLE[n]}" for n in left}
        left = [name for name in left if size_of(row[name]) > len(marked[name])]
        if not left:
            return None
        largest = max(left, key=lambda name: size_of(row[name]))
        left.remove(largest)
        row[largest] = marked[largest].encode() if isinstance(row[largest], bytes) else marked[largest]
    return row


def arrays_of(found: list[Row]) -> list[pa.Array]:
    names = SCHEMA.names
    kinds = {"id": pa.int32(), "bytes": pa.binary(), "shape": pa.binary()}
    return [pa.array([row[name] for row in found], kinds.get(name, pa.string())) for name in names]


@given(st.lists(rows, max_size=6), st.integers(300, 4_000))
def test_each_row_fits_and_only_its_largest_values_went(found: list[Row], limit: int) -> None:
    """Law: the arrays are those of rows that were treated one by one; nothing else has changed."""
    wanted = [slowly(row, limit) for row in found]
    omitter = Omitter(limit)
    if None in wanted:
        with pytest.raises(LimitExceeded, match=f"row {wanted.index(None)} has .* row_bytes_max = {limit}"):
            omitter.apply(TABLE, SCHEMA, arrays_of(found), Here())
        return
    made = omitter.apply(TABLE, SCHEMA, arrays_of(found), Here())
    assert [array.type for array in made] == [array.type for array in arrays_of(found)]
    columns = dict(zip(SCHEMA.names, (array.to_pylist() for array in made), strict=True))
    assert [{name: columns[name][at] for name in SCHEMA.names} for at in range(len(found))] == wanted
    lost = sum(old[name] != new[name] for old, new in zip(found, wanted, strict=True) if new for name in REPLACEABLE)
    assert omitter.counts().get("shop.t", 0) == lost


def test_a_row_of_exactly_the_limit_stays_whole() -> None:
    row: Row = dict.fromkeys(SCHEMA.names) | {"id": 1, "code": "k", "text": "x" * 999}
    assert Omitter(1_000).apply(TABLE, SCHEMA, arrays_of([row]), Here())[2].to_pylist() == ["x" * 999]
    (less,) = Omitter(999).apply(TABLE, SCHEMA, arrays_of([row]), Here())[2].to_pylist()
    assert less == "__databus_value_omitted__ 999"


def test_a_slice_of_arrays_is_taken_for_what_it_is() -> None:
    row: Row = dict.fromkeys(SCHEMA.names) | {"id": 1, "code": "k", "bytes": b"x" * 2_000}
    arrays = [array.slice(1, 2) for array in arrays_of([{**row, "bytes": b"before"}, row, {**row, "bytes": b"next"}])]
    assert Omitter(1_000).apply(TABLE, SCHEMA, arrays, Here())[3].to_pylist() == [
        b"__databus_value_omitted__ 2000",
        b"next",
    ]
