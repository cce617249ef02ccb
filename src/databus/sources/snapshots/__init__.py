"""Tables read in chunks while the log goes on: what sources share. Start with `SnapshotReader`.

The books, the threads, and the rule by which a chunk finds its place in the log are here; how a database reads a chunk,
and where in its log that was, are protocols.
"""

from databus.sources.snapshots._chunks import (
    BegunAnew,
    Placed,
    Position,
    Progress,
    Readable,
    ReadChunk,
    SnapshotOptions,
    Task,
    Watermark,
)
from databus.sources.snapshots._reader import ChunkReader, Host, ReadAbandoned, SnapshotReader, TableLocked
from databus.sources.snapshots._reading import Reading
from databus.sources.snapshots._tracker import KeyTracker

__all__ = [
    "BegunAnew",
    "ChunkReader",
    "Host",
    "KeyTracker",
    "Placed",
    "Position",
    "Progress",
    "ReadAbandoned",
    "ReadChunk",
    "Readable",
    "Reading",
    "SnapshotOptions",
    "SnapshotReader",
    "TableLocked",
    "Task",
    "Watermark",
]
