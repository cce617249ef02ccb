"""Read views: a consistent moment of the server, with the watermarks between which it lies. Nothing is written.

How a view gets its watermarks depends on what the server can say; each half of each way has a test that fails without
it (tests/mysql/snapshot/test_watermarks.py):

- MariaDB: a consistent snapshot is opened in the order of commits, and `binlog_snapshot_file` and `_position` are its
  exact place in the log: the high watermark. It would be the low one, too, but for XA transactions, which the engine
  commits a moment after their commit is in the log. So the low one is the log's end before the view, with the
  transactions that were prepared right after that: of those up to the low watermark, the view can lack no others.
- MySQL with GTIDs: `gtid_executed`, read *before* the view is opened, grows only after the engine's commit, so all of
  it is visible: the low watermark. The log's end, read *after*, has moved before the engine's commit, so nothing beyond
  it is visible: the high watermark. The other way round both would be wrong.
- MySQL without GTIDs has no low watermark to ask for: the log's end runs ahead of what is visible. A guard, on a
  connection of its own, holds `LOCK TABLES t READ` for a moment: a transaction that wrote the table holds its metadata
  lock until it is committed in log and engine alike, so under the lock the log's end is exact for this table. That is
  done once, and again when many keys have been changed since: a low watermark stays right, only the keys to be compared
  become more. Writers come before `READ` and would keep it waiting for ever; then `WRITE` is asked for, behind which
  they wait for at most `lock_ms_max`. If a transaction that wrote the table is open for longer, it is let go, and tried
  again later.
- On MySQL a view is opened by reading a row of the table, which holds off an ALTER of it until the view is
  closed. Opened before that, it could be one of the moment in which an ALTER copies the table: MySQL 5.7 then shows,
  once the ALTER is through, the rows that had been copied by then, and no error.
- An exact view (low is high, for a table without a key) is opened under that lock on any MySQL, and so is that row
  read: an ALTER may copy under `READ`. Under `WRITE` none does, and one that begins later makes the view an error.
- A table of an engine without transactions is read under `LOCK TABLES t READ` from begin to end, and so is one that is
  to be held, on any server: a table that cannot be written needs no view. The lock is the reading connection's own,
  since it may have become one for `WRITE`, which would keep any other connection from reading.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import pymysql

from databus.core import InputError, ServiceUnavailable
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.snapshot._keys import KeyRange
from databus.sources.mysql.snapshot._queries import first_query, table_name
from databus.sources.snapshots import TableLocked

Position = Mapping[str, Any]
"""The log's position after a transaction, as commits carry it: `file`, `offset`, and `gtids` where GTIDs rule."""
_OPEN: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_BEGIN: Final = "START TRANSACTION READ ONLY"
_PARSE_ERROR: Final = 1064
_DENIED: Final = frozenset({1044, 1142})
_BUSY: Final = frozenset({1205, 1290})  # waited for too long; not where the server is read-only
_BEHIND_S: Final = 0.002
_BEHIND_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class LogWatermark:
    """A place in one server's log."""

    file: str
    offset: int
    gtids: str | None = None
    """The executed set, which stands for the place if file and offset would be wrong."""

    def contains(self, position: Position) -> bool:
        """As a low watermark: whether everything logged up to `position` is in what was read."""
        if self.gtids is None:
            return _order(str(position["file"]), int(position["offset"])) <= _order(self.file, self.offset)
        from databus.sources.mysql.binlog import GtidSet

        return GtidSet.parse(self.gtids).contains(GtidSet.parse(str(position["gtids"])))

    def is_in(self, position: Position) -> bool:
        """As a high watermark: whether the log up to `position` holds everything that was read."""
        return _order(self.file, self.offset) <= _order(str(position["file"]), int(position["offset"]))

    def precedes(self, other: "LogWatermark") -> bool:
        """Whether it is before that one in the log, or at the same place."""
        return _order(self.file, self.offset) <= _order(other.file, other.offset)


def _order(file: str, offset: int) -> tuple[int, int]:
    """Binary logs are numbered; the number outgrows its six digits."""
    return int(file.rpartition(".")[2]), offset


class LockBusy(TableLocked):
    """Transactions that wrote the table are open, for an unknown time."""


class ReadWay(StrEnum):
    """How views get their watermarks on a server."""

    COMMIT_ORDER = "commit-order"  # MariaDB
    GTID = "gtid"
    GUARD = "guard"


