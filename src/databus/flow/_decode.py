"""From what Spark collected to what outputs take: frames or typed rows as `ChangeBatch`es.

Frames come as the `shape=frames` table: a row is a run of whole groups, as bytes, with the bounds of the batch beside
it. Start with `decode_frames`; typed rows of one table go through `decode_typed`. No Python object is made for a row.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    BUS_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    SEQ_DONE,
    ChangeType,
    ControlKind,
    CorruptData,
    Pair,
    SourceCheckpoint,
    UnrepresentableValue,
)
from databus.filters import whole_changes
from databus.flow._batch import ChangeBatch, TableControl, TableRows
from databus.flow._counts import Counts
from databus.flow._lineage import Lineage, LineageOf, SchemaAhead
from databus.schema import BUS_FIELDS, Column, SchemaChange, TableSchema, sink_schema
from databus.wire import Commit, Frame, FrameGroup, FrameParser, seq_at, snapshots_after

CONTROL_LABEL: Final = "control"
SCHEMA_AHEAD: Final = "schema_ahead"

TableOf = Callable[[int], TableSchema]
"""Finds the table of a fingerprint; a relay's client has one that remembers."""

_USER_BUS: Final = {
    field.name: pa.string() if field.name == CHANGE_TYPE or pa.types.is_dictionary(field.type) else field.type
    for field in BUS_FIELDS
}


def user_rows_schema(table: TableSchema) -> pa.Schema:
    """The schema of `TableRows.rows`: the table's columns in sink types, then the bus's as users see them."""
    bus = [pa.field(name, kind) for name, kind in _USER_BUS.items()]
    return pa.schema([*sink_schema(table), *bus])


def to_user_rows(table: TableSchema, rows: pa.Table) -> pa.Table:
    """Rows in a frame's schema as users see them. Raises `UnrepresentableValue` for a value that would change."""
    schema = user_rows_schema(table)
    columns = []
    for wanted, column in zip(schema, rows.columns, strict=True):
        if wanted.name == CHANGE_TYPE:
            columns.append(_labels_of(column, table))
        elif column.type == wanted.type:
            columns.append(column)
        else:
            columns.append(_cast(column, wanted, table))
    return pa.table(columns, schema=schema)


