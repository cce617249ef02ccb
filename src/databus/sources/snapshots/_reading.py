"""Reading: how far the reading of one table is. Its caller holds the lock; nothing here waits."""

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from databus.core import Backoff, CorruptData
from databus.sources.snapshots._chunks import (
    Position,
    Progress,
    Readable,
    ReadChunk,
    SnapshotOptions,
    Watermark,
)

TableT = TypeVar("TableT", bound=Readable)

_FIRST_ROWS: Final = 1_024  # until it is known how large rows are
_FILL: Final = 0.8  # of a chunk's bytes, by the size of the rows so far
_PAUSE_MS: Final = (500, 60_000)  # between two readings of a table that is written meanwhile


class SnapshotReading(Generic[TableT]):
    """What of a table has been read, is being read and remains.

    Each range of the table is in exactly one place: `todo`, the part of a chunk that is being read or waits to be
    placed, or placed for good.
    """

    def __init__(self, table: TableT, options: SnapshotOptions) -> None:
        self._options = options
        self.generation = 0
        """Counts what makes chunks worthless: another definition, another beginning."""
        self.chunks: list[ReadChunk] = []
        self.rows = 0
        self.bytes = 0
        self.rereads = 0
        self.waits_for = ""
        """For people: why it is read again later."""
        self.not_before_s = 0.0
        self._backoff = Backoff(*_PAUSE_MS)
        self._began_s = time.monotonic()
        self._read_rows = 0
        self._read_bytes = 0
        self._rows_max = options.chunk_rows_max
        self._define(table)
        self.order: tuple[str, ...] | None = None
        """How the database orders the rows, in its own words; None before it was seen. Ranges between keys of one order
        miss rows in another.
        """
        self.todo: deque[Any] = deque([table.everything()])

    def go_on(self, remains: tuple[Any, ...], order: tuple[str, ...]) -> bool:
        """Only this remains to be read, in this order. Whether the table still has a key that this could be of."""
        try:
            self.todo = deque([self.table.part_of(part) for part in remains])
        except CorruptData:
            return False
        self.order = order
        return True

    def is_in_order(self, chunk: ReadChunk, order: tuple[str, ...]) -> bool:
        """Whether the ranges of this book are right where the database orders the rows so; without any order, only
        the range that is everything is.
        """
        if not order:
            return bool(chunk.part == self.table.everything())
        if self.order is None:
            self.order = order
        return self.order == order

    def _define(self, table: TableT) -> None:
        self.table = table
        self.is_parked = False
        self.base: ReadChunk | None = None
        """Where a guard gave it: the low watermark that all chunks share."""

    def use(self, table: TableT) -> bool:
        """From now on the table has this definition; chunks without a place are read again.

        Returns whether all of it is read again, since the chunks in their places are of no use either.
        """
        is_restarted = self.is_whole or table.key != self.table.key
        self._define(table)
        if is_restarted:
            self.restart()
        else:
            self.todo.extend(chunk.part for chunk in self.chunks)
            self.chunks = []
            self.generation += 1
        return is_restarted

    @property
    def source(self) -> str:
        """`db.table`."""
        return self.table.task.source

    @property
    def is_whole(self) -> bool:
        """Whether the table is read as a whole, for want of a key to read it in the order of."""
        return self.table.is_whole

    @property
    def rows_max(self) -> int:
        """How many rows the next chunk may have: as many as are likely to fit in its bytes."""
        if not self._read_rows:
            return min(self._rows_max, _FIRST_ROWS)
        fit = int(_FILL * self._options.chunk_bytes_max * self._read_rows / max(self._read_bytes, 1))
        return max(min(self._rows_max, fit), 1)

    def claim(self, scn: int) -> ReadChunk:
        """Take the next range to read it; all that was logged up to `scn` will be in it."""
        after = scn if self.base is None else self.base.after
        chunk = ReadChunk(self.source, self.generation, self.table, self.todo.popleft(), after)
        self.chunks.append(chunk)
        return chunk

    def owns(self, chunk: ReadChunk) -> bool:
        """Whether the chunk is still one of this book's."""
        return chunk.generation == self.generation and chunk in self.chunks

    def set_base(self, chunk: ReadChunk, low: Watermark, scn: int) -> None:
        """From now on the table's views have this low watermark, beginning with `chunk`'s; it contains `scn`."""
        if self.owns(chunk):
            chunk.after = scn
            self.base = ReadChunk(self.source, self.generation, self.table, self.table.everything(), scn, low)

    def add_part(self, chunk: ReadChunk) -> None:
        """Another part of a whole table, read in the same view."""
        self.chunks.append(chunk)

    def measured(self, chunk: ReadChunk) -> None:
        """It has been read."""
        self._read_rows += chunk.rows
        self._read_bytes += chunk.bytes

    def give_back(self, chunk: ReadChunk) -> None:
        """It must be read again."""
        if self.owns(chunk):
            self.chunks.remove(chunk)
            self.todo.appendleft(chunk.part)
            self.rereads += 1

    def smaller(self) -> None:
        """Chunks take so long that too much is changed meanwhile."""
        self._rows_max = max(self._rows_max // 2, 1)

    def restart(self) -> None:
        """Read the table again from its beginning, in whatever order it has by then."""
        self.table = self.table.unasked()
        self.chunks = []
        self.order = None
        self.todo = deque([self.table.everything()])
        self.generation += 1

    def pause(self) -> None:
        """The table was written while it was read as a whole: wait before it is read again, longer each time."""
        self.rereads += 1
        self.not_before_s = time.monotonic() + self._backoff.next_ms() / 1e3
        self.waits_for = (
            "cannot be read in the order of its key, and more was written while it was read than is kept in memory; it "
            "is read again as a whole until that is less"
            if self.table.task.table.key
            else "has no key, and was written while it was read; it is read again until no write interferes. Give it a "
            "primary key, or set `lock_tables_without_key`"
        )

    def end(self) -> None:
        """Its snapshot is not needed any more; threads that wait with a chunk of it see that they need not."""
        self.chunks = []
        self.todo.clear()
        self.generation += 1

    def placed(self, chunk: ReadChunk) -> None:
        """It has its place in the log."""
        self.chunks.remove(chunk)
        self.rows += chunk.rows
        self.bytes += chunk.bytes

    def remains(self) -> tuple[Any, ...]:
        """As JSON, the ranges that have no place yet; nothing for a table that is read as a whole."""
        if self.is_whole:
            return ()
        return tuple(self.table.json_of(part) for part in (*(chunk.part for chunk in self.chunks), *self.todo))

    def follow(self, scn: int, position: Position) -> None:
        """The log has been followed so far: changes that a chunk contains for certain need no key."""
        for chunk in self._followed():
            if not chunk.is_passed and chunk.low is not None:
                if chunk.low.contains(position):
                    chunk.after = scn
                else:
                    chunk.is_passed = True

    def horizon(self, scn: int) -> int:
        """The SCN up to which no chunk, open or to come, needs what was logged."""
        return min((chunk.after for chunk in self._followed()), default=scn)

    def _followed(self) -> list[ReadChunk]:
        return self.chunks if self.base is None else [*self.chunks, self.base]

    def ready(self, is_reached: Callable[[ReadChunk], bool]) -> ReadChunk | None:
        """The first chunk that can have its place."""
        for chunk in self.chunks:
            if chunk.is_read and is_reached(chunk):
                return chunk
        return None

    def progress(self) -> Progress:
        """How far it is."""
        elapsed_s = time.monotonic() - self._began_s
        return Progress(
            self.source, self.rows, self.bytes, self.table.rows_estimate, elapsed_s, self.rereads, self.waits_for
        )
