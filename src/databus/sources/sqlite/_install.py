"""Install, remove, alter, status: what an operator does with a database, each in one transaction."""

import json
import sqlite3
from contextlib import closing
from typing import Any, Final

from databus.core import ConfigError, InputError, ServiceUnavailable, name_parts
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._cuts import add_cut, connect, is_busy, last_change_of_window, write_lock
from databus.sources.sqlite._renew import Since, renew
from databus.sources.sqlite._store import (
    create_tables,
    drop_tables,
    drop_triggers,
    get_state,
    is_installed,
    last_change,
    last_cut,
    live_versions,
    schema_version,
    set_state,
    wanted,
)
from databus.sources.sqlite._tables import OWN_PREFIX
from databus.sources.sqlite._tokens import tokens_of
from databus.sources.sqlite._triggers import CHANGE_TABLE

_SELECTION: Final = {"tables", "exclude", "columns", "types"}
BUSY_MS_MAX: Final = 10_000
_DDL: Final = {"ALTER", "CREATE", "DROP"}


def ensure_wal(db: sqlite3.Connection, path: str, *, set_wal: bool) -> None:
    """In rollback-journal mode a reader locks the writers out. Raises `ConfigError` where it may not be switched."""
    (mode,) = db.execute("PRAGMA main.journal_mode").fetchone()
    if mode != "wal" and set_wal:
        (mode,) = db.execute("PRAGMA main.journal_mode = WAL").fetchone()
    if mode != "wal":
        raise ConfigError(
            f"{path}: its journal mode is {mode!r}, in which reading its changes would lock writers out; switch it "
            f"with `databus sqlite install {path} --wal` (or `set_wal: true`), which is kept in the file"
        )


def install_tables(db: sqlite3.Connection) -> None:
    """Make the bus's tables unless they are there."""
    if is_installed(db):
        return
    with write_lock(db, BUSY_MS_MAX):
        if not is_installed(db):
            create_tables(db)


def selection_text(config: SqliteConfig) -> str:
    """What decides which columns are captured and how, as kept in the database for `alter`."""
    return json.dumps(config.model_dump(mode="json", include=_SELECTION), sort_keys=True)


def stored_config(db: sqlite3.Connection, path: str) -> SqliteConfig:
    """The selection that is installed."""
    return SqliteConfig(path=path, **json.loads(get_state(db, "selection") or "{}"))


def install(path: str, config: SqliteConfig | None = None, *, set_wal: bool = False, take_over: bool = False) -> None:
    """Install the bus's tables and triggers, or bring them up to date.

    config: which tables; what is installed already, or all of them, if None. take_over: forget which log captures this
    database, so that another one may: the old one cannot go on then. Raises `ConfigError` if not in WAL mode.
    """
    with closing(_open(path)) as db:
        ensure_wal(db, path, set_wal=set_wal)
        install_tables(db)
        with write_lock(db, BUSY_MS_MAX):
            chosen = config or stored_config(db, path)
            set_state(db, "selection", selection_text(chosen))
            before = last_cut(db)
            since = before.change_id if before else 0
            changes = last_change_of_window(db, since)
            events = renew(db, chosen, Since(since))
            if before is None or events or changes != before.change_id:
                add_cut(db, changes, events)
            if take_over:
                set_state(db, "log", "")


def remove(path: str) -> None:
    """Remove the bus's triggers and tables; what was not captured yet is gone with them."""
    with closing(_open(path)) as db, write_lock(db, BUSY_MS_MAX):
        drop_tables(db)


def alter(path: str, statement: str) -> None:
    """Run a DDL statement so that capture follows it exactly: cut, removal of triggers, DDL, renewal, as one.

    Raises `InputError` if it is no ALTER, CREATE or DROP, or if SQLite refuses it; nothing has changed then.
    """
    first = next(tokens_of(statement), None)
    if first is None or first.text.upper() not in _DDL:
        raise InputError(
            f"{path}: `{statement}` is no ALTER TABLE; nothing was run. Rows that a statement changes here are not "
            f"captured; run it in your usual SQLite client"
        )
    with closing(_open(path)) as db:
        if not is_installed(db):
            raise InputError(
                f"{path}: databus does not capture this database, so a plain ALTER TABLE will do; nothing was run"
            )
        try:
            with write_lock(db, BUSY_MS_MAX):
                _alter(db, path, statement)
        except (sqlite3.Error, sqlite3.Warning) as error:
            if isinstance(error, sqlite3.Error) and is_busy(error):
                raise ServiceUnavailable(
                    f"{path}: another process was writing for {BUSY_MS_MAX} ms; try again"
                ) from error
            raise InputError(f"{path}: SQLite refused `{statement}`: {error}; nothing has changed") from error


def _alter(db: sqlite3.Connection, path: str, statement: str) -> None:
    config = stored_config(db, path)
    before = last_cut(db)
    since = before.change_id if before else 0
    changes = last_change_of_window(db, since)
    events = []
    if get_state(db, "schema_version") != str(schema_version(db)):
        events = renew(db, config, Since(since))
    names = {token.name.lower() for token in tokens_of(statement) if token.kind in ("word", "quoted")}
    for version in live_versions(db).values():
        if name_parts(version.source)[1].lower() in names:
            drop_triggers(db, version.number)
    db.execute(statement)
    events += renew(db, config, Since(changes, is_by_alter=True, ddl=statement))
    add_cut(db, changes, events)


def status(path: str) -> dict[str, Any]:
    """What is installed and how much waits, as JSON."""
    with closing(_open(path)) as db:
        (mode,) = db.execute("PRAGMA main.journal_mode").fetchone()
        if not is_installed(db):
            return {"path": path, "installed": False, "journal_mode": mode}
        cut = last_cut(db)
        (waiting, first) = db.execute(f"SELECT count(*), min(id) FROM {CHANGE_TABLE}").fetchone()
        (cuts,) = db.execute(f"SELECT count(*) FROM {OWN_PREFIX}cut").fetchone()
        return {
            "path": path,
            "installed": True,
            "journal_mode": mode,
            "uuid": get_state(db, "uuid"),
            "log": get_state(db, "log") or None,
            "tables": sorted(live_versions(db)),
            "up_to_date": get_state(db, "schema_version") == str(schema_version(db)),
            "cut": None if cut is None else {"id": cut.id, "token": cut.token, "time_us": cut.time_us},
            "cuts_kept": cuts,
            "changes_kept": waiting,
            "changes_after_cut": last_change(db) - (cut.change_id if cut else 0),
            "first_change": first,
            "snapshots_wanted": list(wanted(db)),
        }


def _open(path: str) -> sqlite3.Connection:
    return connect(path, busy_ms_max=BUSY_MS_MAX)
