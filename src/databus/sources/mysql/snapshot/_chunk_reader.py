"""ChunkReader: reads chunks on a connection of its own. One thread uses it; any may interrupt it."""

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

import pymysql

from databus.core import DatabusError, ServiceUnavailable, SourceChanged, TransientError
from databus.schema import TableSchema
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.rows import Policies
from databus.sources.mysql.server import close_quietly, server_error, socket_of
from databus.sources.mysql.snapshot._keys import KeyColumn, KeyRange, KeyValues, key_columns
from databus.sources.mysql.snapshot._queries import bounds_query, first_query, place_query, rows_query
from databus.sources.mysql.snapshot._read_session import Facts, facts_of, prepare
from databus.sources.mysql.snapshot._read_views import (
    LockBusy,
    LogWatermark,
    ReadView,
    ReadViews,
    log_end,
    query,
    way_of,
)
from databus.sources.mysql.snapshot._result_shape import Columns, ResultShape
from databus.sources.mysql.snapshot._results import PreparedStatement, RowReader
from databus.sources.snapshots import (
    ReadAbandoned,
    ReadChunk,
    SnapshotOptions,
    SnapshotReader,
    SnapshotReading,
    TableLocked,
)

_ALTERED: Final = frozenset({1049, 1051, 1054, 1146, 1176})  # no such database, table, column, index
_DEFINITION_CHANGED: Final = 1412
_DISCARDED: Final = 1814
_LOOKS_MAX: Final = 5  # at the server's clock, for two answers within one second
_WHO: Final = "SELECT @@hostname, @@port, @@server_id, UNIX_TIMESTAMP()"
_SPLIT_CHUNKS: Final = 16
_SPLIT_ROWS_MIN: Final = 4  # chunks that a table must have by the estimate


@dataclass(frozen=True, slots=True)
class TableTask:
    """A table to read."""

    definition: TableDefinition
    table: TableSchema
    """Its schema, without excluded columns."""
    where: str | None = None
    """A condition in SQL on the rows to read."""
    policies: Policies = field(default_factory=Policies)
    locks: bool = False
    """Read it under a lock. Only for a table without a key that is written too often to be read otherwise."""

    @property
    def source(self) -> str:
        """`db.table`."""
        return self.definition.source


class ReadableTable:
    """See `databus.sources.snapshots.Readable`. facts: what the server says about the table, once it was asked."""

    def __init__(self, task: TableTask) -> None:
        self.task = task
        self.shape = ResultShape(task.definition, task.table, key_columns(task.definition), task.policies)
        self.facts: Facts | None = None

    def unasked(self) -> "ReadableTable":
        """The same table, without facts."""
        return ReadableTable(self.task)

    def learn(self, facts: Facts) -> None:
        """What the server says about the table."""
        self.facts = facts
        if not facts.index:
            self.shape = ResultShape(self.task.definition, self.task.table, (), self.task.policies)

    @property
    def key(self) -> Sequence[KeyColumn]:
        """Its key's columns."""
        return self.shape.key

    @property
    def is_whole(self) -> bool:
        """Whether its rows cannot be read in a key's order."""
        return self.facts is not None and not self.facts.index

    @property
    def index(self) -> str:
        """The index to read it by; empty if there is none, or the server was not asked yet."""
        return "" if self.facts is None else self.facts.index

    @property
    def rows_estimate(self) -> int | None:
        """The server's own, which may be far off."""
        return None if self.facts is None else self.facts.rows_estimate

    def everything(self) -> KeyRange:
        """From the table's beginning to its end."""
        return KeyRange()

    def part_of(self, value: object) -> KeyRange:
        """Read what `json_of` wrote. Raises `CorruptData`."""
        return KeyRange.from_json(self.shape.key, value)

    def json_of(self, part: KeyRange) -> object:
        """The keys between which it is."""
        return part.to_json()


