"""A history by Spark's tasks against the same by the driver. Run: python -m benchmarks.spark_tasks [scale].

Wall is from the end of the first batch to the end of the last; processor time is of all processes but the relay's, from
start to end of the run, of which the session was started before, and used once.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks._changes import insert_groups
from benchmarks.figures import Figure
from benchmarks.spark_delta import CONFIG, rate_of
from databus.log import Log
from databus.pipeline import run
from databus.sources.mock import MockConfig, MockSource
from databus.spark import tuned_session
from databus.testing import RelayProcess

ROWS = 3_000_000
ROWS_A_BATCH = 400_000

DRIVER = """
from databus.pipeline.outputs import DeltaConfig, DeltaOutput

class Config(DeltaConfig):
    type: str

class InDriver(DeltaOutput):
    config_model = Config

    def part_writer(self):
        return None
"""
PIPELINE = """
name: benchmark-{name}
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], partitions: {partitions}, max_rows_per_trigger: {rows}}}}}
outputs: {{history: {{type: "{kind}", from: shop, mode: history, path: {name}}}}}
"""


@dataclass(frozen=True)
class Way:
    """How the history is written."""

    name: str
    kind: str
    partitions: int


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


def measure(spark: object, folder: Path, url: str, way: Way, rows_a_batch: int) -> tuple[float, float, float, int]:
    """Rows a second, processor seconds of all, of the driver's Python, and how many batches."""
    file = folder / f"{way.name}.yml"
    shape = {"name": way.name, "kind": way.kind, "partitions": way.partitions, "rows": rows_a_batch}
    file.write_text(PIPELINE.format(url=url, **shape))
    events = []
    before, mine = cpu_s(), time.process_time()
    code = run(file, once=True, on_event=events.append, session=spark)
    if code:
        raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    batches = [event for event in events if event["event"] == "batch" and event["rows"]]
    return rate_of(batches), cpu_s() - before, time.process_time() - mine, len(batches)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    rows = max(int(ROWS * scale), 20_000)
    folder = Path(tempfile.mkdtemp(prefix="databus-bench-"))
    try:
        (folder / "in_driver.py").write_text(DRIVER)
        source = MockSource("shop", MockConfig(**CONFIG))
        log = Log.open(folder / "relay" / "shop", physical="shop", identity=source.identify())
        last = 0
        for group in insert_groups(0, rows, 1, 1_000):
            log.append(group)
            last = group.commit.scn
        log.close()
        spark = tuned_session("spark-tasks", "local[2]", folder=folder / "spark")
        try:
            with RelayProcess(folder, {"shop": {"type": "mock", "transactions_total": last, **CONFIG}}) as relay:
                yield from _compared(spark, folder, relay.url, min(ROWS_A_BATCH, rows // 5))
        finally:
            spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compared(spark: object, folder: Path, url: str, rows_a_batch: int) -> Iterator[Figure]:
    measure(spark, folder, url, Way("warm", "delta", 2), rows_a_batch)
    driver = None
    for way in WAYS:
        rate, cpu, own, batches = measure(spark, folder, url, way, rows_a_batch)
        driver = driver or (rate, cpu)
        name = way.name.replace("-", " ")
        yield Figure(f"relay to Delta history, {name}", rate, "rows/s", "driver", driver[0])
        yield Figure(f"{name}: processor time of all", cpu, "s", "driver", driver[1])
        yield Figure(f"{name}: of the driver's Python, a batch", own / batches * 1e3, "ms")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
