"""Random histories of one table as groups of frames, and the obvious twin of a filter over them, row by row."""

import datetime as dt
import random
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa

from databus.core import BUS_SEQ_MIN, ChangeType, ControlKind
from databus.filters import StreamPartition
from databus.schema import Column, Predicate, TableSchema, forms_of, frame_schema, key_buckets, key_bytes
from databus.wire import (
    COMMIT,
    Commit,
    Control,
    Frame,
    Group,
    OpenSnapshot,
    Rows,
    encode_group,
    frames_in,
)

PHYSICAL = "shop"
SOURCE = "main.t"
POOL = {
    "a": "int32", "b": "string", "c": "int64", "d": "float64", "e": "string", "f": "uint64",
    "g": "decimal(9,2)", "h": "date", "i": "binary", "j": "decimal(9,2)", "l": "date",
}  # fmt: skip
VALUES = {
    "float64": (-1.5, 0.0, 2.0, 3.25),
    "uint64": (0, 1, 2, 3, 2**63),
    "decimal(9,2)": tuple(map(Decimal, ("-1.50", "0.00", "1.00", "1.50", "2.25"))),
    "date": tuple(dt.date(2026, month, day) for month, day in ((1, 31), (2, 1), (10, 3))),
    "binary": (b"", b"\x00", b"\x01", b"\x01\x02", b"\xff"),
}
"""Numbers that a double holds as they are, so that SQLite compares the same ones."""
FILLED = ("int32", "int64", "float64", "string", "uint64")
WORDS = ("", "x", "xy", "Xy", "y_", "ä", "10")
AT_US = 1_700_000_000_000_000
INSERT, PRE, POST, DELETE = ChangeType


class Registry:
    """Definitions in order of appearance."""

    def __init__(self) -> None:
        self.tables: list[TableSchema] = []
        self.now: TableSchema | None = None

    def number_of(self, table: TableSchema) -> tuple[int, int]:
        if table not in self.tables:
            self.tables.append(table)
        return 1, self.tables.index(table) + 1

    def definition(self, fingerprint: int) -> TableSchema | None:
        return next((each for each in self.tables if each.fingerprint == fingerprint), None)

    def definitions(self, source: str) -> Sequence[TableSchema]:
        return [each for each in self.tables if each.source == source]

    def definition_now(self, source: str) -> TableSchema | None:
        return self.now if source == SOURCE else None


@dataclass
class Change:
    """One image."""

    kind: ChangeType
    image: dict[str, Any]
    pair: tuple[int, int] = (0, 0)
    snapshot: bool = False


def rows_of(table: TableSchema, changes: Sequence[Change]) -> Rows:
    schema = frame_schema(table)
    columns: list[list[Any]] = [[change.image.get(name) for change in changes] for name in table.names]
    columns += [
        [int(change.kind) for change in changes],
        [change.pair[0] for change in changes],
        [change.pair[1] for change in changes],
        [AT_US + change.pair[0] for change in changes],
        [f"t{change.pair[0]}" for change in changes],
        [change.snapshot for change in changes],
    ]
    arrays = [pa.array(column, schema.field(i).type) for i, column in enumerate(columns)]
    return Rows(table, pa.RecordBatch.from_arrays(arrays, schema=schema))


