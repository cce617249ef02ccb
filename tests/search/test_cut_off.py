"""An output that is cut off from its server at each of its requests: in the end the index holds the table's rows.

After a cut a new attempt begins where the ledger says, as a query does that is started again. It is cut off one request
later, and so on until a batch is through.
"""

import json
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pytest

from databus.core import Checkpoint, ControlKind, ServiceUnavailable, SourceCheckpoint
from databus.flow import RECEIPTS, DirectFeed, DirectTypedStage, Ways, joined_buckets
from databus.pipeline.engine._handle import BatchSpan, OutputHandle
from databus.places import Position
from databus.schema import Column, TableSchema
from databus.testing._change_log import ORDERS, ChangeLog
from tests.feeds import bring
from tests.outputs.harnesses import order
from tests.search.proxy import CUT, SearchProxy
from tests.search.support import output_of

TAGS = TableSchema("main.tags", (Column("id", "int64", nullable=False), Column("tag", "string")), ("id",))
NAMED = replace(ORDERS, columns=tuple(replace(c, name="label") if c.name == "note" else c for c in ORDERS.columns))
PLAIN, TYPED = "main.orders", "main.tags"
OPTIONS = {"mapping": {"main.orders": {"note": {"type": "integer"}}}, "on_error": "dead_letter", "buckets": 1}


def tag(key, text):
    return {"id": key, "tag": text}


@dataclass
class Story:
    """A log, and where its batches end."""

    log: ChangeLog = field(default_factory=ChangeLog)
    cuts: list[int] = field(default_factory=list)

    def cut(self):
        self.cuts.append(len(self.log.entries))

    def batch(self, table, after):
        """The next batch of a table behind a pair; None at the end."""
        begin = next((cut for cut in [0, *self.cuts] if self.log.position(cut).pair >= after), None)
        end = next((cut for cut in self.cuts if self.log.position(cut).pair > after), None)
        if end is None:
            return None
        found = self.log.batch(begin, end)
        return replace(found, items=tuple(item for item in found.items if item.table.source == table))


def story():
    """Rows come and go, keys change, `four` is refused, a transaction comes in three parts, a snapshot leaves out what
    is gone, a column gets another name.
    """
    made = Story()
    log = made.log.begin()
    for key in (1, 2, 3):
        log.insert(ORDERS, order(key, f"{key}"))
    log.insert(TAGS, tag(1, "new"))
    log.insert(TAGS, tag(2, "new"))
    made.cut()
    log.begin().update(ORDERS, order(1, "1"), order(1, "11"))
    log.delete(ORDERS, order(2, "2"))
    log.update(ORDERS, order(3, "3"), order(30, "3"))
    log.update(TAGS, tag(1, "new"), tag(10, "moved"))
    log.begin().insert(ORDERS, order(4, "four"))
    made.cut()
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin()
    for key, note in ((5, "5"), (6, "four"), (8, "8"), (9, "nine")):
        log.insert(ORDERS, order(key, note))
    made.cut()
    log.begin().update(ORDERS, order(5, "5"), order(5, "55"))
    log.insert(ORDERS, order(7, "7"))
    made.cut()
    log.update(ORDERS, order(5, "55"), order(5, "555"))
    log.delete(ORDERS, order(7, "7"))
    log.update(TAGS, tag(2, "new"), tag(2, "newer"))
    log.update(TAGS, tag(2, "newer"), tag(2, "newest"))
    made.cut()
    log.insert(ORDERS, order(7, "77"))
    made.cut()
    log.begin().update(ORDERS, order(6, "four"), order(6, "66"))
    log.delete(TAGS, tag(10, "moved"))
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(5, "555"), order(6, "66")])
    made.cut()
    log.snapshot(ORDERS, [order(7, "77")])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=[*begin.pair], complete=True)
    log.begin().insert(ORDERS, order(50, "fifty"))
    made.cut()
    log.begin().schema(NAMED, 2, renamed={"note": "label"})
    log.begin().insert(NAMED, {"id": 40, "label": "40", "total": None})
    made.cut()
    return made


ORDERS_LEFT = {"5": "555", "6": "66", "7": "77", "40": "40"}
TAGS_LEFT = {"2": "newest"}
LETTERS_LEFT = [("50", "fifty")]


