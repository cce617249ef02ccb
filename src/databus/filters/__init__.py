"""Filters over streams: which rows and columns pass, and what a change means behind them. Start with `StreamFilter`,
then `FrameFilter`. The relay and the filters of pipelines use the same rules.
"""

from databus.filters._choice import (
    Selection,
    TableChoice,
    full_pattern,
    matches,
    may_select,
    name_if_there,
    names_for_relay,
    nearest,
    patterns_meet,
    patterns_of,
    selections_meet,
    selects,
)
from databus.filters._frame_filter import FrameFilter
from databus.filters._row_choice import Flags, RowChoice, begins_update, differs, whole_changes
from databus.filters._stream_filter import Columns, StreamFilter, StreamPartition, TableRule
from databus.filters._table_cut import TableCut, row_hashes
from databus.filters._table_step import TableStep, changed_by, previous_of, schema_body

__all__ = [
    "Columns",
    "Flags",
    "FrameFilter",
    "RowChoice",
    "Selection",
    "StreamFilter",
    "StreamPartition",
    "TableChoice",
    "TableCut",
    "TableRule",
    "TableStep",
    "begins_update",
    "changed_by",
    "differs",
    "full_pattern",
    "matches",
    "may_select",
    "name_if_there",
    "names_for_relay",
    "nearest",
    "patterns_meet",
    "patterns_of",
    "previous_of",
    "row_hashes",
    "schema_body",
    "selections_meet",
    "selects",
    "whole_changes",
]
