"""The built-in inputs: `databus` and `mock`."""

from databus.pipeline.inputs._databus import DatabusInput
from databus.pipeline.inputs._mock import MockInput

__all__ = [
    "DatabusInput",
    "MockInput",
]
