"""XA transactions that are prepared: their rows come in the log before it is decided whether they are committed.

The scanner hands the events of such a transaction to a `Prepared`, and asks for them again at XA COMMIT.
"""

import re
from collections.abc import Iterator
from typing import Final, Protocol

from databus.core import UnsupportedFeature
from databus.sources.mysql.binlog._byte_reader import ByteReader
from databus.sources.mysql.binlog._event_types import HEADER_BYTES, EventType

_TABLE_ID_AND_FLAGS_BYTES: Final = 8
_XID: Final = re.compile(r"X'([0-9A-Fa-f]*)'\s*,\s*X'([0-9A-Fa-f]*)'\s*,\s*(\d+)")


class PreparedMissing(UnsupportedFeature):
    """XA COMMIT of a transaction whose rows are not held: it was prepared before this log was read.

    ordinal: that of the commit. xid: as `xid_of` has it.
    """

    def __init__(self, message: str, xid: str, ordinal: int) -> None:
        super().__init__(message)
        self.xid = xid
        self.ordinal = ordinal


class Prepared(Protocol):
    """Holds the events of XA transactions from their prepare to their end. Ordinals are those of the transactions."""

    def begin(self) -> None:
        """Another transaction begins that will be prepared; what was added and not prepared is dropped."""
        ...

    def add(self, event: bytes) -> None:
        """An event of the transaction at hand, as it stands in the log, without its checksum."""
        ...

    def take(self) -> Iterator[bytes]:
        """What was added is committed at once, in pieces of whole events; it is held no longer."""
        ...

    def prepare(self, xid: str, ordinal: int, *, is_whole: bool) -> None:
        """What was added is prepared. is_whole: False where rows of tables that are not captured were dropped."""
        ...

    def commit(self, xid: str, ordinal: int) -> Iterator[bytes] | None:
        """The events of a prepared transaction in pieces of whole events. None: nothing is known of it."""
        ...

    def altered(self, xid: str) -> str:
        """A table of the prepared transaction of that id that a statement has changed since its prepare, or nothing."""
        ...

    def forget(self, xid: str, ordinal: int) -> None:
        """It was rolled back, or its commit is passed over."""
        ...


def xid_of(statement: str) -> str:
    """The id in a statement as servers write it into their log. Raises `ValueError`.

    >>> xid_of("XA COMMIT X'6162',X'',1")
    '6162,,1'
    """
    match = _XID.search(statement)
    if match is None:
        raise ValueError(f"{statement[:200]!r} names no XA transaction")
    return f"{match[1].lower()},{match[2].lower()},{int(match[3])}"


def tables_in(pieces: Iterator[bytes]) -> frozenset[tuple[str, str]]:
    """(database, name) of the tables that pieces of whole events say they have rows of."""
    tables = set()
    for piece in pieces:
        at = 0
        while at < len(piece):
            size = int.from_bytes(piece[at + 9 : at + 13], "little")
            if piece[at + 4] == EventType.TABLE_MAP:
                reader = ByteReader(piece[at + HEADER_BYTES + _TABLE_ID_AND_FLAGS_BYTES : at + size])
                names = []
                for _ in range(2):
                    names.append(reader.take(reader.integer(1)).decode())
                    reader.take(1)
                tables.add((names[0], names[1]))
            at += size
    return frozenset(tables)


def parse_xa_prepare(body: bytes) -> tuple[str, bool]:
    """The id in an XA_PREPARE event, and whether it commits at once. Raises `ValueError`."""
    reader = ByteReader(body)
    is_one_phase = reader.integer(1) == 1
    kind = int.from_bytes(reader.take(4), "little", signed=True)
    lengths = reader.integer(4), reader.integer(4)
    gtrid, bqual = (reader.take(length).hex() for length in lengths)
    return f"{gtrid},{bqual},{kind}", is_one_phase
