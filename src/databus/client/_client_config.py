"""How a client behaves, and what it tells of itself."""

from dataclasses import dataclass, field
from enum import StrEnum

from databus.core import Pair, SourceCheckpoint
from databus.link import FollowConfig, ReaderState


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Bounds and habits of a client."""

    follow: FollowConfig = field(default_factory=FollowConfig)
    """How the relay is read."""
    checkpoint_ms: int = 1_000
    """How often a checkpoint is saved, 0 for after every window; also what may come again after a crash."""
    batch_rows_max: int = 0
    """0 for window by window; else waiting windows are joined, up to about so many rows, and the consumer is given
    `WindowBatch`es.
    """
    retries_max: int = 10
    """How often one place is replayed before the source is given up."""
    retry_first_ms: int = 100
    """The pause before a replay; doubled each time."""
    retry_ms_max: int = 30_000
    """The longest of these pauses."""
    unsaved_ms_max: int = 60_000
    """How long the client goes on while its checkpoints cannot be saved, which is tried again after the same pauses;
    then it makes no more calls until one is saved.
    """
    callback_ms_max: int = 300_000
    """Of a group, how long a callback may take before its partition is given back and the client ends."""
    dead_letters_max: int = 10_000
    """With `on_failure="park"`, how many dead letters there may be in the folder; with more, the client stops."""
    refused_in_a_row_max: int = 10
    """How many changes may fail by themselves, one after the other, with none between them that is taken; with more,
    the target is out of order, and the client stops.
    """


class ClientState(StrEnum):
    """Where a client is in its life. WAITING: for a checkpoint that cannot be saved; see `ClientConfig`."""

    NEW = "new"
    RUNNING = "running"
    PAUSED = "paused"
    WAITING = "waiting"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """One physical source, as seen now."""

    physical: str
    reader: ReaderState
    """What its reader does."""
    connections: int
    delivered: Pair
    """The pair up to which windows were given to the consumer."""
    saved: SourceCheckpoint | None
    """The checkpoint that is saved."""
    waiting_bytes: int
    """Received, not delivered."""
    behind_ms: float | None
    """Age of the last delivered transaction while more waits or the relay is away, else 0; None before the first."""
    windows: int
    """How many were delivered, replays included."""
    rows: int
    """The same of rows."""
    failures: int
    last_error: BaseException | None
    dead_letters: int = 0
    """How many wait, of the keys that this client, or this partition, has."""
