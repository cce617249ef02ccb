"""What happens to a micro-batch: tasks write the rows of each output of the query, and the driver commits them.

An output whose rows are not written by tasks is given them in the driver, or the micro-batch as Spark has it.
"""

import json
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from databus.core import (
    Checkpoint,
    DatabusError,
    FatalError,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
    crash_point,
)
from databus.flow import (
    ORDER,
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
    TableFilters,
    TableRows,
    TypedStage,
    decode_typed,
    joined,
    joined_buckets,
    joined_typed,
    receipts_for,
)
from databus.operate import logger_of, mark_reported
from databus.pipeline.engine._batch_event import advanced, lag_ms, told_of
from databus.pipeline.engine._bringing import feed_only, feed_without
from databus.pipeline.engine._direct import write_ranges
from databus.pipeline.engine._handle import OutputHandle, Span
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import Feed
from databus.pipeline.engine._staging import RECEIPTS_DDL, InSpark, Staging, ways_of
from databus.places import Position
from databus.plugins import Output, TakesFrames
from databus.schema import TableSchema
from databus.wire import is_inside_transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Report = Callable[[Mapping[str, Any]], None]
"""Takes an event of progress."""

BatchT = TypeVar("BatchT", bound=Batch)
_TOLD_MAX: Final = 100
"""Controls that an event of a batch names."""
_REST_LOOK_S: Final = 0.2
_STAGES_MAX: Final = 100  # each asks for one table more to be written in another way


@dataclass(frozen=True)
class Micro:
    """What is written at once: rows as Spark has them, from `start` to `end`. decode: of rows that are not of the
    query's own stream.
    """

    rows: "DataFrame"
    batch_id: int
    start: SourceCheckpoint
    end: SourceCheckpoint
    span: Span
    decode: Decode | None = None


