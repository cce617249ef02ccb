"""Projects for tests: a shop in SQLite, a pipeline's file, runs of it, and what SQL says the copies must hold."""

import contextlib
import queue
import random
import sqlite3
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from databus.core import LockHeld
from databus.pipeline import run
from databus.pipeline.running._own_relay import OwnRelay
from databus.relay import Relay
from databus.sinks import read_delta
from databus.testing.shop import SqliteWorkload, connect, create_shop

WAIT_S = 90.0
HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.*]}}
"""


class Project:
    """A folder with a shop and a pipeline. `seed` makes the shop's day; it is printed, for a failure to be repeated."""

    def __init__(self, folder: Path, sections: str, *, head: str = HEAD, seed: int = 7, orders: int = 60) -> None:
        self.folder = folder
        self.path = folder / "databus.yml"
        self.write(sections, head=head)
        self.database = folder / "shop.db"
        create_shop(self.database, customers=40, products=30, orders=orders, seed=seed)
        self._db = connect(self.database)
        self.workload = SqliteWorkload(self._db, random.Random(seed))
        print(f"seed {seed}")  # noqa: T201 - shown when a test fails

    def write(self, sections: str, *, head: str = HEAD) -> None:
        """Write the pipeline's file."""
        self.path.write_text(head + textwrap.dedent(sections))

    @property
    def state(self) -> Path:
        return self.folder / ".databus" / "pipelines" / "shop"

    def work(self, transactions: int) -> None:
        for _ in range(transactions):
            self.workload.step()

    def execute(self, *statements: str) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        for statement in statements:
            self._db.execute(statement)
        self._db.execute("COMMIT")

    def select(self, query: str) -> list[tuple[Any, ...]]:
        return sorted(self._db.execute(query).fetchall(), key=repr)

    def rows(self) -> int:
        """How many there are in all tables."""
        tables = ("customers", "stock", "orders", "order_lines")
        return sum(count for table in tables for (count,) in self.select(f"SELECT count(*) FROM {table}"))

    def copied(self, path: str, *columns: str) -> list[tuple[Any, ...]]:
        found = read_delta(self.folder / path, columns)
        return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True), key=repr)

    def once(self, session: Any, **options: Any) -> list[Mapping[str, Any]]:
        """Run it to the present end; returns its events. It must end without an error."""
        events: list[Mapping[str, Any]] = []
        code = run(self.path, once=True, session=session, on_event=events.append, **options)
        assert code == 0, events
        return events

    @contextlib.contextmanager
    def running(self, session: Any) -> Iterator["Running"]:
        """Run it beside the test, until the block ends."""
        running = Running(self, session)
        running.thread.start()
        try:
            yield running
        finally:
            running.stop.put("the test is over")
            running.thread.join(WAIT_S)
            assert not running.thread.is_alive()

    def assert_history_is_whole(self, path: str, table: str, key: str) -> None:
        """No change twice, and what the changes add up to is what the source has."""
        rows = self.copied(f"{path}/{table}", "_commit_version", "_seq", "_change_type", key)
        pairs = [row[:2] for row in rows]
        assert len(pairs) == len(set(pairs))
        alive: dict[Any, bool] = {}
        for _, _, change, value in sorted(rows, key=lambda row: row[:2]):
            alive[value] = change in ("insert", "update_postimage")
        assert {value for value, is_alive in alive.items() if is_alive} == {
            value for (value,) in self._db.execute(f"SELECT {key} FROM {table}")
        }


class Running:
    """A pipeline that runs in a thread. `code` is what it returned."""

    def __init__(self, project: Project, session: Any) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.stop: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.code: int | None = None
        self._project = project
        self._session = session
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.code = run(self._project.path, session=self._session, on_event=self.events.append, stop=self.stop)

    def wait_for(self, is_there: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT_S
        while not (found := is_there()):
            assert self.thread.is_alive(), self.events
            assert time.monotonic() < deadline, f"{what} did not come within {WAIT_S} s: {self.events[-5:]}"
            time.sleep(0.05)
        return found

    def event(self, **wanted: Any) -> Mapping[str, Any]:
        """Wait for an event that has these values."""
        return self.wait_for(
            lambda: next((e for e in list(self.events) if wanted.items() <= e.items()), None), str(wanted)
        )


class RelayInThread(OwnRelay):
    """A pipeline's own relay inside of this process, for tests that start many: 2 s of imports less.

    Like the real one it waits for the relay before it.
    """

    _inner: Relay | None = None

    def start(self) -> None:
        config = self._relay_config()
        deadline = time.monotonic() + WAIT_S
        while self._inner is None:
            try:
                self._inner = Relay(config).start()
            except LockHeld:  # the relay of a run that a test killed ends by itself, a moment later
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # nothing tells of a lock that is given back
        self.url = self._inner.url

    def stop(self) -> None:
        inner, self._inner = self._inner, None
        if inner is not None:
            inner.stop()


def rows_or_none(read: Callable[[], Any]) -> Any:
    """What is there, or None while nothing is."""
    try:
        return read()
    except (OSError, sqlite3.Error):
        return None
