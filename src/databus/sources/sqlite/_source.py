"""The SQLite source: what a relay calls. See `databus.sources._contract` for the order of calls.

What happens between `start` and `close` is in `_session`; here is how a session begins: whose database this is, and at
which cut to go on.
"""

import sqlite3
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from databus.core import (
    Clock,
    Identity,
    LockHeld,
    PositionPurged,
    ServiceUnavailable,
    SourceChanged,
    SystemClock,
    UnknownSource,
    UnsupportedFeature,
    next_bus_seq,
    ordinal_of,
    source_name,
)
from databus.log import Resume
from databus.schema import TableSchema
from databus.sources._capabilities import Finding
from databus.sources._contract import SourceLag
from databus.sources._oracle import Oracle
from databus.sources.sqlite._check import check
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._cuts import add_cut, add_event, connect, cut_if_changed, write_lock
from databus.sources.sqlite._describe import describe
from databus.sources.sqlite._install import (
    ensure_wal,
    install,
    install_tables,
    remove,
    selection_text,
    status,
    stored_config,
)
from databus.sources.sqlite._oracle import sqlite_oracle
from databus.sources.sqlite._renew import Since, recast, renew
from databus.sources.sqlite._session import SqliteSession
from databus.sources.sqlite._store import (
    Cut,
    Event,
    get_state,
    last_change,
    last_cut,
    live_versions,
    set_state,
    want_snapshot,
)
from databus.sources.sqlite._tables import OWN_PREFIX, list_tables, read_shape
from databus.wire import Group

_MEND: Final = (
    "Restore the file that belongs to the log; or stop the relay, move the log's folder away and start it again"
)


