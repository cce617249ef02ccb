"""Tables that come and go, runs that end anywhere, ledgers that are lost: each row is in its topic, once, in order."""

import random
from functools import partial

import pyarrow as pa
import pytest

from databus.core import Checkpoint, SourceCheckpoint
from databus.filters import TableChoice
from databus.flow import DirectFeed, StagedBatch, Ways
from databus.pipeline import Input, Shape
from databus.pipeline.engine._begin import begin
from databus.pipeline.engine._bringing import Bringing
from databus.pipeline.engine._handle import OutputHandle, Span
from databus.pipeline.engine._offsets import Offsets
from databus.pipeline.engine._plan import Feed, QueryPlan
from databus.places import chosen_by, read_by
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_buckets
from tests.kafka.dead_letters import EVENTS
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import order

TABLES = ("orders", "events")
ROWS = 24
Q = "outputs/topics/shop@shop"


class Killed(Exception):
    """What ends a run."""


class Origin(Input):
    """A log that has all changes, and gives no snapshots."""

    emits = Shape.TABLES
    resumes = True
    wants_all = True

    def typed(self, *_):
        raise NotImplementedError

    def schema_of(self, *_):
        raise NotImplementedError

    def log_of(self, *_):
        return "log-1"

    def uuid_of(self, *_):
        return "u"

    def beginning(self, *_):
        return Checkpoint({"shop": SourceCheckpoint("u")})

    def tables_of(self, *_):
        return [f"shop/main.{each}" for each in TABLES]

    def read_anew(self, _, physical, tables):
        raise AssertionError(f"{tables} are to be read by a snapshot, and nothing is missing")


class Process:
    """A run over some tables. Killed, it has written some buckets of a batch, or all, and noted nothing."""

    def __init__(self, server, folder, prefix, log, tables, alone=(), **options):
        self.output = output_of(server, folder, prefix, **{"buckets": 2, **options})
        self.handle = OutputHandle("topics", self.output, folder / ".databus")
        self.log, self.choice = log, tuple((TableChoice((f"main.{each}",)),) for each in tables)
        of_their_own = {each: Bringing(f"main.{each}") for each in alone}
        self.handle.bringing = {Q: Bringing("shop/*", self.choice), **of_their_own}
        self.handle.open(Q)
        feed = Feed("outputs.topics", self.choice)
        self.offset = self._begun(folder, QueryPlan(Q, Shape.TABLES, "inputs.shop", (feed,), "shop"))
        feed = Feed("outputs.topics")
        plans = [QueryPlan(name, Shape.TYPED, "", (feed,), table=each.of) for name, each in of_their_own.items()]
        self.alone = {plan.name: self._begun(folder, plan, plan.table) for plan in plans}

    def _begun(self, folder, plan, source=None):
        offsets = Offsets(folder / plan.name, Origin(None), "shop", "")
        begun = begin(plan, [(plan.feeds[0], self.handle)], offsets, None, lambda *_: None, source)
        return begun.sources["shop"].pair

    def number(self, pair):
        return next(n for n in range(len(self.log.entries) + 1) if self.log.position(n).pair >= pair)

    def write(self, count, *, kills=None):
        """The next rows. kills: the bucket that is written alone, or `all`, before the run ends."""
        begin_, behind = self.number(self.offset), self.handle.position("shop").behind(self.offset)
        end = min(begin_ + count, len(self.log.entries))
        self._write(begin_, end, Span(self.offset), read_by(self.choice, behind), kills)
        self.offset = self.log.position(end).pair

    def catch_up(self, count):
        """A step of the table that is behind; returns whether there was one."""
        position = self.handle.position("shop")
        behind = {f"shop/main.{each}" for each in TABLES} & {*position.behind(position.at.pair)}
        mine = [name for name in sorted(behind) if chosen_by(self.choice, name)]
        if not mine:
            return False
        begin_ = self.number(position.places[mine[0]].pair)
        end = min(begin_ + count, self.number(position.at.pair))
        self._write(begin_, end, Span(position.places[mine[0]].pair, frozenset(mine[:1])), mine[:1].__contains__, None)
        return True

    def write_alone(self, table, count, *, kills=None):
        """The next rows of a table that has a query of its own."""
        start = self.alone[table]
        begin_ = self.number(start)
        end = min(begin_ + count, len(self.log.entries))
        self._write(begin_, end, Span(start), f"shop/main.{table}".__eq__, kills, table)
        self.alone[table] = self.log.position(end).pair

    def _write(self, begin_, end, span, reads, kills, query=Q):
        whole = self.log.batch(begin_, end)
        chosen = [item for item in whole.items if reads(f"shop/{item.table.source}")]
        batch = type(whole)(whole.physical, whole.start, whole.end, tuple(chosen))
        self.handle.write_direct(query, batch, partial(self._in_buckets, batch, reads, kills), span)
        self.handle.advance(query, Checkpoint({"shop": SourceCheckpoint("u", whole.end.scn, log="log-1")}), span)

    def _in_buckets(self, batch, reads, kills, bucket) -> list[StagedBatch]:
        bucket = type(bucket)(**{**vars(bucket), "reads": reads})
        if kills in (None, "all"):
            found = write_buckets(self.output, batch, bucket)
            if kills is None:
                return found
        else:
            feed = DirectFeed(Ways(key=self.output.config.key_choice), self.output.part_writer(), bucket)
            feed.write_ranges(lambda _: [batch], pa.table({}), kills)
        raise Killed


