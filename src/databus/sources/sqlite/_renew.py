"""Renew: bring the triggers in line with the schema, and say what happened to the tables meanwhile.

Runs in the transaction of a cut, whenever SQLite's schema version has moved. What it finds is classed as DESIGN 4.6:
(1) only metadata, (2) columns added whose value in existing rows is known, (3) anything else; a table whose triggers
were missing, or could miss something, is a gap. After gaps and class 3 the table is read again.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from databus.core import ControlKind, UnrepresentableValue, UnsupportedFeature, name_parts, source_name
from databus.formats import to_json_value
from databus.schema import TableSchema, diff
from databus.sources._bus_frames import gap_body
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._describe import Described, describe
from databus.sources.sqlite._store import (
    Event,
    TableVersion,
    add_version,
    drop_triggers,
    get_state,
    live_versions,
    retire,
    schema_version,
    set_state,
    want_snapshot,
    wanted,
)
from databus.sources.sqlite._tables import OWN_PREFIX, ColumnShape, TableShape, list_tables, quoted, read_shape
from databus.sources.sqlite._tokens import is_after_trigger, is_literal, mentions
from databus.sources.sqlite._triggers import (
    CHANGE_TABLE,
    TriggerPlan,
    gone_sql,
    scratch_name,
    scratch_sql,
    trigger_names,
    trigger_sql,
)
from databus.sources.sqlite._types import ACCEPTED, ColumnKind, exact_sql


@dataclass(frozen=True, slots=True)
class Since:
    """What may have happened since the last cut."""

    change_id: int
    """The last change before that cut."""
    is_by_alter: bool = False
    """Whether the caller did the DDL in this very transaction, after removing the triggers itself (`alter`). Then
    nothing was written under the new schema, and a missing trigger means nothing."""
    ddl: str | None = None
    """Text of the DDL."""


def renew(db: sqlite3.Connection, config: SqliteConfig, since: Since) -> list[Event]:
    """Renew what differs, in the caller's transaction. Returns the controls for its cut, in a stable order.

    Raises `ConfigError` and `UnsupportedFeature` for tables that cannot be captured as asked.
    """
    live = live_versions(db)
    present = list_tables(db)
    sources = {source_name("main", name): name for name in present}
    chosen = {source: name for source, name in sources.items() if config.selects(source)}
    for source, name in chosen.items():
        if present[name] == "virtual" and config.names_exactly(source):
            raise UnsupportedFeature(
                f"{source} is a virtual table: SQLite fires no triggers on it, so it cannot be captured"
            )
    chosen = {source: name for source, name in chosen.items() if present[name] == "table"}
    events: list[Event] = []
    for source, version in live.items():
        if source not in chosen:
            retire(db, version)
            if name_parts(source)[1] not in present:
                events.append(Event(ControlKind.DROP, version, {"kind": ControlKind.DROP, "source": source}))
    for source, name in chosen.items():
        shape = read_shape(db, name)
        described = describe(config, shape)
        if source in live:
            events += _renew_table(db, shape, described, live[source], since)
        else:
            version = add_version(db, None, described.table, described.kinds)
            _install(db, _plan(db, shape, version))
            want_snapshot(db, source)
    set_state(db, "schema_version", str(schema_version(db)))
    return events


def _plan(db: sqlite3.Connection, shape: TableShape, version: TableVersion) -> TriggerPlan:
    triggers = _triggers_of(db, shape.name)
    has_before = any(not name.startswith(OWN_PREFIX) and not is_after_trigger(sql) for name, sql in triggers.items())
    return TriggerPlan(shape, version.number, version.t, version.table.names, has_before)


def _triggers_of(db: sqlite3.Connection, table: str) -> dict[str, str]:
    """The SQL of a table's triggers by name, the newest first."""
    rows = db.execute(
        "SELECT name, sql FROM main.sqlite_schema WHERE type = 'trigger' AND tbl_name = ? ORDER BY rowid DESC", (table,)
    )
    return dict(rows.fetchall())


def log_gone(db: sqlite3.Connection) -> None:
    """Log the deletes that no trigger logged, in the transaction of a cut, before its last change is known.

    That is a row which was replaced, and the row that replaced it deleted before its AFTER trigger: by an action of a
    foreign key that follows the replaced one.
    """
    present = list_tables(db)
    is_same_schema = get_state(db, "schema_version") == str(schema_version(db))
    for source, version in live_versions(db).items():
        _, name = name_parts(source)
        waiting = f"SELECT EXISTS (SELECT 1 FROM {scratch_name(version.number)} WHERE NOT held)"
        if present.get(name) != "table" or not db.execute(waiting).fetchone()[0]:
            continue
        shape = read_shape(db, name)
        if is_same_schema or (shape.primary_key and shape.primary_key == version.table.key):  # VACUUM moves rowids
            db.execute(gone_sql(_plan(db, shape, version)))


