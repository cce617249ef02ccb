"""Delta: frames to a history and to a mirror of a million rows. Run: python -m benchmarks.spark_delta [scale].

The figures "no Spark" start from frames in memory and end at the commit: decoding, reducing, merging. "relay" is the
whole way: a relay with a mock source, a pipeline file, Spark. "Spark" is a Python source of ready-made frames that
stands for the relay, foreachBatch, decoding, merging: a mock source does not change rows of long ago, and this does.
"""

import itertools
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks._changes import ROW_BYTES, TABLE, insert_groups, mixed_groups
from benchmarks.figures import Figure
from databus.client import RelayClient
from databus.pipeline import OutputContext, run
from databus.pipeline._decode import decode_frames
from databus.pipeline.outputs import DeltaConfig, DeltaOutput
from databus.spark import FRAMES_SCHEMA, arrow_schema, tuned_session
from databus.testing import RelayProcess
from databus.wire import FrameParser

HISTORY_ROWS = 2_000_000
MIRROR_ROWS = 1_000_000
CHANGES_A_BATCH = 100_000
BATCHES = 10


def collected(groups: list[bytes], after: tuple[int, int], until: tuple[int, int]) -> pa.Table:
    """What Spark collects of the shape `frames`."""
    ends = []
    for group in groups:
        parser = FrameParser("benchmark", frame_bytes_max=1 << 30)
        at = 0
        while at < len(group):
            space = parser.space()
            count = min(len(space), len(group) - at)
            space[:count] = group[at : at + count]
            ends += [found.commit.last for found in parser.received(count)]
            at += count
    count = len(groups)
    return pa.table(
        {
            "physical": ["shop"] * count,
            "scn": [end[0] for end in ends],
            "seq": [end[1] for end in ends],
            "log": ["benchmark"] * count,
            "frames": pa.array(groups, pa.binary()),
            "after_scn": [after[0]] * count,
            "after_seq": pa.array([None] * count, pa.int64()),
            "until_scn": [until[0]] * count,
            "until_seq": pa.array([None] * count, pa.int64()),
        }
    )


def output(folder: Path, mode: str) -> DeltaOutput:
    config = DeltaConfig(mode=mode, path=mode, **{"from": ["shop"]})
    return DeltaOutput(config, OutputContext("benchmark", mode, folder))


def write(target: DeltaOutput, groups: list[bytes], scn: int) -> float:
    """Decode and write one batch; seconds."""
    table = collected(groups, (scn - 1, 0), (scn + len(groups) - 1, 0))
    started = time.perf_counter()
    for batch in decode_frames(table, lambda _: TABLE):
        target.write(batch)
    return time.perf_counter() - started


