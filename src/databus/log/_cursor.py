"""Cursors: places between the groups of a log, from which bytes are served as they are.

A cursor moves over whole groups, never past the published end. What it hands out are spans of the log's files, whose
checksums have been checked, by it or by another before, and in which nothing was decoded. It holds no file between two
reads: a consumer that stands still costs nothing, and finds out with 410 if retention has passed it.
"""

import os
import threading
from dataclasses import dataclass
from typing import Final

from databus.core import CorruptData, InputError, Pair, SourceCheckpoint
from databus.log._measure import FramesLeft, GroupSize, Measure, MeasureLimits, SplitPoint, Tally, size_of
from databus.log._reader import BUFFER_BYTES, FrameReader
from databus.log._scan import Allowance, Scanned, scan
from databus.log._segment import End, Segment, SegmentFile
from databus.log._view import LogView
from databus.wire import Commit, Header, done_by


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive bytes of one segment. The file stays open while the span lives, whatever retention does."""

    file: SegmentFile
    offset: int
    length: int

    @property
    def fd(self) -> int:
        """Descriptor of the file, for `os.sendfile` and `os.pread`."""
        return self.file.fd


class Cursor:
    """A place between groups. One thread at a time; a copy for each other thread.

    position: the pair after which the consumer goes on; it may lie inside the group that comes next, whose rows up to
    the pair the client drops.
    """

    __slots__ = ("_offset", "_segment", "_view", "position")

    def __init__(self, view: LogView, segment: int, offset: int, position: SourceCheckpoint) -> None:
        self._view = view
        self._segment = segment
        self._offset = offset
        self.position = position

    @property
    def view(self) -> LogView:
        """The log as readers see it."""
        return self._view

    @property
    def place(self) -> tuple[int, int]:
        """(segment, offset): comparable."""
        return self._segment, self._offset

    def go(self, place: tuple[int, int], position: SourceCheckpoint) -> None:
        """Stand at the end of a group; `position` is that of who has been given everything up to there."""
        self._segment, self._offset = place
        self.position = position

    def copy(self) -> "Cursor":
        """Another cursor at this place."""
        return Cursor(self._view, self._segment, self._offset, self.position)

    @property
    def is_at_end(self) -> bool:
        """Whether nothing published follows now."""
        return (self._segment, self._offset) >= self._view.published.place

    def has_reached(self, to: Pair | None) -> bool:
        """Whether all rows up to `to` are behind this cursor."""
        return to is not None and self.position.pair >= to

    def advance(self, published: End) -> tuple[Segment, int] | None:
        """The segment to read on in and up to where; None at the published end. Steps into the segment that follows."""
        while (self._segment, self._offset) < published.place:
            segment = self._view.segment(self._segment)
            limit = self._view.limit(segment, published)
            if self._offset < limit:
                return segment, limit
            following = self._view.segment(self._segment + 1)
            self._segment, self._offset = following.number, following.first_offset
        return None

    def read(
        self,
        bytes_max: int,
        *,
        sources: frozenset[int] | None = None,
        to: Pair | None = None,
        until: End | None = None,
        allowance: Allowance | None = None,
    ) -> list[Span]:
        """Move over the next whole groups, at least one, until they make `bytes_max`; [] if there are none.

        sources: ids whose frames are wanted; commit frames come always. to: the last group is the one that reaches
        this pair. until: not beyond this published place. allowance: how far this step may go at most, whatever it
        finds. Every checksum of what is returned has been checked, now or by an earlier reader. Raises `CorruptData`
        naming segment and offset, with the cursor before the group concerned; `PositionPurged`.
        """
        published = self._view.published if until is None else until
        allowance = allowance or Allowance()
        spans: list[Span] = []
        left = bytes_max
        while left > 0 and not self.has_reached(to) and (stretch := self.advance(published)) is not None:
            segment, limit = stretch
            try:
                span = None if sources is not None else self._leap(segment, limit, published, left, to)
            except CorruptData:
                if not spans:
                    raise
                break  # what precedes the damage is served first; the next read raises
            if span is not None:
                spans.append(span)
                left -= span.length
                continue
            run = _SegmentRead(self._view.file(segment), self._offset, limit)
            try:
                run.read(left, sources, to, allowance)
            except CorruptData:
                if not spans and run.commit is None:
                    raise
                left = 0  # as above: whole groups before the damage are served
            if sources is None:
                self._view.verified.note(segment.number, self._offset, run.offset)
            spans += run.spans
            left -= run.bytes
            self._offset = run.offset
            if run.commit is None:
                break
            self._move(Commit.from_header(run.commit, f"{segment.path} at {run.commit_offset}"), sources)
            if run.is_full:
                break
        return spans

    def _leap(self, segment: Segment, limit: int, published: End, bytes_max: int, to: Pair | None) -> Span | None:
        """Move to a known boundary of groups not far ahead, without a look at what lies between, which an earlier
        reader has checked. None where no boundary is known.
        """
        end = self._view.leap(segment, self._offset, limit, published, bytes_max, to)
        if end is None:
            return None
        span = Span(self._view.file(segment), self._offset, end.offset - self._offset)
        _touch(span)
        self._offset = end.offset
        self._move(end.commit, None)
        return span

    def _move(self, commit: Commit, sources: frozenset[int] | None) -> None:
        self.position = self._view.checkpoint_after(commit, self.position, sources)

    def measure(
        self,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        sources: frozenset[int] | None = None,
        to: Pair | None = None,
        partitions: int = 1,
        stop_at_controls: bool = False,
    ) -> Measure:
        """How far the next whole groups go that fit, at least one if there is any, from headers only.

        Where a limit would end it inside a transaction, it ends before that, unless the transaction alone exceeds it.
        stop_at_controls: it ends before a group that begins with a control of these sources, unless that is the first.
        Moves the cursor there. Raises as `read` does.
        """
        measuring = Measuring(self, MeasureLimits(rows_max, bytes_max, stop_at_controls), sources, to, partitions)
        while not measuring.step(Allowance()):
            pass
        return measuring.result()

    def count(
        self,
        tally: Tally,
        sources: frozenset[int] | None,
        to: Pair | None,
        allowance: Allowance,
        left: FramesLeft | None = None,
    ) -> bool:
        """Move over groups that `tally` takes, within the allowance; whether that was all of them.

        left: what is left of a group's frames behind a filter. A group for which it raises an `InputError` ends the
        measure, where others were before it.
        """
        published = self._view.published
        while not tally.is_full and not self.has_reached(to) and (stretch := self.advance(published)) is not None:
            segment, limit = stretch
            with FrameReader(self._view.file(segment), limit, with_bodies=left is not None) as reader:
                for group in scan(reader, self._offset, limit, sources, check_bodies=False):
                    allowance.spend(group.end - group.start)
                    try:
                        size = size_of(reader, segment, group, left)
                    except InputError:
                        if not tally.sum.groups:
                            raise
                        tally.end()
                        return True
                    if not tally.take(size):
                        return True
                    self._segment, self._offset = segment.number, group.end
                    if to is not None and done_by(group.commit) >= to:
                        return True
                    if allowance.is_spent:
                        return False
        return True

    def go_behind(self, group: GroupSize, start: SourceCheckpoint, sources: frozenset[int] | None) -> None:
        """Stand behind a group that was measured from `start` on."""
        self._segment, self._offset = group.segment.number, group.end
        commit = Commit.from_header(group.commit, f"{group.segment.path} at {group.commit_offset}")
        self.position = self._view.checkpoint_after(commit, start, sources)

    def checkpoint_at(self, stop: SplitPoint, sources: frozenset[int] | None) -> SourceCheckpoint:
        """The position at a place ahead of this cursor."""
        commit = self._view.commit_before(self._view.segment(stop.segment), stop.commit_offset)
        return self._view.checkpoint_after(commit, self.position, sources)


class Measuring:
    """A measurement in steps, each within an allowance; it moves `cursor`. See `Cursor.measure`.

    Between two steps the cursor stands where the last one ended; after `result` where the measure does.
    """

    def __init__(
        self,
        cursor: Cursor,
        limits: MeasureLimits,
        sources: frozenset[int] | None = None,
        to: Pair | None = None,
        partitions: int = 1,
        left: FramesLeft | None = None,
    ) -> None:
        self._cursor = cursor
        self._start = cursor.copy()
        self._tally = Tally(limits, partitions)
        self._sources = sources
        self._to = to
        self._left = left

    def step(self, allowance: Allowance) -> bool:
        """Go on; whether that was all: a limit is reached, or the published end, or `to`."""
        return self._cursor.count(self._tally, self._sources, self._to, allowance, self._left)

    def end(self) -> None:
        """Be content with what has been measured; not inside a transaction, if another came before it."""
        self._tally.end()

    def result(self) -> Measure:
        """What was measured, and the cursor moved there."""
        splits = tuple(self._start.checkpoint_at(stop, self._sources) for stop in self._tally.splits())
        counted = self._tally.sum
        if counted.last is not None:
            self._cursor.go_behind(counted.last, self._start.position, self._sources)
        counts = counted.rows, counted.bytes, counted.groups
        return Measure(self._cursor.position, *counts, splits, counted.controls, self._tally.is_full, counted.oldest_us)


class _SegmentRead:
    """One read inside one segment. On an error, what was read of whole groups before it stands."""

    def __init__(self, file: SegmentFile, offset: int, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._pieces: list[tuple[int, int]] = []
        self.offset = offset  # behind the last whole group read
        self.bytes = 0
        self.commit: Header | None = None
        self.commit_offset = -1
        self.is_full = False

    @property
    def spans(self) -> list[Span]:
        """What was read."""
        return [Span(self._file, start, end - start) for start, end in self._pieces]

    def read(self, bytes_max: int, sources: frozenset[int] | None, to: Pair | None, allowance: Allowance) -> None:
        """Read whole groups until they make `bytes_max`, reach `to` or the limit, or the allowance is spent."""
        with FrameReader(self._file, self._limit, with_bodies=sources is None) as reader:
            for group in scan(reader, self.offset, self._limit, sources, check_bodies=True):
                allowance.spend(group.end - group.start)
                self._take(group)
                if self.bytes >= bytes_max or allowance.is_spent or (to and done_by(group.commit) >= to):
                    self.is_full = True
                    return

    def _take(self, group: Scanned) -> None:
        for offset, header in group.frames:
            self._add(offset, header)
        self._add(group.commit_offset, group.commit)
        self.offset, self.commit, self.commit_offset = group.end, group.commit, group.commit_offset

    def _add(self, offset: int, header: Header) -> None:
        _join(self._pieces, offset, offset + header.frame_bytes)
        self.bytes += header.frame_bytes


_scratch: Final = threading.local()


def _touch(span: Span) -> None:
    """Have the span's bytes in the page cache, so that sending them does not wait for a disk in the event loop.

    Raises `CorruptData` if they cannot be read, or are not there any more.
    """
    buffer = getattr(_scratch, "buffer", None)
    if buffer is None:
        buffer = _scratch.buffer = memoryview(bytearray(BUFFER_BYTES))
    done = 0
    while done < span.length:
        at = span.offset + done
        try:
            count = os.preadv(span.fd, [buffer[: span.length - done]], at)
        except OSError as error:
            raise CorruptData(f"{span.file.path} at {at}: {error.strerror}") from error
        if count == 0:
            raise CorruptData(f"{span.file.path} at {at}: the file ends here, {span.length - done} bytes too early")
        done += count


def _join(pieces: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a piece, as part of the last one where it follows that."""
    if pieces and pieces[-1][1] == start:
        pieces[-1] = pieces[-1][0], end
    else:
        pieces.append((start, end))
