"""Files that tasks write: what is said of them lets readers skip them, and never skip too much."""

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given
from hypothesis import strategies as st

from databus.disk import located
from databus.flow import Stored, is_data_file, write_data_file
from databus.sinks.delta._table import DeltaTarget, Upkeep

POINTS = ("delta.history.before_commit", "delta.history.after_commit")
ROWS = pa.table(
    {
        "i": pa.array([3, None, -7], pa.int32()),
        "s": pa.array(["x" * 40, "ä", None], pa.string()),
        "d": pa.array([dt.date(2026, 1, 2), dt.date(1, 1, 1), None], pa.date32()),
        "t": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC), None, None], pa.timestamp("us", "UTC")),
        "n": pa.array([dt.datetime(2026, 1, 2, 3, 4, 5, 678901), None, None], pa.timestamp("us")),  # noqa: DTZ001 - local
        "f": pa.array([1.5, None, -2.0]),
        "o": pa.array([True, False, None]),
        "x": pa.array([Decimal("1.50"), None, Decimal("-3.25")], pa.decimal128(10, 2)),
        "b": pa.array([b"\xff", None, b""]),
        "all_null": pa.nulls(3, pa.int64()),
    }
)


def test_what_is_said_of_a_file_is_what_is_in_it(tmp_path: Path) -> None:
    file = write_data_file(tmp_path / "t", ROWS)
    assert is_data_file(file.name)
    found = pq.read_table(tmp_path / "t" / file.name)
    assert found.schema.equals(ROWS.schema)
    assert found.equals(ROWS)
    assert (tmp_path / "t" / file.name).stat().st_size == file.size_bytes
    stats = json.loads(file.stats)
    assert stats["numRecords"] == file.rows == 3
    assert stats["nullCount"] == {name: ROWS.column(name).null_count for name in ROWS.column_names if name != "b"}
    assert stats["minValues"] == {
        "i": -7,
        "s": "x" * 32,
        "d": "0001-01-01",
        "t": "2026-01-02T03:04:05.678901Z",
        "n": "2026-01-02T03:04:05.678901",
        "f": -2.0,
        "x": -3.25,
        "o": False,
    }
    assert stats["maxValues"]["s"] == "ä"
    assert stats["maxValues"]["i"] == 3


@pytest.mark.parametrize(
    "column",
    [
        pa.array([-800_000, 3_000_000], pa.int32()).cast(pa.date32()),
        pa.array([1.0, float("nan")]),
        pa.array([1.0, float("inf")]),
    ],
)
def test_where_one_column_has_no_exact_bounds_no_column_has(column: pa.Array, tmp_path: Path) -> None:
    rows = pa.table({"i": [1, 2], "v": column})
    assert json.loads(write_data_file(tmp_path, rows).stats) == {"numRecords": 2}


@pytest.mark.parametrize("rest", ["\U0010ffff", "\U0010ffffb", "\U0010ffff" * 9, "\U0010fffe\U0010ffff", "b"])
def test_no_text_is_above_its_files_bound(rest: str, tmp_path: Path) -> None:
    text = "a" * 32 + rest
    target = DeltaTarget(located(tmp_path / "t"), "shop/main.t", "app", Upkeep(), POINTS)
    target.create(pa.schema({"s": pa.string()}))
    target.append(pa.table({"s": [text]}), Stored((1, 1), 1))
    table = DeltaTable(tmp_path / "t")
    for condition in ([("s", "=", text)], [("s", ">=", text)]):
        assert table.to_pyarrow_table(filters=condition).num_rows == 1


def isnan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


values = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "s": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=40)),
    "d": (pa.date32(), st.dates()),
    "t": (pa.timestamp("us", "UTC"), st.datetimes(dt.datetime(1900, 1, 1), timezones=st.just(dt.UTC))),  # noqa: DTZ001
    "f": (pa.float64(), st.floats()),
    "o": (pa.bool_(), st.booleans()),
    "x": (pa.decimal128(20, 0), st.decimals(-(2**64), 2**64 - 1, places=0)),
    "y": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
}


@pytest.mark.parametrize("name", values)
def test_no_file_is_skipped_that_has_a_row(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The oracle is Arrow over all rows; the reader that skips files is Delta's own engine."""
    kind, each = values[name]

    @given(st.lists(st.lists(st.none() | each, min_size=1, max_size=5), min_size=1, max_size=4))
    def check(lists: list[list[Any]]) -> None:
        folder = tmp_path_factory.mktemp("t")
        target = DeltaTarget(located(folder), "shop/main.t", "a", Upkeep(), POINTS)
        target.create(pa.schema([("v", kind), ("i", pa.int64())]))
        tables = [pa.table({"v": pa.array(some, kind), "i": [number] * len(some)}) for number, some in enumerate(lists)]
        target.replace([write_data_file(folder, rows) for rows in tables], (), Stored((1, 1)))
        every = pa.concat_tables(tables)
        table = DeltaTable(folder)
        assert QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()["v"].null_count == (
            every["v"].null_count
        )
        for wanted in {value for some in lists for value in some if value is not None and not isnan(value)}:
            held = sum(value == wanted for value in every["v"].to_pylist())
            found = table.to_pyarrow_dataset().to_table(filter=pa.compute.field("v") == pa.scalar(wanted, kind))
            assert found.num_rows == held
        for number, some in enumerate(lists):
            assert table.to_pyarrow_dataset().to_table(filter=pa.compute.field("i") == number).num_rows == len(some)

    check()


def test_a_kill_leaves_nothing_that_is_taken_for_a_table(tmp_path: Path) -> None:
    """A file of a task is there before the table is: it does not make its folder one."""
    write_data_file(tmp_path / "t", ROWS)
    (tmp_path / "t" / "_delta_log").mkdir()
    target = DeltaTarget(located(tmp_path / "t"), "shop/main.t", "a", Upkeep(), POINTS)
    assert not target.exists
    target.create(pa.schema([("v", pa.int64())]))
    assert target.read().num_rows == 0


def test_what_no_commit_names_is_removed_and_nothing_else(tmp_path: Path) -> None:
    rows = pa.table({"v": [1, 2]})
    target = DeltaTarget(located(tmp_path), "shop/main.t", "a", Upkeep(), POINTS)
    target.create(rows.schema)
    kept, left = (write_data_file(tmp_path, rows) for _ in range(2))
    target.replace([kept], (), Stored((1, 1)))
    target.discard([kept.name, left.name])
    assert [path.name for path in tmp_path.glob("*.parquet")] == [kept.name]
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 2
