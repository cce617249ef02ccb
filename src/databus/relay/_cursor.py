"""Cursors: places between the groups of a log, from which bytes are served as they are.

A cursor moves over whole groups, never past the published end. What it hands out are spans of the log's files, whose
checksums it has checked and in which it has decoded nothing. It holds no file between two reads: a consumer that
stands still costs nothing, and finds out with 410 if retention has passed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from databus.core import SEQ_DONE, Corrupt, Pair, SourceCheckpoint
from databus.relay._reader import FrameReader
from databus.relay._segment import End, Segment, SegmentFile
from databus.relay._view import LogView
from databus.wire import COMMIT, Commit, Header

GROUPS_A_READ_MAX: Final = 8192
_SPLIT_CANDIDATES_MAX: Final = 4096


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


@dataclass(frozen=True, slots=True)
class Measure:
    """What lies between a cursor and `end`: rows, bytes and groups as they would be served.

    splits: positions between, in order, that cut it into ranges of about as many bytes.
    """

    end: SourceCheckpoint
    rows: int
    bytes: int
    groups: int
    splits: tuple[SourceCheckpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class _Stop:
    """A place behind a group, while measuring."""

    segment: int
    offset: int
    commit_offset: int
    bytes: int


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
            self._segment += 1
            self._offset = self._view.segment(self._segment).first_offset
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
                if not spans and not run.spans:
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
    ) -> Measure:
        """How far the next whole groups go that fit, at least one if there is any, from headers only.

        Moves the cursor there. Raises as `read` does.
        """
        published = self._view.published
        start = self.copy()
        stops: list[_Stop] = []
        rows = bytes_ = groups = 0
        last: tuple[Segment, int, Header] | None = None
        is_full = False
        every = 1
        while not is_full and not _passed(last, to, self) and (found := self._advance(published)) is not None:
            segment, limit = found
            with FrameReader(self._view.file(segment), limit, with_bodies=False) as reader:
                for group in reader.groups(self._offset):
                    group_rows, group_bytes = _size_of(reader, group.offset, group.end, sources)
                    if groups and (
                        (rows_max is not None and rows + group_rows > rows_max)
                        or (bytes_max is not None and bytes_ + group_bytes > bytes_max)
                    ):
                        is_full = True
                        break
                    rows, bytes_, groups = rows + group_rows, bytes_ + group_bytes, groups + 1
                    last = segment, group.commit_offset, group.commit
                    self._offset = group.end
                    if partitions > 1 and groups % every == 0:
                        stops.append(_Stop(segment.number, group.end, group.commit_offset, bytes_))
                        if len(stops) >= _SPLIT_CANDIDATES_MAX:
                            stops, every = stops[1::2], every * 2
                    if _passed(last, to, self):
                        break
        if last is not None:
            self._move(*last, sources)
        splits = tuple(start._checkpoint_at(stop, sources) for stop in _splits(stops, bytes_, partitions))
        return Measure(self.position, rows, bytes_, groups, splits)

    def _checkpoint_at(self, stop: _Stop, sources: frozenset[int] | None) -> SourceCheckpoint:
        segment = self._view.segment(stop.segment)
        commit = self._view.commit_before(segment, stop.commit_offset)
        return self._view.checkpoint(commit, self._open_snapshots(commit, sources))


def _passed(last: tuple[Segment, int, Header] | None, to: Pair | None, cursor: Cursor) -> bool:
    if to is None:
        return False
    return cursor.has_reached(to) if last is None else reached_by(last[2]) >= to


def _size_of(reader: FrameReader, offset: int, end: int, sources: frozenset[int] | None) -> tuple[int, int]:
    rows = bytes_ = 0
    for _, header in reader.frames(offset, end):
        if header.kind == COMMIT:
            bytes_ += header.frame_bytes
        elif sources is None or header.source_id in sources:
            rows += header.rows
            bytes_ += header.frame_bytes
    return rows, bytes_


def _splits(stops: list[_Stop], bytes_total: int, partitions: int) -> list[_Stop]:
    """The stops nearest behind each n-th part of the bytes, the end itself left out."""
    chosen: list[_Stop] = []
    wanted = 1
    for stop in stops:
        if wanted < partitions and stop.bytes < bytes_total and stop.bytes * partitions >= bytes_total * wanted:
            chosen.append(stop)
            while wanted < partitions and stop.bytes * partitions >= bytes_total * wanted:
                wanted += 1
    return chosen


class _Run:
    """One read inside one segment. On an error, what was read of whole groups before it stands."""

    def __init__(self, file: SegmentFile, offset: int, limit: int) -> None:
        self._file = file
        self._limit = limit
        self.offset = offset  # behind the last whole group read
        self.spans: list[Span] = []
        self.bytes = 0
        self.commit: Header | None = None
        self.commit_offset = -1
        self.is_full = False

    def read(self, bytes_max: int, sources: frozenset[int] | None, to: Pair | None) -> None:
        """Read whole groups until they make `bytes_max`, reach `to`, or the segment's limit."""
        merged_start = merged_end = -1  # the run of wanted bytes that is growing
        pieces: list[tuple[int, int]] = []  # finished runs of whole groups
        group: list[tuple[int, int]] = []  # wanted frames of the group being read
        groups = 0
        position = self.offset
        try:
            with FrameReader(self._file, self._limit, with_bodies=True) as reader:
                while position < self._limit:
                    header = reader.header(position)
                    end = position + header.frame_bytes
                    is_commit = header.kind == COMMIT
                    if is_commit or sources is None or header.source_id in sources:
                        if header.body_bytes:
                            reader.check_body(position, header)
                        group.append((position, end))
                    if is_commit:
                        for start, stop in group:
                            if start == merged_end:
                                merged_end = stop
                            else:
                                if merged_end > merged_start:
                                    pieces.append((merged_start, merged_end))
                                merged_start, merged_end = start, stop
                            self.bytes += stop - start
                        group.clear()
                        groups += 1
                        self.commit, self.commit_offset, self.offset = header, position, end
                        if self.bytes >= bytes_max or groups >= GROUPS_A_READ_MAX or (to and reached_by(header) >= to):
                            self.is_full = True
                            return
                    position = end
                if self.offset != self._limit:
                    raise Corrupt(f"{reader.place(self.offset)}: the group that starts here has no commit frame")
        finally:
            if merged_end > merged_start:
                pieces.append((merged_start, merged_end))
            self.spans = [Span(self._file, start, stop - start) for start, stop in pieces]
