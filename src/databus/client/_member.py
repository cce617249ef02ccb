"""A member of a group: its calls to the coordinator, and what it may deliver. Pure: no sockets, no threads, no clocks.

    call = member.next_call(now_ns)
    ... send it ...
    member.answered(call, answer)           or `fenced`, `overtaken`, `unanswered`
    member.deliverable(now_ns)              what the consumer may be given now; everything else has to be closed

Whoever runs this compares what it has open with `deliverable`, and reports with `opened`, `progressed` and `closed`.
The lease counts from when the last answered call was sent, the coordinator's from when that call came: so the
coordinator never gives to another member what is delivered here.
"""

import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from databus.client._partition import Partition
from databus.core import Barrier, Checkpoint

STOP_AT: Final = 0.8
"""The part of a lease after which nothing more is delivered; the rest is for what is under way."""
PERIOD_MS: Final = 1_000
"""How often a member saves."""
_CALLS_A_LEASE: Final = 5  # so that a lost one costs nothing
_NS: Final = 1_000_000


@dataclass(slots=True, eq=False)
class Hold:
    """A partition that this member holds, under one fence."""

    partition: Partition
    fence: int
    done: Checkpoint
    """How far the consumer has come; at first where it begins."""
    saved: Checkpoint
    """What the coordinator has of that."""
    barriers: dict[str, Barrier] = field(default_factory=dict)
    """By physical source, where it waits for the others, or will when it comes there. Each source waits for itself: two
    partitions may come to the controls of two sources in another order."""
    is_open: bool = False
    """Whether something of it may be in the consumer's hands."""
    is_given_up: bool = False
    """Whether it is to be given back as soon as it is closed."""

    @property
    def waits(self) -> tuple[Barrier, ...]:
        """The controls that redistribute keys, and that the consumer has done."""
        return tuple(barrier for barrier in list(self.barriers.values()) if barrier.is_reached_by(self.done))

    def to_json(self) -> dict[str, Any]:
        """As it stands in a call."""
        body: dict[str, Any] = {"fence": self.fence}
        if self.done is not self.saved:
            body["checkpoint"] = self.done.to_json()
        if waits := self.waits:
            body["waits"] = [barrier.to_json() for barrier in waits]
        return body


@dataclass(frozen=True, slots=True, eq=False)
class GroupCall:
    """One call."""

    body: Mapping[str, Any]
    sent_ns: int
    """On the clock that leases are counted by."""
    places: tuple[tuple[Hold, Checkpoint], ...] = ()
    """What it says of each partition: how far it is."""
    waits: Mapping[Hold, tuple[Barrier, ...]] = field(default_factory=dict)
    """Where it says that partitions wait for the others."""


