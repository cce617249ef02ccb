"""What a table was at a position of the log: from the catalogue, from DDL, from table maps. Start with `History`."""

from databus.sources.mysql._charsets import charset_of_number
from databus.sources.mysql.history._agreement import check_agreement
from databus.sources.mysql.history._catalogue import Catalogue, read_catalogue
from databus.sources.mysql.history._changes import Changes
from databus.sources.mysql.history._classes import Reason
from databus.sources.mysql.history._events import Altered, Created, Dropped, TableEvent, Truncated, Unknown
from databus.sources.mysql.history._history import History
from databus.sources.mysql.history._state import TableState
from databus.sources.mysql.history._store import HistoryStore
from databus.sources.mysql.history._table_map import from_table_map
from databus.sources.mysql.history._tokens import Server, Unreadable, tokens_of
from databus.sources.mysql.history._touched import touched_names
from databus.sources.mysql.history._types import ColumnType, parse_column_type

__all__ = [
    "Altered",
    "Catalogue",
    "Changes",
    "ColumnType",
    "Created",
    "Dropped",
    "History",
    "HistoryStore",
    "Reason",
    "Server",
    "TableEvent",
    "TableState",
    "Truncated",
    "Unknown",
    "Unreadable",
    "charset_of_number",
    "check_agreement",
    "from_table_map",
    "parse_column_type",
    "read_catalogue",
    "tokens_of",
    "touched_names",
]
