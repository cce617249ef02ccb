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
    """A table that is to be read. locks: while nobody may write it."""

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
        """Whether it is read while nobody may write it."""
        ...


class Readable(Protocol):
    """How a table can be read, in its database's own words. A part of it is what the database reads a chunk of."""

    @property
    def task(self) -> Task:
        """What is wanted."""
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
    """Bounds of a snapshot. connections: how many read at the same time. lock_ms_max: how long writers of a table may
    wait behind a guard's lock, where one is needed. connect_attempts_max: after how many failures in a row it is up to
    the caller.
    """

    connections: int = 2
    chunk_rows_max: int = 16_384
    chunk_bytes_max: int = 8 << 20
    chunk_keys_max: int = 1 << 20
    chunk_keys_bytes_max: int = 64 << 20
    row_bytes_max: int = 64 << 20
    lock_ms_max: int = 1_000
    connect_attempts_max: int = 8


@dataclass(slots=True, eq=False)
class ReadChunk:
    """Rows of one part of a table, read at one moment.

    table, part: see `Readable`; the table as it was defined when the part was made.

    after: the SCN up to which all that was logged is in it for certain; it rises as the log is
    followed, until the log has passed the low watermark (`is_passed`). low, high: None until the view is open. error:
    why it could not be read, where the log may still explain it. is_part: of a table read as a whole, and not the last.
    is_held: read under a lock; whether it was held all the time is known of the last part. prepared: ids of
    transactions that it may lack, even where their commits are below `low`.
    """

    source: str
    generation: int
    table: Any
    part: Any
    after: int
    low: Watermark | None = None
    high: Watermark | None = None
    arrays: list[pa.Array] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0
    error: DatabusError | None = None
    is_read: bool = False
    is_passed: bool = False
    is_part: bool = False
    is_held: bool = False
    prepared: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Placed:
    """A chunk in its place: between the transaction at hand and the next.

    arrays: of the table's columns, without the rows that the log says more about; there may be none left. last_key,
    order: what remains to be read after it, and in which order, for `OpenSnapshot`. is_last: nothing does.
    """

    source: str
    table: TableSchema
    arrays: list[pa.Array]
    rows: int
    last_key: tuple[Any, ...]
    order: tuple[str, ...]
    is_last: bool


@dataclass(frozen=True, slots=True)
class BegunAnew:
    """A table is read from its beginning again: what was placed of it so far does not say what remains.

    A table without a key was written while it was read, or the order of a key is another now.
    """

    source: str


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading of a table is. rows_estimate: the server's own, which may be far off; None if it has none.

    left_s: at the rate so far, by that estimate. rereads: chunks that were read again. said: what it waits for, if it
    does.
    """

    source: str
    rows: int
    bytes: int
    rows_estimate: int | None
    elapsed_s: float
    rereads: int
    said: str = ""

    @property
    def percent(self) -> float | None:
        """Of the estimate; below 100 until it is done."""
        if not self.rows_estimate:
            return None
        return min(100.0 * self.rows / self.rows_estimate, 99.9)

    def to_json(self) -> dict[str, Any]:
        """For people: without what only logs tell."""
        left_s = self.left_s
        left = None if left_s is None else round(left_s)
        return {"table": self.source, "rows": self.rows, "of": self.rows_estimate, "leftS": left, "says": self.said}

    @property
    def left_s(self) -> float | None:
        """Until the end, by the estimate."""
        if not self.rows_estimate or not self.rows:
            return None
        return max(self.rows_estimate - self.rows, 0) * self.elapsed_s / self.rows
