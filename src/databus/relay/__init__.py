"""The relay: captures physical sources into logs of frames and serves them. Start with `Log`, then `Cursor`."""

from databus.relay._cursor import Cursor, Measure, Span
from databus.relay._log import Log, LogConfig, LogHead
from databus.relay._schemas import SchemaStore, SchemaVersion

__all__ = [
    "Cursor",
    "Log",
    "LogConfig",
    "LogHead",
    "Measure",
    "SchemaStore",
    "SchemaVersion",
    "Span",
]
