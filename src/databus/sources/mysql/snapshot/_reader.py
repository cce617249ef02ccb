"""SnapshotReader: tables of a server, read in chunks by some threads, each on a connection of its own."""

from collections.abc import Callable
from typing import Any

import pymysql

from databus.sources import snapshots
from databus.sources.mysql.snapshot._chunk_reader import MysqlChunkReader
from databus.sources.mysql.snapshot._task import ReadableTable, TableTask
from databus.sources.mysql.snapshot._xa_history import XaHistory
from databus.sources.snapshots import ReadChunk, SnapshotOptions


class MysqlSnapshotReader(snapshots.SnapshotReader[ReadableTable]):
    """See `databus.sources.snapshots.SnapshotReader`. connect: makes a connection; called by several threads.

    Tell `xa` each XA transaction that the log prepares or commits, before the log is followed beyond that.
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
