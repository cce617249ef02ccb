"""From a commit on a real server to a consumer's callback, over HTTP, at a steady rate of transactions.

The client writes its clock into the row, in the transaction, before it commits; the callback subtracts that from its
own. So the figure holds the server's commit too: what an application waits from COMMIT to the effect elsewhere. The
same without it, from the moment at which COMMIT has answered to the callback, is given beside it; a callback may well
come before that.
"""

import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks._mysql import wait_until_it_captures
from benchmarks.figures import Figure
from databus.client import Client, Consumer
from databus.testing import RelayProcess
from databus.testing.servers import open_server

KIND = "mysql-8.0"
RATE = 1_000
SECONDS = 20
P50_MS_MAX, P99_MS_MAX = 5.0, 15.0


class _Clockwatcher(Consumer):
    def __init__(self, until: int) -> None:
        self.until = until
        self.arrived_ns: dict[int, tuple[int, int]] = {}
        self.done = threading.Event()

    def on_data_events(self, changes: Any) -> None:
        now = time.time_ns()
        ids, sent = changes.batch.column("id").to_pylist(), changes.batch.column("sent_ns").to_pylist()
        self.arrived_ns.update((each, (at, now)) for each, at in zip(ids, sent, strict=True))
        if len(self.arrived_ns) >= self.until:
            self.done.set()


def _write(port: int, user: str, password: str, count: int) -> list[int]:
    """Commits one row at a time, at the rate, in a process of its own; returns when each commit had answered."""
    import pymysql

    answered = []
    with closing(
        pymysql.connect(
            host="127.0.0.1",
            port=port,
            user=user,
            password=password,
            database="bench",
            autocommit=True,
            ssl_disabled=True,
        )
    ) as connection:
        cursor = connection.cursor()
        began = time.perf_counter()
        for number in range(count):
            wait = began + number / RATE - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            cursor.execute(f"INSERT INTO ticks VALUES ({number}, {time.time_ns()}, 'a row like many others')")
            answered.append(time.time_ns())
    return answered


def figures(scale: float = 1.0, server: str = KIND) -> Iterator[Figure]:
    count = int(RATE * max(3.0, SECONDS * scale))
    with tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name:
        lines = ["innodb-flush-log-at-trx-commit=2"]
        with open_server(server, Path(name) / "server", lines=lines) as found:
            found.run(
                "CREATE DATABASE bench",
                "CREATE TABLE bench.ticks (id INT PRIMARY KEY, sent_ns BIGINT NOT NULL, note VARCHAR(60))",
            )
            source = {
                "type": "mysql",
                "hosts": [f"{found.host}:{found.port}"],
                "user": found.capture_user,
                "password": found.capture_password,
                "tables": ["bench.ticks"],
                "snapshot": "never",
            }
            with RelayProcess(Path(name), {"bench": source}) as relay:
                wait_until_it_captures(relay)
                consumer = _Clockwatcher(count)
                client = Client(relay.url, consumer, sources=["bench/bench.ticks"])
                client.start()
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                    answered = pool.submit(_write, found.port, found.user, found.password, count).result()
                consumer.done.wait(60)
                client.stop()
    numbers = sorted(consumer.arrived_ns)[count // 2 :]  # the first half warms up
    if len(numbers) < count - count // 2:
        raise RuntimeError(f"{len(consumer.arrived_ns)} rows of {count} arrived")
    whole = sorted((consumer.arrived_ns[each][1] - consumer.arrived_ns[each][0]) / 1e6 for each in numbers)
    after = sorted((consumer.arrived_ns[each][1] - answered[each]) / 1e6 for each in numbers)
    commit = sorted((answered[each] - consumer.arrived_ns[each][0]) / 1e6 for each in numbers)
    what = f"before INSERT to callback, {RATE:,} transactions/s, {server}"
    for percent, limit in ((50, P50_MS_MAX), (99, P99_MS_MAX)):
        yield Figure(f"{what}, p{percent}", _percentile(whole, percent), "ms", "at most", limit)
        yield Figure(f"of that, the client's own statement and commit, p{percent}", _percentile(commit, percent), "ms")
        yield Figure(f"from the commit's answer to the callback, p{percent}", _percentile(after, percent), "ms")


def _percentile(values: list[float], percent: int) -> float:
    return values[len(values) * percent // 100]


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
