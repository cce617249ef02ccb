"""One call at a time: who holds what, and which calls are refused without changing anything."""

from typing import Any

import pytest
from pydantic import ValidationError

from databus.core import (
    Checkpoint,
    Fenced,
    GroupBusy,
    GroupDiffers,
    GroupStateLost,
    MalformedRequest,
    SourceCheckpoint,
    StaleCall,
    TooManyRequests,
    UnknownGroup,
)
from databus.relay.groups import (
    CallAnswer,
    CallBody,
    Clocks,
    Coordinator,
    Exported,
    GroupLimits,
    Listed,
    MemberCall,
    NameState,
    bring_in,
    delete,
    export,
    pause,
    report,
    reset,
    resize,
)

ANNE, BERT = "anne-aaaaaaaa", "bert-bbbbbbbb"
HOUR_S = 3_600


def at(**scns: int) -> Checkpoint:
    return Checkpoint({name: SourceCheckpoint(uuid=name, scn=scn) for name, scn in scns.items()})


class Relay:
    """A coordinator with a clock, and what would be on its disk."""

    def __init__(self, **limits: Any) -> None:
        self.limits = GroupLimits(**limits)
        self.s = 100.0
        self.records: list[dict[str, Any]] = []
        self.names: dict[str, Listed] = {}
        self.numbers: dict[str, int] = {}
        self.restart()

    @property
    def now(self) -> Clocks:
        return Clocks(int(self.s * 1e9), int(self.s * 1e3) + 10**6)

    def restart(self) -> None:
        self.machine = Coordinator(self.limits, self.now, self.records, self.names)

    def wait(self, seconds: float) -> None:
        """Let time pass for a relay that looks around."""
        while seconds > 0:
            self.s += min(seconds, 0.5)
            seconds -= 0.5
            self.machine.tick(self.now)

    def call(self, member: str, name: str = "billing", **fields: Any) -> CallAnswer:
        self.numbers[member] = fields.pop("call", self.numbers.get(member, 0) + 1)
        value = {"member": member, "call": self.numbers[member], **fields}
        answer = self.machine.handle(name, MemberCall.of(CallBody.model_validate(value)), self.now, at(shop=5))
        self.keep()
        return answer

    def keep(self) -> None:
        changes = self.machine.drain()
        self.records += changes.records
        self.names = self.names if changes.names is None else changes.names

    def alone(self, **fields: Any) -> dict[str, Any]:
        """Anne makes the group; what she holds, to say at her next call."""
        return holds_of(self.call(ANNE, **fields))


def holds_of(answer: CallAnswer, scn: int | None = None, **more: Any) -> dict[str, Any]:
    saved = {} if scn is None else {"checkpoint": at(shop=scn).to_json()}
    return {str(number): {"fence": taken.fence, **saved, **more} for number, taken in answer.take.items()}


def state_of(relay: Relay) -> list[dict[str, Any]]:
    return relay.machine.whole()


def test_who_is_alone_gets_all_and_who_joins_gets_half_once_it_is_given_up():
    relay = Relay()
    held = relay.alone(partitions=5)
    assert list(held) == ["0", "1", "2", "3", "4"]
    assert not relay.call(BERT).take
    assert relay.call(ANNE, holds=held).give_up == (3, 4)
    kept = {number: each for number, each in held.items() if number in "012"}
    gone = {number: {**each, "checkpoint": at(shop=9).to_json()} for number, each in held.items() if number in "34"}
    relay.call(ANNE, holds=kept, gives=gone)
    taken = relay.call(BERT).take
    assert {number: each.checkpoint for number, each in taken.items()} == {3: at(shop=9), 4: at(shop=9)}


def test_a_partition_moves_when_its_lease_has_ended_and_not_before():
    relay = Relay()
    held = relay.alone()
    relay.wait(9.99)
    assert not relay.call(BERT).take
    relay.wait(0.02)
    assert relay.call(BERT).take[0].fence > held["0"]["fence"]
    with pytest.raises(Fenced) as refused:
        relay.call(ANNE, holds=held)
    assert refused.value.details == {"fenced": ["0"]}


