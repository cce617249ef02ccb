"""The output `stream`: lines to a command or a file. Start with `StreamOutput`."""

from databus.sinks.stream._output import StreamOutput, StreamOutputConfig

__all__ = ["StreamOutput", "StreamOutputConfig"]
