"""A crowd of real consumers in processes of their own, and those who behave badly beside it: nobody loses a row."""

import json
import logging
import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from databus.client import windows
from databus.relay._filters import FILTERS_MAX
from databus.testing import RelayProcess
from tests.commands import python
from tests.relay.many_consumers import BEATS, TABLE, Kind
from tests.relay.support import get, until

MEMORY_MB_MAX = 400.0
_logger = logging.getLogger(__name__)


class Shop:
    """A table that somebody writes to all the time; and once that has ended, rows that only have something to come."""

    def __init__(self, path: Path, seed: int, pause_s: float) -> None:
        self._path, self._rng, self._pause_s = path, random.Random(seed), pause_s
        self._goes, self._beats = True, True
        with closing(sqlite3.connect(path)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, total INTEGER NOT NULL, region TEXT)")
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._beating = threading.Event()

    @contextmanager
    def written(self) -> Iterator["Shop"]:
        self._thread.start()
        try:
            yield self
        finally:
            self._goes = self._beats = False
            self._thread.join(30)

    def end(self) -> None:
        """Write nothing that counts from now on."""
        self._goes = False
        assert self._beating.wait(30)

    def _write(self) -> None:
        rng, last = self._rng, 0
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as database:
            while self._goes:
                database.execute("BEGIN IMMEDIATE")
                for _ in range(rng.randint(1, 6)):
                    kind, key = rng.random(), rng.randint(max(1, last - 30), max(1, last))
                    if kind < 0.6:
                        last += 1
                        values = last, rng.randrange(200), rng.choice(["CH", "DE", None])
                        database.execute("INSERT INTO orders VALUES (?, ?, ?)", values)
                    elif kind < 0.9:
                        database.execute("UPDATE orders SET total = ? WHERE id = ?", (rng.randrange(200), key))
                    else:
                        database.execute("DELETE FROM orders WHERE id = ?", (key,))
                database.execute("COMMIT")
                time.sleep(self._pause_s)  # how quickly it writes
            beat = BEATS
            while self._beats:
                with closing(database.executemany(_BEAT, [(beat + i,) for i in range(32)])):
                    beat += 32
                self._beating.set()
                time.sleep(self._pause_s)

    def rows(self, where: str | None, columns: list[str] | None) -> dict[int, dict[str, Any]]:
        """What the database answers."""
        names = columns or ["id", "total", "region"]
        with closing(sqlite3.connect(self._path, timeout=30)) as database:
            found = database.execute(f"SELECT {', '.join(names)} FROM orders WHERE id < {BEATS} AND ({where or 1})")
            return {row[0]: dict(zip(names, row, strict=True)) for row in found}


_BEAT = "INSERT INTO orders VALUES (?, 1000, 'beat')"


