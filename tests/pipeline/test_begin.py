"""Where a query begins of which the ledger says nothing; no relay, no server."""

from types import SimpleNamespace

import pytest

from databus.core import Checkpoint, SourceCheckpoint
from databus.pipeline._begin import begin
from databus.pipeline._contract import Shape
from databus.pipeline._handle import Bringing, OutputHandle
from databus.pipeline._offsets import Offsets
from databus.pipeline._plan import Feed, QueryPlan
from databus.tasks import TableChoice
from databus.tasks.kafka import Position
from tests.kafka.support import output_of

CHOICE = ((TableChoice(("*",)),),)
LATEST = 900


def position_at(scn):
    return Position(SourceCheckpoint(scn=scn, txid=f"t{scn}", log="l"), 2, None, "shop/*", CHOICE)


def relay(*, wants_all):
    """Its log is at `LATEST`, where a query begins that has nothing yet."""
    return SimpleNamespace(
        resumes=True,
        starting_version=0,
        wants_all=wants_all,
        beginning=lambda *_: Checkpoint({"shop": SourceCheckpoint(scn=LATEST)}),
        check_position=lambda *_: None,
        log_of=lambda *_: "l",
        tables_of=lambda *_: [],
    )


def begun(folder, places, *, wants_all=False):
    """The SCN after which a query begins whose buckets stand at these places in its target."""
    output = output_of(SimpleNamespace(bootstrap="127.0.0.1:9"), folder, "t")
    known = {number: position_at(scn) for number, scn in enumerate(places)}
    output._positions = lambda: {"q": known}
    handle = OutputHandle("topics", output, folder / "state")
    handle.bringing = {"q": Bringing("shop/*", CHOICE)}
    feed = Feed("outputs.topics", CHOICE)
    plan = QueryPlan("q", Shape.TABLES, "inputs.shop", (feed,), physical="shop")
    offsets = Offsets(folder / "q", relay(wants_all=wants_all), "shop", "l")
    return begin(plan, [(feed, handle)], offsets, None, lambda *_: None).sources["shop"].scn


@pytest.mark.parametrize("places", [(5, 5), (5, 7), (5,)])
def test_a_query_whose_ledger_is_lost_begins_where_its_target_stands_and_not_at_the_latest(tmp_path, places):
    """What was committed while it did not run was left out, in silence."""
    assert begun(tmp_path, places) == 5


def test_a_query_of_which_nobody_knows_begins_where_its_options_say(tmp_path):
    assert begun(tmp_path, ()) == LATEST


def test_a_query_whose_ledger_is_lost_and_that_wants_all_has_its_tables_read_anew(tmp_path):
    assert begun(tmp_path, (5, 5), wants_all=True) == LATEST
