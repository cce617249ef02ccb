"""Lines of a followed file, or of a process's standard output, as rows of a table. Start with `StreamSource`."""

from databus.sources.stream._config import StreamConfig
from databus.sources.stream._source import StreamSource

__all__ = ["StreamConfig", "StreamSource"]