def _install(db: sqlite3.Connection, plan: TriggerPlan) -> None:
    drop_triggers(db, plan.number)
    db.execute(f"DROP TABLE IF EXISTS {scratch_name(plan.number)}")
    (slots,) = db.execute(
        "SELECT count(*) FROM pragma_table_info(?, 'main') WHERE name LIKE 'c%'", (CHANGE_TABLE,)
    ).fetchone()
    for slot in range(slots, len(plan.columns)):
        db.execute(f"ALTER TABLE {CHANGE_TABLE} ADD COLUMN c{slot}")
    for statement in (*scratch_sql(plan), *trigger_sql(plan).values()):
        db.execute(statement)


def _renew_table(
    db: sqlite3.Connection, shape: TableShape, described: Described, old: TableVersion, since: Since
) -> list[Event]:
    triggers = _triggers_of(db, shape.name)
    complete = since.is_by_alter or all(name in triggers for name in trigger_names(old.number))
    same = described.table == old.table and described.kinds == old.kinds
    plan = _plan(db, shape, old)
    if shape.has_rowid and shape.rowid_column is None and old.source in wanted(db):
        # From its beginning: VACUUM, which looks like a change of the schema, moves rowids.
        want_snapshot(db, old.source)
    if same and _is_as_planned(plan, triggers):
        return []
    touched = not since.is_by_alter and (_is_touched(db, old, since) or _may_hide(triggers))
    if not same:
        new = add_version(db, old.number, described.table, described.kinds)
        _install(db, _plan(db, shape, new))
        event = _schema_event(db, shape, old, new, since, complete=complete, touched=touched)
        if event.body["class"] == 3:
            want_snapshot(db, old.source)
        return [event]
    _install(db, plan)
    if complete and not touched:
        return []
    want_snapshot(db, old.source)
    reason = (
        "a unique index or a trigger was added while rows were written; some may have been replaced or changed unseen"
        if complete
        else "the table was made again, or its triggers were removed; changes until now were not captured"
    )
    return [_gap(old, reason)]


def _gap(version: TableVersion, reason: str) -> Event:
    return Event(ControlKind.GAP, version, gap_body(version.source, None, None, reason, is_read_again=True))


def _is_as_planned(plan: TriggerPlan, triggers: Mapping[str, str]) -> bool:
    """Whether the triggers are those that we would make, and are fired before the user's. triggers: the newest first.

    SQLite fires the newest first. A user's AFTER trigger that is fired before ours may change the row again, which
    would be logged before the change that it follows, or end with RAISE(IGNORE), after which ours is not fired at all.
    """
    planned = trigger_sql(plan)
    return list(triggers.items())[: len(planned)] == list(planned.items())[::-1]


def _is_touched(db: sqlite3.Connection, version: TableVersion, since: Since) -> bool:
    row = db.execute(
        f"SELECT EXISTS (SELECT 1 FROM {CHANGE_TABLE} WHERE id > ? AND t = ?)", (since.change_id, version.t)
    )
    return bool(row.fetchone()[0])


def _may_hide(triggers: Mapping[str, str]) -> bool:
    """Whether a user's trigger may have ended a statement before ours was fired, so that nothing was logged."""
    return any(
        mentions(sql, ["raise"]) and mentions(sql, ["ignore"])
        for name, sql in triggers.items()
        if not name.startswith(OWN_PREFIX)
    )


def _schema_event(
    db: sqlite3.Connection,
    shape: TableShape,
    old: TableVersion,
    new: TableVersion,
    since: Since,
    *,
    complete: bool,
    touched: bool,
) -> Event:
    number, fill = 3, None
    if complete:
        number, fill = _classify(db, shape, old, new, since, touched=touched)
    body = schema_body(new.table, old.table, number, fill or {}, since.ddl)
    return Event(ControlKind.SCHEMA, new, body)


def schema_body(
    table: TableSchema, previous: TableSchema, number: int, fill: Mapping[str, Any], ddl: str | None
) -> dict[str, Any]:
    """The body of a `schema` control."""
    return {
        "kind": ControlKind.SCHEMA,
        "source": table.source,
        "ddl": ddl,
        "class": number,
        "table": table.to_json(),
        "previous": f"{previous.fingerprint:016x}",
        "fill": fill,
    }


