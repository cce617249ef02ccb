"""Staging: a task fetches ranges of the log, and writes the rows of each output into files that are not visible yet.

What it hands back are receipts: JSON, a text for each change batch and output, with the names of the files in the place
of rows. The driver joins those of all tasks to one change batch an output (`joined`), which the output then commits. A
task may run twice, or be killed half-way: files that no commit names are removed later.
"""

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, Self, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQ,
    ChangeType,
    ControlKind,
    CorruptData,
    Pair,
    SourceCheckpoint,
)
from databus.flow._batch import AtOnce, ChangeBatch, StagedBatch, StagedRows, TableControl, TableRows
from databus.flow._counts import BatchTally, Counts, Dropped
from databus.flow._data_file import DataFile
from databus.flow._decode import BATCH_BYTES, decode_typed, fitted_rows, in_order
from databus.flow._lineage import LineageOf, SchemaAhead
from databus.flow._pairs import first_pair, last_pair, rows_above
from databus.flow._retyped import as_stored
from databus.places import Position
from databus.schema import SchemaChange, TableSchema, widens_to


class Restage(Exception):
    """Tasks are to write the rows of some tables again, in another way.

    above: by full name of a table, the pair up to which the target has it. fits: the schema in which it wants its rows.
    """

    def __init__(self, *, above: Mapping[str, Pair] | None = None, fits: Mapping[str, pa.Schema] | None = None) -> None:
        super().__init__(f"rows of {', '.join([*(above or ()), *(fits or ())])} are to be written again")
        self.above = above or {}
        self.fits = fits or {}

    @classmethod
    def of_all(cls, asked: Sequence["Restage"]) -> Self:
        """What all of these ask for, at once: writing all rows again for each table would not end with many tables."""
        above = {name: pair for restage in asked for name, pair in restage.above.items()}
        return cls(above=above, fits={name: schema for restage in asked for name, schema in restage.fits.items()})


RECEIPTS: Final = pa.schema([("feed", pa.int32()), ("receipt", pa.string())])

Decode = Callable[[pa.Table], Iterable[ChangeBatch]]
"""Makes change batches of a collected micro-batch, in order, each small enough to be held."""


class PartWriter(Protocol):
    """An output's half in a task; travels there as it is."""

    def write(self, name: str, rows: TableRows) -> Sequence[DataFile]:
        """Write rows of a table, by its full name, where readers do not see them until the output commits them."""


@runtime_checkable
class TableWriter(PartWriter, Protocol):
    """One that may also do all that there is to do for a table, where it is given all rows that a batch has of it."""

    def write_at_once(self, name: str, rows: TableRows) -> AtOnce | None:
        """Put the rows into the table's files; readers see it once the output commits it. None: to be written."""


@dataclass(frozen=True)
class Done:
    """Up to where tables are in a target: as the ledger says, or, beyond that, the target; travels to tasks."""

    position: Position
    above: Mapping[str, Pair]

    def __call__(self, name: str) -> Pair:
        """By the full name of a table."""
        return max(self.position.done(name), self.above.get(name, (0, 0)))


@dataclass(frozen=True)
class StagedFeed:
    """What a task does for one output."""

    selects: Callable[[str], bool]
    """By full name, whether it gets rows of a table."""
    filtered: Callable[[str, TableRows, Dropped], Iterable[TableRows]]
    """What is left of rows; the last counts what each filter leaves out."""
    writer: PartWriter
    above: Callable[[str], Pair]
    """By full name of a table, the pair up to which the target has it, as far as that is known."""
    fits: Mapping[str, pa.Schema]
    """By full name, the schema in which the target wants its rows."""


