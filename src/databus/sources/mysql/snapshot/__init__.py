"""Tables of a server, read by chunks of their keys while the log goes on. Start with `MysqlSnapshotReader`."""

from databus.sources.mysql.snapshot._read_views import LogWatermark
from databus.sources.mysql.snapshot._reader import MysqlSnapshotReader, XaHistory
from databus.sources.mysql.snapshot._task import TableTask

__all__ = [
    "LogWatermark",
    "MysqlSnapshotReader",
    "TableTask",
    "XaHistory",
]
