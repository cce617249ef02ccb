"""The iterator of windows over a log of small transactions across four tables, as rows, as Arrow, and in batches."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.figures import Figure
from databus.client import Subscription, windows
from databus.link import RelayClient
from databus.testing import RelayProcess

TRANSACTIONS = 100_000
CHANGES = 20
RUNS = 3
TABLES = {
    f"shop.t{n}": {
        "columns": {"id": "int64", "customer": "int64", "total": "int64", "at": "timestamptz", "note": "string"}
    }
    for n in range(4)
}


def _as_arrow(following: Subscription) -> tuple[int, int]:
    rows = seen = 0
    for window in following:
        seen += 1
        for batch in window.tables().values():
            rows += batch.num_rows
    return seen, rows


def _as_rows(following: Subscription) -> tuple[int, int]:
    rows = seen = 0
    for window in following:
        seen += 1
        for row in window.rows():
            before, after = row.before, row.after
            rows += (before is not None) + (after is not None)
    return seen, rows


def _as_batches(following: Subscription) -> tuple[int, int]:
    rows = seen = 0
    for batch in following.batches():
        seen += len(batch.windows)
        for table in batch.tables().values():
            rows += table.num_rows
    return seen, rows


def _rate(url: str, transactions: int, consume: Callable[[Subscription], tuple[int, int]]) -> float:
    began = time.perf_counter()
    with windows(url, follow=False) as following:
        seen, rows = consume(following)
    seconds = time.perf_counter() - began
    if seen != transactions:
        raise AssertionError(f"{seen} windows came of {transactions}")
    return rows / seconds


def figures(scale: float = 1.0) -> Iterator[Figure]:
    transactions = max(1_000, int(TRANSACTIONS * scale))
    mock = {"type": "mock", "schemas": TABLES, "rows_per_transaction": CHANGES, "transactions_total": transactions}
    what = f"transactions of {CHANGES} changes, 26 rows, over 4 tables"
    yield from _figures(mock, transactions, what)
    few = max(500, transactions // 20)
    alone = {**mock, "transactions_total": few, "group_transactions_max": 1}
    yield from _figures(alone, few, f"{what}, each in a group of its own")


def _figures(mock: dict, transactions: int, what: str) -> Iterator[Figure]:
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        RelayProcess(Path(name), {"mock": mock}) as process,
    ):
        relay = RelayClient(process.url)
        while relay.head("mock").published.scn < transactions:
            time.sleep(0.1)
        for shape, consume in (("rows", _as_rows), ("Arrow", _as_arrow), ("batches of windows", _as_batches)):
            rates = [_rate(process.url, transactions, consume) for _ in range(RUNS)]
            yield Figure(f"windows as {shape} ({what})", statistics.median(rates), "rows/s")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
