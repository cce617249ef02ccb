"""Crash points: named places at which a test may kill the process.

`DATABUS_CRASH_AT=log.fsync.before` kills the process, with SIGKILL, the first time it comes past that place;
`log.fsync.before:7` the seventh time. Without the variable a crash point costs one look at an empty dictionary.
"""

import os
import signal
from functools import cache
from typing import Final

CRASH_POINTS: Final = (
    "log.append.before",
    "log.append.torn",
    "log.append.after",
    "log.fsync.before",
    "log.fsync.after",
    "log.roll.before_new_segment",
    "log.roll.after_new_segment",
    "log.retention.between_unlinks",
    "capture.before_durable",
    "capture.after_durable",
    "groups.journal.before",
    "groups.journal.torn",
    "groups.journal.after",
    "groups.journal.before_rename",
    "groups.names.before_rename",
    "sqlite.cut.before_commit",
    "sqlite.cut.after_commit",
    "sqlite.trim.before",
    "sqlite.trim.after",
    "sqlite.snapshot.after_chunk",
    "mysql.history.before_keep",
    "mysql.history.after_keep",
    "mysql.snapshot.before_chunk",
    "client.window.before_callback",
    "client.window.after_callback",
    "client.checkpoint.before_rename",
    "client.checkpoint.after_rename",
    "parking.before_write",
    "parking.after_write",
    "parking.before_removal",
    "delta.history.before_commit",
    "delta.history.after_commit",
    "delta.mirror.before_commit",
    "delta.mirror.after_commit",
    "files.before_rename",
    "files.after_rename",
    "kafka.before_commit",
    "kafka.after_commit",
    "pipeline.batch.before",
    "pipeline.batch.after",
    "pipeline.ledger.after",
    "bootstrap.cut.before_files",
    "bootstrap.cut.between_tables",
    "bootstrap.note.between",
    "bootstrap.note.after",
    "bootstrap.part.before",
    "bootstrap.part.after",
)
"""Every crash point there is, in the order of the data flow; the kill tests go through all of them."""

_VARIABLE: Final = "DATABUS_CRASH_AT"


@cache
def _armed() -> dict[str, int]:
    """The place that kills, and at which pass from now on. Read when the first place is passed, not when this module is
    imported: a process may be forked from one that had imported it.
    """
    value = os.environ.get(_VARIABLE)
    if not value:
        return {}
    name, _, count = value.partition(":")
    if name not in CRASH_POINTS:
        raise ValueError(f"{_VARIABLE}={value}: no crash point called {name!r}; there are {', '.join(CRASH_POINTS)}")
    return {name: int(count or 1)}


def crash_point(name: str) -> None:
    """Die here if this place is armed."""
    armed = _armed()
    if name in armed:
        armed[name] -= 1
        if armed[name] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)


def is_armed(name: str) -> bool:
    """Whether the next `crash_point(name)` kills; for places that must first arrange a torn state."""
    return _armed().get(name) == 1
