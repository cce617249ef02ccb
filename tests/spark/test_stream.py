"""A stream reads every change once and in order, in batches of the size asked for, and the same again after a crash."""

import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from databus.core import Checkpoint
from databus.sources.mock import MockConfig, MockSource
from tests.spark.conftest import S_MAX, Failed, StartRelay, drain, load_stream, offsets_in, wait_until_captured

pytestmark = pytest.mark.spark

TYPED = {"shape": "typed", "sources": "shop/main.events", "meta": "full"}


def mock(**options: Any) -> dict[str, Any]:
    return {"type": "mock", **options}


def expected_rows(config: dict[str, Any], transactions: int) -> int:
    return MockSource("shop", MockConfig(**config)).expected_rows("main.events", transactions)


def ends_of(rows: pa.Table) -> tuple[tuple[int, int], tuple[int, int]]:
    scns, seqs = rows.column("_commit_version").to_pylist(), rows.column("_seq").to_pylist()
    return (scns[0], seqs[0]), (scns[-1], seqs[-1])


def test_every_change_comes_once_in_order_and_the_offset_is_a_checkpoint(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    config = mock(transactions_total=200)
    relay = start_relay({"shop": config}, 200)
    seen = drain(load_stream(spark, relay, **TYPED), tmp_path / "c")
    pairs = seen.pairs()
    assert len(pairs) == expected_rows(config, 200)
    assert pairs == sorted(set(pairs))
    (offset,) = offsets_in(tmp_path / "c").values()
    position = Checkpoint.from_json(offset).sources["shop"]
    assert (position.scn, position.seq, position.txid) == (200, None, "0-200")
    assert seen.progress[-1]["sources"][0]["endOffset"] == offset


def test_a_batch_has_no_more_rows_than_asked_for_and_ends_with_a_transaction(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    config = mock(transactions_total=40, rows_per_transaction=7)
    relay = start_relay({"shop": config}, 40)
    seen = drain(load_stream(spark, relay, **TYPED, maxRowsPerTrigger=110), tmp_path / "c")
    assert len(seen.batches) > 3
    assert all(0 < len(rows) <= 110 for rows in seen.batches.values())
    ends = [ends_of(rows) for rows in seen.batches.values()]
    assert all(before[1][0] < after[0][0] for before, after in pairwise(ends))
    pairs = seen.pairs()
    assert len(pairs) == expected_rows(config, 40)
    assert pairs == sorted(set(pairs))


@pytest.mark.parametrize("group_bytes_max", [4 << 20, 8 << 10])
def test_a_transaction_larger_than_a_batch_is_cut_with_its_seq_in_the_offset(
    spark: Any, start_relay: StartRelay, tmp_path: Path, group_bytes_max: int
) -> None:
    config = mock(transactions_total=2, rows_per_transaction=400, group_bytes_max=group_bytes_max)
    relay = start_relay({"shop": config}, 2)
    seen = drain(load_stream(spark, relay, **TYPED, maxRowsPerTrigger=221), tmp_path / "c")
    assert all(len(rows) <= 221 for rows in seen.batches.values())
    offsets = [Checkpoint.from_json(offset).sources["shop"] for offset in offsets_in(tmp_path / "c").values()]
    inside = [offset for offset in offsets if offset.seq is not None]
    assert len(inside) >= 3
    assert all(each.log for each in inside)
    pairs = seen.pairs()
    assert len(pairs) == expected_rows(config, 2)
    assert pairs == sorted(set(pairs))
    for rows in seen.batches.values():
        assert rows.column("_change_type").to_pylist()[-1] != "update_preimage"


def test_a_batch_has_no_more_bytes_than_asked_for_to_the_precision_of_a_group(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    config = mock(transactions_total=300, rows_per_transaction=10, group_bytes_max=16 << 10)
    relay = start_relay({"shop": config}, 300)
    seen = drain(load_stream(spark, relay, **TYPED, maxBytesPerTrigger=200_000), tmp_path / "c")
    assert len(seen.batches) > 3
    assert all(rows.nbytes < 300_000 for rows in seen.batches.values())
    assert len(seen.pairs()) == expected_rows(config, 300)


def test_after_a_failure_the_same_batch_comes_again_row_for_row(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    config = mock(transactions_total=30, rows_per_transaction=40, group_bytes_max=8 << 10)
    relay = start_relay({"shop": config}, 30)
    options = {**TYPED, "maxRowsPerTrigger": 300, "partitions": 2}
    first = drain(load_stream(spark, relay, **options), tmp_path / "c", fail_at=2)
    assert set(first.batches) == {0, 1, 2}
    relay.kill()
    relay.start()
    second = drain(load_stream(spark, relay, **{**options, "maxRowsPerTrigger": 1000, "partitions": 3}), tmp_path / "c")
    assert min(second.batches) == 2
    again, before = (rows.sort_by([("_commit_version", "ascending"), ("_seq", "ascending")])
                     for rows in (second.batches[2], first.batches[2]))  # fmt: skip
    assert again.equals(before)
    pairs = sorted(second.pairs() + [pair for n in (0, 1) for pair in _pairs(first.batches[n])])
    assert len(pairs) == len(set(pairs)) == expected_rows(config, 30)


def _pairs(rows: pa.Table) -> list[tuple[int, int]]:
    return list(zip(rows.column("_commit_version").to_pylist(), rows.column("_seq").to_pylist(), strict=True))


def test_available_now_ends_although_the_source_does_not(spark: Any, start_relay: StartRelay, tmp_path: Path) -> None:
    relay = start_relay({"shop": mock(transactions_per_s=500, rows_per_transaction=1)}, 20)
    seen = drain(load_stream(spark, relay, **TYPED), tmp_path / "c")
    assert seen.rows.num_rows >= 20


def test_lag_stands_in_the_progress_of_the_query(spark: Any, start_relay: StartRelay, tmp_path: Path) -> None:
    relay = start_relay({"shop": mock(transactions_total=50)}, 50)
    seen = drain(load_stream(spark, relay, **TYPED, maxRowsPerTrigger=300), tmp_path / "c")
    first = seen.progress[0]["sources"][0]
    assert first["latestOffset"]["sources"]["shop"]["scn"] == 50
    assert first["endOffset"]["sources"]["shop"]["scn"] < 50
    assert seen.progress[-1]["sources"][0]["endOffset"] == first["latestOffset"]


def test_a_query_goes_on_by_itself_when_the_relay_was_killed_and_came_back(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    config = mock(transactions_per_s=100, transactions_total=400, rows_per_transaction=5)
    relay = start_relay({"shop": config}, 20)
    tables: list[pa.Table] = []
    query = (
        load_stream(spark, relay, **TYPED)
        .writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    try:
        _wait_for(query, lambda position: position["scn"] >= 20)
        relay.kill()
        relay.start()
        _wait_for(query, lambda position: position["scn"] >= 400)
    finally:
        query.stop()
    pairs = [pair for table in tables for pair in _pairs(table)]
    assert len(pairs) == expected_rows(config, 400)
    assert pairs == sorted(set(pairs))


def _wait_for(query: Any, holds: Any) -> None:
    """Wait until the end of the query's last batch is such; each wait is one for the query's own progress."""
    for _ in range(50 * S_MAX):
        progress = query.lastProgress
        end = progress.sources[0].endOffset if progress else None
        if end and holds(Checkpoint.from_json(end).to_json()["sources"]["shop"]):
            return
        assert not query.awaitTermination(0.02), query.exception()
    raise AssertionError(f"the query stands at {query.lastProgress}")


def test_stopping_a_query_that_waits_for_rows_does_not_wait_for_them(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    relay = start_relay({"shop": mock(transactions_total=1)}, 1)
    query = (
        load_stream(spark, relay, **TYPED, startingVersion="latest", waitMs=10_000)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "c"))
        .start()
    )
    assert not query.awaitTermination(2)
    query.stop()
    assert not query.isActive
    assert query.exception() is None


def test_of_queries_that_share_a_stream_one_may_hang_and_fail_and_go_on_and_the_others_do_not_notice(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    config = mock(transactions_total=400, transactions_per_s=200, rows_per_transaction=5)
    relay = start_relay({"shop": config}, 20)
    stream = load_stream(spark, relay, **TYPED)
    may_go_on = threading.Event()

    def hang(batch: Any, _: int) -> None:
        may_go_on.wait(2 * S_MAX)
        raise Failed("batch")

    hanging = stream.writeStream.foreachBatch(hang).option("checkpointLocation", str(tmp_path / "hangs")).start()
    wait_until_captured(relay.url, "shop", 400)
    seen = drain(stream, tmp_path / "goes-on")
    assert (hanging.isActive, len(seen.pairs())) == (True, expected_rows(config, 400))
    may_go_on.set()
    with pytest.raises(StreamingQueryException):
        hanging.awaitTermination(S_MAX)
    assert drain(stream, tmp_path / "goes-on").batches == {}
    assert sorted(drain(stream, tmp_path / "hangs").pairs()) == sorted(seen.pairs())
