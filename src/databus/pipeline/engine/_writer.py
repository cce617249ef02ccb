"""What happens to a micro-batch: tasks write the rows of each output of the query, and the driver commits them.

A batch has parts. The first has all tables that come as whole tables; each table behind typed filters is read from the
same range of the log in parts of its own, which end where its schema changes. An output whose rows are not written by
tasks is given them in the driver, or a part as Spark has it.
"""

import json
import operator
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    Tally,
    TypedStage,
    Ways,
    decode_typed,
    joined,
    joined_buckets,
    joined_typed,
    receipts_for,
)
from databus.operate import logger_of, mark_reported
from databus.pipeline.engine._batch_event import Totals, advanced, lag_ms, told_of
from databus.pipeline.engine._engine import Rows, SparkRows
from databus.pipeline.engine._handle import OutputHandle, Span
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import Feed
from databus.pipeline.engine._query_filters import Filters
from databus.pipeline.engine._staging import Staging, ways_of, write_ranges
from databus.pipeline.engine._typed_tables import Feeds, TypedTable, TypedTables
from databus.schema import TableSchema
from databus.wire import is_inside_transaction

Report = Callable[[Mapping[str, Any]], None]
"""Takes an event of progress."""

BatchT = TypeVar("BatchT", bound=Batch)
_TOLD_MAX: Final = 100
"""Controls that an event of a batch names."""
_REST_LOOK_S: Final = 0.2  # `wants_stop` is another event than the one that is waited for
_SEQ_MAX: Final = 2**63 - 1
_STAGES_MAX: Final = 100  # each asks for one table more to be written in another way


@dataclass(frozen=True)
class _Part:
    """What is written at once, from `start` to `end`."""

    rows: Rows
    batch_id: int
    """Spark's; -1 of what is not of a micro-batch."""
    start: SourceCheckpoint
    end: SourceCheckpoint
    span: Span
    filters: Filters = field(default_factory=dict)
    """By the paths of filters over whole tables on the way of a table, those filters."""


@dataclass(frozen=True)
class TablesPart(_Part):
    """Whole tables, as ranges of the log."""

    decode: Decode = field(kw_only=True)
    """Of these rows."""


@dataclass(frozen=True)
class TypedPart(_Part):
    """Typed rows of one table, as its filters have made them."""

    table: TableSchema = field(kw_only=True)
    """What the filters have made of its definition."""
    lineage_of: LineageOf = field(kw_only=True)


Part = TablesPart | TypedPart