class Writer:
    """Called by Spark for each micro-batch of one query, in a thread of Spark's. `error` is what it failed with.

    after: where the query's first batch begins. read_anew: asks for snapshots of tables, by full names.
    stops_on_filter_change: see `Input`. wants_stop: once it is set, the next change batch of a micro-batch is
    not written. It comes again. ends_batch: once it is set, no other micro-batch is begun. is_idle: none is being
    written.
    """

    _staging: Staging
    rest = 0
    """For how many times as long as a micro-batch took it waits behind it."""

    def __init__(
        self,
        query: str,
        feeds: Sequence[tuple[Feed, OutputHandle]],
        report: Report,
        offsets: Offsets,
        *,
        after: Checkpoint | None = None,
        read_anew: Callable[[Sequence[str]], None] | None = None,
        stops_on_filter_change: bool = False,
        wants_stop: threading.Event | None = None,
        ends_batch: threading.Event | None = None,
    ) -> None:
        self._query = query
        self._feeds = feeds
        self._report = report
        self._offsets = offsets
        self._after = after
        self._read_anew = read_anew
        self._stops_on_filter_change = stops_on_filter_change
        self._wants_stop = wants_stop or threading.Event()
        self._ends_batch = ends_batch or threading.Event()
        self.error: BaseException | None = None
        self.batches = 0
        self.turn = threading.Lock()  # of a micro-batch, or of tables that catch up
        self.is_idle = threading.Event()
        self.is_idle.set()
        self._written_rows: dict[str, Counter[str]] = {}  # by output, of what is being written

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch everywhere; Spark takes note of it when this returns."""
        self.is_idle.clear()
        began_s = time.monotonic()
        try:
            with self.turn:
                self._written_rows.clear()  # of one that failed
                crash_point("pipeline.batch.before")
                began, (start, end) = time.monotonic(), self._bounds(batch_id)
                span = Span(start.pair)
                micro = Micro(rows, batch_id, start, end, span)
                self._write(micro, [(self._at_start(feed, handle, span), handle) for feed, handle in self._feeds])
                crash_point("pipeline.batch.after")
                for _, handle in self._feeds:
                    self._say_advanced(handle, end, span, began)
                    handle.advance(self._query, self._offsets.checkpoint(batch_id), span)
                crash_point("pipeline.ledger.after")
        except BaseException as error:
            self.error = error  # Spark keeps but its text
            mark_reported(error)  # by the query, which py4j's log would precede with a traceback
            raise
        else:
            self.batches += 1
        finally:
            self.is_idle.set()
        self._rest_until(began_s + (time.monotonic() - began_s) * (1 + self.rest))

    def _rest_until(self, until_s: float) -> None:
        """Wait here, and not before the next one begins: that is to take what comes until then."""
        while (left_s := until_s - time.monotonic()) > 0 and not self._wants_stop.is_set():
            if self._ends_batch.wait(min(left_s, _REST_LOOK_S)):
                return

    def _at_start(self, feed: Feed, handle: OutputHandle, span: Span) -> Feed:
        """A feed without the tables that stand below where a batch begins."""
        return feed_without(feed, handle.position(self._offsets.physical).behind(span.start))

    def _write(self, micro: "Micro", feeds: Sequence[tuple[Feed, OutputHandle]]) -> None:
        if self._ends_batch.is_set():
            raise ServiceUnavailable(f"{self._query}: it ends between two batches; this one comes again")
        began, rows = time.monotonic(), micro.rows
        in_spark = [(handle, handle.frames) for _, handle in feeds if handle.frames is not None]
        others = [(feed, handle, handle.output.part_writer()) for feed, handle in feeds if handle.frames is None]
        in_driver = [(feed, handle) for feed, handle, writer in others if writer is None]
        direct = [(feed, handle, writer) for feed, handle, writer in others if isinstance(writer, DirectWriter)]
        staged = [(feed, handle) for feed, handle, writer in others if writer and not isinstance(writer, DirectWriter)]
        if len(feeds) > 1 and in_spark:
            rows.persist()
        try:
            for handle, frames in in_spark:
                self._write_frame(micro, handle, frames, began)
            if staged:
                self._write_in_tasks(micro, staged, began)
            for feed, handle, buckets in direct:
                self._write_direct(micro, feed, handle, buckets, began)
            if in_driver:
                self._write_in_driver(micro, in_driver, began)
        finally:
            if len(feeds) > 1 and in_spark:
                rows.unpersist()

    def _write_frame(self, micro: "Micro", handle: OutputHandle, frames: TakesFrames, began: float) -> None:
        count = handle.write_frame(frames, micro.rows, micro.batch_id)
        self._say(handle.name, None, {}, began, count)

    def _write_in_driver(self, micro: "Micro", feeds: Sequence[tuple[Feed, OutputHandle]], began: float) -> None:
        for batch in self.batches_of(micro):
            if self._wants_stop.is_set():
                raise ServiceUnavailable(f"{self._query}: the pipeline stops; what is left of this batch comes again")
            for feed, handle in feeds:
                mine = self._for_feed(batch, feed, handle)
                written = handle.write(self._query, mine, micro.span)
                self._say(handle.name, mine, written, began)

    def _write_in_tasks(self, micro: "Micro", feeds: Sequence[tuple[Feed, OutputHandle]], began: float) -> None:
        """One job for all outputs; what it hands back is then committed, output by output."""
        staged = self._staged(micro, feeds)
        for (feed, handle), first in zip(feeds, staged, strict=True):
            batches: Sequence[StagedBatch] = first or self._beginning(micro)
            for _ in range(_STAGES_MAX):
                again = self._commit(batches, feed, handle, micro, began)
                if again is None:
                    break
                self._staging.note(feed.output, again)
                (batches,) = self._staged(micro, [(feed, handle)])
            else:
                raise FatalError(f"{self._query}: {handle.name} asked {_STAGES_MAX} times for the same rows")

    def _beginning(self, micro: "Micro") -> list[StagedBatch]:
        """What says to an output where its first micro-batch begins, if that brings nothing."""
        if micro.batch_id:
            return []
        return [StagedBatch(self._offsets.physical, micro.start, micro.end, ())]

    def _write_direct(
        self, micro: "Micro", feed: Feed, handle: OutputHandle, writer: DirectWriter, began: float
    ) -> None:
        """One job for an output, a task for each bucket, which are all in the target when it ends."""
        found = self._to_buckets(micro, feed, handle.output, writer)
        if found is None:
            return
        given, write = found

        def written(bucket: Bucket) -> list[StagedBatch]:
            batches = joined_buckets(write(bucket), writer.buckets)
            return [self._for_feed(batch, feed, handle) for batch in batches]

        for batch, counts in handle.write_direct(self._query, given, written, micro.span):
            self._say(handle.name, batch, counts, began)

    def _to_buckets(
        self, micro: "Micro", feed: Feed, output: Output, writer: DirectWriter
    ) -> tuple[Batch, Callable[[Bucket], pa.Table]] | None:
        """Where a micro-batch begins, and what has tasks write it, for their receipts; None if it has nothing."""
        raise NotImplementedError

    def _staged(self, micro: "Micro", feeds: Sequence[tuple[Feed, OutputHandle]]) -> Sequence[Sequence[StagedBatch]]:
        """What tasks have written of a micro-batch for each of these outputs."""
        raise NotImplementedError

    def _commit(
        self, batches: Sequence[StagedBatch], feed: Feed, handle: OutputHandle, micro: "Micro", began: float
    ) -> Restage | None:
        try:
            for batch in batches:
                mine = self._for_feed(batch, feed, handle)
                written = handle.commit(self._query, mine, InSpark(micro.rows.sparkSession), micro.span)
                self._say(handle.name, mine, written, began)
        except Restage as again:
            self._discard(batches, handle)
            return again
        except Exception:  # whatever it is, it goes on, and leaves no files behind
            self._discard(batches, handle)
            raise
        return None

    def _placed(self, feeds: Sequence[tuple[Feed, OutputHandle]]) -> list[tuple[Feed, Output, Position]]:
        """Feeds with where their outputs' tables stand, as tasks need it."""
        physical = self._offsets.physical
        return [(feed, handle.output, replace(handle.position(physical), ways={}, marks={})) for feed, handle in feeds]

    def _discard(self, batches: Sequence[StagedBatch], handle: OutputHandle) -> None:
        """Remove what was not committed, as far as that can be told; upkeep removes the rest."""
        try:
            handle.discard(batches)
        except (DatabusError, OSError) as error:
            logger = logger_of("databus.pipeline")
            logger.warning("files of tasks stay until upkeep", output=handle.name, why=str(error))

    def batches_of(self, micro: "Micro") -> Iterable[ChangeBatch]:
        """The micro-batch as change batches, in order."""
        raise NotImplementedError

    def _bounds(self, batch_id: int) -> tuple[SourceCheckpoint, SourceCheckpoint]:
        """Where the rows of a micro-batch begin and end."""
        offsets = self._offsets
        least = SourceCheckpoint(scn=max(offsets.origin.starting_version - 1, 0))
        first = least if self._after is None else offsets.position_in(self._after)
        start = first if batch_id == 0 else offsets.position(batch_id - 1)
        return start, offsets.position(batch_id)

    def _for_feed(self, batch: BatchT, feed: Feed, handle: OutputHandle) -> BatchT:
        """What of a batch an output is given. What a mirror cannot follow behind the input's filter is read anew."""
        batch = _selected(batch, feed)
        for item in batch.items:
            if _is_inexact(item):
                self._read_again(f"{batch.physical}/{item.table.source}", item, handle)
        return batch

    def _read_again(self, name: str, item: Item, handle: OutputHandle) -> None:
        """Have a table read again, at a control after which its older rows are not those that the filters choose."""
        if self._stops_on_filter_change and _is_inexact(item):
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
    ) -> None:
        event: dict[str, Any] = {
            "event": "batch",
            "query": self._query,
            "output": output,
            "batch_ms": round((time.monotonic() - began) * 1e3, 1),
            "at_us": time.time_ns() // 1000,
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
                "lag_ms": lag_ms(tables),
                "driver_row_bytes": sum(each.rows.nbytes for each in tables if isinstance(each, TableRows)),
                "tables": dict(written),
            }
        self._written_rows.setdefault(output, Counter()).update(written or {"": event["rows"] or 0})
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
                "at_us": time.time_ns() // 1000,
                "ms": round((time.monotonic() - began) * 1e3, 1),
                **advanced(handle, self._offsets.physical, end, span, self._written_rows.pop(handle.name, Counter())),
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


