"""What a coordinator knows of a group, as it is kept: partitions, members, where it began. Pure.

Whatever changes marks itself, so that `ConsumerGroup.taken` gives what the journal needs, and no more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from databus.core import Barrier, Checkpoint, Pair

PARTITIONS_MAX: Final = 1_024
MEMBERS_MAX: Final = 2_048  # of one group: who joins under a new name each second must not fill the memory


@dataclass(slots=True)
class PartitionState:
    """One partition: `number` of `of`, under which its keys fall. It stands under its number in its group."""

    of: int
    checkpoint: Checkpoint
    fence: int = 0
    """The last one that was given with it; 0 if none was."""
    holder: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {"of": self.of, "fence": self.fence, "holder": self.holder, "checkpoint": self.checkpoint.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Read what `to_json` wrote."""
        return cls(value["of"], Checkpoint.from_json(value["checkpoint"], where), value["fence"], value.get("holder"))


@dataclass(slots=True)
class MemberState:
    """Who takes part."""

    lease_ms: int
    """What it was first given, and keeps."""
    call: int
    """The last number handled."""
    heard_ns: int
    """When it was heard of last, on this coordinator's clock; not kept."""
    waits: Mapping[int, tuple[Barrier, ...]] = field(default_factory=dict)
    """Where its partitions wait, as its last call said; not kept."""

    def to_json(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {"lease_ms": self.lease_ms, "call": self.call}

    def ends_ns(self) -> int:
        """When its lease ends."""
        return self.heard_ns + self.lease_ms * 1_000_000


@dataclass(slots=True)
class ConsumerGroup:
    """A group of consumers, and how far each of its partitions has come."""

    name: str
    sources: tuple[str, ...] | None
    filters: Mapping[str, Any]
    n: int
    """Its number of partitions, while it is resized the one it will have."""
    start: Checkpoint
    last_fence: int = 0
    access: str = ""
    """Under which access of relay.yml it was made."""
    guard: bool = False
    is_paused: bool = False
    unused_h: int = 0
    barriers: dict[str, Pair] = field(default_factory=dict)
    partitions: dict[int, PartitionState] = field(default_factory=dict)
    members: dict[str, MemberState] = field(default_factory=dict)
    version: int = 0
    """Rises with whatever may concern members that did not call."""
    waits_until_ns: int = 0
    """Nothing is granted before."""
    called: bool = True
    """Whether a member has called within this hour."""
    is_reported: bool = False
    """Whether it has no members: a consumer that keeps its place elsewhere reports how far it is."""
    _head_changed: bool = False
    _partitions_changed: set[int] = field(default_factory=set)
    _members_changed: set[str] = field(default_factory=set)

    @classmethod
    def made(
        cls, name: str, sources: tuple[str, ...] | None, filters: Mapping[str, Any], n: int, start: Checkpoint
    ) -> Self:
        """A new one, all of whose partitions are free and stand at the start."""
        group = cls(name, sources, filters, n, start)
        for number in range(n):
            group.put(number, PartitionState(n, start))
        group.note_head()
        return group

    # What changes

    def note_head(self) -> None:
        """Something of the group itself has changed, which may concern all."""
        self._head_changed = True
        self.version += 1

    def put(self, number: int, partition: PartitionState) -> None:
        """A partition there was not."""
        self.partitions[number] = partition
        self._partitions_changed.add(number)

    def hold(self, number: int, member: str, fence: int) -> None:
        """Give a partition to a member."""
        partition = self.partitions[number]
        partition.holder, partition.fence = member, fence
        self.last_fence = fence
        self._head_changed = True
        self._partitions_changed.add(number)

    def free(self, number: int) -> None:
        """Take a partition from its holder. During a resize one of the earlier layout is split then."""
        partition = self.partitions[number]
        partition.holder = None
        self._partitions_changed.add(number)
        self.version += 1
        if partition.of != self.n:
            for part in range(number, self.n, partition.of):
                self.put(part, PartitionState(self.n, partition.checkpoint, partition.fence))

    def save(self, number: int, checkpoint: Checkpoint) -> None:
        """Its holder has come so far."""
        partition = self.partitions[number]
        if partition.checkpoint != checkpoint:
            partition.checkpoint = checkpoint
            self._partitions_changed.add(number)

    def note_use(self) -> None:
        """Note a call: the days until the group is forgotten are counted from here."""
        self.called = True
        if self.unused_h:
            self.unused_h = 0
            self.note_head()

    def join(self, name: str, member: MemberState) -> None:
        """Add a member."""
        self.members[name] = member
        self._members_changed.add(name)
        self.version += 1

    def part(self, name: str) -> None:
        """A member is gone, by its own will or because its lease has ended; what it held is free."""
        self.members.pop(name, None)
        self._members_changed.add(name)
        self.version += 1
        for number in self.held_by(name):
            self.free(number)

    def note_call(self, name: str) -> None:
        """A member's call has changed something, so its number is kept too: an earlier one changes nothing any more.

        One that only renews is not kept: whatever comes again of those before it says that the same is held.
        """
        if self.is_changed:
            self._members_changed.add(name)

    # What there is

    @property
    def is_changed(self) -> bool:
        """Whether there is something to write to the journal."""
        return bool(self._head_changed or self._partitions_changed or self._members_changed)

    @property
    def is_resizing(self) -> bool:
        """Whether partitions of the earlier layout are left."""
        return any(partition.of != self.n for partition in self.partitions.values())

    def held_by(self, member: str) -> list[int]:
        """The partitions of a member, in their order."""
        return [number for number, partition in self.partitions.items() if partition.holder == member]

    def held(self) -> dict[str, list[int]]:
        """The partitions of each member that has any; any thread."""
        by_member: dict[str, list[int]] = {}
        for number, partition in list(self.partitions.items()):
            if partition.holder is not None:
                by_member.setdefault(partition.holder, []).append(number)
        return by_member

    def have_all_reached(self, barrier: Barrier) -> bool:
        """Whether every partition has saved it."""
        return all(barrier.is_reached_by(partition.checkpoint) for partition in self.partitions.values())

    # As it is kept

    def taken(self) -> dict[str, Any]:
        """What has changed since this was asked last, as a record of the journal."""
        record: dict[str, Any] = {"group": self.name}
        if self._head_changed:
            record["head"] = self._head()
        if self._partitions_changed:
            record["partitions"] = {str(n): self.partitions[n].to_json() for n in sorted(self._partitions_changed)}
        if self._members_changed:
            gone: dict[str, Any] = dict.fromkeys(self._members_changed)
            there = {name: self.members[name].to_json() for name in self._members_changed if name in self.members}
            record["members"] = {**gone, **there}
        self._head_changed = False
        self._partitions_changed, self._members_changed = set(), set()
        return record

    def whole(self) -> dict[str, Any]:
        """All of it, as one record."""
        return {
            "group": self.name,
            "head": self._head(),
            "partitions": {str(number): partition.to_json() for number, partition in self.partitions.items()},
            "members": {name: member.to_json() for name, member in self.members.items()},
        }

    def _head(self) -> dict[str, Any]:
        return {
            "sources": None if self.sources is None else list(self.sources),
            "filters": dict(self.filters),
            "n": self.n,
            "start": self.start.to_json(),
            "last_fence": self.last_fence,
            "access": self.access,
            "guard": self.guard,
            "paused": self.is_paused,
            "unused_h": self.unused_h,
            "barriers": {physical: list(pair) for physical, pair in self.barriers.items()},
            "reported": self.is_reported,
        }

    @classmethod
    def from_head(cls, name: str, head: Mapping[str, Any]) -> Self:
        """A group as its head was kept, without partitions and members yet."""
        sources = head["sources"]
        return cls(
            name,
            None if sources is None else tuple(sources),
            head["filters"],
            head["n"],
            Checkpoint.from_json(head["start"], f"{name}.start"),
            head["last_fence"],
            head["access"],
            head["guard"],
            head["paused"],
            head["unused_h"],
            {physical: (pair[0], pair[1]) for physical, pair in head["barriers"].items()},
            is_reported=head["reported"],
        )


def restored(name: str, record: Mapping[str, Any], before: ConsumerGroup | None, now_ns: int) -> ConsumerGroup:
    """A group after a record of the journal. before: as the records before it left it."""
    if "head" in record:
        group = ConsumerGroup.from_head(name, record["head"])
        if before is not None:
            group.partitions, group.members = before.partitions, before.members
    elif before is not None:
        group = before
    else:
        raise ValueError(f"a change of the group {name!r}, of which nothing was said before")
    for text, value in record.get("partitions", {}).items():
        group.partitions[int(text)] = PartitionState.from_json(value, f"{name}.{text}")
    for member, value in record.get("members", {}).items():
        if value is None:
            group.members.pop(member, None)
        else:
            group.members[member] = MemberState(value["lease_ms"], value["call"], now_ns)
    return group
