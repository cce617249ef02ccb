"""GroupWriter: a thread that encodes and writes groups, in order, while the source makes the next ones."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from databus.wire import EncodedGroup, Group

BYTES_MAX: Final = 16 << 20  # some groups: with one at a time each thread waits for the other now and then


@dataclass(slots=True)
class Draft:
    """A group on its way into the log."""

    group: Group
    encoded: EncodedGroup | None = None
    """Its bytes, once they are made, so that another attempt need not."""

    @property
    def bytes(self) -> int:
        """Of its columns' buffers, which is known at once."""
        if self.group.encoded is not None:
            return self.group.encoded.bytes_total
        return sum(rows.batch.get_total_buffer_size() for rows in self.group.rows)


class _GroupNotTried(Exception):
    """A group comes after one that was not written."""


class GroupWriter:
    """Groups that are being written: one of any size, or several of `BYTES_MAX` together. After one that fails none is,
    until those are taken back: so order, errors and what a kill loses are those of one thread. For one thread to use.
    """

    def __init__(self, name: str, write: Callable[[Draft], None]) -> None:
        self._write = write
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting: deque[tuple[Draft, Future[None]]] = deque()
        self.failure: BaseException | None = None
        """Why the first of those that are taken back was not written."""

    def put(self, draft: Draft) -> None:
        """Have a group written after those before it; waits for room.

        Raises what went wrong with one of those; then this one is not taken.
        """
        self.wait(max(BYTES_MAX - draft.bytes, 0))
        self._waiting.append((draft, self._thread.submit(self._try, draft)))

    def wait(self, bytes_left_max: int = 0) -> None:
        """Wait until no more than so much is left. Raises what went wrong with the first of them."""
        while self._waiting and (
            bytes_left_max == 0 or sum(draft.bytes for draft, _ in self._waiting) > bytes_left_max
        ):
            self._waiting[0][1].result()
            self._waiting.popleft()

    def take_back(self) -> list[Draft]:
        """Those that were not written, in order: the first failed, the others were not tried."""
        wait(writing for _, writing in self._waiting)
        drafts = [draft for draft, writing in self._waiting if writing.exception() is not None]
        self._waiting.clear()
        self.failure = None
        return drafts

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _try(self, draft: Draft) -> None:
        if self.failure is not None:
            raise _GroupNotTried
        try:
            self._write(draft)
        except BaseException as error:
            self.failure = error
            raise
