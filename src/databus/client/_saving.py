"""Saving checkpoints while their store fails: when to try again, and what to say meanwhile."""

import time
from typing import Final

from databus.core import Backoff
from databus.operate import logger_of

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
