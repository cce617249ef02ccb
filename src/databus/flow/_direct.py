"""Direct writing: a task writes the rows of one bucket of keys into the target, where they are seen at once.

Every task of a batch reads all of its ranges and keeps the rows of its bucket, so that rows pass through nothing else,
and those of a key stay in order. What it hands back are receipts as of staging, without files. Start with
`DirectWriter`; docs/decisions/0021-direct-outputs.md says why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

import pyarrow as pa

from databus.core import (
    ConfigError,
    CorruptData,
    FatalError,
    Pair,
    ServiceUnavailable,
    SourceCheckpoint,
    UnsupportedFeature,
)
from databus.filters import TableChoice
from databus.flow._batch import ChangeBatch, StagedBatch, StagedRows, TableControl, TableRows
from databus.flow._counts import BatchTally, Counts
from databus.flow._decode import BATCH_BYTES, decode_typed
from databus.flow._pairs import last_pair, log_number
from databus.flow._stage import RECEIPTS, Decode, pieces_of, receipt_of, receipts_for, staged_rows
from databus.flow._table_filters import Ways
from databus.places import Position
from databus.schema import TableSchema, key_buckets, key_bytes
from databus.wire import is_inside_transaction, is_of_other_log

BUCKETS_MAX: Final = 256  # each is a task, and a record in the target


_ALL: Final = Position(tables=((TableChoice(),),))  # of which nothing is known


def _any_table(name: str) -> bool:
    del name
    return True


@dataclass(frozen=True)
class Bucket:
    """What one task writes: the rows of some keys, of tables of one physical source into one output."""

    pipeline: str
    output: str
    physical: str
    number: int = 0
    """Of so many `buckets`, from 0 on."""
    buckets: int = 1
    position: Position = _ALL
    """Where the tables stand, as the output's ledger says."""
    reads: Callable[[str], bool] = _any_table
    """Whether the batch is about the table of this full name."""
    moves_at: bool = True
    """Whether the batch is one over the tables that stand together."""
    there: tuple[str, ...] = ()
    """The tables that there were when the query began, by full names."""
    reached: Pair | None = None
    """The end of the last batch that was written, as the ledger says: the target can only stand at or above it. None
    where nothing was.
    """
    accepted: frozenset[str] = frozenset()
    """Logs of which the target had places when the query began, which are of this history."""

    def check_log(self, batch: ChangeBatch) -> None:
        """Raises `UnsupportedFeature` where a part of a transaction came from another log, which counts its rows
        otherwise: which of them are missing is unknown.
        """
        names = {f"{batch.physical}/{item.table.source}" for item in batch.items}
        for place in (self.position.place(name) for name in sorted(names) if self.reads(name)):
            if place is None or not is_inside_transaction(place.pair) or place.pair >= batch.end.pair:
                continue
            if is_of_other_log(place, batch.end.log or ""):
                raise UnsupportedFeature(part_of_other_log(self.output, batch.physical, place, batch.end.log))

    def takes_controls_of(self, table: TableSchema) -> bool:
        """Whether this is the bucket that writes a table's controls, where the target gets them once."""
        return _table_bucket(table, self.buckets) == self.number

    def own(self, record: Position | None) -> Position | None:
        """What the bucket's record in the target says of the tables that are chosen now."""
        return None if record is None else record.introduced(self.position, self.there)

    def after(self, own: Position | None, batch: ChangeBatch) -> Position:
        """What the bucket's record is to say with a batch. own: what it says before."""
        position, end = self.position, replace(batch.end, uuid=batch.end.uuid or self.position.uuid)
        if not self.moves_at:  # these tables have places of their own
            named = {f"{batch.physical}/{item.table.source}" for item in batch.items}
            names = (name for name in {*self.there, *named, *position.places} if self.reads(name))
            position = replace(position, places={**dict.fromkeys(names, SourceCheckpoint()), **position.places})
        seeds = replace(batch, seeds=position.seeds).seeds_after()
        return position.written(own, end, self.reads, seeds, moves_at=self.moves_at)

    def check(self, record: Position | None, batch: ChangeBatch) -> None:
        """Compare where the bucket stands, as its target says, with the ledger and the batch that comes next; for
        writers whose targets know that. Raises `UnsupportedFeature` for a gap, and for a place in another log.
        """
        at = None if record is None else record.at
        if record is None or at is None or not self.moves_at:  # nothing was written yet, or the ledger says what was
            return
        if self.reached is not None and not record.places and at.pair < self.reached:
            raise UnsupportedFeature(
                f"outputs.{self.output}: bucket {self.number} of {self.buckets} stands at {at.pair} (SCN, _seq) of "
                f"{batch.physical} in its target, and what comes next begins after {self.reached}: what lies between "
                f"is missing. Restore the target; or give the output another name, under which it is written from the "
                f"beginning"
            )
        is_foreign = at.log is not None and log_number(at.log) != log_number(batch.end.log)
        is_new = self.position.at is None or at.pair > self.position.at.pair
        if is_foreign and is_new and at.scn and at.log not in self.accepted:
            raise ServiceUnavailable(
                f"outputs.{self.output}: {batch.physical} has come to {at.pair} (SCN, _seq) in its target, written "
                f"from another log ({at.log}) since this query began: perhaps by another pipeline of this name. "
                f"The query begins again, and asks whose that is"
            )
        if is_foreign and at.scn and is_inside_transaction(at.pair):
            raise UnsupportedFeature(part_of_other_log(self.output, batch.physical, at, batch.end.log))


