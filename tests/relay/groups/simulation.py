"""A seeded world with faults around the real coordinator: members, a guarded SQL table, clocks, a network, a disk.

A plan is a list of explicit faults, so that a failure can be shrunk by leaving faults out (`shrink`). Time is
simulated. What a world finds wrong is in `World.bad`: kinds and what happened.

Everything on the coordinator's side is the relay's own code, through JSON as calls, answers and journal are. A member
is an object that is fed time and answers and gives calls: another one goes into `World.member_type`.
"""

import heapq
import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from databus.core import Checkpoint, DatabusError, SourceCheckpoint
from databus.relay.groups import CallBody, Clocks, Coordinator, GroupLimits, Listed, MemberCall, resize

LEASE_S, STOP_AT, EVERY_S, TIMEOUT_S = 10.0, 0.8, 1.0, 2.0
NAME = "billing"
Key = tuple[int, int]
"""A partition: of how many, and its number."""


@dataclass(frozen=True)
class Rules:
    """What members and tables do; the coordinator's own rules are methods that a test replaces."""

    coordinator: type[Coordinator] = Coordinator
    member_clock: str = "boot"  # mono: stands still in suspend; wall: jumps
    coordinator_clock: str = "mono"
    recipe: str = (
        "claim"  # read: the fence is not written on take; fence: the table's place is not read; none: no guard
    )
    late_done: bool = True  # a body that returned after 0.8 of the lease is done
    names_kept: bool = True
    numbers_again: bool = False  # a member that counts its calls anew each time


def checkpoint(scn: int) -> Checkpoint:
    return Checkpoint({"shop": SourceCheckpoint(uuid="u", scn=scn)})


@cache
def checkpoint_json(scn: int) -> dict[str, Any]:
    return {"v": 1, "sources": {"shop": {"uuid": "u", "scn": scn}}}


def scn_of(value: Any) -> int:
    return int(value["sources"]["shop"]["scn"])


def bucket(key: int, n: int) -> int:
    return ((key * 2654435761 + 0x9747B28C) >> 5 & 0x7FFFFFFF) % n


class Node:
    def __init__(self, world: "World", name: str, rate: float) -> None:
        self.world, self.name, self.rate = world, name, rate
        self.alive, self.life = True, 0
        self.paused_until = self.still = self.wall_off = 0.0

    def clock(self, kind: str) -> float:
        t = self.world.t
        if kind == "boot":
            return t * self.rate
        return (t - self.still) * self.rate if kind == "mono" else t + self.wall_off


