"""Reading a MySQL or MariaDB server for a comparison: one transaction with a consistent snapshot.

The server's own values come through PyMySQL as text and are read here, by the type that information_schema names: by
nothing of what decodes the log. The server's position before and after shows what the snapshot holds: if
both are the same, nothing was committed in between.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import pymysql
import pymysql.cursors

from databus.core import ServiceUnavailable, SourceCheckpoint, name_parts, ordinal_of, source_name
from databus.sources._oracle import Oracle, OracleTable, Reading, Row
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server import connect

_SYSTEM: Final = ("information_schema", "mysql", "performance_schema", "sys")
_DIGITS_MAX: Final = 38  # a decimal of more is copied as text
_TIME: Final = re.compile(r"(-?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_BEGINS: Final = ("Gtid", "Anonymous_Gtid")

Connection: TypeAlias = "pymysql.Connection[Any]"


def mysql_oracle(config: MysqlConfig) -> Oracle:
    """Readings of a server, as the user that captures it."""

    @contextmanager
    def reading() -> Iterator[Reading]:
        try:
            with closing(connect(config, conv={}, cursorclass=pymysql.cursors.SSCursor)) as connection:
                yield _ServerReading(connection, config)
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
            raise ServiceUnavailable(f"{', '.join(config.hosts)}: {error}") from error

    return reading


@dataclass(frozen=True, slots=True)
class _Mark:
    """Where the server's log ends."""

    file: str
    offset: int
    gtids: str
    ordinal: int | None
    """The last transaction's, on a server with GTIDs."""


