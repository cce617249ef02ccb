"""The binary log: bytes of the replication protocol or of files -> transactions. Pure, no I/O.

Start with `Scanner`; `PacketSplitter` stands before it where the bytes come from a server.
"""

from databus.sources.mysql.binlog._event_types import (
    CHECKSUM_BYTES,
    FIRST_OFFSET,
    HEADER_BYTES,
    OFFSET_MAX,
)
from databus.sources.mysql.binlog._failures import DomainRestarted
from databus.sources.mysql.binlog._gtid import GtidSet, GtidState
from databus.sources.mysql.binlog._packets import DumpEnded, DumpRefused, PacketSplitter
from databus.sources.mysql.binlog._position import LogPosition, Scheme, contains, file_number, ordinal_of
from databus.sources.mysql.binlog._prepared import PreparedMissing
from databus.sources.mysql.binlog._query_event import Query
from databus.sources.mysql.binlog._scanned import (
    Abandoned,
    Heartbeat,
    LoggedStatement,
    LogItem,
    LogRun,
    Rotated,
    TakenBack,
    TransactionOrigin,
)
from databus.sources.mysql.binlog._scanner import Scanner
from databus.sources.mysql.binlog._table_map import TableMap, TableMetadata

__all__ = [
    "CHECKSUM_BYTES",
    "FIRST_OFFSET",
    "HEADER_BYTES",
    "OFFSET_MAX",
    "Abandoned",
    "DomainRestarted",
    "DumpEnded",
    "DumpRefused",
    "GtidSet",
    "GtidState",
    "Heartbeat",
    "LogItem",
    "LogPosition",
    "LogRun",
    "LoggedStatement",
    "PacketSplitter",
    "PreparedMissing",
    "Query",
    "Rotated",
    "Scanner",
    "Scheme",
    "TableMap",
    "TableMetadata",
    "TakenBack",
    "TransactionOrigin",
    "contains",
    "file_number",
    "ordinal_of",
]
