"""What runs inside of Spark's tasks: rows fetched from the relay, decoded, and written where their output wants them.

Of databus, only what is below is imported here, and of others pyarrow and numpy alone: executors need no more. Start
with `ChangeBatch`, which is what outputs are given.
"""

from databus.tasks._batch import Batch, ChangeBatch, Item, StagedBatch, StagedRows, TableControl, TableRows
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
from databus.tasks._fetch import RangeDecoder
from databus.tasks._layout import Layout, LiveFile, Parts, divided, live_files
from databus.tasks._lineage import CopySteps, Lineage, LineageOf, SchemaAhead
from databus.tasks._pairs import Int, Stored, first_pair, last_pair, log_number, pairs_of, rows_above, stored_at
from databus.tasks._rewrite import Images, Rewritten, last_images, rewrite
from databus.tasks._stage import RECEIPTS, Decode, PartWriter, Restage, Stage, StagedFeed, joined

__all__ = [
    "BATCH_BYTES",
    "CONTROL_LABEL",
    "RECEIPTS",
    "Batch",
    "ChangeBatch",
    "CopySteps",
    "DataFile",
    "Decode",
    "Fetch",
    "Images",
    "Int",
    "Item",
    "Layout",
    "Lineage",
    "LineageOf",
    "LiveFile",
    "PartWriter",
    "Parts",
    "RangeDecoder",
    "Restage",
    "Rewritten",
    "SchemaAhead",
    "Stage",
    "StagedBatch",
    "StagedFeed",
    "StagedRows",
    "Stored",
    "TableControl",
    "TableOf",
    "TableRows",
    "decode_frames",
    "decode_groups",
    "decode_ranges",
    "decode_typed",
    "divided",
    "first_pair",
    "fitted_rows",
    "is_data_file",
    "joined",
    "last_images",
    "last_pair",
    "live_files",
    "log_number",
    "pairs_of",
    "result_table",
    "rewrite",
    "rows_above",
    "stored_at",
    "to_user_rows",
    "user_rows_schema",
    "whole_changes",
    "write_data_file",
]
