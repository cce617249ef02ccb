"""What an operator does to a group. Pure, as the coordinator is; each refuses what would take a partition from a member
that is at work.
"""

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from databus.core import Checkpoint, GroupBusy, GroupDiffers, MalformedRequest
from databus.relay.groups._call import Filters, check_name
from databus.relay.groups._coordinator import Clocks, Coordinator
from databus.relay.groups._names import Listed, NameState
from databus.relay.groups._state import PARTITIONS_MAX, ConsumerGroup, PartitionState

_VERSION: Final = 1


class _ExportedPartition(BaseModel):
    model_config = ConfigDict(extra="forbid")

    of: int = Field(ge=1, le=PARTITIONS_MAX)
    checkpoint: dict[str, Any]


class Exported(BaseModel):
    """A group as `export` gives it and `import` takes it."""

    model_config = ConfigDict(extra="forbid")

    v: int = Field(ge=_VERSION, le=_VERSION)
    name: str
    sources: list[str] | None
    filters: Filters
    guard: bool
    access: str | None = Field(None, description="Under which access; by default that of the one it replaces.")
    last_fence: int = Field(ge=0, le=(1 << 63) - 1)
    start: dict[str, Any]
    partitions: dict[int, _ExportedPartition]


def report(
    coordinator: Coordinator,
    name: str,
    sources: tuple[str, ...] | None,
    checkpoint: Checkpoint,
    now: Clocks,
    access: str,
    *,
    guard: bool | None = None,
) -> None:
    """Note how far a consumer without partitions is, which keeps its place elsewhere. access: under which it reports.
    guard: whether the log is kept for it; None where that stays as it is, also where a guard has ended meanwhile.

    Raises `GroupDiffers` for a name that members have, or had.
    """
    group, listed = coordinator.groups.get(check_name(name)), coordinator.names.get(name)
    if not checkpoint.sources:
        raise MalformedRequest("checkpoint: it holds no physical source")
    is_of_members = listed is not None and listed.state is not NameState.DELETED
    if is_of_members or (group is not None and not group.is_reported):
        raise GroupDiffers(
            f"{name}: members have this name, so a pipeline cannot report under it; give the pipeline or its output "
            f"another name, or delete that one: databus consumers delete {name}",
            details={"differs": {"reported": {"group": False, "call": True}}},
        )
    if group is None:
        coordinator.check_room(name)
        group = ConsumerGroup.made(name, sources, {}, 1, checkpoint)
        group.access, group.is_reported = access, True
        coordinator.add(group, now, waits=False)
    guards = group.guard if guard is None else guard
    if (group.sources, group.start.sources.keys(), group.guard) != (sources, checkpoint.sources.keys(), guards):
        group.sources, group.start, group.guard = sources, checkpoint, guards
        group.note_head()
    group.save(0, checkpoint)
    group.note_use()
    coordinator.touch(group)


def _joined(coordinator: Coordinator, name: str) -> ConsumerGroup:
    """The group of a name that members share. Raises `UnknownGroup`, `GroupStateLost`, `GroupDiffers`."""
    group = coordinator.group(name)
    _check_is_of_members(group)
    return group


def _check_is_of_members(group: ConsumerGroup) -> None:
    if group.is_reported:
        raise GroupDiffers(
            f"{group.name}: a pipeline reports how far its output is, and keeps that itself; it cannot be moved here. "
            "`databus pause` and `databus rebuild` work on the pipeline",
            details={"differs": {"reported": {"group": True, "call": False}}},
        )


def resize(coordinator: Coordinator, name: str, n: int) -> None:
    """Split each partition in equal parts, as soon as it is free. Raises `MalformedRequest`, `GroupBusy`."""
    group = _joined(coordinator, name)
    if group.is_resizing:
        raise GroupBusy(
            f"{name}: it is being resized to {group.n}; partitions {_old(group)} have not been given up yet"
        )
    if n % group.n or not group.n < n <= PARTITIONS_MAX:
        raise MalformedRequest(
            f"to: {name} has {group.n} partitions; it can be resized to a multiple of that, {PARTITIONS_MAX} at most"
        )
    group.n = n
    group.note_head()
    coordinator.list_as(name, Listed(NameState.KEPT, n))
    for number in [number for number, partition in group.partitions.items() if partition.holder is None]:
        group.free(number)
    coordinator.touch(group)


def pause(coordinator: Coordinator, name: str, *, paused: bool) -> None:
    """Have all members give up what they hold, and get nothing; or have them go on."""
    group = _joined(coordinator, name)
    if group.is_paused != paused:
        group.is_paused = paused
        group.note_head()
    coordinator.touch(group)


