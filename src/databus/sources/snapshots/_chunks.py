"""What the parts of a snapshot hand to each other: tasks, options, chunks, progress."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from databus.core import DatabusError
from databus.schema import TableSchema

Position = Mapping[str, Any]
"""The log's position after a transaction, as commits carry it."""


class Watermark(Protocol):
    """A place in a database's log, as its own session sees it before or after a read view."""

    def contains(self, position: Position) -> bool:
        """As a low watermark: whether everything logged up to `position` is in what was read."""
        ...

    def is_in(self, position: Position) -> bool:
        """As a high watermark: whether the log up to `position` holds everything that was read."""
        ...


class Task(Protocol):
    """A table to read."""

    @property
    def source(self) -> str:
        """`db.table`."""
        ...

    @property
    def table(self) -> TableSchema:
        """Its schema."""
        ...

    @property
    def locks(self) -> bool:
        """Whether it is read under a lock against writes."""
        ...


class Readable(Protocol):
    """How a table can be read, in its database's own words. A part of it is what the database reads a chunk of."""

    @property
    def task(self) -> Task:
        """What is to be read."""
        ...

    @property
    def key(self) -> object:
        """What its parts are made of: they can be read as long as this is equal."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether it is read as a whole, for want of a key to read it in the order of."""
        ...

    @property
    def rows_estimate(self) -> int | None:
        """How many rows it has, as the database estimates; None before that is known, or if it has no estimate."""
        ...

    def unasked(self) -> Any:
        """The same table, of which the database has said nothing yet."""
        ...

    def everything(self) -> Any:
        """The part that is all of it."""
        ...

    def part_of(self, value: object) -> Any:
        """The part of which `json_of` made this. Raises `CorruptData`."""
        ...

    def json_of(self, part: Any) -> object:
        """A part as JSON."""
        ...


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """Bounds of a snapshot."""

    connections: int = 2
    """How many read at the same time."""
    chunk_rows_max: int = 16_384
    chunk_bytes_max: int = 8 << 20
    chunk_keys_max: int = 1 << 20
    chunk_keys_bytes_max: int = 64 << 20
    row_bytes_max: int = 64 << 20
    lock_ms_max: int = 1_000
    """How long writers of a table may wait behind a guard's lock, where one is needed."""
    connect_attempts_max: int = 8
    """After how many failures in a row the snapshot fails."""


@dataclass(slots=True, eq=False)
class ReadChunk:
    """Rows of one part of a table, read at one moment."""

    source: str
    generation: int
    table: Any
    """A `Readable`, as it was defined when the part was made."""
    part: Any
    """A part of it."""
    after: int
    """The SCN up to which all that was logged is in it for certain. It rises as the log is followed, until the log has
    passed the low watermark (`is_passed`).
    """
    low: Watermark | None = None
    """None until the view is open, as `high`."""
    high: Watermark | None = None
    arrays: list[pa.Array] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    error: DatabusError | None = None
    """Why it could not be read, where the log may still explain it."""
    is_read: bool = False
    is_passed: bool = False
    is_part: bool = False
    """Of a table read as a whole, and not the last part."""
    is_held: bool = False
    """Read under a lock. Whether the lock held all the time is known of the last part."""
    prepared: frozenset[str] = frozenset()
    """Ids of transactions that it may lack, even where their commits are below `low`."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk in its place: between the present transaction and the next."""

    source: str
    table: TableSchema
    arrays: list[pa.Array]
    """Of the table's columns, without the rows that the log changes; no row may be left."""
    rows: int
    last_key: tuple[Any, ...]
    """What remains to be read after it, for `OpenSnapshot`."""
    order: tuple[str, ...]
    """The order of what remains."""
    is_last: bool
    """Nothing remains."""


@dataclass(frozen=True, slots=True)
class ReadingRestarted:
    """A table is read from its beginning again: what was placed of it so far does not say what remains.

    A table without a key was written while it was read, or the order of a key has changed.
    """

    source: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading of a table is."""

    source: str
    rows: int
    bytes: int
    rows_estimate: int | None
    """The server's own, which may be far off; None if it has none."""
    elapsed_s: float
    rereads: int
    """Chunks that were read again."""
    waits_for: str = ""
    """What it waits for, if it does; a sentence."""

    @property
    def percent(self) -> float | None:
        """Of the estimate; below 100 until it is done."""
        if not self.rows_estimate:
            return None
        return min(100.0 * self.rows / self.rows_estimate, 99.9)

    def to_json(self) -> dict[str, Any]:
        """As people are shown it: logs say more."""
        left_s = self.left_s
        left = None if left_s is None else round(left_s)
        return {
            "table": self.source,
            "rows": self.rows,
            "of": self.rows_estimate,
            "leftS": left,
            "says": self.waits_for,
        }

    @property
    def left_s(self) -> float | None:
        """Until the end, by the estimate and at the rate so far."""
        if not self.rows_estimate or not self.rows:
            return None
        return max(self.rows_estimate - self.rows, 0) * self.elapsed_s / self.rows
