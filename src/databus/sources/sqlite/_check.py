"""Is a database fit to be captured? What `databus check-source` says of it: it is only read, without a wait."""

import difflib
import os
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from databus.core import DatabusError, name_parts, source_name
from databus.schema import TableSchema
from databus.sources._capabilities import Finding, Severity
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._describe import describe
from databus.sources.sqlite._store import get_state, is_installed, live_versions, schema_version
from databus.sources.sqlite._tables import list_tables, read_shape

_MAGIC: Final = b"SQLite format 3\0"
_WORST_FIRST: Final[Sequence[Severity]] = ("error", "warning", "info")


def check(config: SqliteConfig) -> Sequence[Finding]:
    """All findings, the worst first. A file that cannot be opened is a finding too."""
    findings = _of_file(config.path)
    if not findings:
        try:
            with closing(sqlite3.connect(f"{Path(config.path).resolve().as_uri()}?mode=ro", uri=True, timeout=0)) as db:
                findings = [*_of_journal(db, config), *_of_tables(db, config)]
        except sqlite3.Error as error:
            findings = [Finding("error", "connect", config.path, f"SQLite says: {error}")]
        except DatabusError as error:
            findings = [Finding("error", "triggers", config.path, str(error))]
    return sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.severity))


def _of_file(path: str) -> list[Finding]:
    """What keeps SQLite from opening it, and from writing beside it."""
    file = Path(path)
    folder = file.resolve().parent
    if not _may(folder, os.W_OK | os.X_OK):
        what = f"{folder} is not there, or may not be written; SQLite keeps {file.name}-wal and {file.name}-shm there"
        return [Finding("error", "folder", path, what, "let the user that runs the relay write there")]
    if not file.is_file():
        return [Finding("error", "path", path, "there is no such database file", "create it first, or correct `path`")]
    if not _may(file, os.R_OK | os.W_OK):
        what = "the file may not be read and written; capture keeps triggers and cuts in it"
        return [Finding("error", "path", path, what, "let the user that runs the relay do both")]
    with file.open("rb") as opened:
        begin = opened.read(len(_MAGIC))
    if begin not in (b"", _MAGIC):  # SQLite takes an empty file for an empty database
        what = "this file is no SQLite database, or an encrypted one"
        return [Finding("error", "path", path, what, "name the database's file in `path`")]
    return []


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _of_journal(db: sqlite3.Connection, config: SqliteConfig) -> Iterator[Finding]:
    (mode,) = db.execute("PRAGMA main.journal_mode").fetchone()
    if mode == "wal":
        return
    what = f"the journal mode is {mode}, in which reading changes would lock writers out"
    if config.set_wal:
        yield Finding("info", "journal_mode", config.path, f"{what}; the start switches it to WAL, by `set_wal`")
    else:
        mend = f"databus sqlite install {config.path} --wal, or `set_wal: true`; it is kept in the file"
        yield Finding("error", "journal_mode", config.path, what, mend)


def _of_tables(db: sqlite3.Connection, config: SqliteConfig) -> Iterator[Finding]:
    kinds = {source_name("main", name): kind for name, kind in list_tables(db).items()}
    yield from _of_names(list(kinds), config)
    chosen: list[TableSchema] = []
    for source, kind in kinds.items():
        if not config.selects(source):
            continue
        if kind != "table":
            what = f"{source} is a virtual table, which is not captured"
            yield Finding("info", "tables", config.path, what, f"`exclude: [{source}]` says so in the configuration")
            continue
        try:
            chosen.append(describe(config, read_shape(db, name_parts(source)[1])).table)
        except DatabusError as error:
            yield Finding("error", "tables", config.path, str(error))
    keyless = [table.source for table in chosen if not table.key]
    if keyless:
        what = f"{', '.join(keyless)} without a primary key: captured, but no mirror can follow"
        mend = "give a key to the table, or `key` to the mirror; or take a history"
        yield Finding("warning", "keys", config.path, what, mend)
    yield from _of_capture(db, config, [table.source for table in chosen])


def _of_names(names: Sequence[str], config: SqliteConfig) -> Iterator[Finding]:
    for entry in config.tables:
        alone = config.model_copy(update={"tables": [entry], "exclude": []})
        if not any(alone.selects(source) for source in names):
            near = difflib.get_close_matches(entry, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            yield Finding("error", "tables", config.path, f"no table fits {entry}{hint}", "correct `tables`")


def _of_capture(db: sqlite3.Connection, config: SqliteConfig, chosen: Sequence[str]) -> Iterator[Finding]:
    """Whether the triggers are there, and whose log has the database."""
    live: dict[str, Any] = dict(live_versions(db)) if is_installed(db) else {}
    ready = [source for source in chosen if source in live]
    later = [source for source in chosen if source not in live]
    if ready:
        yield Finding("info", "triggers", config.path, f"triggers are in {', '.join(ready)}")
        if get_state(db, "schema_version") != str(schema_version(db)):
            what = "tables have changed since the triggers were made; the relay renews them"
            yield Finding("info", "triggers", config.path, what)
    if later:
        what = f"no triggers yet in {', '.join(later)}; the relay's start puts them in"
        yield Finding("info", "triggers", config.path, what, "databus prepare does it now")
    holder = (get_state(db, "log") or "") if live else ""
    if holder:
        yield _of_log(holder, config.path)


def _of_log(holder: str, path: str) -> Finding:
    """holder: `UUID at FOLDER on HOST`, as the log has written it."""
    folder, _, host = holder.partition(" at ")[2].rpartition(" on ")
    mend = f"databus sqlite install {path} --take-over, if that one is gone for good"
    if host == socket.gethostname() and not Path(folder).is_dir():
        what = f"captured into log {holder}, and that folder is gone; a log in another folder is refused"
        return Finding("warning", "log", path, what, mend)
    return Finding("info", "log", path, f"captured into log {holder}; another log is refused", mend)
