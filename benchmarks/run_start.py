"""`databus run --once` from its start to its end, where there is little to do: what a start of a pipeline takes.

python -m benchmarks.run_start
"""

import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure

CASES = [[300, 1], [3, 10]]  # tables, outputs
ROWS = 10
RUN_S_MAX = 400


def project(folder: Path, tables: int, outputs: int) -> Path:
    """A database of small tables, and a pipeline that copies them into mirrors and histories; returns its file."""
    names = [f"t{number}" for number in range(tables)]
    with sqlite3.connect(folder / "bench.db") as database:
        database.execute("PRAGMA journal_mode = wal")
        for name in names:
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, note TEXT)")
            database.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(row, "a note") for row in range(ROWS)])
    lines = [
        "name: bench",
        "sources: {bench: {type: sqlite, path: bench.db}}",
        "inputs: {bench: {type: databus}}",
        "spark: {master: 'local[2]'}",
        "outputs:",
    ]
    for number in range(outputs):
        mode = ("mirror", "history")[number % 2]
        lines.append(f"  o{number}: {{type: delta, from: bench, mode: {mode}, path: lake/o{number}}}")
    path = folder / "databus.yml"
    path.write_text("\n".join(lines) + "\n")
    return path


def _run_s(path: Path) -> tuple[float, float]:
    """Seconds from start to end, and seconds of processor time of all its processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [sys.executable, "-m", "databus.cli", "run", str(path), "--once"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S_MAX, check=False)
    took_s = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took_s, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def figures(scale: float = 1.0) -> Iterator[Figure]:
    del scale  # a start is a start
    for tables, outputs in CASES:
        what = f"{tables} tables, {outputs} outputs"
        with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
            path = project(Path(name), tables, outputs)
            for which in ("first run", "one row later"):
                took_s, cpu_s = _run_s(path)
                yield Figure(f"{what}, {which}", took_s, "s")
                yield Figure(f"{what}, {which}, processor time of what it waits for", cpu_s, "s")
                with sqlite3.connect(Path(name) / "bench.db") as database:
                    database.execute("UPDATE t0 SET note = 'another' WHERE id = 1")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
