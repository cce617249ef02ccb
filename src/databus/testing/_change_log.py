"""A made-up log of changes, cut into batches at any place, and the slow, obvious twin of a mirror."""

import datetime as dt
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from databus.core import BUS_SEQ_MIN, ChangeType, ControlKind, Pair, SourceCheckpoint
from databus.flow import user_rows_schema
from databus.formats import from_json_value
from databus.pipeline import ChangeBatch, TableControl, TableRows
from databus.schema import Column, TableSchema

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Image:
    """One row of the log."""

    table: TableSchema
    pair: Pair
    kind: ChangeType
    row: Row
    snapshot: bool = False


@dataclass
class ChangeLog:
    """What happened in one physical source. Transactions are numbered 1, 2, 3...; rows in each 1, 2, 3..."""

    physical: str = "shop"
    uuid: str = "log-1"
    entries: list[Image | TableControl] = field(default_factory=list)
    _scn: int = 0
    _seq: int = 0
    _bus: int = 0

    def begin(self) -> "ChangeLog":
        """Begin a transaction."""
        self._scn += 1
        self._seq = 0
        return self

    def insert(self, table: TableSchema, row: Row) -> None:
        """Add an insert."""
        self._image(table, ChangeType.INSERT, row)

    def update(self, table: TableSchema, before: Row, after: Row) -> None:
        """Add an update: two images."""
        self._image(table, ChangeType.UPDATE_PREIMAGE, before)
        self._image(table, ChangeType.UPDATE_POSTIMAGE, after)

    def delete(self, table: TableSchema, row: Row) -> None:
        """Add a delete."""
        self._image(table, ChangeType.DELETE, row)

    def _image(self, table: TableSchema, kind: ChangeType, row: Row) -> None:
        self._seq += 1
        self.entries.append(Image(table, (self._scn, self._seq), kind, row))

    def control(self, kind: ControlKind, table: TableSchema, **body: Any) -> TableControl:
        """Add a control that takes a `_seq` of the transaction."""
        self._seq += 1
        control = TableControl(table, kind, (self._scn, self._seq), {"kind": kind, "source": table.source, **body})
        self.entries.append(control)
        return control

    def schema(self, table: TableSchema, change_class: int, **body: Any) -> TableControl:
        """Add a `schema` control: the table's new definition, and what kind of change it was."""
        return self.control(ControlKind.SCHEMA, table, **{"class": change_class, "fill": {}, "ddl": None, **body})

    def _bus_pair(self) -> Pair:
        self._bus += 1
        return self._scn, BUS_SEQ_MIN + self._bus

    def bus_control(self, kind: ControlKind, table: TableSchema, **body: Any) -> TableControl:
        """Add a control that the bus makes itself, after the last transaction."""
        control = TableControl(table, kind, self._bus_pair(), {"kind": kind, "source": table.source, **body})
        self.entries.append(control)
        return control

    def snapshot(self, table: TableSchema, rows: Sequence[Row]) -> None:
        """Add rows that were read after the last transaction."""
        self.entries.extend(Image(table, self._bus_pair(), ChangeType.INSERT, row, snapshot=True) for row in rows)

    def batch(self, start: int, end: int) -> ChangeBatch:
        """The entries `start..end` as a batch, as it would be cut there."""
        items: list[TableRows | TableControl] = []
        waiting: list[Image] = []
        for entry in self.entries[start:end]:
            if isinstance(entry, TableControl):
                items += _rows_of(waiting)
                waiting = []
                items.append(entry)
            else:
                waiting.append(entry)
        items += _rows_of(waiting)
        return ChangeBatch(self.physical, self.position(start), self.position(end), tuple(items))

    def position(self, index: int) -> SourceCheckpoint:
        """Where one stands who has taken `index` entries."""
        if index == 0:
            return SourceCheckpoint(log=self.uuid)
        scn, seq = self.entries[index - 1].pair
        ends = index == len(self.entries) or self.entries[index].pair[0] != scn or self.entries[index].pair[1] > 1 << 40
        whole = ends and seq < BUS_SEQ_MIN
        seq_done = None if whole else seq
        return SourceCheckpoint("", scn, seq_done, f"t{scn}", scn, self.uuid, self._open_snapshots(index))

    def _open_snapshots(self, index: int) -> dict[str, int]:
        generations: dict[str, int] = {}
        for entry in self.entries[:index]:
            if isinstance(entry, TableControl) and entry.kind is ControlKind.SNAPSHOT_BEGIN:
                generations[entry.table.source] = entry.body["generation"]
            elif isinstance(entry, TableControl) and entry.kind is ControlKind.SNAPSHOT_END:
                generations.pop(entry.table.source, None)
        return generations

    def batches(self, cuts: Sequence[int]) -> Iterator[ChangeBatch]:
        """The whole log, cut at these places."""
        places = [0, *sorted(set(cuts) - {0, len(self.entries)}), len(self.entries)]
        for start, end in itertools.pairwise(places):
            yield self.batch(start, end)