@dataclass(frozen=True)
class Stage:
    """What a task does; Spark calls it with the rows of its partition."""

    decode: Decode
    feeds: Sequence[StagedFeed]

    def __call__(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The receipts of a partition."""
        for part in parts:
            if part.num_rows == 0:
                continue
            for batch in self.decode(pa.Table.from_batches([part])):
                yield receipts_of(batch, self.feeds)


def receipts_of(batch: ChangeBatch, feeds: Sequence[StagedFeed]) -> pa.RecordBatch:
    """Write what each feed is given of a batch; one receipt for each."""
    receipts = [receipt_of(_staged_batch(batch, feed)) for feed in feeds]
    return pa.record_batch([list(range(len(receipts))), receipts], schema=RECEIPTS)


def _staged_batch(batch: ChangeBatch, feed: StagedFeed) -> StagedBatch:
    pieces, tally = Counter(item.table.source for item in batch.items), BatchTally(batch.counts)
    items = [
        staged
        for item in batch.items
        for staged in _staged(
            batch.physical, item, feed, tally, is_all=batch.is_whole and pieces[item.table.source] == 1
        )
    ]
    return StagedBatch(batch.physical, batch.start, batch.end, tuple(items), batch.ahead, counts=tally.counts())


def _staged(
    physical: str, item: TableRows | TableControl, feed: StagedFeed, tally: BatchTally, *, is_all: bool
) -> Iterator[StagedRows | TableControl]:
    """is_all: whether the batch has nothing else of the table."""
    name = f"{physical}/{item.table.source}"
    if not feed.selects(name):
        return
    if isinstance(item, TableControl):
        if item.pair > feed.above(name):
            yield item
        return
    dropped = tally.came(item.table.source, item.rows.num_rows)
    with tally.timing("filter"):
        left = [*feed.filtered(name, item, dropped)]
    for piece in left:
        rows = rows_above(piece.rows, feed.above(name))
        tally.had({item.table.source: piece.rows.num_rows - rows.num_rows})
        if rows.num_rows == 0:
            continue
        if is_all and len(left) == 1 and isinstance(feed.writer, TableWriter):
            with tally.timing("write"):
                at_once = feed.writer.write_at_once(name, TableRows(piece.table, rows))
            if at_once is not None:
                yield replace(staged_rows(piece.table, rows, ()), ends=(last_pair(rows),), at_once=at_once)
                continue
        named, schema = rows, feed.fits.get(name)
        if schema is not None:
            named = as_stored(rows, schema)
            schema = _room_for(named.schema, schema)
        written = rows if schema is None else fitted_rows(named, schema)
        with tally.timing("write"):
            files = tuple(feed.writer.write(name, TableRows(piece.table, written)))
        yield staged_rows(piece.table, rows, files, schema)


def staged_rows(
    table: TableSchema, rows: pa.Table, files: tuple[DataFile, ...], fitted: pa.Schema | None = None
) -> StagedRows:
    """What is to be said of rows that were written, in their order, into these files."""
    lasts = [total - 1 for total in itertools.accumulate(file.rows for file in files)]
    ends = tuple(last_pair(rows.slice(0, last + 1)) for last in lasts)
    return StagedRows(table, files, ends, first_pair(rows), rows.num_rows, _newest_us(rows), fitted)


def _room_for(rows: pa.Schema, wanted: pa.Schema) -> pa.Schema | None:
    """The schema that is wanted, if it has room for every value of such rows: it was asked for before they came."""
    has_room = all(
        field.name in wanted.names and widens_to(field.type, wanted.field(field.name).type) for field in rows
    )
    return wanted if has_room else None


def _newest_us(rows: pa.Table) -> int | None:
    newest: int | None = pc.max(rows.column(COMMIT_TIMESTAMP)).cast(pa.int64()).as_py()
    return newest


# Receipts


def receipt_of(batch: StagedBatch) -> str:
    """What a task hands back of a batch."""
    return json.dumps(_to_json(batch))


def _to_json(batch: StagedBatch) -> dict[str, Any]:
    tables = {f"{item.table.fingerprint:016x}": item.table.to_json() for item in batch.items}
    return {
        "physical": batch.physical,
        "start": batch.start.to_json(),
        "end": batch.end.to_json(),
        "tables": tables,
        "items": [_item_to_json(item) for item in batch.items],
        "ahead": [] if batch.ahead is None else [change.to_json() for change in batch.ahead.changes],
        "counts": batch.counts.to_json(),
    }


def _item_to_json(item: StagedRows | TableControl) -> dict[str, Any]:
    table = f"{item.table.fingerprint:016x}"
    if isinstance(item, TableControl):
        control = {"kind": item.kind.value, "pair": list(item.pair), "body": dict(item.body), "us": item.commit_us}
        return {"table": table, **control}
    files = [file.to_json() for file in item.files]
    pairs = {"first": list(item.first), "ends": [list(pair) for pair in item.ends]}
    fitted = None if item.fitted is None else item.fitted.serialize().to_pybytes().hex()
    more = {"count": item.count, "newest_us": item.newest_us, "fitted": fitted}
    return {"table": table, "files": files, **pairs, **more, "at_once": _at_once_to_json(item.at_once)}


def _at_once_to_json(done: AtOnce | None) -> dict[str, Any] | None:
    if done is None:
        return None
    added = [file.to_json() for file in done.added]
    return {"version": done.version, "added": added, "removed": list(done.removed)}


def _from_json(text: str) -> StagedBatch:
    value = json.loads(text)
    tables = {name: TableSchema.from_json(table) for name, table in value["tables"].items()}
    items = tuple(_item_from_json(item, tables[item["table"]]) for item in value["items"])
    start, end = (SourceCheckpoint.from_json(value[name], name) for name in ("start", "end"))
    ahead = SchemaAhead(tuple(map(SchemaChange.from_json, value["ahead"]))) if value["ahead"] else None
    return StagedBatch(value["physical"], start, end, items, ahead, counts=Counts.from_json(value["counts"]))


def _item_from_json(value: Mapping[str, Any], table: TableSchema) -> StagedRows | TableControl:
    if "kind" in value:
        scn, seq = value["pair"]
        return TableControl(table, ControlKind(value["kind"]), (scn, seq), value["body"], value["us"])
    files = tuple(map(DataFile.from_json, value["files"]))
    first, *ends = ((scn, seq) for scn, seq in (value["first"], *value["ends"]))
    fitted = None if value["fitted"] is None else pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(value["fitted"])))
    done = value["at_once"]
    if done is not None:
        done = AtOnce(done["version"], tuple(map(DataFile.from_json, done["added"])), tuple(done["removed"]))
    return StagedRows(table, files, tuple(ends), first, value["count"], value["newest_us"], fitted, done)


def joined(receipts: pa.Table, feed: int) -> list[StagedBatch]:
    """What tasks have staged for an output, as one batch for each physical source.

    Raises `CorruptData` if the ranges overlap, or their logs differ.
    """
    by_physical: dict[str, list[StagedBatch]] = {}
    for batch in receipts_for(receipts, feed):
        by_physical.setdefault(batch.physical, []).append(batch)
    return [_join(batches) for batches in by_physical.values()]


def receipts_for(receipts: pa.Table, feed: int) -> list[StagedBatch]:
    """What tasks have staged for an output, piece by piece, in order."""
    mine = receipts.filter(pc.equal(receipts.column("feed"), feed)).column("receipt")
    return sorted(map(_from_json, mine.to_pylist()), key=lambda batch: (batch.physical, batch.start.pair))


def _join(batches: Sequence[StagedBatch]) -> StagedBatch:
    for one, other in itertools.pairwise(batches):
        if one.end.pair > other.start.pair:
            raise CorruptData(f"{one.physical}: ranges overlap: {one.end.pair} and {other.start.pair}")
        if one.end.log != other.end.log:
            raise CorruptData(f"{one.physical}: one batch holds frames of two logs ({one.end.log}, {other.end.log})")
    items = [item for batch in batches for item in batch.items]
    if len(batches) > 1 and any(isinstance(item, StagedRows) and item.at_once is not None for item in items):
        raise CorruptData(f"{batches[0].physical}: a task took a part of a batch for all of it")
    counts = Counts.total(batch.counts for batch in batches)
    return replace(batches[0], end=batches[-1].end, items=joined_items(batches), counts=counts)


def joined_items(batches: Iterable[StagedBatch]) -> tuple[StagedRows | TableControl, ...]:
    """The items of batches that follow each other; rows of a table with nothing between them are one item."""
    items: list[StagedRows | TableControl] = []
    last: dict[str, int] = {}
    for item in (item for batch in batches for item in batch.items):
        at = last.get(item.table.source)
        before = None if at is None else items[at]
        if (
            at is not None
            and isinstance(before, StagedRows)
            and isinstance(item, StagedRows)
            and before.table.fingerprint == item.table.fingerprint
        ):
            items[at] = before.then(item)
            continue
        last[item.table.source] = len(items)
        items.append(item)
    return tuple(items)


# Staging of typed rows: a task takes the rows that the filters of a branch have made, piece by piece, and writes them.
#
# Filters see each range of the log by itself and in its order; but a function of a user may put rows of a batch into
# another order, and controls come behind the rows that they came with. So a piece is put in order before it is written,
# and the driver sees whether the pieces of all tasks follow each other (`joined_typed`). Where they do not, the rows
# are staged again, put in order by Spark.


ORDER: Final = (COMMIT_VERSION, SEQ)
"""The columns by which rows are in order. Those of one `_commit_version` must not be torn apart."""


class RowsOutOfOrder(Exception):
    """Pieces of tasks do not follow each other: the rows are to be put in order before they are staged."""


@dataclass(frozen=True)
class TypedStage:
    """What a task does with the rows of its partition: those of one table, behind all filters."""

    table: TableSchema
    physical: str
    feeds: Sequence[StagedFeed]
    piece_bytes: int = BATCH_BYTES

    def __call__(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The receipts of a partition."""
        for piece in pieces_of(parts, self.piece_bytes):
            yield receipts_of(self._batch(piece), self.feeds)

    def _batch(self, piece: pa.Table) -> ChangeBatch:
        start, end = (SourceCheckpoint(scn=scn, seq=seq) for scn, seq in (first_pair(piece), last_pair(piece)))
        return decode_typed(piece, self.table, self.physical, start, end)


def pieces_of(parts: Iterator[pa.RecordBatch], piece_bytes: int) -> Iterator[pa.Table]:
    """Rows in order, in pieces of about so many bytes, which tear neither an update's images apart nor rows that were
    made of one.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for part in parts:
        if part.num_rows:
            waiting.append(part)
            size += part.nbytes
        if size >= piece_bytes:
            rows = in_order(pa.Table.from_batches(waiting))
            cut = _last_change(rows)
            if cut:
                yield rows.slice(0, cut)
            waiting = rows.slice(cut).combine_chunks().to_batches()
            size = sum(part.nbytes for part in waiting)
    if waiting:
        yield in_order(pa.Table.from_batches(waiting))


def _last_change(rows: pa.Table) -> int:
    """Where what may go on in the next rows begins."""
    scns, seqs = (rows.column(name).to_numpy() for name in ORDER)
    is_before = pc.equal(rows.column(CHANGE_TYPE), ChangeType.UPDATE_PREIMAGE.label).to_numpy()
    is_cut = ((scns[1:] != scns[:-1]) | (seqs[1:] != seqs[:-1])) & ~is_before[:-1]
    places = np.flatnonzero(is_cut)
    return int(places[-1]) + 1 if len(places) else 0


def joined_typed(
    receipts: pa.Table,
    feed: int,
    start: SourceCheckpoint,
    end: SourceCheckpoint,
    lineage_of: LineageOf,
    physical: str,
) -> StagedBatch:
    """What tasks have staged for an output, as the batch between two positions. lineage_of: of the branch's filters.

    Raises `RowsOutOfOrder`.
    """
    pieces = receipts_for(receipts, feed)
    if any(one.end.pair >= other.start.pair for one, other in itertools.pairwise(pieces)):
        raise RowsOutOfOrder
    aheads = [piece.ahead for piece in pieces if piece.ahead is not None]
    ahead = SchemaAhead(aheads[-1].changes, lineage_of) if aheads else None
    counts = Counts.total(piece.counts for piece in pieces)
    return StagedBatch(physical, start, end, joined_items(pieces), ahead, counts=counts)
