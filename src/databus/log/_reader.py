"""Reading frames of one segment: headers, and bodies against their checksums, in pieces of bounded size.

Bytes are read with `pread` and not through a memory map: a bad disk block is then an error that names the segment,
where a map would kill the process, and with it every other consumer's stream.
"""

import os
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, Self

from crc32c import crc32c

from databus.core import CorruptData
from databus.log._segment import SegmentFile
from databus.wire import COMMIT, HEADER_BYTES_MIN, Header, header_length, unpack_header, whole_commit

BUFFER_BYTES: Final = 512 << 10  # stays in the processor's cache between the copy and the checksum
_HEADERS_BYTES: Final = 32 << 10  # what is read at once where bodies are skipped
_BUFFERS_KEPT_MAX: Final = 8

_buffers: deque[memoryview] = deque(maxlen=_BUFFERS_KEPT_MAX)


class GroupSpan(NamedTuple):
    """A group in a segment, by its headers: where it starts, where its commit frame starts, and that frame's header."""

    offset: int
    commit_offset: int
    commit: Header


class FrameReader:
    """Reads the frames of a segment from offset to offset, never past `limit`. A context manager; one thread.

    with_bodies: whether all bodies will be asked for as well, which decides how much is read at once. Where only some
    are, what lies between them is passed over unread, a little behind each header apart.
    """

    def __init__(self, file: SegmentFile, limit: int, *, with_bodies: bool) -> None:
        self._file = file
        self._limit = limit
        self._ahead_bytes = BUFFER_BYTES if with_bodies else _HEADERS_BYTES
        try:
            self._buffer = _buffers.pop()
        except IndexError:
            self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = 0  # the file's offset of the buffer's first byte
        self._end = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _buffers.append(self._buffer)

    def place(self, offset: int) -> str:
        """How an error names an offset of this segment."""
        return f"{self._file.path} at {offset}"

    def _fill(self, offset: int, size: int, more: int = 0) -> None:
        """Have at least `size` bytes from `offset` in the buffer, and of `more` what fits into it."""
        wanted = min(max(size, self._ahead_bytes, min(more, BUFFER_BYTES)), self._limit - offset)
        if wanted < size:
            raise CorruptData(f"{self.place(offset)}: a frame runs past the end of the groups at {self._limit}")
        length = 0
        while length < size:
            try:
                count = os.preadv(self._file.fd, [self._buffer[length:wanted]], offset + length)
            except OSError as error:
                raise CorruptData(f"{self.place(offset + length)}: {error.strerror}") from error
            if count == 0:
                raise CorruptData(f"{self.place(offset + length)}: the file ends here; it had {self._limit} bytes")
            length += count
        self._start, self._end = offset, offset + length

    def header(self, offset: int) -> Header:
        """The header at `offset`; that of a commit frame with all of its position, whose body was checked for that.

        Raises `CorruptData` naming segment and offset, as everything here does, and `UnsupportedFeature` for a frame of
        a form that this version of databus does not read.
        """
        for size in (HEADER_BYTES_MIN, 0):
            if size == 0:
                size = header_length(self._buffer[offset - self._start :], self.place(offset))  # noqa: PLW2901
            if not self._start <= offset <= offset + size <= self._end:
                self._fill(offset, size)
        header = unpack_header(self._buffer[offset - self._start : self._end - self._start], self.place(offset))
        if offset + header.frame_bytes > self._limit:
            raise CorruptData(f"{self.place(offset)}: a frame runs past the end of the groups at {self._limit}")
        if header.kind == COMMIT and header.body_bytes:
            return whole_commit(header, self.body(offset, header))
        return header

    def check_body(self, offset: int, header: Header) -> None:
        """Read the body of the frame at `offset` against its checksum."""
        position = offset + header.header_bytes
        end = offset + header.frame_bytes
        seen = 0
        while position < end:
            if not self._start <= position < self._end:
                self._fill(position, 1, end - position)
            until = min(end, self._end)
            seen = crc32c(self._buffer[position - self._start : until - self._start], seen)
            position = until
        if seen != header.body_crc:
            raise CorruptData(
                f"{self.place(offset)}: the body's checksum is {seen:08x}, expected {header.body_crc:08x}; "
                f"nothing from here on is served from this segment"
            )

    def body(self, offset: int, header: Header) -> bytes:
        """The body of the frame at `offset`, checked."""
        self.check_body(offset, header)
        return os.pread(self._file.fd, header.body_bytes, offset + header.header_bytes)

    def frames(self, offset: int, end: int) -> Iterator[tuple[int, Header]]:
        """The frames between two offsets."""
        while offset < end:
            header = self.header(offset)
            yield offset, header
            offset += header.frame_bytes

    def groups(self, offset: int) -> Iterator[GroupSpan]:
        """The groups from `offset` to the limit, by their headers."""
        start = offset
        for at, header in self.frames(offset, self._limit):
            if header.kind == COMMIT:
                yield GroupSpan(start, at, header)
                start = at + header.frame_bytes
        if start != self._limit:
            raise CorruptData(f"{self.place(start)}: the group that starts here has no commit frame")
