"""Retention: which segments a log no longer keeps, and how their files go."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from databus.core import crash_point
from databus.disk import sync_folder
from databus.log._config import LogConfig
from databus.log._segment import Segment, segment_numbers, segment_path


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
    for each in segment_numbers(folder):
        if each <= number:
            segment_path(folder, each).unlink(missing_ok=True)
            crash_point("log.retention.between_unlinks")
    sync_folder(folder)
