"""What a pipeline's Pythons hold in memory, the driver's and that of its tasks, for rows and for ten times as many.

python -m benchmarks.task_memory [SCALE]

Each run is a `databus run --once` of its own, from a relay into a Delta table: a history of all rows, and a mirror that
takes them and then batches of changes. Memory is anonymous, the most that one process was seen to have.
"""

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil

from benchmarks._changes import insert_groups, mixed_groups
from benchmarks.figures import Figure
from benchmarks.spark_delta import CONFIG
from benchmarks.spark_tasks import log_of
from databus.testing import RelayProcess

ROWS = 3_000_000
FACTORS = (1, 10)
CHANGES_A_BATCH = 100_000
MIRROR_BATCHES = 4
SAMPLE_S = 0.05
RUN_S_MAX = 1_800

PIPELINE = """
name: memory-{mode}
relay: {{url: "{url}"}}
inputs: {{shop: {{type: databus, tables: ["shop/*"]}}}}
outputs: {{copy: {{type: delta, from: shop, mode: {mode}, path: {mode}}}}}
"""


class _Pythons(threading.Thread):
    """The most anonymous memory that the driver's Python was seen to have, and any one below it, as tasks' are."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._driver = psutil.Process(pid)
        self._ended = threading.Event()
        self.driver_mb = self.task_mb = 0.0

    def run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                below = [each.pid for each in self._driver.children(recursive=True) if each.name() != "java"]
            except psutil.Error:
                continue  # one of them ended meanwhile
            self.driver_mb = max(self.driver_mb, _anonymous_mb(self._driver.pid))
            self.task_mb = max([self.task_mb, *map(_anonymous_mb, below)])

    def end(self) -> None:
        self._ended.set()
        self.join()


def _anonymous_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0  # it has ended
    return max((int(each.split()[1]) / 1e3 for each in lines if each.startswith("RssAnon")), default=0.0)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    for factor in FACTORS:
        rows = max(int(ROWS * factor * scale), 20_000)
        for mode in ("history", "mirror"):
            driver_mb, task_mb = _measure(mode, rows, max(int(CHANGES_A_BATCH * scale), 1_000))
            yield Figure(f"task-memory, {mode} of {rows} rows, a task's Python", task_mb, "MB")
            yield Figure(f"task-memory, {mode} of {rows} rows, the driver's Python", driver_mb, "MB")


def _measure(mode: str, rows: int, a_batch: int) -> tuple[float, float]:
    inserts = -(-rows // 1_000)
    rng, live = np.random.default_rng(7), np.arange(rows)
    changes = (
        group
        for number in range(MIRROR_BATCHES if mode == "mirror" else 0)
        for group in mixed_groups(rng, live, a_batch, inserts + 1 + number * a_batch // 1000, number + 1)
    )
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        relay = log_of(folder, itertools.chain(insert_groups(0, rows, 1, 1_000), changes), CONFIG)
        with RelayProcess(folder / "relay", relay) as served:
            file = folder / "databus.yml"
            file.write_text(PIPELINE.format(mode=mode, url=served.url))
            command = [sys.executable, "-m", "databus.cli", "run", "--once", str(file)]
            with (folder / "said").open("wb") as said:
                process = subprocess.Popen(command, stdout=said, stderr=said, cwd=folder, env=dict(os.environ))
                watch = _Pythons(process.pid)
                watch.start()
                code = process.wait(RUN_S_MAX)
            watch.end()
            if code:
                raise RuntimeError(f"the pipeline ended with {code}: {(folder / 'said').read_text()[-2000:]}")
    return watch.driver_mb, watch.task_mb


if __name__ == "__main__":
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print(f"{figure.name:70} {figure.value:>8.1f} {figure.unit}")
