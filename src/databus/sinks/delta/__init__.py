"""The output `delta`: histories and mirrors as Delta tables. Start with `DeltaOutput`."""

from databus.sinks.delta._config import DeltaConfig
from databus.sinks.delta._output import DeltaOutput
from databus.sinks.delta._read import delta_batches, read_delta

__all__ = ["DeltaConfig", "DeltaOutput", "delta_batches", "read_delta"]