class Writer:
    """Called for each micro-batch of one query, in a thread of its engine's. `error` is what it failed with.

    decode: of the stream's rows; None where these are typed. typed: the tables that come by typed filters. after: where
    the query's first batch begins. read_anew: asks for snapshots of tables, by full names. stops_on_filter_change: see
    `Input`, by full name of a table. wants_stop: once it is set, the next change batch of a micro-batch is not written.
    It comes again. ends_batch: once it is set, no other micro-batch is begun. is_idle: none is being written. choices:
    by output, what it takes of the source, for the journal.
    """

    rest = 0
    """For how many times as long as a micro-batch took it waits behind it."""

    def __init__(
        self,
        query: str,
        feeds: Feeds,
        report: Report,
        offsets: Offsets,
        *,
        decode: Decode | None = None,
        filters: Filters | None = None,
        typed: TypedTables | None = None,
        after: Checkpoint | None = None,
        read_anew: Callable[[Sequence[str]], None] | None = None,
        stops_on_filter_change: Callable[[str], bool] = lambda _: False,
        wants_stop: threading.Event | None = None,
        ends_batch: threading.Event | None = None,
        clock: Clock | None = None,
        choices: Mapping[str, Any] | None = None,
    ) -> None:
        self._query = query
        self._feeds = feeds
        self._report = report
        self._offsets = offsets
        self._decode = decode
        self._filters = filters or {}
        self._typed = typed or TypedTables()
        self._after = after
        self._read_anew = read_anew
        self._stops_on_filter_change = stops_on_filter_change
        self._wants_stop = wants_stop or threading.Event()
        self._ends_batch = ends_batch or threading.Event()
        self._clock = clock or SystemClock()
        self._choices = choices or {}
        self._staging = Staging()
        self._unordered: set[str] = set()  # tables of which Spark's tasks gave rows in another order
        self.error: BaseException | None = None
        self.batches = 0
        self.turn = threading.Lock()  # of a micro-batch, or of tables that catch up
        self.is_idle = threading.Event()
        self.is_idle.set()
        self._written: defaultdict[str, Totals] = defaultdict(Totals)  # by output, of what is being written

    def __call__(self, rows: Rows, batch_id: int) -> None:
        """Write one micro-batch everywhere; its query takes note of it when this returns."""
        self.is_idle.clear()
        began_s = self._clock.monotonic_s()
        try:
            with self.turn:
                self._written.clear()  # of one that failed
                crash_point("pipeline.batch.before")
                self._check_goes_on()
                if self._decode is None:
                    self._write_typed_stream(rows, batch_id)
                else:
                    self._write_tables(rows, batch_id, self._decode)
                crash_point("pipeline.ledger.after")
        except BaseException as error:
            self.error = error  # Spark keeps but its text
            mark_reported(error)  # by the query, which py4j's log would precede with a traceback
            raise
        else:
            self.batches += 1
        finally:
            self.is_idle.set()
        self._rest_until(began_s + (self._clock.monotonic_s() - began_s) * (1 + self.rest))

    def _rest_until(self, until_s: float) -> None:
        """Wait here, and not before the next one begins: that is to take what comes until then."""
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not self._wants_stop.is_set():
            if self._clock.wait(self._ends_batch, min(left_s, _REST_LOOK_S)):
                return

    def _check_goes_on(self) -> None:
        if self._ends_batch.is_set():
            raise ServiceUnavailable(f"{self._query}: it ends between two batches; this one comes again")

    def _advance(self, batch_id: int, end: SourceCheckpoint, span: Span, began: float) -> None:
        crash_point("pipeline.batch.after")
        for _, handle in self._feeds:
            self._say_advanced(handle, end, span, began)
            handle.advance(self._offsets.checkpoint(batch_id), span)

    def _write_typed_stream(self, rows: Rows, batch_id: int) -> None:
        """Of an input whose rows are typed: each way filters them."""
        began, (start, end) = self._clock.monotonic_s(), self._bounds(batch_id)
        span = Span(start.pair)
        for typed in self._typed:
            made, table = typed.made(rows.frame)
            part = TypedPart(SparkRows(made), batch_id, start, end, span, table=table, lineage_of=typed.lineage)
            self._write(part, typed.feeds)
        self._advance(batch_id, end, span, began)

    def _write_tables(self, rows: Rows, batch_id: int, decode: Decode) -> None:
        """Of an input of tables: first those that come as they are, then each that typed filters are about."""
        began, physical = self._clock.monotonic_s(), self._offsets.physical
        start, end = self._bounds(batch_id)
        turns = [turn for typed in self._typed if (turn := self._turn(typed, batch_id, start.pair)) is not None]
        for typed, mine in turns:
            for _, handle in mine:  # before the first batch nobody has a place: then it is where that begins
                handle.hold(physical, typed.names, self._raw(batch_id - 1))
        span = Span(start.pair, but=frozenset(name for typed, _ in turns for name in typed.names))
        feeds = [(self._at_start(feed, handle, span), handle) for feed, handle in self._feeds]
        part = TablesPart(rows, batch_id, start, end, span, self._filters, decode=decode)
        self._write(part, [(feed, handle) for feed, handle in feeds if feed.ways])
        stops: list[Exception] = []
        for typed, mine in turns:
            try:
                self._write_typed(typed, mine, batch_id)
            except Exception as error:  # noqa: BLE001 - a filter may raise anything; it is told, or raised below
                if not self._typed.stays_behind(typed, error):
                    stops.append(error)
        self._advance(batch_id, end, span, began)  # also where a table stops all: what was written does not come again
        if stops:
            raise stops[0]

    def _turn(self, typed: TypedTable, batch_id: int, start: Pair) -> tuple[TypedTable, Feeds] | None:
        """The outputs that a table is written to in a batch, where there is something of it, or nobody could tell; not
        those in which it is behind, where it catches up beside.
        """
        if not typed.names and typed.find():  # after the batch's end was planned: below it there is nothing of it
            typed.fall_due()
        if typed.failure is None:
            try:
                before, end = self._raw(batch_id - 1), self._raw(batch_id)
                is_told = batch_id == 0 or _ends_part(before, typed.feeds)
                if not typed.has_changes(before, end) and not is_told:
                    return None
            except Exception as error:
                if not self._typed.stays_behind(typed, error):
                    raise
        behind = [handle.position(self._offsets.physical).behind(start) for _, handle in typed.feeds]
        feeds = [each for each, names in zip(typed.feeds, behind, strict=True) if not names.keys() & typed.names]
        return (typed, feeds) if feeds and typed.names else None

    def _raw(self, batch_id: int) -> SourceCheckpoint:
        """The end of a batch as the relay says it."""
        physical = self._offsets.physical
        if batch_id >= 0:
            return self._offsets.checkpoint(batch_id).sources[physical]
        first = None if self._after is None else self._after.sources.get(physical)
        version = self._offsets.origin.starting_version
        least = SourceCheckpoint(scn=version - 1, seq=_SEQ_MAX) if version else SourceCheckpoint()
        return first or least  # what snapshots read before the version is below it, too

    def _write_typed(self, typed: TypedTable, feeds: Feeds, batch_id: int) -> None:
        """Write what there is of a table, in as many parts as it takes, and have the handles know how far it came."""
        if typed.failure is not None:
            return
        start, end = self._raw(batch_id - 1), self._raw(batch_id)
        while start.pair < end.pair:
            start = self._write_next(typed, feeds, batch_id, start, end)

    def _write_next(
        self, typed: TypedTable, feeds: Feeds, batch_id: int, start: SourceCheckpoint, end: SourceCheckpoint
    ) -> SourceCheckpoint:
        """Write the next part of a table, up to a change of its schema or to `end`; returns where it stands then."""
        rows, place = typed.after(start, end)
        if rows is None and (batch_id == 0 or _ends_part(start, feeds)):
            rows = typed.empty()  # an output is told where it begins, as by `_beginning`
        if rows is not None:
            made, table = typed.made(rows)
            span = Span(start.pair, typed.names)
            first, last = (replace(each, log=typed.log) for each in (start, place))
            part = TypedPart(SparkRows(made), batch_id, first, last, span, table=table, lineage_of=typed.lineage)
            before = {handle.name: self._written[handle.name].came(table.source) for _, handle in feeds}
            self._write(part, feeds)
            came, spent_us = typed.was_read()
            for written, known in ((self._written[name], known) for name, known in before.items()):
                written.read_for(table.source, typed.steps, came, spent_us, written.came(table.source) - known)
        if place == start:
            place = end  # nothing of it is left up to there
        for _, handle in feeds:
            handle.hold(self._offsets.physical, typed.names, place)
        return place

    def _at_start(self, feed: Feed, handle: OutputHandle, span: Span) -> Feed:
        """The ways of whole tables, without those that stand below where a batch begins."""
        tables = feed.of(*(way for way in feed.ways if not way.is_typed))
        return tables.without(handle.position(self._offsets.physical).behind(span.start))

    def write_typed_range(
        self, typed: TypedTable, feed: Feed, handle: OutputHandle, start: SourceCheckpoint, to: SourceCheckpoint
    ) -> None:
        """Write the next part of a table behind typed filters that catches up, and note where it stands then. Called
        with `turn` held.
        """
        began, span = self._clock.monotonic_s(), Span(start.pair, typed.names)
        self._written.clear()
        place = self._write_next(typed, [(feed, handle)], -1, start, to)
        self._say_advanced(handle, place, span, began)
        handle.advance(Checkpoint({self._offsets.physical: place}), span)

    def write_range(
        self,
        rows: Rows | None,
        start: SourceCheckpoint,
        end: SourceCheckpoint,
        span: Span,
        decode: Decode,
        feed: Feed,
        handle: OutputHandle,
    ) -> None:
        """Write what tables that catch up lack of a range, and note where they stand then. Called with `turn` held."""
        began = self._clock.monotonic_s()
        self._written.clear()
        if rows is not None:
            part = TablesPart(rows, -1, start, end, span, self._filters, decode=decode)
            self._write(part, [(feed.only(span.only or ()), handle)])
        self._say_advanced(handle, end, span, began)
        handle.advance(Checkpoint({self._offsets.physical: end}), span)

    def _write(self, part: Part, feeds: Feeds) -> None:
        began = self._clock.monotonic_s()
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
                self._say(handle.name, None, {}, began, count)
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
            if self._wants_stop.is_set():
                raise ServiceUnavailable(f"{self._query}: the pipeline stops; what is left of this batch comes again")
            for feed, handle in feeds:
                tally = Tally(batch.counts)
                mine = self._for_feed(part, batch, feed, handle, tally)
                with tally.timing("write"):
                    written = handle.write(mine, part.span)
                self._say(handle.name, replace(mine, counts=tally.counts()), written, began)

    def _write_in_tasks(self, part: Part, feeds: Feeds, began: float) -> None:
        """One job for all outputs; what it hands back is then committed, output by output."""
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
                raise FatalError(f"{self._query}: {handle.name} asked {_STAGES_MAX} times for the same rows")

    def _beginning(self, part: Part) -> list[StagedBatch]:
        """What says to an output where its first micro-batch begins, if that brings nothing."""
        if part.batch_id:
            return []
        return [StagedBatch(self._offsets.physical, part.start, part.end, ())]

    def _write_direct(self, part: Part, feed: Feed, handle: OutputHandle, writer: DirectWriter, began: float) -> None:
        """One job for an output, a task for each bucket, which are all in the target when it ends."""
        found = self._to_buckets(part, feed, handle, writer)
        if found is None:
            return
        given, write = found
        writing_s = 0.0

        def written(bucket: Bucket) -> list[StagedBatch]:
            nonlocal writing_s
            began_s = self._clock.monotonic_s()
            receipts = write(bucket)
            writing_s = self._clock.monotonic_s() - began_s
            return [self._for_feed(part, batch, feed, handle) for batch in joined_buckets(receipts, writer.buckets)]

        began_s = self._clock.monotonic_s()
        done = handle.write_direct(given, written, part.span)
        commit_us = round((self._clock.monotonic_s() - began_s - writing_s) * 1e6)
        for batch, counts in done:
            self._say(handle.name, batch, counts, began, commit_us=commit_us)
            commit_us = 0

    def _to_buckets(
        self, part: Part, feed: Feed, handle: OutputHandle, writer: DirectWriter
    ) -> tuple[Batch, Callable[[Bucket], pa.Table]] | None:
        """Where a part begins, and what has tasks write it, for their receipts; None if it has nothing."""
        ways = ways_of(feed, handle.output, part.filters)
        if isinstance(part, TypedPart):
            return Batch(self._offsets.physical, part.start, part.end, ()), partial(
                self._write_bucket, part, ways, writer
            )
        ranges = part.rows.ranges()  # each task has all of them, which are small, and reads them itself
        if ranges.num_rows == 0:
            start, end = part.start, part.end
            if not _ends_part(start, [(feed, handle)]):
                return None
            ranges = _empty_range(ranges.schema, self._offsets.physical, start, end)
        scn, seq = min(zip(*(ranges.column(name).to_pylist() for name in ("after_scn", "after_seq")), strict=True))
        start = SourceCheckpoint(scn=scn, seq=seq)
        write = partial(write_ranges, part.rows, part.decode, ranges)
        return Batch(self._offsets.physical, start, start, ()), partial(write, ways, writer)

    def _write_bucket(self, part: TypedPart, ways: Ways, writer: DirectWriter, bucket: Bucket) -> pa.Table:
        """One task writes all buckets, of rows that Spark has put in order."""
        bucket = replace(bucket, reads=partial(operator.eq, f"{self._offsets.physical}/{part.table.source}"))
        of = part.table, self._offsets.physical, part.start, part.end
        stage = DirectTypedStage(*of, DirectFeed(ways, writer, bucket))
        return part.rows.in_order(in_one=True).map(stage)

    def _staged(self, part: Part, feeds: Feeds) -> Sequence[Sequence[StagedBatch]]:
        """What tasks have written of a part for each of these outputs."""
        physical = self._offsets.physical
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
                raise FatalError(f"{self._query}: Spark put rows in order, and they are not") from None
        self._unordered.add(source)
        return self._staged(part, feeds)

    def _commit(
        self, part: Part, batches: Sequence[StagedBatch], feed: Feed, handle: OutputHandle, began: float
    ) -> Restage | None:
        try:
            for batch in batches:
                mine = self._for_feed(part, batch, feed, handle)
                began_s = self._clock.monotonic_s()
                written = handle.commit(mine, part.rows, part.span)
                commit_us = round((self._clock.monotonic_s() - began_s) * 1e6)
                self._say(handle.name, mine, written, began, commit_us=commit_us)
        except Restage as again:
            self._discard(batches, handle)
            return again
        except Exception:  # whatever it is, it goes on, and leaves no files behind
            self._discard(batches, handle)
            raise
        return None

    def _discard(self, batches: Sequence[StagedBatch], handle: OutputHandle) -> None:
        """Remove what was not committed, as far as that can be told; upkeep removes the rest."""
        try:
            handle.discard(batches)
        except (DatabusError, OSError) as error:
            logger = logger_of("databus.pipeline")
            logger.warning("files of tasks stay until upkeep", output=handle.name, why=str(error))

    def batches_of(self, part: Part) -> Iterable[ChangeBatch]:
        """The part as change batches, in order."""
        if isinstance(part, TypedPart):
            of = part.table, self._offsets.physical, part.start, part.end, part.lineage_of
            return [decode_typed(part.rows.ranges(), *of)]
        return part.decode(part.rows.ranges())

    def _bounds(self, batch_id: int) -> tuple[SourceCheckpoint, SourceCheckpoint]:
        """Where the rows of a micro-batch begin and end."""
        offsets = self._offsets
        least = SourceCheckpoint(scn=max(offsets.origin.starting_version - 1, 0))
        first = least if self._after is None else offsets.position_in(self._after)
        start = first if batch_id == 0 else offsets.position(batch_id - 1)
        return start, offsets.position(batch_id)

    def _for_feed(
        self, part: Part, batch: BatchT, feed: Feed, handle: OutputHandle, tally: Tally | None = None
    ) -> BatchT:
        """What of a batch an output is given. What a mirror cannot follow behind filters is read anew. tally: counts
        rows that tasks have not counted.
        """
        items: list[Item] = []
        tally = tally or Tally()
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
                made, is_exact = chain.item(item, dropped)
            items += made
            if not is_exact:
                self._read_again(name, item, handle)
        return replace(batch, items=tuple(items))

    def _read_again(self, name: str, item: Item, handle: OutputHandle) -> None:
        """Have a table read again, at a control after which its older rows are not those that the filters choose."""
        if self._stops_on_filter_change(name) and _is_inexact(item):
            pair = item.pair if isinstance(item, TableControl) else (0, 0)
            raise FatalError(
                f"{name}: at SCN {pair[0]}, seq {pair[1]} its schema changes what the input's filter reads, and "
                "rows that came before were chosen, or cut, by other values than they have now. Say "
                "`on_filter_change: snapshot` in the input, and start again: the table is then read again"
            )
        if handle.output.config.is_refilled and self._read_anew is not None:
            with suppress(UnknownSource):  # dropped since then
                self._read_anew([name])
                handle.expect_snapshot(self._offsets.physical, [name])

    def _say(
        self,
        output: str,
        batch: Batch | None,
        written: Mapping[str, int],
        began: float,
        rows: int | None = None,
        commit_us: int = 0,
    ) -> None:
        event: dict[str, Any] = {
            "event": "batch",
            "query": self._query,
            "output": output,
            "batch_ms": round((self._clock.monotonic_s() - began) * 1e3, 1),
            "at_us": self._clock.now_ns() // 1000,
            "rows": rows,
        }
        if batch is not None:
            tables = [item for item in batch.items if not isinstance(item, TableControl)]
            event |= {
                "physical": batch.physical,
                "position": batch.end.to_json(),
                "rows": sum(written.values()),
                "controls": len(batch.items) - len(tables),
                "changes": [told_of(item) for item in batch.items if isinstance(item, TableControl)][:_TOLD_MAX],
                "lag_ms": lag_ms(tables, self._clock.now_ns()),
                "driver_row_bytes": sum(each.rows.nbytes for each in tables if isinstance(each, TableRows)),
                "tables": dict(written),
            }
        self._written[output].take(batch, written, event["rows"], commit_us)
        self._report(event)

    def _say_advanced(self, handle: OutputHandle, end: SourceCheckpoint, span: Span, began: float) -> None:
        """All up to there is in a target. Before its ledger says so: who is killed in between says it twice, and a pair
        that nobody told of is one that is missing.
        """
        self._report(
            {
                "event": "advanced",
                "query": self._query,
                "output": handle.name,
                "at_us": self._clock.now_ns() // 1000,
                "ms": round((self._clock.monotonic_s() - began) * 1e3, 1),
                "choice": self._choices.get(handle.name),
                **advanced(handle, self._offsets.physical, end, span, self._written.pop(handle.name, Totals())),
            }
        )


def _empty_range(schema: pa.Schema, physical: str, start: SourceCheckpoint, end: SourceCheckpoint) -> pa.Table:
    """A micro-batch without rows, as one range of the log: a transaction may end in it, of which rows came before."""
    values = (physical, json.dumps(start.to_json()), *start.pair, *end.pair, 1, "")
    columns = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.table(columns, schema=schema)


def _is_inexact(item: Item) -> bool:
    """Whether a control says that the relay judged rows before it by other values than they have now."""
    return isinstance(item, TableControl) and item.body.get("exact") is False


def _ends_part(start: SourceCheckpoint, feeds: Feeds) -> bool:
    """Whether a transaction may end behind a place, of which an output keeps rows open."""
    ends = any(handle.output.config.ends_transactions for _, handle in feeds)
    return ends and bool(start.scn) and is_inside_transaction(start.pair)
