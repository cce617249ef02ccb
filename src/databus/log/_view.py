"""The log as its readers see it: segments, indexes, open files, and the one published end. Safe for any thread.

The writer puts a whole new tuple or `End` in the place of the old one; a reader takes the published end first and then
the segments, so that it finds every segment up to that end, retention aside.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from databus.core import Contains, CorruptData, Identity, Pair, PositionPurged, SourceCheckpoint
from databus.log._index import SparseIndex
from databus.log._reader import FrameReader
from databus.log._schemas import SchemaStore
from databus.log._segment import End, Segment, SegmentFile
from databus.wire import Commit, done_by, position_after, position_at

_FILES_KEPT_MAX: Final = 32
_INDEXES_KEPT_MAX: Final = 32
STRETCHES_MAX: Final = 1024  # of all segments; the oldest knowledge goes first


class Verified:
    """What this process has read against its checksums: stretches (start, end) of segments, each from the start of a
    group to the end of one. For any thread.

    One reader pays for that; all who come behind it are given the same stretch without another look at it. Clients
    check every frame again, so bytes that go wrong later are found there.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: dict[int, list[tuple[int, int]]] = {}

    def note(self, segment: int, start: int, end: int) -> None:
        """A stretch was read and is good."""
        if end <= start:
            return
        with self._lock:
            apart = []
            for stretch in self._stretches.get(segment, ()):
                if stretch[1] < start or stretch[0] > end:
                    apart.append(stretch)
                else:
                    start, end = min(start, stretch[0]), max(end, stretch[1])
            self._stretches[segment] = sorted([*apart, (start, end)])
            while sum(map(len, self._stretches.values())) > STRETCHES_MAX:
                self._stretches.pop(min(self._stretches))

    def end(self, segment: int, offset: int) -> int:
        """Up to where everything from `offset`, between two groups, is known to be good: `offset` if nothing is."""
        with self._lock:
            return next((end for start, end in self._stretches.get(segment, ()) if start <= offset < end), offset)

    def forget(self, segment: int) -> None:
        """The segment is gone, or was cut back."""
        with self._lock:
            self._stretches.pop(segment, None)


