"""/range: how far a number of rows or bytes reaches from a position, and where to split that for several readers.

It is what a reader that plans before it reads asks for (a Spark micro-batch). Headers alone are looked at.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from databus.core import Checkpoint, Pair
from databus.relay._catalog import Selection
from databus.relay._cursor import Cursor
from databus.relay._log import Log
from databus.relay._measure import Measure
from databus.relay._params import (
    START_NAMES,
    Place,
    Query,
    Start,
    flag,
    integer,
    names,
    optional_integer,
    pair,
    start_of,
)

RANGE_NAMES: Final = START_NAMES | {
    "physical",
    "sources",
    "rows_max",
    "bytes_max",
    "to",
    "partitions",
    "wait_ms",
    "stop_at_controls",
}
PARTITIONS_MAX: Final = 1024


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
    def parse(cls, query: Query, wait_ms_max: int) -> "RangeAsk":
        """Read the parameters. Raises `MalformedRequest` naming the one that is wrong."""
        return cls(
            query.get("physical"),
            names(query, "sources"),
            start_of(query, Place.BEGINNING),
            pair(query, "to"),
            optional_integer(query, "rows_max", least=1),
            optional_integer(query, "bytes_max", least=1),
            integer(query, "partitions", 1, least=1, most=PARTITIONS_MAX),
            integer(query, "wait_ms", 0, most=wait_ms_max),
            flag(query, "stop_at_controls"),
        )

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The whole checkpoint that was given to start from, if it was one."""
        return self.start if isinstance(self.start, Checkpoint) else None


@dataclass(frozen=True, slots=True)
class RangeFound:
    """The answer. is_something: there are rows or controls to read, or nothing better to wait for.

    Commits alone are no reason to answer at once, those published meanwhile included: a reader of a table at rest in a
    busy database would ask for ever.
    """

    measure: Measure
    published: dict[str, Any]
    is_something: bool

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
            "published": self.published,
            "splits": [split.to_json() for split in self.measure.splits],
            "controls": [
                {
                    "kind": each.kind,
                    "id": each.source_id,
                    "fingerprint": f"{each.fingerprint:016x}",
                    "scn": each.pair[0],
                    "seq": each.pair[1],
                }
                for each in self.measure.controls
            ],
        }


def measure_range(log: Log, cursor: Cursor, ask: RangeAsk, selection: Selection) -> RangeFound:
    """Measure from `cursor` on, and move it there. Reads the disk."""
    measure = cursor.measure(
        rows_max=ask.rows_max,
        bytes_max=ask.bytes_max,
        sources=selection.ids(log.schemas),
        to=ask.to,
        partitions=ask.partitions,
        stop_at_controls=ask.stop_at_controls,
    )
    is_something = bool(measure.rows or measure.controls) or cursor.has_reached(ask.to) or measure.is_full
    return RangeFound(measure, log.head().published.to_json(), is_something)
