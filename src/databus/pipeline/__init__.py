"""One YAML file to a graph to streaming queries. Start with `databus.pipeline._contract`."""

from databus.pipeline._batch import ChangeBatch, TableControl, TableRows
from databus.pipeline._contract import (
    Delivery,
    Filter,
    FilterConfig,
    Input,
    InputConfig,
    NodeConfig,
    Output,
    OutputConfig,
    OutputContext,
    RunContext,
    Shape,
    SparkOutput,
)
from databus.pipeline._tables import TableChoice

__all__ = [
    "ChangeBatch",
    "Delivery",
    "Filter",
    "FilterConfig",
    "Input",
    "InputConfig",
    "NodeConfig",
    "Output",
    "OutputConfig",
    "OutputContext",
    "RunContext",
    "Shape",
    "SparkOutput",
    "TableChoice",
    "TableControl",
    "TableRows",
]
