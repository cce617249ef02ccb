"""Retention: which segments a log no longer keeps, how their files go, and how much room the disk has."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from databus.core import DiskFull, Pair, crash_point
from databus.disk import sync_folder
from databus.log._config import LogConfig
from databus.log._segment import Segment, segment_numbers, segment_path

_LOOKED_AT_EVERY_BYTES: Final = 1 << 20


class Room:
    """The room on the disk of `folder`, of which `free_bytes_min` must stay free. It is looked at now and then, not for
    each group.
    """

    def __init__(self, folder: Path, free_bytes_min: int) -> None:
        self._folder = folder
        self._free_bytes_min = free_bytes_min
        self._bytes_left = 0  # until the disk is looked at again

    def check(self, size: int) -> None:
        """So many bytes are about to be written. Raises `DiskFull` where they would leave too little."""
        if self._bytes_left <= 0:
            stat = os.statvfs(self._folder)
            free_bytes = stat.f_bavail * stat.f_frsize
            if free_bytes - size < self._free_bytes_min:
                raise DiskFull(
                    f"{self._folder}: {free_bytes} bytes are free on this disk, and {size} more would leave less than "
                    f"free_bytes_min={self._free_bytes_min}; nothing was written. Capture goes on when there is "
                    f"room: free some, or lower retention_bytes_max"
                )
            self._bytes_left = _LOOKED_AT_EVERY_BYTES
        self._bytes_left -= size

    def left(self) -> int:
        """How many bytes may still be written, as the disk is now."""
        stat = os.statvfs(self._folder)
        return stat.f_bavail * stat.f_frsize - self._free_bytes_min

    def forget(self) -> None:
        """A write failed: look at the disk before the next."""
        self._bytes_left = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """What is kept beyond the retention: all behind a place, up to so many bytes."""

    pair: Pair
    bytes_max: int
    ended: Callable[[str], None]
    """Called with the reason when the guard ends."""


class Retention:
    """Which segments of a log may go. guard: what is to be kept beyond the retention; asked each time."""

    def __init__(self, room: Room) -> None:
        self.guard: Callable[[], Guard | None] = lambda: None
        self._room = room

    def expired(
        self, segments: Sequence[Segment], *, config: LogConfig, needed: int, bytes_total: int, now_us: int
    ) -> tuple[Segment, ...]:
        """The oldest segments that may be removed; see `expired`. Calls `Guard.ended` where the guard ends for that."""
        removable = expired(segments, config=config, needed=needed, bytes_total=bytes_total, now_us=now_us)
        guard = self.guard() if removable else None
        if guard is None:
            return removable
        removable, why = unguarded(segments, removable, guard, self._room.left())
        if why:
            guard.ended(why)
        return removable


def unguarded(
    segments: Sequence[Segment], gone: Sequence[Segment], guard: Guard, free_bytes_left: int
) -> tuple[tuple[Segment, ...], str]:
    """Of the expired segments, those that the guard does not need; all, and why, where the guard has to end. Pure.

    free_bytes_left: how much may still be written before the disk is as full as it may be.
    """
    ends = [following.header.before.commit.pair for _, following in pairwise(segments)]
    count = next((at for at in range(len(gone)) if ends[at] > guard.pair), len(gone))
    kept_bytes = sum(segment.sealed_bytes or 0 for segment in gone[count:])
    if kept_bytes > guard.bytes_max:
        return tuple(gone), f"{kept_bytes} bytes would be kept beyond the retention, guard_bytes_max={guard.bytes_max}"
    if count < len(gone) and free_bytes_left <= 0:
        return tuple(gone), "the disk has no more room than free_bytes_min"
    return tuple(gone[:count]), ""


def expired(
    segments: Sequence[Segment], *, config: LogConfig, needed: int, bytes_total: int, now_us: int
) -> tuple[Segment, ...]:
    """The oldest segments that are beyond the retention, none from number `needed` on. Pure."""
    ended_before_us = now_us - config.retention_ms_max * 1000
    count = 0
    for segment, following in pairwise(segments):
        is_old = following.header.created_us < ended_before_us
        if segment.number >= needed or not (is_old or bytes_total > config.retention_bytes_max):
            break
        bytes_total -= segment.sealed_bytes or 0
        count += 1
    return tuple(segments[:count])


def remove_up_to(folder: Path, number: int) -> None:
    """Remove the files of the segments up to this one from the front, with those that an earlier attempt left: one
    that stays would be the far side of a hole.
    """
    for segment in segment_numbers(folder):
        if segment <= number:
            segment_path(folder, segment).unlink(missing_ok=True)
            crash_point("log.retention.between_unlinks")
    sync_folder(folder)
