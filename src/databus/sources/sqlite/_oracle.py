"""Reading a SQLite database for a comparison: one read transaction, at the last cut that databus made in it."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError, ServiceUnavailable, SourceCheckpoint, name_parts, ordinal_of
from databus.schema import Column, TableSchema
from databus.sources._oracle import Oracle, OracleTable, Reading, Row

_BUSY_S: Final = 10.0
_LITERAL: Final = "ANY (as a literal)"


def sqlite_oracle(database: Path) -> Oracle:
    """Readings of a SQLite file."""

    @contextmanager
    def reading() -> Iterator[Reading]:
        try:
            with closing(_open(database)) as connection:
                connection.execute("BEGIN")
                yield _SqliteReading(connection, database)
        except sqlite3.OperationalError as error:
            raise ServiceUnavailable(f"{database}: {error}") from error

    return reading


class _SqliteReading(Reading):
    def __init__(self, connection: sqlite3.Connection, database: Path) -> None:
        self._connection = connection
        self._database = database
        self._changes, (self.cut, self._captured) = _marks(connection, database)

    def not_captured(self) -> str:
        if self._changes > self._captured:
            return f"{self._changes - self._captured} changes of the source are not captured yet; does the relay run?"
        return ""

    def not_reached(self, position: SourceCheckpoint | None) -> str:
        at = 0 if position is None else ordinal_of(position.scn)
        if position is None or at < self.cut:
            return f"the copy is at {at}, the source at {self.cut}"
        return ""

    def tables(self) -> Sequence[OracleTable]:
        rows = self._connection.execute("SELECT definition FROM _databus_table WHERE live ORDER BY t").fetchall()
        latest = {table.source: table for table in (TableSchema.from_json(json.loads(text)) for (text,) in rows)}
        return [_table(latest[source]) for source in sorted(latest)]

    def rows(self, table: OracleTable) -> Iterator[Row]:
        name = _quoted(name_parts(table.source)[1])
        return map(table.row, self._connection.execute(f"SELECT {', '.join(table.expressions)} FROM {name}"))

    def rests(self) -> bool:
        with closing(_open(self._database)) as connection:
            return _marks(connection, self._database)[0] == self._changes


def _open(database: Path) -> sqlite3.Connection:
    if not database.is_file():
        raise ConfigError(f"{database}: there is no such database")
    return sqlite3.connect(database, timeout=_BUSY_S, isolation_level=None)


def _marks(connection: sqlite3.Connection, database: Path) -> tuple[int, tuple[int, int]]:
    """The last change that was written, and the last cut with the last change in it; fixes the read transaction."""
    try:
        (changes,) = connection.execute("SELECT coalesce(max(id), 0) FROM _databus_change").fetchone()
        cut = connection.execute("SELECT id, change_id FROM _databus_cut ORDER BY id DESC LIMIT 1").fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            raise ServiceUnavailable(f"{database}: it is not captured yet; `databus run` captures it") from error
        raise ServiceUnavailable(f"{database}: cannot be read now: {error}") from error
    return changes, cut or (0, 0)


def _table(table: TableSchema) -> OracleTable:
    expressions = [
        f"quote({_quoted(column.name)})" if column.db_type == _LITERAL else _quoted(column.name)
        for column in table.columns
    ]
    return OracleTable(
        table.source, tuple(table.names), tuple(table.key), tuple(map(_reader, table.columns)), tuple(expressions)
    )


def _reader(column: Column) -> Callable[[Any], Any]:
    """SQLite keeps whole reals as integers; a literal NULL is null."""
    if column.type == "float64":
        return lambda value: float(value) if isinstance(value, int) else value
    if column.db_type == _LITERAL:
        return lambda value: None if value == "NULL" else value
    return lambda value: value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
