"""Stages of a micro-batch: tasks write the rows of outputs into files, and receipts come back to the driver."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from databus.core import Pair
from databus.flow import (
    DirectWriter,
    Done,
    Job,
    Restage,
    Rewritten,
    Stage,
    StagedFeed,
    TableFilters,
    TypedStage,
    Ways,
    joined_parts,
    run_part,
)
from databus.pipeline.engine._plan import Feed
from databus.places import Position
from databus.plugins import Output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECEIPTS_DDL: Final = "feed int, receipt string"
_PARTS_A_SLOT_MAX: Final = 4

Filters = Mapping[tuple[str, ...], TableFilters]


def ways_of(feed: Feed, output: Output, filters: Filters) -> Ways:
    """By which ways the tables come to an output, for tasks."""
    return feed.in_tasks({way: replace(chain, known={}) for way, chain in filters.items()}, output.config.key_choice)


@dataclass(frozen=True)
class InSpark:
    """Runs jobs as tasks of one small Spark job; see `databus.flow.Tasks`."""

    spark: "SparkSession"

    def __call__(self, jobs: Sequence[Job]) -> list[Rewritten]:
        context = self.spark.sparkContext
        slots = context.defaultParallelism
        parts = [(number, part) for number, job in enumerate(jobs) for part in job.parts(slots)]
        run = partial(
            run_part, [part for _, part in parts]
        )  # where a store's options are: it stands on no disk of Spark's
        results = context.parallelize(range(len(parts)), min(len(parts), slots * _PARTS_A_SLOT_MAX)).map(run).collect()
        done: list[list[Rewritten]] = [[] for _ in jobs]
        for (number, _), each in zip(parts, results, strict=True):
            done[number].append(each)
        return [joined_parts(each) for each in done]


StageOf = Callable[[Sequence[StagedFeed]], Stage | TypedStage]
"""What tasks do for such feeds."""


@dataclass
class Staging:
    """Of one query; what was asked for by `Restage` stays."""

    _above: dict[str, dict[str, Pair]] = field(default_factory=dict)
    _fits: dict[str, dict[str, pa.Schema]] = field(default_factory=dict)

    def run(
        self, rows: "DataFrame", stage_of: StageOf, filters: Filters, feeds: Sequence[tuple[Feed, Output, Position]]
    ) -> pa.Table:
        """The receipts of a micro-batch; see `joined`. The number of a feed is its place in `feeds`, each with where
        the output's tables stand.
        """
        stage = stage_of([each for one in feeds if (each := self._feed(filters, *one)) is not None])
        return rows.mapInArrow(stage, RECEIPTS_DDL).toArrow()

    def note(self, output: str, again: Restage) -> None:
        """Have the next stages of an output write as it asks."""
        self._above.setdefault(output, {}).update(again.above)
        self._fits.setdefault(output, {}).update(again.fits)

    def _feed(self, filters: Filters, feed: Feed, output: Output, position: Position) -> StagedFeed | None:
        writer = output.part_writer()
        if writer is None or isinstance(writer, DirectWriter):
            return None
        ways = ways_of(feed, output, filters)
        above, fits = Done(position, self._above.get(feed.output, {})), self._fits.get(feed.output, {})
        return StagedFeed(ways.selects, ways.filtered, writer, above, fits)