def test_what_is_refused_changes_nothing():
    relay = Relay()
    held = relay.alone(sources=["shop/main.orders"])
    before = state_of(relay)
    saved, other = {"0": {**held["0"], "checkpoint": at(shop=9).to_json()}}, at(crm=9).to_json()
    for error, fields in (
        (GroupDiffers, {"holds": saved, "sources": ["shop/main.stock"]}),
        (GroupDiffers, {"holds": saved, "sources": ["shop/main.orders"], "filters": {"where": "id > 1"}}),
        (StaleCall, {"holds": saved, "sources": ["shop/main.orders"], "call": 1}),
        (Fenced, {"holds": {"0": {**saved["0"], "fence": 1}}, "sources": ["shop/main.orders"]}),
        (Fenced, {"holds": {"1": saved["0"]}, "sources": ["shop/main.orders"]}),
        (MalformedRequest, {"holds": {"0": {**held["0"], "checkpoint": other}}, "sources": ["shop/main.orders"]}),
    ):  # fmt: skip
        with pytest.raises(error):
            relay.call(ANNE, **fields)
        assert state_of(relay) == before
    with pytest.raises(GroupDiffers) as differs:
        relay.call(BERT, sources=["shop/main.stock"])
    assert differs.value.details["differs"] == {"sources": {"group": ["shop/main.orders"], "call": ["shop/main.stock"]}}


def test_after_a_start_holders_renew_and_nobody_gets_anything_for_a_lease():
    relay = Relay()
    held = relay.alone(partitions=2)
    relay.wait(1)
    relay.restart()
    assert relay.call(BERT).state == "starting"
    half = {"0": held["0"]}
    assert relay.call(ANNE, holds=half).give_up == ()
    assert not relay.call(BERT).take
    relay.wait(9.9)
    relay.call(ANNE, holds=half)
    assert not relay.call(BERT).take
    relay.wait(0.2)
    assert list(relay.call(BERT).take) == [1]
    assert relay.call("carl-cccccccc", name="new").take  # of a name that nobody knew, nobody can hold anything


def test_a_member_keeps_the_lease_that_it_was_given_whatever_the_configuration_says_later():
    relay = Relay()
    held = relay.alone()
    relay.limits = GroupLimits(lease_ms=2_000)
    relay.restart()
    assert relay.call(ANNE, holds=held).lease_ms == 10_000
    relay.wait(9)
    assert not relay.call(BERT).take


def test_a_call_that_only_renews_writes_nothing_and_one_that_comes_again_is_refused_after_a_restart_too():
    relay = Relay()
    held = relay.alone()
    written = len(relay.records)
    for _ in range(3):
        relay.call(ANNE, holds=held)
    assert len(relay.records) == written
    relay.call(ANNE, holds={"0": {**held["0"], "checkpoint": at(shop=7).to_json()}})
    relay.restart()
    with pytest.raises(StaleCall):
        relay.call(ANNE, call=4)  # holds nothing: it would give the partition back


def test_a_resize_splits_each_partition_when_it_is_free():
    relay = Relay()
    held = relay.alone(partitions=2)
    resize(relay.machine, "billing", 6)
    with pytest.raises(GroupBusy):
        resize(relay.machine, "billing", 12)
    answer = relay.call(ANNE, holds=held)
    assert (answer.give_up, answer.state) == ((0, 1), "resizing")
    zero = {"0": {**held["0"], "checkpoint": at(shop=8).to_json()}}
    taken = relay.call(ANNE, holds={"1": held["1"]}, gives=zero).take
    assert {number: (each.of, each.checkpoint) for number, each in taken.items()} == {
        number: (6, at(shop=8)) for number in (0, 2, 4)
    }
    assert min(each.fence for each in taken.values()) > held["1"]["fence"]
    relay.restart()
    now = {"1": held["1"], **{str(number): {"fence": each.fence} for number, each in taken.items()}}
    assert relay.call(ANNE, holds=now).give_up == (1,)
    relay.call(ANNE, gives=now)
    with pytest.raises(MalformedRequest, match="a multiple"):
        resize(relay.machine, "billing", 7)


