"""Writing a micro-batch: tasks write the rows of each output of the query, and the driver commits them.

A batch has parts. The first has all whole tables; each table behind typed filters is read from the same range of the
log in parts of its own, which end where its schema changes. An output without tasks gets its rows in the driver, or a
part as a DataFrame.
"""

import json
import operator
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa

from databus.core import (
    Checkpoint,
    Clock,
    DatabusError,
    FatalError,
    Pair,
    ServiceUnavailable,
    SourceCheckpoint,
    SystemClock,
    UnknownSource,
    crash_point,
)
from databus.flow import (
    Batch,
    BatchTally,
    Bucket,
    ChangeBatch,
    Decode,
    DirectFeed,
    DirectTypedStage,
    DirectWriter,
    Item,
    LineageOf,
    Restage,
    RowsOutOfOrder,
    Stage,
    StagedBatch,
    StagedRows,
    TableControl,
    TableRows,
    TypedStage,
    Ways,
    decode_typed,
    joined,
    joined_buckets,
    joined_typed,
    receipts_for,
)
from databus.operate import logger_of, mark_reported
from databus.pipeline.engine._batch_event import Totals, advanced, control_json, lag_ms
from databus.pipeline.engine._engine import BatchRows, SparkRows
from databus.pipeline.engine._handle import BatchSpan, OutputHandle
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import OutputFeed
from databus.pipeline.engine._query_filters import Filters
from databus.pipeline.engine._staging import Staging, ways_of, write_ranges
from databus.pipeline.engine._typed_tables import Feeds, TypedTable, TypedTables
from databus.plugins import Written
from databus.schema import TableSchema
from databus.wire import is_inside_transaction

Report = Callable[[Mapping[str, Any]], None]
"""Takes an event of progress."""

BatchT = TypeVar("BatchT", bound=Batch)
_CONTROLS_MAX: Final = 100
"""Controls that an event of a batch has."""
_REST_LOOK_S: Final = 0.2  # it waits for another event than `wants_stop`
_SEQ_MAX: Final = 2**63 - 1
_STAGES_MAX: Final = 100  # each stage may find one table more that has to be written in another way


@dataclass(frozen=True)
class _Part:
    """A part of a batch, from `start` to `end`."""

    rows: BatchRows
    batch_id: int
    """Spark's; -1 for tables that catch up beside micro-batches."""
    start: SourceCheckpoint
    end: SourceCheckpoint
    span: BatchSpan
    filters: Filters = field(default_factory=dict)
    """The filters over whole tables of a way, by their paths."""


@dataclass(frozen=True)
class TablesPart(_Part):
    """Whole tables, as ranges of the log."""

    decode: Decode = field(kw_only=True)
    """Decodes these rows."""


@dataclass(frozen=True)
class TypedPart(_Part):
    """Typed rows of one table, behind its filters."""

    table: TableSchema = field(kw_only=True)
    """Its definition behind the filters."""
    lineage_of: LineageOf = field(kw_only=True)


Part = TablesPart | TypedPart


