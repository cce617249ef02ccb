"""A log of frames on disk: segments, recovery, a sparse index, cursors for any number of readers. Start with `Log`."""

from databus.log._config import LogConfig
from databus.log._cursor import Cursor, Measuring, Span
from databus.log._log import Log
from databus.log._measure import Measure, MeasureLimits
from databus.log._origin import LogOrigin, definitions_from_json
from databus.log._reader import FrameReader
from databus.log._resume import Resume
from databus.log._retention import Guard
from databus.log._scan import Allowance, scan
from databus.log._schemas import SchemaStore, SchemaVersion
from databus.log._segment import End, SegmentFile, SegmentHeader, segment_numbers, segment_path
from databus.log._view import LogView

__all__ = [
    "Allowance",
    "Cursor",
    "End",
    "FrameReader",
    "Guard",
    "Log",
    "LogConfig",
    "LogOrigin",
    "LogView",
    "Measure",
    "MeasureLimits",
    "Measuring",
    "Resume",
    "SchemaStore",
    "SchemaVersion",
    "SegmentFile",
    "SegmentHeader",
    "Span",
    "definitions_from_json",
    "scan",
    "segment_numbers",
    "segment_path",
]
