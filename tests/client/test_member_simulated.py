"""The client's member and the relay's coordinator, both as they are, in the faults of the coordinator's simulation."""

from types import SimpleNamespace
from typing import Any

import pytest

from databus.client._member import GroupCall, Hold, Member
from databus.core import Checkpoint
from tests.relay.groups.simulation import (
    EVERY_S,
    TIMEOUT_S,
    Node,
    Rules,
    World,
    checkpoint,
    make_plan,
)

PROFILES = ("base", "lease", "old", "resize", "clock", "reorder", "inflight", "restart", "everything")
KNOWN = {"old": {"two-act"}, "everything": {"two-act", "fence-back"}}
"""What an older copy of the journal does, and no rule can prevent: a holder of then calls before the one of now."""


class Slot(SimpleNamespace):
    """A partition that is open, as the world sees it: `key`, `fence`, `done`, `giving`; `busy` while a body runs."""

    @property
    def fence(self) -> int:
        return self.hold.fence

    @property
    def done(self) -> int:
        return self.hold.done.sources["shop"].scn

    @property
    def giving(self) -> bool:
        return self.hold.is_given_up


class SimulatedClient(Node):
    """The real `Member`, and around it what its shell does: calls, lanes that are opened and closed, callbacks."""

    def __init__(self, world: World, name: str, rate: float, filters: str = "f", partitions: int = 0) -> None:
        super().__init__(world, name, rate)
        terms = {
            "sources": ["shop/main.orders"],
            "filters": {"where": filters},
            "partitions": partitions or world.n0,
        }
        ids = (f"{name}-{world.count}-aaaaaaaa".replace("'", "-x") for _ in range(1))
        self.member = Member(terms, new_id=lambda: next(ids))
        self.slots: dict[int, Slot] = {}
        self.out: GroupCall | None = None
        self.sends = self.answers = self.callbacks = 0
        self.stopped = False
        self.wait = world.plan["wait_ms"] > 0
        self.token: object = None

    @property
    def holds(self) -> dict[int, Slot]:
        return {number: slot for number, slot in self.slots.items() if self.member.is_held(slot.hold)}

    @property
    def leaving(self) -> bool:
        return self.member.is_leaving

    def now_ns(self) -> int:
        return int(self.clock(self.world.rules.member_clock) * 1e9)

    def valid(self) -> bool:
        return self.member.is_valid(self.now_ns())

    # calls

    def call(self) -> None:
        if self.stopped or (self.out is not None and "wait_ms" not in self.out.body):
            return
        call = self.out = self.member.next_call(self.now_ns(), waits=self.wait)
        self.world.log(f"{self.name}: {call.body}")
        self.world.send(self, call)
        self.world.after(self, TIMEOUT_S + (EVERY_S if self.wait else 0), lambda: self.timeout(call))

    def timeout(self, call: GroupCall) -> None:
        if self.out is call:
            self.member.unanswered(call)
            self.out = None
            self.call()

    def answered(self, call: GroupCall, answer: dict[str, Any]) -> None:
        if self.out is not call:
            return
        self.out = None
        match answer.get("error"):
            case None:
                self.member.answered(call, answer)
                self.world.after(self, (self.member.lease_until_ns or 0) / 1e9 - self.now_ns() / 1e9, self.look)
            case "Fenced":
                self.member.fenced(call, answer["fenced"])
            case "StaleCall":
                self.member.overtaken(call, answer["last"])
            case "GroupDiffers":
                self.stopped = True
            case _:
                self.member.unanswered(call)
        self.stopped = self.stopped or self.member.has_left
        self.look()
        self.plan_next()

    def plan_next(self) -> None:
        if self.stopped:
            return
        token = self.token = object()
        now_ns = self.now_ns()
        wait_s = max((self.member.due_ns(now_ns) - now_ns) / 1e9, 0.01)
        self.world.after(self, wait_s, lambda: self.token is token and self.out is None and self.call())

    def leave(self) -> None:
        self.member.leave()
        self.look()

    # what is open

    def look(self) -> None:
        """What the shell does whenever something may have changed."""
        may = {} if self.stopped else self.member.deliverable(self.now_ns())
        for number, slot in list(self.slots.items()):
            if may.get(number) is not slot.hold and not slot.busy:
                del self.slots[number]
                self.member.closed(slot.hold)
        for number, hold in may.items():
            if number not in self.slots:
                self.open(number, hold)
        for slot in list(self.slots.values()):
            self.pump(slot)
        if self.member.is_urgent:
            self.call()

    def open(self, number: int, hold: Hold) -> None:
        key = (hold.partition.of, number)
        self.world.taken(self, SimpleNamespace(key=key, done=hold.done.sources["shop"].scn))
        begin: Checkpoint = hold.done
        if self.world.rules.recipe in ("read", "claim"):
            place = self.world.claim(SimpleNamespace(key=key, fence=hold.fence))
            if place is None:
                self.member.dropped(hold)
                return
            begin = checkpoint(max(place, begin.sources["shop"].scn))
        self.member.opened(hold, begin)
        self.slots[number] = Slot(hold=hold, key=key, busy=False)

    def pump(self, slot: Slot) -> None:
        world = self.world
        if slot.busy or self.member.deliverable(self.now_ns()).get(slot.key[1]) is not slot.hold or self.stopped:
            return
        scn = world.next_of(slot.key, slot.done)
        if scn is None:
            self.member.progressed(slot.hold, checkpoint(max(slot.done, world.head)))
            return
        slot.busy = True
        self.callbacks += 1
        lasts = world.slow.get((self.name, self.callbacks), 0.02) if world.t < world.plan["heal"] - 12 else 0.02
        world.act_start(self, slot, scn)
        world.at(world.t + lasts, self, lambda: self.ended(slot, scn))

    def ended(self, slot: Slot, scn: int) -> None:
        slot.busy = False
        if self.world.act_end(self, slot, scn):
            self.member.progressed(slot.hold, checkpoint(scn))
        else:
            self.member.dropped(slot.hold)
        self.look()


