"""The source's side of a comparison: what a database holds, read from itself and by nothing of the bus.

An oracle opens readings; a reading is one consistent read at one position. Each kind of database has a module of its
own that makes one: see `oracle_of`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.core import ConfigError, SourceCheckpoint
from databus.pipeline._compare_found import Row
from databus.sources import SourceConfig


@dataclass(frozen=True, slots=True)
class OracleTable:
    """A captured table: `db.table`, its captured columns in order, its key, and how a value of each column as the
    database's client gives it becomes the value that a mirror holds.
    """

    source: str
    names: tuple[str, ...]
    key: tuple[str, ...]
    readers: tuple[Callable[[Any], Any], ...]
    expressions: tuple[str, ...]

    def row(self, values: Sequence[Any]) -> Row:
        """Values of all columns, as a mirror holds them."""
        return tuple(read(value) for read, value in zip(self.readers, values, strict=True))


class Reading(ABC):
    """One consistent read. `cut`: the ordinal of the last transaction that it sees."""

    cut: int

    @abstractmethod
    def not_captured(self) -> str:
        """Why the bus cannot have everything that this reading sees, as far as the database itself knows; empty if
        nothing speaks against it.
        """

    @abstractmethod
    def not_reached(self, position: SourceCheckpoint | None) -> str:
        """Why a copy at this position does not hold everything that this reading sees; empty if it does."""

    @abstractmethod
    def tables(self) -> Sequence[OracleTable]:
        """The captured tables, by name."""

    @abstractmethod
    def rows(self, table: OracleTable, key: Sequence[str]) -> dict[Row, Row]:
        """All rows of a table by key."""

    @abstractmethod
    def rests(self) -> bool:
        """Whether nothing was written since the reading was opened."""


Oracle = Callable[[], AbstractContextManager[Reading]]
"""Opens a reading. Raises `Unavailable` where the database cannot be read now."""


def oracle_of(physical: str, config: SourceConfig | None, *, folder: Path, database: Path | None = None) -> Oracle:
    """How the database of a physical source is read. `database`: a SQLite file, instead of what `config` says.

    Raises `ConfigError` for a kind that cannot be compared.
    """
    if database is not None or (config is not None and config.type == "sqlite"):
        from databus.pipeline._compare_sqlite import sqlite_oracle

        return sqlite_oracle(database or folder / str(getattr(config, "path", "")))
    if config is not None and config.type == "mysql":
        from databus.pipeline._compare_mysql import mysql_oracle

        return mysql_oracle(config)
    if config is None:
        raise ConfigError(f"{physical}: its options are in no configuration here; give that of the relay")
    raise ConfigError(f"{physical} is of type {config.type}; SQLite, MySQL and MariaDB can be compared")


def read_source(physical: str, config: SourceConfig) -> Mapping[str, dict[Row, Row]]:
    """What the database of a source holds now, by table (`db.table`) and key, in the values that a mirror holds."""
    with oracle_of(physical, config, folder=Path())() as reading:
        return {table.source: reading.rows(table, table.key) for table in reading.tables()}
