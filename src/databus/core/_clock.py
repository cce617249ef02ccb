"""Clock: the one door to time, so that tests can open another."""

import threading
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

    def monotonic_s(self) -> float:
        """The same in seconds."""
        ...

    def boot_ns(self) -> int:
        """Nanoseconds from some start; never goes back, and counts the time that the machine slept."""
        ...

    def sleep_ms(self, ms: float) -> None:
        """Wait for a fixed time, where no event ends the wait earlier."""
        ...

    def wait(self, event: threading.Event, s_max: float) -> bool:
        """Wait until an event is set, for so long at most; returns whether it is."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        """See `Clock.now_ns`."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """See `Clock.monotonic_ns`."""
        return time.monotonic_ns()

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return time.monotonic()

    def boot_ns(self) -> int:
        """See `Clock.boot_ns`. A lease has to end in a machine that was suspended too."""
        return time.clock_gettime_ns(_BOOT_CLOCK)

    def sleep_ms(self, ms: float) -> None:
        """See `Clock.sleep_ms`."""
        time.sleep(ms / 1e3)

    def wait(self, event: threading.Event, s_max: float) -> bool:
        """See `Clock.wait`."""
        return event.wait(s_max)
