"""A clock that stands still until a test moves it."""

import threading


class FakeClock:
    """A `databus.core.Clock` that tests move."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        """See `Clock.now_ns`."""
        return self._now_ns

    def monotonic_ns(self) -> int:
        """See `Clock.monotonic_ns`."""
        return self._monotonic_ns

    def monotonic_s(self) -> float:
        """See `Clock.monotonic_s`."""
        return self._monotonic_ns / 1e9

    def boot_ns(self) -> int:
        """See `Clock.boot_ns`."""
        return self._monotonic_ns

    def advance_ms(self, ms: float) -> None:
        """Let time pass."""
        self._now_ns += int(ms * 1_000_000)
        self._monotonic_ns += int(ms * 1_000_000)

    def sleep_ms(self, ms: float) -> None:
        """See `Clock.sleep_ms`."""
        self.advance_ms(ms)

    def wait(self, event: threading.Event, s_max: float) -> bool:
        """See `Clock.wait`: the time passes at once, unless the event is set."""
        if not event.is_set():
            self.advance_ms(s_max * 1e3)
        return event.is_set()