def test_nobody_goes_past_a_control_that_deals_keys_anew_before_all_have_saved_it():
    relay = Relay()
    anne = relay.call(ANNE, partitions=2)
    waits = {"physical": "shop", "scn": 20, "seq": 3}
    done = at(shop=20).to_json()
    zero, one = {"fence": anne.take[0].fence}, {"fence": anne.take[1].fence}
    waiting = {**zero, "checkpoint": done, "waits": [waits]}
    assert relay.call(ANNE, holds={"0": waiting, "1": one}).passes == {}
    relay.call(ANNE, leave=True)
    relay.restart()
    relay.wait(10.1)
    bert = relay.call(BERT)
    assert [each.to_json() for each in bert.take[0].waits] == [waits]
    assert bert.take[1].waits == ()
    zero, one = ({"fence": bert.take[number].fence} for number in (0, 1))
    here = {**zero, "waits": [waits]}
    assert relay.call(BERT, holds={"0": here, "1": one}).passes == {}
    reached = {**one, "checkpoint": done, "waits": [waits]}
    assert relay.call(BERT, holds={"0": here, "1": reached}).passes == {0: ("shop",), 1: ("shop",)}
    assert relay.machine.groups["billing"].barriers == {}


def test_a_pause_takes_everything_and_a_reset_waits_for_that():
    relay = Relay()
    held = relay.alone(partitions=2)
    with pytest.raises(GroupBusy):
        reset(relay.machine, "billing", "earliest", at(shop=1), relay.now)
    pause(relay.machine, "billing", paused=True)
    answer = relay.call(ANNE, holds=held)
    assert (answer.give_up, answer.state) == ((0, 1), "paused")
    assert relay.call(ANNE, gives=held).take == {}
    reset(relay.machine, "billing", "earliest", at(shop=1), relay.now)
    pause(relay.machine, "billing", paused=False)
    assert [each.checkpoint for each in relay.call(ANNE).take.values()] == [at(shop=1)] * 2


def test_a_name_whose_state_is_lost_waits_for_an_import_or_a_reset():
    relay = Relay()
    held = relay.alone(partitions=2)
    relay.call(ANNE, gives={number: {**each, "checkpoint": at(shop=9).to_json()} for number, each in held.items()})
    kept = export(relay.machine, "billing")
    relay.records = []
    relay.restart()
    with pytest.raises(GroupStateLost) as lost:
        relay.call(BERT)
    assert lost.value.details == {"reason": "lost"}
    bring_in(relay.machine, "billing", Exported.model_validate(kept), relay.now)
    assert relay.call(BERT).state == "starting"  # those who held something may still be at work
    relay.wait(10.1)
    answer = relay.call(BERT)
    assert [each.checkpoint for each in answer.take.values()] == [at(shop=9)] * 2
    assert min(each.fence for each in answer.take.values()) > max(each["fence"] for each in held.values())


def test_a_reset_of_a_lost_name_says_where_the_next_member_makes_it():
    relay = Relay()
    relay.alone()
    relay.records = []
    relay.restart()
    reset(relay.machine, "billing", "earliest", None, relay.now)
    relay.keep()
    relay.restart()
    assert relay.machine.names["billing"].start == "earliest"
    assert relay.call(BERT).state == "starting"
    relay.wait(10.1)
    assert relay.call(BERT).take[0].checkpoint == at(shop=5)


def test_a_name_nobody_uses_is_forgotten_after_its_hours_and_does_not_begin_anew_in_silence():
    relay = Relay(unused_h_max=3)
    relay.alone()
    relay.call(ANNE, leave=True)
    forgotten = []
    for _ in range(4):
        relay.s += HOUR_S
        forgotten += relay.machine.tick(relay.now)
        relay.keep()
    assert forgotten == ["billing"]  # which the relay logs
    assert relay.machine.names["billing"].state is NameState.FORGOTTEN
    with pytest.raises(GroupStateLost) as lost:
        relay.call(BERT)
    assert lost.value.details == {"reason": "forgotten"}


def test_a_deleted_name_may_be_made_anew_with_higher_fences():
    relay = Relay()
    held = relay.alone()
    with pytest.raises(GroupBusy):
        delete(relay.machine, "billing", relay.now)
    relay.s -= 50  # the wall clock was set back
    relay.machine.tick(relay.now)
    delete(relay.machine, "billing", relay.now, force=True)
    with pytest.raises(GroupStateLost):
        relay.call(ANNE, holds=held)
    relay.keep()
    relay.restart()
    assert relay.call(BERT).take[0].fence > held["0"]["fence"]


