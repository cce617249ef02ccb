"""Clock: the one door to time, so that tests can open another."""

import time
from typing import Final, Protocol

_BOOT_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS's monotonic clock counts sleep


class Clock(Protocol):
    """Where time comes from."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since 1970 UTC. May go back."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds from some start; never goes back. It may stand still while the machine sleeps."""
        ...

    def boot_ns(self) -> int:
        """Nanoseconds from some start; never goes back, and counts the time that the machine slept."""
        ...

    def sleep_ms(self, ms: float) -> None:
        """Wait for a fixed time, where no event ends the wait earlier."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """See `Clock.now_ns`."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """See `Clock.monotonic_ns`."""
        return time.monotonic_ns()

    def boot_ns(self) -> int:
        """See `Clock.boot_ns`. A lease has to end in a machine that was suspended too."""
        return time.clock_gettime_ns(_BOOT_CLOCK)

    def sleep_ms(self, ms: float) -> None:
        """See `Clock.sleep_ms`."""
        time.sleep(ms / 1e3)
