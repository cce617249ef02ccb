"""Operating databus: logs without secrets, how a process starts, and ends with its parent. See `configure_logs`."""

from databus.operate._children import end_child, end_with_parent, start_child
from databus.operate._logs import LogStyle, configure_logs, logger_of, mark_reported
from databus.operate._secrets import WORDS, hide_in_answer, hide_in_config, hide_in_text, is_secret_name
from databus.operate._starting import has_terminal, starting

__all__ = [
    "WORDS",
    "LogStyle",
    "configure_logs",
    "end_child",
    "end_with_parent",
    "has_terminal",
    "hide_in_answer",
    "hide_in_config",
    "hide_in_text",
    "is_secret_name",
    "logger_of",
    "mark_reported",
    "start_child",
    "starting",
]