class CoordinatorNode(Node):
    """The relay around the coordinator: a disk that takes 5 ms, calls that wait for something."""

    def __init__(self, world: "World", name: str, rate: float) -> None:
        super().__init__(world, name, rate)
        self.lease_s = LEASE_S
        self.records: list[str] = []  # durable
        self.listed: dict[str, Listed] = {}  # durable, in another file
        self.start()

    def now(self) -> Clocks:
        return Clocks(int(self.clock(self.world.rules.coordinator_clock) * 1e9), int(self.clock("wall") * 1e3) + 10**6)

    def start(self) -> None:
        limits = GroupLimits(lease_ms=int(self.lease_s * 1e3))
        records = map(json.loads, self.records)
        self.machine = self.world.rules.coordinator(limits, self.now(), records, self.listed)
        self.pending: list[tuple[Callable[[Any], None], Any]] = []
        self.waiting: list[tuple[MemberCall, Callable[[Any], None]]] = []
        self.flushing = False
        self.version = -1
        self.tick()

    def tick(self) -> None:
        self.machine.tick(self.now())
        self.wake()
        self.world.after(self, 0.5, self.tick)

    def arrived(self, body: dict[str, Any], reply: Callable[[Any], None]) -> None:
        world = self.world
        call = MemberCall.of(CallBody.model_validate(body))
        before = self.stands()
        if hasattr(self.machine, "latest"):  # one that finds a start again, in a test
            self.machine.latest = world.head
        try:
            start = checkpoint(world.head) if self.machine.needs_start(NAME, call) else None
            answer = self.machine.handle(NAME, call, self.now(), start)
        except DatabusError as error:
            self.answer(reply, {"error": type(error).__name__, **getattr(error, "details", {})})
            return
        world.saved(call, before)
        world.granted(answer.take, call.member)
        if answer.is_empty and call.wait_ms and not call.leave:
            self.waiting.append((call, reply))
            world.after(self, min(call.wait_ms, answer.again_ms) / 1e3, lambda: self.look(call, reply, last=True))
        else:
            self.answer(reply, answer.to_json())
        self.wake()

    def stands(self) -> dict[int, tuple[int, int]]:
        group = self.machine.groups.get(NAME)
        return (
            {} if group is None else {n: (p.of, p.checkpoint.sources["shop"].scn) for n, p in group.partitions.items()}
        )

    def wake(self) -> None:
        group = self.machine.groups.get(NAME)
        while group is not None and group.version != self.version:
            self.version = group.version
            for call, reply in list(self.waiting):
                self.look(call, reply)
        self.flush()

    def look(self, call: MemberCall, reply: Callable[[Any], None], *, last: bool = False) -> None:
        if (call, reply) not in self.waiting:
            return
        try:
            answer = self.machine.look(NAME, call, self.now())
        except DatabusError as error:
            self.waiting.remove((call, reply))
            self.answer(reply, {"error": type(error).__name__, **getattr(error, "details", {})})
            return
        self.world.granted(answer.take, call.member)
        if last or not answer.is_empty:
            self.waiting.remove((call, reply))
            self.answer(reply, answer.to_json())

    def answer(self, reply: Callable[[Any], None], value: Any) -> None:
        self.pending.append((reply, value))
        self.flush()

    def flush(self) -> None:
        if self.flushing or not self.pending:
            return
        self.flushing = True
        batch, self.pending = self.pending, []
        self.world.after(self, 0.005, lambda: self.flushed(batch))

    def write(self) -> None:
        """All that was decided so far is durable."""
        changes = self.machine.drain()
        self.records += [json.dumps(record) for record in changes.records]
        if changes.names is not None:
            self.listed = changes.names if self.world.rules.names_kept else {}
        self.world.history.append((self.world.t, len(self.records)))

    def flushed(self, batch: list[tuple[Callable[[Any], None], Any]]) -> None:
        self.write()
        for reply, value in batch:
            reply(value)
        self.flushing = False
        self.flush()

    def killed(self, when: str, lose: Any) -> None:
        """when: after: what was decided is durable, and the answers did not leave."""
        self.alive, self.life, self.paused_until = False, self.life + 1, 0
        if when == "after":
            self.write()
        if lose == "lose":
            self.records = []
        elif isinstance(lose, float):
            old = [count for t, count in self.world.history if t <= self.world.t - lose]
            if old:
                del self.records[old[-1] :]
                self.world.forget_what_is_newer()


@dataclass
class Hold:
    key: Key
    fence: int
    done: int
    saved: int
    busy: bool = False
    giving: bool = False
    gone: bool = False


