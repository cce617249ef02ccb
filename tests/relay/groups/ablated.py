"""The coordinator with one of its rules taken back: each makes seeds of the simulation fail."""

from collections.abc import Mapping
from typing import Any

from databus.core import Checkpoint, SourceCheckpoint
from databus.relay.groups import CallAnswer, Clocks, ConsumerGroup, Coordinator, MemberCall


class Unnumbered(Coordinator):
    """A call counts whenever it comes."""

    def _check_number(self, group: ConsumerGroup, call: MemberCall) -> None:
        return


class AnyHolder(Coordinator):
    """A save counts from whoever has the current fence, recorded as the holder or not."""

    def _check_held(self, group: ConsumerGroup, call: MemberCall) -> None:
        for number, held in call.named.items():
            partition = group.partitions.get(number)
            if partition is not None and partition.fence == held.fence and partition.holder is None:
                partition.holder = call.member
        super()._check_held(group, call)


class LeaseOfTheConfiguration(Coordinator):
    """After a start all leases are as long as the configuration says now."""

    def _wait_a_lease(self, group: ConsumerGroup, now: Clocks) -> None:
        for member in group.members.values():
            member.lease_ms = self.limits.lease_ms
        super()._wait_a_lease(group, now)


class FenceByPartition(Coordinator):
    """Each partition counts its own fences."""

    def _next_fence(self, group: ConsumerGroup, number: int, now: Clocks) -> int:
        del now
        return group.partitions[number].fence + 1


class NoWait(Coordinator):
    """After a start what is free is granted at once."""

    def _wait_a_lease(self, group: ConsumerGroup, now: Clocks) -> None:
        return


class StartNotKept(Coordinator):
    """Where a new group begins is found again by whoever takes a partition of which nothing was saved."""

    latest = 0

    def handle(
        self, name: str, call: MemberCall, now: Clocks, start: Checkpoint | None = None, access: str = ""
    ) -> CallAnswer:
        for partition in self.groups[name].partitions.values() if name in self.groups else ():
            if partition.holder is None and partition.checkpoint == self.groups[name].start:
                partition.checkpoint = Checkpoint({"shop": SourceCheckpoint(uuid="u", scn=self.latest)})
        return super().handle(name, call, now, start, access)


ABLATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "calls are not numbered": ("reorder", {"coordinator": Unnumbered}),
    "fences are counted by partition": ("resize", {"coordinator": FenceByPartition}),
    "no wait after a start": ("old2", {"coordinator": NoWait}),
    "the start is not kept": ("base", {"coordinator": StartNotKept}),
    "names are not listed": ("lose", {"names_kept": False}),
    "members go by CLOCK_MONOTONIC": ("clock", {"member_clock": "mono"}),
    "members go by the wall": ("clock", {"member_clock": "wall"}),
    "the coordinator goes by the wall": ("clock", {"coordinator_clock": "wall"}),
    "the table's place is not read": ("inflight", {"recipe": "fence"}),
    "a body that returned late is rolled back": ("inflight", {"late_done": False}),
}
"""Which faults show it, and what is changed."""


_PLAN = {
    "seed": 1, "members": 2, "partitions": 1, "joins": [0.0, 0.1], "rates": [1.0] * 7, "gap": 0.1, "heal": 45.0,
    "end": 66.0, "wait_ms": 0,
}  # fmt: skip
BY_HAND: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whoever has the fence saves": (
        # a save under way, then its partition is given back, the coordinator restarts, and it arrives
        {"members": 1, "events": [
            ("msg", "M1", "call", 9, "delay", 6.0), ("leave", 11.5, "M1"), ("ckill", 13.0, 0.2, "after", None, None),
        ]},
        {"coordinator": AnyHolder},
    ),
    "the lease is the configuration's": (
        # 10 s became 2 s at a restart, and some calls are lost
        {"events": [
            ("ckill", 5.05, 0.2, "after", None, 2.0), *(("msg", "M1", "call", i, "drop") for i in range(6, 9)),
        ]},
        {"coordinator": LeaseOfTheConfiguration, "recipe": "none"},
    ),
    "the table is read, and its fence not written": (
        # the earlier holder's callback in flight commits between the next one's look and its commit
        {"events": [("slow", "M1", 30, 30.0), ("slow", "M2", 1, 8.0), ("pause", 20.0, "M1", 14.5)]},
        {"recipe": "read"},
    ),
}  # fmt: skip
"""Counterexamples that random plans seldom meet: the plan, and what is changed."""


def plan_by_hand(name: str) -> dict[str, Any]:
    """One of them, whole."""
    return {**_PLAN, **BY_HAND[name][0]}
