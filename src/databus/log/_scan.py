"""Scanning: walking over the groups of a segment by their frames' headers, within an allowance.

Both who reads and who measures walk here. A group can be far larger than what is served of it, so a walk is bounded in
what it passes over and in time, and not only in what it finds. Where the allowance ends, the caller hands on what there
is, lets others have their turn, and goes on from there. So the consumer of a rare table in a long, cold log advances
step by step, and the others wait for one step of it at most.
"""

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from databus.core import CorruptData
from databus.log._reader import FrameReader
from databus.wire import COMMIT, Header

SCAN_BYTES_MAX: Final = 256 << 20
"""What one step may pass over."""
SCAN_MS_MAX: Final = 50
"""And how long it may take. The group that reaches a bound is finished, so that every step gets on."""


class Allowance:
    """What one step of a scan may still pass over; of the clock, what is left of its time."""

    __slots__ = ("_bytes_left", "_deadline")

    def __init__(self, bytes_max: int | None = None, ms_max: int | None = None) -> None:
        self._bytes_left = SCAN_BYTES_MAX if bytes_max is None else bytes_max
        self._deadline = time.monotonic() + (SCAN_MS_MAX if ms_max is None else ms_max) / 1e3

    def spend(self, bytes_passed: int) -> None:
        """Note that so much was passed over."""
        self._bytes_left -= bytes_passed

    @property
    def is_spent(self) -> bool:
        """Whether others should have their turn."""
        return self._bytes_left <= 0 or time.monotonic() >= self._deadline


class Scanned(NamedTuple):
    """A group that was walked over: where it starts, its commit frame, and its frames that are wanted, in order."""

    start: int
    commit_offset: int
    commit: Header
    frames: list[tuple[int, Header]]

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.commit_offset + self.commit.frame_bytes


def scan(
    reader: FrameReader, offset: int, limit: int, sources: frozenset[int] | None, *, check_bodies: bool
) -> Iterator[Scanned]:
    """The groups from `offset` to `limit`. sources: ids whose frames are wanted; None for all.

    check_bodies: read the bodies of those frames against their checksums. Raises `CorruptData` naming segment and
    offset.
    """
    start = offset
    frames: list[tuple[int, Header]] = []
    for at, header in reader.frames(offset, limit):
        is_commit = header.kind == COMMIT
        if not is_commit and sources is not None and header.source_id not in sources:
            continue
        if check_bodies and header.body_bytes:
            reader.check_body(at, header)
        if is_commit:
            yield Scanned(start, at, header, frames)
            start, frames = at + header.frame_bytes, []
        else:
            frames.append((at, header))
    if start != limit:
        raise CorruptData(f"{reader.place(start)}: the group that starts here has no commit frame")
