"""When lasting trouble goes to the log: at once, then once a minute, and when it is over. Pure; no I/O."""

import threading
from typing import Final

from databus.core import Clock, SystemClock

_EVERY_S: Final = 60.0


class Reminders:
    """For any thread. Trouble is identified by what it is about, such as the name of a query, and by its text."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._logged_s: dict[str, dict[str, float]] = {}

    def is_due(self, about: str, what: str) -> bool:
        """Note trouble; returns whether to log it now: it is new, or was last logged a minute ago."""
        with self._lock:
            now_s, logged_s = self._clock.monotonic_s(), self._logged_s.setdefault(about, {})
            if now_s - logged_s.get(what, -_EVERY_S) < _EVERY_S:
                return False
            for old in [text for text, at_s in logged_s.items() if now_s - at_s >= _EVERY_S]:
                del logged_s[old]  # texts that differ each time, such as by a port, must not pile up
            logged_s[what] = now_s
            return True

    def is_known(self, about: str) -> bool:
        """Whether there is trouble that is not over."""
        return about in self._logged_s

    def end(self, about: str) -> bool:
        """Note that trouble is over; returns whether there was any."""
        with self._lock:
            return self._logged_s.pop(about, None) is not None