class SimulatedMember(Node):
    """A member as its rules are written: its calls, its lease, its callbacks."""

    def __init__(self, world: "World", name: str, rate: float, filters: str = "f", partitions: int = 0) -> None:
        super().__init__(world, name, rate)
        self.holds: dict[int, Hold] = {}
        self.number = 0
        self.out: dict[str, Any] | None = None
        self.id = f"{name}-{world.count}-aaaaaaaa".replace("'", "-x")
        self.lease_until = -1e9
        self.sent = 0.0
        self.filters, self.partitions = filters, partitions or world.n0
        self.sends = self.answers = self.callbacks = 0
        self.leaving = self.stopped = False
        self.next_call: object = None
        self.wait_ms = world.plan["wait_ms"]

    def now(self) -> float:
        return self.clock(self.world.rules.member_clock)

    def valid(self) -> bool:
        return self.now() < self.lease_until

    def call(self) -> None:
        world = self.world
        if self.out or self.stopped:
            return
        self.number = 1 if world.rules.numbers_again else self.number + 1
        for hold in list(self.holds.values()):
            self.pump(hold)
        gives = {n: h for n, h in self.holds.items() if h.giving and not h.busy}
        leaves = self.leaving and len(gives) == len(self.holds)
        said = {n: {"fence": h.fence, "checkpoint": checkpoint_json(h.done)} for n, h in self.holds.items()}
        body = {
            "member": self.id,
            "call": self.number,
            "filters": {"where": self.filters},
            "sources": ["shop/main.orders"],
            "partitions": self.partitions,
            "holds": {str(n): each for n, each in said.items() if n not in gives},
            "gives": {str(n): each for n, each in said.items() if n in gives},
            "leave": leaves,
            "wait_ms": self.wait_ms,
        }
        for n in gives:
            self.drop(n)
        self.out, self.sent = body, self.now()
        world.log(f"{self.name}: call {self.number} holds {said}{' leave' if leaves else ''}")
        world.send(self, body)
        world.after(self, TIMEOUT_S, lambda: self.timeout(body))

    def timeout(self, body: dict[str, Any]) -> None:
        if self.out is body:
            self.out = None
            self.call()

    def soon(self) -> None:
        if not self.out:
            self.call()

    def answered(self, body: dict[str, Any], answer: dict[str, Any]) -> None:
        if self.out is not body:
            return
        self.out = None
        if "error" in answer:
            self.refused(answer)
            return
        if body["leave"]:
            self.stopped = True
            return
        self.lease_until = self.sent + STOP_AT * answer["lease_ms"] / 1e3
        for text, said in body["holds"].items():
            hold = self.holds.get(int(text))
            if hold and hold.fence == said["fence"]:
                hold.saved = scn_of(said["checkpoint"])
        for text, taken in answer["take"].items():
            self.take(int(text), taken)
        again = False
        for number, hold in list(self.holds.items()):
            hold.giving = self.leaving or str(number) in answer["give_up"]
            again = again or (hold.giving and not hold.busy)
        for hold in list(self.holds.values()):
            self.pump(hold)
        again = again or (self.leaving and not self.holds)
        if again or self.wait_ms:
            self.later(0.0 if again else 0.01)
        else:
            gap = min(EVERY_S, answer["again_ms"] / 1e3) - (self.now() - self.sent)
            self.later(max(gap, 0.01))

    def refused(self, answer: dict[str, Any]) -> None:
        world = self.world
        world.log(f"{self.name}: 409 {answer}")
        if answer["error"] == "Fenced":
            for text in answer["fenced"]:
                self.drop(int(text))
            self.call()
        elif answer["error"] == "GroupDiffers":
            for number in list(self.holds):
                self.drop(number)
            self.stopped = True
        else:
            self.later(EVERY_S)

    def take(self, number: int, taken: dict[str, Any]) -> None:
        world = self.world
        before = self.holds.get(number)
        if before and before.fence >= taken["fence"]:
            return
        at = scn_of(taken["checkpoint"])
        self.drop(number)
        hold = self.holds[number] = Hold((taken["of"], number), taken["fence"], at, at)
        world.log(f"{self.name}: takes {hold.key} fence {hold.fence} at {at}")
        world.taken(self, hold)
        if world.rules.recipe in ("read", "claim"):
            place = world.claim(hold)
            if place is None:
                self.drop(number)
            else:
                hold.done = max(hold.done, place)

    def later(self, gap: float) -> None:
        token = self.next_call = object()
        self.world.after(self, gap, lambda: self.next_call is token and self.soon())

    def drop(self, number: int) -> None:
        hold = self.holds.pop(number, None)
        if hold:
            hold.gone = True

    def leave(self) -> None:
        self.leaving = True
        for hold in self.holds.values():
            hold.giving = True
        self.soon()

    def pump(self, hold: Hold) -> None:
        world = self.world
        number = hold.key[1]
        if (
            hold.gone
            or hold.busy
            or hold.giving
            or not self.valid()
            or self.stopped
            or self.holds.get(number) is not hold
        ):
            return
        scn = world.next_of(hold.key, hold.done)
        if scn is None:
            hold.done = max(hold.done, world.head)
            return
        hold.done = max(hold.done, scn - 1)
        hold.busy = True
        self.callbacks += 1
        lasts = world.slow.get((self.name, self.callbacks), 0.02) if world.t < world.plan["heal"] - 12 else 0.02
        world.act_start(self, hold, scn)
        world.at(world.t + lasts, self, lambda: self.ended(hold, scn))

    def ended(self, hold: Hold, scn: int) -> None:
        world = self.world
        hold.busy = False
        if not world.act_end(self, hold, scn):  # the target has a higher fence
            if self.holds.get(hold.key[1]) is hold:
                self.drop(hold.key[1])
            self.soon()
            return
        if hold.gone:
            return
        if self.valid() or world.rules.late_done:
            hold.done = max(hold.done, scn)
        if hold.giving:
            self.soon()
        self.pump(hold)