def fitted_rows(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns and types of a schema that has room for them; columns that they lack are null.

    Raises Arrow's errors for a value that would change.
    """
    if rows.schema.equals(schema):
        return rows
    columns = [
        rows.column(field.name).cast(field.type, safe=True)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


@cache
def _labels() -> pa.Array:
    """By number. Not made at import: the first array of a process imports pandas."""
    return pa.array([None, *(kind.label for kind in ChangeType)], pa.string())


def _labels_of(kinds: pa.ChunkedArray, table: TableSchema) -> pa.ChunkedArray:
    flat = kinds.combine_chunks() if kinds.num_chunks != 1 else kinds.chunk(0)
    numbers = flat.to_numpy(zero_copy_only=False)
    if len(numbers) and (numbers.min() < min(ChangeType) or numbers.max() > max(ChangeType)):
        raise CorruptData(f"{table.source}: a change type is outside {min(ChangeType):d}..{max(ChangeType):d}")
    return pa.chunked_array([_labels().take(flat)], pa.string())


def _cast(column: pa.ChunkedArray, wanted: pa.Field, table: TableSchema) -> pa.ChunkedArray:
    try:
        return column.cast(wanted.type, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnrepresentableValue(
            f"{table.source}.{wanted.name}: {column.type} does not become {wanted.type} exactly: {error}"
        ) from error


# Frames


@dataclass
class _TableRun:
    """What is collected of one table in one schema between two controls."""

    table: TableSchema
    is_being_read: bool
    batches: list[pa.RecordBatch] = field(default_factory=list)


@dataclass
class _ItemCollector:
    """Puts groups, in order, together to the items of one physical source."""

    table_of: TableOf
    after: Pair
    until: Pair
    snapshots: Mapping[str, int] = field(default_factory=dict)
    items: list[_TableRun | TableControl] = field(default_factory=list)
    open: dict[str, _TableRun] = field(default_factory=dict)  # by source
    commit: Commit | None = None
    position: Mapping[str, Any] | None = None

    def add(self, group: FrameGroup, place: str) -> None:
        control, commit = group.control, Commit.from_header(group.commit, place)
        rows = _in_order(group.rows)
        if control is not None and self.after < control.header.first <= self.until:
            self._control(control, _first_us(rows, commit))
        for frame in rows:
            self._rows(frame)
        self.position = commit.position
        if commit.pair <= self.until:
            self.commit = commit

    def _control(self, frame: Frame, commit_us: int) -> None:
        table = self.table_of(frame.header.fingerprint)
        body = frame.control
        kind = _kind_of(body, frame.place)
        self.items.append(TableControl(table, kind, frame.header.first, body, commit_us))
        self.snapshots = snapshots_after(self.snapshots, table.source, kind, body)
        self.open.pop(table.source, None)

    def _rows(self, frame: Frame) -> None:
        header = frame.header
        if header.last <= self.after or header.first > self.until:
            return
        table = self.table_of(header.fingerprint)
        batch = frame.batch
        if header.first <= self.after or header.last > self.until:
            batch = _within(batch, self.after, self.until)
        if batch.num_rows == 0:
            return
        run = self.open.get(table.source)
        if run is None or run.table.fingerprint != header.fingerprint:
            run = self.open[table.source] = _TableRun(table, table.source in self.snapshots)
            self.items.append(run)
        run.batches.append(batch)

    def finished(self) -> tuple[TableRows | TableControl, ...]:
        return tuple(_closed(item) if isinstance(item, _TableRun) else item for item in self.items)


def _closed(run: _TableRun) -> TableRows:
    rows = pa.Table.from_batches(run.batches)
    run.batches.clear()
    return TableRows(run.table, to_user_rows(run.table, rows), run.is_being_read)


def _first_us(frames: Sequence[Frame], commit: Commit) -> int:
    """When a control at the head of a group was committed: not after the first row behind it."""
    times = [frame.batch.column(COMMIT_TIMESTAMP)[0].cast(pa.int64()).as_py() for frame in frames[:1]]
    return min(commit.commit_us, *times) if times else commit.commit_us


def _in_order(frames: Iterable[Frame]) -> list[Frame]:
    """Frames by first row; two of one table in a group (before and after a change of schema) do not overlap."""
    return sorted(frames, key=lambda frame: frame.header.first)


def _kind_of(body: Mapping[str, Any], place: str) -> ControlKind:
    try:
        return ControlKind(body["kind"])
    except (KeyError, ValueError) as error:
        raise CorruptData(
            f"{place}: the control's kind is {body.get('kind')!r}, which this databus does not know"
        ) from error


def _within(batch: pa.RecordBatch, after: Pair, until: Pair) -> pa.RecordBatch:
    scns = batch.column(COMMIT_VERSION).to_numpy(zero_copy_only=False)
    seqs = batch.column(SEQ).to_numpy(zero_copy_only=False)
    above = (scns > after[0]) | ((scns == after[0]) & (seqs > after[1]))
    below = (scns < until[0]) | ((scns == until[0]) & (seqs <= until[1]))
    return batch.filter(pa.array(above & below))


def _groups_of(frames: pa.Buffer | memoryview, where: str) -> Iterator[FrameGroup]:
    parser = FrameParser(where)
    view = memoryview(frames).cast("B")
    at = 0
    while at < len(view):
        space = parser.space()
        count = min(len(space), len(view) - at)
        space[:count] = view[at : at + count]
        yield from parser.received(count)
        at += count
    parser.finish()


def _bound(scn: int | None, seq: int | None) -> Pair:
    return (scn or 0), (SEQ_DONE if seq is None else seq)


def decode_frames(collected: pa.Table, table_of: TableOf) -> list[ChangeBatch]:
    """The `shape=frames` rows of one micro-batch, in any order, as one `ChangeBatch` for each physical source.

    Rows at or below `after_*`, and above `until_*`, are dropped. Raises `CorruptData` for bytes that no relay wrote,
    `StreamCut` for a run that ends inside a group, `UnrepresentableValue` for a value that a sink's type cannot hold.
    """
    names = ("physical", "scn", "seq", "log", "after_scn", "after_seq", "until_scn", "until_seq")
    facts = collected.select(names).to_pylist()
    order = sorted(range(len(facts)), key=lambda i: (facts[i]["physical"], _bound(facts[i]["scn"], facts[i]["seq"])))
    frames = collected.column("frames")
    batches: list[ChangeBatch] = []
    for physical in dict.fromkeys(facts[i]["physical"] for i in order):
        mine = [i for i in order if facts[i]["physical"] == physical]
        batches.append(_decode_physical(physical, [(facts[i], frames[i].as_buffer()) for i in mine], table_of))
    return batches


def _decode_physical(physical: str, runs: list[tuple[dict[str, Any], pa.Buffer]], table_of: TableOf) -> ChangeBatch:
    logs = sorted({str(facts["log"]) for facts, _ in runs})
    if len(logs) != 1:
        raise CorruptData(f"{physical}: one batch holds frames of {len(logs)} logs ({', '.join(logs)})")
    after = min(_bound(facts["after_scn"], facts["after_seq"]) for facts, _ in runs)
    until = max(_bound(facts["until_scn"], facts["until_seq"]) for facts, _ in runs)
    collector = _ItemCollector(table_of, after, until)
    for facts, frames in runs:
        where = f"{physical}, run up to ({facts['scn']}, {facts['seq']})"
        for group in _groups_of(frames, where):
            collector.add(group, where)
    commit = collector.commit
    end = _end_of(until, commit, logs[0])
    return ChangeBatch(physical, _start_of(after, logs[0]), end, collector.finished(), position=collector.position)


# Ranges

BATCH_BYTES: Final = 64 << 20
"""Where a change batch of a range ends, in bytes of frames; at the end of a group."""

Fetch = Callable[[SourceCheckpoint, Pair, str], Iterator[tuple[list[FrameGroup], str]]]
"""Reads what lies after a position up to a pair, in the log of a uuid or, where that is empty, in any: groups, and the
uuid of their log."""


def decode_ranges(
    collected: pa.Table, fetch: Fetch, table_of: TableOf, batch_bytes: int = BATCH_BYTES
) -> Iterator[ChangeBatch]:
    """The `shape=ranges` rows of one micro-batch, in any order, as change batches of about `batch_bytes`, in order.

    Raises what `decode_frames` does, and what reading from the relay does.
    """
    rows = sorted(collected.to_pylist(), key=lambda row: (row["after_scn"], row["after_seq"]))
    for row in rows:
        start = SourceCheckpoint.from_json(json.loads(row["start"]), "start")
        after, until = (row["after_scn"], row["after_seq"]), (row["until_scn"], row["until_seq"])
        pieces, is_whole = fetch(start, until, row["log"]), row["ranges"] == 1
        physical, snapshots = row["physical"], start.snapshots
        yield from decode_groups(pieces, physical, after, until, table_of, batch_bytes, snapshots, is_whole=is_whole)


def decode_groups(
    pieces: Iterable[tuple[list[FrameGroup], str]],
    physical: str,
    after: Pair,
    until: Pair,
    table_of: TableOf,
    batch_bytes: int = BATCH_BYTES,
    snapshots: Mapping[str, int] = MappingProxyType({}),
    *,
    is_whole: bool = False,
) -> Iterator[ChangeBatch]:
    """Groups, in order, as change batches of about `batch_bytes`; what is outside of (after, until] is dropped.

    snapshots: open at `after`, by source. is_whole: whether they are all of a micro-batch.
    """
    collector = _ItemCollector(table_of, after, until, snapshots)
    start = replace(_start_of(after, ""), snapshots=snapshots)
    size, log, clock = 0, "", _Clock()
    for groups, log in clock.fetching(pieces):
        for group in groups:
            collector.add(group, f"{physical}, group up to {group.commit.last}")
            size += sum(frame.header.frame_bytes for frame in group.frames)
            if size >= batch_bytes and group.commit.last < until:
                end = replace(_end_of(group.commit.last, collector.commit, log), snapshots=collector.snapshots)
                items, place = collector.finished(), collector.position
                counts = clock.counts(size)
                yield ChangeBatch(physical, replace(start, log=log), end, items, position=place, counts=counts)
                clock.goes_on()
                collector, size, start = _ItemCollector(table_of, end.pair, until, end.snapshots), 0, end
                is_whole = False
    end = replace(_end_of(until, collector.commit, log), snapshots=collector.snapshots)
    start, items, place = replace(start, log=log), collector.finished(), collector.position
    yield ChangeBatch(physical, start, end, items, is_whole=is_whole, position=place, counts=clock.counts(size))


class _Clock:
    """How long a batch takes to be fetched and decoded; what its reader does in between is not counted."""

    def __init__(self) -> None:
        self._began_ns = time.perf_counter_ns()
        self._fetch_ns = 0

    def fetching(self, pieces: Iterable[tuple[list[FrameGroup], str]]) -> Iterator[tuple[list[FrameGroup], str]]:
        """The same; the time until each comes is that of fetching."""
        began_ns = time.perf_counter_ns()
        for piece in pieces:
            self._fetch_ns += time.perf_counter_ns() - began_ns
            yield piece
            began_ns = time.perf_counter_ns()
        self._fetch_ns += time.perf_counter_ns() - began_ns

    def counts(self, size: int) -> Counts:
        """Of the batch that is decoded, of so many bytes."""
        decode_ns = time.perf_counter_ns() - self._began_ns - self._fetch_ns
        return Counts({}, size, {"fetch": self._fetch_ns // 1000, "decode": decode_ns // 1000})

    def goes_on(self) -> None:
        """The next batch begins."""
        self._began_ns, self._fetch_ns = time.perf_counter_ns(), 0


def _start_of(after: Pair, log: str) -> SourceCheckpoint:
    return SourceCheckpoint(scn=after[0], seq=seq_at(after, continues=True), log=log)


def _end_of(until: Pair, commit: Commit | None, log: str) -> SourceCheckpoint:
    end = SourceCheckpoint(scn=until[0], seq=_seq_of(until, commit), log=log)
    if commit is not None and commit.scn == until[0]:
        end = replace(end, txid=commit.txid, ts_us=commit.commit_us)
    return end


def _seq_of(until: Pair, commit: Commit | None) -> int | None:
    """The `seq` of a batch's end: None where it is the end of a transaction, so that any log may go on from it."""
    ends_transaction = commit is not None and commit.pair == until and not commit.continues
    return seq_at(until, continues=not ends_transaction)


# Typed rows


def decode_typed(
    rows: pa.Table,
    table: TableSchema,
    physical: str,
    start: SourceCheckpoint,
    end: SourceCheckpoint,
    lineage_of: LineageOf = Lineage.unchanged,
) -> ChangeBatch:
    """Typed rows of one table (`shape=typed`, `meta=full`), in any order, as a `ChangeBatch`.

    table: of the result, so that after a projection it has the columns that are left. lineage_of: of the filters that
    the rows went through. An image of an update that they let pass without the other becomes an insert or a delete. A
    control keeps its body, which speaks of the source's columns. Raises `UnrepresentableValue` for a value that the
    sink's type cannot hold.
    """
    rows = whole_changes(in_order(rows))
    ahead: SchemaAhead | None = None
    controls = np.array([], np.int64)
    if CONTROL in rows.column_names:
        is_control = pc.equal(rows.column(CHANGE_TYPE), CONTROL_LABEL).to_numpy()
        controls = np.flatnonzero(is_control)
    items: list[TableRows | TableControl] = []
    at = 0
    for index in [*controls.tolist(), rows.num_rows]:
        if index > at:
            items.append(TableRows(table, _typed_rows(rows.slice(at, index - at), table)))
        if index < rows.num_rows:
            pair, body = _control_at(rows, index, table)
            if body.get("kind") == SCHEMA_AHEAD:
                ahead = SchemaAhead(tuple(map(SchemaChange.from_json, body["changes"])), lineage_of)
            else:
                items.append(TableControl(table, _kind_of(body, f"{table.source}, control at {pair}"), pair, body))
        at = index + 1
    return ChangeBatch(physical, start, end, tuple(items), ahead)


def in_order(rows: pa.Table) -> pa.Table:
    """Rows by their pairs; the same object where they are in that order."""
    scns = rows.column(COMMIT_VERSION).to_numpy()
    seqs = rows.column(SEQ).to_numpy()
    rises = (scns[1:] > scns[:-1]) | ((scns[1:] == scns[:-1]) & (seqs[1:] > seqs[:-1]))
    return rows if rises.all() else rows.take(pa.array(np.lexsort((seqs, scns))))


def _typed_rows(rows: pa.Table, table: TableSchema) -> pa.Table:
    schema = user_rows_schema(table)
    columns = [
        column if column.type == wanted.type else _cast(column, wanted, table)
        for wanted, column in ((wanted, rows.column(wanted.name)) for wanted in schema)
    ]
    return pa.table(columns, schema=schema)


def _control_at(rows: pa.Table, index: int, table: TableSchema) -> tuple[Pair, dict[str, Any]]:
    pair = (rows.column(COMMIT_VERSION)[index].as_py(), rows.column(SEQ)[index].as_py())
    try:
        return pair, json.loads(rows.column(CONTROL)[index].as_py())
    except (TypeError, ValueError) as error:
        raise CorruptData(f"{table.source}, control at {pair}: {CONTROL} is not JSON: {error}") from error


_NAME_OF_SINK: Final = {
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float32",
    pa.float64(): "float64",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp",
}


def result_table(source: str, result: pa.Schema, key: tuple[str, ...], *, first_images: bool = True) -> TableSchema:
    """The `TableSchema` of a filter's result, from its Arrow schema, without the bus's columns.

    key: the source's, as far as the result still holds it. first_images: the source's. Raises `UnrepresentableValue`
    for a type that no table has.
    """
    columns = []
    for arrow_field in result:
        if arrow_field.name in BUS_COLUMNS or arrow_field.name == CONTROL:
            continue
        columns.append(Column(arrow_field.name, _type_name(source, arrow_field)))
    names = {column.name for column in columns}
    return TableSchema(source, tuple(columns), key if names.issuperset(key) else (), first_images)


def _type_name(source: str, column: pa.Field) -> str:
    kind = column.type
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return "timestamptz"
    name = _NAME_OF_SINK.get(kind)
    if name is None:
        raise UnrepresentableValue(
            f"{source}.{column.name}: a column of type {kind} has no place in a table; cast it in the filter"
        )
    return name
