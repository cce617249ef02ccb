"""Frames as a reader sees them, and the parser that cuts a stream of bytes into them without copying bodies."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from pyarrow import ipc

from databus.core import ControlKind, CorruptData, LimitExceeded, StreamCut
from databus.wire._header import (
    COMMIT,
    CONTROL,
    FRAME_BYTES_MAX,
    HEADER_BYTES_MIN,
    Header,
    header_length,
    unpack_header,
    whole_commit,
)

ARENA_BYTES: Final = 8 << 20
GROUP_FRAMES_MAX: Final = 1 << 20
_LOOKAHEAD_BYTES: Final = 256 << 10


class Frame:
    """One frame whose checksums were checked. `body` is a view of memory that stays as it is while the frame lives.

    place: how errors name it. key_hashes: hashes of its rows' keys, once one reader has computed them, for the others.
    batch: the rows, of a frame that never was a body. Equal only to itself.
    """

    __slots__ = ("_batch", "_control", "body", "header", "key_hashes", "place")

    def __init__(
        self, header: Header, body: memoryview, place: str = "frame", batch: pa.RecordBatch | None = None
    ) -> None:
        self.header = header
        self.body = body
        self.place = place
        self.key_hashes: Any = None
        self._batch = batch
        self._control: dict[str, Any] | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows, zero-copy. Raises `CorruptData` if the body is not one Arrow stream of `header.rows` rows."""
        if self._batch is None:
            self._batch = self._open()
        return self._batch

    def _open(self) -> pa.RecordBatch:
        try:
            batch = ipc.open_stream(pa.py_buffer(self.body)).read_next_batch()
        except (pa.ArrowException, StopIteration, OSError) as error:
            raise CorruptData(f"{self.place}: the body is not an Arrow stream: {error}") from error
        if batch.num_rows != self.header.rows:
            raise CorruptData(f"{self.place}: {batch.num_rows} rows in the body, {self.header.rows} in the header")
        return batch

    @property
    def control(self) -> dict[str, Any]:
        """The control's JSON body. Raises `CorruptData` if the body is not a JSON object."""
        if self._control is None:
            try:
                value = json.loads(bytes(self.body))
            except ValueError as error:
                raise CorruptData(f"{self.place}: the control is not JSON: {error}") from error
            if not isinstance(value, dict):
                raise CorruptData(f"{self.place}: the control is not an object")
            self._control = value
        return self._control

    @property
    def control_kind(self) -> ControlKind:
        """What the control says. Raises `CorruptData` for a kind that this databus does not know."""
        try:
            return ControlKind(self.control["kind"])
        except (KeyError, ValueError) as error:
            raise CorruptData(
                f"{self.place}: not a control that this databus knows: {self.control.get('kind')!r}"
            ) from error

    def __repr__(self) -> str:
        return f"<frame {self.header.kind} {self.header.first}..{self.header.last}, {self.header.rows} rows>"


def frames_in(content: bytes | memoryview, where: str) -> Iterator[tuple[int, Frame]]:
    """The frames of whole groups in memory, commit frames too, and where each begins. Bodies are views of `content`,
    and were checked before. A commit frame's header has all of its position.
    """
    view = memoryview(content).toreadonly()
    at = 0
    while at < len(view):
        place = f"{where}, byte {at}"
        header = unpack_header(view[at:], place)
        start, end = at + header.header_bytes, at + header.frame_bytes
        if end > len(view):
            raise CorruptData(f"{place}: the frame's {header.frame_bytes} bytes are cut off after {len(view) - at}")
        body = view[start:end]
        yield at, Frame(whole_commit(header, body) if header.kind == COMMIT else header, body, place)
        at = end


def check_body(header: Header, body: memoryview, place: str) -> None:
    """Raise `CorruptData` unless the body is the one that the header was written for."""
    seen = crc32c(body)
    if seen != header.body_crc:
        raise CorruptData(f"{place}: the body's checksum is {seen:08x}, expected {header.body_crc:08x}")


@dataclass(frozen=True, slots=True)
class FrameGroup:
    """A whole group as received: its frames without the commit frame, and that frame's header, with all of its position
    wherever that stood.
    """

    frames: tuple[Frame, ...]
    commit: Header
    pieces: tuple[memoryview, ...] = field(default=(), compare=False, repr=False)
    """All of its bytes, commit frame included, as they came."""

    @property
    def control(self) -> Frame | None:
        """The control that the group begins with, if any."""
        return self.frames[0] if self.frames and self.frames[0].header.kind == CONTROL else None

    @property
    def rows(self) -> tuple[Frame, ...]:
        """The frames of rows."""
        return self.frames if self.control is None else self.frames[1:]


