"""SnapshotReader: tables of a server, read in chunks by some threads, each on a connection of its own."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import pymysql

from databus.sources import snapshots
from databus.sources.mysql.snapshot._chunk_reader import MysqlChunkReader, ReadableTable, TableTask
from databus.sources.snapshots import ReadChunk, SnapshotOptions

EVENTS_MAX: Final = 1 << 16
"""How many prepares and commits are remembered; each is needed for a moment only."""


class XaHistory:
    """The last prepares and commits of XA transactions in the log, by the ids that `binlog.xid_of` gives.

    MariaDB writes XA COMMIT to its log first and has the engine commit a moment later, in no order with consistent
    snapshots: one that is opened in between lacks rows that its place in the log contains. The server still names the
    transaction as prepared at that moment, so a view knows which ones it may lack, and the log which of them it has.
    """

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


class MysqlSnapshotReader(snapshots.SnapshotReader[ReadableTable]):
    """See `databus.sources.snapshots.SnapshotReader`. connect: makes a connection; called by several threads.

    Report to `xa` each XA transaction that the log prepares or commits, before the log is followed beyond that.
    """

    def __init__(
        self,
        connect: Callable[[], pymysql.Connection],
        options: SnapshotOptions | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        snapshot_options = options or SnapshotOptions()
        super().__init__(lambda host: MysqlChunkReader(connect, snapshot_options, host), snapshot_options, on_ready)
        self.xa = XaHistory()

    def lacks(self, chunk: ReadChunk) -> bool:
        """Whether the rows read lack an XA transaction that is committed in the log."""
        return self.xa.is_any_committed(chunk.prepared, chunk.after)

    def begin(self, task: TableTask, remains: tuple[Any, ...] | None = None, order: tuple[str, ...] = ()) -> None:
        """Read a table, or the parts that `remains` names; see `begin_table`."""
        import databus.sources.mysql.snapshot._result_kernels  # noqa: F401 - compiled once, before threads race for it

        self.begin_table(ReadableTable(task), remains, order)

    def redefine(self, task: TableTask) -> None:
        """The table has another definition from here on; see `redefine_table`."""
        self.redefine_table(ReadableTable(task))
