"""What a relay answers, as values."""

from dataclasses import dataclass

from databus.core import Pair, SourceCheckpoint
from databus.schema import TableSchema


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """One source as /sources tells it."""

    name: str
    """`physical/db.table`."""
    id: int
    physical: str
    table: str
    """`db.table`."""
    version: int
    fingerprint: int
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """One version of a source's schema, as /register tells it."""

    name: str
    id: int
    version: int
    fingerprint: int
    is_current: bool
    table: TableSchema
    avro: str


@dataclass(frozen=True, slots=True)
class Head:
    """Where a log stands."""

    physical: str
    uuid: str
    log: str
    position: SourceCheckpoint
    """The one asked for."""
    oldest: SourceCheckpoint
    """Before the first frame that it still holds."""
    published: SourceCheckpoint
    published_us: int


@dataclass(frozen=True, slots=True)
class RangeControl:
    """A control inside a range."""

    kind: str
    source_id: int
    fingerprint: int
    """Of the table's schema, for a change of it the new one."""
    pair: Pair


@dataclass(frozen=True, slots=True)
class Range:
    """Whole groups after a position, that fit a limit: where they end, how much they are, and where to split them."""

    position: SourceCheckpoint
    rows: int
    bytes: int
    groups: int
    published: SourceCheckpoint
    splits: tuple[SourceCheckpoint, ...]
    controls: tuple[RangeControl, ...] = ()
    """Those of the sources asked for, in order."""
    log: str = ""
    """Which one these groups stand in; empty where an older relay does not say."""
    oldest_us: int | None = None
    """Commit time of the first group with rows or a control; None also of an older relay."""
    start: SourceCheckpoint | None = None
    """Where the same answer of a bootstrap service begins again, which may else give a newer one; None of a relay."""
    has_controls: bool = False
    """Whether there are controls that nobody names, of a bootstrap service."""

    @property
    def is_empty(self) -> bool:
        """Whether it is known to have neither rows nor controls."""
        return not (self.rows or self.controls or self.has_controls)

    def then(self, following: "Range") -> "Range":
        """This range and the one that was measured from its position on, as one."""
        inner = () if self.is_empty else (*self.splits, self.position)
        return Range(
            following.position,
            self.rows + following.rows,
            self.bytes + following.bytes,
            self.groups + following.groups,
            following.published,
            (*inner, *following.splits),
            (*self.controls, *following.controls),
            self.log,
            following.oldest_us if self.oldest_us is None else self.oldest_us,
            self.start,
            self.has_controls or following.has_controls,
        )
