"""The bus's own tables in the user's database; all named `_databus_...`.

| table            | holds                                                                            |
|------------------|----------------------------------------------------------------------------------|
| _databus_state   | format, uuid, who captures, the selection, the schema version last seen          |
| _databus_table   | each version of each captured table: its definition, and what its change rows are |
| _databus_change  | one row image each, in the order in which they were written                       |
| _databus_cut     | cuts: id, token, the last change before it, time                                  |
| _databus_event   | controls of a cut, delivered at its end                                           |
| _databus_wanted  | tables that are to be read again, until that is safe in the log                   |
| _databus_scratch_N | see `_triggers`                                                                |
"""

import json
import sqlite3
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from databus.core import ControlKind, ServiceUnavailable, SourceChanged
from databus.schema import TableSchema
from databus.sources.sqlite._tables import OWN_PREFIX
from databus.sources.sqlite._triggers import CHANGE_TABLE, before_delete_name, scratch_name, trigger_names
from databus.sources.sqlite._types import ColumnKind

FORMAT: Final = "2"

_TABLES: Final = {
    f"{OWN_PREFIX}state": "name TEXT PRIMARY KEY, value TEXT",
    f"{OWN_PREFIX}table": (
        "t INTEGER PRIMARY KEY, number INTEGER, source TEXT, definition TEXT, kinds TEXT, live INTEGER, "
        "recast INTEGER, recast_after INTEGER"
    ),
    CHANGE_TABLE: "id INTEGER PRIMARY KEY, t INTEGER, op INTEGER",
    f"{OWN_PREFIX}cut": "id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT, change_id INTEGER, time_us INTEGER",
    f"{OWN_PREFIX}event": "id INTEGER PRIMARY KEY, cut INTEGER, seq INTEGER, kind TEXT, t INTEGER, body TEXT",
    f"{OWN_PREFIX}wanted": "source TEXT PRIMARY KEY, generation INTEGER",
}


@dataclass(frozen=True, slots=True)
class TableVersion:
    """One version of a captured table: `t` stands in its change rows."""

    t: int
    number: int
    """The table's number, in the names of its triggers."""
    table: TableSchema
    kinds: tuple[ColumnKind, ...]

    @property
    def source(self) -> str:
        """Full name inside the physical source."""
        return self.table.source


@dataclass(frozen=True, slots=True)
class Event:
    """A control of a cut."""

    kind: ControlKind
    version: TableVersion
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut: every change up to `change_id` is in it or in one before."""

    id: int
    token: str
    change_id: int
    time_us: int


def is_installed(db: sqlite3.Connection) -> bool:
    """Whether the bus's tables are there. Raises `SourceChanged` where they are another version's."""
    rows = db.execute("SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (f"{OWN_PREFIX}state",))
    if rows.fetchone() is None:
        return False
    if (seen := get_state(db, "format")) != FORMAT:
        raise SourceChanged(
            f"the bus's tables in this database have format {seen}, this databus writes {FORMAT}; remove them with "
            f"`databus sqlite remove DB`, and capture into a new log, which begins with all tables as they are then: "
            f"changes that were not captured yet do not come"
        )
    return True


def create_tables(db: sqlite3.Connection) -> None:
    """Make the bus's tables, inside the caller's transaction."""
    for name, columns in _TABLES.items():
        db.execute(f"CREATE TABLE {name}({columns})")
    set_state(db, "format", FORMAT)
    set_state(db, "uuid", str(uuid.uuid4()))


def drop_tables(db: sqlite3.Connection) -> None:
    """Remove everything that the bus has put into the database, inside the caller's transaction."""
    for kind in ("trigger", "table"):
        rows = db.execute(
            "SELECT name FROM main.sqlite_schema WHERE type = ? AND substr(name, 1, ?) = ?",
            (kind, len(OWN_PREFIX), OWN_PREFIX),
        ).fetchall()
        for (name,) in rows:
            db.execute(f'DROP {kind} "{name}"')


def get_state(db: sqlite3.Connection, name: str) -> str | None:
    """One of the values kept under a name."""
    row = db.execute(f"SELECT value FROM {OWN_PREFIX}state WHERE name = ?", (name,)).fetchone()
    return None if row is None else cast(str, row[0])


def set_state(db: sqlite3.Connection, name: str, value: str) -> None:
    """Keep a value under a name."""
    db.execute(f"DELETE FROM {OWN_PREFIX}state WHERE name = ?", (name,))
    db.execute(f"INSERT INTO {OWN_PREFIX}state(name, value) VALUES (?, ?)", (name, value))


def schema_version(db: sqlite3.Connection) -> int:
    """SQLite's count of changes of the schema."""
    return int(db.execute("PRAGMA main.schema_version").fetchone()[0])


