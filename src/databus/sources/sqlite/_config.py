"""Options of the SQLite source."""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, Literal

from pydantic import Field

from databus.core import ConfigError, UnsupportedFeature, canonical_name, source_name
from databus.schema import TableSchema
from databus.sources._config import LocalPath, SourceConfig, SourceName
from databus.sources.sqlite._tables import list_tables

_COLUMNS: Final = "SELECT name FROM pragma_table_xinfo(?, 'main')"


class SqliteConfig(SourceConfig):
    """A SQLite database file, captured by triggers that write a change table in the users' own transactions."""

    type: str = Field("sqlite", description="`sqlite`.", pattern="^sqlite$")
    path: LocalPath = Field(description="The database file; it must be in WAL mode.", examples=["shop.db"])
    tables: list[str] = Field(
        default_factory=lambda: ["main.*"],
        min_length=1,
        description="Tables to capture, as `main.table`, `*` standing for any run of characters. What is to "
        "stand for itself, such as a comma in a name, is written between backquotes.",
        examples=[["main.*"], ["main.orders", "main.customers"]],
    )
    snapshot: Literal["initial", "never"] = Field(
        "initial",
        description="Whether a new log begins with the rows that are there. A table that appears later is always read.",
    )
    types: dict[SourceName, dict[str, str]] = Field(
        default_factory=dict,
        description="By table and column: the type to capture it as (`int64`, `float64`, `string`, `binary`, or `any`: "
        "the SQL literal of the value, exact for every value).",
        examples=[{"main.t": {"anything": "any"}}],
    )
    on_class3: Literal["resnapshot", "stop"] = Field(
        "resnapshot",
        description="After a change of a table that may have changed data unseen: read the table again, or stop.",
    )
    set_wal: bool = Field(False, description="Switch the database to WAL mode if it is in another.")
    poll_ms: int = Field(
        50, ge=1, le=10_000, description="Longest time between two looks for changes, where no file event comes sooner."
    )
    cut_interval_ms: int = Field(
        5, ge=0, le=60_000, description="Shortest time between two cuts; each is a small write transaction."
    )
    busy_ms_max: int = Field(1_000, ge=1, le=60_000, description="How long a cut waits for another writer at a time.")
    group_bytes_max: int = Field(4 << 20, ge=1024, le=256 << 20, description="Where a group ends, in bytes of rows.")
    group_rows_max: int = Field(65_536, ge=2, le=1 << 20, description="Where a group ends, in rows.")
    chunk_bytes_max: int = Field(4 << 20, ge=1024, le=256 << 20, description="Bytes of one snapshot chunk.")
    chunk_rows_max: int = Field(16_384, ge=1, le=1 << 20, description="Rows of one snapshot chunk.")
    trim_rows_max: int = Field(
        10_000, ge=1, le=1 << 20, description="Change rows deleted in one transaction, once they are safe in the log."
    )
    trim_interval_ms: int = Field(
        1_000, ge=0, le=3_600_000, description="Rest between two trimmings that left nothing to trim."
    )

    def selects(self, table: str) -> bool:
        """Whether the table is captured; SQLite's names are not case-sensitive.

        >>> SqliteConfig(path="shop.db", tables=["main.Orders"]).selects("main.ORDERS")
        True
        """
        folded = {
            "tables": [name.lower() for name in self.tables],
            "exclude": [name.lower() for name in self.exclude],
        }
        return SourceConfig(type=self.type, **folded).selects(table.lower())

    def tables_here(self, folder: Path) -> Mapping[str, Sequence[str]] | None:
        """See `SourceConfig.tables_here`; nothing is written, and who writes at the moment is not waited for."""
        path = folder / self.path
        if not path.is_file():
            raise ConfigError(f"path: {self.path}: there is no such file")
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0)) as db:
                return {
                    source_name("main", name): [column for (column,) in db.execute(_COLUMNS, (name,))]
                    for name in list_tables(db)
                }
        except sqlite3.OperationalError:
            return None  # it cannot be read now, which says nothing about what is in it
        except sqlite3.DatabaseError as error:
            raise ConfigError(f"path: {self.path}: {error}") from error

    def definitions_here(self, folder: Path) -> Mapping[str, TableSchema] | None:
        """See `SourceConfig.definitions_here`. Raises `ConfigError` for a database that cannot be captured, too."""
        from databus.sources.sqlite._describe import describe
        from databus.sources.sqlite._tables import read_shape

        path = folder / self.path
        try:
            with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0)) as db:
                names = [name for name, kind in list_tables(db).items() if kind == "table"]
                chosen = [name for name in names if self.selects(source_name("main", name))]
                tables = [describe(self, read_shape(db, name)).table for name in chosen]
                self._check_wal(db)
        except sqlite3.Error:
            return None  # `tables_here` says why
        except UnsupportedFeature as error:
            raise ConfigError(f"tables: {error}") from error
        return {table.source: table for table in tables}

    def _check_wal(self, db: sqlite3.Connection) -> None:
        from databus.sources.sqlite._install import ensure_wal

        try:
            if not self.set_wal:
                ensure_wal(db, self.path, set_wal=False)
        except ConfigError as error:
            raise ConfigError(f"path: {error}") from error

    def names_exactly(self, table: str) -> bool:
        """Whether the table is asked for by its name, not by a pattern that happens to fit."""
        return table.lower() in {canonical_name(name).lower() for name in self.tables}

    def left_out(self, table: str) -> frozenset[str]:
        """The columns of the table that never reach the log, in lower case."""
        for name, choice in self.columns.items():
            if name.lower() == table.lower():
                return frozenset(column.lower() for column in choice.exclude)
        return frozenset()

    def type_of(self, table: str, column: str) -> str | None:
        """The type that the column is captured as by `types:`, if it says."""
        for name, columns in self.types.items():
            if name.lower() == table.lower():
                return {name.lower(): kind for name, kind in columns.items()}.get(column.lower())
        return None
