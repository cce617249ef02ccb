"""Runs of a Kafka output whose queries bring other tables than those before, and that end in the middle."""

from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import Checkpoint, SourceCheckpoint
from databus.pipeline import Input, RunContext, Shape
from databus.pipeline._begin import begin
from databus.pipeline._handle import Bringing, OutputHandle
from databus.pipeline._offsets import Offsets
from databus.pipeline._plan import Feed, QueryPlan
from databus.tasks import DirectFeed, TableChoice, Ways, brings
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_buckets
from tests.kafka.dead_letters import EVENTS
from tests.kafka.support import output_of, rows_in
from tests.outputs.harnesses import order

TABLES = ("orders", "events")


class Killed(Exception):
    """What ends a run."""


def of_tables(*tables):
    return Bringing("shop/*", ((TableChoice(tuple(f"main.{each}" for each in tables)),),))


class Origin(Input):
    """Where the queries read: a log that has all changes, and gives no snapshots."""

    emits = Shape.TABLES
    resumes = True

    def typed(self, *_):
        raise NotImplementedError

    def schema_of(self, *_):
        raise NotImplementedError

    def beginning(self, *_):
        return Checkpoint({"shop": SourceCheckpoint()})

    def tables_of(self, *_):
        return [f"shop/main.{each}" for each in TABLES]

    def read_anew(self, *_):
        """The ledger says of which tables it was asked: they are incomplete."""


class Process:
    """A run that writes the output by queries of these names, each of which brings some tables."""

    def __init__(self, server, folder, prefix, bringing, **options):
        self.folder = folder
        self.output = output_of(server, folder, prefix, **{"buckets": 2, **options})
        self.handle = OutputHandle("topics", self.output, folder / ".databus")
        self.handle.bringing = bringing
        for name in bringing:
            self.handle.open(name)

    def begin(self, name):
        """As a run does, with the tables that there are; returns where the ledger says that the query stands."""
        mine = self.handle.bringing[name]
        if not self.handle.has_begun(name):
            feed = Feed("topics", mine.selections)
            source = None if mine.of.endswith("/*") else mine.of.rpartition("/")[2]
            shape = Shape.TYPED if source else Shape.TABLES
            plan, origin = QueryPlan(name, shape, "shop", (feed,), "shop", table=source), Origin(None)
            offsets = Offsets(self.folder / "offsets" / name, origin, "shop", "log-1")
            context = RunContext("shop", "shop", self.folder)
            begin(plan, [(feed, self.handle)], offsets, context, lambda *_: None, source)
        return self.handle.stream(name).pair

    def _has(self, mine, name):
        return brings(mine.of, mine.selections, name)

    def write(self, name, log, end, *, is_killed=False, ids=None):
        """Write from where the ledger says; killed, before that says so. ids: of rows that a filter lets through."""
        batch = self.batch(name, log, end, ids)
        self.handle.write_direct(name, batch, partial(write_buckets, self.output, batch))
        if not is_killed:
            self.handle.advance(name, Checkpoint({batch.physical: batch.end}))

    def write_one_bucket(self, name, log, end, number, ids=None):
        """And be killed, before the others are written."""
        batch = self.batch(name, log, end, ids)

        def write(bucket):
            feed = DirectFeed(Ways(key=self.output.key), self.output.direct_writer(), bucket)
            feed.write_ranges(lambda _: [batch], pa.table({}), number)
            raise Killed

        with suppress(Killed):
            self.handle.write_direct(name, batch, write)

    def pass_over(self, name, log, end, ids=None):
        """Go on to the next row of the query, as Spark does without a batch."""
        least = self.begun_at(name, log)
        ends = (each for each in range(end, least, -1) if not self.batch(name, log, each, ids).items)
        last = next(ends, least)
        if last > least:
            self.handle.advance(name, Checkpoint({"shop": log.position(last)}))

    def begun_at(self, name, log):
        """The place in a log where the ledger says that the query stands."""
        at = self.begin(name)
        return next(each for each in range(len(log.entries) + 1) if log.position(each).pair >= at)

    def batch(self, name, log, end, ids=None):
        whole, mine = log.batch(self.begun_at(name, log), end), self.handle.bringing[name]
        items = [each for each in whole.items if self._has(mine, f"shop/{each.table.source}")]
        if ids is not None:
            items = [
                replace(each, rows=each.rows.filter(pc.is_in(each.rows["id"], pa.array([*ids])))) for each in items
            ]
        return replace(whole, items=tuple(each for each in items if each.rows.num_rows))


def log_of(*tables):
    """A transaction for each, which inserts a row whose id is its number."""
    log = ChangeLog()
    for number, table in enumerate(tables, 1):
        is_order = table == "orders"
        log.begin().insert(ORDERS if is_order else EVENTS, order(number) if is_order else {"id": number, "note": "x"})
    return log


def ids_in(server, prefix):
    found = [row["id"] for table in TABLES for part in rows_in(server, f"{prefix}.{table}") for row in part]
    return sorted(found)