def _arena(size: int) -> memoryview:
    return np.empty(size, np.uint8).data  # not a bytearray: that would be filled with zeros first


class FrameParser:
    """Cuts a stream of bytes into groups. Pure: write into `space()`, then tell `received` how much came.

        parser = FrameParser("relay at 127.0.0.1:11115")
        while count := sock.recv_into(parser.space()):
            for group in parser.received(count): ...
        parser.finish()

    Bytes are received into arenas that frames are views of; a new arena is taken when one is full, so that memory is
    bounded by what the caller keeps. Every header and body is checked. Errors name `where` and the offset.
    """

    def __init__(
        self, where: str, *, frame_bytes_max: int = FRAME_BYTES_MAX, group_frames_max: int = GROUP_FRAMES_MAX
    ) -> None:
        self._where = where
        self._frame_bytes_max = frame_bytes_max
        self._group_frames_max = group_frames_max
        self._arena = _arena(ARENA_BYTES)
        self._start = 0  # of the first frame that is not complete
        self._end = 0  # of what has been received
        self._offset = 0  # of self._start in the stream
        self._header: Header | None = None
        self._frames: list[Frame] = []
        self._group_start = 0  # of the group's bytes in this arena; those before are in `_pieces`
        self._pieces: list[memoryview] = []

    def _place(self) -> str:
        return f"{self._where}, byte {self._offset}"

    def space(self) -> memoryview:
        """Where to receive the next bytes; never empty."""
        needed = HEADER_BYTES_MIN if self._header is None else self._header.frame_bytes
        if self._header is None and self._end - self._start >= HEADER_BYTES_MIN:
            needed = header_length(self._arena[self._start : self._end], self._place())
        frame_end = self._start + needed
        if frame_end > len(self._arena) or self._end == len(self._arena):
            # A new arena, never the old one again: frames that were returned are views of it.
            arena = _arena(max(ARENA_BYTES, needed + _LOOKAHEAD_BYTES))
            kept = self._end - self._start
            arena[:kept] = self._arena[self._start : self._end]
            if self._group_start < self._start:
                self._pieces.append(self._arena[self._group_start : self._start].toreadonly())
            self._group_start = 0
            self._arena, self._start, self._end, frame_end = arena, 0, kept, needed
        return self._arena[self._end : max(frame_end, self._end) + _LOOKAHEAD_BYTES]

    def received(self, count: int) -> list[FrameGroup]:
        """Take note of `count` bytes written to `space()`; returns the groups that are complete now.

        Raises `CorruptData` for bytes that no relay wrote, `LimitExceeded` for a frame above `frame_bytes_max`.
        """
        self._end += count
        groups: list[FrameGroup] = []
        while (header := self._header or self._next_header()) is not None:
            header_bytes, body_bytes = header.header_bytes, header.body_bytes
            start = self._start
            stop = start + header_bytes + body_bytes
            if stop > self._end:
                break
            if header.kind == COMMIT:
                if body_bytes:
                    header = whole_commit(header, self._body(header, start + header_bytes, stop))
                whole = self._arena[self._group_start : stop].toreadonly()
                groups.append(FrameGroup(tuple(self._frames), header, (*self._pieces, whole)))
                self._frames, self._pieces, self._group_start = [], [], stop
            else:
                body = self._body(header, start + header_bytes, stop)
                if len(self._frames) >= self._group_frames_max:
                    raise LimitExceeded(f"{self._place()}: more than group_frames_max={self._group_frames_max} frames")
                self._frames.append(Frame(header, body, self._place()))
            self._start = stop
            self._offset += stop - start
            self._header = None
        return groups

    def _body(self, header: Header, start: int, stop: int) -> memoryview:
        body = self._arena[start:stop].toreadonly()
        check_body(header, body, self._place())
        return body

    def _next_header(self) -> Header | None:
        """The header that begins at `_start`, if all of it has come."""
        start = self._start
        arrived_bytes = self._end - start
        if arrived_bytes < HEADER_BYTES_MIN:
            return None
        place = self._place()
        view = self._arena[start : self._end]
        if arrived_bytes < header_length(view, place):
            return None
        header = unpack_header(view, place)
        if header.frame_bytes > self._frame_bytes_max:
            raise LimitExceeded(
                f"{place}: a frame of {header.frame_bytes} bytes exceeds frame_bytes_max={self._frame_bytes_max}"
            )
        self._header = header
        return header

    @property
    def is_between_groups(self) -> bool:
        """Whether the stream could end here without cutting anything."""
        return self._start == self._end and not self._frames

    def finish(self) -> None:
        """Say that the stream has ended. Raises `StreamCut` if it ended inside a group."""
        if not self.is_between_groups:
            raise StreamCut(f"{self._place()}: the stream ended inside a group; it is asked for again")
