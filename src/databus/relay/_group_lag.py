"""How far each partition of a group is behind the logs: in seconds, changes, bytes, and what is left of retention.

It reads the logs, so it runs in a thread. Partitions that stand at one place share the look at it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.core import Checkpoint, DatabusError, SourceCheckpoint
from databus.log import Allowance, MeasureLimits, Measuring
from databus.relay._capture import Capture

_LOOKED_AT_MAX: Final = 500  # places that one request reads the logs for; of more, the age of the place is told
_MEASURE_MS_MAX: Final = 20
_MEASURE_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PlaceLag:
    """How far a place is behind the published end. None for what cannot be told.

    seconds: age of the first change behind it. changes: an estimate by bytes where there are many. retention_left_s:
    until what comes next may leave the log. error: why one cannot go on there.
    """

    seconds: float | None = None
    changes: int | None = None
    bytes: int | None = None
    retention_left_s: float | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is answered."""
        return {
            "s": None if self.seconds is None else round(self.seconds, 3),
            "changes": self.changes,
            "bytes": self.bytes,
            "retention_left_s": None if self.retention_left_s is None else round(self.retention_left_s, 3),
            **({} if self.error is None else {"error": self.error}),
        }


class Lags:
    """The lags of one look at all groups. captures: by physical source; a group may follow more than these."""

    def __init__(self, captures: Mapping[str, Capture]) -> None:
        self._captures = captures
        self._found: dict[tuple[str | int, ...], PlaceLag] = {}

    def of(self, checkpoint: Checkpoint) -> dict[str, PlaceLag]:
        """By physical source."""
        return {physical: self._of(physical, position) for physical, position in checkpoint.sources.items()}

    def _of(self, physical: str, position: SourceCheckpoint) -> PlaceLag:
        key = (physical, position.uuid, position.txid, *position.pair)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look(physical, position, is_cheap=len(self._found) >= _LOOKED_AT_MAX)
        return found

    def _look(self, physical: str, position: SourceCheckpoint, *, is_cheap: bool) -> PlaceLag:
        capture = self._captures.get(physical)
        if capture is None or capture.log is None:
            return PlaceLag()
        log, now_s = capture.log, time.time()
        kept_s = log.config.retention_ms_max / 1e3
        captured_s = None if capture.lag.behind_ms is None else capture.lag.behind_ms / 1e3
        published = log.head().published
        if position.pair >= published.pair:
            return PlaceLag(captured_s, 0, 0, kept_s)
        age_s = max(now_s - position.ts_us / 1e6, 0.0) if position.ts_us else None
        left_s = None if age_s is None else max(kept_s - age_s, 0.0)
        if is_cheap:
            return PlaceLag(age_s, None, None, left_s)
        try:
            cursor = log.locate(position)
            bytes_ = cursor.view.bytes_behind(cursor.place)
            measuring = Measuring(cursor, MeasureLimits())
            is_all = measuring.step(Allowance(_MEASURE_BYTES_MAX, _MEASURE_MS_MAX))
            measure = measuring.result()
        except DatabusError as error:
            return PlaceLag(age_s, None, None, 0.0, str(error))
        if measure.oldest_us is None:
            return PlaceLag(captured_s, 0, bytes_, kept_s) if is_all else PlaceLag(age_s, None, bytes_, left_s)
        changes = measure.rows if not measure.bytes else round(measure.rows * max(bytes_ / measure.bytes, 1.0))
        return PlaceLag(max(now_s - measure.oldest_us / 1e6, 0.0), changes, bytes_, left_s)