@dataclass
class History:
    """A table's life. groups: what the log has; each is made as a source makes it."""

    rng: random.Random
    first_images: bool = True
    registry: Registry = field(default_factory=Registry)
    groups: list[Group] = field(default_factory=list)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    scn: int = 0
    bus: int = BUS_SEQ_MIN
    opened: bool = False
    generation: int = 0

    def __post_init__(self) -> None:
        names = self.rng.sample(sorted(POOL), self.rng.randint(1, 5))
        key = (
            ("id",)
            if self.rng.random() < 0.6
            else ("id", "k")
            if self.rng.random() < 0.7 or not self.first_images
            else ()
        )
        fixed = (Column("id", "int64", nullable=False), Column("k", "string"))
        self.table = TableSchema(
            SOURCE, (*fixed, *(Column(name, POOL[name]) for name in names)), key, self.first_images
        )
        self._define(self.table)

    def _define(self, table: TableSchema) -> None:
        self.table = self.registry.now = table
        self.registry.number_of(table)

    def value(self, name: str) -> Any:
        kind = POOL.get(name, "string")
        if self.rng.random() < 0.2:
            return None
        if kind == "string":
            return self.rng.choice(WORDS)
        return self.rng.choice(VALUES.get(kind, (-1, 0, 1, 2, 3)))

    def image(self, number: int) -> dict[str, Any]:
        return {"id": number, **{each.name: self.value(each.name) for each in self.table.columns[1:]}}

    def _logged(self, image: Mapping[str, Any]) -> dict[str, Any]:
        """The first image of a change."""
        return dict(image) if self.first_images else {name: image[name] for name in self.table.key}

    def transaction(self) -> None:
        """Some changes, in one group or in parts."""
        changes: list[Change] = []
        for _ in range(self.rng.randint(1, 6)):
            number, dice = self.rng.randint(1, 8), self.rng.random()
            there = self.rows.get(number)
            if there is None:
                self.rows[number] = self.image(number)
                changes.append(Change(INSERT, dict(self.rows[number])))
            elif dice < 0.25:
                changes.append(Change(DELETE, self._logged(self.rows.pop(number))))
            else:
                after = self.image(number)
                if dice < 0.5:  # one column only
                    name = self.rng.choice(self.table.names[1:])
                    after = {**there, name: after[name]}
                elif dice < 0.65 and number + 10 not in self.rows:
                    after = {**there, "id": number + 10}
                changes += [Change(PRE, self._logged(there)), Change(POST, dict(after))]
                del self.rows[number]
                self.rows[after["id"]] = after
        self.scn += 1
        self._emit(changes, 1, can_part=True)

    def _emit(self, changes: list[Change], first_seq: int, *, can_part: bool) -> None:
        for seq, change in enumerate(changes, first_seq):
            change.pair = self.scn, seq
        cuts = [0, len(changes)]
        if can_part and len(changes) > 2 and self.rng.random() < 0.3:
            at = self.rng.randint(1, len(changes) - 1)
            if changes[at].kind is not POST:
                cuts.insert(1, at)
        for start, end in pairwise(cuts):
            part = changes[start:end]
            commit = self.commit(part[-1].pair[1], continues=end < len(changes))
            self.groups.append(Group(commit, (rows_of(self.table, part),)))

    def commit(self, seq: int, *, continues: bool = False) -> Commit:
        snapshots = {SOURCE: OpenSnapshot(self.generation)} if self.opened else {}
        return Commit(self.scn, seq, f"t{self.scn}", {"n": self.scn}, AT_US + self.scn, snapshots, continues)

    def control(self, kind: ControlKind, seq: int, **body: Any) -> None:
        control = Control(kind, self.table, self.scn, seq, {"kind": kind, "source": SOURCE, **body})
        self.groups.append(Group(self.commit(seq), (), control))

    def ddl(self) -> None:
        before, dice = self.table, self.rng.random()
        free = [name for name in sorted(POOL) if name not in before.names]
        own = [name for name in before.names if name in POOL]
        renamed: dict[str, str] = {}
        fill: dict[str, Any] = {}
        if dice < 0.45 and free:
            name = self.rng.choice(free)
            columns = (*before.columns, Column(name, POOL[name]))
            if self.rng.random() < 0.5 and POOL[name] in FILLED:
                fill[name] = "x" if POOL[name] == "string" else 1
        elif dice < 0.8 and own and any(POOL[name] == POOL[each] for name in own for each in free):
            old, new = self.rng.choice([(o, f) for o in own for f in free if POOL[o] == POOL[f]])
            renamed[old] = new
            columns = tuple(replace(each, name=renamed.get(each.name, each.name)) for each in before.columns)
        elif len(own) > 1:
            gone = self.rng.choice(own)
            columns = tuple(each for each in before.columns if each.name != gone)
        else:
            return
        self._define(replace(before, columns=columns))
        olds = {new: old for old, new in renamed.items()}
        for row in self.rows.values():
            was = dict(row)
            row.clear()
            row.update({name: was.get(olds.get(name, name), fill.get(name)) for name in self.table.names})
        self.scn += 1
        told = {"class": 2 if fill else 1, "renamed": renamed, "fill": fill, "previous": f"{before.fingerprint:016x}"}
        self.control(ControlKind.SCHEMA, 1, table=self.table.to_json(), ddl="ALTER TABLE t", **told)

    def snapshot(self) -> None:
        self.bus += 1
        if not self.opened:
            self.opened, self.generation = True, self.generation + 1
            self.control(ControlKind.SNAPSHOT_BEGIN, self.bus, generation=self.generation)
        elif self.rng.random() < 0.5 and self.rows:
            chosen = [row for row in self.rows.values() if self.rng.random() < 0.5] or list(self.rows.values())[:1]
            changes = [Change(INSERT, dict(row), snapshot=True) for row in chosen]
            self.bus += len(changes)
            self._emit(changes, self.bus, can_part=False)
            self.bus += len(changes)
        else:
            self.opened = False
            self.control(ControlKind.SNAPSHOT_END, self.bus, generation=self.generation, begin=[0, 0], complete=True)

    def run(self, steps: int) -> "History":
        self.scn += 1
        for _ in range(steps):
            dice = self.rng.random()
            if dice < 0.6:
                self.transaction()
            elif dice < 0.75:
                self.ddl()
            elif dice < 0.95:
                self.snapshot()
            else:
                self.rows.clear()
                self.scn += 1
                self.control(ControlKind.TRUNCATE, 1)
        return self

    def encoded(self) -> bytes:
        pieces = [encode_group(group, self.registry, AT_US).buffers for group in self.groups]
        return b"".join(bytes(each) for buffers in pieces for each in buffers)


