"""Outputs: where changes end up, a folder each. Start with `DeltaOutput`.

Spark's tasks import the modules by which an output writes, and this package with them; they have neither the libraries
of configuration nor those of the driver. So what is named here is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from databus.sinks._console import ConsoleConfig, ConsoleOutput
    from databus.sinks._mock import CountOutput, CountOutputConfig, MockOutput, MockOutputConfig
    from databus.sinks._paths import path_of, root_of
    from databus.sinks.delta import (
        DeltaConfig,
        DeltaCopy,
        DeltaOutput,
        Erased,
        control_row,
        delta_batches,
        read_delta,
        replaced_in,
    )
    from databus.sinks.files._output import FilesConfig, FilesOutput
    from databus.sinks.http._output import HttpConfig, HttpOutput
    from databus.sinks.kafka._config import KafkaConfig
    from databus.sinks.kafka._output import KafkaOutput
    from databus.sinks.search._config import ElasticsearchConfig, OpenSearchConfig
    from databus.sinks.search._output import ElasticsearchOutput, OpenSearchOutput
    from databus.sinks.stream import StreamConfig, StreamOutput

_MODULES: Final = {
    "ConsoleConfig": "_console",
    "ConsoleOutput": "_console",
    "CountOutput": "_mock",
    "CountOutputConfig": "_mock",
    "DeltaConfig": "delta",
    "DeltaCopy": "delta",
    "DeltaOutput": "delta",
    "ElasticsearchConfig": "search._config",
    "ElasticsearchOutput": "search._output",
    "Erased": "delta",
    "FilesConfig": "files._output",
    "FilesOutput": "files._output",
    "HttpConfig": "http._output",
    "HttpOutput": "http._output",
    "KafkaConfig": "kafka._config",
    "KafkaOutput": "kafka._output",
    "MockOutput": "_mock",
    "MockOutputConfig": "_mock",
    "OpenSearchConfig": "search._config",
    "OpenSearchOutput": "search._output",
    "StreamConfig": "stream",
    "StreamOutput": "stream",
    "control_row": "delta",
    "delta_batches": "delta",
    "path_of": "_paths",
    "read_delta": "delta",
    "replaced_in": "delta",
    "root_of": "_paths",
}
__all__ = [
    "ConsoleConfig",
    "ConsoleOutput",
    "CountOutput",
    "CountOutputConfig",
    "DeltaConfig",
    "DeltaCopy",
    "DeltaOutput",
    "ElasticsearchConfig",
    "ElasticsearchOutput",
    "Erased",
    "FilesConfig",
    "FilesOutput",
    "HttpConfig",
    "HttpOutput",
    "KafkaConfig",
    "KafkaOutput",
    "MockOutput",
    "MockOutputConfig",
    "OpenSearchConfig",
    "OpenSearchOutput",
    "StreamConfig",
    "StreamOutput",
    "control_row",
    "delta_batches",
    "path_of",
    "read_delta",
    "replaced_in",
    "root_of",
]


if not TYPE_CHECKING:  # else every name would be there

    def __getattr__(name: str) -> Any:
        """What the facade names, by the module that has it."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
