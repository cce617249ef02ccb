"""Renewed certificates and tokens of a run whose executors are elsewhere: these are sent the files again."""

import time
from collections.abc import Callable
from typing import Any, Final

from databus.core import Clock, ConfigError, SystemClock

_TOLD_EVERY_NS: Final = 60_000_000_000


class Renewals:
    """Looks whether files have changed. logger: told when they were sent, and while they cannot be.

    send: sends them if they have changed, and returns whether they were sent; raises `ConfigError` while they cannot be
    used together; until it is given, nobody is elsewhere. last_s: when files were sent last, by the monotonic clock.
    """

    def __init__(self, logger: Any, clock: Clock | None = None) -> None:
        self.send: Callable[[], bool] = lambda: False
        self.last_s: float | None = None
        self._logger = logger
        self._clock = clock or SystemClock()
        self._silent_until_ns: int | None = None

    def look(self) -> None:
        """Send what has changed. What cannot be sent is told at once, and then once a minute."""
        try:
            is_sent = self.send()
        except ConfigError as error:
            self._tell(error)
            return
        if is_sent:
            self.last_s = time.monotonic()
            self._logger.info("executors were sent the renewed files by which the relay is asked")

    def _tell(self, error: ConfigError) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._silent_until_ns is not None and now_ns < self._silent_until_ns:
            return
        self._silent_until_ns = now_ns + _TOLD_EVERY_NS
        self._logger.warning(
            "the files by which the relay is asked have changed and cannot be used together; executors keep those that "
            "they were sent before",
            message=str(error),
        )
