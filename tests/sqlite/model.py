"""A model of a log and of a mirror: what a relay and a copy do, in a few lines that are obviously right."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from databus.core import BUS_COLUMNS, ControlKind
from databus.formats import from_json_value
from databus.log import Resume
from databus.schema import TableSchema
from databus.sources.sqlite import SqliteConfig, SqliteSource
from databus.wire import Commit, Group

Row = dict[str, Any]
BOUND_S = 60


def changes_of(groups: list[Group]) -> list[Row]:
    """All rows in order, each with its table under `table`."""
    rows = [{"table": r.table.source, **row} for g in groups for r in g.rows for row in r.batch.to_pylist()]
    return sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"]))


def kinds_of(groups: list[Group], table: str | None = None, *, snapshot: bool = False) -> list[tuple[int, Row]]:
    """(change type, the user's columns) of logged rows, in order."""
    return [
        (row["_change_type"], {k: v for k, v in row.items() if k not in BUS_COLUMNS and k != "table"})
        for row in changes_of(groups)
        if row["_snapshot"] == snapshot and (table is None or row["table"] == table)
    ]


def controls_of(groups: list[Group]) -> list[dict[str, Any]]:
    return [dict(group.control.body) for group in groups if group.control is not None]


@dataclass
class Mirror:
    """The mirror rule of DESIGN 5: per key the last row wins; tables without a key are kept as multisets of images."""

    rows: dict[str, dict[tuple[Any, ...], Row]] = field(default_factory=dict)
    pairs: dict[str, dict[tuple[Any, ...], tuple[int, int]]] = field(default_factory=dict)
    schemas: dict[str, TableSchema] = field(default_factory=dict)

    def apply(self, group: Group) -> None:
        if group.control is not None:
            self._control(group)
        merged = sorted(
            (
                ((row["_commit_version"], row["_seq"]), rows.table, row)
                for rows in group.rows
                for row in rows.batch.to_pylist()
            ),
            key=lambda each: each[0],
        )
        for pair, table, row in merged:
            self._row(table, pair, row)

    def _row(self, table: TableSchema, pair: tuple[int, int], row: Row) -> None:
        rows, pairs = self.rows.setdefault(table.source, {}), self.pairs.setdefault(table.source, {})
        image = {name: row[name] for name in table.names}
        key = tuple(image[name] for name in table.key or table.names)
        if key in pairs and pairs[key] > pair:
            return
        pairs[key] = pair
        if row["_change_type"] in (1, 3):
            rows[key] = image
        else:
            rows.pop(key, None)

    def _control(self, group: Group) -> None:
        control = group.control
        assert control is not None
        source, body = control.table.source, control.body
        self.schemas[source] = control.table
        rows, pairs = self.rows.setdefault(source, {}), self.pairs.setdefault(source, {})
        if control.kind == ControlKind.DROP:
            rows.clear()
            pairs.clear()
        elif control.kind == ControlKind.SCHEMA:
            for row in rows.values():
                for name in set(row) - set(control.table.names):
                    del row[name]
                for name in control.table.names:
                    fill = body["fill"].get(name)
                    row.setdefault(name, from_json_value(fill, control.table.column(name).type))
        elif control.kind == ControlKind.SNAPSHOT_END and body["complete"]:
            for key in [key for key in rows if pairs[key] < tuple(body["begin"])]:
                del rows[key]


@dataclass
class ModelLog:
    """Where groups go, and what a relay would resume from; parts of a transaction are dropped by `cut_back`."""

    groups: list[Group] = field(default_factory=list)
    log_id: str = "log-1"

    def append(self, group: Group) -> None:
        self._check(group)
        self.groups.append(group)

    def _check(self, group: Group) -> None:
        last = self.groups[-1].commit if self.groups else None
        first = group.commit.pair
        pairs = []
        for rows in group.rows:
            batch = rows.batch
            assert batch.num_rows, "a frame without rows"
            found = list(zip(batch["_commit_version"].to_pylist(), batch["_seq"].to_pylist(), strict=True))
            assert found == sorted(found), "rows of a frame are not in order"
            pairs += found
        assert len({rows.table for rows in group.rows}) == len(group.rows), "two frames of one schema in a group"
        if group.control is not None:
            pairs.append(group.control.pair)
        if pairs:
            assert len(set(pairs)) == len(pairs), "a pair stands twice"
            assert max(pairs) <= group.commit.pair
            first = min(pairs)
        if last is not None:
            assert first > last.pair or (not pairs and first >= last.pair), f"{first} after {last.pair}"

    def cut_back(self) -> None:
        while self.groups and self.groups[-1].commit.continues:
            self.groups.pop()

    @property
    def last(self) -> Commit | None:
        return self.groups[-1].commit if self.groups else None

    def resume(self) -> Resume:
        self.cut_back()
        return resume_after(self.last, self.log_id)

    def mirror(self) -> Mirror:
        mirror = Mirror()
        for group in self.groups:
            mirror.apply(group)
        return mirror


def resume_after(commit: Commit | None, log_id: str = "log-1") -> Resume:
    if commit is None:
        return Resume(log_id=log_id)
    return Resume(
        position=commit.position,
        scn=commit.scn,
        seq=commit.seq,
        txid=commit.txid,
        timeline=commit.scn >> 55,
        snapshots=commit.snapshots,
        log_id=log_id,
    )


def drain(source: SqliteSource, log: ModelLog, wait_ms: int = 30) -> list[Group]:
    """Poll until nothing waits any more."""
    taken = []
    limit = time.monotonic() + BOUND_S
    while (group := source.poll(wait_ms)) is not None:
        log.append(group)
        taken.append(group)
        assert time.monotonic() < limit, "the source never rests"
    return taken


def drain_until(source: SqliteSource, log: ModelLog, done: Callable[[], bool]) -> list[Group]:
    taken = []
    limit = time.monotonic() + BOUND_S
    while not done():
        if (group := source.poll(20)) is not None:
            log.append(group)
            taken.append(group)
        assert time.monotonic() < limit, "what was waited for never came"
    return taken


def table_rows(path: str, table: TableSchema) -> list[Row]:
    """The database's own SELECT; columns captured as literals by its own quote()."""
    columns = []
    for column in table.columns:
        name = '"' + column.name.replace('"', '""') + '"'
        columns.append(f"nullif(quote({name}), 'NULL')" if column.db_type == "ANY (as a literal)" else name)
    name = table.source.removeprefix("main.").replace('"', '""')
    db = sqlite3.connect(path)
    try:
        return [
            dict(zip(table.names, row, strict=True)) for row in db.execute(f'SELECT {", ".join(columns)} FROM "{name}"')
        ]
    finally:
        db.close()


def as_set(rows: Any) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def assert_identical(path: str, log: ModelLog, tables: list[str]) -> None:
    mirror = log.mirror()
    for name in tables:
        table = mirror.schemas[f"main.{name}"]
        assert as_set(mirror.rows[table.source].values()) == as_set(table_rows(path, table)), (
            f"the copy of {name} differs"
        )


def make_source(path: str, **options: Any) -> SqliteSource:
    return SqliteSource(
        "shop", SqliteConfig(path=str(path), **{"cut_interval_ms": 0, "poll_ms": 5, "trim_interval_ms": 0, **options})
    )
