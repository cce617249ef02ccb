"""Receipts: what tasks hand back is joined to what happened, whichever of them answered, and however often."""

import itertools
from typing import Any

import pyarrow as pa
import pytest

from databus.core import ControlKind, CorruptData, SourceCheckpoint
from databus.flow import ChangeBatch, DataFile, Stage, StagedFeed, StagedRows, TableControl, TableRows, joined
from databus.testing._change_log import ORDERS, STOCK, random_log
from tests.outputs.harnesses import log_of

ROWS = log_of(1).batch(0, 1).items[0].rows


class Counting:
    """Writes nothing: files are named by the rows that they would hold."""

    def write(self, name: str, rows: TableRows) -> list[DataFile]:
        return [DataFile(f"{name}:{rows.rows.column('_commit_version').to_pylist()}", 1, rows.rows.num_rows, "{}")]


def receipts_of(batches: list[ChangeBatch], **options: Any) -> pa.Table:
    given = {
        "selects": lambda _: True,
        "filtered": lambda _, rows, __: [rows],
        "above": lambda _: (0, 0),
        "fits": {},
        **options,
    }
    stage = Stage(lambda part: [batches[part.column("n")[0].as_py()]], [StagedFeed(writer=Counting(), **given)])
    numbers = reversed(range(len(batches)))
    return pa.Table.from_batches([*stage(pa.record_batch({"n": [number]}) for number in numbers)])


def test_ranges_in_any_order_become_what_happened() -> None:
    log = random_log(5, transactions=30)
    size = len(log.entries)
    cuts = [0, size // 3, size // 2, size]
    batches = [log.batch(start, end) for start, end in itertools.pairwise(cuts)]
    (found,) = joined(receipts_of(batches), 0)
    (whole,) = joined(receipts_of([log.batch(0, size)]), 0)
    assert found.start == whole.start
    assert found.end == whole.end

    def told(items: Any) -> list[Any]:
        return [
            item if isinstance(item, TableControl) else (item.table.source, item.first, item.last, item.count)
            for item in sorted(items, key=lambda item: (item.table.source, getattr(item, "pair", None) or item.last))
        ]

    assert told(found.items) == told(whole.items)


def test_rows_on_both_sides_of_a_control_stay_apart() -> None:
    log = log_of(1, 2)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, {"id": 9})
    log.begin().insert(STOCK, {"item": "a"})
    (found,) = joined(receipts_of([log.batch(n, n + 1) for n in range(len(log.entries))]), 0)
    assert [type(item) for item in found.items] == [StagedRows, TableControl, StagedRows, StagedRows]
    assert [item.count for item in found.items if isinstance(item, StagedRows)] == [2, 1, 1]


def test_what_the_target_has_is_left_out() -> None:
    (found,) = joined(receipts_of([log_of(1, 2, 3).batch(0, 3)], above=lambda _: (2, 1 << 40)), 0)
    assert [item.first[0] for item in found.items if isinstance(item, StagedRows)] == [3]


@pytest.mark.parametrize(
    ("wanted", "is_met"),
    [
        (pa.schema([("id", pa.int64())]), False),  # a column has come since
        (pa.schema([*ROWS.schema, ("gone", pa.string())]), True),
        (pa.schema([f.with_type(pa.int8()) if f.name == "_seq" else f for f in ROWS.schema]), False),
    ],
)
def test_a_schema_that_has_no_room_for_a_column_or_a_value_is_not_taken(wanted: pa.Schema, is_met: bool) -> None:
    """Else a column that was added later would be left out of every file from then on."""
    (found,) = joined(receipts_of([log_of(1, 2).batch(0, 2)], fits={f"shop/{ORDERS.source}": wanted}), 0)
    (item,) = found.items
    assert isinstance(item, StagedRows)
    assert item.fitted == (wanted if is_met else None)


def test_ranges_that_overlap_are_refused() -> None:
    log = log_of(1, 2, 3)
    with pytest.raises(CorruptData, match="overlap"):
        joined(receipts_of([log.batch(0, 2), log.batch(1, 3)]), 0)


def test_ranges_of_two_logs_are_refused() -> None:
    one, other = log_of(1, 2).batch(0, 1), log_of(1, 2).batch(1, 2)
    end = SourceCheckpoint(scn=2, log="another")
    with pytest.raises(CorruptData, match="two logs"):
        joined(receipts_of([one, ChangeBatch(other.physical, other.start, end, other.items)]), 0)


def test_nothing_comes_of_nothing() -> None:
    assert joined(receipts_of([log_of(1).batch(0, 0)]), 0)[0].items == ()
