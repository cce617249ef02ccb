"""Notices in the log of a source: how far snapshots are, and that a purge is near. Start with `Notices`."""

import time
from collections.abc import Sequence
from typing import Any, Final

from databus.sources._contract import SourceLag
from databus.sources.snapshots import Progress

_WARN_EVERY_S: Final = 600.0
_PROGRESS_EVERY_S: Final = 10.0


class Notices:
    """Lines in the source's log, each kind no more often than it is of use."""

    def __init__(self, logger: Any, retention_warn_ms: int) -> None:
        self._logger = logger
        self._retention_warn_ms = retention_warn_ms
        self._warn_due_s = 0.0
        self.progress_due_s = 0.0

    def of_progress(self, tables: Sequence[Progress], unread: int) -> None:
        """Log now and then how far the snapshots are."""
        if not tables or time.monotonic() < self.progress_due_s:
            return
        self.progress_due_s = time.monotonic() + _PROGRESS_EVERY_S
        for table in tables:
            self._logger.info(
                "reading a table",
                table=table.source,
                rows=table.rows,
                bytes=table.bytes,
                percent_estimated=None if table.percent is None else round(table.percent, 1),
                left_s_estimated=None if table.left_s is None else int(table.left_s),
                elapsed_s=int(table.elapsed_s),
                tables_waiting=unread,
                **({"waits": table.said} if table.said else {}),
            )

    def of_purge(self, lag: SourceLag) -> None:
        """Warn that the server will soon purge what is not captured yet; at most once in ten minutes."""
        left_ms = lag.retention_left_ms
        if left_ms is None or left_ms >= self._retention_warn_ms or time.monotonic() < self._warn_due_s:
            return
        self._warn_due_s = time.monotonic() + _WARN_EVERY_S
        self._logger.warning(
            "the server purges what is not captured yet in less than retention_warn_ms",
            left_s=int(left_ms / 1e3),
            behind_s=int((lag.behind_ms or 0) / 1e3),
            mend="let capture catch up, or raise binlog_expire_logs_seconds on the server",
        )