def part_of_other_log(output: str, physical: str, place: SourceCheckpoint, log: str | None) -> str:
    """What is said where a target has a part of a transaction by the numbers of another log."""
    return (
        f"outputs.{output}: has a part of the transaction at SCN {place.scn} of {physical} from log {place.log}, and "
        f"the next changes come from {log}, which counts the rows of a transaction otherwise. Restore that log; or "
        f"rebuild the output: `databus rebuild FILE {output}` (FILE is the pipeline's file); or give it another "
        f"name, under which it writes all again"
    )


class BucketWriter(Protocol):
    """Writes one bucket, in a task."""

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """Write a batch; it is durable in the target when this returns. Returns how many rows of each source
        (`db.table`) were written.

        batch: in order, the bucket's rows and all controls, behind all filters; none where it has only moved on. It
        may come again, whole or with other boundaries. Raises what `Output.write` does.
        """


@runtime_checkable
class ExpectsTables(Protocol):
    """A `BucketWriter` that has to know of tables before their rows, in their order, whichever bucket these are in."""

    def expect(self, physical: str, tables: Sequence[TableSchema]) -> None:
        """The tables, in order, of which the next batch has rows in any bucket; called before `write`."""


@runtime_checkable
class SeesAllRows(Protocol):
    """A `BucketWriter` that has to see the rows of all buckets, before its own are chosen."""

    def seen(self, batch: ChangeBatch) -> ChangeBatch:
        """The next batch, in order, with the rows of all buckets behind all filters; returns what the bucket's are
        chosen from, which may have more columns. Called before `write`.
        """


@runtime_checkable
class CountsLetters(Protocol):
    """A `BucketWriter` that keeps rows which its target refuses."""

    letters: Mapping[str, int]
    """How many rows of each source of the last batch were refused, or wait behind such rows."""


@runtime_checkable
class CountsKnown(Protocol):
    """A `BucketWriter` whose target says of rows that it has them: without this, all rows that it is given have to be
    among those written or refused.
    """

    already: Mapping[str, int]
    """How many rows of each source of the last batch the target had already, or had something newer of."""


@runtime_checkable
class DirectWriter(Protocol):
    """An output's half in tasks; travels there as it is.

    A task may run twice, at the same time even, and one that was given up for dead may go on and write. Where the
    target has transactions, the writer commits a bucket's rows and its position together, under a fence that shuts out
    whoever began before; it drops what lies at or below that position. Else rows written twice are recognized by
    (`_commit_version`, `_seq`), and no older row may take the place of a newer.
    """

    @property
    def buckets(self) -> int:
        """How many buckets of keys there are."""

    def open(self, bucket: Bucket) -> AbstractContextManager[BucketWriter]:
        """Get ready to write a bucket; called in the task, once for all batches that it has."""


