"""Outputs: where changes end up. Start with `DeltaOutput`."""

from databus.pipeline.outputs._console import ConsoleConfig, ConsoleOutput
from databus.pipeline.outputs._delta import DeltaOutput
from databus.pipeline.outputs._delta_config import DeltaConfig
from databus.pipeline.outputs._delta_read import delta_batches, read_delta
from databus.pipeline.outputs._files import FilesConfig, FilesOutput
from databus.pipeline.outputs._http import HttpConfig, HttpOutput
from databus.pipeline.outputs._kafka import KafkaOutput
from databus.pipeline.outputs._kafka_config import KafkaConfig
from databus.pipeline.outputs._mock import CountOutput, CountOutputConfig, MockOutput, MockOutputConfig
from databus.pipeline.outputs._search import ElasticsearchOutput, OpenSearchOutput
from databus.pipeline.outputs._search_config import ElasticsearchConfig, OpenSearchConfig
from databus.pipeline.outputs._stream import StreamConfig, StreamOutput

__all__ = [
    "ConsoleConfig",
    "ConsoleOutput",
    "CountOutput",
    "CountOutputConfig",
    "DeltaConfig",
    "DeltaOutput",
    "ElasticsearchConfig",
    "ElasticsearchOutput",
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
    "delta_batches",
    "read_delta",
]
