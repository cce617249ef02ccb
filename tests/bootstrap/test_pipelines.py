"""Pipelines whose relay has lost what they need: answers of the bootstrap service take the place of snapshots."""

import json

import pytest
from deltalake import DeltaTable

from databus.bootstrap import NoteTaker, keyless_tables
from databus.core import TransientError
from databus.link import RelayClient
from databus.pipeline import run
from databus.pipeline.engine._handle import OutputHandle
from databus.wire import is_inside_answer
from tests.bootstrap.filled import Shop
from tests.bootstrap.test_answers import MORE
from tests.bootstrap.test_service import TABLES, Copy, assert_equal, churn, follow

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

    def run(self, spark, *tables, outputs=("copy", "log"), shape=None):
        asked = {"type": "databus", "tables": [f"shop/main.{name}" for name in tables], "max_rows_per_trigger": 15}
        value = {
            "name": "copies",
            "relay": {"url": self.shop.url},
            "inputs": {"changes": {**asked, "partitions": 2}},
            "outputs": {name: OUTPUTS[name] for name in outputs},
            **(shape or {}),
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


def test_typed_filters_and_several_inputs_get_every_change_from_the_log_store(spark, shop, asked):
    """A mirror behind them begins, and goes on where the relay has lost what it lacks, without a snapshot."""
    copies = Copies(shop)
    tables = {"changes": "orders", "more": "stock"}
    shape = {
        "inputs": {
            name: {"type": "databus", "tables": [f"shop/main.{table}"], "partitions": 2, "max_rows_per_trigger": 15}
            for name, table in tables.items()
        },
        "filters": {"large": {"type": "sql", "from": "changes", "table": "main.orders", "where": "total > 2"}},
        "outputs": {name: {**output, "from": ["large", "more"]} for name, output in OUTPUTS.items()},
    }

    def check():
        found = copies.rows("copies/orders", "id", "name", "total")
        large = sorted((tuple(row.values()) for row in found), key=repr)
        assert large == shop.select("SELECT * FROM orders WHERE total > 2")
        copies.check("stock")
        for name in tables.values():
            assert len(copies.pairs(name)) == len({*copies.pairs(name)})

    copies.run(spark, shape=shape)
    check()
    churn(shop, 30, 50)
    shop.execute(
        "ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'", "UPDATE orders SET total = 9 WHERE id % 5 = 0"
    )
    shop.execute("ALTER TABLE orders DROP COLUMN city")
    shop.execute("DELETE FROM orders WHERE id % 7 = 0")
    shop.forget()
    shop.execute("UPDATE orders SET total = 8 WHERE id % 4 = 0")
    copies.run(spark, shape=shape)
    check()
    assert asked == []


def test_the_state_store_follows_the_log_store_where_the_relay_has_purged_what_it_lacks(spark, tmp_path, request):
    """The service's own pipeline, whose state output was away; the source is asked for nothing."""
    made = Shop(tmp_path, TABLES + MORE)
    made._relay_file["groups"] = {"guard_bytes_max": 0}
    with made.running() as shop:
        churn(shop, 1, 20)
        path = shop.config.write_pipeline(keyless_tables(shop.config))
        whole = json.loads(path.read_text().partition("\n")[2])

        def run_with(*outputs):
            shop.captured()
            path.write_text(json.dumps({**whole, "outputs": {name: whole["outputs"][name] for name in outputs}}))
            assert run(path, once=True, session=spark) == 0

        run_with("log", "state")
        note = NoteTaker(shop.config)
        note.look()
        behind = shop.client.head("shop").published.pair
        churn(shop, 20, 40)
        run_with("log")
        log = shop.relay.captures["shop"].log
        log.config = log.config.model_copy(update={"retention_bytes_max": 0})
        while shop.client.head("shop").oldest.pair <= behind:
            shop.execute("UPDATE ballast SET n = n + 1")
            run_with("log")
        log.config = log.config.model_copy(update={"retention_bytes_max": 1 << 30})
        note._pipeline = None
        path.write_text(json.dumps(whole))
        note.look()
        asked = request.getfixturevalue("asked")
        run_with("log", "state")
        note.look()
        note.close()
        assert asked == []
        new = Copy()
        follow(shop, new, start="state", sources=["shop/main.orders", "shop/main.stock"])
        assert_equal(shop, new)
