"""Where a log ends, in the words of the source that continues after it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from databus.schema import TableSchema
from databus.wire import OpenSnapshot


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the log ends: everything up to here is in it. A new log has the defaults.

    position: the last published commit's own position; None for a new log. scn, seq, txid: its pair and transaction.
    schemas: in force, by source. snapshots: open, by source.
    log_id: `UUID at FOLDER on HOST`, for sources that record who captures them. folder: beside the
    log, of the source's own, for what it must remember and the log does not hold; None where nothing is kept.
    """

    position: Mapping[str, Any] | None = None
    scn: int = 0
    seq: int = 0
    txid: str = ""
    timeline: int = 0
    schemas: Mapping[str, TableSchema] = field(default_factory=dict)
    snapshots: Mapping[str, OpenSnapshot] = field(default_factory=dict)
    log_id: str = ""
    folder: Path | None = None
