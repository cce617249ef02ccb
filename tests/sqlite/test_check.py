"""`databus check-source` of a database: what keeps it from being captured, found without changing it."""

import os
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from databus.log import Resume
from databus.sources.sqlite import SqliteConfig, SqliteSource, install

NOBODY = 65534


def check(path: Path | str, **options) -> list[tuple[str, str, str]]:
    return [
        (each.severity, each.name, each.what) for each in SqliteSource.check(SqliteConfig(path=str(path), **options))
    ]


@pytest.fixture
def database(tmp_path) -> Path:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT)")
        db.execute("CREATE TABLE notes (note TEXT)")
    return path


def test_a_file_that_is_none_or_no_database_is_an_error(tmp_path):
    ((severity, name, what),) = check(tmp_path / "nowhere.db")
    assert (severity, name) == ("error", "path")
    assert "there is no such database file" in what
    (tmp_path / "letter.db").write_text("Dear Sir or Madam, I am no database")
    ((severity, name, what),) = check(tmp_path / "letter.db")
    assert (severity, name) == ("error", "path")
    assert "no SQLite database" in what


@contextmanager
def unprivileged() -> Iterator[None]:
    """As somebody whom rights apply to."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_is_an_error():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shop.db")
        sqlite3.connect(path).close()
        path.touch(0o666)
        os.chmod(folder, 0o555)  # noqa: PTH101, S103 - a plain text
        with unprivileged():
            ((severity, name, what),) = check(path)
        os.chmod(folder, 0o700)  # noqa: PTH101
    assert (severity, name) == ("error", "folder")
    assert "shop.db-wal" in what


def test_another_journal_than_wal_is_an_error_unless_it_will_be_switched(database):
    assert ("error", "journal_mode") in [each[:2] for each in check(database)]
    assert ("info", "journal_mode") in [each[:2] for each in check(database, set_wal=True)]
    with closing(sqlite3.connect(database)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",), "the check has switched it"
        db.execute("PRAGMA journal_mode = WAL")
    assert "journal_mode" not in [each[1] for each in check(database)]


def test_tables_without_a_key_and_misspelt_ones_are_named(database):
    assert ("warning", "keys", "main.notes without a primary key: captured, but no mirror can follow") in check(
        database
    )
    told = check(database, tables=["main.ordres", "main.orders"])
    assert ("error", "tables", "no table fits main.ordres; did you mean main.orders?") in told
    assert "keys" not in [each[1] for each in told]


def test_triggers_that_are_in_or_will_be_are_told(database):
    later = ("info", "triggers", "no triggers yet in main.orders; the relay's start puts them in")
    assert later in check(database, tables=["main.orders"])
    config = SqliteConfig(path=str(database), tables=["main.orders"])
    install(str(database), config, set_wal=True)
    assert check(database, tables=["main.orders"]) == [("info", "triggers", "triggers are in main.orders")]


def test_a_log_that_has_the_database_is_named_and_that_its_folder_is_gone(shop, tmp_path):
    shop.run("CREATE TABLE t (id INTEGER PRIMARY KEY)")
    place = f"log-1 at {tmp_path} on {socket.gethostname()}"
    shop.start(Resume(log_id=place))
    assert ("info", "log", f"captured into log {place}; another log is refused") in check(shop.path)
    gone = f"log-1 at {tmp_path}/gone on {socket.gethostname()}"
    shop.start(Resume(log_id=gone))
    ((severity, name, what), _) = check(shop.path)
    assert (severity, name) == ("warning", "log")
    assert f"captured into log {gone}, and that folder is gone" in what
