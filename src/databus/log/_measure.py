"""Measuring: how far a reader gets within limits, and where its work could be split; from headers alone."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from databus.core import Pair, SourceCheckpoint
from databus.log._reader import FrameReader
from databus.log._scan import Scanned
from databus.log._segment import Segment
from databus.wire import CONTROL, Frame, Header

_STOPS_KEPT_MAX: Final = 4096  # of which splits are chosen
_CONTROLS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class ControlMark:
    """A control by its header and its kind: what a planner has to know before reading."""

    kind: str
    source_id: int
    fingerprint: int
    pair: Pair


@dataclass(frozen=True, slots=True)
class Measure:
    """What lies between a cursor and `end`: rows, bytes and groups as they would be served, and the controls in it."""

    end: SourceCheckpoint
    rows: int
    bytes: int
    groups: int
    splits: tuple[SourceCheckpoint, ...] = ()
    """Positions between, in order, that cut it into ranges of about as many bytes."""
    controls: tuple[ControlMark, ...] = ()
    is_full: bool = False
    """Whether a limit ended the measurement."""
    oldest_us: int | None = None
    """Commit time of the first group with rows or a control, None where none has."""


@dataclass(frozen=True, slots=True)
class MeasureLimits:
    """How far to measure at most: None for no limit."""

    rows_max: int | None = None
    bytes_max: int | None = None
    stop_at_controls: bool = False
    """Whether to end before a group that begins with a control, unless that group is the first."""


class GroupSize(NamedTuple):
    """A group as it would be served: its commit frame, rows and bytes, and the control that it begins with."""

    segment: Segment
    commit_offset: int
    commit: Header
    rows: int
    bytes: int
    control: ControlMark | None

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.commit_offset + self.commit.frame_bytes


FramesLeft = Callable[[Sequence[Frame]], tuple[int, int]]
"""Rows and bytes that are left of a group's frames behind a filter."""


def size_of(reader: FrameReader, segment: Segment, group: Scanned, left: FramesLeft | None = None) -> GroupSize:
    """A group that was walked over, as it would be served. left: behind this."""
    if left is None:
        rows = sum(header.rows for _, header in group.frames)
        bytes_ = sum(header.frame_bytes for _, header in group.frames)
    else:
        read = ((at, header, memoryview(reader.body(at, header))) for at, header in group.frames)
        rows, bytes_ = left([Frame(header, body, reader.place(at)) for at, header, body in read])
    bytes_ += group.commit.frame_bytes
    control = None
    if group.frames and group.frames[0][1].kind == CONTROL:
        at, header = group.frames[0]
        frame = Frame(header, memoryview(reader.body(at, header)), reader.place(at))
        control = ControlMark(str(frame.control.get("kind")), header.source_id, header.fingerprint, header.first)
    return GroupSize(segment, group.commit_offset, group.commit, rows, bytes_, control)


@dataclass(frozen=True, slots=True)
class SplitPoint:
    """The end of a group, and the bytes up to it."""

    segment: int
    commit_offset: int
    bytes: int


@dataclass(frozen=True)
class _Sum:
    """Groups counted."""

    rows: int = 0
    bytes: int = 0
    groups: int = 0
    last: GroupSize | None = None
    """The last group counted."""
    controls: tuple[ControlMark, ...] = ()
    oldest_us: int | None = None


@dataclass
class Tally:
    """Counts groups until one does not fit.

    Where a limit would end it inside a transaction, it ends before that, unless the transaction is its first.
    """

    limits: MeasureLimits
    partitions: int
    sum: _Sum = field(default_factory=_Sum)
    is_full: bool = False
    _whole: _Sum = field(default_factory=_Sum)
    _stops: list[SplitPoint] = field(default_factory=list)
    _groups_a_stop: int = 1

    def take(self, group: GroupSize) -> bool:
        """Count a group, unless it does not fit; `is_full` from then on."""
        if self.sum.groups and not self._fits(group):
            self.end()
            return False
        old = self.sum
        controls = old.controls if group.control is None else (*old.controls, group.control)
        oldest_us = old.oldest_us
        if oldest_us is None and (group.rows or group.control is not None):
            oldest_us = group.commit.commit_us
        self.sum = _Sum(old.rows + group.rows, old.bytes + group.bytes, old.groups + 1, group, controls, oldest_us)
        if group.commit.publishes:
            self._whole = self.sum
        if self.partitions > 1 and self.sum.groups % self._groups_a_stop == 0:
            self._note_stop(group)
        return True

    def end(self) -> None:
        """Count no more: a limit was reached, or the time is over."""
        self.is_full = True
        is_inside = self.sum.last is not None and self.sum.last.commit.continues
        if is_inside and self._whole.groups:
            self.sum = self._whole

    def _fits(self, group: GroupSize) -> bool:
        rows_max = sys.maxsize if self.limits.rows_max is None else self.limits.rows_max
        bytes_max = sys.maxsize if self.limits.bytes_max is None else self.limits.bytes_max
        if group.control is not None and (self.limits.stop_at_controls or len(self.sum.controls) >= _CONTROLS_MAX):
            return False
        return self.sum.rows + group.rows <= rows_max and self.sum.bytes + group.bytes <= bytes_max

    def _note_stop(self, group: GroupSize) -> None:
        self._stops.append(SplitPoint(group.segment.number, group.commit_offset, self.sum.bytes))
        if len(self._stops) >= _STOPS_KEPT_MAX:
            # Every second one stays, and half as many come from now on: memory is bounded, however long the range is.
            self._stops = self._stops[1::2]
            self._groups_a_stop *= 2

    def splits(self) -> list[SplitPoint]:
        """The stops nearest behind each n-th part of the bytes, without the end itself."""
        total = self.sum.bytes
        chosen: list[SplitPoint] = []
        wanted = 1
        for stop in self._stops:
            if stop.bytes < total and stop.bytes * self.partitions >= total * wanted:
                chosen.append(stop)
                wanted = stop.bytes * self.partitions // total + 1
        return chosen
