"""Tables that are behind the others of their query: each step is a range of their own, beside the query's batches.

One range at a time: from the least place up to the next one's, where both go on together, or to where the others stand,
whom the tables join there. A step is bounded as a batch is, so that the others wait for no more than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from databus.core import SourceCheckpoint
from databus.operate import logger_of
from databus.pipeline.engine._handle import OutputHandle, Span
from databus.pipeline.engine._plan import Feed
from databus.pipeline.engine._writer import TablesWriter
from databus.plugins import Input, RunContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class CatchUp:
    """Of a query over the tables of a physical source."""

    query: str
    spark: "SparkSession"
    writer: TablesWriter
    feeds: Sequence[tuple[Feed, OutputHandle]]
    origin: Input
    context: RunContext
    physical: str

    def step(self) -> bool:
        """Have the tables that are furthest behind come a step further; returns whether there were any."""
        with self.writer.turn:
            return any(
                self._step(feed, handle)
                for feed, handle in self.feeds
                if not handle.catches_up_together and handle.are_together(self.query)
            )

    def _step(self, feed: Feed, handle: OutputHandle) -> bool:
        position = handle.position(self.physical)
        at = position.at or SourceCheckpoint()
        behind = {name: place for name, place in position.behind(at.pair).items() if feed.selects(name)}
        if not behind:
            return False
        start = min(behind.values(), key=lambda place: place.pair)
        names = frozenset(name for name, place in behind.items() if place == start)
        above = (place for place in (*behind.values(), at) if place.pair > start.pair)
        to = min(above, key=lambda place: place.pair, default=start)  # an answer is read to its end, wherever that is
        ranges, end, decode = self.origin.ranges(self.spark, self.context, self.physical, sorted(names), start, to.pair)
        end = to if end == start else end  # nothing of them is left up to there
        logger_of("databus.pipeline").info(
            "tables catch up", output=handle.name, tables=sorted(names), after=start.pair, to=end.pair
        )
        rows = self.spark.createDataFrame(ranges) if ranges.num_rows else None
        self.writer.write_range(rows, start, end, Span(start.pair, names), decode, feed, handle)
        return True