def _rows_of(images: Sequence[Image]) -> list[TableRows]:
    by_table: dict[int, tuple[TableSchema, list[Image]]] = {}
    for image in images:
        by_table.setdefault(image.table.fingerprint, (image.table, []))[1].append(image)
    return [TableRows(table, rows_table(table, group)) for table, group in by_table.values()]


def rows_table(table: TableSchema, images: Sequence[Image]) -> pa.Table:
    """Images as the rows that an output is given."""
    rows = [
        {
            **image.row,
            "_change_type": image.kind.label,
            "_commit_version": image.pair[0],
            "_seq": image.pair[1],
            "_commit_timestamp": dt.datetime.fromtimestamp(image.pair[0], dt.UTC),
            "_txid": f"t{image.pair[0]}",
            "_snapshot": image.snapshot,
        }
        for image in images
    ]
    return pa.Table.from_pylist(rows, schema=user_rows_schema(table))


def mirror_of(entries: Sequence[Image | TableControl], source: str) -> dict[tuple[Any, ...], tuple[Row, Pair]]:
    """What a mirror of `source` holds after these entries, by key: the rule, one row at a time."""
    held: dict[tuple[Any, ...], tuple[Row, Pair]] = {}
    for entry in entries:
        if entry.table.source != source:
            continue
        if isinstance(entry, TableControl):
            held = _after_control(held, entry)
            continue
        key = tuple(entry.row.get(name) for name in entry.table.key)
        if key in held and held[key][1] >= entry.pair:
            continue
        if entry.kind in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE):
            held[key] = ({name: entry.row.get(name) for name in entry.table.names}, entry.pair)
        else:
            held.pop(key, None)
    return held


def _after_control(
    held: dict[tuple[Any, ...], tuple[Row, Pair]], control: TableControl
) -> dict[tuple[Any, ...], tuple[Row, Pair]]:
    if control.kind in (ControlKind.TRUNCATE, ControlKind.DROP):
        return {key: value for key, value in held.items() if value[1] >= control.pair}
    if control.kind is ControlKind.SNAPSHOT_END and control.body["complete"]:
        begin = tuple(control.body["begin"])
        return {key: value for key, value in held.items() if value[1] >= begin}
    if control.kind is ControlKind.SCHEMA:
        return {key: (_reshaped(row, pair, control), pair) for key, (row, pair) in held.items()}
    return held


def _reshaped(row: Row, pair: Pair, control: TableControl) -> Row:
    renamed = control.body.get("renamed") or {}
    old_names = {new: old for old, new in renamed.items() if old in row}
    fill = control.body.get("fill") or {}
    shaped = {}
    for column in control.table.columns:
        same = "" if column.name in renamed else column.name
        shaped[column.name] = row.get(old_names.get(column.name, same))
        if column.name in fill and pair < control.pair:
            shaped[column.name] = from_json_value(fill[column.name], column.type)
    return shaped


ORDERS: Final = TableSchema(
    "main.orders",
    (Column("id", "int64", nullable=False), Column("note", "string"), Column("total", "decimal(12,2)")),
    ("id",),
)
STOCK: Final = TableSchema(
    "main.stock",
    (
        Column("Shelf no", "string", nullable=False),
        Column("price", "decimal(38,6)", nullable=False),
        Column('the "count"', "uint64"),
        Column("raw", "binary"),
    ),
    ("Shelf no", "price"),
)


def random_log(seed: int, transactions: int = 60) -> ChangeLog:
    """Inserts, updates, key changes and deletes of two tables, in transactions of mixed size."""
    rng = random.Random(seed)
    log = ChangeLog()
    live: dict[str, dict[tuple[Any, ...], Row]] = {ORDERS.source: {}, STOCK.source: {}}
    for _ in range(transactions):
        log.begin()
        for _ in range(rng.choice((1, 1, 2, 5, 20))):
            table = rng.choice((ORDERS, STOCK))
            _random_change(rng, log, table, live[table.source])
    return log


def _random_change(rng: random.Random, log: ChangeLog, table: TableSchema, live: dict[tuple[Any, ...], Row]) -> None:
    row = _random_row(rng, table)
    key = tuple(row[name] for name in table.key)
    if key in live:
        before = live.pop(key)
        if rng.random() < 0.3:
            log.delete(table, before)
            return
        live[key] = row
        log.update(table, before, row)
    elif live and rng.random() < 0.3:  # another key for a row that is there
        before = live.pop(rng.choice(list(live)))
        live[key] = row
        log.update(table, before, row)
    else:
        live[key] = row
        log.insert(table, row)


def _random_row(rng: random.Random, table: TableSchema) -> Row:
    if table is ORDERS:
        note = rng.choice((None, "", "x", "ünï😀", "line\nbreak"))
        return {"id": rng.randrange(40), "note": note, "total": Decimal(rng.randrange(-(10**6), 10**6)) / 100}
    return {
        "Shelf no": rng.choice(("", "a", "A", "ß", "é" * 40 + "1", "é" * 40 + "2")),
        "price": Decimal(rng.choice((0, 1, -1, 10**31))).scaleb(-6) * 10**6,
        'the "count"': rng.choice((None, 0, 2**64 - 1, 2**63)),
        "raw": rng.choice((None, b"", b"\x00\xff")),
    }
