"""Delta: frames to a history and to a mirror of a million rows. Run: python -m benchmarks.spark_delta [scale].

The figures "no Spark" start from frames in memory and end at the commit: decoding, reducing, merging. "relay" is the
whole way: a log, a relay in a process of its own, a pipeline file, Spark, Delta.
"""

import itertools
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from benchmarks._changes import TABLE, encoded, insert_groups, mixed_groups
from benchmarks.figures import Figure
from databus.core import SEQ_DONE
from databus.flow import decode_groups
from databus.log import Log
from databus.pipeline import OutputContext, run
from databus.sinks import DeltaConfig, DeltaOutput
from databus.sources.mock import MockConfig, MockSource
from databus.spark import tuned_session
from databus.testing import RelayProcess
from databus.testing._staged_writes import write_here
from databus.wire import FrameGroup, FrameParser, Group

HISTORY_ROWS = 2_000_000
HISTORY_ROWS_MIN = 1_600_000
HISTORY_ROWS_A_BATCH = 200_000
MIRROR_ROWS = 1_000_000
CHANGES_A_BATCH = 100_000
BATCHES = 10


def parsed(groups: Sequence[bytes]) -> Iterator[tuple[list[FrameGroup], str]]:
    """Groups as a client receives them."""
    parser = FrameParser("benchmark")
    for group in groups:
        at = 0
        while at < len(group):
            space = parser.space()
            count = min(len(space), len(group) - at)
            space[:count] = group[at : at + count]
            yield parser.received(count), "benchmark"
            at += count


def output(folder: Path, mode: str) -> DeltaOutput:
    config = DeltaConfig(mode=mode, path=mode, **{"from": ["shop"]})
    return DeltaOutput(config, OutputContext("benchmark", mode, folder))


def write(target: DeltaOutput, groups: list[bytes], scn: int) -> float:
    """Decode and write one batch; seconds."""
    started = time.perf_counter()
    after, until = (scn - 1, SEQ_DONE), (scn + len(groups) - 1, SEQ_DONE)
    for batch in decode_groups(parsed(groups), "shop", after, until, lambda _: TABLE):
        write_here(target, batch)
    return time.perf_counter() - started


def direct_history(folder: Path, rows: int) -> Iterator[Figure]:
    target = output(folder, "history")
    seconds = []
    scn = 1
    a_batch = HISTORY_ROWS_A_BATCH
    for start in range(0, rows, a_batch):
        groups = list(map(encoded, insert_groups(start, a_batch, scn)))
        seconds.append(write(target, groups, scn))
        scn += len(groups)
    yield Figure("frames to Delta history, no Spark", a_batch / statistics.median(seconds), "rows/s")
    yield Figure(
        "history: last batches, seconds a batch",
        statistics.median(seconds[-3:]),
        "s",
        "first batches",
        statistics.median(seconds[:3]),
    )