# The twin


@dataclass(frozen=True)
class Wanted:
    where: str | None
    columns: tuple[str, ...] | None
    partition: StreamPartition | None


def conditions(rng: random.Random, names: Sequence[str]) -> str:
    """A condition over some columns."""

    def test() -> str:
        name = rng.choice(names)
        dice = rng.random()
        if dice < 0.15:
            return f"{name} IS {rng.choice(('', 'NOT '))}NULL"
        if POOL.get(name, "string") == "string" and name != "id":
            quoted = [f"'{word}'" for word in rng.sample(WORDS, 2)]
            forms = (f"= {quoted[0]}", f"< {quoted[0]}", f"IN ({', '.join(quoted)})", "LIKE 'x%'", "NOT LIKE '_y'")
            return f"{name} {rng.choice(forms)}"
        if POOL.get(name) == "date":
            days = "'2026-01-31'", "'2026-02-01'", "'2026-09-30'"
            forms = (f"= {days[0]}", f"< {days[1]}", f">= {days[2]}", f"IN ({', '.join(days)})")
            return f"{name} {rng.choice(forms)}"
        if POOL.get(name) == "binary":
            forms = ("= X'01'", "<> X'0102'", "IN (X'', X'00')")
            return f"{name} {rng.choice(forms)}"
        forms = (
            f"= {rng.randint(0, 3)}",
            f">= {rng.randint(0, 3)}",
            "<> 1.5",
            "BETWEEN 1 AND 2",
            "IN (1, 2, 9)",
            "< 2.5",
        )
        return f"{name} {rng.choice(forms)}"

    def joined(depth: int) -> str:
        dice = rng.random()
        if depth == 0 or dice < 0.4:
            return test()
        if dice < 0.55:
            return f"NOT ({joined(depth - 1)})"
        return f"({joined(depth - 1)} {rng.choice(('AND', 'OR'))} {joined(depth - 1)})"

    return joined(2)


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, Decimal) or (isinstance(value, int) and value >= 2**63):
        return float(value)
    return value.isoformat() if isinstance(value, dt.date) else value


