"""Numbers of nodes over time: rates from counters, and a history for charts. Pure; bounded in memory.

A counter is noted at each look; its rate over the last second and the last five minutes follows from it. Every ten
seconds the numbers of a node become a point of its history, which is kept for six hours.
"""

import threading
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

_SHORT_US: Final = 300_000_000
_LOOKS_MAX: Final = 320
"""Of five minutes, one a second, and some more."""
_POINT_US: Final = 10_000_000
_POINTS_MAX: Final = 2_160
NODES_MAX: Final = 1_000
MEASURES: Final = ("rows_s", "bytes_s", "lag_s", "lag_rows", "batch_lag_s")


class _Counter:
    """A number that only rises, unless what counts begins anew."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, float]] = deque(maxlen=_LOOKS_MAX)

    def note(self, at_us: int, value: float) -> None:
        if self._seen and (value < self._seen[-1][1] or at_us <= self._seen[-1][0]):
            self._seen.clear()
        self._seen.append((at_us, value))
        while self._seen[0][0] < at_us - _SHORT_US:
            self._seen.popleft()

    def rate(self, since_us: int = 0) -> float | None:
        """Per second, since the first look that is not older than this; None where there are not two."""
        seen = [each for each in self._seen if each[0] >= since_us]
        if len(seen) < 2:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) * 1e6

    def last_rate(self) -> float | None:
        """Between the last two looks."""
        return self.rate(self._seen[-2][0]) if len(self._seen) > 1 else None


class _Node:
    def __init__(self) -> None:
        self.counters: dict[str, _Counter] = {}
        self.gauges: dict[str, float | None] = {}
        self.points_us = array("q")
        self.points = {name: array("d") for name in MEASURES}

    def add_point(self, at_us: int) -> None:
        if self.points_us and at_us - self.points_us[-1] < _POINT_US:
            return
        since_us = self.points_us[-1] if self.points_us else at_us - _POINT_US
        for name, values in self.points.items():
            counter = self.counters.get(name)
            value = self.gauges.get(name) if counter is None else counter.rate(since_us)
            values.append(float("nan") if value is None else value)
        self.points_us.append(at_us)
        if len(self.points_us) > _POINTS_MAX:
            del self.points_us[0]
            for each in self.points.values():
                del each[0]


class Numbers:
    """Told by any thread, asked by any other. Nodes by `shop/outputs.copy`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, _Node] = {}

    def note(
        self, node: str, at_us: int, counters: Mapping[str, float | None], gauges: Mapping[str, float | None]
    ) -> None:
        """What was seen of a node. counters: what has been counted, by the rate that follows of it."""
        with self._lock:
            found = self._nodes.get(node)
            if found is None:
                if len(self._nodes) >= NODES_MAX:
                    return
                found = self._nodes[node] = _Node()
            for name, value in counters.items():
                if value is not None:
                    found.counters.setdefault(name, _Counter()).note(at_us, value)
            found.gauges.update(gauges)
            found.add_point(at_us)

    def of(self, node: str) -> dict[str, float | None]:
        """The rates of a node now: over the last second, and over five minutes with `_5m` behind their names."""
        with self._lock:
            found = self._nodes.get(node)
            counters = {} if found is None else found.counters
            return {
                **{name: _round(each.last_rate()) for name, each in counters.items()},
                **{f"{name}_5m": _round(each.rate()) for name, each in counters.items()},
            }

    def history(self, nodes: Iterator[str], since_us: int) -> dict[str, Any]:
        """By node, columns: `at_us`, and one for each measure of which something is known."""
        with self._lock:
            return {name: columns for name in nodes if (columns := self._columns(name, since_us)) is not None}

    def _columns(self, name: str, since_us: int) -> dict[str, Any] | None:
        node = self._nodes.get(name)
        if node is None:
            return None
        first = next((at for at, us in enumerate(node.points_us) if us >= since_us), len(node.points_us))
        found: dict[str, Any] = {"at_us": node.points_us[first:].tolist()}
        for measure, values in node.points.items():
            column = [None if value != value else _round(value) for value in values[first:]]  # noqa: PLR0124 - NaN
            if any(value is not None for value in column):
                found[measure] = column
        return found


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
