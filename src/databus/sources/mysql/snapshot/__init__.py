"""Tables of a server, read by chunks of their keys while the log goes on. Start with `SnapshotReader`."""

from databus.sources.mysql.snapshot._reader import SnapshotReader
from databus.sources.mysql.snapshot._task import TableTask
from databus.sources.mysql.snapshot._watermarks import Watermark
from databus.sources.mysql.snapshot._xa_history import XaHistory

__all__ = [
    "SnapshotReader",
    "TableTask",
    "Watermark",
    "XaHistory",
]
