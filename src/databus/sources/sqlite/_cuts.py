"""Cuts: where one window ends and the next begins; and the trimming of what lies before them.

A cut is a row written in a short transaction that holds the write lock: every change up to its `change_id` was
committed before it, every other one after it. Cuts are committed with synchronous=FULL and never change, so the same
windows are read again after any crash.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError, ServiceUnavailable, crash_point, next_bus_seq
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._renew import Since, log_gone, renew
from databus.sources.sqlite._store import (
    Cut,
    Event,
    check_cut,
    get_state,
    last_change,
    last_cut,
    schema_version,
)
from databus.sources.sqlite._tables import OWN_PREFIX
from databus.sources.sqlite._triggers import CHANGE_TABLE, scratch_name

_STATEMENTS_CACHED: Final = 512
_RETRY_S: Final = 0.0001  # between two tries for the write lock
_RETRY_OFTEN_S: Final = 0.1  # after that, less often
_RETRY_LATER_S: Final = 0.002


def connect(path: str, *, busy_ms_max: int, create: bool = False) -> sqlite3.Connection:
    """Open a database file. Raises `ServiceUnavailable` if it is not there, `ConfigError` if it is no database."""
    if not create and not Path(path).is_file():
        raise ServiceUnavailable(f"{path}: there is no such database file; create it first, or correct `path`")
    try:
        db = sqlite3.connect(
            path,
            timeout=busy_ms_max / 1000,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=_STATEMENTS_CACHED,
        )
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA trusted_schema = ON")
        db.execute("SELECT count(*) FROM main.sqlite_schema").fetchone()
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise ConfigError(
                f"{path}: this file is no SQLite database, or an encrypted one; name the database's file"
            ) from error
        raise ServiceUnavailable(f"{path}: cannot be opened as a SQLite database: {error}") from error
    return db


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another process held the lock that was needed."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def write_lock(db: sqlite3.Connection, busy_ms_max: int) -> Iterator[None]:
    """A write transaction: committed at the end, rolled back on any error.

    Raises sqlite3.OperationalError (see `is_busy`) if other processes held the lock for `busy_ms_max`.
    """
    _begin_immediate(db, busy_ms_max)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _begin_immediate(db: sqlite3.Connection, busy_ms_max: int) -> None:
    """Take the write lock. SQLite has no queue for it, and its own waiting, at last 100 ms between two tries, is never
    let in by a process that writes one transaction after the other; so we try more often.
    """
    db.execute("PRAGMA busy_timeout = 0")
    try:
        began = time.monotonic()
        while True:
            try:
                db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - began
                if not is_busy(error) or waited_s * 1000 >= busy_ms_max:
                    raise
            time.sleep(_RETRY_S if waited_s < _RETRY_OFTEN_S else _RETRY_LATER_S)
    finally:
        db.execute(f"PRAGMA busy_timeout = {busy_ms_max}")


def cut_if_changed(
    db: sqlite3.Connection,
    config: SqliteConfig,
    *,
    known: Cut | None = None,
    force: bool = False,
    renew_anyway: bool = False,
    under_lock: Callable[[], None] | None = None,
) -> Cut | None:
    """Make a cut if anything was written since the last one. Returns it, or None if there was nothing to cut.

    known: a cut that has to be there, see `check_cut`. under_lock: called while no other process can write, before
    anything is written here: a reader opened by it sees exactly the state at the cut (at the last one if None is
    returned). Raises sqlite3.OperationalError if busy.
    """
    with write_lock(db, config.busy_ms_max):
        if known is not None:
            check_cut(db, known)
        if under_lock is not None:
            under_lock()
        before = last_cut(db)
        since = before.change_id if before else 0
        changes = last_change_of_window(db, since)
        events: list[Event] = []
        if renew_anyway or get_state(db, "schema_version") != str(schema_version(db)):
            events = renew(db, config, Since(since))
        if before is not None and changes == since and not events and not force:
            return None
        cut = add_cut(db, changes, events)
        crash_point("sqlite.cut.before_commit")
    crash_point("sqlite.cut.after_commit")
    return cut


def last_change_of_window(db: sqlite3.Connection, since: int) -> int:
    """The last change of the window that ends here, after logging what no trigger logged. since: the one before it."""
    if last_change(db) != since:
        log_gone(db)
    return last_change(db)


def add_cut(db: sqlite3.Connection, changes: int, events: Sequence[Event]) -> Cut:
    """Write a cut and its controls, inside the caller's transaction; empty the scratch tables."""
    before = last_cut(db)
    token, time_us = secrets.token_hex(8), time.time_ns() // 1000
    cursor = db.execute(
        f"INSERT INTO {OWN_PREFIX}cut(token, change_id, time_us) VALUES (?, ?, ?)", (token, changes, time_us)
    )
    cut = Cut(int(cursor.lastrowid or 0), token, changes, time_us)
    seq = 0
    for event in events:
        seq = next_bus_seq(seq, time_us * 1000)
        body = dict(event.body)
        if "from" in body:
            body |= {"from": before.id if before else 0, "to": cut.id}
        add_event(db, cut.id, seq, event, body)
    for (number,) in db.execute(f"SELECT number FROM {OWN_PREFIX}table WHERE live").fetchall():
        db.execute(f"DELETE FROM {scratch_name(number)}")
    return cut


def add_event(db: sqlite3.Connection, cut: int, seq: int, event: Event, body: Mapping[str, Any]) -> None:
    """Write a control that is delivered at the end of a cut, inside the caller's transaction."""
    db.execute(
        f"INSERT INTO {OWN_PREFIX}event(cut, seq, kind, t, body) VALUES (?, ?, ?, ?, ?)",
        (cut, seq, event.kind, event.version.t, json.dumps(dict(body), ensure_ascii=False)),
    )


def trim_step(db: sqlite3.Connection, config: SqliteConfig, cut: Cut, generation: int) -> bool:
    """Delete some of what lies before a cut that is safe in the log; returns whether there may be more.

    The cut itself stays, and so does the last change row: its id must not be given again. generation: the readings up
    to it are safe in the log too.
    """
    crash_point("sqlite.trim.before")
    rows_max = config.trim_rows_max
    with write_lock(db, config.busy_ms_max):
        check_cut(db, cut)
        deleted = db.execute(
            f"DELETE FROM {CHANGE_TABLE} WHERE id IN (SELECT id FROM {CHANGE_TABLE} WHERE id <= ? AND id < "
            f"(SELECT max(id) FROM {CHANGE_TABLE}) ORDER BY id LIMIT ?)",
            (cut.change_id, rows_max),
        ).rowcount
        db.execute(
            f"DELETE FROM {OWN_PREFIX}cut WHERE id < ? AND id IN (SELECT id FROM {OWN_PREFIX}cut ORDER BY id LIMIT ?)",
            (cut.id, rows_max),
        )
        db.execute(f"DELETE FROM {OWN_PREFIX}event WHERE cut < ?", (cut.id,))
        db.execute(f"DELETE FROM {OWN_PREFIX}wanted WHERE generation <= ?", (generation,))
    crash_point("sqlite.trim.after")
    return deleted == rows_max
