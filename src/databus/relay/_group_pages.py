"""What /groups shows: each name with its members, its partitions, and how far they are behind, connected or not.

How far, in seconds, changes, bytes and what is left of retention, is read from the logs, so in a thread. Partitions
that stand at one place share the look at it.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.core import Checkpoint, DatabusError, SourceCheckpoint
from databus.log import Allowance, MeasureLimits, Measuring
from databus.relay._capture import Capture
from databus.relay._grant import Grant
from databus.relay.groups import Clocks, ConsumerGroup, Coordinator

_LOOKED_AT_MAX: Final = 500  # places for which one request reads the logs; the others have only the age of the place
_MEASURE_MS_MAX: Final = 20
_MEASURE_BYTES_MAX: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PlaceLag:
    """How far a place is behind the published end. None for what is unknown."""

    seconds: float | None = None
    """Age of the first change behind it."""
    changes: int | None = None
    """An estimate by bytes where there are many."""
    bytes: int | None = None
    retention_left_s: float | None = None
    """Until what comes next may leave the log."""
    error: str | None = None
    """Why one cannot go on there."""

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
        self._lags: dict[tuple[str | int, ...], PlaceLag] = {}

    def of(self, checkpoint: Checkpoint) -> dict[str, PlaceLag]:
        """By physical source."""
        return {physical: self._of(physical, position) for physical, position in checkpoint.sources.items()}

    def _of(self, physical: str, position: SourceCheckpoint) -> PlaceLag:
        key = (physical, position.uuid, position.txid, *position.pair)
        lag = self._lags.get(key)
        if lag is None:
            lag = self._lags[key] = self._look(physical, position, is_cheap=len(self._lags) >= _LOOKED_AT_MAX)
        return lag

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


def is_visible(group: ConsumerGroup, grant: Grant) -> bool:
    """Whether a group is there for the holder of a grant. Who sees some tables only sees the groups it has made: what
    others follow, and what they look for in it, is nothing it may know.
    """
    return not grant.is_limited or group.access == grant.name


def visible_groups(machine: Coordinator, grant: Grant) -> list[ConsumerGroup]:
    """The groups that are there for the holder of a grant, by name; any thread."""
    return [group for _, group in sorted(dict(machine.groups).items()) if is_visible(group, grant)]


def groups_page(machine: Coordinator, grant: Grant, lags: Lags, now: Clocks) -> list[dict[str, Any]]:
    """A line for each group, with the worst of its partitions."""
    return [_line(group, lags, now) for group in visible_groups(machine, grant)]


def worst_lag(group: ConsumerGroup, lags: Lags, physical: str) -> PlaceLag:
    """The worst of a group's partitions in one physical source."""
    partitions = list(group.partitions.values())
    of_partitions = [lags.of(partition.checkpoint).get(physical, PlaceLag()) for partition in partitions]
    return PlaceLag(
        max((lag.seconds for lag in of_partitions if lag.seconds is not None), default=None),
        max((lag.changes for lag in of_partitions if lag.changes is not None), default=None),
        max((lag.bytes for lag in of_partitions if lag.bytes is not None), default=None),
        min((lag.retention_left_s for lag in of_partitions if lag.retention_left_s is not None), default=None),
        next((lag.error for lag in of_partitions if lag.error is not None), None),
    )


def _state(group: ConsumerGroup, now: Clocks) -> str:
    if group.is_reported:
        return "reported"
    if group.is_paused:
        return "paused"
    if group.is_resizing:
        return "resizing"
    return "starting" if now.ns < group.waits_until_ns else "running"


def _line(group: ConsumerGroup, lags: Lags, now: Clocks) -> dict[str, Any]:
    worst = {physical: worst_lag(group, lags, physical).to_json() for physical in group.start.sources}
    return {
        "name": group.name,
        "state": _state(group, now),
        "partitions": group.n,
        "members": len(group.members),
        "held": sum(partition.holder is not None for partition in list(group.partitions.values())),
        "guard": group.guard,
        "unused_h": group.unused_h,
        "lag": worst,
    }


def group_page(group: ConsumerGroup, lags: Lags, now: Clocks) -> dict[str, Any]:
    """All of one group."""
    held = group.held()
    members = [
        {
            "member": name,
            "lease_ms": member.lease_ms,
            "lease_left_ms": max(member.ends_ns() - now.ns, 0) // 1_000_000,
            "call": member.call,
            "holds": [str(number) for number in held.get(name, ())],
        }
        for name, member in dict(group.members).items()
    ]
    partitions = [
        {
            "partition": str(number),
            "of": partition.of,
            "holder": partition.holder,
            "fence": partition.fence,
            "checkpoint": partition.checkpoint.to_json(),
            "lag": {physical: lag.to_json() for physical, lag in lags.of(partition.checkpoint).items()},
        }
        for number, partition in sorted(dict(group.partitions).items())
    ]
    return {
        **_line(group, lags, now),
        "sources": None if group.sources is None else list(group.sources),
        "filters": dict(group.filters),
        "start": group.start.to_json(),
        "barriers": {physical: list(pair) for physical, pair in group.barriers.items()},
        "members": members,
        "partitions": partitions,
        "n": group.n,
    }
