"""A range of a physical source's log, read whole: what is cut off is asked for again from where it stood."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from databus.core import (
    Backoff,
    Pair,
    ServiceUnavailable,
    SourceCheckpoint,
    StreamCut,
    TransientError,
    name_fits,
    split_physical,
)
from databus.link._frame_stream import FrameStream
from databus.link._relay import RelayClient
from databus.wire import Commit, FrameGroup, Header, done_by, end_of_answer, position_after

_BACK_OFF_MS: Final = (20, 1_000)
_PAUSE_S: Final = 0.05
T = TypeVar("T")
Pieces = Callable[[FrameStream], Iterator[tuple[T, Header]]]
"""Cuts a response into pieces, each with the commit frame's header that ends it."""


def is_called(name: str, physical: str, table: str) -> bool:
    """Whether a name, as written where sources are chosen, may mean a table (`db.table`) of a physical source."""
    owner, wanted = split_physical(name)
    return fnmatchcase(physical, owner or "*") and name_fits(table, wanted)


def any_of(names: Sequence[str] | None, physical: str) -> Callable[[str], bool]:
    """Whether a table (`db.table`) of a physical source may be among those that are asked for by these names or ids.

    Where only the relay can tell, it may be. None stands for all.
    """
    return lambda table: names is None or any(name.isdigit() or is_called(name, physical, table) for name in names)


@dataclass(frozen=True)
class RangeReader:
    """Reads ranges of a physical source."""

    client: RelayClient
    physical: str
    sources: tuple[str, ...] | None
    """Names or ids to ask for; None for all."""
    is_given: Callable[[str], bool]
    """Whether `db.table` is among them."""
    wait_ms: int = 1_000
    """How long the relay may wait for what is to come."""
    retry_ms: int = 30_000
    """How long a relay that does not answer is asked again."""
    log: str = ""
    """The one that the ranges were planned on; where it is empty, that of the first response."""

    def groups(self, start: SourceCheckpoint, until: Pair) -> Iterator[tuple[list[FrameGroup], FrameStream]]:
        """Groups after `start` up to the one that reaches `until`, in order, whole: the first may hold rows before
        `start`, the last rows behind `until`.
        """
        return self.pieces(start, until, _groups_of)

    def pieces(self, start: SourceCheckpoint, until: Pair, pieces_of: Pieces[T]) -> Iterator[tuple[T, FrameStream]]:
        """The same, cut in another way. Raises `TransientError` when the relay did not answer for `retry_ms`, and at
        once where it answers from another log: bounds inside a transaction mean other rows there.
        """
        position, log = start, self.log
        deadline: float | None = None
        while True:
            stream = self._open(position, until)
            log = log or stream.log
            if stream.log not in ("", log):
                stream.close()
                raise other_log(self.physical, log, stream.log)
            last: Header | None = None
            try:
                with stream:
                    for piece, last in pieces_of(stream):
                        yield piece, stream
                        if done_by(last) >= until or end_of_answer(last, stream.log) is not None:
                            return
                raise StreamCut(f"{self.physical}: the response ended before {until}")
            except TransientError:
                now = time.monotonic()
                if last is not None:
                    position, deadline = self._position_after(last, position, stream), None
                elif deadline is not None and now > deadline:
                    raise
                if deadline is None:
                    deadline = now + self.retry_ms / 1e3
                time.sleep(_PAUSE_S)  # nothing tells when a relay is back

    def _position_after(self, last: Header, before: SourceCheckpoint, stream: FrameStream) -> SourceCheckpoint:
        return position_after(
            Commit.from_header(last), before, uuid=stream.uuid, log=stream.log, is_given=self.is_given
        )

    def _open(self, position: SourceCheckpoint, until: Pair) -> FrameStream:
        return patiently(
            lambda: self.client.stream(self.physical, position, sources=self.sources, to=until, wait_ms=self.wait_ms),
            self.retry_ms,
        )


def patiently(ask: Callable[[], T], retry_ms: int) -> T:
    """Ask again, with back-off, for up to `retry_ms` while it answers `TransientError`."""
    backoff = Backoff(*_BACK_OFF_MS, total_ms=retry_ms)
    while True:
        try:
            return ask()
        except TransientError:
            if backoff.is_over:
                raise
        backoff.sleep()  # nothing tells when a relay is back


def other_log(physical: str, planned: str, served: str) -> ServiceUnavailable:
    """The error where a relay serves another log than a batch was planned on."""
    return ServiceUnavailable(
        f"{physical}: this batch was planned on log {planned}, and the relay now answers from log {served}, which may "
        "number tables and the rows of a transaction otherwise. Start the query again, with the same checkpoint: the "
        "batch is then planned on the log that is there"
    )


def _groups_of(stream: FrameStream) -> Iterator[tuple[list[FrameGroup], Header]]:
    for groups in stream:
        yield groups, groups[-1].commit