def test_there_is_a_bound_on_names_and_unknown_ones_are_told_the_nearest():
    relay = Relay(names_max=1)
    relay.alone()
    with pytest.raises(TooManyRequests, match="names_max=1"):
        relay.call(BERT, name="other")
    with pytest.raises(UnknownGroup, match="did you mean 'billing'"):
        pause(relay.machine, "biling", paused=True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"call": 0}, "call"),
        ({"partitions": 1025}, "partitions"),
        ({"holds": {"x": {"fence": 1}}}, "holds.x"),
        ({"holds": {"0": {"fence": "1"}}}, "holds.0.fence"),
        ({"holds": {"0": {"fence": 1}}, "gives": {"0": {"fence": 1}}}, "gives.0"),
        ({"hold": {}}, "hold"),
        ({"member": "x"}, "member"),
        ({"sources": "orders"}, "sources"),
        ({"filters": []}, "filters"),
        ({"filters": {"a": {"b": "c"}}}, "filters.a"),
    ],
)
def test_a_malformed_call_names_its_field(fields, said):
    with pytest.raises((MalformedRequest, ValidationError), match=said):
        MemberCall.of(CallBody.model_validate({"member": ANNE, "call": 1, **fields}))


def test_a_journal_from_before_a_resize_is_no_state_to_go_on_with():
    relay = Relay()
    held = relay.alone(partitions=2)
    relay.call(ANNE, gives=held)
    before = list(relay.records)
    resize(relay.machine, "billing", 4)
    relay.keep()
    relay.records = before
    relay.restart()
    assert relay.machine.lost() == ["billing"]
    with pytest.raises(GroupStateLost, match="from before a resize"):
        relay.call(ANNE)


def reported(relay: Relay, scn: int, name: str = "shop.copy", **more: int) -> None:
    report(relay.machine, name, ("shop/*",), at(shop=scn, **more), relay.now, "")
    relay.keep()


def test_a_report_is_kept_over_restarts_and_may_go_back_or_speak_of_other_sources():
    relay = Relay()
    reported(relay, 7)
    relay.restart()
    group = relay.machine.group("shop.copy")
    assert (group.is_reported, group.partitions[0].checkpoint) == (True, at(shop=7))
    reported(relay, 3, crm=1)
    relay.restart()
    group = relay.machine.group("shop.copy")
    assert (group.partitions[0].checkpoint, group.start.sources.keys()) == (at(shop=3, crm=1), {"shop", "crm"})


def test_a_name_that_is_reported_cannot_be_joined_or_moved_and_one_that_members_have_cannot_be_reported():
    relay = Relay()
    reported(relay, 7)
    with pytest.raises(GroupDiffers, match="take another name"):
        relay.call(ANNE, name="shop.copy")
    machine, given = relay.machine, Exported.model_validate(export_of(relay))
    for act in (
        lambda: reset(machine, "shop.copy", "latest", at(shop=9), relay.now),
        lambda: resize(machine, "shop.copy", 2),
        lambda: pause(machine, "shop.copy", paused=True),
        lambda: export(machine, "shop.copy"),
        lambda: bring_in(machine, "shop.copy", given, relay.now),
    ):
        with pytest.raises(GroupDiffers, match="cannot be moved here"):
            act()
    before = state_of(relay)
    with pytest.raises(GroupDiffers, match="members have this name"):
        reported(relay, 7, "billing")
    with pytest.raises(MalformedRequest, match="no physical source"):
        report(machine, "shop.other", None, Checkpoint({}), relay.now, "")
    assert state_of(relay) == before


def export_of(relay: Relay) -> dict[str, Any]:
    relay.alone()
    return export(relay.machine, "billing")


def test_what_is_reported_is_forgotten_when_nobody_reports_and_comes_back_with_a_report():
    relay = Relay(unused_h_max=3)
    reported(relay, 7)
    for hour in range(1, 7):
        relay.s += HOUR_S
        relay.machine.tick(relay.now)
        if hour == 1:
            reported(relay, 8)
    relay.keep()
    assert not relay.machine.groups
    reported(relay, 9)
    relay.restart()
    assert relay.machine.group("shop.copy").partitions[0].checkpoint == at(shop=9)
    delete(relay.machine, "shop.copy", relay.now)
    relay.call(ANNE, name="shop.copy")
    assert not relay.machine.group("shop.copy").is_reported


def test_a_lost_journal_has_a_reported_name_begin_again_and_a_copy_of_old_takes_no_name_from_members():
    relay = Relay()
    reported(relay, 7)
    of_old = list(relay.records)
    relay.records = []
    relay.restart()
    assert not relay.machine.lost()
    relay.call(ANNE, name="shop.copy")
    relay.records = of_old
    relay.restart()
    assert relay.machine.lost() == ["shop.copy"]
    with pytest.raises(GroupDiffers):
        reported(relay, 8)
