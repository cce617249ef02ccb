"""Appending to the log: frames of 1,000 rows of 254 B, ready-made and from Arrow batches.

The limit, measured in the same run: the same number of bytes written to the same disk in writes of 8 MiB, with the same
fsync policy (a thread that fsyncs once a number of bytes or a time has passed) and a last fsync at the end.

    python -m benchmarks.log_append
"""

import os
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from databus.log import Log, LogConfig, Resume
from databus.schema import TableSchema
from databus.sources.mock import MockConfig, MockSource
from databus.wire import EncodedGroup, Group, encode_group

BYTES = 384 << 20
ROWS = 1_000
RUNS = 7
LARGE_WRITE_BYTES = 8 << 20
SMALL_GROUPS = 20_000


def _groups(count: int, rows_a_transaction: int, transactions_a_group: int) -> tuple[MockSource, list[Group]]:
    config = MockConfig(
        rows_per_transaction=rows_a_transaction,
        group_transactions_max=transactions_a_group,
        transactions_total=count * transactions_a_group,
        inserts=1,
        updates=0,
        deletes=0,
    )
    source = MockSource("mock", config)
    source.identify()
    source.start(Resume())
    groups: list[Group] = []
    while len(groups) < count:
        group = source.poll(1000)
        if group is not None and group.rows and not group.snapshot:
            groups.append(group)
    return source, groups


def _open(folder: Path, source: MockSource) -> Log:
    return Log.open(folder, physical="mock", identity=source.identify(), config=LogConfig(free_bytes_min=0))


def _large_writes(folder: Path, bytes_total: int) -> float:
    """Bytes a second of the limit."""
    policy = LogConfig()
    block = os.urandom(1 << 20) * (LARGE_WRITE_BYTES >> 20)
    fd = os.open(folder / "limit", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    changed = threading.Condition()
    state = {"unsynced": 0, "ended": 0}

    def sync() -> None:
        while not state["ended"]:
            with changed:
                changed.wait_for(lambda: state["unsynced"] or state["ended"])
                changed.wait_for(
                    lambda: state["unsynced"] >= policy.fsync_bytes or state["ended"], policy.fsync_interval_ms / 1e3
                )
                state["unsynced"] = 0
            os.fdatasync(fd)

    thread = threading.Thread(target=sync)
    thread.start()
    start = time.perf_counter()
    written = 0
    while written < bytes_total:
        written += os.write(fd, block)
        with changed:
            state["unsynced"] += len(block)
            changed.notify_all()
    with changed:
        state["ended"] = 1
        changed.notify_all()
    thread.join()
    os.fdatasync(fd)
    seconds = time.perf_counter() - start
    os.close(fd)
    return written / seconds


def _ready_made(folder: Path, source: MockSource, groups: list[EncodedGroup]) -> float:
    with _open(folder, source) as log:
        start = time.perf_counter()
        for group in groups:
            log.append_encoded(group)
        log.sync()
        return sum(group.bytes_total for group in groups) / (time.perf_counter() - start)


def _from_arrow(folder: Path, source: MockSource, groups: list[Group]) -> float:
    with _open(folder, source) as log:
        start = time.perf_counter()
        for group in groups:
            log.append(group)
        log.sync()
        return log.head().appended_bytes / (time.perf_counter() - start)


class _OneTable:
    def number_of(self, table: TableSchema) -> tuple[int, int]:  # noqa: ARG002
        return 1, 1


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    os.sync()  # what the run before left unwritten is not the next one's


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """scale 1.0: 384 MiB a run, 7 runs of each, in turn."""
    count = max(8, int(BYTES * scale / (ROWS * 254)))
    source, groups = _groups(count, 10, ROWS // 10)
    encoded = [encode_group(group, _OneTable(), 0) for group in groups]
    bytes_total = sum(each.bytes_total for each in encoded)
    seen: dict[str, list[float]] = {"limit": [], "ready": [], "arrow": []}
    order = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        folder = Path(name)
        for run in range(RUNS + 1):
            for what in order.sample(sorted(seen), 3):  # what came before has an effect on a disk
                _clear(folder)
                if what == "limit":
                    rate = _large_writes(folder, bytes_total)
                elif what == "ready":
                    rate = _ready_made(folder, source, encoded)
                else:
                    rate = _from_arrow(folder, source, groups)
                if run:  # the first of each warms up
                    seen[what].append(rate / 1e6)
        limit = statistics.median(seen["limit"])
        frame_bytes = bytes_total // len(groups)
        what = f"{ROWS} rows, {frame_bytes // ROWS} B a row"
        yield Figure(
            f"append ready-made frames ({what})", statistics.median(seen["ready"]), "MB/s", "large writes", limit
        )
        yield Figure(f"append Arrow batches ({what})", statistics.median(seen["arrow"]), "MB/s", "large writes", limit)
        _clear(folder)
        yield from _small(folder, max(1000, int(SMALL_GROUPS * scale)))


def _small(folder: Path, count: int) -> Iterator[Figure]:
    source, groups = _groups(count, 1, 1)
    rates = []
    for run in range(RUNS):
        with _open(folder / f"small-{run}", source) as log:
            start = time.perf_counter()
            for group in groups:
                log.append(group)
            rates.append(count / (time.perf_counter() - start))
    yield Figure("append groups of one row", statistics.median(rates), "groups/s")


if __name__ == "__main__":
    for figure in figures():
        ratio = "" if figure.ratio is None else f"  {figure.ratio:.2f} of {figure.peer} ({figure.peer_value:,.0f})"
        print(f"{figure.name:55} {figure.value:12,.0f} {figure.unit}{ratio}")
