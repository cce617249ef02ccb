"""How far capture is behind its database, as an age that grows while it cannot be asked. Pure: time is given."""

from dataclasses import replace
from typing import Final

from databus.sources import SourceLag

_FRESH_NS: Final = 5_000_000_000
"""A look stands for now for so long: capture looks once a second, unless it hangs."""


class LagWatch:
    """Takes what a source measures, and says what it means later. Times are of a clock that never goes back."""

    def __init__(self) -> None:
        self._lag = SourceLag()
        self._looked_ns: int | None = None
        self._complete_ns: int | None = None
        """All that the database had committed then is in the log."""

    def measured(self, lag: SourceLag, now_ns: int) -> None:
        """The source has looked."""
        self._lag, self._looked_ns = lag, now_ns
        if lag.behind_ms is not None:
            # A source that was quiet for long knows only its last commit; that it was once at the end is known here.
            self._complete_ns = max(self._complete_ns or 0, now_ns - int(lag.behind_ms * 1e6))

    def now(self, now_ns: int, *, is_looking: bool, committed_ms: float | None) -> SourceLag:
        """What is known now. is_looking: whether the source measures now: capture goes on, or is paused.

        committed_ms: the age of the log's last commit, which counts before the first measurement.
        """
        since_ns = 0 if self._looked_ns is None else now_ns - self._looked_ns
        is_fresh = is_looking and since_ns <= _FRESH_NS
        if self._complete_ns is None:
            behind_ms = None if is_fresh else committed_ms
        else:
            is_known = is_fresh and self._lag.behind_ms is not None
            behind_ms = (now_ns - (since_ns if is_known else 0) - self._complete_ns) / 1e6
        lag = replace(self._lag, behind_ms=behind_ms)
        if is_fresh:
            return lag
        left_ms = lag.retention_left_ms
        left_ms = None if left_ms is None else max(left_ms - since_ns / 1e6, 0.0)
        return replace(lag, changes=None, bytes=None, retention_left_ms=left_ms)