class World:
    """All of it. `run` lets it live its plan; `finish` looks at what must be true in the end."""

    member_type: Callable[..., SimulatedMember] = SimulatedMember

    def __init__(self, plan: dict[str, Any], rules: Rules, *, trace: bool = False) -> None:
        self.plan, self.rules, self.trace = plan, rules, [] if trace else None
        self.t, self.last_fault = 0.0, plan["heal"]
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Node | None, int, Callable[[], Any]]] = []
        self.n0 = plan["partitions"]
        self.head, self.keys = 0, [0]
        self.history: list[tuple[float, int]] = []
        self.slow = {(e[1], e[2]): e[3] for e in plan["events"] if e[0] == "slow"}
        self.fates = {(e[1], e[2], e[3]): e[4:] for e in plan["events"] if e[0] == "msg"}
        self.bad: list[tuple[str, str]] = []
        self.last_grant = 0
        self.saved_max: dict[Key, int] = {}
        self.handled: dict[int, float] = {}
        self.first_act: dict[Key, tuple[int, Any]] = {}
        self.table_fences: dict[Key, tuple[int, int]] = {}
        self.table_rows: dict[int, int] = {}
        self.applied: set[int] = set()
        self.late = self.grants = 0
        self.began: int | None = None
        self.members: dict[str, SimulatedMember] = {}
        self.count = 0
        self.recovered = plan["heal"]
        self.coordinator = CoordinatorNode(self, "C", plan["rates"][0])

    def log(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.t:8.3f} {text}")

    def fail(self, kind: str, text: str) -> None:
        self.log(f"*** {kind}: {text}")
        self.bad.append((kind, text))

    # Time and messages

    def at(self, t: float, node: Node | None, act: Callable[[], Any]) -> None:
        heapq.heappush(self._heap, (t, next(self._order), node, node.life if node else 0, act))

    def after(self, node: Node, dt: float, act: Callable[[], Any]) -> None:
        self.at(self.t + max(dt, 0) / node.rate, node, act)

    def send(self, member: SimulatedMember, body: dict[str, Any]) -> None:
        k, life = member.sends, member.life
        member.sends += 1

        def reply(answer: Any) -> None:
            number = member.answers
            member.answers += 1
            for delay in self.delays(member.name, "answer", number):
                self.message(delay, member, lambda: member.life == life and member.answered(body, answer))

        for delay in self.delays(member.name, "call", k):
            self.message(delay, self.coordinator, lambda: self.coordinator.arrived(body, reply))

    def message(self, delay: float, node: Node, act: Callable[[], Any]) -> None:
        """For a dead process it is lost; for a paused one it waits in its socket."""
        if delay > 0.01:
            self.last_fault = max(self.last_fault, self.t + delay)

        def arrive() -> None:
            if node.alive:
                if node.paused_until > self.t:
                    self.at(node.paused_until, node, act)
                else:
                    act()

        self.at(self.t + delay, None, arrive)

    def delays(self, name: str, what: str, k: int) -> list[float]:
        fate = self.fates.get((name, what, k))
        if fate is None or self.t > self.plan["heal"]:
            return [0.002]
        return {"drop": [], "delay": [fate[-1]], "dup": [0.002, fate[-1]]}[fate[0]]

    # What must be true

    def next_of(self, key: Key, done: int) -> int | None:
        n, b = key
        return next((scn for scn in range(done + 1, self.head + 1) if bucket(self.keys[scn], n) == b), None)

    def granted(self, take: Any, member: str) -> None:
        for number, taken in take.items():
            self.grants += 1
            if taken.fence <= self.last_grant:
                self.fail("fence-back", f"{number} to {member}: fence {taken.fence} after {self.last_grant}")
            self.last_grant = max(self.last_grant, taken.fence)

    def saved(self, call: MemberCall, before: dict[int, tuple[int, int]]) -> None:
        for number, held in call.named.items():
            if held.checkpoint is None or number not in before:
                continue
            of, low = before[number]
            key, scn = (of, number), held.checkpoint.sources["shop"].scn
            if scn < self.saved_max.get(key, -1):
                self.fail("checkpoint-back", f"{key}: {scn} saved by {call.member} after {self.saved_max[key]}")
            self.saved_max[key] = max(self.saved_max.get(key, -1), scn)
            self.check_whole(key, low, scn, f"{call.member} saves {key} at {scn}")

    def forget_what_is_newer(self) -> None:
        """The disk is an older one: what was saved since is not known to anybody."""
        self.saved_max = {}

    def check_whole(self, key: Key, low: int, scn: int, who: str) -> None:
        for each in range(low + 1, scn + 1):
            if bucket(self.keys[each], key[0]) == key[1] and each not in self.handled:
                self.fail("hole", f"{who}, but {each} was never handled")
                return

    def taken(self, member: SimulatedMember, hold: Hold) -> None:
        self.began = hold.done if self.began is None else self.began
        self.check_whole(hold.key, self.began, hold.done, f"{member.name} takes {hold.key} at {hold.done}")

    def act_start(self, member: SimulatedMember, hold: Hold, scn: int) -> None:
        last, me = self.first_act.get(hold.key), (member.name, member.life)
        if last and (last[0] > hold.fence or (last[0] == hold.fence and last[1] != me)):
            self.fail("two-act", f"{member.name} begins {scn} of {hold.key} with {hold.fence}, after {last}")
        if not last or hold.fence > last[0]:
            self.first_act[hold.key] = (hold.fence, me)

    def act_end(self, member: SimulatedMember, hold: Hold, scn: int) -> bool:
        last = self.first_act.get(hold.key)
        self.late += bool(last and last[0] > hold.fence)
        if not self.commit(member, hold, scn):
            return False
        self.handled.setdefault(scn, self.t)
        return True

    # The guarded table

    def claim(self, hold: Hold) -> int | None:
        """One transaction: write the fence unless it is below, and read the place; of the earlier layouts too."""
        place, n = 0, hold.key[0]
        for key in [(of, hold.key[1] % of) for of in range(n, 0, -1) if n % of == 0]:
            fence, pair = self.table_fences.get(key, (0, 0))
            if fence > hold.fence:
                return None
            place = max(place, pair)
            if self.rules.recipe == "claim" and (key == hold.key or key in self.table_fences):
                self.table_fences[key] = (hold.fence, pair)
        return place

    def commit(self, member: SimulatedMember, hold: Hold, scn: int) -> bool:
        """The consumer's transaction: rows and checkpoint, if the fence is its own."""
        if self.rules.recipe == "none":
            return True
        fence, pair = self.table_fences.get(hold.key, (0, 0))
        if hold.fence < fence:
            return False
        self.table_fences[hold.key] = (max(fence, hold.fence), max(pair, scn))
        if scn in self.applied:
            self.fail("sql-twice", f"{scn} applied again by {member.name} with fence {hold.fence}")
        row = self.keys[scn]
        if self.table_rows.get(row, 0) > scn:
            self.fail("sql-order", f"key {row}: {scn} after {self.table_rows[row]}")
        self.applied.add(scn)
        self.table_rows[row] = scn
        return True

    # Running

    def spawn(self, name: str, **more: Any) -> None:
        rate = self.plan["rates"][1 + self.count % 6]
        self.count += 1
        member = self.members[name] = self.member_type(self, name, rate, **more)
        member.call()

    def fault(self, e: tuple[Any, ...]) -> None:
        kind = e[0]
        self.log(f"--- {e}")
        member = self.members.get(e[2]) if len(e) > 2 else None
        if kind == "join":
            self.spawn(e[2], **(e[3] if len(e) > 3 else {}))
        elif kind == "kill" and member and member.alive:
            member.alive, member.life, member.paused_until = False, member.life + 1, 0
            if e[3] is not None:
                self.last_fault = max(self.last_fault, self.t + e[3])
                self.at(self.t + e[3], None, lambda: self.spawn(e[2] + "'"))
        elif kind in ("pause", "suspend") and member and member.alive:
            member.paused_until = max(member.paused_until, self.t + e[3])
            member.still += e[3] if kind == "suspend" else 0
        elif kind == "leave" and member and member.alive:
            member.leave()
        elif kind == "walljump" and member:
            member.wall_off += e[3]
        elif kind == "cwall":
            self.coordinator.wall_off += e[2]
        elif kind == "cpause":
            self.coordinator.paused_until = max(self.coordinator.paused_until, self.t + e[2])
        elif kind == "ckill":
            self.kill_coordinator(e)
        elif kind == "resize":
            self.resize()

    def kill_coordinator(self, e: tuple[Any, ...]) -> None:
        node = self.coordinator
        if not node.alive:
            return
        self.last_fault = max(self.last_fault, self.t + e[2])
        node.killed(e[3], e[4])

        def up() -> None:
            node.alive, node.lease_s = True, e[5] or node.lease_s
            node.start()

        self.at(self.t + e[2], None, up)

    def resize(self) -> None:
        node = self.coordinator
        group = node.machine.groups.get(NAME)
        if node.alive and node.paused_until <= self.t and group is not None and group.n <= 8 and not group.is_resizing:
            resize(node.machine, NAME, group.n * 2)
            node.wake()

    def run(self) -> "World":
        plan = self.plan
        for i in range(plan["members"]):
            self.at(plan["joins"][i], None, lambda i=i: self.spawn(f"M{i + 1}"))
        for e in plan["events"]:
            if e[0] not in ("slow", "msg"):
                self.at(e[1], None, lambda e=e: self.fault(e))
        rng, t = random.Random(plan["seed"] ^ 0xABC), 0.0
        while t < plan["end"]:
            t += rng.expovariate(1 / plan["gap"])
            self.at(t, None, partial(self.grow, rng.randrange(12)))
        self.at(plan["heal"], None, self.heal)
        t = plan["heal"] + 0.1
        while t < plan["end"]:
            self.at(t, None, self.sample)
            t += 0.2
        while self._heap and self._heap[0][0] <= plan["end"] and len(self.bad) <= 3:
            self.t, _, node, life, act = heapq.heappop(self._heap)
            if node is not None:
                if not node.alive or node.life != life:
                    continue
                if node.paused_until > self.t:
                    self.at(node.paused_until, node, act)
                    continue
            act()
        return self

    def grow(self, key: int) -> None:
        self.head += 1
        self.keys.append(key)
        for member in list(self.members.values()):
            if member.alive and member.paused_until <= self.t:
                for hold in list(member.holds.values()):
                    if bucket(key, hold.key[0]) == hold.key[1]:
                        member.pump(hold)

    def flows(self, number: int, partition: Any) -> list[SimulatedMember]:
        """Who is at work on a partition."""
        return [
            member
            for member in self.members.values()
            if member.alive and not member.stopped and number in member.holds and member.valid()
            and member.holds[number].fence == partition.fence and not member.holds[number].giving
        ]  # fmt: skip

    def sample(self) -> None:
        """Since when all partitions flow."""
        group = self.coordinator.machine.groups.get(NAME)
        if group is not None and not all(self.flows(number, each) for number, each in group.partitions.items()):
            self.recovered = self.t

    def heal(self) -> None:
        self.log("--- faults end")
        for node in [self.coordinator, *self.members.values()]:
            self.last_fault = max(self.last_fault, node.paused_until)  # what waited for it goes on then
            node.paused_until = min(node.paused_until, self.t)
        if not any(member.alive and not member.stopped and not member.leaving for member in self.members.values()):
            self.spawn("Z")

    def finish(self) -> "World":
        """Everything flows, evenly, within a lease and a second of the last fault."""
        group = self.coordinator.machine.groups.get(NAME)
        if group is None or self.bad:
            return self
        live = [member for member in self.members.values() if member.alive and not member.stopped]
        for number, each in group.partitions.items():
            owners = self.flows(number, each)
            if len(owners) != 1:
                self.fail("liveness", f"{number} is held by {[member.name for member in owners]} at the end")
            elif owners[0].holds[number].done < self.head - 40:
                self.fail("liveness", f"{number} stands at {owners[0].holds[number].done} of {self.head}")
        counts = sorted(len(member.holds) for member in live)
        if not self.bad and counts and counts[-1] - counts[0] > 1:
            self.fail("uneven", f"{counts}")
        return self


