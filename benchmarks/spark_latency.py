"""One changed row until it is visible in a Spark sink, and in Delta, on an idle machine, with the tuned session.

python -m benchmarks.spark_latency [SCALE]
"""

import queue
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from databus.pipeline import run
from databus.spark import tuned_session
from databus.testing import RelayProcess

CHANGES = 100
CHANGES_A_SECOND = 4
DELTA_CHANGES = 60
DELTA_CHANGES_A_SECOND = 2  # so that no batch has two
WARM_UP = 80
WARM = 400  # the JVM compiles what a batch of one row needs for some hundreds of batches
S_MAX = 300

PIPELINE = """
name: {mode}
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"], starting_version: latest}}}}
outputs: {{copy: {{type: delta, from: shop, mode: {mode}, path: {mode}, on_gap: continue}}}}
"""


def figures(scale: float = 1.0) -> Iterator[Figure]:
    wanted = max(int(CHANGES * scale), 20)
    config = {
        "type": "mock",
        "rows_per_transaction": 1,
        "transactions_per_s": CHANGES_A_SECOND,
        "group_transactions_max": 1,
        "updates": 0,
        "deletes": 0,
    }
    with tempfile.TemporaryDirectory(prefix="databus-bench-") as name:
        folder = Path(name)
        spark = tuned_session("spark-latency", "local[2]", folder=folder / "spark")
        try:
            with RelayProcess(folder / "relay", {"shop": config}) as relay:
                seen = _measure(spark, relay.url, folder, WARM + wanted)
            for warm_up in (WARM_UP, WARM):
                part = sorted(seen[warm_up : warm_up + wanted])
                yield from percentiles(f"spark-latency after {warm_up} batches", part)
            slower = {**config, "transactions_per_s": DELTA_CHANGES_A_SECOND, "updates": 60, "deletes": 20}
            wanted = max(int(DELTA_CHANGES * scale), 5) + WARM_UP
            for mode in ("mirror", "history"):
                with RelayProcess(folder / f"relay-{mode}", {"shop": slower}) as relay:
                    file = folder / f"{mode}.yml"
                    file.write_text(PIPELINE.format(mode=mode, url=relay.url))
                    lags = sorted(measure_lag(spark, file, wanted)[WARM_UP:])
                yield from percentiles(f"spark-latency, Delta {mode}", lags)
        finally:
            spark.stop()


def percentiles(name: str, seen: list[float]) -> Iterator[Figure]:
    yield Figure(f"{name}, p50", statistics.median(seen), "ms")
    yield Figure(f"{name}, p99", seen[int(len(seen) * 0.99) - 1], "ms")


def _measure(spark: Any, url: str, folder: Path, wanted: int) -> list[float]:
    """Milliseconds from each commit until a foreachBatch sink holds the row."""
    waited_ms: list[float] = []
    is_done = threading.Event()

    def sink(batch: Any, _: int) -> None:
        commits = batch.select("_commit_timestamp").toArrow().column(0)
        now_us = time.time_ns() // 1000
        waited_ms.extend((now_us - each.value) / 1e3 for each in commits)
        if len(waited_ms) >= wanted:
            is_done.set()

    query = (
        spark.readStream.format("databus")
        .options(relay=url, shape="typed", sources="main.events", startingVersion="latest")
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        if not is_done.wait(S_MAX):
            raise RuntimeError(f"{len(waited_ms)} of {wanted} rows came; {query.exception()}")
    finally:
        query.stop()
    return waited_ms


def measure_lag(spark: Any, file: Path, wanted: int) -> list[float]:
    """Milliseconds from each commit until the pipeline's output has it."""
    waited_ms: list[float] = []
    stop: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def note(event: Any) -> None:
        if event["event"] == "batch" and event["rows"]:
            waited_ms.append(event["lag_ms"])
        if len(waited_ms) >= wanted or event["event"] in ("retry", "failed"):
            stop.put("that was enough")

    timer = threading.Timer(S_MAX, stop.put, ["it takes too long"])
    timer.start()
    run(file, on_event=note, session=spark, stop=stop)
    timer.cancel()
    if len(waited_ms) < wanted:
        raise RuntimeError(f"{len(waited_ms)} of {wanted} changes came to the output of {file.name}")
    return waited_ms


if __name__ == "__main__":
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print(f"{figure.name:28} {figure.value:>8.1f} {figure.unit}")