@contextmanager
def behaving_badly(url: str) -> Iterator[None]:
    """One that never reads what it asked for, and one that sends rubbish all the time."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    address, ended, rng = (host, int(port)), threading.Event(), random.Random(1)
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    stuck.connect(address)
    stuck.sendall(b"GET /stream?follow=1&start=beginning&output=json HTTP/1.1\r\nHost: localhost\r\n\r\n")

    def rubbish() -> None:
        sent = [
            rng.randbytes(200),
            b"GET /stream?partition=9/2 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b'POST /groups/billing-0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"a": [1}',
            b'POST /groups/billing-0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{"member": "',
            b"GET /stream?follow=1&where=" + b"(" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ]
        while not ended.wait(0.05):
            with suppress(OSError), socket.create_connection(address, timeout=1) as sock:
                sock.sendall(rng.choice(sent))
                sock.recv(rng.choice([1, 4_096]))

    sending = threading.Thread(target=rubbish, daemon=True)
    sending.start()
    try:
        yield
    finally:
        ended.set()
        sending.join(30)
        stuck.close()


def anonymous_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1e3


@contextmanager
def processes(url: str, folder: Path, count: int, each: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    try:
        for first in range(0, count * each, each):
            command = [python(), "-m", "tests.relay.many_consumers", url, str(folder), str(first), str(each)]
            started.append(subprocess.Popen(command))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait(30)


@pytest.mark.skipif(sys.platform != "linux", reason="the relay's memory is read from /proc")
@pytest.mark.parametrize(
    ("count", "each", "seconds"),
    [
        pytest.param(3, 10, 1.5, marks=pytest.mark.nightly, id="30"),
        pytest.param(12, 25, 60, marks=[pytest.mark.soak, pytest.mark.timeout(900)], id="300"),
    ],
)
def test_no_consumer_of_a_crowd_loses_a_row_beside_those_that_behave_badly(
    tmp_path: Path, count: int, each: int, seconds: float
) -> None:
    """Behind filters, in partitions, by name and without, those that connect anew all the time: what each was given
    makes of the table what the database answers. The relay's memory is bounded.
    """
    shop = Shop(tmp_path / "shop.db", seed=each, pause_s=count * each / 1_000)
    source = {"shop": {"type": "sqlite", "path": str(tmp_path / "shop.db")}}
    with RelayProcess(tmp_path, source) as relay, shop.written():
        with behaving_badly(relay.url), processes(relay.url, tmp_path, count, each) as there:
            for part in range(1, 9):  # each with a wait of its own: three hundred take some time to connect
                until(lambda part=part: consumers(relay.url) >= count * each * part // 10, "the crowd")
            most_mb, ends = 0.0, time.monotonic() + seconds
            while time.monotonic() < ends:
                most_mb = max(most_mb, anonymous_mb(relay.pid))
                time.sleep(0.1)  # how often it is looked at
            shop.end()
            told = tmp_path / "end.new"
            told.write_text(str(scn_of_first_beat(relay.url)))
            told.rename(tmp_path / "end")
            for process in there:
                process.wait(240)
            most_mb = max(most_mb, anonymous_mb(relay.pid))
        found = {
            int(number): value
            for path in tmp_path.glob("found.*")
            for number, value in json.loads(path.read_text()).items()
        }
        assert len(found) == count * each
        assert [value["error"] for value in found.values() if value["error"]] == []
        check(shop, found)
        assert most_mb < MEMORY_MB_MAX
        assert all(found[number]["opened"] > 1 for number in found if Kind(number).reconnects)
        _logger.info("%d consumers: the relay held %.0f MB; %d rows", count * each, most_mb, len(shop.rows(None, None)))


def consumers(url: str) -> int:
    return int(get(url, "/containerStats/outbound/total").json["openStreams"])


def scn_of_first_beat(url: str) -> int:
    with windows(url, sources=[TABLE]) as following:
        return next(window.scn for window in following if any(row["id"] >= BEATS for row in window.rows()))


def check(shop: Shop, found: dict[int, Any]) -> None:
    """Each consumer's rows are those of the database; of several that share them, all together."""
    together: dict[Any, list[int]] = defaultdict(list)
    for number in found:
        together[Kind(number).shares].append(number)
    for numbers in together.values():
        kind = Kind(numbers[0])
        latest: dict[int, tuple[Any, Any]] = {}
        for number in numbers:
            for key, (pair, values) in found[number]["rows"].items():
                if int(key) < BEATS and (int(key) not in latest or latest[int(key)][0] < pair):
                    latest[int(key)] = pair, values
        rows = {key: values for key, (_, values) in latest.items() if values is not None}
        assert rows == shop.rows(kind.where, kind.columns), f"consumers {numbers}"


@pytest.mark.nightly
def test_beyond_the_bound_of_distinct_filters_new_ones_are_refused_and_those_there_lose_nothing(tmp_path: Path) -> None:
    """While rows are written; once one of them has left, another is let in."""
    shop = Shop(tmp_path / "shop.db", seed=1, pause_s=0.3)
    source = {"shop": {"type": "sqlite", "path": str(tmp_path / "shop.db")}}
    with RelayProcess(tmp_path, source) as relay, shop.written(), ExitStack() as stack:
        conditions = [f"total >= {least}" for least in range(FILTERS_MAX)]
        following = [stack.enter_context(windows(relay.url, sources=[TABLE], where=where)) for where in conditions]
        until(lambda: consumers(relay.url) == FILTERS_MAX, "all that may be there")

        def status(where: str) -> int:
            return int(get(relay.url, "/stream", sources=TABLE, where=where, start="latest", wait_ms=0).status)

        assert {status(f"id >= {least}") for least in range(20)} == {429}
        assert status(conditions[-1]) == 200
        shop.end()
        for where, followed in zip(conditions, following, strict=True):
            assert rows_before_beats(followed) == shop.rows(where, None), where
        following[0].close()
        until(lambda: status("id >= 1") == 200, "a place for another filter")


def rows_before_beats(following: Any) -> dict[int, dict[str, Any]]:
    """What a stream makes of the table up to the first row that counts for nothing."""
    found: dict[int, dict[str, Any]] = {}
    for window in following:
        for row in window.rows():
            if row["id"] >= BEATS:
                return found
            if row.op == "delete":
                found.pop(row["id"], None)
            else:
                found[row["id"]] = dict(row)
    raise AssertionError("the stream ended before the rows without meaning")