@dataclass(frozen=True)
class Found:
    """What seeds showed. late: seeds in which an effect in flight landed after the next holder had begun."""

    bad: dict[str, list[int]] = field(default_factory=dict)
    recovered_s: float = 0.0
    late: int = 0


BASE = [
    "kill", "pause", "suspend", "leave", "join", "storm", "ckill", "ckill", "cpause", "slow", "slow", "msg", "msg",
    "msg", "burst",
]  # fmt: skip
PROFILES = {
    "base": BASE,
    "lease": ["clease", "burst", "msg"],
    "lose": ["lose", "kill", "burst"],
    "old": [*BASE, "old", "old"],
    "old2": ["old", "join", "leave", "kill"],
    "resize": [*BASE, "resize", "resize", "resize"],
    "clock": ["walljump", "cwall", "burst", "suspend"],
    "reorder": ["msg", "msg", "msg", "join"],
    "inflight": ["pause", "slow", "slow"],
    "restart": ["ckill", "cpause", "kill", "msg"],
    "everything": [*BASE, "clease", "old", "resize", "resize", "walljump", "cwall", "differs", "parts"],
}


def make_plan(seed: int, profile: str) -> dict[str, Any]:
    """The faults of a seed: members, clocks, and what happens to them."""
    rng = random.Random(seed)
    members = rng.randint(1, 4)
    names = [f"M{i + 1}" for i in range(members)]
    plan = {
        "seed": seed,
        "members": members,
        "partitions": rng.choice([1, 1, 2, 3, 4, 6]),
        "joins": [rng.choice([0.0, 0.01, rng.uniform(0, 3)]) for _ in names],
        "rates": [rng.choice([1.0, 1.0, rng.uniform(0.95, 1.05)]) for _ in range(7)],
        "gap": rng.choice([0.1, 0.4, 0.4]),
        "heal": 40.0,
        "end": 40.0 + 2 * LEASE_S + 6,
        "wait_ms": rng.choice([0, 1000]),
        "events": [],
    }
    for _ in range(rng.randint(1, 7)):
        add_fault(plan["events"], rng.choice(PROFILES[profile]), rng, names)
    return plan


