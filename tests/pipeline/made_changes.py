"""A made-up table whose schema changes all the time: its log in frames, and what it is by plain Python.

A column is a number here, whatever it is called: a row is a mapping from numbers to values, and a change of the schema
gives numbers other names, or makes or ends some. So nothing here follows a control to know what a row is today.
"""

import datetime as dt
import random
import sqlite3
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from databus.core import BUS_SEQ_MIN, ChangeType, ControlKind, Pair
from databus.schema import Column, TableSchema, frame_schema
from databus.wire import Commit, Control, EncodedGroup, FrameGroup, FrameParser, Group, Rows, encode_group

SOURCE = "main.t"
ID = 0


@dataclass(frozen=True)
class Col:
    """A column by what it is. default: what rows hold that were there before it; by_id: or that many times their id."""

    number: int
    name: str
    kind: str
    default: Any = None
    by_id: int | None = None


FIRST = (Col(ID, "id", "int32"), Col(1, "a", "int32"), Col(2, "b", "string"))
Images = list[tuple[ChangeType, dict[int, Any]]]
Selected = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Image:
    """A row of the log."""

    pair: Pair
    kind: ChangeType
    row: dict[int, Any]


class _Numbers:
    def number_of(self, table: TableSchema) -> tuple[int, int]:
        del table
        return 1, 1


@dataclass
class MadeTable:
    """Its columns and rows of now, its log, and where it was changed so that values were lost (`lossy`)."""

    rng: random.Random
    columns: list[Col] = field(
        default_factory=lambda: [Col(ID, "id", "int32"), Col(1, "a", "int32"), Col(2, "b", "string")]
    )
    rows: dict[int, dict[int, Any]] = field(default_factory=dict)
    groups: list[FrameGroup] = field(default_factory=list)
    images: list[Image] = field(default_factory=list)
    changed: list[tuple[Pair, str, TableSchema]] = field(default_factory=list)
    lossy: list[Pair] = field(default_factory=list)
    _scn: int = 0
    _next: int = 3
    _bus: int = 0

    @property
    def table(self) -> TableSchema:
        return TableSchema(SOURCE, tuple(Column(col.name, col.kind) for col in self.columns), ("id",))

    def now(self, row: dict[int, Any]) -> dict[str, Any]:
        """A row, of any time, as the table has it now."""
        return {col.name: self._value(col, row) for col in self.columns}

    def _value(self, col: Col, row: dict[int, Any]) -> Any:
        if col.number in row:
            value = row[col.number]
            return str(value) if col.kind == "string" and value is not None else value
        return col.default if col.by_id is None else col.by_id * row[ID]

    def selected(self, sql: str) -> Selected:
        """What SQL says of the rows of now. Raises sqlite3.OperationalError for a column that is not there."""
        return sorted(select(sql, [self.now(row) for row in self.rows.values()], self.table), key=repr)

    # The log

    def _group(self, images: Images, control: Any = None, *, bus: bool = False) -> None:
        """A group: a control, then rows. bus: made by the bus itself, after the last transaction."""
        if not bus:
            self._scn += 1
        seq = BUS_SEQ_MIN + self._bus if bus else 0
        head = None
        if control is not None:
            seq += 1
            kind, body = control
            head = Control(kind, self.table, self._scn, seq, {"kind": kind, "source": SOURCE, **body})
            if kind is ControlKind.SCHEMA:
                self.changed.append(((self._scn, seq), body["what"], self.table))
        rows: list[dict[str, Any]] = []
        for kind, row in images:
            seq += 1
            self.images.append(Image((self._scn, seq), kind, row))
            rows.append({**self.now(row), "_change_type": int(kind), "_seq": seq, "_snapshot": bus})
        self._bus = max(self._bus, seq - BUS_SEQ_MIN)
        at = dt.datetime.fromtimestamp(self._scn, dt.UTC)
        told = {"_commit_version": self._scn, "_commit_timestamp": at, "_txid": f"t{self._scn}"}
        schema = frame_schema(self.table)
        made = [Rows(self.table, _batch([{**row, **told} for row in rows], schema))] if rows else []
        commit = Commit(self._scn, seq, f"t{self._scn}", {}, self._scn)
        encoded: EncodedGroup = encode_group(Group(commit, tuple(made), head), _Numbers(), 0)
        self.groups += _parsed(b"".join(bytes(buffer) for buffer in encoded.buffers))

    def write(self) -> None:
        """A transaction of some rows."""
        images: Images = []
        for _ in range(self.rng.choice((1, 2, 5))):
            row_id = self.rng.randrange(12)
            before = self.rows.pop(row_id, None)
            if before is not None and self.rng.random() < 0.3:
                images.append((ChangeType.DELETE, self._whole(before)))
                continue
            after = {col.number: self._random(col, row_id) for col in self.columns}
            self.rows[row_id] = after
            if before is None:
                images.append((ChangeType.INSERT, after))
            else:
                images += [(ChangeType.UPDATE_PREIMAGE, self._whole(before)), (ChangeType.UPDATE_POSTIMAGE, after)]
        self._group(images)

    def _whole(self, row: dict[int, Any]) -> dict[int, Any]:
        return {col.number: self._value(col, row) for col in self.columns}

    def _random(self, col: Col, row_id: int) -> Any:
        if col.number == ID:
            return row_id
        value = self.rng.choice((None, 0, 1, 5, 100))
        return str(value) if col.kind == "string" and value is not None else value

    # Changes of the schema

    def alter(self, what: str, **given: Any) -> None:
        """One change of the schema of that kind, in a transaction of its own."""
        getattr(self, f"_{what}")(**given)

    def _altered(self, what: str, number: int, before: TableSchema, **body: Any) -> None:
        told = {"what": what, "class": number, "previous": f"{before.fingerprint:016x}", "fill": {}, "renamed": {}}
        self._group([], (ControlKind.SCHEMA, {**told, **body}))
        if number == 3:
            self.lossy.append(self.changed[-1][0])
            begin = (self._scn, BUS_SEQ_MIN + self._bus + 1)
            self._group([], (ControlKind.SNAPSHOT_BEGIN, {"generation": 1}), bus=True)
            self.rows = {row_id: self._whole(row) for row_id, row in self.rows.items()}
            self._group([(ChangeType.INSERT, dict(row)) for row in self.rows.values()], bus=True)
            end = {"complete": True, "begin": list(begin), "generation": 1}
            self._group([], (ControlKind.SNAPSHOT_END, end), bus=True)

    def _some(self, kinds: tuple[str, ...] = ("int32", "int64", "string")) -> int | None:
        found = [at for at, col in enumerate(self.columns) if col.number != ID and col.kind in kinds]
        return self.rng.choice(found) if found else None

    def _free(self) -> str:
        """A name that no column has; often one that a column had."""
        return self.rng.choice([name for name in "abcdef" if name not in {col.name for col in self.columns}] or ["g"])

    def _rename(self) -> None:
        at, before = self._some(), self.table
        if at is not None:
            old, new = self.columns[at].name, self._free()
            self.columns[at] = _with(self.columns[at], name=new)
            self._altered("rename", 1, before, renamed={old: new})

    def _swap(self) -> None:
        """Two columns change their names for each other's."""
        if len(self.columns) < 3:
            return
        before = self.table
        one, two = self.rng.sample(range(1, len(self.columns)), 2)
        names = self.columns[one].name, self.columns[two].name
        self.columns[one] = _with(self.columns[one], name=names[1])
        self.columns[two] = _with(self.columns[two], name=names[0])
        self._altered("swap", 1, before, renamed={names[0]: names[1], names[1]: names[0]})

    def _add(self, name: str | None = None) -> None:
        before, name, kind = self.table, name or self._free(), self.rng.choice(("int32", "string"))
        value = self.rng.choice((None, 7))
        default = str(value) if kind == "string" and value is not None else value
        self._new(Col(self._next, name, kind, default))
        self._altered("add", 2, before, fill={name: default})

    def _add_unknown(self) -> None:
        """A column whose value in each row is an expression's."""
        before = self.table
        self._new(Col(self._next, self._free(), "int32", by_id=7))
        self._altered("add_unknown", 3, before)

    def _new(self, col: Col) -> None:
        self._next += 1
        self.columns.append(col)

    def _drop(self) -> None:
        at, before = self._some(), self.table
        if at is not None and len(self.columns) > 2:
            del self.columns[at]
            self._altered("drop", 1, before)

    def _widen(self) -> None:
        at, before = self._some(("int32",)), self.table
        if at is not None:
            self.columns[at] = _with(self.columns[at], kind="int64")
            self._altered("widen", 1, before)

    def _convert(self) -> None:
        """Numbers become text."""
        at, before = self._some(("int32", "int64")), self.table
        if at is not None:
            self.columns[at] = _with(self.columns[at], kind="string")
            self._altered("convert", 3, before)


