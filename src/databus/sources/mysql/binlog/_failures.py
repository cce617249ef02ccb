"""The errors for what a kernel returns: type, words, and what to do."""

from typing import Final

from databus.core import (
    CorruptData,
    DatabusError,
    FatalError,
    LimitExceeded,
    ServiceUnavailable,
    SourceChanged,
    UnsupportedFeature,
)
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._event_types import name_of


class DomainRestarted(ServiceUnavailable):
    """A GTID domain of MariaDB was deleted and is used again: its numbers no longer show what was captured. To resume
    from the last position, ask the server by file and offset.
    """


_MALFORMED: Final = "Compare with what the server's own `mysqlbinlog` (`mariadb-binlog`) says at that place"
_FOREIGN: Final = "Find out what happened to the server; then snapshot the captured tables again, or raise the timeline"

LARGER: Final = (
    "Raise `buffer_bytes_max` above it, or `row_bytes_max` above half of it (with files, this one), and see that there "
    "is memory for it"
)

_FAILURES: Final[dict[int, tuple[type[FatalError], str, str]]] = {
    s.BAD_SIZE: (CorruptData, "its size cannot be", _MALFORMED),
    s.TOO_LARGE: (LimitExceeded, "it is larger than event_bytes_max", LARGER),
    s.BAD_CHECKSUM: (
        CorruptData,
        "its bytes do not match its checksum",
        "Compare the file on the server; it may be damaged",
    ),
    s.BAD_POSITION: (CorruptData, "it says that it ends elsewhere than it does", _MALFORMED),
    s.SHORT_BODY: (CorruptData, "it is too short for what it has to hold", _MALFORMED),
    s.NO_TABLE_MAP: (CorruptData, "no table map of its transaction says which table it is of", _MALFORMED),
    s.OUTSIDE_TX: (CorruptData, "it stands outside of a transaction", _MALFORMED),
    s.INSIDE_TX: (CorruptData, "a transaction begins before the one before it has ended", _MALFORMED),
    s.COLUMN_COUNT: (CorruptData, "its number of columns is not that of its table map", _MALFORMED),
    s.ROW_IMAGE: (
        UnsupportedFeature,
        "its row images lack columns (binlog_row_image is not FULL for that session)",
        "SET GLOBAL binlog_row_image = 'FULL', and snapshot the table again from a position behind it",
    ),
    s.BAD_COMPRESSION: (CorruptData, "it is compressed in an unknown way", _MALFORMED),
    s.NO_SET: (
        CorruptData,
        "a GTID comes before the list of those executed before",
        "Read the log from the beginning of a file, or from a position with GTIDs",
    ),
    s.REPEATED: (SourceChanged, "its GTID was executed before", _FOREIGN),
    s.NOT_RISING: (SourceChanged, "its SCN would not be above the one before it", _FOREIGN),
    s.ANONYMOUS: (
        SourceChanged,
        "a transaction without GTID, where SCNs are made from GTIDs",
        "Set gtid_mode to ON and start behind it, or let SCNs be made from file and offset, on a new timeline",
    ),
    s.DIVERGED: (
        SourceChanged,
        "another server made the transaction of this sequence number than the one that we know",
        _FOREIGN,
    ),
    s.OFFSET_TOO_LARGE: (
        LimitExceeded,
        "a transaction begins beyond 4 GiB in its file, which an SCN by file and offset cannot hold",
        "Set max_binlog_size to 1 GiB, or use GTIDs",
    ),
    s.ORDINAL_TOO_LARGE: (
        LimitExceeded,
        f"its ordinal would not be below {s.ORDINAL_LIMIT}, the limit of an SCN's",
        "Let SCNs be made from file and offset, on a new timeline",
    ),
    s.BAD_GTID: (CorruptData, "its number cannot be one of a GTID", _MALFORMED),
    s.OTHER_FLAVOR: (
        SourceChanged,
        "MySQL does not write what MariaDB does, nor MariaDB this",
        "Where files of both servers lie in one folder, put each server's into one of its own",
    ),
}


def failure(error: int, place: str, kind: int, size: int) -> DatabusError:
    """The exception for an error of the kernel's at this place."""
    type_, what, remedy = _FAILURES[error]
    return type_(f"{place}: {name_of(kind)} event of {size} bytes: {what}. {remedy}")
