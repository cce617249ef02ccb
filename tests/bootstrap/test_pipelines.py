"""Pipelines whose relay has lost what they need: answers of the bootstrap service take the place of snapshots."""

import json

import pytest
from deltalake import DeltaTable

from databus.core import TransientError
from databus.link import RelayClient
from databus.pipeline import run
from databus.pipeline.engine._handle import OutputHandle
from databus.wire import is_inside_answer
from tests.bootstrap.filled import Shop
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, churn

pytestmark = [pytest.mark.spark, pytest.mark.nightly]

OUTPUTS = {
    "copy": {"type": "delta", "from": "changes", "mode": "mirror", "path": "copies/{table}"},
    "log": {"type": "delta", "from": "changes", "mode": "history", "path": "changes/{table}"},
}


@pytest.fixture
def shop(tmp_path):
    with Shop(tmp_path, TABLES + MORE).running() as running:
        running.captured()
        churn(running, 1, 30)
        running.forget()
        yield running


class Copies:
    """A pipeline beside the shop."""

    def __init__(self, shop):
        self.shop = shop
        self.path = shop.folder / "copies.yml"

    def run(self, spark, *tables, outputs=("copy", "log")):
        asked = {"type": "databus", "tables": [f"shop/main.{name}" for name in tables], "max_rows_per_trigger": 15}
        value = {
            "name": "copies",
            "relay": {"url": self.shop.url},
            "inputs": {"changes": {**asked, "partitions": 2}},
            "outputs": {name: OUTPUTS[name] for name in outputs},
        }
        self.path.write_text(json.dumps(value))
        self.shop.captured()
        events = []
        code = run(self.path, once=True, session=spark, on_event=events.append)
        assert code == 0, [each for each in events if each["event"] in ("retry", "failed")]
        return events

    def rows(self, folder, *columns):
        return DeltaTable(str(self.shop.folder / folder)).to_pyarrow_table(columns=list(columns)).to_pylist()

    def check(self, *tables):
        for name in tables:
            names = [row[1] for row in self.shop.db.execute(f"PRAGMA table_info({name})")]
            copied = sorted((tuple(row.values()) for row in self.rows(f"copies/{name}", *names)), key=repr)
            assert copied == self.shop.select(f"SELECT * FROM {name}"), name

    def pairs(self, name):
        return [tuple(row.values()) for row in self.rows(f"changes/{name}", "_commit_version", "_seq")]


@pytest.fixture
def asked(monkeypatch):
    """The tables that the relay was asked to read."""
    names = []
    monkeypatch.setattr(RelayClient, "request_snapshot", lambda _, physical, tables: names.extend(tables))
    return names


@pytest.fixture
def dying(monkeypatch):
    """Each query dies some times in the middle of an answer, when its batch is in the target and not in the ledger."""
    advance, left = OutputHandle.advance, [3]

    def advance_or_die(handle, checkpoint, span=None):
        if left[0] and any(is_inside_answer(each) for each in checkpoint.sources.values()):
            left[0] -= 1
            raise TransientError("it dies here")
        advance(handle, checkpoint, span)

    monkeypatch.setattr(OutputHandle, "advance", advance_or_die)
    return left


def test_outputs_begin_with_an_answer_join_with_one_and_go_on_where_the_relay_has_lost_them(spark, shop, asked, dying):
    """Equal to SELECT each time, without a snapshot, and a history has each change once."""
    copies = Copies(shop)
    copies.run(spark, "orders")
    copies.check("orders")
    assert dying == [0]
    churn(shop, 30, 40)
    copies.run(spark, "orders", "stock")
    copies.check("orders", "stock")
    churn(shop, 40, 60)
    shop.execute("DELETE FROM orders WHERE id % 5 = 0")
    shop.forget()
    churn(shop, 60, 63)
    dying[0] = 2
    copies.run(spark, "orders", "stock")
    copies.check("orders", "stock")
    assert dying == [0]
    for name in ("orders", "stock"):
        assert len(copies.pairs(name)) == len({*copies.pairs(name)})
    assert asked == []
