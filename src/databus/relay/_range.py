"""/range: how far a number of rows or bytes reaches from a position, and where to split that for several readers.

It is what a reader that plans before it reads asks for (a Spark micro-batch). Headers alone are looked at, and only for
so long: an answer may end before any limit of the request, without a row, and whoever asked goes on from its position.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Final

from databus.core import Pair
from databus.filters import FrameFilter
from databus.log import Allowance, Cursor, Log, Measure, MeasureLimits, Measuring
from databus.relay._catalog import Selection
from databus.relay._feed import PublishFeed
from databus.relay._params import Given, Start, StartName, start_of

RANGE_SCAN_MS_MAX: Final = 5_000  # far below the time after which clients give up


@dataclass(frozen=True, slots=True)
class RangeAsk:
    """What a client wants of /range, checked."""

    physical: str | None
    sources: list[str] | None
    start: Start
    to: Pair | None
    rows_max: int | None
    bytes_max: int | None
    partitions: int
    wait_ms: int
    stop_at_controls: bool

    @classmethod
    def of(cls, given: Given) -> "RangeAsk":
        """From the command's parameters."""
        rest = {field.name: given[field.name] for field in fields(cls) if field.name != "start"}
        return cls(start=start_of(given, StartName.BEGINNING), **rest)


@dataclass(frozen=True, slots=True)
class RangeFound:
    """What was measured, as an answer."""

    measure: Measure
    published: dict[str, Any]
    is_something: bool
    """There are rows or controls to read, or nothing better to wait for. Commits alone are no reason to answer at once,
    those published meanwhile included: a reader of a table at rest in a busy database would ask for ever.
    """
    fingerprint_of: Callable[[int], int] = int
    """That of a definition behind the filter."""

    def after(self, passed: "RangeFound | None") -> "RangeFound":
        """With the groups that were passed while waiting; there was nothing in them but commits."""
        if passed is None:
            return self
        groups, bytes_ = passed.measure.groups + self.measure.groups, passed.measure.bytes + self.measure.bytes
        return replace(self, measure=replace(self.measure, groups=groups, bytes=bytes_))

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "position": self.measure.end.to_json(),
            "rows": self.measure.rows,
            "bytes": self.measure.bytes,
            "groups": self.measure.groups,
            "oldest_us": self.measure.oldest_us,
            "published": self.published,
            "splits": [split.to_json() for split in self.measure.splits],
            "controls": [
                {
                    "kind": control.kind,
                    "id": control.source_id,
                    "fingerprint": f"{self.fingerprint_of(control.fingerprint):016x}",
                    "scn": control.pair[0],
                    "seq": control.pair[1],
                }
                for control in self.measure.controls
            ],
        }


class RangeScan:
    """A measurement from `cursor` on, in steps that leave others their turn; it moves the cursor. Reads the disk."""

    def __init__(
        self, log: Log, cursor: Cursor, ask: RangeAsk, selection: Selection, frames: FrameFilter | None = None
    ) -> None:
        self._log = log
        self._cursor = cursor
        self._ask = ask
        self._selection = selection
        self._filter = frames
        self._passed: RangeFound | None = None
        self._measuring: Measuring | None = None

    def step(self, *, is_last: bool = False) -> RangeFound | None:
        """Measure on; the result, or None if there is more to look at. is_last: end here, with what there is."""
        ask = self._ask
        if self._measuring is None:
            limits = MeasureLimits(ask.rows_max, ask.bytes_max, ask.stop_at_controls)
            ids = self._selection.ids(self._log.schemas)
            left = None if self._filter is None else self._filter.measured
            self._measuring = Measuring(self._cursor, limits, ids, ask.to, ask.partitions, left)
        is_done = self._measuring.step(Allowance())
        if not is_done and not is_last:
            return None
        if not is_done:
            self._measuring.end()
        measure, self._measuring = self._measuring.result(), None
        is_something = bool(measure.rows or measure.controls) or self._cursor.has_reached(ask.to) or measure.is_full
        reach = RangeFound(measure, self._log.head().published.to_json(), is_something, self._fingerprint_of)
        reach = reach.after(self._passed)
        self._passed = reach
        return reach

    def _fingerprint_of(self, fingerprint: int) -> int:
        table = self._log.schemas.definition(fingerprint)
        if self._filter is None or table is None:
            return fingerprint
        return self._filter.cut_of(table).after.fingerprint


async def find_range(
    scan: RangeScan, feed: PublishFeed, wait_ms: int, in_thread: Callable[[Callable[[], RangeFound | None]], Any]
) -> RangeFound:
    """Scan until there is something, or `wait_ms` have passed without a change of these sources.

    A scan that finds nothing for `RANGE_SCAN_MS_MAX` ends too: the answer says how far it got, and whoever asks goes on
    from there. in_thread: runs a step where others have their turn between two.
    """
    clock = asyncio.get_running_loop().time
    deadline, scanned_ms = clock() + wait_ms / 1e3, 0.0
    while True:
        seen, began = feed.count, clock()
        reach: RangeFound | None = None
        while reach is None:
            is_last = scanned_ms + (clock() - began) * 1e3 >= RANGE_SCAN_MS_MAX
            reach = await in_thread(partial(scan.step, is_last=is_last))
        scanned_ms += (clock() - began) * 1e3
        wait_s = deadline - clock()
        if reach.is_something or wait_s <= 0:
            return reach
        await feed.wait(seen, wait_s)
