"""Tables of a server, read by chunks of their keys while the log goes on. Start with `MysqlSnapshotReader`."""

from databus.sources.mysql.snapshot._reader import MysqlSnapshotReader
from databus.sources.mysql.snapshot._task import TableTask
from databus.sources.mysql.snapshot._watermarks import LogWatermark
from databus.sources.mysql.snapshot._xa_history import XaHistory

__all__ = [
    "LogWatermark",
    "MysqlSnapshotReader",
    "TableTask",
    "XaHistory",
]