class Member:
    """One member of one group. terms: what the group agrees on, and each call repeats."""

    def __init__(
        self,
        terms: Mapping[str, Any],
        *,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
        pid: Callable[[], int] = os.getpid,
    ) -> None:
        self.terms: Mapping[str, Any] = dict(terms)
        self._new_id, self._pid = new_id, pid
        self._made_in = pid()
        self.id = new_id()
        self.number = 0
        self.lease_ms: int | None = None
        """As it was given first; a later answer can only shorten it."""
        self.lease_until_ns: int | None = None
        """When delivering ends: at 0.8 of the lease."""
        self.holds: dict[int, Hold] = {}
        self.state = ""
        """What the coordinator said of the group last."""
        self.is_leaving = False
        self.has_left = False
        self._out: GroupCall | None = None
        self._sent_ns: int | None = None
        self._again_ms = PERIOD_MS
        self._is_urgent = True

    # calls

    def next_call(self, now_ns: int, *, waits: bool = False) -> GroupCall:
        """The next call. If one is still under way, it counts no more: this one has the higher number.

        waits: the answer may wait until there is something to say.
        """
        if self._pid() != self._made_in:  # a fork: two processes must not speak with one voice
            self._made_in, self.id, self.number = self._pid(), self._new_id(), 0
            self.holds, self.lease_ms, self.lease_until_ns = {}, None, None
        self.number += 1
        is_last = self.is_leaving and not any(hold.is_open for hold in self.holds.values())
        holds = list(self.holds.values())
        given = [] if is_last else [hold for hold in holds if hold.is_given_up and not hold.is_open]
        body: dict[str, Any] = {**self.terms, "member": self.id, "call": self.number}
        body["holds"] = {str(int(hold.partition)): hold.to_json() for hold in holds if hold not in given}
        if given:
            body["gives"] = {str(int(hold.partition)): hold.to_json() for hold in given}
        if is_last:
            body["leave"] = True
        elif waits and not given:
            body["wait_ms"] = self.period_ms
        places = tuple((hold, hold.done) for hold in holds)
        self._out = GroupCall(body, now_ns, places, {hold: hold.waits for hold in holds})
        self._sent_ns, self._is_urgent = now_ns, False
        return self._out

    def due_ns(self, now_ns: int) -> int:
        """When the next call is due."""
        if self._is_urgent or self._sent_ns is None:
            return now_ns
        return self._sent_ns + min(self._again_ms, self.period_ms) * _NS

    @property
    def is_urgent(self) -> bool:
        """Whether something should be said at once."""
        return self._is_urgent and not self.has_left

    @property
    def period_ms(self) -> int:
        """How often it calls while nothing happens."""
        return PERIOD_MS if self.lease_ms is None else min(PERIOD_MS, max(self.lease_ms // _CALLS_A_LEASE, 1))

    # answers

    def answered(self, call: GroupCall, answer: Mapping[str, Any]) -> None:
        """The coordinator did what was asked. An answer to a call that counts no more is passed over."""
        if not self._is_awaited(call):
            return
        for hold, done in call.places:
            hold.saved = done
        if call.body.get("leave"):
            self.holds, self.has_left, self.lease_until_ns = {}, True, None
            return
        for hold, _ in call.places:
            if str(int(hold.partition)) in call.body.get("gives", ()) and self.is_held(hold):
                del self.holds[hold.partition]
        self._renew(call, answer)
        self._pass(call, answer.get("pass", {}))
        for name, taken in answer["take"].items():
            self._take(int(name), taken)
        for name in answer["give_up"]:
            if (given_up := self.holds.get(int(name))) is not None:
                given_up.is_given_up = True
                self._is_urgent = self._is_urgent or not given_up.is_open
        self._is_urgent = self._is_urgent or self.is_leaving

    def _renew(self, call: GroupCall, answer: Mapping[str, Any]) -> None:
        lease_ms = int(answer["lease_ms"])
        self.lease_ms = lease_ms if self.lease_ms is None else min(self.lease_ms, lease_ms)
        self.lease_until_ns = call.sent_ns + int(self.lease_ms * STOP_AT) * _NS
        self._again_ms = max(int(answer.get("again_ms", PERIOD_MS)), 1)
        self.state = str(answer.get("state", ""))

    def _pass(self, call: GroupCall, passes: Mapping[str, Sequence[str]]) -> None:
        for name, physicals in passes.items():
            hold = self.holds.get(int(name))
            if hold is not None:
                passed = [barrier for barrier in call.waits.get(hold, ()) if barrier.physical in physicals]
                for barrier in passed:
                    if hold.barriers.get(barrier.physical) == barrier:
                        del hold.barriers[barrier.physical]

    def _take(self, number: int, taken: Mapping[str, Any]) -> None:
        held = self.holds.get(number)
        if held is not None and held.fence >= taken["fence"]:
            return
        begin = Checkpoint.from_json(taken["checkpoint"], f"take.{number}.checkpoint")
        waits = [Barrier.from_json(barrier) for barrier in taken.get("waits", ())]
        barriers = {barrier.physical: barrier for barrier in waits}
        self.holds[number] = Hold(Partition(number, int(taken["of"])), int(taken["fence"]), begin, begin, barriers)

    def fenced(self, call: GroupCall, partitions: Iterable[str]) -> None:
        """The call changed nothing: these are held by others."""
        if self._is_awaited(call):
            for name in partitions:
                self.holds.pop(int(name), None)
            self._is_urgent = True

    def overtaken(self, call: GroupCall, last: int) -> None:
        """The call changed nothing: the coordinator has seen this number, though this member has not sent it."""
        if self._is_awaited(call):
            self.number = max(self.number, last)
            self._is_urgent = True

    def unanswered(self, call: GroupCall) -> None:
        """No answer came, or one that asks to try again."""
        self._is_awaited(call)

    def _is_awaited(self, call: GroupCall) -> bool:
        if call is not self._out:
            return False
        self._out = None
        return True

    # what may be delivered, and what became of it

    def is_valid(self, now_ns: int) -> bool:
        """Whether the lease allows to deliver."""
        return self.lease_until_ns is not None and now_ns < self.lease_until_ns and self._pid() == self._made_in

    def deliverable(self, now_ns: int) -> dict[int, Hold]:
        """What the consumer may be given now."""
        if self.is_leaving or not self.is_valid(now_ns):
            return {}
        return {number: hold for number, hold in self.holds.items() if not hold.is_given_up}

    def is_held(self, hold: Hold) -> bool:
        """Whether it is this member's still, as far as it knows."""
        return self.holds.get(hold.partition) is hold

    def opened(self, hold: Hold, begin: Checkpoint) -> None:
        """It is given to the consumer from now on, beginning after `begin`."""
        hold.is_open = True
        if begin != hold.done:
            hold.done = begin

    def progressed(self, hold: Hold, checkpoint: Checkpoint) -> None:
        """The consumer has done it so far. Also after the end of the lease: what is done is not done again."""
        if checkpoint == hold.done:
            return
        before = hold.waits
        hold.done = checkpoint
        if hold.waits != before:
            self._is_urgent = True

    def closed(self, hold: Hold) -> None:
        """Nothing of it is in the consumer's hands any more."""
        hold.is_open = False
        if self.is_held(hold) and (hold.is_given_up or self.is_leaving):
            self._is_urgent = True

    def dropped(self, hold: Hold) -> None:
        """Give it back without saving what is not saved: its target refuses this fence."""
        if self.is_held(hold):
            del self.holds[hold.partition]
            self._is_urgent = True

    def leave(self) -> None:
        """Give everything back as soon as it is closed, and be no member any more."""
        self.is_leaving = self._is_urgent = True
