"""Where a query stands inside a transaction, or after a cut stream: without a loss, on whatever log it continues."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from databus.core import ServiceUnavailable, SourceCheckpoint, StreamCut
from databus.link import RangeReader, any_of
from databus.spark._options import parse_options
from databus.spark._plan import Planner
from databus.spark._read import PartitionReader
from databus.spark._schema import arrow_schema, typed_schema
from databus.wire import Commit, FrameGroup, OpenSnapshot
from tests.log.make import ORDERS, STOCK
from tests.spark.conftest import StartRelay
from tests.spark.kit import encoded, parsed
from tests.spark.script import insert, schema, transaction, write

ROWS = 50


def test_a_batch_ends_inside_a_transaction_at_its_limit_though_others_follow_in_its_group(
    start_relay: StartRelay, tmp_path: Path
) -> None:
    """The query reads one table; transactions of another stand behind its own in the same group."""
    lines = [
        transaction(schema(ORDERS), schema(STOCK)),
        transaction(*(insert(ORDERS, id=number, note="x") for number in range(ROWS))),
        *(transaction(insert(STOCK, id=number, left=1)) for number in range(ROWS)),
    ]
    relay = start_relay({"shop": write(tmp_path / "script.jsonl", lines)}, scn=len(lines))
    asked = parse_options({"relay": relay.url, "shape": "typed", "sources": "main.orders", "meta": "full"})
    planner = Planner(asked, None)
    assert planner.target.table is not None
    reader = PartitionReader(
        asked, planner.target, arrow_schema(typed_schema(planner.target.table.schema, meta_full=True))
    )
    position, last = planner.initial(), planner.head()
    batches: list[list[int]] = []
    while position.pair < last.pair and len(batches) <= ROWS:
        end = planner.end_after(position, rows_max=20, bytes_max=None, available=last.pair)
        rows = [
            row
            for partition in planner.split(position, end)
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]
        batches.append([row["id"] for row in rows if row["_change_type"] == "insert"])
        position = end
    assert [each for batch in batches for each in batch] == list(range(ROWS))
    assert [len(batch) for batch in batches if batch] == [20, 20, 10]


class CutOnce:
    """A relay whose first response breaks after one group."""

    uuid, log, where = "db-1", "log-a", "relay at test"

    def __init__(self, groups: list[FrameGroup]) -> None:
        self._groups = groups
        self.asked: list[SourceCheckpoint] = []

    def stream(self, _physical: str, position: SourceCheckpoint, **_: Any) -> "CutOnce":
        self.asked.append(position)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def __iter__(self) -> Iterator[list[FrameGroup]]:
        if len(self.asked) == 1:
            yield self._groups[:1]
            raise StreamCut("cut")
        yield self._groups[1:]


@pytest.mark.parametrize("begun", ["before", "inside"])
def test_a_range_that_is_cut_off_is_asked_for_again_with_the_snapshots_that_are_open(
    begun: str,
) -> None:
    """Another log, which cannot continue them, must be able to refuse."""
    open_there = {
        "main.orders": OpenSnapshot(7, None, (3, 1 << 41) if begun == "inside" else (1, 1 << 41)),
        "main.stock": OpenSnapshot(1, None, (1, 1 << 41)),  # of which this query was never given the begin
    }
    raw = [encoded([], Commit(scn, 0, f"tx-{scn}", {}, 0, open_there)) for scn in (4, 5)]
    relay = CutOnce([group for piece in raw for group in parsed(piece)])
    before = {} if begun == "inside" else {"main.orders": 7}
    start = SourceCheckpoint("db-1", 2, None, "tx-2", 0, "log-a" if before else None, before)
    reader = RangeReader(relay, "shop", None, any_of(None, "shop"))  # type: ignore[arg-type]  # a relay of the test
    list(reader.groups(start, (5, 0)))
    assert relay.asked[1] == SourceCheckpoint("db-1", 4, None, "tx-4", 0, "log-a", {"main.orders": 7})


def test_a_range_that_is_cut_off_inside_a_transaction_does_not_go_on_in_another_log() -> None:
    """That begins the transaction anew, with other numbers: rows would come twice, or not at all."""
    raw = [encoded([], Commit(4, seq, "tx-4", {}, 0, {}, continues=seq == 5)) for seq in (5, 9)]
    relay = CutOnce([group for piece in raw for group in parsed(piece)])
    reader = RangeReader(relay, "shop", None, any_of(None, "shop"))  # type: ignore[arg-type]  # a relay of the test
    groups = reader.groups(SourceCheckpoint("db-1", 3, None, "tx-3", 0, None, {}), (4, 9))
    assert [each.commit.last_seq for each in next(groups)[0]] == [5]
    relay.log = "log-b"
    with pytest.raises(ServiceUnavailable, match=r"planned on log log-a.* now answers from log log-b"):
        next(groups)
