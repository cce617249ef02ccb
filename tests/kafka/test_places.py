"""Tables that come and go, runs that end anywhere, ledgers that are lost: each row is in its topic, once, in order."""

import random
from functools import partial

import pyarrow as pa
import pytest

from databus.core import Checkpoint, SourceCheckpoint
from databus.flow import DirectFeed, StagedBatch, Ways
from databus.pipeline import Input, Shape
from databus.pipeline.engine._begin import begin
from databus.pipeline.engine._handle import BatchSpan, OutputHandle
from databus.pipeline.engine._offsets import Offsets
from databus.places import chosen_by, read_by
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_buckets
from tests.feeds import bring
from tests.kafka.dead_letters import EVENTS
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import order

TABLES = ("orders", "events")
ROWS = 24


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
        return [f"shop/main.{table}" for table in TABLES]

    def read_anew(self, _, physical, tables):
        raise AssertionError(f"{tables} are to be read by a snapshot, and nothing is missing")


class Process:
    """A run over some tables. Killed, it has written some buckets of a batch, or all, and noted nothing."""

    def __init__(self, server, folder, prefix, log, tables, typed=(), **options):
        self.output = output_of(server, folder, prefix, **{"buckets": 2, **options})
        self.handle = OutputHandle("topics", self.output, folder / ".databus")
        self.log, self.typed = log, [f"shop/main.{each}" for each in typed]
        feed = bring(self.handle, *(f"main.{table}" for table in tables))
        self.choice = feed.choice
        self.handle.open()
        offsets = Offsets(folder / "query", Origin(None), "shop", "")
        begun = begin([(feed, self.handle)], offsets, None, lambda *_: None)
        self.offset = begun.sources["shop"].pair

    def number(self, pair):
        return next(n for n in range(len(self.log.entries) + 1) if self.log.position(n).pair >= pair)

    def write(self, count, *, kills=None, fails=False):
        """The next rows. kills: the bucket that is written alone, or `all`, before the run ends. fails: whether tables
        behind typed filters, which have ranges of their own behind the others, stay where they are.
        """
        begin_, behind = self.number(self.offset), self.handle.position("shop").behind(self.offset)
        end = min(begin_ + count, len(self.log.entries))
        own = [name for name in self.typed if name not in behind]
        self.handle.hold("shop", own)
        span = BatchSpan(self.offset, but=frozenset(own))
        self._write(begin_, end, span, read_by(self.choice, {*behind, *own}), kills)
        for name in own if not fails else ():
            for at in range(begin_, end):  # in as many parts as it takes
                span = BatchSpan(self.log.position(at).pair, frozenset([name]))
                self._write(at, at + 1, span, name.__eq__, kills)
                self.handle.hold("shop", [name], self._place(at + 1))
        self.handle.advance(Checkpoint({"shop": self._place(end)}), BatchSpan(self.offset, but=frozenset(own)))
        self.offset = self.log.position(end).pair

    def _place(self, number):
        return SourceCheckpoint("u", self.log.position(number).scn, log="log-1")

    def catch_up(self, count):
        """A step of the table that is behind; returns whether there was one."""
        position = self.handle.position("shop")
        behind = {f"shop/main.{table}" for table in TABLES} & {*position.behind(position.at.pair)}
        mine = [name for name in sorted(behind) if chosen_by(self.choice, name)]
        if not mine:
            return False
        begin_ = self.number(position.places[mine[0]].pair)
        end = min(begin_ + count, self.number(position.at.pair))
        span = BatchSpan(position.places[mine[0]].pair, frozenset(mine[:1]))
        self._write(begin_, end, span, mine[:1].__contains__, None)
        self.handle.advance(Checkpoint({"shop": self._place(end)}), span)
        return True

    def _write(self, begin_, end, span, reads, kills):
        whole = self.log.batch(begin_, end)
        chosen = [item for item in whole.items if reads(f"shop/{item.table.source}")]
        batch = type(whole)(whole.physical, whole.start, whole.end, tuple(chosen))
        self.handle.write_direct(batch, partial(self._in_buckets, batch, reads, kills), span)

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
    typed = dice.choice([(), ("events",)])
    process = Process(
        server, folder, prefix, log, tables, [each for each in typed if each in tables], catch_up=catch_up
    )
    try:
        for _ in range(dice.randint(1, 4)):
            if dice.random() < 0.7:
                process.catch_up(dice.randint(1, 4))
            fails = catch_up == "apart" and dice.random() < 0.3
            process.write(dice.randint(0, 4), kills=dice.choice([None, None, None, 0, 1, "all"]), fails=fails)
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
    process = Process(kafka, tmp_path, prefix, log, TABLES, catch_up="apart")
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


def test_a_table_that_gets_typed_filters_and_gives_them_up_repeats_nothing(kafka, tmp_path):
    """Also where they fail, and runs are killed between its parts and the others'."""
    prefix, log = new_prefix(), log_of(*TABLES * 9)
    process = Process(kafka, tmp_path, prefix, log, TABLES)
    process.write(4)
    with pytest.raises(Killed):
        process.write(3, kills="all")
    process = Process(kafka, tmp_path, prefix, log, TABLES, typed=["events"], catch_up="apart")
    process.write(3)
    process.write(2, fails=True)
    while process.catch_up(1):
        continue
    process.write(2, fails=True)
    with pytest.raises(Killed):
        process.write(3, kills="all")
    process = Process(kafka, tmp_path, prefix, log, TABLES, typed=["events"], catch_up="apart")
    with pytest.raises(Killed):
        process.write(3, kills=1)
    process = Process(kafka, tmp_path, prefix, log, TABLES)
    while process.offset < log.position(18).pair or process.catch_up(ROWS):
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
