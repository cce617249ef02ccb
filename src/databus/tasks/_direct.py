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
from databus.filters import Selection
from databus.schema import TableSchema, key_buckets, key_bytes
from databus.tasks._batch import ChangeBatch, StagedBatch, StagedRows, TableControl, TableRows
from databus.tasks._decode import BATCH_BYTES, decode_typed
from databus.tasks._pairs import last_pair, log_number, rows_above
from databus.tasks._stage import RECEIPTS, Decode, receipt_of, receipts_for, staged_rows
from databus.tasks._table_filters import Ways
from databus.tasks._typed_stage import pieces_of
from databus.tasks._written import Written
from databus.wire import is_inside_transaction, is_of_other_log

BUCKETS_MAX: Final = 256


def _any_table(name: str) -> bool:
    del name
    return True


@dataclass(frozen=True)
class Bucket:
    """What one task writes: the rows of some keys, of one stream into one output.

    number: of so many `buckets`, from 0 on. stream: name of the query that brings the rows. known: how far the stream
    has come as the output's ledger says; None where it says nothing. reached: the end of the last batch that was
    written, as the ledger says; the target can only stand at or above it. of: what the stream brings, as the ledger
    says it. brings: whether the stream has the table of this full name; others of the output may have other tables of
    the same source. selections: which tables that is, as the ledger says it. written: what is in the target beyond
    `known`, as the ledger says: others brought it, from which the stream goes on. accepted: uuids of logs of which the
    target had positions when the query began, which are of this history.
    """

    pipeline: str
    output: str
    stream: str
    number: int
    buckets: int
    known: SourceCheckpoint | None = None
    reached: Pair | None = None
    of: str = ""
    brings: Callable[[str], bool] = _any_table
    selections: tuple[Selection, ...] = ()
    written: tuple[Written, ...] = ()
    accepted: frozenset[str] = frozenset()

    def check_log(self, batch: ChangeBatch) -> None:
        """Raises `UnsupportedFeature` where a part of a transaction came from another log, which counts its rows
        otherwise: nobody can say which of them are missing.
        """
        known = self.known
        if known is None or not is_inside_transaction(known.pair) or known.pair >= batch.end.pair:
            return
        if is_of_other_log(known, batch.end.log or ""):
            raise UnsupportedFeature(
                f"outputs.{self.output}: has a part of the transaction at SCN {known.scn} of {batch.physical} from log "
                f"{known.log}, and the next changes come from {batch.end.log}, which counts the rows of a transaction "
                f"otherwise. Restore that log; or have the output made anew: `databus rebuild FILE {self.output}` "
                f"(FILE is the pipeline's file); or give it another name, under which it writes all again"
            )

    def takes_controls_of(self, table: TableSchema) -> bool:
        """Whether this is the bucket that writes a table's controls, where the target gets them once."""
        return _table_bucket(table, self.buckets) == self.number

    def check(self, position: SourceCheckpoint | None, batch: ChangeBatch) -> None:
        """Compare where the bucket stands, as its target says, with the ledger and the batch that comes next; for
        writers whose targets know that. Raises `UnsupportedFeature` for a gap, and for a position in another log.
        """
        if position is None:  # nothing was written yet, or the ledger says what was
            return
        least = batch.start.pair if self.known is None else self.reached
        if least is not None and position.pair < least:
            raise UnsupportedFeature(
                f"outputs.{self.output}: bucket {self.number} of {self.buckets} of {self.stream} stands at "
                f"{position.pair} (SCN, _seq) of {batch.physical} in its target, and what comes next begins after "
                f"{least}: what lies between is missing. Restore the target; or give the output another name, under "
                f"which it is written from the beginning"
            )
        is_foreign = position.log is not None and log_number(position.log) != log_number(batch.end.log)
        is_new = self.known is not None and (self.reached is None or position.pair > self.known.pair)
        if is_foreign and is_new and position.log not in self.accepted:
            raise ServiceUnavailable(
                f"outputs.{self.output}: {self.stream} has come to {position.pair} (SCN, _seq) in its target, written "
                f"from another log ({position.log}) since this query began: perhaps by another pipeline of this name. "
                f"The query begins again, and asks whose that is"
            )
        is_part = position.scn > 0 and is_inside_transaction(position.pair)
        if is_foreign and (self.known is None or is_part):
            holds = f"a part of the transaction at SCN {position.scn}" if is_part else "changes"
            raise UnsupportedFeature(
                f"outputs.{self.output}: bucket {self.number} of {self.buckets} of {self.stream} has {holds} from log "
                f"{position.log} of {batch.physical} in its target, and the next ones come from {batch.end.log}, whose "
                f"changes cannot be told from those. Restore that log, or the pipeline's state; or give the output "
                f"another name, under which it is written from the beginning"
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


class DirectWriter(Protocol):
    """A direct output's half in tasks; travels there as it is.

    A task may run twice, at the same time even, and one that was given up for dead may go on and write. Where the
    target has transactions, the writer commits a bucket's rows and its position together, under a fence that shuts out
    whoever began before; it drops what lies at or below that position. Else what is written twice has to be told by
    (`_commit_version`, `_seq`), and no older row may take the place of a newer.
    """

    @property
    def buckets(self) -> int:
        """How many buckets of keys there are."""

    def open(self, bucket: Bucket) -> AbstractContextManager[BucketWriter]:
        """Get ready to write a bucket; called in the task, once for all batches that it has."""


@dataclass(frozen=True)
class DirectFeed:
    """What tasks do for a direct output. bucket: as which it is given what all buckets have in common."""

    ways: Ways
    writer: DirectWriter
    bucket: Bucket

    def write_ranges(self, decode: Decode, ranges: pa.Table, number: int) -> list[str]:
        """Write one bucket of a batch over tables; returns the receipts."""
        return [receipt for _, receipt in self.write([number], decode(ranges))]

    def write(self, numbers: Sequence[int], batches: Iterable[ChangeBatch]) -> Iterator[tuple[int, str]]:
        """Write some buckets of batches; gives a receipt for each of both, with the bucket's number."""
        done = (0, 0) if self.bucket.known is None else self.bucket.known.pair
        with ExitStack() as stack:
            writers = [stack.enter_context(self.writer.open(replace(self.bucket, number=each))) for each in numbers]
            for batch in batches:
                self.bucket.check_log(batch)
                left = _above(batch, done)
                if left is None:
                    continue
                passed = self._passed(left)
                tables = [item.table for item in passed.items if isinstance(item, TableRows)]
                for number, writer in zip(numbers, writers, strict=True):
                    if isinstance(writer, ExpectsTables):
                        writer.expect(passed.physical, tables)
                    whole = writer.seen(passed) if isinstance(writer, SeesAllRows) else passed
                    given = self._given(whole, number)
                    controls = self._controls(left) if number == 0 else []
                    yield number, receipt_of(_receipt(given, writer.write(given), controls))

    def _controls(self, batch: ChangeBatch) -> list[TableControl]:
        """As they were before filters: the driver sees to those."""
        found = (item for item in batch.items if isinstance(item, TableControl))
        return [item for item in found if self.ways.selects(f"{batch.physical}/{item.table.source}")]

    def _passed(self, batch: ChangeBatch) -> ChangeBatch:
        """What is left of a batch behind the filters."""
        items: list[TableRows | TableControl] = []
        for item in batch.items:
            name = f"{batch.physical}/{item.table.source}"
            if not self.ways.selects(name):
                continue
            if isinstance(item, TableControl):
                items += self.ways.controls(name, item)
            else:
                items += self.ways.filtered(name, item)
        return replace(batch, items=tuple(items))

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
    """What the one task of a batch of typed rows does, which come in order: it writes all buckets.

    start, end: of the batch.
    """

    table: TableSchema
    physical: str
    start: SourceCheckpoint
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
    """What the tasks of all buckets have written, as one batch; none where the output had all of it already.

    receipts: of `RECEIPTS`, with the bucket as the feed. Raises `CorruptData` where buckets do not end alike.
    """
    found = [receipts_for(receipts, number) for number in range(buckets)]
    if not any(found):
        return []
    bounds = {(each[0].start.pair, each[-1].end.pair) if each else None for each in found}
    if len(bounds) > 1:
        raise CorruptData(f"{found[0][0].physical}: tasks wrote buckets of one batch with different bounds: {bounds}")
    controls = [item for batch in found[0] for item in batch.items if isinstance(item, TableControl)]
    rows: dict[tuple[str, int], StagedRows] = {}
    for item in (item for each in found for batch in each for item in batch.items):
        if isinstance(item, StagedRows):
            key = item.table.source, item.table.fingerprint
            rows[key] = item if key not in rows else _both(rows[key], item)
    return [replace(found[0][0], end=found[0][-1].end, items=(*rows.values(), *controls))]


def _both(one: StagedRows, other: StagedRows) -> StagedRows:
    return replace(one.then(other), first=min(one.first, other.first), ends=(max(one.last, other.last),))


def _above(batch: ChangeBatch, done: Pair) -> ChangeBatch | None:
    """What is left of a batch above a pair; None where it ends before."""
    if batch.end.pair <= done and batch.start.pair < done:
        return None
    return batch if batch.start.pair >= done else batch_above(batch, done)


def batch_above(batch: ChangeBatch, pair: Pair) -> ChangeBatch:
    """The batch with those of its rows and controls alone whose pairs are above `pair`."""
    items: list[TableRows | TableControl] = []
    for item in batch.items:
        if isinstance(item, TableControl):
            items += [item] if item.pair > pair else []
            continue
        rows = rows_above(item.rows, pair)
        items += [replace(item, rows=rows)] if rows.num_rows else []
    return replace(batch, items=tuple(items))


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
