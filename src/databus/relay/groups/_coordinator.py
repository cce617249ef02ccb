"""The coordinator: who holds which partition of each group. A state machine without I/O, fed calls and clocks.

    changes = coordinator.handle("billing", call, now, start=None)   # an Answer, or a refusal that changed nothing
    coordinator.drain()                                              # what has to be durable before the answer leaves

One holder a partition, under a fence that rises for ever. A partition moves when it is given up or when its holder's
lease has ended, and not otherwise. Each rule was found in a simulation, which the tests run against this very code.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from databus.core import (
    Barrier,
    Checkpoint,
    Fenced,
    GroupDiffers,
    GroupStateLost,
    MalformedRequest,
    StaleCall,
    TooManyRequests,
    UnknownGroup,
)
from databus.relay.groups._call import CallAnswer, HeldPartition, MemberCall, TakenPartition
from databus.relay.groups._names import Listed, NameState
from databus.relay.groups._state import MEMBERS_MAX, ConsumerGroup, MemberState, restored

_STOOD_STILL_NS: Final = 1_000_000_000
_CALLS_A_LEASE: Final = 10  # a member calls at least so often: some calls may be lost before its lease ends
_BEHIND_A_LEASE_MS: Final = 10  # a call that comes just after the end of another's lease finds it ended
_HOUR_NS: Final = 3_600_000_000_000


class Clocks(NamedTuple):
    """Both clocks of the coordinator."""

    ns: int
    """Of the monotonic clock, by which leases count."""
    wall_ms: int
    """Of the wall's clock, for fences alone."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What a coordinator goes by."""

    lease_ms: int = 10_000
    """The lease of members that join from now on."""
    names_max: int = 1_000
    unused_h_max: int = 7 * 24


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """What has to be durable before an answer leaves."""

    records: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, Listed] | None = None
    """All of them, where one has changed."""