def reset(coordinator: Coordinator, name: str, to: Any, checkpoint: Checkpoint | None, now: Clocks) -> None:
    """Have every partition stand elsewhere. Raises `GroupBusy` while anybody holds one.

    to, checkpoint: where, as it was said, and the place that this is. Of a name that has no state it is kept what was
    said: its next member makes the group there.
    """
    listed = coordinator.names.get(name)
    if name not in coordinator.groups and listed is not None and listed.state is not NameState.DELETED:
        coordinator.list_as(name, Listed(NameState.BEGINS, 0, listed.last_fence, now.wall_ms, to))
        return
    group = _joined(coordinator, name)
    _check_at_rest(group, "a reset")
    if checkpoint is None:
        raise ValueError("a place is needed")
    group.start = checkpoint
    group.barriers.clear()
    for number, partition in group.partitions.items():
        group.put(number, PartitionState(partition.of, checkpoint, partition.fence))
    group.note_head()
    coordinator.touch(group)


def delete(coordinator: Coordinator, name: str, now: Clocks, *, force: bool = False) -> None:
    """Forget a group. Raises `GroupBusy` while it has members, unless by force. Also of a name without a state."""
    listed = coordinator.names.get(name)
    if name not in coordinator.groups and listed is not None and listed.state is not NameState.DELETED:
        coordinator.list_as(name, Listed(NameState.DELETED, 0, listed.last_fence, now.wall_ms))
        return
    group = coordinator.group(name)
    if group.members and not force:
        raise GroupBusy(
            f"{name}: it has {len(group.members)} members that call, such as {next(iter(group.members))}; stop them "
            "first, or delete it by force (--force, over HTTP force=1): they are refused at their next call then"
        )
    coordinator.remove(name, NameState.DELETED, now)


def export(coordinator: Coordinator, name: str) -> dict[str, Any]:
    """All that makes the group go on elsewhere, or here after it was lost."""
    group = _joined(coordinator, name)
    whole = group.whole()
    head = whole["head"]
    return {
        "v": _VERSION,
        "name": name,
        **{field: head[field] for field in ("sources", "filters", "guard", "access", "last_fence", "start")},
        "partitions": {
            number: {"of": partition["of"], "checkpoint": partition["checkpoint"]}
            for number, partition in whole["partitions"].items()
        },
    }


def bring_in(coordinator: Coordinator, name: str, given: Exported, now: Clocks) -> None:
    """Put what `export` gave in the place of a group that has no members, or was lost. Raises `GroupBusy`."""
    group = _read(check_name(name), given)
    coordinator.check_room(name)
    group.access = given.access or ""
    there = coordinator.groups.get(name)
    if there is not None:
        _check_is_of_members(there)
        _check_at_rest(there, "an import")
        if there.members:
            raise GroupBusy(f"{name}: it has {len(there.members)} members that call; stop them first")
        group.last_fence = max(group.last_fence, there.last_fence)
        group.access = there.access if given.access is None else given.access
        coordinator.remove(name, NameState.DELETED, now)
    coordinator.add(group, now, waits=there is None)


def _read(name: str, given: Exported) -> ConsumerGroup:
    start = Checkpoint.from_json(given.start, "start")
    n = max((partition.of for partition in given.partitions.values()), default=0)
    sources = None if given.sources is None else tuple(sorted(set(given.sources)))
    group = ConsumerGroup(name, sources, given.filters, n, start, given.last_fence, guard=given.guard)
    parts = sorted(part for number, partition in given.partitions.items() for part in range(number, n, partition.of))
    if not n or parts != list(range(n)) or any(n % partition.of for partition in given.partitions.values()):
        raise MalformedRequest(f"partitions: they do not share all keys among themselves, each to one of {n}")
    for number, partition in given.partitions.items():
        checkpoint = Checkpoint.from_json(partition.checkpoint, f"partitions.{number}.checkpoint")
        if checkpoint.sources.keys() != start.sources.keys():
            raise MalformedRequest(f"partitions.{number}.checkpoint: it holds other physical sources than start")
        group.put(number, PartitionState(partition.of, checkpoint))
    for number, partition in given.partitions.items():
        if partition.of != n:
            group.free(number)  # a resize that was under way ends here, since no member holds a partition
    group.note_head()
    return group


def _check_at_rest(group: ConsumerGroup, what: str) -> None:
    held = {number: partition.holder for number, partition in group.partitions.items() if partition.holder is not None}
    if held:
        number, holder = next(iter(held.items()))
        raise GroupBusy(
            f"{group.name}: {len(held)} partitions are held, {number} by {holder}; {what} needs them given up: pause "
            "the group, or stop its members, and wait until none is held"
        )


def _old(group: ConsumerGroup) -> str:
    return ", ".join(str(number) for number, partition in group.partitions.items() if partition.of != group.n)
