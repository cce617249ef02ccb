"""The built-in inputs: `databus` and `mock`."""

from databus.pipeline.inputs._databus import DatabusInput, DatabusInputConfig
from databus.pipeline.inputs._mock import MockInput
from databus.pipeline.inputs._mock_config import MockInputConfig

__all__ = ["DatabusInput", "DatabusInputConfig", "MockInput", "MockInputConfig"]
