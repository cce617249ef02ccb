"""Groups as newline-delimited JSON, for `curl` and for eyes: a line for each row and control, in order, and now and
then one with the position to go on from.

    {"_source": "shop/main.orders", "id": 1, "total_cents": 995, "_change_type": "insert", "_commit_version": 7, ...}
    {"_source": "shop/main.orders", "_control": {"kind": "truncate", ...}, "_commit_version": 8, "_seq": 1}
    {"_position": {"uuid": ..., "scn": 8, "seq": null, ...}}

One Python object a row: this is not the path for bulk.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from databus.core import COMMIT_VERSION, SEQ, Pair, SourceCheckpoint
from databus.formats import rows_of
from databus.log import Log, Span
from databus.wire import Frame, FrameGroup, FrameParser

_SOURCE: Final = "_source"
_CONTROL: Final = "_control"
_POSITION: Final = "_position"
_BEFORE_ALL: Final = (-1, -1)


class Renderer:
    """Makes lines of whole groups. after: rows up to this pair are not wanted; their group may begin before."""

    def __init__(self, log: Log, after: Pair = _BEFORE_ALL) -> None:
        self._log = log
        self._after = after
        self._parser = FrameParser(log.physical)

    def lines(self, spans: Sequence[Span], position: SourceCheckpoint) -> bytes:
        """The lines of these spans, and of the position after them. Raises `CorruptData`."""
        pieces = (each for span in spans for each in self._received(span))
        return b"".join([*pieces, position_line(position)])

    def rows(self, content: bytes) -> bytes:
        """The lines of these frames. Raises `CorruptData`."""
        left, pieces = memoryview(content), []
        while left:
            space = self._parser.space()
            count = min(len(space), len(left))
            space[:count] = left[:count]
            left = left[count:]
            pieces += [_json_line(line) for group in self._parser.received(count) for line in self._lines_of(group)]
        return b"".join(pieces)

    def _received(self, span: Span) -> Iterator[bytes]:
        offset, end = span.offset, span.offset + span.length
        while offset < end:
            count = os.preadv(span.fd, [self._parser.space()[: end - offset]], offset)
            for group in self._parser.received(count):
                yield from map(_json_line, self._lines_of(group))
            offset += count

    def _lines_of(self, group: FrameGroup) -> Iterator[dict[str, Any]]:
        if group.control is not None and group.control.header.first > self._after:
            header = group.control.header
            yield {
                _SOURCE: self._name_of(group.control),
                _CONTROL: group.control.control,
                COMMIT_VERSION: header.first_scn,
                SEQ: header.first_seq,
            }
        rows = [{_SOURCE: self._name_of(frame), **row} for frame in group.rows for row in rows_of(frame.batch)]
        if len(group.rows) > 1:
            rows.sort(key=_pair_of)
        yield from (row for row in rows if _pair_of(row) > self._after)

    def _name_of(self, frame: Frame) -> str:
        found = self._log.schemas.by_fingerprint(frame.header.fingerprint)
        name = str(frame.header.source_id) if found is None else found.table.source
        return self._log.schemas.full_name(name)


def position_line(position: SourceCheckpoint) -> bytes:
    """The line that says where to go on from."""
    return _json_line({_POSITION: position.to_json()})


def _json_line(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _pair_of(row: Mapping[str, Any]) -> Pair:
    return row[COMMIT_VERSION], row[SEQ]
