"""The built-in inputs: `databus` and `mock`."""

from databus.pipeline.inputs._databus import DatabusInput, DatabusInputConfig
from databus.pipeline.inputs._mock import MockInput, MockInputConfig

__all__ = ["DatabusInput", "DatabusInputConfig", "MockInput", "MockInputConfig"]
