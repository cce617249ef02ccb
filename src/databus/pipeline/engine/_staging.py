"""Stages of a micro-batch: tasks write the rows of outputs, and return receipts to the driver."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa

from databus.core import Pair
from databus.flow import (
    RECEIPTS,
    Bucket,
    Decode,
    DirectFeed,
    DirectWriter,
    Done,
    Restage,
    Stage,
    StagedFeed,
    Tasks,
    TypedStage,
    Ways,
)
from databus.pipeline.engine._engine import BatchRows
from databus.pipeline.engine._plan import OutputFeed
from databus.pipeline.engine._query_filters import Filters
from databus.places import Position
from databus.plugins import Output


def ways_of(feed: OutputFeed, output: Output, filters: Filters) -> Ways:
    """The ways of an output's tables, for tasks."""
    return feed.in_tasks({way: replace(chain, known={}) for way, chain in filters.items()}, output.config.key_choice)


def write_ranges(
    tasks: Tasks, decode: Decode, ranges: pa.Table, ways: Ways, writer: DirectWriter, bucket: Bucket
) -> pa.Table:
    """Have a task for each bucket of keys write ranges of the log; returns their receipts."""
    write = partial(DirectFeed(ways, writer, replace(bucket, reads=ways.selects)).write_ranges, decode, ranges)
    receipts = [(number, text) for number, texts in enumerate(tasks.run(write, writer.buckets)) for text in texts]
    return pa.table([[number for number, _ in receipts], [text for _, text in receipts]], schema=RECEIPTS)


StageOf = Callable[[Sequence[StagedFeed]], Stage | TypedStage]
"""The work of tasks for these feeds."""


@dataclass
class Staging:
    """Of one query. What an output asked for by `Restage` is kept for its later stages."""

    _above: dict[str, dict[str, Pair]] = field(default_factory=dict)  # by output; see `Restage`
    _fits: dict[str, dict[str, pa.Schema]] = field(default_factory=dict)

    def run(
        self, rows: BatchRows, stage_of: StageOf, filters: Filters, feeds: Sequence[tuple[OutputFeed, Output, Position]]
    ) -> pa.Table:
        """The receipts of a micro-batch; see `joined`. The number of a feed is its index in `feeds`, which have the
        places of the output's tables.
        """
        stage = stage_of([staged_feed for parts in feeds if (staged_feed := self._feed(filters, *parts)) is not None])
        return rows.map(stage)

    def note(self, output: str, again: Restage) -> None:
        """Have later stages of an output write as it asks."""
        self._above.setdefault(output, {}).update(again.above)
        self._fits.setdefault(output, {}).update(again.fits)

    def _feed(self, filters: Filters, feed: OutputFeed, output: Output, position: Position) -> StagedFeed | None:
        writer = output.part_writer()
        if writer is None or isinstance(writer, DirectWriter):
            return None
        ways = ways_of(feed, output, filters)
        above, fits = Done(position, self._above.get(feed.output, {})), self._fits.get(feed.output, {})
        return StagedFeed(ways.selects, ways.filtered, writer, above, fits)
