"""Tables of a server, read by chunks of their keys while the log goes on. Start with `MysqlSnapshotReader`."""

from databus.sources.mysql.snapshot._chunk_reader import TableTask
from databus.sources.mysql.snapshot._reader import MysqlSnapshotReader, XaHistory

__all__ = [
    "MysqlSnapshotReader",
    "TableTask",
    "XaHistory",
]
