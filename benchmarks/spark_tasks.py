"""Delta tables by Spark's tasks against the same by the driver. Run: python -m benchmarks.spark_tasks [scale].

Wall is from the end of the first batch to the end of the last, for mirrors of those that are not its first rows;
processor time is of all processes but the relay's, from start to end of the run, of which the session was started
before, and used once.
"""

import itertools
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from benchmarks._changes import TABLE, insert_groups, mixed_groups
from benchmarks.figures import Figure
from benchmarks.spark_delta import CONFIG, rate_of
from databus.log import Log
from databus.pipeline import run
from databus.schema import TableSchema, frame_schema
from databus.sources.mock import MockConfig, MockSource
from databus.spark import tuned_session
from databus.testing import RelayProcess
from databus.wire import Group, Rows

ROWS = 3_000_000
ROWS_A_BATCH = 400_000
MIRROR_ROWS = 1_000_000
CHANGES_A_BATCH = 100_000
MIRROR_BATCHES = 8
HISTORY_BATCHES_MIN = 5
KEYS = ("integer", "text")
ROWS_A_CHANGE = 1.8  # eight of ten are updates, which are two rows

DRIVER = "from benchmarks._driver_mirror import InDriver\n"
PIPELINE = """
name: benchmark-{name}
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], partitions: {partitions}, max_rows_per_trigger: {rows}}}}}
outputs: {{{mode}: {{type: "{kind}", from: shop, mode: {mode}, path: {mode}-{name}}}}}
"""


@dataclass(frozen=True)
class Way:
    """How the table is written."""

    name: str
    kind: str
    partitions: int
    mode: str = "history"


WAYS = (Way("driver", "in_driver.py:InDriver", 1), Way("one-task", "delta", 1), Way("two-tasks", "delta", 2))


def cpu_s() -> float:
    """Processor time of this process and of all below it."""
    me = psutil.Process()
    total = 0.0
    for each in (me, *me.children(recursive=True)):
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measure(
    spark: object, folder: Path, url: str, way: Way, rows_a_batch: int, after_scn: int = 0
) -> tuple[float, float, float, int]:
    """Rows a second, processor seconds of all, of the driver's Python, and how many batches.

    after_scn: where the batches begin that count.
    """
    file = folder / f"{way.name}.yml"
    shape = {"name": way.name, "kind": way.kind, "partitions": way.partitions, "rows": rows_a_batch, "mode": way.mode}
    file.write_text(PIPELINE.format(url=url, **shape))
    events = []
    before, mine = cpu_s(), time.process_time()
    code = run(file, once=True, on_event=events.append, session=spark)
    if code:
        raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    batches = [event for event in events if event["event"] == "batch" and event["rows"]]
    counted = [event for event in batches if event["position"]["scn"] > after_scn]
    return rate_of(counted), cpu_s() - before, time.process_time() - mine, len(batches)


def log_of(folder: Path, groups: Iterable[Group], config: dict) -> dict:
    """A log of these groups; how a relay is told of it."""
    source = MockSource("shop", MockConfig(**config))
    log = Log.open(folder / "relay" / "shop", physical="shop", identity=source.identify())
    last = 0
    for group in groups:
        log.append(group)
        last = group.commit.scn
    log.close()
    return {"shop": {"type": "mock", "transactions_total": last, **config}}


def figures(scale: float = 1.0) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    try:
        spark = tuned_session("spark-tasks", "local[2]", folder=folder / "spark")
        try:
            yield from _history(spark, folder / "history", scale)
            for kind in KEYS:
                yield from _mirror(spark, folder / kind, kind, scale)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _history(spark: object, folder: Path, scale: float) -> Iterator[Figure]:
    rows = max(int(ROWS * scale), 20_000)
    relay = log_of(folder, insert_groups(0, rows, 1, 1_000), CONFIG)
    yield from _compared(spark, folder, relay, min(ROWS_A_BATCH, rows // HISTORY_BATCHES_MIN), "history")


def _mirror(spark: object, folder: Path, kind: str, scale: float) -> Iterator[Figure]:
    rows = max(int(MIRROR_ROWS * scale), 20_000)
    a_batch = CHANGES_A_BATCH * rows // MIRROR_ROWS // 1000 * 1000
    rng, live = np.random.default_rng(7), np.arange(rows)
    inserts = list(insert_groups(0, rows, 1))
    changes = (
        group
        for number in range(MIRROR_BATCHES)
        for group in mixed_groups(rng, live, a_batch, len(inserts) + 1 + number * a_batch // 1000, number + 1)
    )
    groups = itertools.chain(inserts, changes)
    config = CONFIG if kind == "integer" else {"schemas": {TEXT_TABLE.source: {"columns": TEXT_COLUMNS, "nulls": True}}}
    relay = log_of(folder, groups if kind == "integer" else map(_with_text_key, groups), config)
    a_trigger = int(a_batch * ROWS_A_CHANGE)
    yield from _compared(spark, folder, relay, a_trigger, "mirror", f" of {kind} keys", len(inserts))


TEXT_TABLE = TableSchema(TABLE.source, (replace(TABLE.columns[0], type="string"), *TABLE.columns[1:]), TABLE.key)
TEXT_COLUMNS = {column.name: column.type for column in TEXT_TABLE.columns}


def _with_text_key(group: Group) -> Group:
    """The same with keys of text, whose order is not that of the rows."""
    (rows,) = group.rows
    keys = rows.batch.column(0).to_numpy() * 2654435761 % 2**32
    columns = [pa.array(keys).cast(pa.string()), *rows.batch.columns[1:]]
    batch = pa.RecordBatch.from_arrays(columns, schema=frame_schema(TEXT_TABLE))
    return replace(group, rows=(Rows(TEXT_TABLE, batch),))


def _compared(
    spark: object, folder: Path, sources: dict, rows_a_batch: int, mode: str, what: str = "", after_scn: int = 0
) -> Iterator[Figure]:
    (folder / "in_driver.py").write_text(DRIVER)
    with RelayProcess(folder, sources) as relay:
        measure(spark, folder, relay.url, Way("warm", "delta", 2, mode), rows_a_batch, after_scn)
        driver = None
        for way in WAYS:
            rate, cpu, own, batches = measure(
                spark, folder, relay.url, replace(way, mode=mode), rows_a_batch, after_scn
            )
            driver = driver or (rate, cpu)
            name = f"{mode}{what}, {way.name.replace('-', ' ')}"
            yield Figure(f"relay to Delta {name}", rate, "rows/s", "driver", driver[0])
            yield Figure(f"{name}: processor time of all", cpu, "s", "driver", driver[1])
            yield Figure(f"{name}: of the driver's Python, a batch", own / batches * 1e3, "ms")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