@dataclass(frozen=True)
class DirectFeed:
    """What tasks do for a direct output."""

    ways: Ways
    writer: DirectWriter
    bucket: Bucket
    """As which it is given what all buckets have in common."""

    def write_ranges(self, decode: Decode, ranges: pa.Table, number: int) -> list[str]:
        """Write one bucket of a batch over tables; returns the receipts."""
        return [receipt for _, receipt in self.write([number], decode(ranges))]

    def write(self, numbers: Sequence[int], batches: Iterable[ChangeBatch]) -> Iterator[tuple[int, str]]:
        """Write some buckets of batches; gives a receipt for each of both, with the bucket's number."""
        position = self.bucket.position
        with ExitStack() as stack:
            count = self.writer.buckets
            buckets = [replace(self.bucket, number=number, buckets=count) for number in numbers]
            writers = [stack.enter_context(self.writer.open(bucket)) for bucket in buckets]
            for batch in batches:
                self.bucket.check_log(batch)
                left = batch.above(position.done, self.bucket.reads)
                tally = BatchTally(batch.counts)
                passed = self._passed(batch, left, tally)
                at = position.at
                # The output may have all of a batch that others of its lane lack: then it writes nothing, and the
                # journal says of the rows that they were there.
                is_there = not left.items and at is not None and batch.start.pair < batch.end.pair <= at.pair
                for number, writer in zip(numbers, writers, strict=True):
                    mine = tally if number == 0 else BatchTally()  # each bucket's task reads and filters all rows
                    receipt = (
                        StagedBatch(batch.physical, batch.start, batch.end, ())
                        if is_there
                        else self._written(writer, number, left, passed, mine)
                    )
                    yield number, receipt_of(replace(receipt, counts=mine.counts()))

    def _written(
        self, writer: BucketWriter, number: int, left: ChangeBatch, passed: ChangeBatch, tally: BatchTally
    ) -> StagedBatch:
        """Write the rows of one bucket. left: what the output lacks of a batch. passed: the same behind the filters."""
        if isinstance(writer, ExpectsTables):
            tables = [item.table for item in passed.items if isinstance(item, TableRows)]
            writer.expect(passed.physical, tables)
        whole = writer.seen(passed) if isinstance(writer, SeesAllRows) else passed
        given = self._given(whole, number)
        controls = self._controls(left) if number == 0 else []
        with tally.timing("write"):
            written = writer.write(given)
        tally.kept(writer.letters if isinstance(writer, CountsLetters) else {})
        tally.had(writer.already if isinstance(writer, CountsKnown) else {})
        return _receipt(given, written, controls)

    def _controls(self, batch: ChangeBatch) -> list[TableControl]:
        """As they were before filters: the driver sees to those."""
        controls = (item for item in batch.items if isinstance(item, TableControl))
        return [item for item in controls if self.ways.selects(f"{batch.physical}/{item.table.source}")]

    def _passed(self, batch: ChangeBatch, left: ChangeBatch, tally: BatchTally) -> ChangeBatch:
        """What is left behind the filters of what the output lacks of a batch."""
        dropped = {
            item.table.source: tally.came(item.table.source, item.rows.num_rows)
            for item in batch.items
            if isinstance(item, TableRows) and self._has(f"{batch.physical}/{item.table.source}")
        }
        had = batch.rows_by_source() - left.rows_by_source()
        tally.had({source: had[source] for source in dropped})
        items: list[TableRows | TableControl] = []
        with tally.timing("filter"):
            for item in left.items:
                name = f"{left.physical}/{item.table.source}"
                if not self.ways.selects(name):
                    continue
                if isinstance(item, TableControl):
                    items += self.ways.controls(name, item)
                else:
                    items += self.ways.filtered(name, item, dropped[item.table.source])
        return replace(left, items=tuple(items))

    def _has(self, name: str) -> bool:
        return self.ways.selects(name) and self.bucket.reads(name)

    def _given(self, batch: ChangeBatch, number: int) -> ChangeBatch:
        """What the bucket of this number is given of a batch."""
        items: list[TableRows | TableControl] = []
        for item in batch.items:
            if isinstance(item, TableControl):
                items.append(item)
                continue
            rows = _in_bucket(item, self.ways.key.of(item.table.source), number, self.writer.buckets)
            if rows.num_rows:
                items.append(replace(item, rows=rows))
        return replace(batch, items=tuple(items))


