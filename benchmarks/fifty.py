"""Many outputs in one file: how soon all have started, what they take of a processor while nothing happens, and memory.

python -m benchmarks.fifty
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.figures import Figure

OUTPUTS = 50
LANES = 5
TABLES = 5
SETTLE_S = 10.0  # what starts leaves behind, such as compiling, is over
IDLE_S = 30.0  # for which processor time is counted
START_S_MAX = 600.0


def project(folder: Path) -> Path:
    """A database of small tables, and a pipeline of many mirrors in few lanes; returns its file."""
    with sqlite3.connect(folder / "bench.db") as database:
        database.execute("PRAGMA journal_mode = wal")
        for number in range(TABLES):
            database.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, note TEXT)")
            database.executemany(f"INSERT INTO t{number} VALUES (?, ?)", [(row, "a note") for row in range(10)])
    lines = [
        "name: bench",
        "sources: {bench: {type: sqlite, path: bench.db}}",
        "inputs: {bench: {type: databus}}",
        "spark: {master: 'local[2]'}",
        "outputs:",
    ]
    for number in range(OUTPUTS):
        lane = f"lane: l{number % LANES}"
        lines.append(f"  o{number}: {{type: delta, from: bench, mode: mirror, path: lake/o{number}, {lane}}}")
    path = folder / "databus.yml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _written(events: Path) -> set[str]:
    """The outputs that have written a batch."""
    lines = events.read_text().splitlines() if events.exists() else []
    said = [json.loads(line) for line in lines]
    return {each["output"] for each in said if each["event"] == "batch"}


def _family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> dict[str, float]:
    """Seconds of processor time so far, by what a process is."""
    found: dict[str, float] = {}
    for each in _family(process):
        try:
            times, words = each.cpu_times(), each.cmdline()
        except psutil.Error:
            continue
        what = "Spark's JVM" if "java" in words[0] else "driver" if each == process else "relay"
        if "pyspark" in " ".join(words):
            what = "Spark's JVM" if "java" in words[0] else "Spark's Pythons"
        found[what] = found.get(what, 0.0) + times.user + times.system
    return found


def _memory_mb(process: psutil.Process) -> float:
    """What all processes hold, shared pages divided among those that share them."""
    found = 0
    for each in _family(process):
        try:
            found += each.memory_full_info().pss
        except psutil.Error:
            continue
    return found / 1e6


def figures(scale: float = 1.0) -> Iterator[Figure]:
    del scale  # as many as they are
    what = f"{OUTPUTS} outputs in {LANES} lanes"
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        path, events = project(folder), folder / "events"
        began = time.perf_counter()
        with (folder / "said").open("wb") as said:
            running = subprocess.Popen(
                [sys.executable, "-m", "databus.cli", "run", str(path), "--progress", str(events)],
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        try:
            process = psutil.Process(running.pid)
            while len(_written(events)) < OUTPUTS:
                if running.poll() is not None or time.perf_counter() - began > START_S_MAX:
                    raise RuntimeError(f"not all have written: {(folder / 'said').read_text()[-2000:]}")
                time.sleep(0.2)  # the events are a file of another process
            yield Figure(f"{what}, from the start to a batch of each", time.perf_counter() - began, "s")
            time.sleep(SETTLE_S)
            before, at = _cpu_s(process), time.perf_counter()
            time.sleep(IDLE_S)
            after, seconds = _cpu_s(process), time.perf_counter() - at
            for each in sorted(after):
                spent = (after[each] - before.get(each, 0.0)) / seconds
                yield Figure(f"{what}, idle, {each}", 100 * spent, "% of a core")
            idle = (sum(after.values()) - sum(before.values())) / seconds
            yield Figure(f"{what}, idle, all processes", 100 * idle, "% of a core")
            yield Figure(f"{what}, memory of all processes", _memory_mb(process), "MB")
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
