"""Event types of both servers, by the numbers in the log, and the layout that every event shares.

An event is a header of 19 bytes (time 4, type 1, server id 4, size 4, end position 4, flags 2; little-endian), a body
and, where the file's format description says so, a CRC-32 of all that precedes it.
"""

from enum import IntEnum
from typing import Final

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
    """`WRITE_ROWS`, or `number 99` for a kind that nobody knows."""
    try:
        return EventType(number).name
    except ValueError:
        return f"number {number}"