def _with(col: Col, **more: Any) -> Col:
    return Col(**{**col.__dict__, **more})


def _batch(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for each in schema:
        values = [row[each.name] for row in rows]
        is_coded = pa.types.is_dictionary(each.type)
        arrays.append(pa.array(values, pa.string()).dictionary_encode() if is_coded else pa.array(values, each.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _parsed(raw: bytes) -> list[FrameGroup]:
    parser, groups, at = FrameParser("made"), list[FrameGroup](), 0
    while at < len(raw):
        space = parser.space()
        count = min(len(space), len(raw) - at)
        space[:count] = raw[at : at + count]
        groups += parser.received(count)
        at += count
    parser.finish()
    return groups


def select(
    sql: str, rows: list[dict[str, Any]], table: TableSchema, more: tuple[str, ...] = ()
) -> list[tuple[Any, ...]]:
    """What SQLite makes of rows in a table called t. more: columns beside the table's, also of the result."""
    db = sqlite3.connect(":memory:")
    names = [*table.names, *more]
    kinds = [*("TEXT" if column.type == "string" else "INTEGER" for column in table.columns), *("ANY" for _ in more)]
    db.execute(f"CREATE TABLE t({', '.join(f'{name} {kind}' for name, kind in zip(names, kinds, strict=True))})")
    holes = ", ".join("?" for _ in names)
    db.executemany(f"INSERT INTO t VALUES ({holes})", [[row[name] for name in names] for row in rows])
    found = db.execute(sql.replace(" FROM", "".join(f", {name}" for name in more) + " FROM", 1)).fetchall()
    db.close()
    return found