class LogView:
    """What cursors share. `segments` and `published` are replaced by the writer, never changed in place.

    offset: how long the open segment is now. contains: how the source compares transactions with its own positions.
    """

    def __init__(
        self,
        *,
        uuid: str,
        physical: str,
        identity: Identity,
        schemas: SchemaStore,
        segments: tuple[Segment, ...],
        offset: int,
        published: End,
        index_bytes_every: int,
        contains: Contains | None = None,
    ) -> None:
        self.uuid = uuid
        self.physical = physical
        self.identity = identity
        self._contains = contains
        self.schemas = schemas
        self.segments = segments
        self.published = published
        self.index_bytes_every = index_bytes_every
        self.open_index = SparseIndex(segments[-1].number, index_bytes_every, offset)
        self.verified = Verified()
        self._files: OrderedDict[int, SegmentFile] = OrderedDict()
        self._indexes: OrderedDict[int, SparseIndex] = OrderedDict()
        self._lock = threading.Lock()
        self._index_lock = threading.RLock()  # guards the sealed segments' indexes, here and on the disk
        self._building = threading.Lock()  # one walk for an index at a time
        self._reopened = 0  # how often segments were deleted or opened again, so that their indexes are others'

    def checkpoint(self, commit: Commit) -> SourceCheckpoint:
        """The position after `commit` of a consumer that begins there: of what was open it was given no begin."""
        return position_at(
            commit.pair,
            continues=commit.continues,
            uuid=self.identity.uuid,
            txid=commit.txid,
            ts_us=commit.commit_us,
            log=self.uuid,
            snapshots={},
        )

    def checkpoint_after(
        self, commit: Commit, before: SourceCheckpoint, sources: frozenset[int] | None
    ) -> SourceCheckpoint:
        """The position of a consumer that stood at `before` and has been given everything of `sources` up to
        `commit`.
        """
        if not commit.snapshots or sources is None:
            return position_after(commit, before, uuid=self.identity.uuid, log=self.uuid)
        ids = self.schemas.ids()

        def is_given(name: str) -> bool:
            return ids.get(name) in sources

        return position_after(commit, before, uuid=self.identity.uuid, log=self.uuid, is_given=is_given)

    def settled(self, place: tuple[int, int]) -> tuple[int, int]:
        """The same place, at the start of the segment that follows where a segment ends there."""
        number, offset = place
        segments = self.segments
        at = number - segments[0].number
        if 0 <= at < len(segments) - 1 and segments[at].sealed_bytes == offset:
            return number + 1, segments[at + 1].first_offset
        return place

    def bytes_behind(self, place: tuple[int, int]) -> int:
        """Roughly how much is published behind `place`."""
        published = self.published
        if place >= published.place:
            return 0
        number, offset = place
        if number == published.segment:
            return max(published.offset - offset, 0)
        between = (
            segment.sealed_bytes or 0 for segment in self.segments if number <= segment.number < published.segment
        )
        return max(sum(between) - offset, 0) + published.offset

    def leap(
        self, segment: Segment, offset: int, limit: int, published: End, bytes_max: int, to: Pair | None
    ) -> End | None:
        """The furthest known end of a group of `segment`, at most `bytes_max` behind `offset` and not behind the group
        that reaches `to`, if everything up to it has been verified; else None.
        """
        limit = min(limit, self.verified.end(segment.number, offset))
        if limit <= offset:
            return None
        end = None
        if limit - offset <= bytes_max:
            if (segment.number, limit) == published.place:
                end = published
            elif limit == segment.sealed_bytes:
                end = self.segment(segment.number + 1).header.before
        if end is None or _is_beyond(end, to):
            end = self._known_end(segment, offset, min(offset + bytes_max, limit), to)
        return end

    def _known_end(self, segment: Segment, offset: int, limit: int, to: Pair | None) -> End | None:
        """The last end of a group in (offset, limit] that the index knows."""
        index = self._index_at_hand(segment)
        if index is None:
            return None
        entry = index.before_offset(limit) if to is None else index.before_pair(to, limit)
        if entry is None or entry.offset <= offset or entry.commit_offset < 0:
            return None
        commit = self.commit_before(segment, entry.commit_offset)
        end = End(segment.number, entry.offset, entry.commit_offset, commit, entry.max_commit_us)
        return None if _is_beyond(end, to) else end

    def contains(self, commit: Commit, txid: str) -> bool | None:
        """Whether the transaction is before the source's position after `commit`; None where that is unknown."""
        if self._contains is None or not commit.position:
            return None
        return self._contains(self.identity.scheme, commit.position, txid)

    def segment(self, number: int) -> Segment:
        """The segment of that number. Raises `PositionPurged` if retention has removed it."""
        segments = self.segments
        at = number - segments[0].number
        if at < 0:
            raise PositionPurged(
                f"{self.physical}: the log no longer holds what comes next; the oldest that it holds follows SCN "
                f"{segments[0].header.before.commit.scn}. Start from `earliest`, or from a new snapshot",
                physical=self.physical,
                oldest=segments[0].header.before.commit.scn,
            )
        return segments[at]

    def limit(self, segment: Segment, published: End) -> int:
        """Up to where `segment` may be read, as of `published`."""
        if segment.number < published.segment and segment.sealed_bytes is not None:
            return segment.sealed_bytes
        return (
            max(published.offset, segment.first_offset) if segment.number == published.segment else segment.first_offset
        )

    def file(self, segment: Segment) -> SegmentFile:
        """The segment's open file. Raises `PositionPurged` if retention has just removed it."""
        with self._lock:
            file = self._files.get(segment.number)
            if file is not None:
                self._files.move_to_end(segment.number)
                return file
            try:
                file = SegmentFile(segment.path, os.O_RDONLY)
            except FileNotFoundError:
                message = f"{segment.path}: retention has removed this segment"
                raise PositionPurged(message, physical=self.physical) from None
            self._files[segment.number] = file
            if len(self._files) > _FILES_KEPT_MAX:
                self._files.popitem(last=False)
            return file

    def forget(self, segment: Segment) -> None:
        """Let go of a segment's file, and of its index, on the disk too; who is reading it keeps its own hold.

        It is not among `segments` any more, or `reopening`: else a reader may make the index again.
        """
        self.verified.forget(segment.number)
        with self._lock:
            self._files.pop(segment.number, None)
        with self._index_lock:
            self._indexes.pop(segment.number, None)
            segment.index_path().unlink(missing_ok=True)

    @contextmanager
    def reopening(self) -> Iterator[None]:
        """While the writer deletes segments or opens one again: indexes that readers are making are not kept."""
        with self._index_lock:
            self._reopened += 1
            yield

    def index(self, segment: Segment) -> SparseIndex:
        """The segment's index, loaded or made where need be."""
        index: SparseIndex | None = self.open_index
        if index is not None and index.number == segment.number:
            if index.covers_from > segment.first_offset and index.front is None:
                self._build_front(index, segment)
            return index
        with self._index_lock:
            index, seen, sealed_bytes = self._indexes.get(segment.number), self._reopened, segment.sealed_bytes
        if index is None and sealed_bytes is not None:
            index = self._load_index(segment, sealed_bytes, seen)
        # a segment that is being opened again has none for a moment: it is read from its start
        return index or SparseIndex(segment.number, self.index_bytes_every, segment.first_offset)

    def _build_front(self, index: SparseIndex, segment: Segment) -> None:
        """Walk over what the open segment held when it was opened again: seconds, once for all who come meanwhile."""
        with self._building:
            if index.front is None:
                index.front = SparseIndex.build(segment, self.file(segment), index.covers_from, self.index_bytes_every)

    def _index_at_hand(self, segment: Segment) -> SparseIndex | None:
        """The segment's index as far as it costs no walk through the segment."""
        if self.open_index.number == segment.number:
            return self.open_index
        with self._index_lock:
            index, seen, sealed_bytes = self._indexes.get(segment.number), self._reopened, segment.sealed_bytes
        if index is None and sealed_bytes is not None:
            index = SparseIndex.load(segment, self.index_bytes_every)
            if index is not None:
                self._keep_if_current(segment, index, seen, save=False)
        return index

    def _load_index(self, segment: Segment, sealed_bytes: int, seen: int) -> SparseIndex | None:
        index = SparseIndex.load(segment, self.index_bytes_every)
        if index is not None:
            self._keep_if_current(segment, index, seen, save=False)
            return index
        with self._building:
            with self._index_lock:
                index = self._indexes.get(segment.number)
            if index is not None:
                return index  # somebody else has made it meanwhile
            try:
                index = SparseIndex.build(segment, self.file(segment), sealed_bytes, self.index_bytes_every)
            except CorruptData:
                if self._reopened == seen:
                    raise
                return None
            self._keep_if_current(segment, index, seen, save=True)
        return index

    def _keep_if_current(self, segment: Segment, index: SparseIndex, seen: int, *, save: bool) -> None:
        with self._index_lock:
            if self._reopened == seen and segment in self.segments:
                self.keep_index(segment, index, save=save)

    def keep_index(self, segment: Segment, index: SparseIndex, *, save: bool) -> None:
        """Keep the index of a sealed segment at hand, and on the disk."""
        with self._index_lock:
            self._indexes[segment.number] = index
            self._indexes.move_to_end(segment.number)
            if len(self._indexes) > _INDEXES_KEPT_MAX:
                self._indexes.popitem(last=False)
            if save:
                index.save(segment)

    def commit_before(self, segment: Segment, commit_offset: int) -> Commit:
        """The commit frame at `commit_offset`; for -1 what the segment's header says was before it."""
        if commit_offset < 0:
            return segment.header.before.commit
        with FrameReader(self.file(segment), self.limit(segment, self.published), with_bodies=False) as reader:
            return Commit.from_header(reader.header(commit_offset), reader.place(commit_offset))


def _is_beyond(end: End, to: Pair | None) -> bool:
    """Whether a group before that end may have reached `to`."""
    return to is not None and done_by(end.commit) > to
