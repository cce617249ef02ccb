"""What a source tells people now and then: how far readings are, that a purge is near. Start with `Notices`."""

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
        """Say now and then how far the tables are that are being read."""
        if not tables or time.monotonic() < self.progress_due_s:
            return
        self.progress_due_s = time.monotonic() + _PROGRESS_EVERY_S
        for each in tables:
            self._logger.info(
                "reading a table",
                table=each.source,
                rows=each.rows,
                bytes=each.bytes,
                percent_estimated=None if each.percent is None else round(each.percent, 1),
                left_s_estimated=None if each.left_s is None else int(each.left_s),
                elapsed_s=int(each.elapsed_s),
                tables_waiting=unread,
                **({"waits": each.said} if each.said else {}),
            )

    def of_purge(self, lag: SourceLag) -> None:
        """Say in time that the server will soon purge what is not captured yet; once in ten minutes."""
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
