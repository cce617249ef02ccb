"""The log as its readers see it: segments, indexes, open files, and the one published end. Safe for any thread.

The writer puts a whole new tuple or `End` in the place of the old one; a reader takes the published end first and then
the segments, so that it finds every segment up to that end, retention aside.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from databus.core import BUS_SEQ_MIN, Corrupt, PositionPurged, SourceCheckpoint
from databus.relay._index import SparseIndex
from databus.relay._reader import FrameReader
from databus.relay._schemas import SchemaStore
from databus.relay._segment import End, Segment, SegmentFile
from databus.sources import Identity
from databus.wire import Commit

_FILES_KEPT_MAX: Final = 32
_INDEXES_KEPT_MAX: Final = 32


class LogView:
    """What cursors share. `segments` and `published` are replaced by the writer, never changed in place.

    offset: how long the open segment is now.
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
    ) -> None:
        self.uuid = uuid
        self.physical = physical
        self.identity = identity
        self.schemas = schemas
        self.segments = segments
        self.published = published
        self.index_bytes_every = index_bytes_every
        self.open_index = SparseIndex(segments[-1].number, index_bytes_every, offset)
        self._files: OrderedDict[int, SegmentFile] = OrderedDict()
        self._indexes: OrderedDict[int, SparseIndex] = OrderedDict()
        self._lock = threading.Lock()
        self._index_lock = threading.RLock()  # guards the sealed segments' indexes, here and on the disk
        self._reopened = 0  # how often segments were deleted or opened again, so that their indexes are others'

    def checkpoint(self, commit: Commit, snapshots: Mapping[str, int] | None = None) -> SourceCheckpoint:
        """The position after `commit`, as a consumer's checkpoint with these snapshots open."""
        is_exact = commit.continues or commit.seq >= BUS_SEQ_MIN
        return SourceCheckpoint(
            uuid=self.identity.uuid,
            scn=commit.scn,
            seq=commit.seq if is_exact else None,
            txid=commit.txid,
            ts_us=commit.commit_us,
            log=self.uuid if is_exact or snapshots else None,
            snapshots=snapshots or {},
        )

    def segment(self, number: int) -> Segment:
        """The segment of that number. Raises `PositionPurged` if retention has removed it."""
        segments = self.segments
        at = number - segments[0].number
        if at < 0:
            raise PositionPurged(
                f"{self.physical}: the log no longer holds what comes next; the oldest that it holds follows SCN "
                f"{segments[0].header.before.commit.scn}. Start from `earliest`, or from a new snapshot"
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
            found = self._files.get(segment.number)
            if found is not None:
                self._files.move_to_end(segment.number)
                return found
            try:
                found = SegmentFile(segment.path, os.O_RDONLY)
            except FileNotFoundError:
                raise PositionPurged(f"{segment.path}: retention has removed this segment") from None
            self._files[segment.number] = found
            if len(self._files) > _FILES_KEPT_MAX:
                self._files.popitem(last=False)
            return found

    def forget(self, segment: Segment) -> None:
        """Let go of a segment's file, and of its index, on the disk too; who is reading it keeps its own hold.

        It is not among `segments` any more, or `reopening`: else a reader may make the index again.
        """
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
                index.front = SparseIndex.build(segment, self.file(segment), index.covers_from, self.index_bytes_every)
            return index
        with self._index_lock:
            index, seen, sealed_bytes = self._indexes.get(segment.number), self._reopened, segment.sealed_bytes
        if index is None and sealed_bytes is not None:
            index = self._load_index(segment, sealed_bytes, seen)
        # a segment that is being opened again has none for a moment: it is read from its start
        return index or SparseIndex(segment.number, self.index_bytes_every, segment.first_offset)

    def _load_index(self, segment: Segment, sealed_bytes: int, seen: int) -> SparseIndex | None:
        index = SparseIndex.load(segment, self.index_bytes_every)
        is_made = index is None
        try:
            index = index or SparseIndex.build(segment, self.file(segment), sealed_bytes, self.index_bytes_every)
        except Corrupt:
            if self._reopened == seen:
                raise
            return None
        with self._index_lock:
            if self._reopened == seen and segment in self.segments:
                self.keep_index(segment, index, save=is_made)
        return index

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
