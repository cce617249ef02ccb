"""One changed row until it is visible in a Spark sink, on an idle machine, with the tuned session.

python -m benchmarks.spark_latency [SCALE]
"""

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from databus.spark import tuned_session
from databus.testing import RelayProcess

CHANGES = 100
CHANGES_A_SECOND = 4
WARM_UP = 80
S_MAX = 300


def figures(scale: float = 1.0) -> Iterator[Figure]:
    wanted = max(int(CHANGES * scale), 20) + WARM_UP
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
                seen = sorted(_measure(spark, relay.url, folder, wanted)[WARM_UP:])
        finally:
            spark.stop()
    yield Figure("spark-latency, p50", statistics.median(seen), "ms")
    yield Figure("spark-latency, p99", seen[int(len(seen) * 0.99) - 1], "ms")


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


if __name__ == "__main__":
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print(f"{figure.name:28} {figure.value:>8.1f} {figure.unit}")
