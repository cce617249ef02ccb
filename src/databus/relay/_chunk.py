"""Chunks: runs of whole groups that were published last, read and checked once, and held in memory for many readers."""

import os
from collections.abc import Hashable
from typing import Final, NamedTuple

from databus.core import CorruptData, Pair, SourceCheckpoint
from databus.log import Cursor, End, FrameReader, SegmentFile, Span, scan
from databus.wire import Commit, Frame, done_by, frames_in

CHUNK_BYTES: Final = 256 << 10
"""A chunk ends with the group that reaches this."""
OVERHEAD_BYTES: Final = 4 << 10
"""What a chunk takes beside its content, roughly: small ones are mostly that."""

_COMMIT_ID: Final = 0  # stands in place of a source's id; none has it

State = tuple[tuple[str, int], ...]
"""The snapshots that are open for a consumer, as something to compare."""


class Made(NamedTuple):
    """A chunk as followers with the same parameters are sent it."""

    content: bytes
    sources: frozenset[int] | None
    """Whose frames it is made of, None for all."""


class Piece(NamedTuple):
    """What a chunk is to all who are sent the same and have the same snapshots open: buffers to send, their bytes, and
    where who has been sent them stands.
    """

    buffers: tuple[bytes, ...]
    bytes: int
    position: SourceCheckpoint
    state: State


class TailChunk:
    """Some groups in memory.

    start: (segment, offset) of the first; end: of the last. reached: up to where all rows are done behind it. frames:
    (source id, start, end) of each frame in `content`, 0 for a commit frame's. made, pieces: what was made of it, by
    what was wanted. bytes: all that it holds.
    """

    __slots__ = ("_cut", "bytes", "content", "end", "file", "frames", "made", "pieces", "reached", "start")

    def __init__(
        self, file: SegmentFile, start: tuple[int, int], end: End, frames: list[tuple[int, int, int]], content: bytes
    ) -> None:
        self.file = file
        self.start = start
        self.end = end
        self.reached: Pair = done_by(end.commit)
        self.frames = frames
        self.content = content
        self.made: dict[Hashable, Made] = {}
        self.pieces: dict[Hashable, Piece] = {}
        self.bytes = len(content) + OVERHEAD_BYTES
        self._cut: list[tuple[int, Frame]] | None = None

    @property
    def cut(self) -> list[tuple[int, Frame]]:
        """Its frames, for filters: decoded, and their keys hashed, once for all. Kept until `let_go_of_frames`."""
        frames = self._cut
        if frames is None:
            frames = self._cut = list(frames_in(self.content, f"{self.file.path} at {self.start[1]}"))
        return frames

    def let_go_of_frames(self) -> None:
        """Who comes later cuts it again: small frames take more memory than their bytes."""
        self._cut = None

    def selected(self, sources: frozenset[int] | None) -> list[tuple[int, int]]:
        """Where in `content` the frames of `sources` are, and the commit frames: as few stretches as there are."""
        if sources is None:
            return [(0, len(self.content))]
        stretches: list[tuple[int, int]] = []
        for source_id, start, end in self.frames:
            if source_id != _COMMIT_ID and source_id not in sources:
                continue
            if stretches and stretches[-1][1] == start:
                stretches[-1] = stretches[-1][0], end
            else:
                stretches.append((start, end))
        return stretches

    def content_of(self, sources: frozenset[int] | None) -> bytes:
        """The frames of `sources` and the commit frames."""
        if sources is None:
            return self.content
        view = memoryview(self.content)
        return b"".join(view[start:end] for start, end in self.selected(sources))

    def spans_behind(self, sources: frozenset[int] | None, bytes_done: int) -> list[Span]:
        """What is left of `content_of` behind so many bytes, as it stands in the log."""
        spans = []
        for start, end in self.selected(sources):
            skipped = min(bytes_done, end - start)
            bytes_done -= skipped
            if start + skipped < end:
                spans.append(Span(self.file, self.start[1] + start + skipped, end - start - skipped))
        return spans


def read_chunk(cursor: Cursor) -> TailChunk | None:
    """What was published behind `cursor`, checked, as far as a chunk goes, and move the cursor there; None if nothing
    was. Raises as `Cursor.read` does.
    """
    view = cursor.view
    stretch = cursor.advance(view.published)
    if stretch is None:
        return None
    segment, limit = stretch
    number, start = cursor.place
    file = view.file(segment)
    frames: list[tuple[int, int, int]] = []
    last = None
    with FrameReader(file, limit, with_bodies=True) as reader:
        for last in scan(reader, start, limit, None, check_bodies=True):
            for at, header in (*last.frames, (last.commit_offset, last.commit)):
                frames.append((header.source_id, at - start, at - start + header.frame_bytes))
            if last.end - start >= CHUNK_BYTES:
                break
    if last is None:
        return None
    content = os.pread(file.fd, last.end - start, start)
    if len(content) < last.end - start:
        raise CorruptData(f"{file.path} at {start}: the file ends {last.end - start - len(content)} bytes too early")
    view.verified.note(number, start, last.end)
    commit = Commit.from_header(last.commit, f"{file.path} at {last.commit_offset}")
    end = End(number, last.end, last.commit_offset, commit, commit.commit_us)
    cursor.go(end.place, cursor.position)
    return TailChunk(file, (number, start), end, frames, content)
