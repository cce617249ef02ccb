"""Outputs of a pipeline that asks two relays of one database, each with a log of its own, and one service behind."""

import json
import random

import pytest
from deltalake import DeltaTable

from databus.core import TransientError
from databus.pipeline import run
from databus.pipeline.engine._handle import OutputHandle
from tests.bootstrap.mysql_shop import MysqlShop
from tests.client.conftest import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(1800)]

TABLES = ("orders", "stock")
OUTPUTS = {
    "copy": {"type": "delta", "from": "changes", "mode": "mirror", "path": "copies/{table}"},
    "log": {"type": "delta", "from": "changes", "mode": "history", "path": "changes/{table}"},
}


class TwoRelays:
    """The shop, its two relays, and a pipeline."""

    def __init__(self, shop, other, spark, dice):
        self.shop, self.spark, self.dice = shop, spark, dice
        self.first, self.other = (shop.relay, shop.client), other
        self.both = [self.first, other]
        self.number = 15
        self.dies = 0  # of the coming batches, how many are in the target and not in the ledger

    def work(self, count=6):
        self.shop.churn(self.number, self.number + count)
        self.number += count

    def run(self, relays, tables):
        """Until there is nothing more to write, over these relays in this order."""
        end = self.shop.captured()
        _, client = self.other
        wait_for(lambda: client.head("shop").published.scn >= end.scn, "the other relay")
        asked = {"type": "databus", "tables": [f"shop/main.{name}" for name in tables], "max_rows_per_trigger": 15}
        value = {
            "name": "copies",
            "relay": {"url": ",".join(relay.url for relay, _ in relays)},
            "run": {"retry_ms_min": 50, "retry_ms_max": 200},
            "inputs": {"changes": {**asked, "partitions": 2}},
            "outputs": OUTPUTS,
        }
        path = self.shop.folder / "copies.yml"
        path.write_text(json.dumps(value))
        events = []
        code = run(path, once=True, session=self.spark, on_event=events.append)
        assert code == 0, [event for event in events if event["event"] in ("retry", "failed", "stopped")]
        for name in tables:
            self.check(name)

    def check(self, name):
        """Both outputs have what SELECT says, and the history has nothing twice."""
        there = sorted((dict(row) for row in self.shop.rows(f"main.{name}")), key=lambda row: row["id"])
        columns = [*there[0]]
        copied = DeltaTable(str(self.shop.folder / "copies" / name)).to_pyarrow_table(columns=columns).to_pylist()
        assert sorted(copied, key=lambda row: row["id"]) == there, name
        bus = ["_change_type", "_commit_version", "_seq"]
        changes = DeltaTable(str(self.shop.folder / "changes" / name)).to_pyarrow_table(columns=[*columns, *bus])
        alive, pairs = {}, set()
        for row in sorted(changes.to_pylist(), key=lambda row: (row["_commit_version"], row["_seq"])):
            kind, *pair = (row.pop(column) for column in bus)
            assert tuple(pair) not in pairs, (name, pair)
            pairs.add(tuple(pair))
            if kind in ("insert", "update_postimage"):
                alive[row["id"]] = row
            else:
                alive.pop(row["id"], None)
        assert sorted(alive.values(), key=lambda row: row["id"]) == there, name


@pytest.fixture
def relays(tmp_path, database_server, spark, seed, monkeypatch):
    with MysqlShop(tmp_path, database_server).running() as shop:
        shop.churn(1, 15)
        with shop.another_relay() as other:
            made = TwoRelays(shop, other, spark, random.Random(seed))
            advance = OutputHandle.advance

            def dies(handle, checkpoint, span=None):
                if made.dies and made.dice.random() < 0.5:
                    made.dies -= 1
                    raise TransientError("it dies here")
                advance(handle, checkpoint, span)

            monkeypatch.setattr(OutputHandle, "advance", dies)
            yield made


def test_a_table_that_is_given_back_catches_up_by_an_answer_from_a_place_in_the_other_log(relays):
    """While it was away the others went on with an answer, and by the other relay's log."""
    relays.run([relays.first], TABLES)
    relays.work()
    relays.run([relays.first], ["orders"])
    relays.work()
    relays.shop.purged(*relays.both)
    relays.work(3)
    relays.run([relays.other], ["orders"])
    relays.work(3)
    relays.dies = 2
    relays.run([relays.other], TABLES)
    relays.work(3)
    relays.run([relays.first], TABLES)


def test_a_table_that_is_given_back_catches_up_from_the_other_log_what_an_answer_did_not_have(relays):
    """The service is asked for one table; another one stands at a lower pair in a log, and the other relay has that."""
    relays.run([relays.first], TABLES)
    relays.work()
    relays.shop.purged(*relays.both)
    relays.run([relays.first], ["orders"])
    _, client = relays.other
    client.request_snapshot("shop", ["main.stock"])
    wait_for(lambda: not client.head("shop").published.snapshots, "the snapshot")
    relays.work()
    relays.run([relays.other], ["orders"])
    relays.dies = 2
    relays.run([relays.other, relays.first], TABLES)
    relays.work(3)
    relays.run([relays.first, relays.other], TABLES)


def test_outputs_go_from_relay_to_relay_and_by_answers_again_and_again(relays):
    """Tables come and go, either relay loses what it had or reads tables again, and batches die."""
    dice = relays.dice
    for _ in range(6):
        relays.work()
        if dice.random() < 0.3:
            dice.choice(relays.both)[1].request_snapshot("shop", [f"main.{name}" for name in TABLES])
        lost = dice.choice((relays.both, relays.both, relays.both[:1], relays.both[1:], []))
        if lost:
            relays.shop.purged(*lost)
        relays.work(2)
        order = dice.sample(relays.both, dice.choice((1, 2)))
        relays.dies = dice.choice((0, 1, 2))
        relays.run(order, dice.choice((TABLES, TABLES, TABLES[:1], TABLES[1:])))
    relays.dies = 0
    relays.run(relays.both, TABLES)
