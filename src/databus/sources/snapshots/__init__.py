"""Tables read in chunks while the log goes on: what sources share. Start with `SnapshotReader`.

What is read and what remains, the threads, and the rule by which a chunk finds its place in the log are here; how a
database reads a chunk, and where in its log that was, are protocols.
"""

from databus.sources.snapshots._chunks import (
    Placed,
    Position,
    Progress,
    Readable,
    ReadChunk,
    ReadingRestarted,
    SnapshotOptions,
    Task,
    Watermark,
)
from databus.sources.snapshots._reader import ChunkReader, ReadAbandoned, SnapshotReader, TableLocked
from databus.sources.snapshots._reading import SnapshotReading
from databus.sources.snapshots._tracker import KeyTracker

__all__ = [
    "ChunkReader",
    "KeyTracker",
    "Placed",
    "Position",
    "Progress",
    "ReadAbandoned",
    "ReadChunk",
    "Readable",
    "ReadingRestarted",
    "SnapshotOptions",
    "SnapshotReader",
    "SnapshotReading",
    "TableLocked",
    "Task",
    "Watermark",
]
