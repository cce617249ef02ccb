"""The shape `frames`: every byte of the groups in a range, in runs that a sink decodes by itself."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from databus.spark import FRAMES_SCHEMA
from databus.wire import CONTROL, ROWS
from tests.spark.conftest import Drained, StartRelay, drain, load_batch, load_stream
from tests.spark.kit import parsed

pytestmark = pytest.mark.spark

TABLES = {"main.a": {"columns": {"id": "int64", "n": "string"}}, "main.b": {"columns": {"id": "int64", "x": "uint64"}}}
MOCK = {"type": "mock", "transactions_total": 60, "rows_per_transaction": 6, "schemas": TABLES, "group_bytes_max": 4096}


def decoded(rows: list[dict[str, Any]], kinds: tuple[int, ...] = (ROWS,)) -> list[tuple[int, tuple[int, int]]]:
    """(source id, pair) of everything that is part of the batch."""
    found = []
    for row in rows:
        after, until = (row["after_scn"], row["after_seq"]), (row["until_scn"], row["until_seq"])
        groups = parsed(row["frames"])
        assert groups[-1].commit.last == (row["scn"], row["seq"])
        for frame in (frame for group in groups for frame in group.frames if frame.header.kind in kinds):
            if frame.header.kind == CONTROL:
                pairs = [frame.header.first]
            else:
                batch = frame.batch
                pairs = list(
                    zip(batch.column("_commit_version").to_pylist(), batch.column("_seq").to_pylist(), strict=True)
                )
            found += [(frame.header.source_id, pair) for pair in pairs if after < pair <= until]
    return found


def _all(drained: Drained) -> list[dict[str, Any]]:
    return pa.concat_tables(drained.batches.values()).to_pylist()


@pytest.mark.parametrize("partitions", [1, 3])
def test_frames_of_all_tables_come_once_whatever_the_batches(
    spark: Any, start_relay: StartRelay, tmp_path: Path, partitions: int
) -> None:
    relay = start_relay({"shop": MOCK}, 60)
    whole = load_batch(spark, relay, shape="frames")
    assert whole.schema == FRAMES_SCHEMA
    once = decoded([row.asDict() for row in whole.collect()])
    assert {source for source, _ in once} == {1, 2}
    pairs = sorted(pair for _, pair in once)
    assert len(pairs) == len(set(pairs)) > 360
    assert {scn for scn, _ in pairs} == set(range(1, 61))
    stream = load_stream(spark, relay, shape="frames", maxRowsPerTrigger=120, partitions=partitions)
    seen = drain(stream, tmp_path / "c")
    assert len(seen.batches) > 3
    assert sorted(decoded(_all(seen))) == sorted(once)


def test_only_the_tables_asked_for_come(spark: Any, start_relay: StartRelay) -> None:
    relay = start_relay({"shop": MOCK}, 60)
    both = decoded([row.asDict() for row in load_batch(spark, relay, shape="frames", sources="shop/main.*").collect()])
    one = decoded([row.asDict() for row in load_batch(spark, relay, shape="frames", sources="main.b").collect()])
    ids = {source for source, _ in one}
    assert len(ids) == 1
    assert sorted(one) == sorted(each for each in both if each[0] in ids)


def test_a_batch_that_begins_inside_a_group_carries_its_bounds(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    mock = {**MOCK, "rows_per_transaction": 400, "transactions_total": 2, "group_bytes_max": 4 << 20}
    relay = start_relay({"shop": mock}, 2)
    seen = drain(load_stream(spark, relay, shape="frames", maxRowsPerTrigger=250), tmp_path / "c")
    sizes = [len(decoded(rows.to_pylist())) for rows in seen.batches.values()]
    assert max(sizes) <= 250
    pairs = [pair for _, pair in decoded(_all(seen))]
    assert len(pairs) == len(set(pairs))
    assert [
        pair for rows in seen.batches.values() for pair in sorted(p for _, p in decoded(rows.to_pylist()))
    ] == sorted(pairs)


def test_controls_come_as_frames(spark: Any, start_relay: StartRelay, tmp_path: Path) -> None:
    from databus.schema import Column, TableSchema
    from tests.spark.script import control, insert, schema, transaction, write

    table = TableSchema("main.t", (Column("id", "int64"),), ("id",))
    lines = [transaction(schema(table), insert(table, id=1)), transaction(control(table, "truncate"))]
    relay = start_relay({"shop": write(tmp_path / "s.jsonl", lines)}, 2)
    seen = drain(load_stream(spark, relay, shape="frames", maxRowsPerTrigger=1), tmp_path / "c")
    assert [pair for _, pair in decoded(_all(seen), (ROWS, CONTROL))] == [(1, 1), (2, 1)]
