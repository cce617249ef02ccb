"""Operating databus: structured logs. Start with `configure_logs`."""

from databus.operate._logs import LogStyle, configure_logs

__all__ = ["LogStyle", "configure_logs"]