@dataclass(eq=False)
class Writer:
    """Called for each micro-batch of one query, in a thread of its engine."""

    query: str
    feeds: Feeds
    report: Report
    offsets: Offsets
    _: KW_ONLY
    decode: Decode | None = None
    """Decodes the stream's rows; None if these are typed."""
    filters: Filters = field(default_factory=dict)
    typed: TypedTables = field(default_factory=TypedTables)
    after: Checkpoint | None = None
    """Where the query's first batch begins."""
    read_anew: Callable[[Sequence[str]], None] | None = None
    """Asks for snapshots of tables, by full names."""
    stops_on_filter_change: Callable[[str], bool] = lambda _: False
    """See `Input`, by full name of a table."""
    wants_stop: threading.Event = field(default_factory=threading.Event)
    """Once set, the next change batch of a micro-batch is not written, and the micro-batch is repeated."""
    ends_batch: threading.Event = field(default_factory=threading.Event)
    """Once set, no other micro-batch begins."""
    clock: Clock = field(default_factory=SystemClock)
    choices: Mapping[str, Any] = field(default_factory=dict)
    """By output, what it takes of the source, for the journal."""
    rest: int = 0
    """After a micro-batch it waits for so many times as long as that took."""
    error: BaseException | None = None
    """With which the last micro-batch failed."""
    batches: int = 0
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by a micro-batch, or by tables that catch up."""

    def __post_init__(self) -> None:
        self._staging = Staging()
        self._unordered: set[str] = set()  # tables whose rows Spark's tasks gave in another order
        self.is_idle = threading.Event()  # set while no micro-batch is being written
        self.is_idle.set()
        self._written: defaultdict[str, Totals] = defaultdict(Totals)  # by output, of what is being written

    def __call__(self, rows: BatchRows, batch_id: int) -> None:
        """Write one micro-batch to all outputs; when this returns, its query counts it as done."""
        self.is_idle.clear()
        began_s = self.clock.monotonic_s()
        try:
            with self.turn:
                self._written.clear()  # counts of a batch that failed
                crash_point("pipeline.batch.before")
                self._check_goes_on()
                if self.decode is None:
                    self._write_typed_stream(rows, batch_id)
                else:
                    self._write_tables(rows, batch_id, self.decode)
                crash_point("pipeline.ledger.after")
        except BaseException as error:
            self.error = error  # Spark keeps only its text
            mark_reported(error)  # the query reports it; py4j would log a traceback first
            raise
        else:
            self.batches += 1
        finally:
            self.is_idle.set()
        self._rest_until(began_s + (self.clock.monotonic_s() - began_s) * (1 + self.rest))

    def _rest_until(self, until_s: float) -> None:
        """Wait at the end of a micro-batch, so that the next one takes all that comes meanwhile."""
        while (left_s := until_s - self.clock.monotonic_s()) > 0 and not self.wants_stop.is_set():
            if self.clock.wait(self.ends_batch, min(left_s, _REST_LOOK_S)):
                return

    def _check_goes_on(self) -> None:
        if self.ends_batch.is_set():
            raise ServiceUnavailable(f"{self.query}: it ends between two batches; this one is repeated")

    def _advance(self, batch_id: int, end: SourceCheckpoint, span: BatchSpan, began: float) -> None:
        crash_point("pipeline.batch.after")
        for _, handle in self.feeds:
            self._say_advanced(handle, end, span, began)
            handle.advance(self.offsets.checkpoint(batch_id), span)

    def _write_typed_stream(self, rows: BatchRows, batch_id: int) -> None:
        """For an input of typed rows: each way filters them."""
        began, (start, end) = self.clock.monotonic_s(), self._bounds(batch_id)
        span = BatchSpan(start.pair)
        for typed in self.typed:
            filtered, table = typed.made(rows.frame)
            part = TypedPart(SparkRows(filtered), batch_id, start, end, span, table=table, lineage_of=typed.lineage)
            self._write(part, typed.feeds)
        self._advance(batch_id, end, span, began)

    def _write_tables(self, rows: BatchRows, batch_id: int, decode: Decode) -> None:
        """For an input of tables: first the whole tables, then each table behind typed filters."""
        began, physical = self.clock.monotonic_s(), self.offsets.physical
        start, end = self._bounds(batch_id)
        turns = [turn for typed in self.typed if (turn := self._turn(typed, batch_id, start.pair)) is not None]
        for typed, typed_feeds in turns:
            for _, handle in typed_feeds:  # before its first batch a table has no place: it gets the batch's start
                handle.hold(physical, typed.names, self._raw(batch_id - 1))
        span = BatchSpan(start.pair, but=frozenset(name for typed, _ in turns for name in typed.names))
        feeds = [(self._at_start(feed, handle, span), handle) for feed, handle in self.feeds]
        part = TablesPart(rows, batch_id, start, end, span, self.filters, decode=decode)
        self._write(part, [(feed, handle) for feed, handle in feeds if feed.ways])
        stops: list[Exception] = []
        for typed, typed_feeds in turns:
            try:
                self._write_typed(typed, typed_feeds, batch_id)
            except Exception as error:  # noqa: BLE001 - a filter may raise anything; it is reported, or raised below
                if not self.typed.stays_behind(typed, error):
                    stops.append(error)
        self._advance(batch_id, end, span, began)  # also if a table stops the query: what was written is not repeated
        if stops:
            raise stops[0]

    def _turn(self, typed: TypedTable, batch_id: int, start: Pair) -> tuple[TypedTable, Feeds] | None:
        """The outputs that a table is written to in a batch, if it may have changes there; without outputs in which it
        is behind, which get it by catching up.
        """
        if not typed.names and typed.find():  # known only since the batch was planned: it has no rows in it
            typed.fall_due()
        if typed.failure is None:
            try:
                before, end = self._raw(batch_id - 1), self._raw(batch_id)
                is_told = batch_id == 0 or _ends_part(before, typed.feeds)
                if not typed.has_changes(before, end) and not is_told:
                    return None
            except Exception as error:
                if not self.typed.stays_behind(typed, error):
                    raise
        behind = [handle.position(self.offsets.physical).behind(start) for _, handle in typed.feeds]
        feeds = [feed for feed, names in zip(typed.feeds, behind, strict=True) if not names.keys() & typed.names]
        return (typed, feeds) if feeds and typed.names else None

    def _raw(self, batch_id: int) -> SourceCheckpoint:
        """The end of a batch, as the relay gave it."""
        physical = self.offsets.physical
        if batch_id >= 0:
            return self.offsets.checkpoint(batch_id).sources[physical]
        first = None if self.after is None else self.after.sources.get(physical)
        version = self.offsets.origin.starting_version
        least = SourceCheckpoint(scn=version - 1, seq=_SEQ_MAX) if version else SourceCheckpoint()
        return first or least  # rows of earlier snapshots have the SCN before the version

    def _write_typed(self, typed: TypedTable, feeds: Feeds, batch_id: int) -> None:
        """Write a table's rows of a batch, in as many parts as needed, and move its place in the handles."""
        if typed.failure is not None:
            return
        start, end = self._raw(batch_id - 1), self._raw(batch_id)
        while start.pair < end.pair:
            start = self._write_next(typed, feeds, batch_id, start, end)

    def _write_next(
        self, typed: TypedTable, feeds: Feeds, batch_id: int, start: SourceCheckpoint, end: SourceCheckpoint
    ) -> SourceCheckpoint:
        """Write the next part of a table, up to a change of its schema or to `end`; returns its new place."""
        rows, place = typed.after(start, end)
        if rows is None and (batch_id == 0 or _ends_part(start, feeds)):
            rows = typed.empty()  # an output has to see its beginning, as by `_beginning`
        if rows is not None:
            filtered, table = typed.made(rows)
            span = BatchSpan(start.pair, typed.names)
            first, last = (replace(place_of, log=typed.log) for place_of in (start, place))
            part = TypedPart(SparkRows(filtered), batch_id, first, last, span, table=table, lineage_of=typed.lineage)
            before = {handle.name: self._written[handle.name].came(table.source) for _, handle in feeds}
            self._write(part, feeds)
            came, spent_us = typed.was_read()
            for written, known in ((self._written[name], known) for name, known in before.items()):
                written.read_for(table.source, typed.steps, came, spent_us, written.came(table.source) - known)
        if place == start:
            place = end  # the rest of the range has no rows of it
        for _, handle in feeds:
            handle.hold(self.offsets.physical, typed.names, place)
        return place

    def _at_start(self, feed: OutputFeed, handle: OutputHandle, span: BatchSpan) -> OutputFeed:
        """The ways of whole tables, without tables whose place is below the start of the batch."""
        tables = feed.of(*(way for way in feed.ways if not way.is_typed))
        return tables.without(handle.position(self.offsets.physical).behind(span.start))

    def write_typed_range(
        self, typed: TypedTable, feed: OutputFeed, handle: OutputHandle, start: SourceCheckpoint, to: SourceCheckpoint
    ) -> None:
        """Write the next part of a table behind typed filters that catches up, and note its new place. Called with
        `turn` held.
        """
        began, span = self.clock.monotonic_s(), BatchSpan(start.pair, typed.names)
        self._written.clear()
        place = self._write_next(typed, [(feed, handle)], -1, start, to)
        self._say_advanced(handle, place, span, began)
        handle.advance(Checkpoint({self.offsets.physical: place}), span)

    def write_range(
        self,
        rows: BatchRows | None,
        start: SourceCheckpoint,
        end: SourceCheckpoint,
        span: BatchSpan,
        decode: Decode,
        feed: OutputFeed,
        handle: OutputHandle,
    ) -> None:
        """Write a range for tables that catch up, and note their new places. Called with `turn` held."""
        began = self.clock.monotonic_s()
        self._written.clear()
        if rows is not None:
            part = TablesPart(rows, -1, start, end, span, self.filters, decode=decode)
            self._write(part, [(feed.only(span.only or ()), handle)])
        self._say_advanced(handle, end, span, began)
        handle.advance(Checkpoint({self.offsets.physical: end}), span)

    def _write(self, part: Part, feeds: Feeds) -> None:
        began = self.clock.monotonic_s()
        in_spark = [(handle, handle.frames) for _, handle in feeds if handle.frames is not None]
        others = [(feed, handle, handle.output.part_writer()) for feed, handle in feeds if handle.frames is None]
        in_driver = [(feed, handle) for feed, handle, writer in others if writer is None]
        direct = [(feed, handle, writer) for feed, handle, writer in others if isinstance(writer, DirectWriter)]
        staged = [(feed, handle) for feed, handle, writer in others if writer and not isinstance(writer, DirectWriter)]
        if len(feeds) > 1 and in_spark:
            part.rows.frame.persist()
        try:
            for handle, frames in in_spark:
                count = handle.write_frame(frames, part.rows.frame, part.batch_id)
                self._say(handle.name, None, Written({}), began, count)
            if staged:
                self._write_in_tasks(part, staged, began)
            for feed, handle, buckets in direct:
                self._write_direct(part, feed, handle, buckets, began)
            if in_driver:
                self._write_in_driver(part, in_driver, began)
        finally:
            if len(feeds) > 1 and in_spark:
                part.rows.frame.unpersist()

    def _write_in_driver(self, part: Part, feeds: Feeds, began: float) -> None:
        for batch in self.batches_of(part):
            if self.wants_stop.is_set():
                raise ServiceUnavailable(f"{self.query}: the pipeline stops; the rest of this batch is repeated")
            for feed, handle in feeds:
                tally = BatchTally(batch.counts)
                own = self._for_feed(part, batch, feed, handle, tally)
                with tally.timing("write"):
                    written = handle.write(own, part.span)
                self._say(handle.name, replace(own, counts=tally.counts()), written, began)

    def _write_in_tasks(self, part: Part, feeds: Feeds, began: float) -> None:
        """One job for all outputs; its receipts are then committed, output by output."""
        staged = self._staged(part, feeds)
        for (feed, handle), first in zip(feeds, staged, strict=True):
            batches: Sequence[StagedBatch] = first or self._beginning(part)
            for _ in range(_STAGES_MAX):
                again = self._commit(part, batches, feed, handle, began)
                if again is None:
                    break
                self._staging.note(feed.output, again)
                (batches,) = self._staged(part, [(feed, handle)])
            else:
                raise FatalError(f"{self.query}: {handle.name} asked {_STAGES_MAX} times for the same rows")

    def _beginning(self, part: Part) -> list[StagedBatch]:
        """An empty batch that shows an output where its first micro-batch begins, if that has no rows."""
        if part.batch_id:
            return []
        return [StagedBatch(self.offsets.physical, part.start, part.end, ())]

    def _write_direct(
        self, part: Part, feed: OutputFeed, handle: OutputHandle, writer: DirectWriter, began: float
    ) -> None:
        """One job for an output, with a task for each bucket; all rows are in the target when it ends."""
        to_buckets = self._to_buckets(part, feed, handle, writer)
        if to_buckets is None:
            return
        beginning, write = to_buckets
        writing_s = 0.0

        def written(bucket: Bucket) -> list[StagedBatch]:
            nonlocal writing_s
            began_s = self.clock.monotonic_s()
            receipts = write(bucket)
            writing_s = self.clock.monotonic_s() - began_s
            return [self._for_feed(part, batch, feed, handle) for batch in joined_buckets(receipts, writer.buckets)]

        began_s = self.clock.monotonic_s()
        done = handle.write_direct(beginning, written, part.span)
        commit_us = round((self.clock.monotonic_s() - began_s - writing_s) * 1e6)
        for batch, counts in done:
            self._say(handle.name, batch, counts, began, commit_us=commit_us)
            commit_us = 0

    def _to_buckets(
        self, part: Part, feed: OutputFeed, handle: OutputHandle, writer: DirectWriter
    ) -> tuple[Batch, Callable[[Bucket], pa.Table]] | None:
        """The beginning of a part, and a function that has tasks write it and returns their receipts; None without
        rows.
        """
        ways = ways_of(feed, handle.output, part.filters)
        if isinstance(part, TypedPart):
            return Batch(self.offsets.physical, part.start, part.end, ()), partial(
                self._write_bucket, part, ways, writer
            )
        ranges = part.rows.ranges()  # they are small: each task gets all of them, and reads the log itself
        if ranges.num_rows == 0:
            start, end = part.start, part.end
            if not _ends_part(start, [(feed, handle)]):
                return None
            ranges = _empty_range(ranges.schema, self.offsets.physical, start, end)
        scn, seq = min(zip(*(ranges.column(name).to_pylist() for name in ("after_scn", "after_seq")), strict=True))
        start = SourceCheckpoint(scn=scn, seq=seq)
        write = partial(write_ranges, part.rows, part.decode, ranges)
        return Batch(self.offsets.physical, start, start, ()), partial(write, ways, writer)

    def _write_bucket(self, part: TypedPart, ways: Ways, writer: DirectWriter, bucket: Bucket) -> pa.Table:
        """One task writes all buckets, of rows that Spark has sorted."""
        bucket = replace(bucket, reads=partial(operator.eq, f"{self.offsets.physical}/{part.table.source}"))
        of = part.table, self.offsets.physical, part.start, part.end
        stage = DirectTypedStage(*of, DirectFeed(ways, writer, bucket))
        return part.rows.in_order(in_one=True).map(stage)

    def _staged(self, part: Part, feeds: Feeds) -> Sequence[Sequence[StagedBatch]]:
        """The batches that tasks have written of a part for each of these outputs."""
        physical = self.offsets.physical
        placed = [
            (feed, handle.output, replace(handle.position(physical), ways={}, marks={})) for feed, handle in feeds
        ]
        if isinstance(part, TablesPart):
            receipts = self._staging.run(part.rows, partial(Stage, part.decode), part.filters, placed)
            return [joined(receipts, number) for number in range(len(feeds))]
        rows, source = part.rows, part.table.source
        if source in self._unordered:
            rows = rows.in_order(in_one=False)
        receipts = self._staging.run(rows, partial(TypedStage, part.table, physical), part.filters, placed)
        try:
            bounds = part.start, part.end, part.lineage_of, physical
            return [[joined_typed(receipts, number, *bounds)] for number in range(len(feeds))]
        except RowsOutOfOrder:
            for number, (_, handle) in enumerate(feeds):
                self._discard(receipts_for(receipts, number), handle)
            if source in self._unordered:
                raise FatalError(f"{self.query}: rows that Spark has sorted are not in order") from None
        self._unordered.add(source)
        return self._staged(part, feeds)

    def _commit(
        self, part: Part, batches: Sequence[StagedBatch], feed: OutputFeed, handle: OutputHandle, began: float
    ) -> Restage | None:
        try:
            for batch in batches:
                own = self._for_feed(part, batch, feed, handle)
                began_s = self.clock.monotonic_s()
                written = handle.commit(own, part.rows, part.span)
                commit_us = round((self.clock.monotonic_s() - began_s) * 1e6)
                self._say(handle.name, own, written, began, commit_us=commit_us)
        except Restage as again:
            self._discard(batches, handle)
            return again
        except Exception:  # remove the files, then pass it on
            self._discard(batches, handle)
            raise
        return None

    def _discard(self, batches: Sequence[StagedBatch], handle: OutputHandle) -> None:
        """Remove what was not committed, as far as that is known; upkeep removes the rest."""
        try:
            handle.discard(batches)
        except (DatabusError, OSError) as error:
            logger = logger_of("databus.pipeline")
            logger.warning("files of tasks stay until upkeep", output=handle.name, why=str(error))

    def batches_of(self, part: Part) -> Iterable[ChangeBatch]:
        """The part as change batches, in order."""
        if isinstance(part, TypedPart):
            of = part.table, self.offsets.physical, part.start, part.end, part.lineage_of
            return [decode_typed(part.rows.ranges(), *of)]
        return part.decode(part.rows.ranges())

    def _bounds(self, batch_id: int) -> tuple[SourceCheckpoint, SourceCheckpoint]:
        """Start and end of a micro-batch."""
        offsets = self.offsets
        least = SourceCheckpoint(scn=max(offsets.origin.starting_version - 1, 0))
        first = least if self.after is None else offsets.position_in(self.after)
        start = first if batch_id == 0 else offsets.position(batch_id - 1)
        return start, offsets.position(batch_id)

    def _for_feed(
        self, part: Part, batch: BatchT, feed: OutputFeed, handle: OutputHandle, tally: BatchTally | None = None
    ) -> BatchT:
        """The part of a batch that an output gets. Tables that a mirror cannot follow behind filters are read again.
        tally: counts rows that tasks have not counted.
        """
        items: list[Item] = []
        tally = tally or BatchTally()
        for item in batch.items:
            name, output = f"{batch.physical}/{item.table.source}", handle.output
            if not feed.selects(name):
                continue
            rows = item.rows.num_rows if isinstance(item, TableRows) else 0
            dropped = tally.came(item.table.source, rows)
            chain = part.filters.get(feed.filters_of(name))
            if chain is None or isinstance(item, StagedRows):
                items.append(item)
                if _is_inexact(item):
                    self._read_again(name, item, handle)
                continue
            chain.check_key(item.table, output.config.key_choice.of(item.table.source))
            with tally.timing("filter"):
                filtered, is_exact = chain.item(item, dropped)
            items += filtered
            if not is_exact:
                self._read_again(name, item, handle)
        return replace(batch, items=tuple(items))

    def _read_again(self, name: str, item: Item, handle: OutputHandle) -> None:
        """Have a table read again, after a control by which the filters would choose other ones of its older rows."""
        if self.stops_on_filter_change(name) and _is_inexact(item):
            pair = item.pair if isinstance(item, TableControl) else (0, 0)
            raise FatalError(
                f"{name}: at SCN {pair[0]}, seq {pair[1]} its schema changes what the input's filter reads, and "
                "earlier rows were chosen, or cut, by other values than they have now. Say "
                "`on_filter_change: snapshot` in the input, and start again: the table is then read again"
            )
        if handle.output.config.is_refilled and self.read_anew is not None:
            with suppress(UnknownSource):  # dropped since then
                self.read_anew([name])
                handle.expect_snapshot(self.offsets.physical, [name])

    def _say(
        self,
        output: str,
        batch: Batch | None,
        written: Written,
        began: float,
        rows: int | None = None,
        commit_us: int = 0,
    ) -> None:
        event: dict[str, Any] = {
            "event": "batch",
            "query": self.query,
            "output": output,
            "batch_ms": round((self.clock.monotonic_s() - began) * 1e3, 1),
            "at_us": self.clock.now_ns() // 1000,
            "rows": rows,
        }
        if batch is not None:
            by_source = written.rows or {}
            tables = [item for item in batch.items if not isinstance(item, TableControl)]
            event |= {
                "physical": batch.physical,
                "position": batch.end.to_json(),
                "rows": sum(by_source.values()),
                "controls": len(batch.items) - len(tables),
                "changes": [control_json(item) for item in batch.items if isinstance(item, TableControl)][
                    :_CONTROLS_MAX
                ],
                "lag_ms": lag_ms(tables, self.clock.now_ns()),
                "driver_row_bytes": sum(
                    rows_of_table.rows.nbytes for rows_of_table in tables if isinstance(rows_of_table, TableRows)
                ),
                "tables": dict(by_source),
            }
        self._written[output].take(batch, written, event["rows"], commit_us)
        self.report(event)

    def _say_advanced(self, handle: OutputHandle, end: SourceCheckpoint, span: BatchSpan, began: float) -> None:
        """Report that all up to `end` is in a target. Before its ledger says so: if this process is killed in between,
        it is reported twice; the other order could lose it, which looks like a missing batch.
        """
        self.report(
            {
                "event": "advanced",
                "query": self.query,
                "output": handle.name,
                "at_us": self.clock.now_ns() // 1000,
                "ms": round((self.clock.monotonic_s() - began) * 1e3, 1),
                "choice": self.choices.get(handle.name),
                **advanced(handle, self.offsets.physical, end, span, self._written.pop(handle.name, Totals())),
            }
        )


def _empty_range(schema: pa.Schema, physical: str, start: SourceCheckpoint, end: SourceCheckpoint) -> pa.Table:
    """A micro-batch without rows, as one range of the log: a transaction with earlier rows may end in it."""
    values = (physical, json.dumps(start.to_json()), *start.pair, *end.pair, 1, "")
    columns = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _is_inexact(item: Item) -> bool:
    """Whether a control says that the relay filtered earlier rows by other values than they have now."""
    return isinstance(item, TableControl) and item.body.get("exact") is False


def _ends_part(start: SourceCheckpoint, feeds: Feeds) -> bool:
    """Whether a transaction may end after a place, of which an output still keeps rows open."""
    ends = any(handle.output.config.ends_transactions for _, handle in feeds)
    return ends and bool(start.scn) and is_inside_transaction(start.pair)