class _ServerReading(Reading):
    def __init__(self, connection: Connection, config: MysqlConfig) -> None:
        self._connection = connection
        self._config = config
        _ask(connection, "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        self._mark = _mark(connection)
        _ask(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        self.cut = self._mark.ordinal or (int(self._mark.file.rpartition(".")[2]) << 32 | self._mark.offset)

    def not_captured(self) -> str:
        return ""  # a server does not know who follows it, and where they are

    def not_reached(self, position: SourceCheckpoint | None) -> str:
        at = 0 if position is None else ordinal_of(position.scn)
        if self._mark.ordinal is not None:
            is_there = position is not None and at >= self._mark.ordinal
            source = str(self._mark.ordinal)
        else:
            is_there = position is not None and not self._has_after(at >> 32, at & 0xFFFFFFFF)
            source = f"{self._mark.file} at {self._mark.offset}"
        return "" if is_there else f"the copy is at {at}, the source at {source}; do relay and pipeline run?"

    def _has_after(self, number: int, offset: int) -> bool:
        """Whether a transaction begins in the log after the one that begins there."""
        files = [str(row[0]) for row in _ask(self._connection, "SHOW BINARY LOGS")]
        for file in files:
            at = int(file.rpartition(".")[2])
            if at < number:
                continue
            since = f" FROM {offset}" if at == number else ""
            for event in _ask(self._connection, f"SHOW BINLOG EVENTS IN '{file}'{since}"):
                if event[2] in _BEGINS and (at, int(event[1])) > (number, offset):
                    return True
        return False

    def tables(self) -> Sequence[OracleTable]:
        config = self._config
        columns: dict[str, list[_Column]] = {}
        for database, table, *rest in _ask(self._connection, _COLUMNS):
            if database not in _SYSTEM and config.selects(source := source_name(database, table)):
                columns.setdefault(source, []).append(_Column(*rest))
        return [self._table(source, columns[source]) for source in sorted(columns)]

    def _table(self, source: str, columns: Sequence["_Column"]) -> OracleTable:
        key = self._key(source, {column.name for column in columns if column.is_nullable == "YES"})
        excluded = self._config.excluded_columns(source, key)
        kept = [column for column in columns if column.name not in excluded]
        zero = self._config.zero_dates == "null"
        asked = {name.lower() for name in self._config.types.get(source, {})}
        dates = _DATES if self._config.zero_dates == "text" else ()
        texts = {column.name for column in kept if column.name.lower() in asked or column.data_type in dates}
        return OracleTable(
            source,
            tuple(column.name for column in kept),
            key,
            tuple(
                _or_null(
                    str if column.name in texts else _reader(column),
                    is_null_if_wrong=zero and column.data_type in _DATES,
                )
                for column in kept
            ),
            tuple(column.expression for column in kept),
        )

    def _key(self, source: str, nullable: set[str]) -> tuple[str, ...]:
        """The primary key's columns, or those of the first unique key without a NULL."""
        keys: dict[str, list[str]] = {}
        useless = set()
        for row in _ask(self._connection, f"SHOW INDEX FROM {_name(source)}"):
            name, column, part = str(row[2]), row[4], row[7]
            keys.setdefault(name, []).append(str(column))
            if int(row[1]) or part is not None or column is None or column in nullable:
                useless.add(name)
        ordered = sorted(keys, key=lambda name: name != "PRIMARY")
        return next((tuple(keys[name]) for name in ordered if name not in useless), ())

    def rows(self, table: OracleTable) -> Iterator[Row]:
        query = f"SELECT {', '.join(table.expressions)} FROM {_name(table.source)}"  # noqa: S608 - names, quoted
        with self._connection.cursor() as cursor:
            cursor.execute(query)
            yield from map(table.row, cursor)

    def rests(self) -> bool:
        return _mark(self._connection) == self._mark


def _ask(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return list(cursor.fetchall())


def _mark(connection: Connection) -> _Mark:
    """See `_Mark`. The statement's name depends on the release."""
    try:
        status = _ask(connection, "SHOW MASTER STATUS")
    except pymysql.err.ProgrammingError:
        status = _ask(connection, "SHOW BINARY LOG STATUS")
    if not status:
        raise ServiceUnavailable("the server writes no log: log_bin is off")
    file, offset = str(status[0][0]), int(status[0][1])
    settings = {
        str(name): str(value)
        for name, value in _ask(
            connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('gtid_mode', 'gtid_strict_mode')"
        )
    }
    if settings.get("gtid_mode") == "ON":
        gtids = str(status[0][4]).replace("\n", "")
        return _Mark(file, offset, gtids, _size_of(gtids))
    if settings.get("gtid_strict_mode") == "ON":
        gtids = str(_ask(connection, "SELECT @@GLOBAL.gtid_binlog_pos")[0][0])
        return _Mark(file, offset, gtids, sum(int(gtid.rpartition("-")[2]) for gtid in gtids.split(",") if gtid))
    return _Mark(file, offset, "", None)


def _size_of(gtids: str) -> int:
    """How many transactions a set of MySQL's names.

    >>> _size_of("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7,4e11fa47-71ca-11e1-9e33-c80aa9429562:tag:9-10")
    8
    """
    intervals = re.findall(r":(\d+)(?:-(\d+))?(?=[:,]|$)", gtids.replace(" ", ""))
    return sum(int(last or first) - int(first) + 1 for first, last in intervals)


def _name(source: str) -> str:
    database, table = name_parts(source)
    return f"{_quoted(database)}.{_quoted(table)}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


_COLUMNS: Final = """
SELECT c.TABLE_SCHEMA, c.TABLE_NAME, c.COLUMN_NAME, c.DATA_TYPE, c.COLUMN_TYPE, c.IS_NULLABLE, c.NUMERIC_PRECISION
FROM information_schema.COLUMNS c JOIN information_schema.TABLES t
  ON t.TABLE_SCHEMA = c.TABLE_SCHEMA AND t.TABLE_NAME = c.TABLE_NAME
WHERE t.TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY c.TABLE_SCHEMA, c.TABLE_NAME, c.ORDINAL_POSITION
"""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    data_type: str
    column_type: str
    is_nullable: str
    precision: str | None

    @property
    def expression(self) -> str:
        """What to select so that nothing is lost: a plain FLOAT comes rounded, a BIT as bytes, ZEROFILL padded."""
        if self.data_type == "float":
            return f"{_quoted(self.name)} + 0e0"
        if self.data_type == "bit" or (self.data_type in _PADDED and "zerofill" in self.column_type):
            return f"{_quoted(self.name)} + 0"
        return _quoted(self.name)


_DATES: Final = ("date", "datetime", "timestamp")
_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
_PADDED: Final = ("decimal", *_INTEGERS)


def _reader(column: _Column) -> Callable[[str], Any]:
    kind = column.data_type
    if kind in _INTEGERS:
        return Decimal if kind == "bigint" and "unsigned" in column.column_type else int
    if kind == "bit":
        width = int(column.precision or 1)
        return (lambda text: bool(int(text))) if width == 1 else (Decimal if width > 32 else int)
    if kind == "decimal":
        return str if int(column.precision or 0) > _DIGITS_MAX else Decimal
    return _READERS.get(kind, lambda value: value)


def _microseconds(text: str) -> int:
    """Of a TIME, which may be negative and more than a day.

    >>> _microseconds("-01:00:00.5")
    -3600500000
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, hours, minutes, seconds, fraction = match.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    value = whole * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -value if sign else value


def _in_utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "float": float,
    "double": float,
    "year": int,
    "date": date.fromisoformat,
    "time": _microseconds,
    "datetime": datetime.fromisoformat,
    "timestamp": _in_utc,
}


def _or_null(read: Callable[[Any], Any], *, is_null_if_wrong: bool) -> Callable[[Any], Any]:
    """NULL stays. An invalid date is as the policy says, or stays as the server shows it, and so differs."""

    def value(text: Any) -> Any:
        if text is None:
            return None
        try:
            return read(text)
        except ValueError:
            return None if is_null_if_wrong else text

    return value