class Coordinator:
    """All groups of one relay. One thread.

    records: of the journal, in order. names: those that the other file lists; one of which no record speaks is lost.
    """

    def __init__(
        self,
        limits: GroupLimits,
        now: Clocks,
        records: Iterable[Mapping[str, Any]] = (),
        names: Mapping[str, Listed] | None = None,
    ) -> None:
        """Raises `ValueError` for records that cannot follow one another."""
        self.limits = limits
        self.groups: dict[str, ConsumerGroup] = {}
        self.names: dict[str, Listed] = dict(names or {})
        self._touched: dict[str, None] = {}
        self._gone: list[dict[str, Any]] = []
        self._names_changed = False
        self._looked_ns = self._hour_ns = now.ns
        for record in records:
            self._restore(record, now)
        for group in list(self.groups.values()):
            self._wait_a_lease(group, now)
            listed = self.names.get(group.name)
            n = listed.n if listed is not None and listed.state is NameState.KEPT else 0
            if n > group.n or (n and group.is_reported):
                del self.groups[group.name]  # it is of before a resize, or of before members had the name
            elif n < group.n and not group.is_reported:
                self.list_as(group.name, Listed(NameState.KEPT, group.n))

    def _restore(self, record: Mapping[str, Any], now: Clocks) -> None:
        name = record["group"]
        if "gone" in record:
            self.groups.pop(name, None)
        else:
            self.groups[name] = restored(name, record, self.groups.get(name), now.ns)

    def _wait_a_lease(self, group: ConsumerGroup, now: Clocks) -> None:
        """Wait for a lease: members may hold partitions of which an older copy of the journal says nothing."""
        leases = [self.limits.lease_ms, *(member.lease_ms for member in group.members.values())]
        group.waits_until_ns = now.ns + max(leases) * 1_000_000

    # What has to be kept

    def drain(self) -> GroupChanges:
        """What has changed since this was asked last."""
        records, self._gone = self._gone, []
        records += [self.groups[name].taken() for name in self._touched if name in self.groups]
        self._touched = {}
        names = dict(self.names) if self._names_changed else None
        self._names_changed = False
        return GroupChanges(records, names)

    @property
    def has_changes(self) -> bool:
        """Whether `drain` would give something."""
        return bool(self._touched or self._gone or self._names_changed)

    def whole(self) -> list[dict[str, Any]]:
        """Everything, as records of a journal that begins with them."""
        return [group.whole() for group in self.groups.values()]

    def touch(self, group: ConsumerGroup) -> None:
        """A group may have changed."""
        if group.is_changed:
            self._touched[group.name] = None

    def list_as(self, name: str, listed: Listed) -> None:
        """What the file of names says of one from now on."""
        self.names[name] = listed
        self._names_changed = True

    def remove(self, name: str, state: NameState, now: Clocks) -> None:
        """A group is no more; what is left is a name, and how high its fences were."""
        self.list_as(name, Listed(state, 0, self.groups.pop(name).last_fence, now.wall_ms))
        self._touched.pop(name, None)
        self._gone.append({"group": name, "gone": True})

    def add(self, group: ConsumerGroup, now: Clocks, *, waits: bool) -> None:
        """Add a group. waits: whether a member may still hold a partition of it, so that a lease has to pass first."""
        before = self.names.get(group.name)
        group.last_fence = max(group.last_fence, before.last_fence if before else 0)
        if waits:
            self._wait_a_lease(group, now)
        self.groups[group.name] = group
        if not group.is_reported:  # who reports says at any time where it stands, so that nothing of it can be lost
            self.list_as(group.name, Listed(NameState.KEPT, group.n))
        self.touch(group)

    def group(self, name: str) -> ConsumerGroup:
        """The group of that name. Raises `UnknownGroup` with the nearest, `GroupStateLost`."""
        group = self.groups.get(name)
        if group is None:
            self.check_state(name)
            raise unknown_group(name, self.groups)
        return group

    def check_state(self, name: str) -> None:
        """Raise `GroupStateLost` for a name that is known, and has no state."""
        listed = self.names.get(name)
        if listed is None or listed.state in (NameState.DELETED, NameState.BEGINS):
            return
        forgotten = listed.state is NameState.FORGOTTEN
        happened = (
            f"{name} was not used for {self.limits.unused_h_max // 24} days, so it was forgotten"
            if forgotten
            else f"{name} was in use here, and the journal does not have it, or is a copy from before a resize"
        )
        raise GroupStateLost(
            f"{happened}; say where it stands before its members go on: databus consumers import {name} --from FILE, "
            f"or databus consumers reset {name} --to ...",
            details={"reason": "forgotten" if forgotten else "lost"},
        )

    def lost(self) -> list[str]:
        """The names that an operator has to `import` or `reset` before they go on."""
        return [
            name for name, listed in self.names.items() if listed.state is NameState.KEPT and name not in self.groups
        ]

    def check_room(self, name: str) -> None:
        """Raise `TooManyRequests` if there is no room for one more name."""
        if name not in self.groups and len(self.groups) >= self.limits.names_max:
            raise TooManyRequests(
                f"{name}: {len(self.groups)} groups are kept, names_max={self.limits.names_max}; delete some"
            )

    # Calls

    def needs_start(self, name: str, call: MemberCall) -> bool:
        """Whether this call would make its group, so that the caller has to find out first where it begins."""
        if name in self.groups:
            return False
        self.check_state(name)
        self.check_room(name)
        if call.named:
            raise GroupStateLost(
                f"{name}: there is no such group, and {call.member} holds partitions of one: it was deleted, or its "
                "state is lost. Restart this consumer; it makes the group where its options say",
                details={"reason": "lost"},
            )
        return True

    def handle(
        self, name: str, call: MemberCall, now: Clocks, start: Checkpoint | None = None, access: str = ""
    ) -> CallAnswer:
        """Answer a call. start: where its group begins, and under which access, if there is none yet.

        Raises what changes nothing: `GroupStateLost`, `GroupDiffers`, `StaleCall`, `Fenced`, `TooManyRequests`.
        """
        self._note_standstill(now)
        if self.needs_start(name, call):
            if start is None:
                raise ValueError("a new group needs a place to begin")
            before = self.names.get(name)
            group = ConsumerGroup.made(name, call.sources, call.filters, call.partitions, start)
            group.access = access
            self.add(group, now, waits=before is not None and before.state is NameState.BEGINS)
        group = self.groups[name]
        try:
            self._expire(group, now)
            self._check(group, call)
            self._take_in(group, call, now)
            answer = self._answer(group, call.member, now)
            group.note_call(call.member)
            return answer
        finally:
            self.touch(group)  # a lease may have ended whatever becomes of the call

    def look(self, name: str, call: MemberCall, now: Clocks) -> CallAnswer:
        """The answer of now to a call that was handled and waits. Raises `StaleCall` once a newer one has come."""
        self._note_standstill(now)
        group = self.groups.get(name)
        member = None if group is None else group.members.get(call.member)
        if group is None or member is None or member.call != call.number:
            raise StaleCall(
                f"{name}: a newer call of {call.member} has come, or it is no member any more",
                details={"last": call.number if member is None else member.call},
            )
        try:
            self._expire(group, now)
            if call.member not in group.members:
                raise StaleCall(f"{name}: the lease of {call.member} has ended", details={"last": call.number})
            answer = self._answer(group, call.member, now)
            group.note_call(call.member)
            return answer
        finally:
            self.touch(group)

    def _check(self, group: ConsumerGroup, call: MemberCall) -> None:
        if group.is_reported:
            raise GroupDiffers(
                f"{group.name}: a pipeline reports under this name how far its output is, so members cannot join it; "
                "take another name",
                details={"differs": {"reported": {"group": True, "call": False}}},
            )
        differs = {
            what: {"group": ours, "call": theirs}
            for what, ours, theirs in (
                ("sources", None if group.sources is None else list(group.sources), _listed(call.sources)),
                ("filters", dict(group.filters), dict(call.filters)),
            )
            if ours != theirs
        }
        if differs:
            raise GroupDiffers(
                f"{group.name}: a member's {' and '.join(differs)} are not the group's: "
                + "; ".join(
                    f"{what}: {both['call']!r}, the group has {both['group']!r}" for what, both in differs.items()
                )
                + f". Give all members the same; to change them, stop all members, then export {group.name}, edit and "
                "import it; or delete it, to start again (`databus consumers`)",
                details={"differs": differs},
            )
        self._check_number(group, call)
        if call.member not in group.members and len(group.members) >= MEMBERS_MAX:
            raise TooManyRequests(f"{group.name}: it has {MEMBERS_MAX} members already")
        self._check_held(group, call)

    def _check_number(self, group: ConsumerGroup, call: MemberCall) -> None:
        member = group.members.get(call.member)
        if member is not None and call.number <= member.call:
            raise StaleCall(
                f"{group.name}: call {call.number} of {call.member} comes after its call {member.call}; nothing has "
                "changed",
                details={"last": member.call},
            )

    def _check_held(self, group: ConsumerGroup, call: MemberCall) -> None:
        fenced: list[int] = []
        for number, held in call.named.items():
            partition = group.partitions.get(number)
            if partition is None or partition.holder != call.member or partition.fence != held.fence:
                fenced.append(number)
            elif held.checkpoint is not None and (
                missing := sorted(set(partition.checkpoint.sources) - set(held.checkpoint.sources))
            ):
                raise MalformedRequest(
                    f"holds.{number}.checkpoint: {missing[0]} is not in it; a save holds every physical source"
                )
        if fenced:
            raise Fenced(
                f"{group.name}: partitions {', '.join(map(str, fenced))} are not {call.member}'s any more: its lease "
                "had ended, or they were moved",
                details={"fenced": [str(number) for number in fenced]},
            )

    def _take_in(self, group: ConsumerGroup, call: MemberCall, now: Clocks) -> None:
        """Have a call count that nothing speaks against."""
        member = group.members.get(call.member)
        if member is None:
            member = MemberState(self.limits.lease_ms, call.number, now.ns)
            group.join(call.member, member)
            if group.guard != call.guard:
                group.guard = call.guard
                group.note_head()
        member.call, member.heard_ns = call.number, now.ns
        group.note_use()
        for number, held in call.named.items():
            if held.checkpoint is not None:
                group.save(number, held.checkpoint)
        member.waits = {number: held.waits for number, held in call.holds.items() if held.waits}
        self._note_barriers(group, call.named)
        if call.leave:
            group.part(call.member)
            return
        for number in group.held_by(call.member):
            if number not in call.holds:
                group.free(number)

    def _note_barriers(self, group: ConsumerGroup, held_by_number: Mapping[int, HeldPartition]) -> None:
        """Keep the barriers at which a member waits, and drop those that all have reached."""
        for barrier in (barrier for held in held_by_number.values() for barrier in held.waits):
            if group.barriers.get(barrier.physical) == barrier.pair:
                continue
            if not group.have_all_reached(barrier):
                group.barriers[barrier.physical] = barrier.pair
                group.note_head()
        for physical, pair in list(group.barriers.items()):
            if group.have_all_reached(Barrier(physical, pair)):
                del group.barriers[physical]
                group.note_head()

    # Leases

    def tick(self, now: Clocks) -> list[str]:
        """Look at all leases; to be called at least twice a second. Returns the names that were forgotten just now."""
        self._note_standstill(now)
        for group in list(self.groups.values()):
            self._expire(group, now)
            self.touch(group)
        if now.ns - self._hour_ns < _HOUR_NS:
            return []
        self._hour_ns = now.ns
        return self._forget_unused(now)

    def _note_standstill(self, now: Clocks) -> None:
        """Calls may have waited as long as this process stood still: whoever was there has a whole lease to call."""
        if now.ns - self._looked_ns > _STOOD_STILL_NS:
            for group in self.groups.values():
                for member in group.members.values():
                    member.heard_ns = now.ns
        self._looked_ns = now.ns

    def _expire(self, group: ConsumerGroup, now: Clocks) -> None:
        for name in [name for name, member in group.members.items() if member.ends_ns() < now.ns]:
            group.part(name)

    def _forget_unused(self, now: Clocks) -> list[str]:
        forgotten = []
        for group in list(self.groups.values()):
            if group.called or group.members:
                group.called = False
                continue
            group.unused_h += 1
            group.note_head()
            if group.unused_h >= self.limits.unused_h_max:
                self.remove(group.name, NameState.DELETED if group.is_reported else NameState.FORGOTTEN, now)
                forgotten.append(group.name)
            else:
                self.touch(group)
        return forgotten

    # Who gets what

    def _answer(self, group: ConsumerGroup, name: str, now: Clocks) -> CallAnswer:
        member = group.members.get(name)
        if member is None:  # it has left
            return CallAnswer(self.limits.lease_ms, 0, "running", group.n)
        held = group.held()
        mine, quota = held.get(name, []), _quota(group, held, name)
        give_up = [number for number in mine if group.partitions[number].of != group.n]
        take: dict[int, TakenPartition] = {}
        state = "resizing" if group.is_resizing else "running"
        if group.is_paused:
            state, give_up = "paused", mine
        elif now.ns < group.waits_until_ns:
            state = "starting"
        else:
            take = self._grant(group, name, quota - len(mine), now)
        if not group.is_paused:
            kept = [number for number in mine if number not in give_up]
            give_up = give_up + kept[quota:]
        passes = {
            number: physicals
            for number, waits in member.waits.items()
            if (physicals := tuple(barrier.physical for barrier in waits if group.have_all_reached(barrier)))
        }
        return CallAnswer(
            member.lease_ms, self._again_ms(group, name, now), state, group.n, take, tuple(give_up), passes
        )

    def _grant(self, group: ConsumerGroup, name: str, count: int, now: Clocks) -> dict[int, TakenPartition]:
        take: dict[int, TakenPartition] = {}
        if count <= 0:
            return take
        for number, partition in group.partitions.items():
            if partition.holder is None and partition.of == group.n:
                group.hold(number, name, self._next_fence(group, number, now))
                known = [Barrier(*barrier) for barrier in group.barriers.items()]
                waits = tuple(barrier for barrier in known if barrier.is_reached_by(partition.checkpoint))
                take[number] = TakenPartition(partition.of, partition.fence, partition.checkpoint, waits)
                if len(take) == count:
                    break
        return take

    def _next_fence(self, group: ConsumerGroup, number: int, now: Clocks) -> int:
        """One counter for the group, so that fences rise over resizes; by the clock, over deletion and older files."""
        del number
        return max(group.last_fence + 1, now.wall_ms)

    def _again_ms(self, group: ConsumerGroup, name: str, now: Clocks) -> int:
        """When to call again: as often as a lease needs, or when others free what they hold, or may hold."""
        member = group.members[name]
        ends = [other.ends_ns() for key, other in group.members.items() if key != name]
        ends += [group.waits_until_ns] if group.waits_until_ns > now.ns else []
        every_ms = max(member.lease_ms // _CALLS_A_LEASE, 1)
        left_ms = max(min(ends, default=now.ns + every_ms * 1_000_000) - now.ns, 0) // 1_000_000
        return min(every_ms, left_ms + _BEHIND_A_LEASE_MS)


def unknown_group(name: str, names: Iterable[str]) -> UnknownGroup:
    """The error for a name that no group has. names: those that whoever asks may know."""
    near = difflib.get_close_matches(name, [*names], 1)
    hint = f"did you mean {near[0]!r}?" if near else "GET /groups lists them"
    return UnknownGroup(f"no group called {name[:100]!r}; {hint}")


def _quota(group: ConsumerGroup, held: Mapping[str, list[int]], name: str) -> int:
    """How many partitions a member should have: even within one, those who have most keep what is over."""
    ranked = sorted(group.members, key=lambda member: (-len(held.get(member, ())), member))
    share, over = divmod(len(group.partitions), len(ranked))
    return share + (ranked.index(name) < over)


def _listed(sources: tuple[str, ...] | None) -> list[str] | None:
    return None if sources is None else list(sources)
