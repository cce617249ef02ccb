"""What an input, a filter and an output are: the contracts that plugins keep. Start with `Output`."""

from databus.plugins._config import FilterConfig, InputConfig, Names, NodeConfig, OutputConfig, TablesFilterConfig
from databus.plugins._contract import Filter, Input, RunContext, Shape, TablesFilter
from databus.plugins._output import Delivery, DirectOutput, Output, OutputContext, SparkOutput, Written

__all__ = [
    "Delivery",
    "DirectOutput",
    "Filter",
    "FilterConfig",
    "Input",
    "InputConfig",
    "Names",
    "NodeConfig",
    "Output",
    "OutputConfig",
    "OutputContext",
    "RunContext",
    "Shape",
    "SparkOutput",
    "TablesFilter",
    "TablesFilterConfig",
    "Written",
]
