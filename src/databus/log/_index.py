"""The sparse index of a segment: where in it a pair or a time is, to within `index_bytes_every`.

An entry stands for a group's start and says what was before it, so that a search never has to step back:
(offset, SCN, `_seq`, latest commit time, offset of the commit frame before). The index of the open segment grows in
memory; a sealed segment's is a file beside it, written without haste: a reader that finds it missing or damaged makes
it from the segment's headers.

  0  magic b"DBX1", version u32, CRC-32C u32 (over what follows), entries u32, segment u64, its length u64, log's uuid
     (16 bytes), then the entries, five i64 each, little-endian
"""

import struct
import sys
import uuid
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import Final, NamedTuple

from crc32c import crc32c

from databus.core import DiskFull, Pair, ServiceUnavailable
from databus.disk import replace_file
from databus.log._reader import FrameReader
from databus.log._segment import Segment, SegmentFile

MAGIC: Final = b"DBX1"
VERSION: Final = 1
_FIXED: Final = struct.Struct("<4sIII")
_KEY: Final = struct.Struct("<QQ16s")
_ENTRY: Final = struct.Struct("=5q")
_WIDTH: Final = 5


class IndexEntry(NamedTuple):
    """A group's start, and what was before it."""

    offset: int
    scn: int
    seq: int
    max_commit_us: int
    commit_offset: int
    """Where the commit frame before it begins; -1 where that is in the segment before."""


class SparseIndex:
    """Entries of segment `number`, ascending. One thread adds, any thread searches.

    covers_from: groups before this offset are covered by `front`, which is made when it is first needed (a segment that
    was opened again to go on writing it).
    """

    def __init__(self, number: int, bytes_every: int, covers_from: int) -> None:
        self.number = number
        self._bytes_every = bytes_every
        self._numbers = array("q")
        self._last_offset = covers_from
        self.covers_from = covers_from
        self.front: SparseIndex | None = None

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def __getitem__(self, i: int) -> IndexEntry:
        return IndexEntry(*self._numbers[i * _WIDTH : (i + 1) * _WIDTH])

    def note(self, offset: int, before: Pair, max_commit_us: int, commit_offset: int) -> None:
        """A group starts at `offset`; remember it if the last one remembered is far enough behind."""
        if offset - self._last_offset >= self._bytes_every:
            # one call, so that a reader in another thread sees the whole entry or none of it
            self._numbers.frombytes(_ENTRY.pack(offset, *before, max_commit_us, commit_offset))
            self._last_offset = offset

    def cut_back(self, offset: int) -> None:
        """Groups from `offset` on are gone; no reader has seen them."""
        count = self._count_to(offset)
        self._numbers = self._numbers[: count * _WIDTH]
        self._last_offset = self[count - 1].offset if count else self.covers_from

    def before_pair(self, pair: Pair, limit: int) -> IndexEntry | None:
        """The last entry up to `limit` with nothing above `pair` before it; None for the segment's start."""
        at = bisect_right(range(self._count_to(limit)), pair, key=lambda i: (self[i].scn, self[i].seq))
        if at == 0 and self.front is not None:
            return self.front.before_pair(pair, limit)
        return self[at - 1] if at else None

    def before_offset(self, offset: int) -> IndexEntry | None:
        """The last entry up to `offset`; None where none is."""
        count = self._count_to(offset + 1)
        if count == 0 and self.front is not None:
            return self.front.before_offset(offset)
        return self[count - 1] if count else None

    def before_time(self, time_us: int, limit: int) -> IndexEntry | None:
        """The last entry up to `limit` with no commit at or after `time_us` before it; None for the segment's start."""
        at = bisect_left(range(self._count_to(limit)), time_us, key=lambda i: self[i].max_commit_us)
        if at == 0 and self.front is not None:
            return self.front.before_time(time_us, limit)
        return self[at - 1] if at else None

    def _count_to(self, limit: int) -> int:
        """How many entries stand for groups before `limit`: those behind it are not published yet."""
        return bisect_left(range(len(self)), limit, key=lambda i: self[i].offset)

    def whole(self, first_offset: int) -> "SparseIndex | None":
        """One index of the whole segment that begins at `first_offset`; None if `front` is needed and was not made."""
        if self.covers_from <= first_offset:
            return self
        if self.front is None:
            return None
        whole = SparseIndex(self.number, self._bytes_every, first_offset)
        whole._numbers = self.front._numbers + self._numbers  # noqa: SLF001 - of the same class
        return whole

    def save(self, segment: Segment) -> None:
        """Write the index of a sealed segment, one thread at a time. If that fails, a reader that needs it makes it."""
        key = _KEY.pack(segment.number, segment.sealed_bytes or 0, uuid.UUID(segment.header.log).bytes)
        entries = self._numbers.tobytes()
        fixed = _FIXED.pack(MAGIC, VERSION, crc32c(entries, crc32c(key)), len(self))
        with suppress(DiskFull, ServiceUnavailable):
            replace_file(segment.index_path(), [fixed, key, entries], durable=False)

    @classmethod
    def load(cls, segment: Segment, bytes_every: int) -> "SparseIndex | None":
        """The index that `save` wrote for this very segment; None if the file is missing or damaged."""
        try:
            written = segment.index_path().read_bytes()
        except FileNotFoundError:
            return None
        if len(written) < _FIXED.size + _KEY.size:
            return None
        magic, version, crc, count = _FIXED.unpack_from(written)
        key = _KEY.pack(segment.number, segment.sealed_bytes or 0, uuid.UUID(segment.header.log).bytes)
        entries = written[_FIXED.size + _KEY.size :]
        is_ours = magic == MAGIC and version == VERSION and written[_FIXED.size : _FIXED.size + _KEY.size] == key
        if not is_ours or len(entries) != count * _ENTRY.size or crc32c(entries, crc32c(key)) != crc:
            return None
        index = cls(segment.number, bytes_every, segment.first_offset)
        index._numbers.frombytes(entries)
        return index

    @classmethod
    def build(cls, segment: Segment, file: SegmentFile, until: int, bytes_every: int) -> "SparseIndex":
        """Make the index from the headers of the groups up to `until`.

        Raises `CorruptData` where they are not whole.
        """
        index = cls(segment.number, bytes_every, segment.first_offset)
        before = segment.header.before
        pair, max_commit_us, commit_offset = before.commit.pair, before.max_commit_us, -1
        with FrameReader(file, until, with_bodies=False) as reader:
            for group in reader.groups(segment.first_offset):
                index.note(group.offset, pair, max_commit_us, commit_offset)
                pair, commit_offset = group.commit.last, group.commit_offset
                max_commit_us = max(max_commit_us, group.commit.commit_us)
        return index


assert sys.byteorder == "little"  # noqa: S101 - entries are copied to and from memory as they are