def direct_mirror(folder: Path, rows: int) -> Iterator[Figure]:
    target = output(folder, "mirror")
    scn = 1
    seconds = []
    for start in range(0, rows, rows // 10):
        groups = list(map(encoded, insert_groups(start, rows // 10, scn)))
        seconds.append(write(target, groups, scn))
        scn += len(groups)
    yield Figure("frames to Delta mirror, first rows in the order of the key, no Spark", rows / sum(seconds), "rows/s")
    yield Figure("mirror: last tenth of the first rows, seconds", seconds[-1], "s", "second tenth", seconds[1])
    rng, live = np.random.default_rng(7), np.arange(rows)
    seconds = []
    for version in range(1, BATCHES + 1):
        groups = list(map(encoded, mixed_groups(rng, live, CHANGES_A_BATCH, scn, version)))
        seconds.append(write(target, groups, scn))
        scn += len(groups)
    rate = CHANGES_A_BATCH / statistics.median(seconds)
    yield Figure("frames to Delta mirror of a million rows, 100,000 changes a batch, no Spark", rate, "changes/s")
    last, first = statistics.median(seconds[-3:]), statistics.median(seconds[:3])
    yield Figure("mirror: last batches, seconds a batch", last, "s", "first batches", first)


PIPELINE = """
name: benchmark
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], max_rows_per_trigger: {rows}}}}}
outputs: {{{mode}: {{type: delta, from: shop, mode: {mode}, path: {mode}}}}}
"""
COLUMNS = {column.name: column.type for column in TABLE.columns}
CONFIG = {"schemas": {TABLE.source: {"columns": COLUMNS, "nulls": True}}}


def piped(
    spark: SparkSession, folder: Path, mode: str, groups: Iterable[Group], rows_a_batch: int
) -> list[Mapping[str, Any]]:
    """Put groups in a log, serve it by a relay, and run a pipeline over it; its batches."""
    source = MockSource("shop", MockConfig(**CONFIG))
    last = 0
    log = Log.open(folder / "relay" / "shop", physical="shop", identity=source.identify())
    for group in groups:
        log.append(group)
        last = group.commit.scn
    log.close()
    with RelayProcess(folder, {"shop": {"type": "mock", "transactions_total": last, **CONFIG}}) as relay:
        file = folder / "pipeline.yml"
        file.write_text(PIPELINE.format(url=relay.url, mode=mode, rows=rows_a_batch))
        events: list[Mapping[str, Any]] = []
        code = run(file, once=True, on_event=events.append, session=spark)
        if code:
            raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    return [event for event in events if event["event"] == "batch" and event["rows"]]


def rate_of(batches: Sequence[Mapping[str, Any]]) -> float:
    """Rows a second from the end of the first batch to the end of the last, planning and all."""
    return sum(each["rows"] for each in batches[1:]) / (batches[-1]["at_us"] - batches[0]["at_us"]) * 1e6


def history_through_spark(spark: SparkSession, folder: Path, rows: int) -> Iterator[Figure]:
    batches = piped(spark, folder, "history", insert_groups(0, rows, 1, 1_000), 2 * HISTORY_ROWS_A_BATCH)
    yield Figure("relay to Delta history", rate_of(batches), "rows/s")


def mirror_through_spark(spark: SparkSession, folder: Path, rows: int) -> Iterator[Figure]:
    """A million rows, then batches of 100,000 changes, of which 80,000 are updates and count two rows."""
    rng, live = np.random.default_rng(7), np.arange(rows)
    inserts = list(insert_groups(0, rows, 1))
    each = CHANGES_A_BATCH // 1000
    changes = (
        group
        for number in range(BATCHES)
        for group in mixed_groups(rng, live, CHANGES_A_BATCH, len(inserts) + 1 + number * each, number + 1)
    )
    rows_a_change = 1.8
    a_batch = int(CHANGES_A_BATCH * rows_a_change)
    batches = piped(spark, folder, "mirror", itertools.chain(inserts, changes), a_batch)
    of_changes = [batch for batch in batches if batch["position"]["scn"] > len(inserts)]
    rate = rate_of(of_changes) / rows_a_change
    yield Figure("relay to Delta mirror of a million rows, 100,000 changes a batch", rate, "changes/s")


def with_spark(folder: Path, scale: float) -> Iterator[Figure]:
    folder.mkdir()
    spark = tuned_session("spark-delta", "local[2]", folder=folder / "spark")
    try:
        rows = max(int(HISTORY_ROWS * scale * 2), HISTORY_ROWS_MIN)
        yield from history_through_spark(spark, folder / "history", rows)
        yield from mirror_through_spark(spark, folder / "mirror", MIRROR_ROWS)
    finally:
        spark.stop()


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    try:
        yield from direct_history(
            folder, max(int(HISTORY_ROWS * scale) // HISTORY_ROWS_A_BATCH, 6) * HISTORY_ROWS_A_BATCH
        )
        yield from direct_mirror(folder, MIRROR_ROWS)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Figure("peak memory of the driver's Python", peak, "MiB")
        yield from with_spark(folder / "with-spark", scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
