"""Clock: the one door to time, so that tests can open another."""

import time
from typing import Protocol


class Clock(Protocol):
    """Where time comes from."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since 1970 UTC. May go back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from some start; never goes back."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """See `Clock.now_ns`."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """See `Clock.monotonic_ns`."""
        return time.monotonic_ns()
