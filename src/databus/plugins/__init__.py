"""What an input, a filter and an output are: the contracts that plugins keep. Start with `Output`."""

from databus.plugins._config import FilterConfig, InputConfig, Names, NodeConfig, OutputConfig, TablesFilterConfig
from databus.plugins._contract import Filter, Input, RunContext, Shape, TableRanges, TablesFilter
from databus.plugins._output import (
    ChecksTables,
    Delivery,
    Discards,
    FindsKeys,
    FollowsOptions,
    KeepsLedger,
    KeepsLetters,
    Output,
    OutputContext,
    Removes,
    TakesFrames,
    TakesOver,
    Written,
)

__all__ = [
    "ChecksTables",
    "Delivery",
    "Discards",
    "Filter",
    "FilterConfig",
    "FindsKeys",
    "FollowsOptions",
    "Input",
    "InputConfig",
    "KeepsLedger",
    "KeepsLetters",
    "Names",
    "NodeConfig",
    "Output",
    "OutputConfig",
    "OutputContext",
    "Removes",
    "RunContext",
    "Shape",
    "TableRanges",
    "TablesFilter",
    "TablesFilterConfig",
    "TakesFrames",
    "TakesOver",
    "Written",
]
