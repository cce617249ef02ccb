"""What runs inside of Spark's tasks: rows fetched from the relay, decoded, and written where their output wants them.

Of databus, only what is below is imported here, and of others pyarrow and numpy alone: executors need no more. Start
with `ChangeBatch`, which is what outputs are given.
"""

from databus.tasks._batch import Batch, ChangeBatch, Item, StagedBatch, StagedRows, TableControl, TableRows
from databus.tasks._choice import (
    Selection,
    TableChoice,
    full_pattern,
    matches,
    may_select,
    name_for_relay,
    nearest,
    patterns_meet,
    patterns_of,
    selections_meet,
    selects,
)
from databus.tasks._data_file import DataFile, is_data_file, write_data_file
from databus.tasks._decode import (
    BATCH_BYTES,
    CONTROL_LABEL,
    Fetch,
    TableOf,
    decode_frames,
    decode_groups,
    decode_ranges,
    decode_typed,
    fitted_rows,
    result_table,
    to_user_rows,
    user_rows_schema,
    whole_changes,
)
from databus.tasks._fetch import Definitions, RangeDecoder, RelayTables
from databus.tasks._filters import Mask, Project, Rename, TableFilter, Where
from databus.tasks._folders import Folders, FolderWriter, Named, quoted, spelled
from databus.tasks._layout import Layout, LiveFile, Parts, divided, live_files
from databus.tasks._lineage import CopySteps, Lineage, LineageOf, SchemaAhead
from databus.tasks._mapper import META_COLUMNS, Always, FilterMapper, Mapper, is_meta
from databus.tasks._pairs import Int, Stored, first_pair, last_pair, log_number, pairs_of, rows_above, stored_at
from databus.tasks._rewrite import Images, Rewritten, last_images, rewrite
from databus.tasks._stage import RECEIPTS, Decode, PartWriter, Restage, Stage, StagedFeed, joined
from databus.tasks._table_filters import NamedFilter, TableFilters, Ways
from databus.tasks._table_step import TableStep

__all__ = [
    "BATCH_BYTES",
    "CONTROL_LABEL",
    "META_COLUMNS",
    "RECEIPTS",
    "Always",
    "Batch",
    "ChangeBatch",
    "CopySteps",
    "DataFile",
    "Decode",
    "Definitions",
    "Fetch",
    "FilterMapper",
    "FolderWriter",
    "Folders",
    "Images",
    "Int",
    "Item",
    "Layout",
    "Lineage",
    "LineageOf",
    "LiveFile",
    "Mapper",
    "Mask",
    "Named",
    "NamedFilter",
    "PartWriter",
    "Parts",
    "Project",
    "RangeDecoder",
    "RelayTables",
    "Rename",
    "Restage",
    "Rewritten",
    "SchemaAhead",
    "Selection",
    "Stage",
    "StagedBatch",
    "StagedFeed",
    "StagedRows",
    "Stored",
    "TableChoice",
    "TableControl",
    "TableFilter",
    "TableFilters",
    "TableOf",
    "TableRows",
    "TableStep",
    "Ways",
    "Where",
    "decode_frames",
    "decode_groups",
    "decode_ranges",
    "decode_typed",
    "divided",
    "first_pair",
    "fitted_rows",
    "full_pattern",
    "is_data_file",
    "is_meta",
    "joined",
    "last_images",
    "last_pair",
    "live_files",
    "log_number",
    "matches",
    "may_select",
    "name_for_relay",
    "nearest",
    "pairs_of",
    "patterns_meet",
    "patterns_of",
    "quoted",
    "result_table",
    "rewrite",
    "rows_above",
    "selections_meet",
    "selects",
    "spelled",
    "stored_at",
    "to_user_rows",
    "user_rows_schema",
    "whole_changes",
    "write_data_file",
]
