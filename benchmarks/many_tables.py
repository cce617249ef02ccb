"""A pipeline over a thousand tables of SQLite, into one Delta mirror: its first run, and one changed row at a time.

python -m benchmarks.many_tables [SCALE]
"""

import queue
import random
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from benchmarks.run_start import project
from databus.pipeline import run
from databus.spark import tuned_session

TABLES = 1_000
CHANGES = 40
WARM_UP = 20
EVERY_S = 0.7  # so that no batch has two
S_MAX = 600


def figures(scale: float = 1.0) -> Iterator[Figure]:
    tables = max(int(TABLES * scale), 3)
    wanted = max(int(CHANGES * scale), 5) + WARM_UP
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        path = project(folder, tables, 1)
        spark = tuned_session("many-tables", "local[2]", folder=folder / "spark")
        try:
            began = time.perf_counter()
            if run(path, once=True, session=spark) != 0:
                raise RuntimeError("the first run failed")
            first_s = time.perf_counter() - began
            lags_ms = sorted(_one_at_a_time(path, spark, tables, wanted)[WARM_UP:])
        finally:
            spark.stop()
    yield Figure(f"many-tables, {tables} tables, first run, Spark's start aside", first_s, "s")
    yield Figure("many-tables, one changed row until Delta has it, p50", statistics.median(lags_ms), "ms")
    yield Figure("many-tables, the same, p99", lags_ms[int(len(lags_ms) * 0.99) - 1], "ms")


def _one_at_a_time(path: Path, spark: Any, tables: int, wanted: int) -> list[float]:
    """Milliseconds from each change's commit until the mirror has it."""
    lags_ms: list[float] = []
    stop: queue.SimpleQueue[Any] = queue.SimpleQueue()
    has_started, is_done = threading.Event(), threading.Event()

    def note(event: Any) -> None:
        if event["event"] == "started":
            has_started.set()
        if event["event"] == "batch" and event["rows"]:
            lags_ms.append(event["lag_ms"])
        if len(lags_ms) >= wanted or event["event"] in ("retry", "failed"):
            stop.put("that was enough")

    def write() -> None:
        dice = random.Random(1)
        has_started.wait(S_MAX)
        with sqlite3.connect(path.parent / "bench.db", timeout=10, isolation_level=None) as database:
            while not is_done.wait(EVERY_S):
                database.execute(
                    f"UPDATE t{dice.randrange(tables)} SET note = ? WHERE id = ?",
                    (str(dice.random()), dice.randrange(10)),
                )

    writer = threading.Thread(target=write)
    timer = threading.Timer(S_MAX, stop.put, ["it takes too long"])
    writer.start()
    timer.start()
    try:
        run(path, on_event=note, session=spark, stop=stop)
    finally:
        is_done.set()
        has_started.set()
        timer.cancel()
        writer.join()
    if len(lags_ms) < wanted:
        raise RuntimeError(f"{len(lags_ms)} of {wanted} changes came")
    return lags_ms


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