def _classify(
    db: sqlite3.Connection, shape: TableShape, old: TableVersion, new: TableVersion, since: Since, *, touched: bool
) -> tuple[int, dict[str, Any] | None]:
    changed = diff(old.table, new.table)
    kinds = dict(zip(new.table.names, new.kinds, strict=True))
    retyped = any(kinds.get(name, kind) != kind for name, kind in zip(old.table.names, old.kinds, strict=True))
    if retyped or changed.narrowed or changed.widened or changed.key_changed:
        return 3, None
    if not changed.added:
        return (1, None) if since.is_by_alter or not changed.dropped else (3, None)
    columns = {column.name: column for column in shape.columns}
    added = [columns[column.name] for column in changed.added]
    stored = [column.name for column in shape.columns]
    appended = stored[-len(added) :] == [column.name for column in added]
    if changed.dropped or not appended or not all(_has_known_value(column) for column in added):
        return 3, None
    fill = {column.name: _default(column, kinds[column.name], old.source) for column in added}
    if touched and not _still_filled(db, shape, old, added, fill, since):
        return 3, None
    return 2, {name: value.json for name, value in fill.items()}


def _has_known_value(column: ColumnShape) -> bool:
    return not column.is_generated and (column.default is None or is_literal(column.default))


@dataclass(frozen=True, slots=True)
class _Filled:
    """What an added column holds in the rows that were there: as JSON, and as the SQL literal."""

    json: Any
    literal: str


def _default(column: ColumnShape, kind: ColumnKind, source: str) -> _Filled:
    """A literal default as SQLite stores it in a column of that declaration."""
    memory = sqlite3.connect(":memory:")
    try:
        memory.execute(f"CREATE TABLE d(v {column.declared} DEFAULT {column.default or 'NULL'})")
        memory.execute("INSERT INTO d DEFAULT VALUES")
        value, literal = memory.execute(f"SELECT {exact_sql(kind, 'v')}, {exact_sql('any', 'v')} FROM d").fetchone()
    finally:
        memory.close()
    if type(value) not in ACCEPTED[kind]:
        raise UnrepresentableValue(
            f"{source}.{column.name}: its default {column.default} is not a value of {kind}; capture the column as "
            f"literals with `types: {{{source}: {{{column.name}: any}}}}`"
        )
    return _Filled(to_json_value(value), literal or "NULL")


def _still_filled(
    db: sqlite3.Connection,
    shape: TableShape,
    old: TableVersion,
    added: list[ColumnShape],
    fill: Mapping[str, _Filled],
    since: Since,
) -> bool:
    """Whether each row written since the last cut holds the default in the new columns, so that nothing was missed."""
    if not old.table.key:
        return False
    table = quoted(shape.name)
    slots = {name: slot for slot, name in enumerate(old.table.names)}
    same = " AND ".join(f"{table}.{quoted(name)} = c.c{slots[name]}" for name in old.table.key)
    differs = " OR ".join(f"{exact_sql('any', f'{table}.{quoted(c.name)}')} IS NOT ?" for c in added)
    literals = [None if fill[c.name].literal == "NULL" else fill[c.name].literal for c in added]
    row = db.execute(
        f"SELECT EXISTS (SELECT 1 FROM {CHANGE_TABLE} AS c CROSS JOIN {table} ON {same} "
        f"WHERE c.id > ? AND c.t = ? AND ({differs}))",
        (since.change_id, old.t, *literals),
    )
    return not row.fetchone()[0]


def recast(db: sqlite3.Connection, config: SqliteConfig, installed: SqliteConfig, change_id: int) -> list[Event]:
    """Where `types:` now says otherwise for a table that is itself unchanged, read its waiting change rows again, too.

    Change rows hold values as they were written, so those after `change_id` can be read as the new types say: this is
    how a value that stopped capture is got past. Returns the class 3 controls that come before them.
    """
    if config.types == installed.types:
        return []
    events = []
    present = list_tables(db)
    for source, old in live_versions(db).items():
        _, name = name_parts(source)
        if present.get(name) != "table" or not config.selects(source):
            continue
        shape = read_shape(db, name)
        described = describe(config, shape)
        is_old = describe(installed, shape) == Described(old.table, old.kinds)
        if not is_old or described.kinds == old.kinds or described.table.names != old.table.names:
            continue
        new = add_version(db, old.number, described.table, described.kinds)
        db.execute(f"UPDATE {OWN_PREFIX}table SET recast = ?, recast_after = ? WHERE t = ?", (new.t, change_id, old.t))
        _install(db, _plan(db, shape, new))
        want_snapshot(db, source)
        events.append(Event(ControlKind.SCHEMA, new, schema_body(new.table, old.table, 3, {}, None)))
    set_state(db, "schema_version", str(schema_version(db)))
    return events
