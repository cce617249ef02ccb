"""Row groups that are left unread hold no row that is wanted, whatever their values; and much is left unread."""

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from databus.core import SourceCheckpoint
from databus.disk import located
from databus.link import RelayClient
from databus.schema import Predicate
from databus.stores import ColumnBounds, RowsWanted, file_of
from tests.bootstrap.filled import PHYSICAL, Shop

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "price": pa.decimal128(12, 2),
        "name": pa.string(),
        "ratio": pa.float64(),
        "day": pa.date32(),
        "Flag": pa.bool_(),
    }
)
TEXTS = st.sampled_from(["", "a", "ab", "b", "Zürich", "é" * 40, "a" * 300, "a" * 299 + "b", "\U0001f600", "￿"])
VALUES = {
    "n": st.integers(-5, 5) | st.sampled_from([-(1 << 63), (1 << 63) - 1]),
    "price": st.decimals(-5, 5, places=2) | st.sampled_from([Decimal("-9999999999.99"), Decimal("0.10")]),
    "name": TEXTS,
    "ratio": st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -1.5]),
    "day": st.dates(dt.date(2026, 1, 1), dt.date(2026, 1, 9)),
    "Flag": st.booleans(),
}
ROW = st.fixed_dictionaries({name: st.none() | each for name, each in VALUES.items()})
WRITTEN = {
    "n": st.sampled_from(["0", "2", "-3.5", "2.5", "9223372036854775807"]),
    "price": st.sampled_from(["0", "1.005", "-2.5", "0.10", "3"]),
    "name": TEXTS.map(lambda text: f"'{text}'"),
    "ratio": st.sampled_from(["0", "1.5", "-1.5", "3"]),
    "day": st.sampled_from(["DATE '2026-01-04'", "DATE '2026-01-09'"]),
}


@st.composite
def comparisons(draw):
    name = draw(st.sampled_from(sorted(WRITTEN)))
    one, other = draw(WRITTEN[name]), draw(WRITTEN[name])
    sign = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    shapes = [f"{name} {sign} {one}", f"{one} {sign} {name}", f"{name} IN ({one}, {other})"]
    shapes += [
        f"{name} IS NULL",
        f"{name} IS NOT NULL",
        f"NOT {name} {sign} {one}",
        f"{name} BETWEEN {one} AND {other}",
    ]
    return draw(st.sampled_from([*shapes, "name LIKE 'a%'", "flag", f"{name.upper()} {sign} {one}"]))


CONDITIONS = st.recursive(
    comparisons(),
    lambda below: st.tuples(below, st.sampled_from(["AND", "OR"]), below).map(lambda each: f"({' '.join(each)})"),
    max_leaves=4,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=12), CONDITIONS)
@example([{**dict.fromkeys(VALUES), "ratio": math.nan, "n": 1}], "ratio > 3")
@example([dict.fromkeys(VALUES)], "n IS NULL AND NOT n = 2")
def test_what_is_left_unread_holds_no_row_that_is_wanted(tmp_path_factory, rows, condition):
    folder = located(tmp_path_factory.getbasetemp())
    table, predicate = pa.Table.from_pylist(rows, SCHEMA), Predicate.parse(condition)
    pq.write_table(table, folder.path / "one.parquet", row_group_size=3)
    held = file_of(folder / "one.parquet").held(RowsWanted(SCHEMA, (predicate,)))
    for number, is_held in enumerate(held):
        part = table.slice(3 * number, 3)
        assert is_held or not predicate.over(SCHEMA).keep(part).num_rows


@pytest.fixture
def shop(tmp_path, monkeypatch):
    write = pq.ParquetWriter.write_table
    monkeypatch.setattr(
        pq.ParquetWriter, "write_table", lambda writer, rows, **_: write(writer, rows, row_group_size=100)
    )
    many = "CREATE TABLE many (id INTEGER PRIMARY KEY, name TEXT, total INTEGER, filler TEXT)"
    with Shop(tmp_path, many).running() as running:
        values = ", ".join(f"({n}, 'n{n}', {n % 7}, '{n:0100}')" for n in range(2000))
        running.execute(f"INSERT INTO many VALUES {values}")
        running.fill()
        yield running


def test_a_hundredth_of_a_table_by_its_key_reads_little_of_it(shop):
    """And columns that are not asked for are not read."""
    service = RelayClient(shop.service_url)
    whole = service.range(PHYSICAL, SourceCheckpoint())
    few = service.filtered(service.filters.parse(where="id >= 500 AND id < 520"))
    part = few.range(PHYSICAL, SourceCheckpoint())
    assert part.bytes < 0.06 * whole.bytes
    with few.stream(PHYSICAL, "beginning", follow=True) as stream:
        found = [frame.batch for groups in stream for group in groups for frame in group.rows]
    assert sorted(row["id"] for batch in found for row in batch.to_pylist()) == list(range(500, 520))


@pytest.mark.parametrize(
    ("condition", "is_held"),
    [
        ("name = 'Bernina'", True),
        ("name = 'Bern'", True),
        ("name > 'Bf'", False),
        ("name < 'Bern'", False),
        ("name >= 'Berz'", False),
        ("note = 'x'", True),
        ("price > 1.5", False),
        ("price >= 1.50", True),
    ],
)
def test_bounds_that_are_cut_or_missing_prove_no_more_than_they_say(condition, is_held):
    """The least one may be below all values, and the greatest above them."""
    bounds = {
        "name": ColumnBounds("Bern", "Bero", 0, 9),
        "price": ColumnBounds(Decimal("-1.00"), Decimal("1.50"), 1, 9),
    }
    schema = pa.schema({"name": pa.string(), "price": pa.decimal128(12, 2), "note": pa.string()})
    assert RowsWanted(schema, (Predicate.parse(condition),)).may_hold(bounds) is is_held
