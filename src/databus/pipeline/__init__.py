"""One YAML file to a graph to streaming queries. Start with `databus.pipeline._contract`."""

from databus.pipeline._batch import ChangeBatch, TableControl, TableRows
from databus.pipeline._contract import (
    Delivery,
    FilterConfig,
    NodeConfig,
    Output,
    OutputConfig,
    OutputContext,
    SparkOutput,
)

__all__ = [
    "ChangeBatch",
    "Delivery",
    "FilterConfig",
    "NodeConfig",
    "Output",
    "OutputConfig",
    "OutputContext",
    "SparkOutput",
    "TableControl",
    "TableRows",
]
