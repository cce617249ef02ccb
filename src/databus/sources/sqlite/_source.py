"""The SQLite source: what a relay calls. See `databus.sources._contract` for the order of calls.

Each look at the database ends in one of these, first come first served: the rest of a window that is larger than a
group, the controls of the window just ended, the next windows, the chunk that was read at the cut just reached, a new
cut. What it yields is written down in the database (cuts, controls, what is to be read anew), so that a source that
starts where this one was killed yields the same.
"""

import json
import sqlite3
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from databus.core import (
    ChangeType,
    Clock,
    ControlKind,
    Held,
    PositionPurged,
    SourceChanged,
    SystemClock,
    Unavailable,
    UnknownSource,
    Unsupported,
    crash_point,
    make_scn,
    next_bus_seq,
    ordinal_of,
)
from databus.schema import TableSchema, frame_schema
from databus.sources._contract import Identity, Resume, SourceLag
from databus.sources.sqlite._backlog import Backlog, Stretch, bus_columns, position_of
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._cuts import add_cut, connect, cut_if_changed, is_busy, trim_step, write_lock
from databus.sources.sqlite._describe import describe
from databus.sources.sqlite._install import ensure_wal, install_tables, selection_text, stored_config
from databus.sources.sqlite._renew import Since, recast, renew
from databus.sources.sqlite._snapshot import Chunk, read_chunk
from databus.sources.sqlite._store import (
    Cut,
    Event,
    Version,
    get_state,
    last_change,
    last_cut,
    live_versions,
    read_version,
    schema_version,
    set_state,
    want_snapshot,
    wanted,
)
from databus.sources.sqlite._tables import OWN_PREFIX, list_tables, read_shape
from databus.sources.sqlite._watch import FileWatch
from databus.wire import Commit, Control, Group, OpenSnapshot, Rows

_TRIM_INTERVAL_S = 1.0