def by_task_of_tables(output, batch, bucket):
    """Have a task write a batch."""
    feed = DirectFeed(Ways(key=output.config.key_choice), output.part_writer(), bucket)
    receipts = feed.write_ranges(lambda _: [batch], pa.table({}), 0)
    return joined_buckets(pa.table([[0] * len(receipts), receipts], RECEIPTS), 1)


def by_task_of_typed_rows(output, batch, bucket):
    """Have the one task of typed rows write them, in pieces of a change."""
    feed = DirectFeed(Ways(key=output.config.key_choice), output.part_writer(), bucket)
    rows = [each for item in batch.items for each in item.rows.to_batches(1)]
    stage = DirectTypedStage(TAGS, "shop", batch.start, batch.end, feed, piece_bytes=1)
    return joined_buckets(pa.Table.from_batches([*stage(iter(rows))], RECEIPTS), feed.writer.buckets)


WAYS = {PLAIN: by_task_of_tables, TYPED: by_task_of_typed_rows}


def go_on(proxy, folder, made, table):
    """Write the next range of a table, as a run does that begins now; returns whether there was one."""
    output = output_of(proxy, folder, retry_ms_max=0, **OPTIONS)
    handle = OutputHandle("index", output, folder / ".databus")
    bring(handle)
    try:
        handle.open()
        position = handle.position("shop")
        after = (0, 0) if position.place(f"shop/{table}") is None else position.done(f"shop/{table}")
        batch = made.batch(table, after)
        if batch is None:
            return False
        if position.at is None:
            handle.put("shop", Position(SourceCheckpoint(), handle.choice("shop")))
        span = BatchSpan(after, frozenset([f"shop/{table}"]))
        handle.write_direct(batch, partial(WAYS[table], output, batch), span)
        handle.advance(Checkpoint({"shop": batch.end}), span)
        return True
    finally:
        handle.close()


class Cutter:
    """Ends all traffic at the request of a number, from 1 on, and lets none through from then on. is_carried_out:
    whether the server gets that request, so that its answer alone is lost.
    """

    def __init__(self, *, is_carried_out):
        self._is_carried_out = is_carried_out
        self.end_at(0)

    def end_at(self, number):
        self._number, self._count = number, 0

    def instead(self, _method, _path):
        self._count += 1
        is_over = self._count > self._number if self._is_carried_out else self._count >= self._number
        return CUT if is_over else None

    def after(self, _path, _answer):
        return self._count >= self._number


LOST = [
    pytest.param("opensearch-2.19", "answer"),
    pytest.param("opensearch-2.19", "request", marks=pytest.mark.soak),
    pytest.param("elasticsearch-6.8", "answer", marks=pytest.mark.soak),
    pytest.param("elasticsearch-6.8", "request", marks=pytest.mark.soak),
]
"""The others, which differ little, are a matter of the long campaigns."""


@pytest.fixture
def quick(search_servers, monkeypatch):
    """Servers that do not wait for their disks, and have nothing; an output looks for fewer buckets of before."""
    monkeypatch.setattr("databus.sinks.search._writer.BUCKETS_MAX", 2)
    settings = {"number_of_shards": 1, "number_of_replicas": 0, "translog.durability": "async"}
    asked = []

    def get(kind):
        server = search_servers(kind)
        server.ask("DELETE", "/_all")
        server.ask("PUT", "/_template/quick", {"index_patterns": ["*"], "settings": {"index": settings}})
        asked.append(server)
        return server

    yield get
    for server in asked:
        server.ask("DELETE", "/_template/quick")


@pytest.mark.parametrize(("kind", "lost"), LOST)
def test_an_output_that_is_cut_off_at_any_of_its_requests_has_all_rows_in_the_end(quick, tmp_path, kind, lost):
    server, made, cutter = quick(kind), story(), Cutter(is_carried_out=lost == "answer")
    with SearchProxy(server, instead=cutter.instead, after=cutter.after) as proxy:
        for table in WAYS:
            number, is_more = 1, True
            while is_more:
                cutter.end_at(number)
                try:
                    is_more = go_on(proxy, tmp_path, made, table)
                except ServiceUnavailable:
                    number += 1
                else:
                    number = 1
    assert {key: each["label"] for key, each in server.documents("orders").items()} == ORDERS_LEFT
    assert {key: each["tag"] for key, each in server.documents("tags").items()} == TAGS_LEFT
    assert server.documents("databus-parts") == {}
    lines = [line for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()[1:]]
    assert [(each["id"], each["row"]["note"]) for each in map(json.loads, lines)] == LETTERS_LEFT
