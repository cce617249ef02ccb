"""Delta: frames to a history and to a mirror of a million rows. Run: python -m benchmarks.spark_delta [scale].

The direct figures start from frames in memory and end at the commit: decoding, reducing, merging, no Spark.
"""

import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.changes import ROW_BYTES, TABLE, insert_groups, mixed_groups
from benchmarks.figures import Figure
from databus.pipeline import OutputContext
from databus.pipeline._decode import decode_frames
from databus.pipeline.outputs import DeltaConfig, DeltaOutput
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


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    try:
        yield from direct_history(folder, max(int(HISTORY_ROWS * scale) // 200_000, 6) * 200_000)
        yield from direct_mirror(folder, MIRROR_ROWS)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        yield Figure("peak memory of the driver's Python", peak, "MiB")
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
