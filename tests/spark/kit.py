"""Small parts that the tests of this folder share: groups as a relay would send them."""

from collections.abc import Iterable

from databus.schema import TableSchema
from databus.wire import Commit, Control, EncodedGroup, FrameGroup, FrameParser, Group, Rows, encode_group


class Numbers:
    """A registry that numbers tables as they come."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def number_of(self, table: TableSchema) -> tuple[int, int]:
        return self._ids.setdefault(table.source, len(self._ids) + 1), 1


def encoded(rows: Iterable[Rows], commit: Commit, control: Control | None = None) -> bytes:
    group: EncodedGroup = encode_group(Group(commit, tuple(rows), control), Numbers(), 0)
    return b"".join(bytes(buffer) for buffer in group.buffers)


def parsed(raw: bytes) -> list[FrameGroup]:
    parser = FrameParser("test")
    groups: list[FrameGroup] = []
    at = 0
    while at < len(raw):
        space = parser.space()
        count = min(len(space), len(raw) - at)
        space[:count] = raw[at : at + count]
        groups += parser.received(count)
        at += count
    parser.finish()
    return groups
