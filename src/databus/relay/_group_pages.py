"""What /groups shows: each name with its members, its partitions, and how far they are behind, connected or not."""

from typing import Any

from databus.relay._grant import Grant
from databus.relay._group_lag import Lags, PlaceLag
from databus.relay.groups import Coordinator, Group, Now


def is_visible(group: Group, grant: Grant) -> bool:
    """Whether a group is there for the holder of a grant. Who sees some tables only sees the groups it has made: what
    others follow, and what they look for in it, is nothing it may know.
    """
    return not grant.is_limited or group.access == grant.name


def visible_groups(machine: Coordinator, grant: Grant) -> list[Group]:
    """The groups that are there for the holder of a grant, by name; any thread."""
    return [group for _, group in sorted(dict(machine.groups).items()) if is_visible(group, grant)]


def groups_page(machine: Coordinator, grant: Grant, lags: Lags, now: Now) -> list[dict[str, Any]]:
    """A line for each group, with the worst of its partitions."""
    return [_line(group, lags, now) for group in visible_groups(machine, grant)]


def worst_lag(group: Group, lags: Lags, physical: str) -> PlaceLag:
    """The worst of a group's partitions in one physical source."""
    found = [lags.of(each.checkpoint).get(physical, PlaceLag()) for each in list(group.partitions.values())]
    return PlaceLag(
        max((each.seconds for each in found if each.seconds is not None), default=None),
        max((each.changes for each in found if each.changes is not None), default=None),
        max((each.bytes for each in found if each.bytes is not None), default=None),
        min((each.retention_left_s for each in found if each.retention_left_s is not None), default=None),
        next((each.error for each in found if each.error is not None), None),
    )


def _state(group: Group, now: Now) -> str:
    if group.is_reported:
        return "reported"
    if group.is_paused:
        return "paused"
    if group.is_resizing:
        return "resizing"
    return "starting" if now.ns < group.waits_until_ns else "running"


def _line(group: Group, lags: Lags, now: Now) -> dict[str, Any]:
    worst = {physical: worst_lag(group, lags, physical).to_json() for physical in group.start.sources}
    return {
        "name": group.name,
        "state": _state(group, now),
        "partitions": group.n,
        "members": len(group.members),
        "held": sum(each.holder is not None for each in list(group.partitions.values())),
        "guard": group.guard,
        "unused_h": group.unused_h,
        "lag": worst,
    }


def group_page(group: Group, lags: Lags, now: Now) -> dict[str, Any]:
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
            "of": each.of,
            "holder": each.holder,
            "fence": each.fence,
            "checkpoint": each.checkpoint.to_json(),
            "lag": {physical: lag.to_json() for physical, lag in lags.of(each.checkpoint).items()},
        }
        for number, each in sorted(dict(group.partitions).items())
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
