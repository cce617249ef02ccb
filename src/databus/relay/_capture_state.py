"""What a capture is doing, and what it has done: for whoever asks, from any thread."""

from dataclasses import dataclass
from enum import IntEnum

from databus.core import PositionPurged, SourceChanged, SourceSuspended
from databus.sources import Movable, Skippable, SourceConfig, offers


class State(IntEnum):
    """What a capture is doing; the numbers are the original's."""

    INITIALIZING = 0
    RUNNING = 100
    PAUSED = 200
    ERROR_RETRY = 300
    SUSPENDED_ON_ERROR = 400
    SHUTDOWN = 1000


@dataclass(frozen=True, slots=True)
class Status:
    """A capture at one moment."""

    state: State
    message: str = ""
    error: str = ""
    """The class of what went wrong, empty while nothing is."""
    since_us: int = 0


class Counters:
    """What a capture has done since it was started. Written by its thread, read by any."""

    __slots__ = ("bytes", "controls", "errors", "groups", "progress", "restarts", "rows", "snapshot_rows")

    def __init__(self) -> None:
        self.groups = 0
        self.rows = 0
        self.snapshot_rows = 0
        self.controls = 0
        self.bytes = 0
        self.progress = 0
        self.restarts = 0
        self.errors = 0


def check_not_suspended(physical: str, status: Status, config: SourceConfig) -> None:
    """Raise `SourceSuspended` for a request to read tables of a suspended source."""
    if status.state is State.SUSPENDED_ON_ERROR:
        resumes = f"Remove that reason, then run `databus sources resume {physical}`"
        mend = resumes if remedy_of(status, config) == "resume" else "Do what that says"
        raise SourceSuspended(
            f"{physical}: nothing will be read again: capture is suspended: {status.error}: {status.message}. {mend}, "
            f"and ask again"
        )


def remedy_of(status: Status, config: SourceConfig) -> str | None:
    """The command of databus by which a suspended source goes on; None if there is none, or none is needed.

    `resume` is for a reason that can be removed while the relay runs. A place that is gone in the database's log
    does not come back: `position set` goes on elsewhere, where the source can. Other errors name their command.
    """
    if status.state is not State.SUSPENDED_ON_ERROR:
        return None
    if "`databus skip`" in status.message and offers(config, Skippable):
        return "skip"
    is_purged = status.error == PositionPurged.__name__
    if is_purged or "`databus position set`" in status.message:
        return "position set" if offers(config, Movable) else None
    return None if status.error == SourceChanged.__name__ else "resume"
