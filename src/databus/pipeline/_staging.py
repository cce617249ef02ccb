"""Stages of a micro-batch: tasks write the rows of outputs into files, and receipts come back to the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from databus.core import Pair
from databus.pipeline._contract import Output
from databus.pipeline._plan import Feed
from databus.tasks import Decode, Restage, Stage, StagedFeed, TableFilters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_RECEIPTS: Final = "feed int, receipt string"

Filters = Mapping[tuple[str, ...], TableFilters]


@dataclass
class Staging:
    """Of one query. asked: by output, what was asked for by `Restage`, which stays."""

    decode: Decode
    filters: Filters
    _above: dict[str, dict[str, Pair]] = field(default_factory=dict)
    _fits: dict[str, dict[str, pa.Schema]] = field(default_factory=dict)

    def run(self, rows: "DataFrame", feeds: Sequence[tuple[Feed, Output]]) -> pa.Table:
        """The receipts of a micro-batch; see `joined`. The number of a feed is its place in `feeds`."""
        stage = Stage(self.decode, [each for feed, output in feeds if (each := self._feed(feed, output)) is not None])
        return rows.mapInArrow(stage, _RECEIPTS).toArrow()

    def note(self, output: str, again: Restage) -> None:
        """Have the next stages of an output write as it asks."""
        self._above.setdefault(output, {}).update(again.above)
        self._fits.setdefault(output, {}).update(again.fits)

    def _feed(self, feed: Feed, output: Output) -> StagedFeed | None:
        writer = output.part_writer()
        if writer is None:
            return None
        ways = feed.ways({way: replace(chain, known={}) for way, chain in self.filters.items()})
        above, fits = self._above.get(feed.output, {}), self._fits.get(feed.output, {})
        return StagedFeed(ways.selects, ways.filtered, writer, above, fits)
