"""SQLite and the mock source keep what every source promises."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.sources.mock import MockConfig, MockSource, MockTable
from databus.sources.sqlite import SqliteConfig, SqliteSource
from databus.testing import SourceSuite


class SqliteHarness:
    is_snapshottable = True
    knows_its_history = True

    def __init__(self, folder: Path) -> None:
        self._paths = [folder / "shop.db", folder / "other.db"]
        self._open = [self._created(path) for path in self._paths]

    def _created(self, path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE a(id INTEGER PRIMARY KEY, u TEXT UNIQUE, v REAL)")
        db.execute("CREATE TABLE b(k TEXT, n INTEGER, PRIMARY KEY(k, n)) WITHOUT ROWID")
        return db

    def _source(self, path: Path) -> SqliteSource:
        config = SqliteConfig(
            path=str(path), group_bytes_max=2048, chunk_rows_max=5, cut_interval_ms=0, trim_rows_max=7
        )
        return SqliteSource("shop", config)

    def make(self) -> SqliteSource:
        return self._source(self._paths[0])

    def another(self) -> SqliteSource:
        return self._source(self._paths[1])

    def transact(self, number: int) -> None:
        for db in self._open:
            db.execute("BEGIN")
            for i in range(40 if number % 3 == 0 else 3):
                db.execute("REPLACE INTO a VALUES (?, ?, ?)", (number * 10 + i, f"u{i + number}", i / 3))
                db.execute("UPDATE a SET v = v + 1 WHERE id = ?", (number,))
                db.execute("INSERT OR IGNORE INTO b VALUES (?, ?)", ("x" * (i % 5), number))
            db.execute("DELETE FROM b WHERE n = ? AND k = 'x'", (number - 1,))
            db.execute("COMMIT")

    def close(self) -> None:
        for db in self._open:
            db.close()


class TestSqlite(SourceSuite):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[SqliteHarness]:
        made = SqliteHarness(tmp_path)
        yield made
        made.close()


class MockHarness:
    is_snapshottable = True
    knows_its_history = False

    def _source(self, seed: int) -> MockSource:
        tables = {name: MockTable(columns={"id": "int64", "v": "string"}) for name in ("main.a", "main.b")}
        options = {"rows_per_transaction": 12, "transactions_total": 6, "group_bytes_max": 1024, "chunk_rows": 5}
        return MockSource("made", MockConfig(type="mock", schemas=tables, seed=seed, **options))

    def make(self) -> MockSource:
        return self._source(1)

    def another(self) -> MockSource:
        return self._source(2)

    def transact(self, number: int) -> None:
        """They come by themselves."""


class TestMock(SourceSuite):
    @pytest.fixture
    def harness(self) -> MockHarness:
        return MockHarness()
