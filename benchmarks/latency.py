"""From a commit in the source to a consumer's callback, over HTTP, the relay in a process of its own.

The mock source's clock says when a transaction is committed; a callback takes the time that has passed since. For the
highest rate, rates are tried upwards; one is kept up with if the end of its run arrives in time. There groups
hold as many transactions as have come in the meantime, as any source's do.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from databus.client import Client, ClientConfig, Consumer
from databus.testing import RelayProcess

RATE = 1_000
SECONDS = 20
RATES = (5_000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000, 80_000)
RATE_SECONDS = 8  # at any scale: the first seconds go to starting two processes and reading what came meanwhile
LATE_MS_MAX = 100


class _Clockwatcher(Consumer):
    def __init__(self, until: int) -> None:
        self.until = until
        self.latencies_us: list[float] = []
        self.rows = 0
        self.done = threading.Event()

    def on_data_events(self, changes: Any) -> None:
        self.rows += changes.batch.num_rows

    def on_end_window(self, window: Any) -> None:
        self.latencies_us.append(time.time_ns() / 1e3 - window.commit_us)
        if window.scn >= self.until:
            self.done.set()


def run(rate: int, seconds: float, config: ClientConfig | None = None, **options: Any) -> list[float]:
    """Latencies in ms, in order, of the second half; the first half starts processes and warms up."""
    total = int(rate * seconds)
    mock = {
        "type": "mock",
        "rows_per_transaction": 1,
        "transactions_per_s": rate,
        "transactions_total": total,
        **options,
    }
    consumer = _Clockwatcher(total)
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        RelayProcess(Path(name), {"mock": mock}) as process,
    ):
        client = Client(process.url, consumer, config=config)
        client.start()
        consumer.done.wait(seconds * 5 + 30)
        client.stop()
    return [us / 1e3 for us in consumer.latencies_us[total // 2 :]] or [float("inf")]


def _keeps_up(rate: int, seconds: float) -> bool:
    """Whether the end of the run arrives in time: a backlog would have grown by then."""
    late = run(rate, seconds)
    last = sorted(late[-max(1, len(late) // 5) :])
    return last[len(last) // 2] <= LATE_MS_MAX


def figures(scale: float = 1.0) -> Iterator[Figure]:
    latencies = sorted(run(RATE, max(3.0, SECONDS * scale), group_transactions_max=1))
    what = f"commit to callback, {RATE:,} transactions/s, one a group"
    for percent in (50, 99):
        yield Figure(f"{what}, p{percent}", latencies[len(latencies) * percent // 100], "ms")
    best = 0
    for rate in RATES:
        if not _keeps_up(rate, RATE_SECONDS):
            break
        best = rate
    yield Figure("highest rate that is kept up with, of those tried", best, "transactions/s")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
