"""What a table was at a position of the log: by the catalogue, DDL and table maps. Start with `TableHistory`."""

from databus.sources.mysql.tables._catalogue import Catalogue, read_catalogue
from databus.sources.mysql.tables._from_table_map import check_agreement, from_table_map
from databus.sources.mysql.tables._history import HistoryChanges, TableHistory
from databus.sources.mysql.tables._history_file import HistoryStore
from databus.sources.mysql.tables._lexer import ServerKind, UnreadableStatement, tokens_of
from databus.sources.mysql.tables._table_events import Altered, Created, Dropped, TableEvent, Truncated, Unknown
from databus.sources.mysql.tables._table_state import TableState
from databus.sources.mysql.tables._touched_tables import altered_names, touched_names
from databus.sources.mysql.tables._unknown_tables import announced, doubtful

__all__ = [
    "Altered",
    "Catalogue",
    "Created",
    "Dropped",
    "HistoryChanges",
    "HistoryStore",
    "ServerKind",
    "TableEvent",
    "TableHistory",
    "TableState",
    "Truncated",
    "Unknown",
    "UnreadableStatement",
    "altered_names",
    "announced",
    "check_agreement",
    "doubtful",
    "from_table_map",
    "read_catalogue",
    "tokens_of",
    "touched_names",
]
