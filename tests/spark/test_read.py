"""What can be asked for, and how it is refused: starts, ends, names, tokens, positions that are gone."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from databus.core import Checkpoint, PositionForeign, PositionPurged
from databus.link import RelayClient
from databus.spark import error_of
from tests.spark.conftest import StartRelay, drain, load_batch, load_stream, options_of, wait_until_captured

pytestmark = pytest.mark.spark

TYPED = {"shape": "typed", "sources": "main.events"}
MOCK = {"type": "mock", "transactions_total": 30, "rows_per_transaction": 4, "updates": 0, "deletes": 0}


def _versions(frame: Any) -> list[int]:
    return sorted({row[0] for row in frame.select("_commit_version").collect()})


@pytest.fixture
def relay(start_relay: StartRelay) -> Any:
    return start_relay({"shop": MOCK}, 30)


def test_a_batch_read_gives_all_rows_in_their_order(spark: Any, relay: Any) -> None:
    rows = load_batch(spark, relay, **TYPED, meta="full").collect()
    pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
    assert pairs == [(scn, seq) for scn in range(1, 31) for seq in range(1, 5)]


def test_partitions_are_ranges_that_together_are_the_whole(spark: Any, start_relay: StartRelay) -> None:
    relay = start_relay({"shop": {**MOCK, "group_transactions_max": 1}}, 30)
    frame = load_batch(spark, relay, **TYPED, meta="full", partitions=3)
    assert frame.rdd.getNumPartitions() == 3
    parts = [[(row["_commit_version"], row["_seq"]) for row in part] for part in frame.rdd.glom().collect()]
    assert all(parts)
    assert [pair for part in parts for pair in part] == [(scn, seq) for scn in range(1, 31) for seq in range(1, 5)]


def test_versions_include_where_they_start_and_end(spark: Any, relay: Any) -> None:
    assert _versions(load_batch(spark, relay, **TYPED, startingVersion=7, endingVersion=9)) == [7, 8, 9]
    assert _versions(load_batch(spark, relay, **TYPED, endingVersion=2)) == [1, 2]
    assert _versions(load_batch(spark, relay, **TYPED, startingVersion=29)) == [29, 30]
    assert _versions(load_batch(spark, relay, **TYPED, startingVersion="latest")) == []
    assert _versions(load_batch(spark, relay, **TYPED, startingVersion="earliest", endingVersion=1)) == [1]


def test_a_stream_ends_with_its_ending_version_and_keeps_the_limit_on_rows(
    spark: Any, relay: Any, tmp_path: Path
) -> None:
    stream = load_stream(spark, relay, **TYPED, startingVersion=7, endingVersion=12, maxRowsPerTrigger=10)
    seen = drain(stream, tmp_path / "c")
    assert [sorted(set(rows.column("_commit_version").to_pylist())) for rows in seen.batches.values()] == [
        [7, 8], [9, 10], [11, 12],
    ]  # fmt: skip


def test_a_timestamp_starts_with_what_was_committed_then(spark: Any, relay: Any) -> None:
    times = {
        row[0]: row[1]
        for row in load_batch(spark, relay, **TYPED).select("_commit_version", "_commit_timestamp").collect()
    }
    at_20 = RelayClient(relay.url).position("shop", scn=19)
    assert at_20.pair[0] == 19
    us = (
        load_batch(spark, relay, **TYPED, endingVersion=20).selectExpr("max(unix_micros(_commit_timestamp))").first()[0]
    )
    found = _versions(load_batch(spark, relay, **TYPED, startingTimestamp=us))
    assert set(range(20, 31)) <= set(found)
    assert all(times[each] is not None for each in found)


def test_a_checkpoint_starts_after_it(spark: Any, relay: Any) -> None:
    position = RelayClient(relay.url).range("shop", RelayClient(relay.url).position("shop", start="beginning")).position
    given = Checkpoint({"shop": position}).dumps()
    assert _versions(load_batch(spark, relay, **TYPED, startingCheckpoint=given)) == list(range(position.scn + 1, 31))


def test_a_foreign_position_is_409_and_says_so(spark: Any, relay: Any, tmp_path: Path) -> None:
    foreign = Checkpoint.from_json({"v": 1, "sources": {"shop": {"scn": 5, "txid": "somebody else's"}}}).dumps()
    with pytest.raises(PositionForeign, match="5"):
        drain(load_stream(spark, relay, **TYPED, startingCheckpoint=foreign), tmp_path / "c")
    with pytest.raises(Exception) as raised:
        load_batch(spark, relay, **TYPED, startingCheckpoint=foreign).collect()
    assert isinstance(error_of(raised.value), PositionForeign)


def test_a_position_that_has_left_the_log_is_410_and_says_so(
    spark: Any, start_relay: StartRelay, tmp_path: Path
) -> None:
    log = {"segment_bytes_max": 1 << 20, "retention_bytes_max": 2 << 20}
    mock = {**MOCK, "transactions_total": 3_000, "rows_per_transaction": 20, "group_bytes_max": 64 << 10}
    relay = start_relay({"shop": mock}, log=log)
    wait_until_captured(relay.url, "shop", 3_000)
    with pytest.raises(PositionPurged):
        drain(load_stream(spark, relay, **TYPED), tmp_path / "c")
    assert load_batch(spark, relay, **TYPED, startingVersion="earliest").count() > 0


def test_a_token_is_taken_from_its_file_and_never_shown(spark: Any, start_relay: StartRelay, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("open-sesame\n")
    relay = start_relay({"shop": MOCK}, token_file=str(token_file))
    wait_until_captured(relay.url, "shop", 30, token="open-sesame")  # noqa: S106
    with pytest.raises(Exception, match="AccessDenied"):
        load_batch(spark, relay, **TYPED).collect()
    frame = load_batch(spark, relay, **TYPED, token_file=str(token_file))
    assert frame.count() == 120
    assert "open-sesame" not in frame._jdf.queryExecution().toString()


def test_names_that_are_wrong_or_open_are_refused_with_what_there_is(spark: Any, start_relay: StartRelay) -> None:
    relay = start_relay({"shop": MOCK, "copy": {**MOCK, "seed": 1}}, 30)
    with pytest.raises(Exception, match=r'no table called \'main\.evnts\'; did you mean "main\.events"'):
        load_batch(spark, relay, shape="typed", sources="main.evnts")
    with pytest.raises(Exception, match=r"'events' is not unique; it may be copy/main\.events or shop/main\.events"):
        load_batch(spark, relay, shape="typed", sources="events")
    with pytest.raises(Exception, match=r'option "physical": missing; one query reads one of copy, shop'):
        load_batch(spark, relay, shape="frames")
    one = load_batch(spark, relay, shape="typed", sources="copy/main.events")
    other = load_batch(spark, relay, shape="typed", sources="events", physical="shop")
    assert one.count() == other.count() == 120
    assert one.exceptAll(other).count() > 0


def test_a_wrong_option_and_a_schema_of_ones_own_are_refused_by_name(spark: Any, relay: Any) -> None:
    with pytest.raises(Exception, match=r'option "maxrowpertrigger": not known; did you mean "maxRowsPerTrigger"'):
        load_batch(spark, relay, **TYPED, maxRowPerTrigger=5)
    with pytest.raises(Exception, match=r"leave out \.schema"):
        spark.read.format("databus").options(**options_of(relay, **TYPED)).schema("id long").load().collect()


def test_a_relay_that_does_not_answer_is_named(spark: Any) -> None:
    with pytest.raises(Exception, match=r"ServiceUnavailable: relay at 127\.0\.0\.1:9 "):
        spark.read.format("databus").options(relay="http://127.0.0.1:9", shape="frames", retryMs=100).load()


_FRESH = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
options = dict(relay=sys.argv[1], shape="typed", sources="main.events")
print("rows:", spark.read.format("databus").options(**options).load().count())
"""


def test_installation_alone_makes_the_format_known(relay: Any, tmp_path: Path) -> None:
    """In a fresh process and an ordinary session, nothing of databus imported or registered."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", _FRESH, relay.url],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=280,  # three times what tests/durations.json has for it
        check=False,
    )
    assert "rows: 120" in done.stdout, done.stderr[-2000:]
