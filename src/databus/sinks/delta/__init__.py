"""The output `delta`: histories and mirrors as Delta tables. Start with `DeltaOutput`."""

from databus.sinks.delta._config import DeltaConfig
from databus.sinks.delta._copy import DeltaCopy
from databus.sinks.delta._erase import Erased, replaced_in
from databus.sinks.delta._history import control_row
from databus.sinks.delta._output import DeltaOutput
from databus.sinks.delta._read import delta_batches, read_delta

__all__ = [
    "DeltaConfig",
    "DeltaCopy",
    "DeltaOutput",
    "Erased",
    "control_row",
    "delta_batches",
    "read_delta",
    "replaced_in",
]