class ClientWorld(World):
    member_type = SimulatedClient

    def send(self, member: Any, call: Any) -> None:
        """The coordinator gets JSON; the answer comes back to the call."""
        k, life = member.sends, member.life
        member.sends += 1

        def reply(answer: Any) -> None:
            number = member.answers
            member.answers += 1
            for delay in self.delays(member.name, "answer", number):
                self.message(delay, member, lambda: member.life == life and member.answered(call, answer))

        for delay in self.delays(member.name, "call", k):
            self.message(delay, self.coordinator, lambda: self.coordinator.arrived(dict(call.body), reply))


def found(profile: str, rules: Rules, seeds: range) -> dict[str, list[int]]:
    bad: dict[str, list[int]] = {}
    for seed in seeds:
        world = ClientWorld(make_plan(seed, profile), rules).run().finish()
        for kind in {kind for kind, _ in world.bad} - KNOWN.get(profile, set()):
            bad.setdefault(kind, []).append(seed)
    return bad


@pytest.mark.parametrize("profile", PROFILES)
def test_no_fault_breaks_what_a_group_promises(profile: str) -> None:
    assert found(profile, Rules(), range(4)) == {}


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("profile", PROFILES)
def test_no_fault_breaks_what_a_group_promises_in_many_histories(profile: str) -> None:
    assert found(profile, Rules(), range(2_000)) == {}


def broken(profile: str, rules: Rules, seed: int) -> set[str]:
    return {kind for kind, _ in ClientWorld(make_plan(seed, profile), rules).run().finish().bad}


def test_a_clock_that_stands_still_while_a_machine_sleeps_breaks_it() -> None:
    assert broken("clock", Rules(member_clock="mono"), 3) == {"two-act"}
    assert broken("clock", Rules(), 3) == set()


def test_delivering_beyond_the_lease_breaks_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken("base", Rules(), 5) == set()
    monkeypatch.setattr("databus.client._member.STOP_AT", 1.3)
    assert broken("base", Rules(), 5) == {"two-act"}
