"""What the bus itself adds between two transactions of the log.

Begins and ends of snapshots, their chunks, gaps, and what a table is where the log shows it without a statement. None
of it is a function of the log. The session says what it saw in the log and how far it is, and asks for what belongs
there.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from databus.core import ChangeType, ConfigError, ControlKind, UnsupportedFeature, crash_point, name_parts
from databus.schema import TableSchema, frame_schema
from databus.sources._bus_frames import begin_body, bus_columns, end_body, gap_body
from databus.sources.mysql._captured_tables import CapturedTables
from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._ddl_controls import schema_body
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql._session_position import Gap, SessionPosition, as_one, held_entry
from databus.sources.mysql._unread_tables import KEY as UNREAD_KEY
from databus.sources.mysql._unread_tables import Asked, Unread
from databus.sources.mysql.snapshot import MysqlSnapshotReader, TableTask
from databus.sources.mysql.tables import Altered, Created, TableEvent
from databus.sources.snapshots import Placed, Progress, ReadingRestarted
from databus.wire import Group, OpenSnapshot, Rows

READ: Final = ("read",)
"""As the last key of an open snapshot: all of its rows are in the log, but not its end."""


class BusGroups:
    """Readings of tables and controls of the bus's own, for one session. One thread, but for `want`.

    reader: None where there is no server to read. Only methods that return groups, or hand them out, need a place
    between two transactions.
    """

    def __init__(
        self,
        physical: str,
        config: MysqlConfig | BinlogConfig,
        position: SessionPosition,
        tables: CapturedTables,
        history: HistoryKeeper,
        reader: MysqlSnapshotReader | None,
        unread: Unread,
    ) -> None:
        self._physical = physical
        self._config = config
        self._position = position
        self._tables = tables
        self._history = history
        self._reader = reader
        self._unread = unread
        self._tables_max = config.snapshot_tables_max if isinstance(config, MysqlConfig) else 1
        self._asked: deque[Asked] = deque()
        self._cancelled: deque[str] = deque()
        self._read: deque[str] = deque()  # tables read to the last row, of which the log does not say so yet
        self.advance()

    # What the session's caller wants

    def begin(self, names: Sequence[str], gap: Gap | None) -> list[Group]:
        """The session's first groups: that something was lost, and that these tables are being read."""
        names = [name for name in names if self._is_readable(name)]
        groups: list[Group] = []
        if gap is not None:
            for name in sorted(self._tables.in_force):
                is_read = name in names or name in self._tables.held
                body = gap_body(name, gap.from_scn, self._position.place.scn, gap.reason, is_read_again=is_read)
                groups.append(self._position.control(ControlKind.GAP, self._tables.in_force[name], body))
        for name in [name for name in names if self._task(name) is None]:  # dropped in what was lost
            names.remove(name)
            body = {"kind": ControlKind.DROP, "source": name}
            groups.append(self._position.control(ControlKind.DROP, self._tables.in_force.pop(name), body))
        for definition in self._retyped():
            groups.append(self._retype(definition))
            names += [] if definition.source in names else [definition.source]
        return groups + self.ask([Asked(name) for name in names])

    def _retyped(self) -> list[TableDefinition]:
        """The tables in which other columns come as text than before, since options have changed."""
        return [definition for definition in self._history.definitions() if self._tables.is_retyped(definition)]

    def _retype(self, definition: TableDefinition) -> Group:
        """The control for a table whose columns come in other types than before. It must be read again."""
        if self._config.on_class3 == "stop":
            raise ConfigError(
                f"{self._physical}: by `types` or `zero_dates` columns of {definition.source} come otherwise than its "
                f"rows in the log; set `on_class3: resnapshot` to have the table read again, or begin a new log"
            )
        known, table = self._tables.redefine(definition)
        return self._position.control(ControlKind.SCHEMA, table, schema_body(table, known, "", 3))

    def go_on_reading(self) -> None:
        """Continue the snapshots that were open in the log."""
        if self._reader is None:
            return
        retyped = {definition.source for definition in self._retyped()}  # `begin` begins them again
        for name, opened in list(self._position.snapshots.items()):
            if name in retyped:
                continue
            task = self._task(name)
            if task is None:
                self._position.snapshots.pop(name)
                continue
            if opened.last_key == READ:
                self._read.append(name)
            elif opened.last_key == ():  # the table is read as a whole, so there is no key to continue from
                self._asked.append(Asked(name, opened.where))
            else:
                self._reader.begin(task, opened.last_key, opened.order)

    def want(self, sources: Sequence[str], where: str | None) -> None:
        """Read these tables, or what `where` says of them, at the next place between two transactions. Any thread."""
        self._asked.extend(Asked(name, where) for name in sources)

    def want_no_more(self, sources: Sequence[str]) -> None:
        """Read these tables no further, from the next place between two transactions on. Any thread."""
        self._cancelled.extend(sources)

    @property
    def is_reading(self) -> bool:
        """Whether a table is being read or is to be."""
        return bool(self._position.snapshots or self._asked or self._unread or self._tables.held)

    @property
    def unread(self) -> Unread:
        """The tables that wait to be read."""
        return self._unread

    def with_waiting(self, group: Group) -> Group:
        """The group with a commit that says which tables wait, and which are held and will be read."""
        waiting, held = self._unread.position_entry(), held_entry(self._tables.held)
        if waiting is None and not held:
            return group
        unread = {} if waiting is None else {UNREAD_KEY: waiting}
        position = {**group.commit.position, **unread, **held}
        return replace(group, commit=replace(group.commit, position=position, has_unread=True))

    def progress(self) -> list[Progress]:
        """How far each table is that is being read."""
        return [] if self._reader is None else self._reader.progress()

    def close(self) -> None:
        """Close the reader."""
        if self._reader is not None:
            self._reader.close()

    # What was seen in the log

    def saw(self, group: Group) -> None:
        """Rows were logged: chunks must know their keys."""
        if self._reader is None:
            return
        for rows in group.rows:
            if self._reader.watches(rows.table.source):
                batch = rows.batch
                keys = [batch.column(name) for name in rows.table.key]
                self._reader.images(rows.table.source, batch.column("_commit_version").to_numpy(), keys)

    def saw_control(self, source: str, scn: int) -> None:
        """A table was truncated, dropped or altered."""
        if self._reader is not None:
            self._reader.control(source, scn)

    def advance(self) -> None:
        """Report to the reader how far the log was followed."""
        if self._reader is not None:
            self._reader.advance(self._position.place.scn, self._position.place.position)

    def redefine(self, events: Sequence[TableEvent]) -> None:
        """Continue to read tables by their new definitions, whatever controls consumers get of the change."""
        if self._reader is None:
            return
        for event in events:
            if isinstance(event, Altered | Created):
                self.read_on_as_it_is(event.after.source)

    def read_on_as_it_is(self, source: str) -> None:
        """Continue to read a table by its new definition, so that its rows have one schema."""
        if self._reader is not None and self._reader.watches(source):
            task = self._task(source)
            if task is not None:
                self._reader.redefine(task)

    def stop_reading(self, source: str) -> None:
        """The table is gone."""
        self._position.snapshots.pop(source, None)
        if self._reader is not None:
            self._reader.drop(source)

    # What has its place here

    def add(self) -> list[Group] | None:
        """Begin a snapshot that was asked for, or place a chunk, which may be empty; None if nothing is to be added."""
        if self._read or self._cancelled or self._asked or self._unread:
            groups = self._end_read() or self._end_cancelled() or self._begin_asked() or self._begin_unread()
            if groups:
                return as_one(groups, self._position.place.position)
        placed = None if self._reader is None else self._reader.take()
        if placed is None:
            return None
        if isinstance(placed, ReadingRestarted):
            # The reader has restarted by itself: only the log must say so.
            where = self._position.snapshots[placed.source].where
            return [self.begin_snapshot(placed.source, where, tells_reader=False)]
        return list(self._chunk(placed))

    def _end_read(self) -> list[Group]:
        groups: list[Group] = []
        while self._read:
            name = self._read.popleft()
            opened, table = self._position.snapshots.get(name), self._tables.in_force.get(name)
            if table is not None and opened is not None and opened.last_key == READ:  # else it was begun again
                groups.append(self._end(table))
        return groups

    def _end_cancelled(self) -> list[Group]:
        names = {self._cancelled.popleft() for _ in range(len(self._cancelled))}
        if not names:
            return []
        asked = [self._asked.popleft() for _ in range(len(self._asked))]
        self._asked.extendleft(reversed([request for request in asked if request.source not in names]))
        self._unread.remove(names)
        groups: list[Group] = []
        for name in sorted(names.intersection(self._position.snapshots)):
            if self._reader is not None:
                self._reader.drop(name)
            groups.append(self._end(self._tables.in_force[name], is_cancelled=True))
        return groups or [Group(self._position.commit())]  # so that the log says that they do not wait

    def _begin_asked(self) -> list[Group]:
        asked = dict(self._asked.popleft() for _ in range(len(self._asked)))
        if not asked:
            return []
        groups = self.ask([Asked(*entry) for entry in asked.items() if self._is_readable(entry[0])])
        return groups or [Group(self._position.commit())]  # so that the log says that they wait

    def _begin_unread(self) -> list[Group]:
        groups: list[Group] = []
        while self._unread and self._has_room():
            source, where = self._unread.take()
            if self._is_readable(source):
                groups.append(self.begin_snapshot(source, where))
        return groups

    def _is_readable(self, source: str) -> bool:
        """Whether the table still exists and is not held. A held one is read later, as a whole, whatever was asked."""
        return source in self._tables.in_force and source not in self._tables.held

    def _has_room(self) -> bool:
        if self._reader is None:
            return len(self._position.snapshots) < self._tables_max
        return self._reader.has_room(self._tables_max)

    def ask(self, asked: Sequence[Asked]) -> list[Group]:
        """Begin these snapshots, as far as there is room for them; the others wait, durably."""
        groups: list[Group] = []
        waiting: list[Asked] = []
        for request in asked:
            # A table's new snapshot takes the room of its open one; others are read in the order of asking.
            if request.source in self._position.snapshots or (not (self._unread or waiting) and self._has_room()):
                groups.append(self.begin_snapshot(*request))
            else:
                waiting.append(request)
        self._unread.add(waiting)
        return groups

    def begin_snapshot(self, source: str, where: str | None = None, *, tells_reader: bool = True) -> Group:
        """The begin of a snapshot, which replaces an open one of the table."""
        seq = self._position.next_seqs()
        self._position.snapshots[source] = OpenSnapshot(seq, None, (self._position.place.scn, seq), where)
        task = self._task(source)
        if tells_reader and self._reader is not None and task is not None:
            self._reader.begin(task)
        body = begin_body(source, seq)
        return self._position.control(ControlKind.SNAPSHOT_BEGIN, self._tables.in_force[source], body, seq)

    def refuse_class3(self, source: str) -> None:
        """Raise, before a control goes out, if a table whose data changed unseen may not be read again. So a session
        that begins here again stops here too.
        """
        if self._config.on_class3 == "stop":
            raise UnsupportedFeature(
                f"{self._physical}: the data of {source} changed in a way that the log does not show; set `on_class3: "
                f"resnapshot` to have the table read again"
            )

    def tell_class3(self, table: TableSchema, known: TableSchema | None) -> list[Group]:
        """The groups for a table that changed without a statement that consumers know: it is read again."""
        body = schema_body(table, known, "", 3)
        groups = [self._position.control(ControlKind.SCHEMA, table, body), *self.ask([Asked(table.source)])]
        return as_one(groups, self._position.place.position)

    def _task(self, source: str) -> TableTask | None:
        """What the reader must know of a table; None if there is no such table any more."""
        database, name = name_parts(source)
        definition = self._history.definition(database, name)
        table = self._tables.in_force.get(source)
        if definition is None or table is None:
            return None
        locks = isinstance(self._config, MysqlConfig) and self._config.lock_tables_without_key and not table.key
        return TableTask(definition, table, self._where(source), self._tables.policies(definition), locks)

    def _where(self, source: str) -> str | None:
        """The condition on the rows that a snapshot reads: the request's own, or the configuration's."""
        opened = self._position.snapshots.get(source)
        if opened is not None and opened.where is not None:
            return opened.where
        return self._config.where.get(source) if isinstance(self._config, MysqlConfig) else None

    def _chunk(self, placed: Placed) -> Iterator[Group]:
        """A chunk's rows, and the end of the reading if it was the last."""
        opened = self._position.snapshots[placed.source]
        last_key = READ if placed.is_last else placed.last_key
        self._position.snapshots[placed.source] = replace(opened, last_key=last_key, order=placed.order)
        if placed.rows:
            crash_point("mysql.snapshot.before_chunk")
            yield self._rows_group(placed)
        if placed.is_last:
            yield self._end(placed.table)

    def _end(self, table: TableSchema, *, is_cancelled: bool = False) -> Group:
        where = self._where(table.source)
        opened = self._position.snapshots.pop(table.source)
        body = end_body(table.source, opened, is_complete=where is None and not is_cancelled)
        body["as_configured"] = opened.where is None and not is_cancelled
        return self._position.control(ControlKind.SNAPSHOT_END, table, body)

    def _rows_group(self, placed: Placed) -> Group:
        first = self._position.next_seqs(placed.rows)
        place = self._position.place
        seqs = np.arange(first, first + placed.rows)
        columns = bus_columns(ChangeType.INSERT, place.scn, seqs, place.commit_us, place.txid, is_snapshot=True)
        batch = pa.RecordBatch.from_arrays([*placed.arrays, *columns], schema=frame_schema(placed.table))
        return Group(self._position.commit(), (Rows(placed.table, batch),), snapshot=True)
