"""Tables that are behind the others of their query catch up in ranges of their own, beside the query's batches.

One range at a time: from the lowest place up to the next one, where both continue together, or up to the place of the
others, whom the tables join there. A step is bounded like a batch, so the others do not wait for longer than that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from databus.core import SourceCheckpoint
from databus.operate import logger_of
from databus.pipeline.engine._engine import Engine
from databus.pipeline.engine._handle import BatchSpan, OutputHandle
from databus.pipeline.engine._plan import OutputFeed
from databus.pipeline.engine._typed_tables import TypedTable, TypedTables
from databus.pipeline.engine._writer import Writer
from databus.plugins import Input, RunContext
from databus.wire import is_answer


@dataclass(frozen=True)
class CatchUp:
    """For a query over the tables of a physical source."""

    engine: Engine
    writer: Writer
    feeds: Sequence[tuple[OutputFeed, OutputHandle]]
    typed: TypedTables
    origin: Input
    context: RunContext
    physical: str

    def step(self) -> bool:
        """Move the tables that are furthest behind a step on; returns whether there were any."""
        with self.writer.turn:
            for typed in self.typed:
                if typed.is_due:
                    self._look(typed)
            return any(
                self._step(feed, handle)
                for feed, handle in self.feeds
                if handle.frames is None and not handle.catches_up_together
            )

    def _look(self, typed: TypedTable) -> None:
        """Try a table that has failed: does it exist, and do its filters fit? If it is not behind, it is well again."""
        try:
            typed.look()
        except Exception as error:
            if not self.typed.stays_behind(typed, error):
                raise
        else:
            places = [handle.position(self.physical) for _, handle in typed.feeds]
            if not any(typed.names & place.behind(place.at.pair if place.at else (0, 0)).keys() for place in places):
                self.typed.is_well(typed)

    def _step(self, feed: OutputFeed, handle: OutputHandle) -> bool:
        position = handle.position(self.physical)
        at = position.at or SourceCheckpoint()
        behind = {name: place for name, place in position.behind(at.pair).items() if feed.selects(name)}
        behind = {name: place for name, place in behind.items() if self._is_due(feed, name)}
        if not behind:
            return False
        start = min(behind.values(), key=lambda place: place.pair)
        names = frozenset(name for name, place in behind.items() if _is_at(place, start))
        above = (place for place in (*behind.values(), at) if place.pair > start.pair)
        # Without a place above it is in a bootstrap service's answer, which is read to its end.
        to = min(above, key=lambda place: place.pair, default=start)
        for name in sorted(names):
            typed = self._typed(feed, name)
            if typed is not None:
                self._step_typed(typed, feed, handle, start, to)
                names -= {name}
        if names:
            self._step_tables(names, feed, handle, start, to)
        return True

    def _typed(self, feed: OutputFeed, name: str) -> TypedTable | None:
        way = feed.way(name)
        return None if way is None else self.typed.of(way, name)

    def _is_due(self, feed: OutputFeed, name: str) -> bool:
        """Whether a table may be written now: after its typed filters failed, it is tried again after a while."""
        way, typed = feed.way(name), self._typed(feed, name)
        if typed is None:  # a table behind typed filters that no relay knows has nothing to write
            return way is not None and not way.is_typed
        return typed.failure is None or typed.is_due

    def _step_tables(
        self,
        names: frozenset[str],
        feed: OutputFeed,
        handle: OutputHandle,
        start: SourceCheckpoint,
        to: SourceCheckpoint,
    ) -> None:
        where = self.context, self.physical, sorted(names), start, to.pair
        ranges, end, decode = self.origin.ranges(self.engine.session, *where)
        end = to if end == start else end  # the range has no rows of them
        _say(names, handle, start, end)
        rows = self.engine.rows(ranges) if ranges.num_rows else None
        self.writer.write_range(rows, start, end, BatchSpan(start.pair, names), decode, feed, handle)

    def _step_typed(
        self, typed: TypedTable, feed: OutputFeed, handle: OutputHandle, start: SourceCheckpoint, to: SourceCheckpoint
    ) -> None:
        _say(typed.names, handle, start, to)
        try:
            self.writer.write_typed_range(typed, feed.of(typed.way), handle, start, to)
            self.typed.is_well(typed)
        except Exception as error:
            if not self.typed.stays_behind(typed, error):
                raise


def _is_at(place: SourceCheckpoint, start: SourceCheckpoint) -> bool:
    """Whether two tables continue at the same place. In a bootstrap's answer and in the log, other rows follow."""
    return place == start if is_answer(place.log) or is_answer(start.log) else place.pair == start.pair


def _say(names: frozenset[str], handle: OutputHandle, start: SourceCheckpoint, to: SourceCheckpoint) -> None:
    logger_of("databus.pipeline").info(
        "tables catch up", output=handle.name, tables=sorted(names), after=start.pair, to=to.pair
    )
