"""Outputs: where changes end up, a folder each; a pipeline finds them by their types. Start with `DeltaOutput`.

Spark's tasks import the modules by which an output writes, and this package with them; they have neither the libraries
of configuration nor those of the driver. So what others ask for here is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from databus.sinks._paths import path_of, root_of
    from databus.sinks.delta._config import DeltaConfig
    from databus.sinks.delta._copy import DeltaCopy
    from databus.sinks.delta._erase import Erased, drop_files, replaced_in
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
    "drop_files",
    "path_of",
    "read_delta",
    "replaced_in",
    "root_of",
]
_MODULES: Final = (
    "_paths",
    "delta._read",
    "delta._history",
    "delta._config",
    "delta._copy",
    "delta._erase",
    "delta._output",
)
"""Where these names are looked for, that which needs least first."""

if not TYPE_CHECKING:  # else every name would be there

    def __getattr__(name: str) -> Any:
        """What the facade names."""
        if name in __all__:
            for module in _MODULES:
                value = vars(import_module(f"{__name__}.{module}")).get(name)
                if value is not None:
                    return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
