"""A session: capture from `start` to `close`.

Each look at the database ends in one of these, first come first served: the controls of the window just ended, the next
windows or the rest of one, the end of a reading, the chunk that was read at the cut just reached, the begin of a
reading, a new cut. What it yields is written down in the database (cuts, controls, tables to read again), so that a
session that starts where another was killed yields the same.
"""

import json
import sqlite3
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from databus.core import (
    ChangeType,
    Clock,
    ControlKind,
    UnsupportedFeature,
    crash_point,
    make_scn,
    next_bus_seq,
)
from databus.log import Resume
from databus.schema import TableSchema, frame_schema
from databus.sources._bus_frames import begin_body, bus_columns, end_body
from databus.sources._contract import SourceLag
from databus.sources.sqlite._backlog import Backlog, Stretch, position_of
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._cuts import connect, cut_if_changed, is_busy, trim_step, write_lock
from databus.sources.sqlite._snapshot import SnapshotChunk, read_chunk
from databus.sources.sqlite._store import (
    Cut,
    TableVersion,
    check_cut,
    get_state,
    last_change,
    last_cut,
    live_versions,
    read_version,
    schema_version,
    want_no_snapshot,
    want_snapshot,
    wanted,
)
from databus.sources.sqlite._tables import OWN_PREFIX
from databus.sources.sqlite._watch import FileWatch
from databus.wire import Commit, Control, Group, OpenSnapshot, Rows


