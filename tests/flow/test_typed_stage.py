"""Typed rows that tasks write piece by piece are what they would be as a whole, or are asked for in order."""

import itertools
import random
from typing import Any

import pyarrow as pa
import pytest

from databus.core import SourceCheckpoint
from databus.flow import (
    DataFile,
    RowsOutOfOrder,
    StagedBatch,
    StagedFeed,
    StagedRows,
    TableRows,
    TypedStage,
    decode_typed,
    joined_typed,
    user_rows_schema,
)
from databus.schema import Column, TableSchema

TABLE = TableSchema("main.a", (Column("id", "int64"),), ("id",))
START, END = SourceCheckpoint(), SourceCheckpoint(scn=1_000_000, log="log-1")
SCHEMA = pa.schema([*user_rows_schema(TABLE), pa.field("_control", pa.string())])
SEEDS = range(40)


class Keeping:
    """Writes nothing: files are named by the rows that they would hold."""

    def write(self, name: str, rows: TableRows) -> list[DataFile]:
        return [DataFile(f"{name}:{told(rows.rows)}", 1, rows.rows.num_rows, "{}")]


def told(rows: pa.Table) -> list[tuple[Any, ...]]:
    return [*zip(*(rows[name].to_pylist() for name in ("_commit_version", "_seq", "_change_type", "id")), strict=True)]


def happened(dice: random.Random) -> list[dict[str, Any]]:
    """Changes behind a filter: of an update one image may be missing; rows of one may be several; some controls."""
    rows: list[dict[str, Any]] = []
    base = {"_commit_timestamp": 0, "_txid": "t", "_snapshot": False}
    for scn in range(1, dice.randint(2, 30)):
        seq = 0
        for _ in range(dice.randint(1, 6)):
            seq += 1
            at = {**base, "_commit_version": scn, "_seq": seq}
            which = dice.random()
            if which < 0.1:
                rows.append({**at, "_change_type": "control", "_control": '{"kind": "truncate", "source": "main.a"}'})
            elif which < 0.6:
                left, entered = dice.random() < 0.8, dice.random() < 0.8
                rows += [{**at, "_change_type": "update_preimage", "id": seq}] * left
                seq += 1
                rows += [{**at, "_seq": seq, "_change_type": "update_postimage", "id": seq}] * entered
            else:
                rows += [{**at, "_change_type": "insert", "id": number} for number in range(dice.choice((1, 1, 3)))]
    return rows


def in_batches(rows: list[dict[str, Any]], dice: random.Random) -> list[pa.RecordBatch]:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    cuts = sorted(dice.sample(range(len(rows) + 1), min(len(rows), dice.randint(1, 12))))
    ends = itertools.pairwise([0, *cuts, len(rows)])
    return [batch for start, end in ends for batch in table.slice(start, end - start).to_batches()]


def receipts_of(parts: list[list[pa.RecordBatch]], dice: random.Random) -> pa.Table:
    feed = StagedFeed(lambda _: True, lambda _, rows, __: [rows], Keeping(), lambda _: (0, 0), {})
    stage = TypedStage(TABLE, "shop", [feed], piece_bytes=dice.choice((1, 200, 1_000)))
    found = [receipt for part in parts for receipt in stage(iter(part))]
    dice.shuffle(found)
    return pa.Table.from_batches(found, pa.schema([("feed", pa.int32()), ("receipt", pa.string())]))


def items_of(batch: StagedBatch) -> list[Any]:
    found: list[Any] = []
    for item in batch.items:
        if isinstance(item, StagedRows):
            assert sum(file.rows for file in item.files) == item.count
            found.append([row for file in item.files for row in eval(file.name.partition(":")[2])])  # noqa: S307 - ours
        else:
            found.append((item.kind, item.pair))
    return found


def as_a_whole(rows: list[dict[str, Any]]) -> list[Any]:
    batch = decode_typed(pa.Table.from_pylist(rows, schema=SCHEMA), TABLE, "shop", START, END)
    return [told(item.rows) if isinstance(item, TableRows) else (item.kind, item.pair) for item in batch.items]


def joined(receipts: pa.Table) -> StagedBatch:
    return joined_typed(receipts, 0, START, END, lambda names: pytest.fail("no change of a schema is ahead"), "shop")


@pytest.mark.parametrize("seed", SEEDS)
def test_pieces_of_ranges_make_the_whole(seed: int) -> None:
    dice = random.Random(seed)
    rows = happened(dice)
    at = dice.randint(1, rows[-1]["_commit_version"])  # ranges end with groups: never between the images of an update
    parts = [
        [row for row in rows if row["_commit_version"] < at],
        [row for row in rows if row["_commit_version"] >= at],
    ]
    found = joined(receipts_of([in_batches(part, dice) for part in parts if part], dice))
    assert (found.start, found.end) == (START, END)
    assert items_of(found) == as_a_whole(rows)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_a_function_put_into_another_order_are_right_or_asked_for_again(seed: int) -> None:
    dice = random.Random(seed)
    rows = happened(dice)
    mixed = [*rows]
    for at in range(0, len(mixed), 4):
        mixed[at : at + 4] = mixed[at : at + 4][::-1]
    try:
        found = items_of(joined(receipts_of([in_batches(mixed, dice)], dice)))
    except RowsOutOfOrder:
        return
    assert sorted(map(repr, flat(found))) == sorted(map(repr, flat(as_a_whole(rows))))
    assert [repr(item)[:40] for item in found if isinstance(item, tuple)] == [
        repr(item)[:40] for item in as_a_whole(rows) if isinstance(item, tuple)
    ]


def flat(items: list[Any]) -> list[Any]:
    return [row for item in items for row in (item if isinstance(item, list) else [item])]


def test_tasks_whose_rows_overlap_are_asked_again() -> None:
    dice = random.Random(1)
    rows = [{"_commit_version": scn, "_seq": 1, "_change_type": "insert", "id": scn} for scn in range(6)]
    parts = [in_batches([{**row, "_snapshot": False} for row in some], dice) for some in (rows[::2], rows[1::2])]
    with pytest.raises(RowsOutOfOrder):
        joined(receipts_of(parts, dice))


def test_no_rows_are_a_batch_without_items() -> None:
    assert joined(receipts_of([], random.Random(1))) == StagedBatch("shop", START, END, ())
