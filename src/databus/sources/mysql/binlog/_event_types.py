"""Event types of both servers, by the numbers in the log, and the layout that every event shares.

An event is a header of 19 bytes (time 4, type 1, server id 4, size 4, end position 4, flags 2; little-endian), a body
and, where the file's format description says so, a CRC-32 of all that precedes it.
"""

import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

_LENGTHS_AT = 57  # version 2, server's version 50, time 4, length of headers 1; then a byte for each kind
HEADER_BYTES: Final = 19
CHECKSUM_BYTES: Final = 4
FILE_MAGIC: Final = b"\xfebin"
FIRST_OFFSET: Final = len(FILE_MAGIC)
OFFSET_MAX: Final = 0xFFFFFFFF  # that an event, or who asks for one, can name
ENCRYPTED_FILE_MAGIC: Final = b"\xfdbin"

FLAG_IN_USE: Final = 0x0001
FLAG_ARTIFICIAL: Final = 0x0020
FLAG_IGNORABLE: Final = 0x0080


class EventType(IntEnum):
    """Kinds of events. Numbers from 160 on are MariaDB's."""

    UNKNOWN = 0
    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    LOAD = 6
    SLAVE = 7
    CREATE_FILE = 8
    APPEND_BLOCK = 9
    EXEC_LOAD = 10
    DELETE_FILE = 11
    NEW_LOAD = 12
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    PRE_GA_WRITE_ROWS = 20
    PRE_GA_UPDATE_ROWS = 21
    PRE_GA_DELETE_ROWS = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171


def name_of(number: int) -> str:
    """`WRITE_ROWS`, or `number 99` for an unknown kind."""
    try:
        return EventType(number).name
    except ValueError:
        return f"number {number}"


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