def log_of(*tables):
    """A transaction for each, which inserts a row whose id is its number."""
    log = ChangeLog()
    for number, table in enumerate(tables, 1):
        is_order = table == "orders"
        log.begin().insert(ORDERS if is_order else EVENTS, order(number) if is_order else {"id": number, "note": "x"})
    return log


def ids_in(server, prefix):
    return sorted(row["id"] for table in TABLES for part in rows_in(server, f"{prefix}.{table}") for row in part)


def run(server, folder, prefix, log, dice, tables, catch_up):
    process = Process(server, folder, prefix, log, tables, catch_up=catch_up)
    try:
        for _ in range(dice.randint(1, 4)):
            if dice.random() < 0.7:
                process.catch_up(dice.randint(1, 4))
            process.write(dice.randint(0, 4), kills=dice.choice([None, None, None, 0, 1, "all"]))
    except Killed:
        pass
    return process


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 60))])
def test_however_tables_come_and_go_and_runs_end_each_row_is_there_once(kafka, tmp_path, seed):
    dice, prefix = random.Random(seed), new_prefix()
    log = log_of(*dice.choices(TABLES, k=ROWS))
    for _ in range(7):
        tables = dice.choice([TABLES, TABLES[:1], TABLES[1:]])
        process = run(kafka, tmp_path, prefix, log, dice, tables, dice.choice(["together", "apart"]))
        if dice.random() < 0.3:
            process.handle.ledger_path.remove()
    process = Process(kafka, tmp_path, prefix, log, TABLES)
    while process.offset < log.position(ROWS).pair or process.catch_up(ROWS):
        process.write(ROWS)
    found = ids_in(kafka, prefix)
    assert found == [*range(1, ROWS + 1)]


def test_a_table_that_was_taken_away_and_given_back_goes_on_where_it_stood_whatever_is_lost(kafka, tmp_path):
    """The ledger, after a bucket was written without the table."""
    prefix, log = new_prefix(), log_of(*TABLES * 6)
    first = Process(kafka, tmp_path, prefix, log, TABLES)
    first.write(4)
    second = Process(kafka, tmp_path, prefix, log, TABLES[:1])
    second.write(3)
    with pytest.raises(Killed):
        second.write(2, kills=1)
    second.handle.ledger_path.remove()
    last = Process(kafka, tmp_path, prefix, log, TABLES, catch_up="apart")
    while last.catch_up(2):
        continue
    last.write(12)
    assert ids_in(kafka, prefix) == [*range(1, 13)]


def test_a_table_that_gets_a_query_of_its_own_and_gives_it_up_repeats_nothing(kafka, tmp_path):
    """As it does where a filter that gives typed rows is added, and removed; runs are killed before their ledger."""
    prefix, log = new_prefix(), log_of(*TABLES * 9)
    process = Process(kafka, tmp_path, prefix, log, TABLES)
    process.write(4)
    with pytest.raises(Killed):
        process.write(3, kills="all")
    process = Process(kafka, tmp_path, prefix, log, ["orders"], alone=["events"])
    process.write_alone("events", 6)
    process.write(2)
    with pytest.raises(Killed):
        process.write_alone("events", 3, kills="all")
    with pytest.raises(Killed):
        process.write(3, kills=1)
    process = Process(kafka, tmp_path, prefix, log, TABLES)
    while process.offset < log.position(18).pair:
        process.write(5)
    assert ids_in(kafka, prefix) == [*range(1, 19)]


def test_the_number_of_buckets_changes_where_all_stand_alike_and_nothing_comes_twice(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(*TABLES * 5)
    Process(kafka, tmp_path, prefix, log, TABLES).write(4)
    more = Process(kafka, tmp_path, prefix, log, TABLES, buckets=3)
    more.write(3)
    with pytest.raises(Killed):
        more.write(3, kills="all")
    more.handle.ledger_path.remove()
    Process(kafka, tmp_path, prefix, log, TABLES, buckets=1).write(10)
    assert ids_in(kafka, prefix) == [*range(1, 11)]
