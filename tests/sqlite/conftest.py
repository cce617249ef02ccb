"""A database in WAL mode with nobody else in it, and a source that is closed at the end."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from databus.log import Resume
from databus.sources.sqlite import SqliteSource
from tests.sqlite.model import ModelLog, make_source


class Shop:
    """One database, one log, and the source between them."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "shop.db")
        self.db = sqlite3.connect(self.path, isolation_level=None, timeout=30)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = OFF")
        self.log = ModelLog()
        self.opened: list[SqliteSource] = []

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.db.execute(statement)

    def start(self, resume: Resume | None = None, **options: Any) -> SqliteSource:
        """A source that goes on where the log ends, or at `resume`."""
        source = make_source(self.path, **options)
        self.opened.append(source)
        source.identify()
        source.start(self.log.resume() if resume is None else resume)
        return source

    def close(self) -> None:
        for source in self.opened:
            source.close()
        self.db.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.close()


@pytest.fixture
def make_shop(tmp_path: Path) -> Iterator[Callable[[str], Shop]]:
    made: list[Shop] = []

    def make(name: str) -> Shop:
        (tmp_path / name).mkdir()
        made.append(Shop(tmp_path / name))
        return made[-1]

    yield make
    for each in made:
        each.close()
