"""Where a log ends, in the words of the source that continues after it."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from databus.core import timeline_of
from databus.log._reader import FrameReader
from databus.log._segment import End
from databus.log._view import LogView
from databus.schema import TableSchema
from databus.wire import OpenSnapshot


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the log ends: everything up to here is in it. A new log has the defaults."""

    position: Mapping[str, Any] | None = None
    """The last published commit's own position; None for a new log."""
    scn: int = 0
    """SCN of that commit."""
    seq: int = 0
    """`_seq` of that commit."""
    txid: str = ""
    """Transaction of that commit."""
    timeline: int = 0
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    """The definitions in force, by source."""
    snapshots: Mapping[str, OpenSnapshot] = field(default_factory=dict)
    """The open snapshots, by source."""
    captured_us: int = 0
    """When that commit's frame was written, by which a copy recognises the frame."""
    log_id: str = ""
    """`UUID at FOLDER on HOST`, for sources that record who captures them."""
    folder: Path | None = None
    """A folder beside the log, where the source keeps what it must remember and the log does not hold; None where it
    keeps nothing."""

    @classmethod
    def after(cls, end: End, view: LogView, folder: Path) -> Self:
        """At the end of the last whole transaction in a log."""
        commit, is_new, captured_us = end.commit, end.commit_offset < 0, 0
        if not is_new:
            with FrameReader(view.file(view.segment(end.segment)), end.offset, with_bodies=False) as reader:
                captured_us = reader.header(end.commit_offset).capture_us
        return cls(
            position=None if is_new else commit.position,
            scn=commit.scn,
            seq=commit.seq,
            txid=commit.txid,
            timeline=timeline_of(commit.scn),
            schemas=view.schemas.in_force(),
            snapshots=commit.snapshots,
            captured_us=captured_us,
            log_id=f"{view.uuid} at {folder.resolve()} on {socket.gethostname()}",
            folder=folder / "source",
        )
