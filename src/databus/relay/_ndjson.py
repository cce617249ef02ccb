"""Groups as newline-delimited JSON, for `curl` and for eyes: the lines of `databus.formats.change_text`, in order, and
now and then one with the position to go on from.

    {"_position": {"uuid": ..., "scn": 8, "seq": null, ...}}

Rows in bulk are written column by column; a group of a few rows costs one Python object a row.
"""

import os
from collections.abc import Iterator, Sequence
from typing import Final

from databus.core import Pair, SourceCheckpoint
from databus.formats import BigIntegers, change_text, control_line, json_line
from databus.log import Log, Span
from databus.wire import Frame, FrameGroup, FrameParser

_POSITION: Final = "_position"
_BEFORE_ALL: Final = (-1, -1)


class Renderer:
    """Makes lines of whole groups. after: rows up to this pair are not wanted; their group may begin before."""

    def __init__(self, log: Log, big_integers: BigIntegers, after: Pair = _BEFORE_ALL) -> None:
        self._log = log
        self._big_integers = big_integers
        self._after = after
        self._parser = FrameParser(log.physical)

    def lines(self, spans: Sequence[Span], position: SourceCheckpoint) -> bytes:
        """The lines of these spans, and of the position after them. Raises `CorruptData`."""
        pieces = (lines for span in spans for lines in self._received(span))
        return b"".join([*pieces, self.position_line(position)])

    def rows(self, content: bytes) -> bytes:
        """The lines of these frames. Raises `CorruptData`."""
        left, pieces = memoryview(content), []
        while left:
            space = self._parser.space()
            count = min(len(space), len(left))
            space[:count] = left[:count]
            left = left[count:]
            pieces += [self._lines_of(group) for group in self._parser.received(count)]
        return b"".join(pieces)

    def position_line(self, position: SourceCheckpoint) -> bytes:
        """The line that says where to go on from."""
        return f"{json_line({_POSITION: position.to_json()}, self._big_integers)}\n".encode()

    def _received(self, span: Span) -> Iterator[bytes]:
        offset, end = span.offset, span.offset + span.length
        while offset < end:
            count = os.preadv(span.fd, [self._parser.space()[: end - offset]], offset)
            for group in self._parser.received(count):
                yield self._lines_of(group)
            offset += count

    def _lines_of(self, group: FrameGroup) -> bytes:
        rows = [(self._name_of(frame), frame.batch) for frame in group.rows]
        text = change_text(rows, self._big_integers, after=self._after)
        control = group.control
        if control is None or control.header.first <= self._after:
            return text
        line = control_line(self._name_of(control), control.control, control.header.first, self._big_integers)
        return f"{line}\n".encode() + text

    def _name_of(self, frame: Frame) -> str:
        versions = self._log.schemas.by_id(frame.header.source_id)
        return self._log.schemas.full_name(versions[-1].table.source if versions else str(frame.header.source_id))
