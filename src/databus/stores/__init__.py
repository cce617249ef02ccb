"""Reading the two stores of a bootstrap service: what happened, and what was there. Start with `LogStore`, `StateNote`.

Both are plain Delta tables that a pipeline fills; here they are read without Spark, in pieces, as Arrow.
"""

from databus.stores._frame_rows import frame_rows, under_own_names, user_rows
from databus.stores._log_store import LoggedControl, LogLook, LogSelection, LogStore, control_of, controls_above
from databus.stores._merged import Piece, RowGroup, merged_rows
from databus.stores._notes import (
    HeadNote,
    LogCut,
    LogTableNote,
    NoteFolder,
    StateNote,
    StateTable,
    TableAtCut,
    note_physicals,
)
from databus.stores._parquet import StoredGroup, file_of
from databus.stores._schemas import KnownSchemas, definition_at
from databus.stores._skipping import ColumnBounds, RowsWanted
from databus.stores._state_rows import BATCH_ROWS, StateRows
from databus.stores._tables import StoreTable, table_folder

__all__ = [
    "BATCH_ROWS",
    "ColumnBounds",
    "HeadNote",
    "KnownSchemas",
    "LogCut",
    "LogLook",
    "LogSelection",
    "LogStore",
    "LogTableNote",
    "LoggedControl",
    "NoteFolder",
    "Piece",
    "RowGroup",
    "RowsWanted",
    "StateNote",
    "StateRows",
    "StateTable",
    "StoreTable",
    "StoredGroup",
    "TableAtCut",
    "control_of",
    "controls_above",
    "definition_at",
    "file_of",
    "frame_rows",
    "merged_rows",
    "note_physicals",
    "table_folder",
    "under_own_names",
    "user_rows",
]
