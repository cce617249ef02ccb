"""Cursors: places between the groups of a log, from which bytes are served as they are.

A cursor moves over whole groups, never past the published end. What it hands out are spans of the log's files, whose
checksums it has checked and in which it has decoded nothing. It holds no file between two reads: a consumer that
stands still costs nothing, and finds out with 410 if retention has passed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from databus.core import SEQ_DONE, Corrupt, Pair, SourceCheckpoint
from databus.relay._measure import Measure, MeasureLimits, Stop, Tally, group_sizes
from databus.relay._reader import FrameReader
from databus.relay._segment import End, Segment, SegmentFile
from databus.relay._view import LogView
from databus.wire import COMMIT, Commit, Header

GROUPS_A_READ_MAX: Final = 8192


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


def reached_by(header: Header) -> Pair:
    """Up to where all rows are done once this commit frame has been passed."""
    return (header.last_scn, max(header.last_seq, SEQ_DONE)) if header.publishes else header.last


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

    def _advance(self, published: End) -> tuple[Segment, int] | None:
        """The segment to read on in and up to where; None at the published end."""
        while (self._segment, self._offset) < published.place:
            segment = self._view.segment(self._segment)
            limit = self._view.limit(segment, published)
            if self._offset < limit:
                return segment, limit
            following = self._view.segment(self._segment + 1)
            self._segment, self._offset = following.number, following.first_offset
        return None

    def read(self, bytes_max: int, *, sources: frozenset[int] | None = None, to: Pair | None = None) -> list[Span]:
        """Move over the next whole groups, at least one, until they make `bytes_max`; [] if there are none.

        sources: ids whose frames are wanted; commit frames come always. to: the last group is the one that reaches
        this pair. Every checksum of what is returned has been checked. Raises `Corrupt` naming segment and offset, with
        the cursor before the group concerned; `PositionPurged`.
        """
        published = self._view.published
        spans: list[Span] = []
        left = bytes_max
        while left > 0 and not self.has_reached(to) and (found := self._advance(published)) is not None:
            run = _Run(self._view.file(found[0]), self._offset, found[1])
            try:
                run.read(left, sources, to)
            except Corrupt:
                if not spans and run.commit is None:
                    raise
                left = 0
            spans += run.spans
            left -= run.bytes
            self._offset = run.offset
            if run.commit is None:
                break
            self._move(found[0], run.commit_offset, run.commit, sources)
            if run.is_full:
                break
        return spans

    def _move(self, segment: Segment, commit_offset: int, header: Header, sources: frozenset[int] | None) -> None:
        commit = Commit.from_header(header, f"{segment.path} at {commit_offset}")
        self.position = self._view.checkpoint(commit, self._open_snapshots(commit, sources))

    def _open_snapshots(self, commit: Commit, sources: frozenset[int] | None) -> Mapping[str, int]:
        """Those of `commit` whose begin this consumer has been given, and whose end it has not."""
        if not commit.snapshots:
            return {}
        ids = self._view.schemas.ids()
        before = self.position
        return {
            name: each.generation
            for name, each in commit.snapshots.items()
            if (sources is None or ids.get(name) in sources)
            and (each.begin > before.pair or before.snapshots.get(name) == each.generation)
        }

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
        published = self._view.published
        start = self.copy()
        tally = Tally(MeasureLimits(rows_max, bytes_max, stop_at_controls), partitions)
        while not tally.is_full and not self.has_reached(to) and (found := self._advance(published)) is not None:
            self._count(*found, tally, sources, to)
        splits = tuple(start.checkpoint_at(stop, sources) for stop in tally.splits())
        counted = tally.sum
        counts = counted.rows, counted.bytes, counted.groups
        return Measure(self.position, *counts, splits, counted.controls, tally.is_full)

    def _count(
        self, segment: Segment, limit: int, tally: Tally, sources: frozenset[int] | None, to: Pair | None
    ) -> None:
        """Measure in one segment, and move to where that ends; that may be in an earlier segment."""
        with FrameReader(self._view.file(segment), limit, with_bodies=False) as reader:
            for group in group_sizes(reader, segment, self._offset, limit, sources):
                if not tally.take(group) or (to is not None and reached_by(group.commit) >= to):
                    break
        last = tally.sum.last
        if last is not None:
            self._segment, self._offset = last.segment.number, last.end
            self._move(last.segment, last.commit_offset, last.commit, sources)

    def checkpoint_at(self, stop: Stop, sources: frozenset[int] | None) -> SourceCheckpoint:
        """The position at a place ahead of this cursor."""
        segment = self._view.segment(stop.segment)
        commit = self._view.commit_before(segment, stop.commit_offset)
        return self._view.checkpoint(commit, self._open_snapshots(commit, sources))


class _Run:
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

    def read(self, bytes_max: int, sources: frozenset[int] | None, to: Pair | None) -> None:
        """Read whole groups until they make `bytes_max`, reach `to`, or the segment's limit."""
        groups = 0
        group: list[tuple[int, int]] = []
        with FrameReader(self._file, self._limit, with_bodies=True) as reader:
            for offset, header in reader.frames(self.offset, self._limit):
                if header.kind != COMMIT:
                    if sources is None or header.source_id in sources:
                        reader.check_body(offset, header)
                        _join(group, offset, offset + header.frame_bytes)
                    continue
                _join(group, offset, offset + header.header_bytes)
                self._take(group, offset, header)
                group = []
                groups += 1
                if self.bytes >= bytes_max or groups == GROUPS_A_READ_MAX or (to and reached_by(header) >= to):
                    self.is_full = True
                    return
            if self.offset != self._limit:
                raise Corrupt(f"{reader.place(self.offset)}: the group that starts here has no commit frame")

    def _take(self, group: list[tuple[int, int]], commit_offset: int, header: Header) -> None:
        for start, end in group:
            _join(self._pieces, start, end)
            self.bytes += end - start
        self.offset, self.commit, self.commit_offset = commit_offset + header.frame_bytes, header, commit_offset


def _join(pieces: list[tuple[int, int]], start: int, end: int) -> None:
    """Add a piece, as part of the last one where it follows that."""
    if pieces and pieces[-1][1] == start:
        pieces[-1] = pieces[-1][0], end
    else:
        pieces.append((start, end))
