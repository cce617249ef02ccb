"""Back-off: how long to wait before something that failed is tried again, and for how long at all."""

import random

from databus.core._clock import Clock, SystemClock


class Backoff:
    """Waits that double up to a bound, and are jittered so that many who wait do not come at once.

    Who can wait for something else too takes `next_ms` and waits itself; who has nothing to wait for calls `sleep`.
    """

    def __init__(
        self,
        ms_min: float,
        ms_max: float,
        *,
        total_ms: float | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """ms_min, ms_max: the first wait and the longest. total_ms: for how long it is tried, from now or the last
        success; without it, for ever.
        """
        self._ms_min, self._ms_max, self._total_ms = ms_min, ms_max, total_ms
        self._clock = clock or SystemClock()
        self._jitter = (rng or random).random
        self._failures = 0
        self._began_ns = self._clock.monotonic_ns()

    def reset(self) -> None:
        """It worked: begin again with short waits."""
        self._failures = 0
        self.extend()

    def extend(self) -> None:
        """A part of it worked: there is as much time again, and the waits stay as long as they are."""
        self._began_ns = self._clock.monotonic_ns()

    @property
    def is_over(self) -> bool:
        """Whether it was tried for `total_ms`."""
        return self._left_ms <= 0

    def next_ms(self) -> float:
        """How long to wait after one failure more, and at most until `total_ms` is over."""
        self._failures += 1
        return min(self.after(self._failures), max(self._left_ms, 0.0))

    def after(self, failures: int) -> float:
        """How long to wait after so many failures in a row: between a half and the whole of the doubled time."""
        if not failures:
            return 0.0
        doublings = min(failures - 1, 30)  # a week of failures has a power that overflows
        whole = min(self._ms_min * 2.0**doublings, self._ms_max)
        return whole * (0.5 + self._jitter() / 2)

    def sleep(self) -> None:
        """Wait for `next_ms`."""
        self._clock.sleep_ms(self.next_ms())

    @property
    def _left_ms(self) -> float:
        if self._total_ms is None:
            return float("inf")
        return self._total_ms - (self._clock.monotonic_ns() - self._began_ns) / 1e6
