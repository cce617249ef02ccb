"""Many followers of one relay: from a commit in the source to a callback, beside a crowd that follows the same log.

The crowd is a few processes that receive and look at nothing. The mock source makes transactions of one row, and joins
what has come in the meantime in a group, as any source does. Everything is of the second half of a run; the first
starts processes and warms up. The relay's processor time is that of its whole process, capture included, for each group
delivered to each follower.

Five equal followers of JSON lines are to cost as one and four sends: the relay's processor time with one, and with
five.
"""

import multiprocessing
import os
import selectors
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure
from databus.client import Client, Consumer
from databus.link import RelayClient
from databus.testing import RelayProcess

CROWDS = ((0, 1_000, 10.0), (20, 500, 25.0), (100, 100, 50.0), (500, 100, 100.0))
"""Followers beside the callback, transactions a second, and the p99 to stay below, in ms."""

JSON_RATE = 500
SECONDS = 16
SECONDS_MIN = 3.0
CROWD_PROCESSES = 2
BUFFER_BYTES = 1 << 20
FRAMES = "output=frames"
JSON = "output=json"


class _Watcher(Consumer):
    def __init__(self, total: int) -> None:
        self._total = total
        self.late_us: list[float] = []
        self.half = threading.Event()
        self.done = threading.Event()

    def on_end_window(self, window: Any) -> None:
        self.late_us.append(time.time_ns() / 1e3 - window.commit_us)
        if window.scn >= self._total // 2:
            self.half.set()
        if window.scn >= self._total:
            self.done.set()


def _follow(url: str, outputs: Sequence[str], ended: Event) -> None:
    """A process of the crowd: one connection for each of `outputs`, what comes is received and forgotten."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    buffer = memoryview(bytearray(BUFFER_BYTES))
    with selectors.DefaultSelector() as selector:
        for output in outputs:
            sock = socket.create_connection((host, int(port)))
            sock.sendall(f"GET /stream?follow=1&start=beginning&{output} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            selector.register(sock, selectors.EVENT_READ)
        while not ended.is_set():
            for key, _ in selector.select(0.1):
                if not key.fileobj.recv_into(buffer):  # type: ignore[union-attr] - it is a socket
                    selector.unregister(key.fileobj)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@dataclass
class _Run:
    """What one run measured. late_ms: in order, of its second half."""

    late_ms: list[float]
    cpu_us_a_transaction: float
    cpu_us_a_group: float

    def late(self, percent: int) -> float:
        return sorted(self.late_ms)[len(self.late_ms) * percent // 100]

    @property
    def growth_ms(self) -> float:
        """How much later the last fifth came than the first."""
        fifth = max(1, len(self.late_ms) // 5)
        return statistics.median(self.late_ms[-fifth:]) - statistics.median(self.late_ms[:fifth])


def _run(rate: int, seconds: float, outputs: Sequence[str]) -> _Run:
    """One callback beside followers of these outputs."""
    total = int(rate * seconds)
    mock = {
        "type": "mock",
        "rows_per_transaction": 1,
        "transactions_per_s": rate,
        "transactions_total": total,
    }
    watcher = _Watcher(total)
    fork = multiprocessing.get_context("fork")
    ended = fork.Event()
    wait_s = seconds * 5 + 30
    with (
        tempfile.TemporaryDirectory(prefix="databus-bench-", dir=Path.cwd()) as name,
        RelayProcess(Path(name), {"mock": mock}) as process,
    ):
        shares = [outputs[i::CROWD_PROCESSES] for i in range(CROWD_PROCESSES)]
        crowd = [fork.Process(target=_follow, args=(process.url, each, ended), daemon=True) for each in shares if each]
        for each in crowd:
            each.start()
        client = Client(process.url, watcher)
        client.start()
        watcher.half.wait(wait_s)
        relay = RelayClient(process.url)
        before_s, seen, place = _cpu_s(process.pid), len(watcher.late_us), relay.position("mock", start="latest")
        watcher.done.wait(wait_s)
        cpu_us = (_cpu_s(process.pid) - before_s) * 1e6
        transactions = len(watcher.late_us) - seen
        groups = relay.range("mock", place).groups
        client.stop()
        ended.set()
        for each in crowd:
            each.join()
    late_ms = [us / 1e3 for us in watcher.late_us[total // 2 :]] or [float("inf")]
    return _Run(late_ms, cpu_us / max(1, transactions), cpu_us / max(1, groups))


def figures(scale: float = 1.0) -> Iterator[Figure]:
    seconds = max(SECONDS_MIN, SECONDS * scale)
    for followers, rate, aim_ms in CROWDS:
        run = _run(rate, seconds, [FRAMES] * followers)
        what = f"commit to callback, {rate:,} transactions/s, {f'beside {followers}' if followers else 'alone'}"
        yield Figure(f"{what}, p50", run.late(50), "ms")
        yield Figure(f"{what}, p99", run.late(99), "ms", "at most", aim_ms)
        yield Figure(f"{what}, growth over the run", run.growth_ms, "ms")
        yield Figure(f"{what}, relay CPU a delivered group", run.cpu_us_a_group / (followers + 1), "us")
        yield Figure(f"{what}, relay CPU", run.cpu_us_a_transaction * rate / 1e6, "cores")
    one, five = (_run(JSON_RATE, seconds, [JSON] * count) for count in (1, 5))
    what = f"relay CPU a transaction, {JSON_RATE:,}/s, followers of JSON lines"
    yield Figure(f"{what}: one", one.cpu_us_a_transaction, "us")
    yield Figure(f"{what}: five", five.cpu_us_a_transaction, "us", "one", one.cpu_us_a_transaction)
    yield Figure("callback beside the five, p99", five.late(99), "ms")


if __name__ == "__main__":
    from benchmarks.figures import show

    show(figures)
