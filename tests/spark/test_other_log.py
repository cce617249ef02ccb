"""A query while another log of the same database takes the place of its own, inside a transaction or a batch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from databus.core import ServiceUnavailable, SourceCheckpoint
from databus.flow import RangeDecoder
from databus.log import Log
from databus.sources.mock import MockConfig, MockSource
from databus.spark._options import parse_options
from databus.spark._plan import Planner
from databus.spark._read import PartitionReader
from databus.spark._schema import RANGES_SCHEMA, arrow_schema, typed_schema
from databus.testing import RelayProcess
from databus.wire import Group
from tests.log.make import ORDERS, STOCK, group

TABLES = {each.source: {"columns": {column.name: column.type for column in each.columns}} for each in (ORDERS, STOCK)}
MOCK = {"rows_per_transaction": 1, "schemas": TABLES, "updates": 0, "deletes": 0}


def relay_of(folder: Path, groups: Sequence[Group], in_place_of: RelayProcess | None = None) -> RelayProcess:
    identity = MockSource("shop", MockConfig(**MOCK)).identify()
    log = Log.open(folder / "relay" / "shop", physical="shop", identity=identity)
    for each in groups:
        log.append(replace(each, commit=replace(each.commit, position={"n": each.commit.scn, "t0_us": 0})))
    log.close()
    source = {"type": "mock", "transactions_total": groups[-1].commit.scn, **MOCK}
    listen = {} if in_place_of is None else {"listen": in_place_of.url.removeprefix("http://")}
    return RelayProcess(folder, {"shop": source}, **listen)


class Query:
    """A query over orders as Spark has it: it plans batches of one row at least, and reads them."""

    def __init__(self, url: str) -> None:
        self.options = parse_options({"relay": url, "shape": "typed", "sources": ORDERS.source, "waitMs": "0"})
        self.planner = Planner(self.options, None)
        table = self.planner.target.table
        assert table is not None
        self.reader = PartitionReader(
            self.options, self.planner.target, arrow_schema(typed_schema(table.schema, meta_full=False))
        )

    def batch(self, start: SourceCheckpoint, rows_max: int | None) -> tuple[SourceCheckpoint, list[str]]:
        end = self.planner.end_after(start, rows_max=rows_max, bytes_max=None, available=self.planner.head().pair)
        return end, self.rows(start, end)

    def rows(self, start: SourceCheckpoint, end: SourceCheckpoint) -> list[str]:
        parts = self.planner.split(start, end)
        return [note for part in parts for batch in self.reader.read(part) for note in batch["note"].to_pylist()]


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[RelayProcess]:
    """Its log counts the rows of stock before those of orders."""
    parts = [
        group(1),
        group(2, tables=(STOCK, ORDERS), count=4, continues=True),
        group(2, first_seq=9, count=2),
    ]
    with relay_of(tmp_path / "parted", parts) as relay:
        yield relay


@pytest.mark.parametrize("is_cut", [False, True], ids=["whole", "in parts"])
def test_no_row_is_left_out_where_another_log_counts_the_transaction_otherwise(
    tmp_path: Path, parted: RelayProcess, is_cut: bool
) -> None:
    query = Query(parted.url)
    start, _ = query.batch(query.planner.initial(), 1)
    inside, told = query.batch(start, 4)
    assert inside.pair == (2, 8)
    assert told == [f"x-2-{seq}" for seq in (5, 6, 7, 8)]
    assert query.batch(inside, None)[1] == ["x-2-9", "x-2-10"], "its own log goes on where it stood"
    groups = [group(1), group(2, count=3, continues=True), group(2, first_seq=4, count=3)]
    if not is_cut:
        groups = [group(1), group(2, count=6)]
    with relay_of(tmp_path / "other", groups) as other:
        query = Query(other.url)
        found: list[str] = []
        end = inside
        for _ in range(3):
            after, told = query.batch(end, 3 if is_cut else None)
            assert query.rows(end, after) == told, "a batch that is replayed"
            end, found = after, found + told
        assert found == [f"x-2-{seq}" for seq in range(1, 7)], "all of the transaction comes again"
        assert end.pair == query.planner.head().pair


OTHER = [group(1), group(2, count=3, continues=True), group(2, first_seq=4, count=3), group(3, count=2)]
"""Counts the rows of orders alone, and has given that table the first number."""


@pytest.mark.parametrize("shape", ["typed", "ranges"])
def test_a_batch_that_was_planned_on_one_log_is_not_read_from_another(
    tmp_path: Path, parted: RelayProcess, shape: str
) -> None:
    """The pairs between which it was to be read mean other rows there: here all of them would be left out."""
    query = Query(parted.url)
    start, _ = query.batch(query.planner.initial(), 1)
    inside, _ = query.batch(start, 4)
    options = query.options if shape == "typed" else parse_options({"relay": parted.url, "shape": shape})
    planner = Planner(options, None)
    reader = query.reader if shape == "typed" else PartitionReader(options, planner.target, arrow_schema(RANGES_SCHEMA))
    parts = planner.split(inside, planner.head())
    parted.stop()
    with relay_of(tmp_path / "other", OTHER, in_place_of=parted):
        decode = RangeDecoder(parted.url, None, "shop", None, 1_000, 1_000)
        with pytest.raises(ServiceUnavailable, match=r"was planned on log .* now answers from log"):
            for part in parts:
                read = pa.Table.from_batches(reader.read(part))
                list(decode(read) if shape == "ranges" else ())
        again = Planner(options, None)
        assert [part.after for part in again.split(inside, again.head())] == [(2, -1)], "planned again, all of it comes"


def test_a_typed_query_passes_no_rows_of_its_table_where_another_log_numbers_tables_otherwise(
    tmp_path: Path, parted: RelayProcess
) -> None:
    """It asks by the number of its table, which is that of another one there. That rests."""
    query = Query(parted.url)
    end = query.planner.initial()
    while end.pair < query.planner.head().pair:
        end, _ = query.batch(end, None)
    parted.stop()
    groups = [group(1, tables=(ORDERS, STOCK)), group(2, tables=(ORDERS, STOCK)), group(3, count=2)]
    with relay_of(tmp_path / "other", groups, in_place_of=parted):
        with pytest.raises(ServiceUnavailable, match=r"was planned on log .* now answers from log"):
            query.batch(end, None)
        assert Query(parted.url).batch(end, None)[1] == ["x-3-1", "x-3-2"], "started again, it goes on"