class SqliteSource:
    """Changes of one SQLite database, cut into windows; its tables' rows first."""

    config_model: ClassVar = SqliteConfig

    @staticmethod
    def contains(scheme: str, position: Mapping[str, Any], txid: str) -> bool | None:
        """Whether a cut is before the position, as far as that is known: it names the last one only."""
        del scheme
        return True if position.get("token") == txid else None

    @staticmethod
    def check(config: SqliteConfig) -> Sequence[Finding]:
        """See `databus.sources.Checkable`."""
        return check(config)

    @staticmethod
    def warm_up(physical: str, say: Callable[[str], None]) -> None:
        """See `databus.sources.Checkable`: there is nothing to do."""
        del physical, say

    @staticmethod
    def prepare(config: SqliteConfig, *, take_over: bool) -> str:
        """See `databus.sources.Preparable`."""
        install(config.path, config, set_wal=config.set_wal, take_over=take_over)
        captured = status(config.path)["tables"]
        return f"{config.path}: tables captured: {', '.join(captured) or 'none'}"

    @staticmethod
    def remove(config: SqliteConfig) -> str:
        """See `databus.sources.Preparable`."""
        remove(config.path)
        return f"{config.path}: nothing of databus is left in it"

    @staticmethod
    def oracle(config: SqliteConfig, folder: Path) -> Oracle:
        """See `databus.sources.Comparable`."""
        return sqlite_oracle(folder / config.path)

    def __init__(self, physical: str, config: SqliteConfig, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config = config
        self._clock = clock or SystemClock()
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # the one that `_db` has open
        self._session: SqliteSession | None = None
        self._asked: deque[str] = deque()
        self._cancelled: deque[str] = deque()

    def identify(self) -> Identity:
        """See `Source.identify`. Puts the bus's tables into the database if they are not there."""
        db = self._connected()
        uuid = get_state(db, "uuid") or ""
        return Identity(uuid, "cut", self._config.path)

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`."""
        db = self._connected()
        names = [
            n for n, kind in list_tables(db).items() if kind == "table" and self._config.selects(source_name("main", n))
        ]
        return [describe(self._config, read_shape(db, name)).table for name in names]

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        db = self._connected()
        try:
            cut, generation = _begin(self.physical, db, self._config, resume, self._clock)
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        self._session = SqliteSession(self.physical, db, self._config, self._clock, resume, cut, generation)

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        session = self._started()
        deadline = time.monotonic() + wait_ms / 1000
        try:
            while True:
                self._check_file()
                session.want(self._asked)
                if not self._asked:  # what was asked for before is noted by now
                    session.want_no_more(self._cancelled)
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

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`."""
        if where is not None:
            raise UnsupportedFeature(f"{self.physical}: a table of this source is read as a whole; leave `where` out")
        session = self._session_with(sources)
        self._asked.extend(sources)
        session.watch.wake()

    def cancel_snapshot(self, sources: Sequence[str]) -> None:
        """See `CancelsSnapshots`."""
        session = self._session_with(sources)
        self._cancelled.extend(sources)
        session.watch.wake()

    def _session_with(self, sources: Sequence[str]) -> SqliteSession:
        session = self._started()
        for name in sources:
            if name not in session.sources:
                known = ", ".join(sorted(session.sources))
                raise UnknownSource(f"{self.physical}: no captured table {name!r} to read; there are {known}")
        return session

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
            self._file = _file_at(self._config.path)
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

    def _check_file(self) -> None:
        if _file_at(self._config.path) != self._file:
            raise ServiceUnavailable(
                f"{self.physical}: {self._config.path} is gone, or another file by now; capture opens what is there"
            )

    def _started(self) -> "SqliteSession":
        if self._session is None:
            raise ServiceUnavailable(f"{self.physical}: the source is not started; the capture loop starts it again")
        return self._session

    def _unavailable(self, error: sqlite3.Error) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self.physical} ({self._config.path}): SQLite says: {error}; capture tries again")


def _file_at(path: str) -> tuple[int, int] | None:
    """Which file a path names at this moment; None for none."""
    with suppress(OSError):
        status = Path(path).stat()
        return status.st_dev, status.st_ino
    return None


def _begin(
    physical: str, db: sqlite3.Connection, config: SqliteConfig, resume: Resume, clock: Clock
) -> tuple[Cut, int]:
    """Claim the database for this log, find the cut to go on from, and bring the triggers up to date."""
    with write_lock(db, config.busy_ms_max):
        is_new = _claim(physical, db, config, resume)
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


def _claim(physical: str, db: sqlite3.Connection, config: SqliteConfig, resume: Resume) -> bool:
    """Record which log captures this database. Returns whether that is another than before. Raises `LockHeld`, and
    `SourceChanged` where the database or the log was put back from a copy.

    A new log in the folder of the one before, on the same machine, takes its place: who owns the folder now knows that
    the old log is gone, and that no relay writes it. So the place is kept as it is now where the log was moved.
    """
    holder, log_id = get_state(db, "log") or "", resume.log_id
    is_in_its_place = _place_of(holder) == _place_of(log_id) != ""
    is_other = holder.split()[:1] != log_id.split()[:1]
    if not holder or (is_in_its_place and resume.position is None and holder != log_id):
        set_state(db, "log", log_id)
        return True
    if is_other and is_in_its_place:
        raise SourceChanged(
            f"{physical}: {config.path} was captured into log {holder}, and that folder has another log, {log_id}: the "
            f"database, or the folder, was put back from a copy. {_MEND}"
        )
    if is_other:
        raise LockHeld(
            f"{physical}: {config.path} is captured into log {holder}, this is log {log_id or '(without a name)'}; one "
            f"relay per database, since it trims what it has. Stop the other one for good and run "
            f"`databus sqlite install {config.path} --take-over`, or follow that relay"
        )
    if holder != log_id:
        set_state(db, "log", log_id)
    return False


def _place_of(log_id: str) -> str:
    """Folder and machine of a log; empty where they are not known."""
    place = log_id.partition(" at ")[2]
    return place if " on " in place else ""


def _cut_at(physical: str, config: SqliteConfig, db: sqlite3.Connection, resume: Resume) -> Cut:
    """The cut where the log ends. Raises `SourceChanged` or `PositionPurged` if this database does not have it."""
    ordinal = ordinal_of(resume.scn)
    row = db.execute(f"SELECT id, token, change_id, time_us FROM {OWN_PREFIX}cut WHERE id = ?", (ordinal,)).fetchone()
    if row is not None and row[1] == resume.txid:
        return Cut(*row)
    (oldest,) = db.execute(f"SELECT min(id) FROM {OWN_PREFIX}cut").fetchone()
    if row is None and oldest is not None and oldest > ordinal:
        raise PositionPurged(
            f"{physical}: {config.path} has trimmed cut {ordinal}, where the log ends; its oldest is {oldest}. The log "
            f"is older than one that was captured since. {_MEND}"
        )
    finding = "has no such cut" if row is None else f"has token {row[1]} there"
    raise SourceChanged(
        f"{physical}: the log ends at cut {ordinal} with token {resume.txid}, but {config.path} {finding}: it is not "
        f"the database that we knew, or it was restored from a copy. {_MEND}"
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
    add_event(db, cut.id, next_bus_seq(max(highest, seq), clock.now_ns()), event, event.body)
