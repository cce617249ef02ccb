"""FORMAT_DESCRIPTION: what every file begins with, and what a dump sends before anything else."""

import zlib
from dataclasses import dataclass

from databus.sources.mysql.binlog._event_types import CHECKSUM_BYTES, FLAG_IN_USE, HEADER_BYTES, EventType

_LENGTHS_AT = 57  # version 2, server's version 50, time 4, length of headers 1; then a byte for each kind


@dataclass(frozen=True, slots=True)
class Format:
    """A file's format description: who wrote the events behind it, and in which form."""

    server_version: str
    """The version of the server that wrote the events."""
    has_checksum: bool
    """Whether the events end in a checksum."""
    is_sound: bool
    """Whether this event's own checksum is right."""
    table_id_bytes: int
    """How many bytes a table id has."""
    written_s: int
    """When the server began the file, in seconds since 1970; a dump that begins inside the file says the same."""


def matches_checksum(event: bytes) -> bool:
    """Whether the last four bytes are the checksum of those before."""
    return zlib.crc32(event[:-CHECKSUM_BYTES]) == int.from_bytes(event[-CHECKSUM_BYTES:], "little")


def parse_format(event: bytes) -> Format:
    """Read a whole event. Raises `ValueError`."""
    body = event[HEADER_BYTES:]
    if len(body) < _LENGTHS_AT + EventType.TABLE_MAP:
        raise ValueError("it is too short")
    version = body[2:52].rstrip(b"\0").decode("ascii", "replace")
    if body[:2] != b"\4\0" or body[56] != HEADER_BYTES:
        raise ValueError(
            f"a log of version {body[0]} with headers of {body[56]} bytes, written by {version!r}; databus reads "
            f"version 4 with headers of {HEADER_BYTES}"
        )
    algorithm = body[-CHECKSUM_BYTES - 1] if _knows_checksums(version) else 0
    if algorithm > 1:
        raise ValueError(f"checksums of the unknown kind {algorithm}")
    return Format(
        server_version=version,
        has_checksum=algorithm == 1,
        is_sound=algorithm == 0 or matches_checksum(event) or matches_checksum(_closed(event)),
        table_id_bytes=4 if body[_LENGTHS_AT + EventType.TABLE_MAP - 1] == 6 else 6,
        written_s=int.from_bytes(event[:4], "little"),
    )


def _closed(event: bytes) -> bytes:
    """The event as it was when its checksum was made: not yet marked as that of a file in use."""
    closed = bytearray(event)
    closed[17] &= ~FLAG_IN_USE
    return bytes(closed)


def _knows_checksums(version: str) -> bool:
    if "mariadb" in version.lower():
        return True
    numbers = version.split("-", maxsplit=1)[0].split(".")
    try:
        return tuple(int(number) for number in numbers[:3]) >= (5, 6, 1)
    except ValueError:
        return True
