"""What of a log has been read against its checksums by this process: stretches of segments, between groups.

One reader pays for that; all who come behind it are given the same stretch without another look at it. Clients check
every frame again, so bytes that go wrong later are found there.
"""

import threading
from typing import Final

STRETCHES_MAX: Final = 1024  # of all segments; the oldest knowledge goes first


class Verified:
    """Stretches (start, end) of segments, each from the start of a group to the end of one. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stretches: dict[int, list[tuple[int, int]]] = {}

    def note(self, segment: int, start: int, end: int) -> None:
        """A stretch was read and is good."""
        if end <= start:
            return
        with self._lock:
            apart = []
            for each in self._stretches.get(segment, ()):
                if each[1] < start or each[0] > end:
                    apart.append(each)
                else:
                    start, end = min(start, each[0]), max(end, each[1])
            self._stretches[segment] = sorted([*apart, (start, end)])
            while sum(map(len, self._stretches.values())) > STRETCHES_MAX:
                self._stretches.pop(min(self._stretches))

    def end(self, segment: int, offset: int) -> int:
        """Up to where everything from `offset`, between two groups, is known to be good: `offset` if nothing is."""
        with self._lock:
            return next((end for start, end in self._stretches.get(segment, ()) if start <= offset < end), offset)

    def forget(self, segment: int) -> None:
        """The segment is gone, or was cut back."""
        with self._lock:
            self._stretches.pop(segment, None)
