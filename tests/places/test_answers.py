"""Places in the middle of an answer of a bootstrap service: the ledger alone knows them, not the target."""

from dataclasses import dataclass

import pytest

from databus.core import ControlKind, SourceCheckpoint
from databus.filters import TableChoice
from databus.places import ASKED, ChosenTables, Held, Noted, Position, identity, place_at, reconcile, seed_after

ANSWER = "bootstrap:state;9.5.7;;0.-1;aa"
INSIDE = SourceCheckpoint("db", 9, seq=1 << 41, log=ANSWER, snapshots={"*": 0})
ORDERS, STOCK = "shop/main.orders", "shop/main.stock"
ALL = ((TableChoice(("shop/*",)),),)


@dataclass
class Log:
    uuid: str = "db"
    log: str = "A"
    wants_all: bool = True

    def beginning(self):
        return SourceCheckpoint("db")

    def joining(self, at):
        return SourceCheckpoint("db")

    def lacks(self, place):
        return False


def begun(ledger, held=()):
    return reconcile(ledger, dict(held), Log(), ChosenTables(ALL, [ORDERS, STOCK], lambda _: "way"))


@pytest.mark.parametrize("log", [ANSWER, identity(ANSWER), identity("bootstrap:another")])
def test_what_a_target_had_of_an_answer_that_the_ledger_does_not_know_comes_again(log):
    """Its pair may be above all that the relay has in its log, which would go on from there without the rest."""
    at = SourceCheckpoint("db", 3)
    ledger = Position(at, ALL, marks={ORDERS: Noted((3, 5), "2")})
    position = begun(ledger, {ORDERS: Held(place_at((9, 1 << 41), log), "2", identity("db"), "way")})
    assert position.at == at
    assert position.place(ORDERS) == at
    assert position.marks[ORDERS] == Noted(at.pair, "2")


def test_an_output_goes_on_in_the_middle_of_an_answer():
    assert begun(Position(INSIDE, ALL)).at == INSIDE


def test_a_table_in_the_middle_of_an_answer_is_behind_the_others_whatever_its_pair():
    """A batch of the others that goes beyond it does not take it along."""
    position = Position(SourceCheckpoint("db", 7), ALL, {ORDERS: INSIDE})
    assert position.behind((7, 0)) == {ORDERS: INSIDE}
    after = position.reached(SourceCheckpoint("db", 12), lambda name: name not in position.behind((7, 0)))
    assert after.place(ORDERS) == INSIDE


def test_a_table_of_which_one_record_has_more_than_another_is_read_anew_behind_the_furthest():
    """Of one that is not chosen: where the keys of one come to the other, what that has must not come again."""
    records = [Position(place_at((9, 1)), ((TableChoice((ORDERS,)),),), {STOCK: place_at((scn, 1))}) for scn in (1, 4)]
    shared = Position.shared(records, records[0].tables)
    assert (shared.done(STOCK), shared.seeds) == ((4, 1), {STOCK: "gap"})
    assert Position.shared(records, ALL) is None


def test_an_answer_that_tells_what_has_changed_since_is_not_the_snapshot_that_was_asked_for():
    seed = seed_after(ASKED, ControlKind.SNAPSHOT_BEGIN, {"generation": 8})
    assert seed_after(seed, ControlKind.SNAPSHOT_END, {"generation": 8, "complete": False}) == ASKED
    assert seed_after(seed, ControlKind.SNAPSHOT_END, {"generation": 8, "complete": True}) is None