class MysqlChunkReader:
    """Reads chunks for `host`, each in a read view of its own."""

    def __init__(
        self,
        connect: Callable[[], pymysql.Connection],
        options: SnapshotOptions,
        host: SnapshotReader[ReadableTable],
    ) -> None:
        self._connect = connect
        self._options = options
        self._host = host
        self._connection: pymysql.Connection | None = None
        self._guard: pymysql.Connection | None = None
        self._views: ReadViews | None = None
        self._charsets: dict[int, str] = {}
        self._identity: tuple[Any, ...] = ()  # of the server that it reads

    def read(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk) -> None:
        """Read a chunk and hand it over.

        Raises `TransientError` or OSError where waiting may help: then `drop` it first.
        """
        try:
            self._read(reading, chunk)
        except pymysql.MySQLError as error:
            raise server_error(error, f"reading {chunk.source}") from error

    def _read(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk) -> None:
        connection, views = self._session()
        try:
            if chunk.table.facts is None:
                facts = facts_of(connection, chunk.table.task.definition)
                with self._host.changed:
                    if chunk.table.facts is None:  # else another thread has asked meanwhile: keep its answer
                        chunk.table.learn(facts)
            if chunk.table.is_whole:
                self._read_whole(reading, chunk, connection, views)
            else:
                if self._host.somebody_idles:
                    self._split(reading, chunk, connection)
                self._read_part(reading, chunk, connection, views)
        except TransientError:
            raise
        except DatabusError as error:
            self._leave_to_the_log(reading, chunk, error)
        except pymysql.MySQLError as error:
            reason = _error_of(error, chunk.source)
            if isinstance(reason, TransientError):
                raise reason from error
            self._leave_to_the_log(reading, chunk, reason)

    def interrupt(self) -> None:
        """Let whatever it waits for fail at once. Any thread may call this."""
        for connection in (self._connection, self._guard):
            if connection is not None:
                with suppress(OSError, ServiceUnavailable):
                    socket_of(connection).shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Close the connections, and kill their sessions: the server would notice the end only when it sends something.

        Not after a restart, nor on another server at that address: there, the numbers are other clients' sessions.
        """
        numbers = [
            _inside(connection).thread_id() for connection in (self._connection, self._guard) if connection is not None
        ]
        self.drop()
        if numbers:
            with suppress(pymysql.MySQLError, OSError, DatabusError):
                connection = self._connect()
                for number in numbers if _identity(connection) == self._identity else ():
                    with suppress(pymysql.MySQLError):
                        _inside(connection).kill(number)
                connection.close()

    def drop(self) -> None:
        """Close the connections, whatever state they are in."""
        for connection in (self._connection, self._guard):
            close_quietly(connection)
        self._connection = self._guard = self._views = None

    def _session(self) -> tuple[pymysql.Connection, ReadViews]:
        if self._connection is None or self._views is None:
            self._connection = connection = self._connect()
            if self._host.is_closed:
                raise ServiceUnavailable("it is closed")
            self._identity = _identity(connection)
            self._charsets = prepare(connection)
            self._views = ReadViews(connection, way_of(connection), self._make_guard, self._options.lock_ms_max)
        return self._connection, self._views

    def _make_guard(self) -> pymysql.Connection:
        self._guard = self._connect()
        prepare(self._guard)
        return self._guard

    def _open(
        self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk, views: ReadViews, *, exact: bool
    ) -> ReadView:
        table = chunk.table
        is_transactional = table.facts is not None and table.facts.is_transactional
        floor, low = self._host.position, None
        if views.need_low and is_transactional and not exact:
            low = self._base(reading, chunk, views)
            floor = None
        view = views.open(
            table.task.definition,
            floor,
            transactional=is_transactional,
            exact=exact,
            held=exact and table.task.locks,
            low=low,
            first=first_query(table.task.definition, table.shape.key, table.index, chunk.part),
        )
        with self._host.changed:
            chunk.low, chunk.high, chunk.prepared = view.low, view.high, view.prepared
            chunk.is_held = exact and table.task.locks
        return view

    def _base(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk, views: ReadViews) -> LogWatermark:
        """The low watermark that the table's chunks share; a new one once many keys have been changed since."""
        base = reading.base
        if base is not None and base.low is not None and not self._host.holds_many(reading.source):
            return cast("LogWatermark", base.low)
        scn = self._host.scn
        try:
            low = views.low_of(chunk.table.task.definition)
        except LockBusy:
            if base is None or base.low is None:
                raise
            return cast("LogWatermark", base.low)
        with self._host.changed:
            reading.set_base(chunk, low, scn)
        return low

    def _read_part(
        self,
        reading: SnapshotReading[ReadableTable],
        chunk: ReadChunk,
        connection: pymysql.Connection,
        views: ReadViews,
    ) -> None:
        view = self._open(reading, chunk, views, exact=False)
        part, rows_max, shape = chunk.part, reading.rows_max, chunk.table.shape
        # A condition may fit few rows: the part is bounded by rows of the table, not by rows that fit.
        if chunk.table.task.where and (place := self._ask_place(chunk.table, connection, part, rows_max)) is not None:
            part = KeyRange(part.after, place)
        statement = self._rows_of(chunk.table, connection, part, rows_max)
        shape.check(statement.columns)
        self._host.check_order(reading, chunk, shape.order(statement.columns))
        where = f"a chunk of {chunk.source} after key {part.after}"
        columns = Columns(shape, rows_max + 1)
        rows = RowReader.of(connection, self._options.row_bytes_max, where)
        last = rows.take(columns, self._options.chunk_bytes_max, shape.key)
        if rows.has_ended:
            statement.close()
            view.close()
        else:
            self.drop()  # the limit in bytes was reached; no query can follow before the result's end
        # More rows may follow: this chunk ends at the last row read, and the rest becomes a part of its own.
        if last is not None and (not rows.has_ended or (columns.rows >= rows_max and not chunk.table.task.where)):
            part = KeyRange(part.after, last)
        self._finish(chunk, columns, rows.bytes, where)
        with self._host.changed:
            if reading.owns(chunk) and part.upto != chunk.part.upto:
                reading.todo.appendleft(KeyRange(part.upto, chunk.part.upto))
                chunk.part = part
        self._host.read(reading, chunk)

    def _rows_of(
        self, table: ReadableTable, connection: pymysql.Connection, part: KeyRange, rows_max: int | None
    ) -> PreparedStatement:
        task = table.task
        names = [column.name for column in table.shape.columns]
        sql = rows_query(task.definition, names, table.shape.key, table.index, part, task.where, rows_max)
        return PreparedStatement(connection, sql, self._charsets)

    def _finish(self, chunk: ReadChunk, columns: Columns, size: int, where: str) -> None:
        chunk.arrays = columns.arrays(where)
        chunk.rows = columns.rows
        chunk.bytes = size

    def _ask_place(
        self, table: ReadableTable, connection: pymysql.Connection, part: KeyRange, rows: int
    ) -> KeyValues | None:
        sql = place_query(table.task.definition, table.shape.key, table.index, part, rows)
        return PreparedStatement(connection, sql, self._charsets).one_place(table.shape.key)

    def _split(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk, connection: pymysql.Connection) -> None:
        """Leave a part of the range to an idle thread."""
        estimate = chunk.table.rows_estimate
        if estimate is not None and estimate - reading.rows < _SPLIT_ROWS_MIN * reading.rows_max:
            return
        place = self._middle(chunk, connection, reading.rows_max)
        if place is None:
            return
        with self._host.changed:
            if reading.owns(chunk):
                reading.todo.append(KeyRange(place, chunk.part.upto))
                chunk.part = KeyRange(chunk.part.after, place)
                self._host.changed.notify_all()

    def _middle(self, chunk: ReadChunk, connection: pymysql.Connection, rows_max: int) -> KeyValues | None:
        """A place inside the range: halfway by number where keys are numbers, else some chunks ahead."""
        key, part = chunk.table.shape.key, chunk.part
        first = key[0]
        if first.is_plain_number and len(key) == 1:
            ((low, high),) = query(connection, bounds_query(chunk.table.task.definition, first, part))
            if low is not None and int(high) - int(low) > 2 * rows_max:
                return ((int(low) + int(high)) // 2,)
            return None
        return self._ask_place(chunk.table, connection, part, _SPLIT_CHUNKS * rows_max)

    def _read_whole(
        self,
        reading: SnapshotReading[ReadableTable],
        chunk: ReadChunk,
        connection: pymysql.Connection,
        views: ReadViews,
    ) -> None:
        """The whole table in one view; its parts are handed over as they come."""
        self._host.check_order(reading, chunk, ())
        view = self._open(reading, chunk, views, exact=not chunk.table.task.table.key)
        statement = self._rows_of(chunk.table, connection, chunk.part, None)
        where = f"{chunk.source}, read as a whole"
        rows = RowReader.of(connection, self._options.row_bytes_max, where)
        chunk.table.shape.check(statement.columns)
        begun = 0
        while True:
            columns = Columns(chunk.table.shape, reading.rows_max)
            rows.take(columns, self._options.chunk_bytes_max)
            chunk.is_part = not rows.has_ended
            self._finish(chunk, columns, rows.bytes - begun, where)
            begun = rows.bytes
            if not chunk.is_part:
                statement.close()
                self._confirm(reading, chunk, connection)
            following = replace(chunk, arrays=[], rows=0, bytes=0, is_read=False)
            with self._host.changed:
                if chunk.is_part and reading.owns(chunk):
                    reading.add_part(following)
            self._host.read(reading, chunk)
            if not chunk.is_part:
                break
            chunk = following
            self._wait_for_room(reading, chunk)
        self._wait_until_placed(reading, chunk)
        view.close()

    def _wait_for_room(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk) -> None:
        with self._host.changed:
            while self._host.is_full and reading.owns(chunk) and not self._host.is_closed:
                self._host.changed.wait()
            if not reading.owns(chunk) or self._host.is_closed:
                raise ReadAbandoned(f"{chunk.source} is read again")

    def _confirm(
        self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk, connection: pymysql.Connection
    ) -> None:
        """Under a lock, the rows that were read contain everything that the log shows by now, if the lock still holds:
        the connection answers, so it does.
        """
        if not chunk.is_held:
            return
        with self._host.changed:
            while not self._is_followed(chunk) and reading.owns(chunk) and not self._host.is_closed:
                self._host.changed.wait()
            scn = self._host.scn
        log_end(connection)
        with self._host.changed:
            chunk.after, chunk.is_passed = scn, True

    def _is_followed(self, chunk: ReadChunk) -> bool:
        position = self._host.position
        return position is not None and chunk.high is not None and chunk.high.is_in(position)

    def _wait_until_placed(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk) -> None:
        """Keep the lock until the table's last row has its place in the log, so that no write comes before."""
        with self._host.changed:
            while chunk.table.task.locks and reading.owns(chunk) and not self._host.is_closed:
                self._host.changed.wait()

    def _leave_to_the_log(self, reading: SnapshotReading[ReadableTable], chunk: ReadChunk, error: DatabusError) -> None:
        """The table may have been altered: if the log shows that, all is well; if it does not, the error is raised.

        The change may have come after the view was opened, so the log is followed to its present end.
        """
        if chunk.low is not None:
            self.drop()  # the connection may be in the middle of a result
        connection, _ = self._session()
        end = log_end(connection)
        with self._host.changed:
            chunk.low, chunk.high, chunk.error = chunk.low or end, end, error
        self._host.read(reading, chunk)


def _error_of(error: pymysql.MySQLError, source: str) -> DatabusError:
    """The error of a server that cannot read a table, as databus's."""
    match error.args[0]:
        case code if code == _DEFINITION_CHANGED:
            return ServiceUnavailable(f"{source}: it was altered while it was read")
        case code if code == _DISCARDED:  # what is imported in its place is read, and the log says when
            return TableLocked("its tablespace is discarded (ALTER TABLE ... DISCARD TABLESPACE)")
        case code if code in _ALTERED:
            return SourceChanged(f"{source}: {error.args[1]}")
        case _:
            return server_error(error, f"reading {source}")


def _identity(connection: pymysql.Connection) -> tuple[Any, ...]:
    """Which server this is, and when it was started, by its own clock. The same, however that clock is set meanwhile.

    A server that takes a second for each answer may seem to be another one; then its sessions are not killed.
    """
    (identity,) = query(connection, _WHO)
    for _ in range(_LOOKS_MAX):
        ((_, uptime_s),) = query(connection, "SHOW GLOBAL STATUS LIKE 'Uptime'")
        before, (identity,) = identity, query(connection, _WHO)
        if identity == before:  # else the clock has moved on by a second in between: the difference may be one off
            break
    *names, now_s = identity
    return (*names, (int(now_s) - int(uptime_s)) % (1 << 64))  # set back to before the start, the uptime is negative


def _inside(connection: pymysql.Connection) -> Any:
    """The connection, for PyMySQL's methods that have no types."""
    return connection
