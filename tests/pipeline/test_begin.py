"""Where a query begins; no relay, no server."""

from dataclasses import replace

import pytest

from databus.core import (
    Checkpoint,
    InputError,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
)
from databus.filters import TableChoice
from databus.pipeline import Input, Shape
from databus.pipeline.engine._begin import begin
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._offsets import Offsets
from databus.places import Position
from databus.sinks.kafka import Record
from tests.feeds import bring
from tests.kafka.support import output_of

LATEST = 900
TABLES = ("shop/main.orders", "shop/main.stock")


class Nowhere:
    bootstrap = "127.0.0.1:9"


def choice(*tables):
    return ((TableChoice(tables),),)


def at(scn, log="l"):
    return SourceCheckpoint("u", scn, txid=f"t{scn}", log=log)


class Relay(Input):
    """Its log is at `LATEST`, and has lost what is at or below `floor`."""

    emits = Shape.TABLES
    resumes = True

    def __init__(self, *, wants_all=False, floor=0, uuid="u", first=0):
        super().__init__(None)
        self.first = first
        self.is_all, self.floor, self.uuid, self.asked = wants_all, floor, uuid, []

    def typed(self, *_):
        raise NotImplementedError

    def schema_of(self, *_):
        raise NotImplementedError

    @property
    def wants_all(self):
        return self.is_all

    @property
    def starting_version(self):
        return self.first

    def log_of(self, *_):
        return "l"

    def uuid_of(self, *_):
        return self.uuid

    def beginning(self, *_):
        return Checkpoint({"shop": at(0 if self.is_all and not self.floor else LATEST)})

    def check_position(self, _, physical, checkpoint):
        if checkpoint.sources[physical].scn < self.floor:
            raise PositionPurged("gone")

    def tables_of(self, *_):
        return [*TABLES]

    def read_anew(self, _, physical, tables):
        if "shop/main.gone" in tables:
            raise UnknownSource("gone")
        self.asked += tables


class Run:
    """An output `topics` whose buckets stand at these places, and its ledger, if it has one."""

    def __init__(self, folder, relay, places=(), ledger=None, tables=TABLES, **options):
        output = output_of(Nowhere, folder, "t", **options)
        records = {number: Record(Position(at(scn), choice("*")), len(places)) for number, scn in enumerate(places)}
        output._records = lambda: {"shop": records} if records else {}
        self.handle = OutputHandle("topics", output, folder / "state")
        self.relay, feed = relay, bring(self.handle, *tables)
        if ledger is not None:
            self.handle.put("shop", ledger)
        offsets = Offsets(folder / "q", relay, "shop", "l")
        self.begun = begin([(feed, self.handle)], offsets, None, lambda *_: None)

    @property
    def scn(self):
        return self.begun.sources["shop"].scn


@pytest.mark.parametrize("places", [(5, 5), (5, 7)])
@pytest.mark.parametrize("wants_all", [True, False])
def test_a_query_whose_ledger_is_lost_begins_where_its_target_stands_and_not_at_the_latest(tmp_path, places, wants_all):
    """What was committed while it did not run was left out, in silence."""
    assert Run(tmp_path, Relay(wants_all=wants_all), places).scn == 5


def test_a_query_of_which_nobody_knows_begins_where_its_options_say(tmp_path):
    assert Run(tmp_path, Relay()).scn == LATEST


def test_tables_of_which_the_log_has_lost_the_beginning_are_read_by_a_snapshot(tmp_path):
    run = Run(tmp_path, Relay(wants_all=True, floor=3))
    assert (run.scn, run.relay.asked) == (LATEST, [*TABLES])
    assert run.handle.known("shop").seeds == dict.fromkeys(TABLES, "asked")


@pytest.mark.parametrize(("catch_up", "scn"), [("apart", 9), ("together", 2)])
def test_a_table_that_is_given_back_goes_on_where_it_stood(tmp_path, catch_up, scn):
    """By a range of its own, or all go back to there, and drop what they have."""
    left = Position(at(9), choice(TABLES[0]), {TABLES[1]: at(2)})
    run = Run(tmp_path, Relay(), ledger=left, catch_up=catch_up)
    assert (run.scn, run.relay.asked) == (scn, [])
    assert run.handle.known("shop").behind((9, 1 << 40)) == {TABLES[1]: at(2)}


def test_a_table_that_is_given_back_is_read_by_a_snapshot_where_the_log_has_lost_its_place(tmp_path):
    left = Position(at(9), choice(TABLES[0]), {TABLES[1]: at(2)})
    run = Run(tmp_path, Relay(floor=5), ledger=left)
    assert (run.scn, run.relay.asked) == (9, [TABLES[1]])
    assert run.handle.known("shop").seeds == {TABLES[1]: "gap"}


@pytest.mark.parametrize(("first", "scn"), [(0, 9), (5, 4), (12, 11)], ids=["latest", "before", "after"])
def test_a_table_that_joins_others_begins_where_the_options_say(tmp_path, first, scn):
    """The latest is where the others are: what is committed while nothing runs is not left out."""
    run = Run(tmp_path, Relay(first=first), ledger=Position(at(9), choice(TABLES[0])), catch_up="apart")
    assert (run.scn, run.relay.asked, run.handle.known("shop").seeds) == (9, [], {})
    assert run.handle.known("shop").place(TABLES[1]).scn == scn