def _selected(batch: BatchT, feed: Feed) -> BatchT:
    items = tuple(item for item in batch.items if feed.selects(f"{batch.physical}/{item.table.source}"))
    return replace(batch, items=items)


class TablesWriter(Writer):
    """Of a query over tables; `decode` is of the input that they come from.

    filters: by the paths of filters on the way of a table, those filters.
    """

    def __init__(
        self,
        *given: Any,
        decode: Decode,
        filters: Mapping[tuple[str, ...], TableFilters] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(*given, **more)
        self._decode = decode
        self._filters = filters or {}
        self._staging = Staging(partial(Stage, decode), self._filters)

    def _staged(self, micro: "Micro", feeds: Sequence[tuple[Feed, OutputHandle]]) -> Sequence[Sequence[StagedBatch]]:
        """See `Writer._staged`."""
        staging = self._staging
        if micro.decode is not None:
            staging = replace(staging, stage_of=partial(Stage, micro.decode))
        receipts = staging.run(micro.rows, self._placed(feeds))
        return [joined(receipts, number) for number in range(len(feeds))]

    def _to_buckets(
        self, micro: "Micro", feed: Feed, output: Output, writer: DirectWriter
    ) -> tuple[Batch, Callable[[Bucket], pa.Table]] | None:
        """See `Writer._to_buckets`. Each task has all ranges, which are small, and reads them itself."""
        ranges = micro.rows.toArrow()
        if ranges.num_rows == 0:
            start, end = micro.start, micro.end
            if not (output.config.ends_transactions and start.scn and is_inside_transaction(start.pair)):
                return None
            ranges = _empty_range(ranges.schema, self._offsets.physical, start, end)
        scn, seq = min(zip(*(ranges.column(name).to_pylist() for name in ("after_scn", "after_seq")), strict=True))
        start = SourceCheckpoint(scn=scn, seq=seq)
        write = partial(write_ranges, micro.rows.sparkSession, micro.decode or self._decode, ranges)
        ways = ways_of(feed, output, self._filters)
        return Batch(self._offsets.physical, start, start, ()), partial(write, ways, writer)

    def _for_feed(self, batch: BatchT, feed: Feed, handle: OutputHandle) -> BatchT:
        """See `Writer._for_feed`. What a mirror cannot follow behind filters is read anew."""
        if not feed.filters:
            return super()._for_feed(batch, feed, handle)
        batch = _selected(batch, feed)
        items: list[Item] = []
        for item in batch.items:
            name, output = f"{batch.physical}/{item.table.source}", handle.output
            chain = self._filters.get(feed.filters_of(name))
            if chain is None or isinstance(item, StagedRows):
                items.append(item)
                if _is_inexact(item):
                    self._read_again(name, item, handle)
                continue
            chain.check_key(item.table, output.config.key_choice.of(item.table.source))
            made, is_exact = chain.item(item)
            items += made
            if not is_exact:
                self._read_again(name, item, handle)
        return replace(batch, items=tuple(items))

    def write_range(
        self,
        rows: "DataFrame | None",
        start: SourceCheckpoint,
        end: SourceCheckpoint,
        span: Span,
        decode: Decode,
        feed: Feed,
        handle: OutputHandle,
    ) -> None:
        """Write what tables that catch up lack of a range, and note where they stand then. Called with `turn` held."""
        began = time.monotonic()
        self._written_rows.clear()
        if rows is not None:
            self._write(Micro(rows, -1, start, end, span, decode), [(feed_only(feed, span.only or ()), handle)])
        self._say_advanced(handle, end, span, began)
        handle.advance(self._query, Checkpoint({self._offsets.physical: end}), span)

    def batches_of(self, micro: "Micro") -> Iterable[ChangeBatch]:
        """See `Writer.batches_of`."""
        return (micro.decode or self._decode)(micro.rows.toArrow())


class TypedWriter(Writer):
    """Of a query over typed rows of one table."""

    def __init__(self, *given: Any, table: TableSchema, lineage_of: LineageOf, **more: Any) -> None:
        super().__init__(*given, **more)
        self._table = table
        self._lineage_of = lineage_of
        self._staging = Staging(partial(TypedStage, table, self._offsets.physical), {})
        self._puts_in_order = False

    def _staged(self, micro: "Micro", feeds: Sequence[tuple[Feed, OutputHandle]]) -> Sequence[Sequence[StagedBatch]]:
        """See `Writer._staged`."""
        start, end, rows = micro.start, micro.end, micro.rows
        if self._puts_in_order:
            rows = rows.repartitionByRange(ORDER[0]).sortWithinPartitions(*ORDER)
        receipts = self._staging.run(rows, self._placed(feeds))
        try:
            return [
                [joined_typed(receipts, number, start, end, self._lineage_of, self._offsets.physical)]
                for number in range(len(feeds))
            ]
        except RowsOutOfOrder:
            for number, (_, handle) in enumerate(feeds):
                self._discard(receipts_for(receipts, number), handle)
            if self._puts_in_order:
                raise FatalError(f"{self._query}: Spark put rows in order, and they are not") from None
        self._puts_in_order = True
        return self._staged(micro, feeds)

    def _to_buckets(
        self, micro: "Micro", feed: Feed, output: Output, writer: DirectWriter
    ) -> tuple[Batch, Callable[[Bucket], pa.Table]]:
        """See `Writer._to_buckets`. One task writes all buckets, of rows that Spark has put in order."""
        start, end, rows = micro.start, micro.end, micro.rows
        ways = ways_of(feed, output, {})
        is_ours = partial(operator.eq, f"{self._offsets.physical}/{self._table.source}")

        def write(bucket: Bucket) -> pa.Table:
            bucket = replace(bucket, reads=is_ours)
            of = self._table, self._offsets.physical, start, end
            stage = DirectTypedStage(*of, DirectFeed(ways, writer, bucket))
            return rows.coalesce(1).sortWithinPartitions(*ORDER).mapInArrow(stage, RECEIPTS_DDL).toArrow()

        return Batch(self._offsets.physical, start, end, ()), write

    def batches_of(self, micro: "Micro") -> list[ChangeBatch]:
        """See `Writer.batches_of`."""
        physical, collected = self._offsets.physical, micro.rows.toArrow()
        return [decode_typed(collected, self._table, physical, micro.start, micro.end, self._lineage_of)]