class SqliteSource:
    """Changes of one SQLite database, cut into windows; its tables' rows first."""

    config_model: ClassVar = SqliteConfig

    def __init__(self, physical: str, config: SqliteConfig, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config = config
        self._clock = clock or SystemClock()
        self._db: sqlite3.Connection | None = None
        self._session: _Session | None = None
        self._asked: deque[str] = deque()

    def identify(self) -> Identity:
        """See `Source.identify`. Puts the bus's tables into the database if they are not there."""
        db = self._connected()
        uuid = get_state(db, "uuid") or ""
        return Identity(uuid, "cut", self._config.path)

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`."""
        db = self._connected()
        names = [n for n, kind in list_tables(db).items() if kind == "table" and self._config.selects(f"main.{n}")]
        return [describe(self._config, read_shape(db, name)).table for name in names]

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        db = self._connected()
        try:
            cut, generation = _begin(self.physical, db, self._config, resume, self._clock)
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        self._session = _Session(self.physical, db, self._config, self._clock, resume, cut, generation)

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        session = self._started()
        deadline = time.monotonic() + wait_ms / 1000
        try:
            while True:
                session.want(self._asked)
                group = session.next_group()
                if group is not None:
                    return group
                session.trim()
                if time.monotonic() >= deadline:
                    return None
                session.wait(deadline)
        except sqlite3.Error as error:
            raise self._unavailable(error) from error

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`. What lies before is trimmed at later polls, a bounded step at a time."""
        self._started().durable = dict(position)

    def request_snapshot(self, sources: Sequence[str]) -> None:
        """See `Source.request_snapshot`."""
        session = self._started()
        for name in sources:
            if name not in session.sources:
                known = ", ".join(sorted(session.sources))
                raise UnknownSource(f"{self.physical}: no captured table {name!r} to read; there are {known}")
        self._asked.extend(sources)
        session.watch.wake()

    def lag(self) -> SourceLag:
        """See `Source.lag`. How old a change is, is known from the moment that it was noticed."""
        return SourceLag() if self._session is None else self._session.lag()

    def close(self) -> None:
        """See `Source.close`."""
        if self._session is not None:
            self._session.close()
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
        self._session, self._db = None, None

    def _connected(self) -> sqlite3.Connection:
        if self._db is None:
            db = connect(self._config.path, busy_ms_max=self._config.busy_ms_max)
            try:
                ensure_wal(db, self._config.path, set_wal=self._config.set_wal)
                install_tables(db)
            except sqlite3.Error as error:
                db.close()
                raise self._unavailable(error) from error
            except BaseException:
                db.close()
                raise
            self._db = db
        return self._db

    def _started(self) -> "_Session":
        if self._session is None:
            raise Unavailable(f"{self.physical}: the source is not started; the capture loop starts it anew")
        return self._session

    def _unavailable(self, error: sqlite3.Error) -> Unavailable:
        return Unavailable(f"{self.physical} ({self._config.path}): SQLite says: {error}; capture tries again")


def _begin(
    physical: str, db: sqlite3.Connection, config: SqliteConfig, resume: Resume, clock: Clock
) -> tuple[Cut, int]:
    """Claim the database for this log, find the cut to go on from, and bring the triggers up to date."""
    with write_lock(db, config.busy_ms_max):
        is_new = _claim(physical, db, config, resume.log_id)
        if resume.position is not None:
            cut = _cut_at(physical, config, db, resume)
            generation = int(resume.position.get("generation", 0))
            for event in recast(db, config, stored_config(db, config.path), cut.change_id):
                _add_late_event(db, cut, resume.seq, event, clock)
        else:
            cut, generation = _first_cut(db, config, is_new=is_new), 0
        changed = get_state(db, "selection") != selection_text(config)
        set_state(db, "selection", selection_text(config))
    cut_if_changed(db, config, renew_anyway=changed)
    return cut, generation


def _claim(physical: str, db: sqlite3.Connection, config: SqliteConfig, log_id: str) -> bool:
    """Record which log captures this database. Returns whether it was none. Raises `Held`."""
    holder = get_state(db, "log") or ""
    if not holder:
        set_state(db, "log", log_id)
        return True
    if holder.split()[0] != (log_id.split() or [""])[0]:
        raise Held(
            f"{physical}: {config.path} is captured into log {holder}, this is log {log_id or '(without a name)'}; one "
            f"relay per database, since it trims what it has. Stop the other one for good and run "
            f"`databus sqlite install {config.path} --take-over`, or follow that relay"
        )
    return False


def _cut_at(physical: str, config: SqliteConfig, db: sqlite3.Connection, resume: Resume) -> Cut:
    """The cut where the log ends. Raises `SourceChanged` or `PositionPurged` if this database does not have it."""
    ordinal = ordinal_of(resume.scn)
    row = db.execute(f"SELECT id, token, change_id, time_us FROM {OWN_PREFIX}cut WHERE id = ?", (ordinal,)).fetchone()
    if row is not None and row[1] == resume.txid:
        return Cut(*row)
    (oldest,) = db.execute(f"SELECT min(id) FROM {OWN_PREFIX}cut").fetchone()
    mend = "Restore the file that belongs to the log, or capture this one into a new log"
    if row is None and oldest is not None and oldest > ordinal:
        raise PositionPurged(
            f"{physical}: {config.path} has trimmed cut {ordinal}, where the log ends; its oldest is {oldest}. The log "
            f"is older than one that was captured since. {mend}"
        )
    found = "has no such cut" if row is None else f"has token {row[1]} there"
    raise SourceChanged(
        f"{physical}: the log ends at cut {ordinal} with token {resume.txid}, but {config.path} {found}: it is not the "
        f"database that we knew, or it was restored from a copy. {mend}"
    )


def _first_cut(db: sqlite3.Connection, config: SqliteConfig, *, is_new: bool) -> Cut:
    """Where a new log begins: at a new cut, or at the one that the same log began at before it had written anything."""
    began = get_state(db, "first_cut")
    if not is_new and began is not None:
        row = db.execute(f"SELECT id, token, change_id, time_us FROM {OWN_PREFIX}cut WHERE id = ?", (began,)).fetchone()
        if row is not None:
            return Cut(*row)
    before = last_cut(db)
    changes = last_change(db)
    renew(db, config, Since(before.change_id if before else 0))
    db.execute(f"DELETE FROM {OWN_PREFIX}wanted")
    if config.snapshot == "initial":
        for source in live_versions(db):
            want_snapshot(db, source)
    cut = add_cut(db, changes, [])
    set_state(db, "first_cut", str(cut.id))
    return cut


def _add_late_event(db: sqlite3.Connection, cut: Cut, seq: int, event: Event, clock: Clock) -> None:
    """Write a control for a cut whose window is in the log already; it comes next."""
    (highest,) = db.execute(f"SELECT coalesce(max(seq), 0) FROM {OWN_PREFIX}event WHERE cut = ?", (cut.id,)).fetchone()
    db.execute(
        f"INSERT INTO {OWN_PREFIX}event(cut, seq, kind, t, body) VALUES (?, ?, ?, ?, ?)",
        (
            cut.id,
            next_bus_seq(max(highest, seq), clock.now_ns()),
            event.kind,
            event.version.t,
            json.dumps(dict(event.body), ensure_ascii=False),
        ),
    )


class _Session:
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
        self._chunk: Chunk | None = None
        self._ending: str | None = None
        self._is_new = resume.position is None
        self._live = live_versions(db)
        self._seen = -1
        self._cut_due_s = 0.0
        self._noticed_s: float | None = None
        self._trimmed = (0, 0)
        self._trimmed_s = 0.0
        self.durable: dict[str, Any] | None = None
        self.watch = FileWatch(f"{config.path}-wal", config.poll_ms)

    @property
    def sources(self) -> Mapping[str, Version]:
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
                group = self._window(self._backlog.take())
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
        behind_ms = 0.0 if self._noticed_s is None else (time.monotonic() - self._noticed_s) * 1000
        return SourceLag(behind_ms, last_change(self._reader) - self._backlog.done)

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
            cut_if_changed(self._db, self._config, under_lock=None if target is None else self._open_reader)
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
            or newest.id != self._backlog.newest.id
            or last_change(self._db) != newest.change_id
            or get_state(self._db, "schema_version") != str(schema_version(self._db))
        )

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
                return  # dropped, or changed so that it is read from its beginning
            cut = last_cut(self._db)
            assert cut is not None  # noqa: S101 - a session begins at one, and the last is never trimmed
            self._chunk = read_chunk(self._reader, self._config, version, snapshot.generation, cut, snapshot.last_key)
        finally:
            self._close_reader()

    def _window(self, stretch: Stretch) -> Group:
        if stretch.continues:
            position = position_of(self._cut, self._generation)
            cut = stretch.cut
            scn = make_scn(self._timeline, cut.id)
            commit = Commit(scn, stretch.seq, cut.token, position, cut.time_us, dict(self._snapshots), continues=True)
            return Group(commit, stretch.rows)
        self._cut, self._seq = stretch.cut, stretch.seq
        self._events = self._events_after(0)
        return Group(self._commit(), stretch.rows)

    def _commit(self) -> Commit:
        cut = self._cut
        scn = make_scn(self._timeline, cut.id)
        position = position_of(cut, self._generation)
        return Commit(scn, self._seq, cut.token, position, cut.time_us, dict(self._snapshots))

    def _events_after(self, seq: int) -> deque[tuple[int, ControlKind, int, dict[str, Any]]]:
        found = self._db.execute(
            f"SELECT seq, kind, t, body FROM {OWN_PREFIX}event WHERE cut = ? AND seq > ? ORDER BY seq",
            (self._cut.id, seq),
        )
        return deque((seq, ControlKind(kind), t, json.loads(body)) for seq, kind, t, body in found)

    def _control(self, seq: int, kind: ControlKind, t: int, body: dict[str, Any]) -> Group:
        version = read_version(self._db, t)
        read_anew = kind is ControlKind.GAP or (kind is ControlKind.SCHEMA and body["class"] == 3)
        if read_anew and self._config.on_class3 == "stop":
            self._events.appendleft((seq, kind, t, body))
            raise Unsupported(
                f"{self._physical}: {version.source} changed in a way that its change rows do not show "
                f"({body.get('ddl') or body.get('reason') or 'the change was made elsewhere'}); set "
                f"`on_class3: resnapshot` to have the table read again"
            )
        if kind is ControlKind.GAP:
            for name in ("from", "to"):
                body[name] = make_scn(self._timeline, body[name])
        if read_anew or kind is ControlKind.DROP:
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
        body = {"kind": ControlKind.SNAPSHOT_BEGIN, "source": name, "generation": self._wanted[name]}
        return self._bus_control(ControlKind.SNAPSHOT_BEGIN, self._live[name].table, body)

    def _snapshot_rows(self, chunk: Chunk) -> Group | None:
        self._chunk = None
        name = chunk.version.source
        if self._wanted.get(name) != chunk.generation:
            return None  # a control at its cut has had the table read anew
        opened = self._snapshots[name]
        if chunk.is_last:
            self._ending = name
        if chunk.rows == 0:
            return self._end_snapshot(name)
        seqs = next_bus_seq(self._seq, self._clock.now_ns()) + np.arange(chunk.rows, dtype=np.int64)
        self._seq = int(seqs[-1])
        self._snapshots[name] = OpenSnapshot(opened.generation, chunk.last_key, opened.begin)
        commit = self._commit()
        txids = pa.DictionaryArray.from_arrays(np.zeros(chunk.rows, np.int32), pa.array([commit.txid], pa.string()))
        kinds = np.full(chunk.rows, ChangeType.INSERT, np.int8)
        scns, times = np.full(chunk.rows, commit.scn), np.full(chunk.rows, commit.commit_us)
        arrays = [*chunk.arrays, *bus_columns(kinds, scns, seqs, times, txids, snapshot=True)]
        table = chunk.version.table
        rows = Rows(table, pa.RecordBatch.from_arrays(arrays, schema=frame_schema(table)))
        crash_point("sqlite.snapshot.after_chunk")
        return Group(commit, (rows,), snapshot=True)

    def _end_snapshot(self, name: str) -> Group | None:
        self._ending = None
        opened = self._snapshots.pop(name, None)
        if opened is None:
            return None  # superseded after its last rows
        self._generation = opened.generation
        self._seq = next_bus_seq(self._seq, self._clock.now_ns())
        body = {
            "kind": ControlKind.SNAPSHOT_END,
            "source": name,
            "generation": opened.generation,
            "begin": list(opened.begin),
            "complete": True,
        }
        return self._bus_control(ControlKind.SNAPSHOT_END, self._live[name].table, body)

    def trim(self) -> None:
        """One bounded step of trimming, where enough is safe in the log or a second has passed."""
        if self.durable is None:
            return
        cut_id, generation = int(self.durable["cut"]), int(self.durable["generation"])
        now = time.monotonic()
        if (cut_id, generation) == self._trimmed or now < self._trimmed_s + _TRIM_INTERVAL_S:
            return
        cut = Cut(cut_id, str(self.durable["token"]), int(self.durable["change"]), 0)
        try:
            more = trim_step(self._db, self._config, cut, generation)
        except sqlite3.OperationalError as error:
            if not is_busy(error):
                raise
            return
        if not more:
            self._trimmed, self._trimmed_s = (cut_id, generation), now