@pytest.mark.parametrize("options", [{"first": 5, "floor": 7}, {"wants_all": True, "floor": 7}])
def test_a_table_that_joins_others_is_read_by_a_snapshot_where_the_log_has_lost_that(tmp_path, options):
    run = Run(tmp_path, Relay(**options), ledger=Position(at(9), choice(TABLES[0])))
    assert (run.scn, run.relay.asked, run.handle.known("shop").places) == (9, [TABLES[1]], {})


def test_a_table_that_was_removed_is_read_by_a_snapshot_whatever_the_options_say(tmp_path):
    """`databus rebuild` promises all of its rows, `starting_version: latest` those of a first start."""
    ledger = Position(at(9), choice(*TABLES)).without([TABLES[1]])
    run = Run(tmp_path, Relay(), ledger=ledger)
    assert (run.scn, run.relay.asked, run.handle.known("shop").places) == (9, [TABLES[1]], {})


def test_a_table_that_was_taken_away_before_the_first_commit_goes_on_behind_its_snapshot(tmp_path):
    """Rows of snapshots have SCN 0 until something is committed, and would come twice."""
    read = replace(at(0), seq=(1 << 40) + 3)
    run = Run(tmp_path, Relay(wants_all=True), ledger=Position(at(9), choice(TABLES[0]), {TABLES[1]: read}))
    assert (run.relay.asked, run.handle.known("shop").places) == ([], {TABLES[1]: read})


def test_a_table_that_is_taken_away_keeps_its_place(tmp_path):
    before = Position(at(9), choice(*TABLES))
    run = Run(tmp_path, Relay(), ledger=before, tables=TABLES[:1])
    assert run.handle.known("shop").places == {TABLES[1]: at(9)}


@pytest.mark.parametrize(("has", "asked"), [(5, [TABLES[1]]), (12, [])], ids=["before", "since"])
def test_a_table_that_is_refused_no_longer_goes_on_behind_the_rows_that_could_not_be_taken(tmp_path, has, asked):
    """Also where its target has rows from before: those that follow were refused. Has it more, the ledger is old."""
    ledger = Position(at(9), choice(TABLES[0])).refusing([TABLES[1]])
    run = Run(tmp_path, Relay(), (has, has), ledger)
    known = run.handle.known("shop")
    assert (known.place(TABLES[1]), run.relay.asked) == (at(max(9, has)), asked)
    assert known.seeds == dict.fromkeys(asked, "gap"), "what a history does not get is a gap in it"


def test_an_output_whose_place_the_log_has_lost_stops_and_says_the_way_out(tmp_path):
    with pytest.raises(PositionPurged, match=r"lost the changes of shop/main.orders.*Give outputs.topics another name"):
        Run(tmp_path, Relay(floor=20), ledger=Position(at(9), choice(*TABLES)))


@pytest.mark.parametrize("places", [(), (9, 9)], ids=["by the ledger", "by the target"])
def test_an_output_of_another_database_stops(tmp_path, places):
    ledger = None if places else Position(at(9), choice(*TABLES))
    with pytest.raises(PositionForeign, match="a position in another database"):
        Run(tmp_path, Relay(uuid="other"), places, ledger)


def test_rows_that_were_made_in_another_way_stop_the_output(tmp_path):
    run = Run(tmp_path, Relay())
    noted = {TABLES[0]: ((9, 1), "7")}
    ledger = replace(Position(at(9), choice(*TABLES)), ways=dict.fromkeys(TABLES, "old"))
    run.handle.put("shop", Position.from_json({**ledger.to_json(), "marks": noted}, "ledger"))
    run.handle.output._check_topics = lambda names: set()
    feed = bring(run.handle, *TABLES, way_of=lambda _: "new")
    with pytest.raises(InputError, match=r"what decides the rows of shop/main.orders "):
        begin([(feed, run.handle)], Offsets(tmp_path / "q", Relay(), "shop", "l"), None, lambda *_: None)


class WithService(Relay):
    """It names a bootstrap service, which answers so."""

    def __init__(self, *, is_silent, **options):
        super().__init__(**options)
        self.is_silent, self.questions = is_silent, 0

    def looks_back(self, *_):
        self.questions += 1
        error = ServiceUnavailable("bootstrap service at past:11111: no answer")
        error.is_silent = self.is_silent
        raise error


def test_a_bootstrap_service_that_never_answers_is_waited_for_once_where_a_snapshot_does_as_well(tmp_path, caplog):
    run = Run(tmp_path, WithService(is_silent=True, wants_all=True, floor=3))
    assert (run.scn, run.relay.asked, run.relay.questions) == (LATEST, [*TABLES], 1)
    assert "the bootstrap service is silent" in caplog.text


def test_a_bootstrap_service_that_says_to_come_again_is_asked_again(tmp_path):
    """It is being filled, or restarted."""
    relay = WithService(is_silent=False, wants_all=True, floor=3)
    with pytest.raises(ServiceUnavailable, match="past:11111"):
        Run(tmp_path, relay)
    assert relay.asked == []


def test_an_output_whose_place_the_log_has_lost_waits_for_a_service_that_is_silent(tmp_path):
    """No snapshot brings back what it lacks, and the service may have it."""
    with pytest.raises(ServiceUnavailable, match="past:11111"):
        Run(tmp_path, WithService(is_silent=True, floor=20), ledger=Position(at(9), choice(*TABLES)))
