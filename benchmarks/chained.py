"""A chained relay beside the relay that it copies: how fast it catches up, and what it adds to the latency.

Catch-up: a client reads all of a log from the relay that captured it; a chained relay starts from nothing and copies it
onto its disk; a client reads all of it there. Latency: one process follows both, and each transaction's time at the
chained relay is held against its time at the other.
"""

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure
from databus.core import Pair
from databus.link import RelayClient
from databus.testing import RelayProcess

BYTES = 2_000_000_000
ROW_BYTES = 254
ROWS_PER_TRANSACTION = 1_000
RUNS = 3
RATE = 100
LATENCY_S = 30


def _mock(transactions: int, **options: object) -> dict[str, object]:
    return {"type": "mock", "row_bytes": ROW_BYTES, "transactions_total": transactions, **options}


def _read_all(url: str, end: Pair) -> float:
    """Bytes per second of a client that opens every frame, from the first to the one that reaches `end`."""
    client, size, began = RelayClient(url), 0, time.perf_counter()
    with client.stream("mock", "beginning", to=end, follow=True) as stream:
        for groups in stream:
            for group in groups:
                size += group.commit.frame_bytes
                for frame in group.frames:
                    size += frame.header.frame_bytes
                    _ = frame.batch.num_rows
    return size / (time.perf_counter() - began)


def _copy_all(url: str, end: Pair, size: int) -> float:
    """Bytes per second of a chained relay that has just been started, until it has published all."""
    client, began = RelayClient(url), time.perf_counter()
    while not client.physicals()["mock"] or client.head("mock").published.pair < end:
        time.sleep(0.01)
    return size / (time.perf_counter() - began)


def _catch_up(folder: Path, what: str, source: dict[str, object], transactions: int) -> Iterator[Figure]:
    direct, copying, copied = [], [], []
    with RelayProcess(folder / "first", {"mock": source}) as first:
        client = RelayClient(first.url)
        while client.head("mock").published.scn < transactions:
            time.sleep(0.1)
        end = client.head("mock").published.pair
        size = client.range("mock", client.position("mock", start="beginning"), bytes_max=1 << 50, to=end).bytes
        for run in range(RUNS):
            direct.append(_read_all(first.url, end))
            with RelayProcess(folder / f"copy{run}", {"mock": {"type": "relay", "url": first.url}}) as second:
                copying.append(_copy_all(second.url, end, size))
                copied.append(_read_all(second.url, end))
    peer = statistics.median(direct) / 1e6
    yield Figure(f"chained: a client catches up at the copy ({what})", _median(copied), "MB/s", "direct", peer)
    yield Figure(f"chained: the copy itself, log on disk ({what})", _median(copying), "MB/s", "direct", peer)


def _median(bytes_per_s: list[float]) -> float:
    return statistics.median(bytes_per_s) / 1e6


def _arrivals(url: str, seen: dict[int, float], is_enough: threading.Event) -> None:
    client = RelayClient(url)
    with client.stream("mock", client.position("mock", start="latest"), follow=True) as stream:
        for groups in stream:
            now = time.perf_counter()
            for group in groups:
                seen.setdefault(group.commit.last_scn, now)
            if is_enough.is_set():
                return


def _latency(folder: Path, seconds: float) -> Iterator[Figure]:
    source = _mock(1_000_000, transactions_per_s=RATE, rows_per_transaction=10)
    with (
        RelayProcess(folder / "first", {"mock": source}) as first,
        RelayProcess(folder / "copy", {"mock": {"type": "relay", "url": first.url}}) as second,
    ):
        while not RelayClient(second.url).physicals()["mock"]:
            time.sleep(0.01)
        direct: dict[int, float] = {}
        copied: dict[int, float] = {}
        is_enough = threading.Event()
        asked = ((first.url, direct), (second.url, copied))
        threads = [threading.Thread(target=_arrivals, args=(*each, is_enough)) for each in asked]
        for thread in threads:
            thread.start()
        while len(tuple(copied)) < RATE * seconds:
            time.sleep(0.1)
        is_enough.set()
        for thread in threads:
            thread.join()
    added = sorted((copied[scn] - direct[scn]) * 1e3 for scn in direct.keys() & copied.keys())
    what = f"{RATE} transactions/s"
    yield Figure(f"chained: added latency, p50 ({what})", statistics.median(added), "ms")
    yield Figure(f"chained: added latency, p99 ({what})", added[int(len(added) * 0.99)], "ms")


def figures(scale: float = 1.0) -> Iterator[Figure]:
    transactions = max(20, int(BYTES * scale / (ROW_BYTES + 33) / ROWS_PER_TRANSACTION / 1.3))
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        large = _mock(transactions, rows_per_transaction=ROWS_PER_TRANSACTION)
        yield from _catch_up(Path(name) / "large", "groups of 4 MiB", large, transactions)
        small = _mock(transactions, rows_per_transaction=10, group_transactions_max=1)
        yield from _catch_up(Path(name) / "small", "groups of one transaction of 10 rows", small, transactions)
        yield from _latency(Path(name) / "latency", max(3.0, LATENCY_S * scale))


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