def add_fault(ev: list[tuple[Any, ...]], kind: str, rng: random.Random, names: list[str]) -> None:
    t, m = rng.uniform(0.0, 32.0), rng.choice(names)
    restart = ("ckill", t, rng.choice([0.2, 2.0, 12.0]), "after")
    if kind == "storm":
        for i in range(4):
            name = f"S{len(ev)}"
            ev.append(("join", t + i * 0.1, name))
            if rng.random() < 0.5:
                ev.append((rng.choice(["leave", "kill"]), t + rng.uniform(0.3, 3), name, None))
    elif kind == "msg":
        k = rng.randint(0, 30) if rng.random() < 0.7 else rng.randint(0, 3)
        fates = [
            ("drop",), ("delay", rng.choice([0.5, 2.5, 4.0, 9.0, 15.0])), ("dup", rng.choice([0.5, 2.5, 6.0, 12.0])),
        ]  # fmt: skip
        ev.append(("msg", m, rng.choice(["call", "answer"]), k, *rng.choice(fates)))
    elif kind == "burst":  # a cut network: several calls in a row
        k = rng.randint(0, 25)
        count = rng.choice([3, 6])
        ev.extend(("msg", m, rng.choice(["call", "answer"]), k + i, "drop") for i in range(count))
    else:
        ev.append({
            "kill": ("kill", t, m, rng.choice([None, 0.5, 3.0, 12.0])),
            "pause": ("pause", t, m, rng.choice([0.5, 3.0, 9.0, 11.0, 15.0, 25.0])),
            "suspend": ("suspend", t, m, rng.choice([0.5, 3.0, 9.0, 11.0, 15.0, 25.0])),
            "leave": ("leave", t, m),
            "join": ("join", t, f"J{len(ev)}"),
            "cpause": ("cpause", t, rng.choice([0.5, 3.0, 9.0, 12.0])),
            "ckill": ("ckill", t, rng.choice([0.2, 2.0, 9.0, 12.0]), rng.choice(["before", "after"]), None, None),
            "clease": ("ckill", t, rng.choice([0.2, 2.0]), "after", None, rng.choice([2.0, 10.0])),
            "lose": (*restart, "lose", None),
            "old": (*restart, rng.choice([1.0, 5.0, 15.0]), None),
            "resize": ("resize", t),
            "slow": ("slow", m, rng.randint(1, 60), rng.choice([0.3, 1.5, 4.0, 12.0])),
            "walljump": ("walljump", t, m, rng.choice([-3600.0, 3600.0, -5.0])),
            "cwall": ("cwall", t, rng.choice([-3600.0, 3600.0, 15.0, -15.0])),
            "differs": ("join", t, f"D{len(ev)}", {"filters": "other"}),
            "parts": ("join", t, f"P{len(ev)}", {"partitions": 9}),
        }[kind])  # fmt: skip


def once(plan: dict[str, Any], rules: Rules, *, trace: bool = False) -> World:
    return World(plan, rules, trace=trace).run().finish()


def run(profile: str, rules: Rules, seeds: range) -> Found:
    """What these seeds show."""
    found = Found()
    for seed in seeds:
        world = once(make_plan(seed, profile), rules)
        for kind in {kind for kind, _ in world.bad}:
            found.bad.setdefault(kind, []).append(seed)
        recovered = world.recovered - world.last_fault if not world.bad else 0.0
        found = replace(found, recovered_s=max(found.recovered_s, recovered), late=found.late + (world.late > 0))
    return found


def shrink(plan: dict[str, Any], rules: Rules, kind: str) -> World:
    """The least plan that still shows this kind, with its trace: leave out faults while it does."""
    again = True
    while again:
        again = False
        for i in range(len(plan["events"])):
            less = {**plan, "events": plan["events"][:i] + plan["events"][i + 1 :]}
            if any(each == kind for each, _ in once(less, rules).bad):
                plan, again = less, True
                break
    return once(plan, rules, trace=True)
