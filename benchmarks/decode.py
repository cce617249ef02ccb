"""A binlog in memory into Arrow columns, by one thread: row images of *orders* and of *28 mixed columns*.

    python -m benchmarks.decode [SCALE]

The log is one that a real server wrote; the time is that thread's own, so that others on the machine do not count.
"decode" is the row images alone; "scan and decode" begins at the bytes of the file: events, checksums, runs. A run is
decoded in parts of at most 4 MiB, as they go into the log. The backlogs are those of the bench `capture`, of which
the first 100 MB are read.
"""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks._mysql import DATABASE, WORKLOADS, backlog
from benchmarks.figures import Figure, median_of, show
from databus.sources.mysql.binlog import LogRun, Scanner
from databus.sources.mysql.rows import DecodePlan, decode, make_plan
from databus.sources.mysql.tables import from_table_map

NAMES = ("orders", "mixed", "json", "updates")
LOG_BYTES_MAX = 100_000_000
PART_BYTES = 4 << 20


def _scan(log: NDArray[np.uint8], file: str) -> tuple[Scanner, list[LogRun]]:
    scanner = Scanner("mysql", lambda found: found.database == DATABASE, scheme="file-offset", is_file=True)
    scanner.open_file(file)
    scanner.feed(log)
    runs = []
    while (found := scanner.next()) is not None:
        if isinstance(found, LogRun):
            runs.append(found)
    return scanner, runs


def _plans(scanner: Scanner) -> list[DecodePlan]:
    return [make_plan(from_table_map(each, None), each.types, each.metas, each.nullable) for each in scanner.tables]


def _decode(runs: list[LogRun], plans: list[DecodePlan]) -> int:
    """The images decoded; their arrays are dropped as soon as they are there, as those of a group that is written."""
    images = 0
    for run in runs:
        ends = np.cumsum(run.event_end - run.event_start)
        cuts = np.unique(np.searchsorted(ends, np.arange(0, ends[-1] if len(ends) else 0, PART_BYTES)))
        for lo, hi in zip(cuts, [*cuts[1:], len(ends)], strict=True):
            if hi > lo:
                plan = plans[int(run.event_slot[lo])]
                parts = decode(
                    plan, run.buffer, run.event_kind[lo:hi], run.event_start[lo:hi], run.event_end[lo:hi], run.place
                )
                images += sum(part.images for part in parts)
    return images


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """See this module's first lines."""
    for workload in NAMES:
        with backlog("mysql-8.0", workload, int(WORKLOADS[workload].rows * scale)) as found:
            path = next(path for path in found.server.binlogs() if path.name == found.file)
            with path.open("rb") as file:
                log = np.frombuffer(file.read(LOG_BYTES_MAX), dtype=np.uint8)
        scanner, runs = _scan(log, found.file)
        plans = _plans(scanner)
        images = _decode(runs, plans)
        seconds = median_of(5, lambda runs=runs, plans=plans: _seconds(lambda: _decode(runs, plans)))
        yield Figure(f"decode, {workload}, {len(log) / images:.0f} B an image", images / seconds, "images/s")
        yield Figure(f"decode, {workload}", len(log) / seconds / 1e6, "MB/s")
        both = median_of(
            3, lambda log=log, found=found, plans=plans: _seconds(lambda: _decode(_scan(log, found.file)[1], plans))
        )
        yield Figure(f"scan and decode, {workload}", images / both, "images/s")


if __name__ == "__main__":
    sys.exit(show(figures))
