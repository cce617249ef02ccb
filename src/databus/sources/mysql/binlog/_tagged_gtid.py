"""GTID_TAGGED events of MySQL 8.3 and later, in the format of its serialization library."""

from dataclasses import dataclass

from databus.sources.mysql.binlog._byte_reader import ByteReader
from databus.sources.mysql.binlog._gtid import uuid_text


@dataclass(frozen=True, slots=True)
class TaggedGtid:
    """A GTID that may have a tag."""

    name: str
    """`uuid` or `uuid:tag`."""
    number: int
    commit_us: int
    """The original commit time; 0 where the event does not say."""


def parse_tagged(body: bytes) -> TaggedGtid:  # noqa: C901 - a branch for each field of the format
    """Read the body. Raises `ValueError`.

    A message: version, size, last field that may not be ignored, then fields, each preceded by its number: 0 flags, 1
    uuid (sixteen numbers), 2 number, 3 tag, 4 last committed, 5 sequence number, 6 immediate and 7 original commit
    time, and some that do not matter here. Whole numbers are of variable length, signed ones with the sign in the
    lowest bit.
    """
    reader = ByteReader(body)
    if reader.varlen() != 1:
        raise ValueError("a GTID in an unknown version of its format")
    reader.varlen()
    reader.varlen()
    uuid, tag, number, immediate, original = b"", "", 0, 0, 0
    while not reader.is_done:
        field = reader.varlen()
        if field == 0:
            reader.varlen()
        elif field == 1:
            uuid = bytes(_byte(reader.varlen()) for _ in range(16))
        elif field == 2:
            number = _signed(reader.varlen())
        elif field == 3:
            tag = reader.take(reader.varlen()).decode("ascii")
        elif field in (4, 5):
            reader.varlen()
        elif field == 6:
            immediate = reader.varlen()
        elif field == 7:
            original = reader.varlen()
        else:
            break
    if len(uuid) != 16:
        raise ValueError("a GTID without its server's uuid")
    return TaggedGtid(f"{uuid_text(uuid)}:{tag}" if tag else uuid_text(uuid), number, original or immediate)


def _byte(value: int) -> int:
    if value > 255:
        raise ValueError(f"{value} is no byte")
    return value


def _signed(value: int) -> int:
    return value >> 1 if value & 1 == 0 else -(value >> 1) - 1
