"""Captures physical sources into logs of frames and serves them over HTTP. Start with `Relay` and `Log`."""

from databus.relay._audit import Audit, operator
from databus.relay._capture import State, check_identity, held_identity
from databus.relay._config import CaptureConfig, RelayConfig, ServeConfig, load_relay, parse_relay
from databus.relay._cursor import Cursor, Span
from databus.relay._log import Log
from databus.relay._log_config import LogConfig, LogHead
from databus.relay._measure import ControlMark, Measure
from databus.relay._relay import Relay, run_relay
from databus.relay._schemas import SchemaStore, SchemaVersion

__all__ = [
    "Audit",
    "CaptureConfig",
    "ControlMark",
    "Cursor",
    "Log",
    "LogConfig",
    "LogHead",
    "Measure",
    "Relay",
    "RelayConfig",
    "SchemaStore",
    "SchemaVersion",
    "ServeConfig",
    "Span",
    "State",
    "check_identity",
    "held_identity",
    "load_relay",
    "operator",
    "parse_relay",
    "run_relay",
]
