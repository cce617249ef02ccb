"""Operating databus: structured logs, and how a process starts. Begin with `configure_logs`."""

from databus.operate._logs import LogStyle, configure_logs
from databus.operate._starting import starting

__all__ = ["LogStyle", "configure_logs", "starting"]
