"""A physical source as a client follows it."""

from databus.client._client_config import SourceStatus
from databus.client._consumer import AnyWindow
from databus.client._lane import Lane
from databus.client._subscription import Wanted
from databus.core import SourceCheckpoint
from databus.link import ReaderState


class FollowedSource:
    """One physical source in the client: its lane, which is renewed at each replay, and what has been counted."""

    def __init__(self, wanted: Wanted, lane: Lane) -> None:
        self.wanted = wanted
        self.lane: Lane | None = lane
        self.replay_from: SourceCheckpoint | None = None
        self.replay_at = 0.0
        self.is_known = False
        self.is_left = False
        self.last: AnyWindow | None = None
        self.windows = 0
        self.rows = 0
        self.failures = 0
        self.last_error: BaseException | None = None
        self.checkpointed_at = 0.0

    def status(self, saved: SourceCheckpoint | None, now_ms: float) -> SourceStatus:
        """As it is now; by any thread."""
        lane, last = self.lane, self.last
        reader = ReaderState.WAITING if lane is None else lane.reader.state
        waiting = 0 if lane is None else lane.reader.channel.bytes_waiting
        behind_ms = None
        if last is not None:
            is_current = waiting == 0 and reader in (ReaderState.STREAMING, ReaderState.ENDED)
            behind_ms = 0.0 if is_current else max(now_ms - last.commit_us / 1e3, 0.0)
        error = self.last_error
        if error is None and lane is not None:
            error = lane.reader.last_error
        return SourceStatus(
            physical=self.wanted.physical,
            reader=ReaderState.FAILED if self.is_left else reader,
            connections=0 if lane is None else lane.reader.connections,
            delivered=(0, 0) if last is None else last.position.pair,
            saved=saved,
            waiting_bytes=waiting,
            behind_ms=behind_ms,
            windows=self.windows,
            rows=self.rows,
            failures=self.failures,
            last_error=error,
        )