def last_change(db: sqlite3.Connection) -> int:
    """The highest change id given; the trimmer leaves the row that holds it."""
    return int(db.execute(f"SELECT coalesce(max(id), 0) FROM {CHANGE_TABLE}").fetchone()[0])


def last_cut(db: sqlite3.Connection) -> Cut | None:
    """The newest cut."""
    row = db.execute(f"SELECT id, token, change_id, time_us FROM {OWN_PREFIX}cut ORDER BY id DESC LIMIT 1").fetchone()
    return None if row is None else Cut(*row)


def check_cut(db: sqlite3.Connection, cut: Cut) -> None:
    """Raise `ServiceUnavailable` if a cut is not there, as in a database that was restored from an older copy.

    Not `SourceChanged`: only a start knows how far the log has come; it goes on, or says what to do.
    """
    row = db.execute(f"SELECT 1 FROM {OWN_PREFIX}cut WHERE id = ? AND token = ?", (cut.id, cut.token)).fetchone()
    if row is None:
        raise ServiceUnavailable(
            f"the database has lost cut {cut.id}: it was restored from a copy; capture starts again"
        )


def live_versions(db: sqlite3.Connection) -> dict[str, TableVersion]:
    """The versions in force, by source, in order of their names."""
    rows = db.execute(f"SELECT t FROM {OWN_PREFIX}table WHERE live ORDER BY source").fetchall()
    versions = [read_version(db, t) for (t,) in rows]
    return {version.source: version for version in versions}


def read_version(db: sqlite3.Connection, t: int) -> TableVersion:
    """A version by the number in its change rows. Raises `SourceChanged` if it is unknown."""
    row = db.execute(f"SELECT number, definition, kinds FROM {OWN_PREFIX}table WHERE t = ?", (t,)).fetchone()
    if row is None:
        raise SourceChanged(
            f"the change table holds rows of a table version {t} that {OWN_PREFIX}table does not know: the "
            f"bus's own tables were changed. Remove them with `databus sqlite remove DB`, and capture into a new log"
        )
    number, definition, kinds = row
    return TableVersion(t, number, TableSchema.from_json(json.loads(definition)), tuple(json.loads(kinds)))


def add_version(
    db: sqlite3.Connection, number: int | None, table: TableSchema, kinds: tuple[ColumnKind, ...]
) -> TableVersion:
    """Put a version in force, in place of the one before. number: of the table; None for one not captured before."""
    if number is None:
        (number,) = db.execute(f"SELECT coalesce(max(number), 0) + 1 FROM {OWN_PREFIX}table").fetchone()
    db.execute(f"UPDATE {OWN_PREFIX}table SET live = 0 WHERE number = ?", (number,))
    cursor = db.execute(
        f"INSERT INTO {OWN_PREFIX}table(number, source, definition, kinds, live) VALUES (?, ?, ?, ?, 1)",
        (number, table.source, table.canonical, json.dumps(kinds)),
    )
    return TableVersion(cast(int, cursor.lastrowid), cast(int, number), table, kinds)


def retire(db: sqlite3.Connection, version: TableVersion) -> None:
    """Stop capturing a table: its triggers go, its change rows stay until they are trimmed."""
    drop_triggers(db, version.number)
    db.execute(f"DROP TABLE IF EXISTS {scratch_name(version.number)}")
    db.execute(f"UPDATE {OWN_PREFIX}table SET live = 0 WHERE number = ?", (version.number,))
    db.execute(f"DELETE FROM {OWN_PREFIX}wanted WHERE source = ?", (version.source,))


def drop_triggers(db: sqlite3.Connection, number: int) -> None:
    """Remove the triggers of a table."""
    for name in (*trigger_names(number), before_delete_name(number)):
        db.execute(f"DROP TRIGGER IF EXISTS {name}")


def want_snapshot(db: sqlite3.Connection, source: str) -> None:
    """Note that a table is to be read again; a reading that is under way is superseded."""
    before = int(get_state(db, "generation") or 0)
    generation = max(before + 1, time.time_ns() // 1000)
    set_state(db, "generation", str(generation))
    db.execute(f"DELETE FROM {OWN_PREFIX}wanted WHERE source = ?", (source,))
    db.execute(f"INSERT INTO {OWN_PREFIX}wanted(source, generation) VALUES (?, ?)", (source, generation))


def want_no_snapshot(db: sqlite3.Connection, source: str) -> None:
    """Note that a table is not to be read again."""
    db.execute(f"DELETE FROM {OWN_PREFIX}wanted WHERE source = ?", (source,))


def wanted(db: sqlite3.Connection) -> dict[str, int]:
    """The tables to be read again with their generations, in the order of those."""
    return dict(db.execute(f"SELECT source, generation FROM {OWN_PREFIX}wanted ORDER BY generation"))