def query(connection: pymysql.Connection, sql: str) -> list[tuple[Any, ...]]:
    """Ask, and fetch all. Text comes as text, whatever the session's results are in."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return [tuple(_text(cell) for cell in row) for row in cursor.fetchall()]


def query_by_name(connection: pymysql.Connection, sql: str) -> list[dict[str, Any]]:
    """The same, each row by its columns' names: their order differs between servers and releases."""
    with connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(sql)
        return [{str(name): _text(cell) for name, cell in row.items()} for row in cursor.fetchall()]


def _text(cell: Any) -> Any:
    return cell.decode() if isinstance(cell, bytes) else cell


def way_of(connection: pymysql.Connection) -> ReadWay:
    """How this server's views get their watermarks."""
    if "mariadb" in str(query(connection, "SELECT VERSION()")[0][0]).lower():
        return ReadWay.COMMIT_ORDER
    return ReadWay.GTID if query(connection, "SELECT @@global.gtid_mode")[0][0] == "ON" else ReadWay.GUARD


def log_end(connection: pymysql.Connection) -> LogWatermark:
    """The end of the server's log. Raises `InputError` if it keeps none."""
    try:
        rows = query(connection, "SHOW MASTER STATUS")
    except pymysql.MySQLError as error:
        if error.args[0] != _PARSE_ERROR:
            raise
        rows = query(connection, "SHOW BINARY LOG STATUS")  # its name from MySQL 8.4 on
    if not rows:
        raise InputError("the server keeps no binary log: set `log_bin` and restart it")
    return LogWatermark(str(rows[0][0]), int(rows[0][1]))


def prepared_xids(connection: pymysql.Connection) -> frozenset[str]:
    """The XA transactions that are prepared, or being committed, by the ids that `binlog.xid_of` gives."""
    encoding, connection.encoding = connection.encoding, "latin-1"  # they are any bytes
    try:
        with connection.cursor() as cursor:
            cursor.execute("XA RECOVER")
            rows = cursor.fetchall()
    finally:
        connection.encoding = encoding
    xids = set()
    for kind, gtrid_bytes, _, xid_data in rows:
        raw = xid_data.encode("latin-1") if isinstance(xid_data, str) else bytes(xid_data)
        xids.add(f"{raw[:gtrid_bytes].hex()},{raw[gtrid_bytes:].hex()},{kind}")
    return frozenset(xids)


class ReadView:
    """A consistent moment. low, high: its watermarks. Close it, also after an error.

    prepared: ids of XA transactions that it may lack, even where their commits are below `low`.
    """

    def __init__(
        self, low: LogWatermark, high: LogWatermark, close: Callable[[], None], prepared: frozenset[str] = frozenset()
    ) -> None:
        self.low = low
        self.high = high
        self.close = close
        self.prepared = prepared


