"""Numbers of nodes now: rates from counters; every ten seconds they become a point of the history. Bounded in memory.

A counter is noted at each look; its rates over the last second and the last five minutes follow.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from databus.dashboard._history import FINE_S, History

_SHORT_US: Final = 300_000_000
_LOOKS_MAX: Final = 320
"""Five minutes of one look a second, and some more."""
NODES_MAX: Final = 1_000
"""Beyond it new nodes have no numbers."""


class _Counter:
    """A number that only rises, until what counts it restarts."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_LOOKS_MAX)

    def note(self, at_us: int, value: float) -> None:
        if self._seen and (value < self._seen[-1][1] or at_us <= self._seen[-1][0]):
            self._seen.clear()  # a restart, or a clock that was set back: no rate goes over it
        self._seen.append((at_us, value))
        while self._seen[0][0] < at_us - _SHORT_US:
            self._seen.popleft()

    def rate(self, since_us: int = 0) -> float | None:
        """Per second, since the first look that is not older than this; None with fewer than two looks."""
        seen = [look for look in self._seen if look[0] >= since_us]
        if len(seen) < 2:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) * 1e6

    def last_rate(self) -> float | None:
        """Between the last two looks."""
        return self.rate(self._seen[-2][0]) if len(self._seen) > 1 else None


class _NodeCounters:
    def __init__(self) -> None:
        self.counters: dict[str, _Counter] = {}
        self.point_us = 0


class Numbers:
    """Safe in any thread. Nodes have names such as `shop/outputs.copy`."""

    def __init__(self, history: History) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _NodeCounters] = {}
        self._history = history

    def note(
        self, node: str, at_us: int, counters: Mapping[str, float | None], gauges: Mapping[str, float | None]
    ) -> None:
        """Note what a look saw of a node. counters: by the name of the rate that follows from each."""
        with self._lock:
            numbers = self._nodes.get(node)
            if numbers is None:
                if len(self._nodes) >= NODES_MAX:
                    return
                numbers = self._nodes[node] = _NodeCounters()
            for name, value in counters.items():
                if value is not None:
                    numbers.counters.setdefault(name, _Counter()).note(at_us, value)
            since_us = at_us - FINE_S * 1_000_000
            if since_us < numbers.point_us <= at_us:  # else it is time, or the clock was set back
                return
            numbers.point_us = at_us
            rates = {name: counter.rate(since_us) for name, counter in numbers.counters.items()}
        # Without the lock, since it writes to disk: reads of rates do not wait for it.
        self._history.put(node, at_us // 1_000_000, {**gauges, **rates})

    @property
    def trouble(self) -> str:
        """Why the history is not written; empty while all is well."""
        return self._history.trouble

    def of(self, node: str) -> dict[str, float | None]:
        """The rates of a node now: over the last second, and over five minutes with `_5m` behind their names."""
        with self._lock:
            numbers = self._nodes.get(node)
            counters = {} if numbers is None else numbers.counters
            return {
                **{name: _round(counter.last_rate()) for name, counter in counters.items()},
                **{f"{name}_5m": _round(counter.rate()) for name, counter in counters.items()},
            }

    def history(self, nodes: Iterable[str], since_us: int) -> dict[str, Any]:
        """By node, columns: see `History.of`."""
        now_s = int(time.time())
        by_node = {node: self._history.of(node, since_us // 1_000_000, now_s) for node in nodes}
        return {node: columns for node, columns in by_node.items() if columns is not None}


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