def direct_history(folder: Path, rows: int) -> Iterator[Figure]:
    target = output(folder, "history")
    seconds = []
    scn = 1
    a_batch = 200_000
    for start in range(0, rows, a_batch):
        groups = list(insert_groups(start, a_batch, scn))
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
        groups = list(insert_groups(start, rows // 10, scn))
        seconds.append(write(target, groups, scn))
        scn += len(groups)
    yield Figure("frames to Delta mirror, first rows in the order of the key, no Spark", rows / sum(seconds), "rows/s")
    yield Figure("mirror: last tenth of the first rows, seconds", seconds[-1], "s", "second tenth", seconds[1])
    rng, live = np.random.default_rng(7), np.arange(rows)
    seconds = []
    for version in range(1, BATCHES + 1):
        groups = list(mixed_groups(rng, live, CHANGES_A_BATCH, scn, version))
        seconds.append(write(target, groups, scn))
        scn += len(groups)
    rate = CHANGES_A_BATCH / statistics.median(seconds)
    yield Figure("frames to Delta mirror of a million rows, 100,000 changes a batch, no Spark", rate, "changes/s")
    last, first = statistics.median(seconds[-3:]), statistics.median(seconds[:3])
    yield Figure("mirror: last batches, seconds a batch", last, "s", "first batches", first)


class Frames(DataSource):
    """Ready-made micro-batches of the shape `frames`, each a file; offsets count them."""

    @classmethod
    def name(cls) -> str:
        return "ready_frames"

    def schema(self) -> StructType:
        return FRAMES_SCHEMA

    def streamReader(self, schema: StructType) -> "FramesStream":  # noqa: N802
        return FramesStream(Path(self.options["folder"]), arrow_schema(schema))


class FramesStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.folder, self.schema = folder, schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"files": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(1)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802, ARG002
        return {"files": min(start["files"] + 1, len(list(self.folder.glob("*.arrow"))))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(number) for number in range(start["files"], end["files"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.folder / f"{partition.value:04d}.arrow")) as file:
            for batch in pa.ipc.open_stream(file):
                yield batch.cast(self.schema)


def through_spark(spark: SparkSession, folder: Path, rows: int) -> Iterator[Figure]:
    """The mirror of a million rows, fed by Spark."""
    spark.dataSource.register(Frames)
    ready = folder / "ready"
    ready.mkdir()
    target = output(folder, "mirror")
    scn = 1
    for start in range(0, rows, rows // 4):
        groups = list(insert_groups(start, rows // 4, scn))
        write(target, groups, scn)
        scn += len(groups)
    rng, live = np.random.default_rng(7), np.arange(rows)
    for number in range(BATCHES):
        groups = list(mixed_groups(rng, live, CHANGES_A_BATCH, scn, number + 1))
        table = collected(groups, (scn - 1, 0), (scn + len(groups) - 1, 0))
        with pa.OSFile(str(ready / f"{number:04d}.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)
        scn += len(groups)
    seconds: list[float] = []

    def apply(frame: Any, batch_id: int) -> None:  # noqa: ARG001
        for batch in decode_frames(frame.toArrow(), lambda _: TABLE):
            target.write(batch)
        seconds.append(time.perf_counter())

    stream = spark.readStream.format("ready_frames").option("folder", str(ready)).load()
    query = (
        stream.writeStream.foreachBatch(apply)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        deadline = time.monotonic() + 300
        while len(seconds) < BATCHES and time.monotonic() < deadline and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    rate = CHANGES_A_BATCH / statistics.median(b - a for a, b in itertools.pairwise(seconds))
    yield Figure("Spark to Delta mirror of a million rows, 100,000 changes a batch", rate, "changes/s")


PIPELINE = """
name: history
relay: {{url: {url}}}
sources: {{}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], max_rows_per_trigger: 400000}}}}
outputs: {{log: {{type: delta, from: shop, mode: history, path: lake}}}}
"""


def through_relay(spark: SparkSession, folder: Path, rows: int) -> Iterator[Figure]:
    """The history, the whole way."""
    per_transaction = 1_000
    source = {
        "type": "mock",
        "rows_per_transaction": per_transaction,
        "transactions_total": rows // per_transaction,
        "updates": 0,
        "deletes": 0,
    }
    with RelayProcess(folder / "relay", {"shop": source}) as relay:
        client = RelayClient(relay.url)
        deadline = time.monotonic() + 300
        while client.head("shop").published.scn < rows // per_transaction and time.monotonic() < deadline:
            time.sleep(0.1)
        file = folder / "history.yaml"
        file.write_text("\n".join(line for line in PIPELINE.format(url=relay.url).splitlines() if "{}" not in line))
        events: list[Mapping[str, Any]] = []
        code = run(file, once=True, on_event=events.append, session=spark)
        if code:
            raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    ends = [(event["at_us"], event["rows"]) for event in events if event["event"] == "batch"]
    rates = [rows / (end - start) * 1e6 for (start, _), (end, rows) in itertools.pairwise(ends) if rows]
    yield Figure("relay to Delta history", statistics.median(rates[1:] or rates), "rows/s")


def with_spark(folder: Path, scale: float) -> Iterator[Figure]:
    folder.mkdir()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark = tuned_session("spark-delta", "local[2]", folder=folder / "spark")
    try:
        yield from through_relay(spark, folder, max(int(HISTORY_ROWS * scale * 2), 1_600_000))
        yield from through_spark(spark, folder, MIRROR_ROWS)
    finally:
        spark.stop()


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    try:
        yield from direct_history(folder, max(int(HISTORY_ROWS * scale) // 200_000, 6) * 200_000)
        yield from direct_mirror(folder, MIRROR_ROWS)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Figure("peak memory of the driver's Python", peak, "MiB")
        yield from with_spark(folder / "with-spark", scale)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    print(f"rows of {ROW_BYTES} B, {MIRROR_ROWS:,} rows in the mirror")
    for figure in figures(scale):
        beside = f"   {figure.peer}: {figure.peer_value:,.3g}, ratio {figure.ratio:.2f}" if figure.peer else ""
        print(f"  {figure.name:78} {figure.value:12,.4g} {figure.unit}{beside}", flush=True)


if __name__ == "__main__":
    main()