class SqliteSession:
    """Capture from `start` to `close`: the state that one start makes."""

    def __init__(
        self,
        physical: str,
        db: sqlite3.Connection,
        config: SqliteConfig,
        clock: Clock,
        resume: Resume,
        cut: Cut,
        generation: int,
    ) -> None:
        self._physical = physical
        self._db = db
        self._config = config
        self._clock = clock
        self._timeline = resume.timeline
        self._cut = cut  # all its rows have been yielded
        self._seq = resume.seq  # the last one yielded at it
        self._generation = generation
        self._reader = connect(config.path, busy_ms_max=config.busy_ms_max)
        self._backlog = Backlog(self._reader, config, resume.timeline, cut)
        self._backlog.extend()
        self._events = self._events_after(self._seq)
        self._wanted = wanted(db)
        self._snapshots = {
            name: snapshot
            for name, snapshot in resume.snapshots.items()
            if self._wanted.get(name) == snapshot.generation
        }
        self._chunk: SnapshotChunk | None = None
        self._ending: str | None = None
        self._cut_short: str | None = None  # read no further, of which the log does not say so yet
        self._is_new = resume.position is None
        self._live = live_versions(db)
        self._seen = -1
        self._cut_due_s = 0.0
        self._noticed_s: float | None = None
        self._trimmed = (0, 0)
        self._trim_due_s = 0.0
        self.durable: dict[str, Any] | None = None
        pa.array([0])  # the first one of a process imports pandas where it is installed; not at the first change
        self.watch = FileWatch(f"{config.path}-wal", config.poll_ms)

    @property
    def sources(self) -> Mapping[str, TableVersion]:
        """The captured tables."""
        return self._live

    def want(self, asked: deque[str]) -> None:
        """Note the tables that were asked for, so that they are read even if we are killed."""
        if not asked:
            return
        names = list(asked)
        try:
            with write_lock(self._db, self._config.busy_ms_max):
                for name in names:
                    want_snapshot(self._db, name)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return  # asked again at the next poll
        for _ in names:
            asked.popleft()
        self._wanted = wanted(self._db)

    def want_no_more(self, cancelled: deque[str]) -> None:
        """Read these tables no further: one that waits is forgotten, one that is being read ends as it is."""
        if not cancelled:
            return
        names = [name for name in cancelled if name in self._wanted and self._wanted[name] > self._generation]
        is_read = [name for name in names if self._is_open(name)]
        try:
            with write_lock(self._db, self._config.busy_ms_max):
                for name in names:
                    if name not in is_read:  # else it is forgotten when its end is durable
                        want_no_snapshot(self._db, name)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return  # asked again at the next poll
        cancelled.clear()
        self._wanted = wanted(self._db)
        for name in is_read:
            if self._ending != name:  # else its last rows are out, and its end comes next
                self._cut_short, self._chunk = name, None

    def next_group(self) -> Group | None:
        """What comes next, if anything waits."""
        if self._is_new:  # a commit alone, so that the log has a position from the first moment on
            self._is_new = False
            return Group(self._commit())
        group = None
        while group is None:
            if self._events:
                group = self._control(*self._events.popleft())
            elif not self._backlog.is_empty:
                group = self._window(self._take())
            elif self._cut_short is not None:
                group = self._end_snapshot(self._cut_short, is_complete=False)
            elif self._ending is not None:
                group = self._end_snapshot(self._ending)
            elif self._chunk is not None:
                group = self._snapshot_rows(self._chunk)
            elif (target := self._target()) is not None and not self._is_open(target):
                group = self._begin_snapshot(target)
            elif not self._look(target):
                return None
        return group

    def wait(self, deadline: float) -> None:
        """Wait until looking again is worth it."""
        self.watch.wait(min(deadline, max(self._cut_due_s, time.monotonic())) if self._noticed_s else deadline)

    def lag(self) -> SourceLag:
        """How far behind."""
        waiting = last_change(self._reader) - self._backlog.done
        if self._noticed_s is not None:
            return SourceLag((time.monotonic() - self._noticed_s) * 1000, waiting)
        return SourceLag(None if waiting else 0.0, waiting)  # while capture is paused, when they came is unknown

    def close(self) -> None:
        """Let go of the reader and the watch."""
        self.watch.close()
        with suppress(sqlite3.Error):
            self._reader.close()

    def _target(self) -> str | None:
        """The table to be read next."""
        return next((name for name, generation in self._wanted.items() if generation > self._generation), None)

    def _is_open(self, name: str) -> bool:
        """Whether the reading that is wanted of a table has begun; an older one that it supersedes does not count."""
        return name in self._snapshots and self._snapshots[name].generation == self._wanted[name]

    def _look(self, target: str | None) -> bool:
        """Cut if something was written, and read the next chunk of `target` at the cut. Returns whether to go on."""
        (version,) = self._db.execute("PRAGMA main.data_version").fetchone()
        if version == self._seen and target is None and self._noticed_s is None:
            return False
        if target is None and not self._has_news():
            self._seen, self._noticed_s = version, None
            return False
        now = time.monotonic()
        if self._noticed_s is None:
            self._noticed_s = now
        if target is None and now < self._cut_due_s:
            return False
        try:
            under_lock = None if target is None else self._open_reader
            cut_if_changed(self._db, self._config, known=self._backlog.newest, under_lock=under_lock)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            self._cut_due_s = now + self._config.cut_interval_ms / 1000
            self._close_reader()
            return False
        self._seen, self._noticed_s = version, None
        self._cut_due_s = time.monotonic() + self._config.cut_interval_ms / 1000
        self._live, self._wanted = live_versions(self._db), wanted(self._db)
        if target is not None:
            self._read_chunk(target)
        self._backlog.extend()
        return True

    def _has_news(self) -> bool:
        newest = last_cut(self._db)
        return (
            newest is None
            or newest != self._backlog.newest
            or last_change(self._db) != newest.change_id
            or get_state(self._db, "schema_version") != str(schema_version(self._db))
        )

    def _take(self) -> Stretch:
        """The next stretch, read from the very database that has its cuts."""
        self._open_reader()
        try:
            check_cut(self._reader, self._backlog.newest)
            return self._backlog.take()
        finally:
            self._close_reader()

    def _open_reader(self) -> None:
        """Fix what the reader sees; a deferred transaction begins at its first read."""
        self._reader.execute("BEGIN")
        self._reader.execute("SELECT 1 FROM main.sqlite_schema").fetchone()

    def _close_reader(self) -> None:
        if self._reader.in_transaction:
            self._reader.execute("COMMIT")

    def _read_chunk(self, target: str) -> None:
        try:
            version, snapshot = self._live.get(target), self._snapshots[target]
            if version is None or self._wanted.get(target) != snapshot.generation:
                return  # dropped, or changed in a way that has it read from its beginning
            cut = last_cut(self._db)
            assert cut is not None  # noqa: S101 - a session begins at one, and the last is never trimmed
            self._chunk = read_chunk(self._reader, self._config, version, snapshot, cut)
        finally:
            self._close_reader()
        if self._chunk is None:
            self.want(deque([target]))

    def _window(self, stretch: Stretch) -> Group | None:
        if stretch.continues:
            position = position_of(self._cut, self._generation)
            cut = stretch.cut
            scn = make_scn(self._timeline, cut.id)
            commit = Commit(scn, stretch.seq, cut.token, position, cut.time_us, dict(self._snapshots), continues=True)
            return Group(commit, stretch.rows)
        self._cut, self._seq = stretch.cut, stretch.seq
        self._events = self._events_after(0)
        if self._events and not stretch.rows:
            return None  # the first control's group says all
        return Group(self._commit(), stretch.rows)

    def _commit(self) -> Commit:
        cut = self._cut
        scn = make_scn(self._timeline, cut.id)
        position = position_of(cut, self._generation)
        return Commit(scn, self._seq, cut.token, position, cut.time_us, dict(self._snapshots))

    def _events_after(self, seq: int) -> deque[tuple[int, ControlKind, int, dict[str, Any]]]:
        rows = self._db.execute(
            f"SELECT seq, kind, t, body FROM {OWN_PREFIX}event WHERE cut = ? AND seq > ? ORDER BY seq",
            (self._cut.id, seq),
        )
        return deque((seq, ControlKind(kind), t, json.loads(body)) for seq, kind, t, body in rows)

    def _control(self, seq: int, kind: ControlKind, t: int, body: dict[str, Any]) -> Group:
        version = read_version(self._db, t)
        is_read_again = kind is ControlKind.GAP or (kind is ControlKind.SCHEMA and body["class"] == 3)
        if is_read_again and self._config.on_class3 == "stop":
            self._events.appendleft((seq, kind, t, body))
            raise UnsupportedFeature(
                f"{self._physical}: {version.source} changed in a way that its change rows do not show "
                f"({body.get('ddl') or body.get('reason') or 'the change was made elsewhere'}); set "
                f"`on_class3: resnapshot` to have the table read again"
            )
        if kind is ControlKind.GAP:
            for name in ("from", "to"):
                body[name] = make_scn(self._timeline, body[name])
        if is_read_again or kind is ControlKind.DROP:
            self._snapshots.pop(version.source, None)
        self._seq = seq
        return Group(
            self._commit(), (), Control(kind, version.table, make_scn(self._timeline, self._cut.id), seq, body)
        )

    def _bus_control(self, kind: ControlKind, table: TableSchema, body: Mapping[str, Any]) -> Group:
        """A control that goes with a reading: it is not a function of the database, so it is served after fsync."""
        control = Control(kind, table, make_scn(self._timeline, self._cut.id), self._seq, body)
        return Group(self._commit(), (), control, snapshot=True)

    def _begin_snapshot(self, name: str) -> Group:
        self._seq = next_bus_seq(self._seq, self._clock.now_ns())
        begin = (make_scn(self._timeline, self._cut.id), self._seq)
        self._snapshots[name] = OpenSnapshot(self._wanted[name], None, begin)
        body = begin_body(name, self._wanted[name])
        return self._bus_control(ControlKind.SNAPSHOT_BEGIN, self._live[name].table, body)

    def _snapshot_rows(self, chunk: SnapshotChunk) -> Group | None:
        self._chunk = None
        name = chunk.version.source
        if self._wanted.get(name) != chunk.generation:
            return None  # a control at its cut requested the table again
        opened = self._snapshots[name]
        if chunk.is_last:
            self._ending = name
        if chunk.rows == 0:
            return self._end_snapshot(name)
        seqs = next_bus_seq(self._seq, self._clock.now_ns()) + np.arange(chunk.rows, dtype=np.int64)
        self._seq = int(seqs[-1])
        self._snapshots[name] = replace(opened, last_key=chunk.last_key, order=chunk.order)
        commit = self._commit()
        bus = bus_columns(ChangeType.INSERT, commit.scn, seqs, commit.commit_us, commit.txid, is_snapshot=True)
        table = chunk.version.table
        rows = Rows(table, pa.RecordBatch.from_arrays([*chunk.arrays, *bus], schema=frame_schema(table)))
        crash_point("sqlite.snapshot.after_chunk")
        return Group(commit, (rows,), snapshot=True)

    def _end_snapshot(self, name: str, *, is_complete: bool = True) -> Group | None:
        self._ending = self._cut_short = None
        opened = self._snapshots.pop(name, None)
        if opened is None:
            return None  # superseded after its last rows
        self._generation = opened.generation
        self._seq = next_bus_seq(self._seq, self._clock.now_ns())
        body = end_body(name, opened, is_complete=is_complete)
        return self._bus_control(ControlKind.SNAPSHOT_END, self._live[name].table, body)

    def trim(self) -> None:
        """One bounded step of trimming, where enough is safe in the log or a second has passed."""
        if self.durable is None:
            return
        cut_id, generation = int(self.durable["cut"]), int(self.durable["generation"])
        now = time.monotonic()
        if (cut_id, generation) == self._trimmed or now < self._trim_due_s:
            return
        cut = Cut(cut_id, str(self.durable["token"]), int(self.durable["change"]), 0)
        try:
            more = trim_step(self._db, self._config, cut, generation)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return
        if not more:
            self._trimmed = (cut_id, generation)
            self._trim_due_s = now + self._config.trim_interval_ms / 1000