class ReadViews:
    """Opens views on one connection. guard: makes a second connection of the same configuration, if one is needed."""

    def __init__(
        self, connection: pymysql.Connection, way: ReadWay, guard: Callable[[], pymysql.Connection], lock_ms_max: int
    ) -> None:
        self._connection = connection
        self._way = way
        self._make_guard = guard
        self._guard: pymysql.Connection | None = None
        self._lock_ms_max = lock_ms_max

    def open(
        self,
        definition: TableDefinition,
        floor: Position | None,
        *,
        transactional: bool,
        exact: bool = False,
        held: bool = False,
        low: LogWatermark | None = None,
        first: str | None = None,
    ) -> ReadView:
        """A view of this table that holds everything logged up to `floor`.

        exact: the low watermark must be the high one. held: the table is locked against writes while the view is open.
        low: an earlier one, if a guard makes them. first: the query that reads one row of the table; by default, any
        row.
        """
        first = first or first_query(definition, (), "", KeyRange())
        until_s = time.monotonic() + _BEHIND_S_MAX
        while True:
            view = self._open(definition, transactional=transactional, exact=exact, held=held, low=low, first=first)
            if floor is None or view.low.contains(floor):
                return view
            view.close()  # the log is sent before the commit is visible: a moment later it will be
            if time.monotonic() > until_s:
                raise ServiceUnavailable(
                    f"{definition.source}: the server that is read has not got as far as its own log"
                )
            time.sleep(_BEHIND_S)  # no server says when a commit becomes visible

    def close(self) -> None:
        """Close the guard's connection."""
        if self._guard is not None:
            with suppress(pymysql.MySQLError, OSError):  # the server has ended it already
                self._guard.close()
            self._guard = None

    @property
    def need_low(self) -> bool:
        """Whether ordinary views need an earlier low watermark; see `low_of`."""
        return self._way is ReadWay.GUARD

    def _open(
        self,
        definition: TableDefinition,
        *,
        transactional: bool,
        exact: bool,
        held: bool,
        low: LogWatermark | None,
        first: str,
    ) -> ReadView:
        if held or not transactional:
            return self._under_lock(definition)
        if exact and self._way is not ReadWay.COMMIT_ORDER:
            return self._guarded(definition, first)
        if self._way is ReadWay.COMMIT_ORDER:
            return self._in_commit_order()
        if self._way is ReadWay.GUARD:
            if low is None:
                raise AssertionError("a view needs a low watermark of before")
            return self._after(low, first)
        (gtids,) = query(self._connection, "SELECT @@global.gtid_executed")[0]
        return self._after(LogWatermark("", 0, str(gtids).replace("\n", "")), first)

    def _after(self, low: LogWatermark, first: str) -> ReadView:
        """Open a view. Its low watermark was read before; its high one is read after."""
        query(self._connection, _BEGIN)
        query(self._connection, first)
        return ReadView(low, log_end(self._connection), self._commit)

    def low_of(self, definition: TableDefinition) -> LogWatermark:
        """A low watermark for all views of the table that are opened from now on, by a guard's lock."""
        guard = self._guarding()
        self._lock(guard, definition)
        try:
            return log_end(guard)
        finally:
            self._unlock(guard)

    def _in_commit_order(self) -> ReadView:
        before = log_end(self._connection)
        prepared = prepared_xids(self._connection)
        query(self._connection, _OPEN)
        status = dict(query(self._connection, "SHOW STATUS LIKE 'binlog\\_snapshot\\_%'"))
        place = {str(name).lower(): value for name, value in status.items()}
        if not place.get("binlog_snapshot_file"):
            raise InputError("the server keeps no binary log: set `log_bin` and restart it")
        mark = LogWatermark(str(place["binlog_snapshot_file"]), int(place["binlog_snapshot_position"]))
        low = before if before.precedes(mark) else mark  # the log's end runs ahead of what is visible
        return ReadView(low, mark, self._commit, prepared)

    def _guarded(self, definition: TableDefinition, first: str) -> ReadView:
        guard = self._guarding()
        kind = self._lock(guard, definition)
        try:
            mark = log_end(guard)
            query(self._connection, _OPEN)
            if kind == "READ":  # under `WRITE` this read would wait, and no ALTER can copy the table
                query(self._connection, first)
        finally:
            self._unlock(guard)
        return ReadView(mark, mark, self._commit)

    def _guarding(self) -> pymysql.Connection:
        if self._guard is None:
            self._guard = self._make_guard()
        return self._guard

    def _under_lock(self, definition: TableDefinition) -> ReadView:
        self._lock(self._connection, definition)
        try:
            mark = log_end(self._connection)
        except BaseException:
            self._unlock(self._connection)
            raise
        return ReadView(mark, mark, lambda: self._unlock(self._connection))

    def _lock(self, connection: pymysql.Connection, definition: TableDefinition) -> str:
        """Take `LOCK TABLES t READ`, or `WRITE` if writers keep that waiting. Returns which."""
        for kind in ("READ", "WRITE"):
            query(connection, f"SET SESSION lock_wait_timeout = {max(self._lock_ms_max // 1000, 1)}")
            try:
                query(connection, f"LOCK TABLES {table_name(definition)} {kind}")
                return kind
            except pymysql.OperationalError as error:
                if error.args[0] in _DENIED:
                    raise InputError(
                        f"{definition.source}: a snapshot of it needs the privilege LOCK TABLES: GRANT LOCK TABLES ON "
                        f"{definition.database}.* to the user. It is locked because it has no key without NULLs, "
                        f"because its engine has no transactions, because the server has no GTIDs, or because of "
                        f"`lock_tables_without_key`. Then resume the source, or restart"
                    ) from error
                if error.args[0] not in _BUSY:
                    raise
        raise LockBusy(
            f"{definition.source}: LOCK TABLES was not had in {self._lock_ms_max} ms: a transaction that wrote the "
            f"table is open"
        )

    def _unlock(self, connection: pymysql.Connection) -> None:
        query(connection, "UNLOCK TABLES")

    def _commit(self) -> None:
        query(self._connection, "COMMIT")
