"""Tables read by chunks of their keys while the log goes on. Start with `SnapshotReader`."""

from databus.sources.mysql.snapshot._chunk import BegunAnew, Placed, Progress, SnapshotOptions, TableTask
from databus.sources.mysql.snapshot._reader import SnapshotReader
from databus.sources.mysql.snapshot._tracker import KeyTracker
from databus.sources.mysql.snapshot._watermarks import Watermark
from databus.sources.mysql.snapshot._xa_history import XaHistory

__all__ = [
    "BegunAnew",
    "KeyTracker",
    "Placed",
    "Progress",
    "SnapshotOptions",
    "SnapshotReader",
    "TableTask",
    "Watermark",
    "XaHistory",
]
