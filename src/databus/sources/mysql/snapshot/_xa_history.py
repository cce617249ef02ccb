"""XA transactions in the log, as far as they decide whether a view shows what one of them changed.

MariaDB writes XA COMMIT to its log first and has the engine commit a moment later, in no order with consistent
snapshots: one that is opened in between lacks rows that its place in the log contains. The server still names the
transaction as prepared at that moment, so a view knows which ones it may lack, and the log which of them it contains.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

EVENTS_MAX: Final = 1 << 16
"""How many prepares and commits are remembered; each is needed for a moment only."""


class XaHistory:
    """The last prepares and commits in the log, by the ids that `binlog.xid_of` gives."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self._events_max = events_max
        self._events: dict[str, deque[tuple[int, bool]]] = {}
        self._order: deque[str] = deque()

    def prepared(self, xid: str, scn: int) -> None:
        """The log has its prepare."""
        self._add(xid, scn, is_commit=False)

    def committed(self, xid: str, scn: int) -> None:
        """The log has its commit."""
        self._add(xid, scn, is_commit=True)

    def is_any_committed(self, xids: Iterable[str], scn: int) -> bool:
        """Whether one of them was committed, and not prepared again, in the log up to this SCN."""
        return any(self._is_committed(xid, scn) for xid in xids)

    def _is_committed(self, xid: str, scn: int) -> bool:
        commits = [is_commit for at, is_commit in self._events.get(xid, ()) if at <= scn]
        return bool(commits) and commits[-1]

    def _add(self, xid: str, scn: int, *, is_commit: bool) -> None:
        self._events.setdefault(xid, deque()).append((scn, is_commit))
        self._order.append(xid)
        if len(self._order) > self._events_max:
            oldest = self._order.popleft()
            self._events[oldest].popleft()
            if not self._events[oldest]:
                del self._events[oldest]