@dataclass(frozen=True)
class DirectTypedStage:
    """What the one task of a batch of typed rows does, which come in order: it writes all buckets."""

    table: TableSchema
    physical: str
    start: SourceCheckpoint
    """Of the batch, as is `end`."""
    end: SourceCheckpoint
    feed: DirectFeed
    piece_bytes: int = BATCH_BYTES

    def __call__(self, parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The receipts of the batch; the bucket stands in the place of the feed's number."""
        numbers = range(self.feed.writer.buckets)
        for number, receipt in self.feed.write(numbers, self._batches(parts)):
            yield pa.record_batch([[number], [receipt]], schema=RECEIPTS)

    def _batches(self, parts: Iterator[pa.RecordBatch]) -> Iterator[ChangeBatch]:
        start, before = self.start, None
        for piece in pieces_of(parts, self.piece_bytes):
            if before is not None:
                scn, seq = last_pair(before)
                middle = replace(self.end, scn=scn, seq=seq, txid="", ts_us=0)
                yield decode_typed(before, self.table, self.physical, start, middle)
                start = middle
            before = piece
        if before is None:
            yield ChangeBatch(self.physical, start, self.end, ())
        else:
            yield decode_typed(before, self.table, self.physical, start, self.end)


def joined_buckets(receipts: pa.Table, buckets: int) -> list[StagedBatch]:
    """What the tasks of all buckets have written, as one batch; none where they were given none.

    receipts: of `RECEIPTS`, with the bucket as the feed. Raises `CorruptData` where buckets do not end alike.
    """
    by_bucket = [receipts_for(receipts, number) for number in range(buckets)]
    if not any(by_bucket):
        return []
    bounds = {(batches[0].start.pair, batches[-1].end.pair) if batches else None for batches in by_bucket}
    if len(bounds) > 1:
        raise CorruptData(
            f"{by_bucket[0][0].physical}: tasks wrote buckets of one batch with different bounds: {bounds}"
        )
    controls = [item for batch in by_bucket[0] for item in batch.items if isinstance(item, TableControl)]
    rows: dict[tuple[str, int], StagedRows] = {}
    for item in (item for batches in by_bucket for batch in batches for item in batch.items):
        if isinstance(item, StagedRows):
            key = item.table.source, item.table.fingerprint
            rows[key] = item if key not in rows else _both(rows[key], item)
    counts = Counts.total(batch.counts for batches in by_bucket for batch in batches)
    return [replace(by_bucket[0][0], end=by_bucket[0][-1].end, items=(*rows.values(), *controls), counts=counts)]


def _both(one: StagedRows, other: StagedRows) -> StagedRows:
    return replace(one.then(other), first=min(one.first, other.first), ends=(max(one.last, other.last),))


def _in_bucket(item: TableRows, key: Sequence[str], number: int, buckets: int) -> pa.Table:
    """The rows of a bucket; those of a table without a key are in one."""
    names = tuple(key) or item.table.key
    if buckets == 1:
        return item.rows
    if not names:
        return item.rows if _table_bucket(item.table, buckets) == number else item.rows.slice(0, 0)
    missing = [name for name in names if name not in item.rows.column_names]
    if missing:
        raise ConfigError(
            f"{item.table.source} has no column {', '.join(missing)}, by which the output tells rows apart: see its "
            f"`key` and its `format`"
        )
    keys = key_bytes([item.rows.column(name) for name in names])
    return item.rows.filter(pa.array(key_buckets(keys, buckets) == number))


def _table_bucket(table: TableSchema, buckets: int) -> int:
    name = pa.array([table.source.encode()], pa.large_binary())
    return int(key_buckets(name, buckets)[0])


def _receipt(given: ChangeBatch, written: Mapping[str, int], controls: Sequence[TableControl]) -> StagedBatch:
    left = dict(written)
    items: list[StagedRows | TableControl] = []
    for item in given.items:
        if isinstance(item, TableRows):
            rows = replace(staged_rows(item.table, item.rows, ()), ends=(last_pair(item.rows),))
            items.append(replace(rows, count=left.pop(item.table.source, 0)))
    if any(left.values()):
        raise FatalError(f"{given.physical}: a writer says that it wrote rows of {', '.join(left)}, and was given none")
    return StagedBatch(given.physical, given.start, given.end, (*items, *controls), given.ahead)
