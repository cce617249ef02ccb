"""A physical source as a client follows it, and when its checkpoints are saved."""

import time
from typing import TYPE_CHECKING, Final

from databus.client._client_config import SourceStatus
from databus.client._consumer import AnyWindow
from databus.client._lane import Lane
from databus.client._subscription import WantedSource
from databus.core import Backoff, SourceCheckpoint
from databus.link import ReaderState
from databus.operate import logger_of

if TYPE_CHECKING:
    from databus.client._parking import ClientParking

_logger: Final = logger_of("databus.client")


class Saving:
    """Whether checkpoints can be saved. A failure is followed by a pause, doubled each time up to a bound."""

    def __init__(self, retry_first_ms: int, retry_ms_max: int) -> None:
        self._backoff = Backoff(retry_first_ms, retry_ms_max)
        self._failing_since: float | None = None
        self._again_at = 0.0

    def failed(self, error: BaseException) -> None:
        """It did not work."""
        now, pause_ms = time.monotonic(), self._backoff.next_ms()
        self._again_at = now + pause_ms / 1e3
        if self._failing_since is None:
            self._failing_since = now
        _logger.warning(
            "the checkpoint was not saved; it is tried again",
            error=type(error).__name__,
            message=str(error),
            retry_ms=round(pause_ms),
            failing_ms=round((now - self._failing_since) * 1e3),
        )

    def succeeded(self) -> None:
        """It works, or there is nothing left to save."""
        if self._failing_since is not None:
            _logger.info("checkpoints are saved again", failed_ms=round((time.monotonic() - self._failing_since) * 1e3))
            self._backoff.reset()
            self._failing_since, self._again_at = None, 0.0

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt failed."""
        return self._failing_since is not None

    def has_failed_for_ms(self, ms: int) -> bool:
        """Whether nothing could be saved for so long."""
        return self._failing_since is not None and (time.monotonic() - self._failing_since) * 1e3 >= ms

    @property
    def may_try(self) -> bool:
        """Whether the pause after the last failure is over."""
        return time.monotonic() >= self._again_at

    @property
    def wait_s(self) -> float:
        """How much of the pause is left."""
        return max(self._again_at - time.monotonic(), 0.0)


class FollowedSource:
    """One physical source in the client: its lane, which is renewed at each replay, and what has been counted.
    parking: what becomes of rows that fail; None where they stop the client.
    """

    def __init__(self, wanted: WantedSource, lane: Lane, parking: "ClientParking | None" = None) -> None:
        self.wanted = wanted
        self.lane: Lane | None = lane
        self.parking = parking
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
            dead_letters=0 if self.parking is None else self.parking.count,
        )