class Twin:
    """A filter, row by row; SQLite judges."""

    def __init__(self, wanted: Wanted, history: History) -> None:
        self.wanted, self.history = wanted, history
        self.database = sqlite3.connect(":memory:")
        self.database.execute("PRAGMA case_sensitive_like = ON")
        self.reads = set(Predicate.parse(wanted.where).columns) if wanted.where else set()

    def holds(self, image: Mapping[str, Any], table: TableSchema) -> bool:
        if self.wanted.where is None:
            return True
        values = {name: image.get(name) for name in {*table.names, *self.reads}}
        values = {name: _for_sqlite(value) for name, value in values.items()}
        row = ", ".join(f'? AS "{name}"' for name in values)
        (found,) = self.database.execute(
            f"SELECT {self.wanted.where} FROM (SELECT {row})", list(values.values())
        ).fetchone()
        return bool(found)

    def is_mine(self, image: Mapping[str, Any], table: TableSchema) -> bool:
        part = self.wanted.partition
        if part is None:
            return True
        columns = [pa.array([image.get(name)], forms_of(table.column(name).type).arrow) for name in table.key]
        keys = key_bytes(columns) if columns else pa.array([SOURCE.encode()], pa.large_binary())
        return int(key_buckets(keys, part.count)[0]) == part.index

    def sent(self, table: TableSchema) -> tuple[str, ...]:
        columns = self.wanted.columns
        return tuple(name for name in table.names if columns is None or name in columns or name in table.key)

    def group(self, table: TableSchema, images: list[Change], *, opened: bool) -> list[Change]:
        out: list[Change] = []
        at = 0
        while at < len(images):
            both = images[at : at + (2 if images[at].kind is PRE else 1)]
            at += len(both)
            mine = [self.is_mine(each.image, table) for each in both]
            holds = [self.holds(each.image, table) for each in both]
            cut = [{name: each.image.get(name) for name in self.sent(table)} for each in both]
            if len(both) == 2 and all(mine) and all(holds):
                is_projected = len(self.sent(table)) < len(table.names)
                if not (is_projected and cut[0] == cut[1] and not opened and table.first_images):
                    out += [replace(each, image=image) for each, image in zip(both, cut, strict=True)]
                continue
            same_key = len(both) == 2 and all(both[0].image.get(n) == both[1].image.get(n) for n in table.key)
            for number, each in enumerate(both):
                if not mine[number]:
                    continue
                if holds[number]:
                    kind = {PRE: DELETE, POST: INSERT}.get(each.kind, each.kind)
                    out.append(replace(each, kind=kind, image=cut[number]))
                elif not table.first_images and self.wanted.where and not (same_key and (number == 0 or holds[0])):
                    key = {name: each.image.get(name) if name in table.key else None for name in self.sent(table)}
                    out.append(replace(each, kind=DELETE, image=key))
        return out

    def is_exact(self, before: TableSchema, table: TableSchema, body: Mapping[str, Any]) -> bool:
        if not self.judges(before):
            return False
        renamed, fill = body["renamed"], body["fill"]
        cut_in = any(new in self.sent(table) and old not in self.sent(before) for old, new in renamed.items())
        for name in self.reads:
            if name in renamed or name in renamed.values() or name in fill:
                return False
        return not cut_in

    def judges(self, table: TableSchema) -> bool:
        """Whether each column of the condition is there, or is one that the table got later."""
        known = self.history.registry
        later = [] if table == known.now else known.tables[known.tables.index(table) + 1 :]
        return all(name in table.names or any(name in each.names for each in later) for name in self.reads)

    def loses(self, before: TableSchema, table: TableSchema) -> bool:
        return any(name in before.names and name not in table.names for name in self.reads)


def images_of(frame: Frame, table: TableSchema) -> list[Change]:
    rows = frame.batch.to_pylist()
    return [
        Change(
            ChangeType(row["_change_type"]),
            {name: row[name] for name in table.names},
            (row["_commit_version"], row["_seq"]),
            row["_snapshot"],
        )
        for row in rows
    ]


def groups_of(content: bytes) -> Iterator[tuple[list[Frame], Frame]]:
    """The groups of a stream: frames, and the commit frame."""
    frames: list[Frame] = []
    for _, frame in frames_in(content, "twin"):
        if frame.header.kind == COMMIT:
            yield frames, frame
            frames = []
        else:
            frames.append(frame)
