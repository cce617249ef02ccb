"""`sample`, `dedupe`, `tombstones` and `outbox` in one pipeline: what SQL says that each copy must hold."""

import json

import pytest

from databus.core import DatabusError
from databus.link import RelayClient
from databus.pipeline import compare, load_pipeline
from tests.pipeline.projects import Project

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

SECTIONS = """
filters:
  few: {type: sample, from: shop, tables: [main.customers], fraction: 0.5}
  short: {type: project, from: few, tables: [main.stock], columns: [product_id, price_cents]}
  prices: {type: dedupe, from: short, tables: [main.stock]}
  kept: {type: tombstones, from: prices, tables: [main.orders, main.order_lines], deletes: mark}
  messages: {type: outbox, from: kept, tables: [main.outbox], keep: [type]}
outputs:
  copy: {type: delta, from: messages, mode: mirror, path: lake/copy}
  history: {type: delta, from: messages, mode: history, path: lake/history}
  lines: {type: files, from: messages, path: out, format: json}
"""
OUTBOX = "CREATE TABLE outbox (id INTEGER PRIMARY KEY, aggregatetype TEXT, aggregateid TEXT, type TEXT, payload TEXT)"
MESSAGE = "INSERT INTO outbox VALUES ({0}, 'order', 'o-{1}', 'placed', '{{}}')"


def test_each_copy_holds_what_the_pages_say_through_deletes_and_a_snapshot(spark, tmp_path):
    project = Project(tmp_path, SECTIONS)
    project.execute(OUTBOX, MESSAGE.format(1, 1))
    orders = {row[0] for row in project.select("SELECT id FROM orders")}
    project.once(spark)

    for _ in range(30):
        project.work(1)
        orders |= {row[0] for row in project.select("SELECT id FROM orders")}
    project.execute(MESSAGE.format(2, 1), MESSAGE.format(3, 2), "UPDATE outbox SET payload = 'x'", "DELETE FROM outbox")
    project.execute("UPDATE stock SET quantity = quantity + 1")  # a column that does not reach the copy
    project.execute("UPDATE stock SET price_cents = price_cents + 1 WHERE product_id = 3")
    project.execute("DELETE FROM orders WHERE id % 5 = 0")
    project.execute("UPDATE orders SET id = id + 100000 WHERE id = 1")
    orders |= {row[0] for row in project.select("SELECT id FROM orders")}
    project.once(spark)

    there = project.select("SELECT id, total_cents FROM orders")
    held = project.copied("lake/copy/orders", "id", "total_cents", "__deleted")
    assert [row[:2] for row in held if not row[2]] == there
    gone = {row[0] for row in held if row[2]}
    assert 1 in gone
    assert gone == orders - {row[0] for row in there}
    kinds = {row[0] for row in project.copied("lake/history/orders", "_change_type")}
    assert kinds == {"insert", "update_preimage", "update_postimage"}

    everyone = {row[0] for row in project.select("SELECT id FROM customers")}
    some = {row[0] for row in project.copied("lake/copy/customers", "id")}
    assert some < everyone
    assert some
    changed = project.copied("lake/history/stock", "product_id", "_change_type")
    assert (3, "update_postimage") in changed
    assert project.copied("lake/copy/stock", "product_id", "price_cents") == project.select(
        "SELECT product_id, price_cents FROM stock"
    )
    updates = sum(kind == "update_postimage" for _, kind in changed)
    assert updates < len(project.select("SELECT product_id FROM stock")), "updates of the quantity are left out"

    sent = project.copied("lake/history/outbox", "id", "topic", "key", "_change_type")
    assert sent == [(number, "outbox.event.order", f"o-{key}", "insert") for number, key in ((1, 1), (2, 1), (3, 2))]
    assert project.copied("lake/copy/outbox", "key", "id") == [("o-1", 2), ("o-2", 3)]
    lines = "".join(path.read_text() for path in sorted((tmp_path / "out" / "outbox").glob("*.jsonl")))
    assert lines.count('"topic":"outbox.event.order"') == 3

    found = compare(load_pipeline(project.path), "copy", session=spark)
    said = {each.name: each.note for each in found.tables}
    assert said["main.customers"] == said["main.stock"] == ""
    assert "filters.kept keeps rows that were deleted in the source" in said["main.orders"]
    assert "filters.messages makes messages of an outbox's rows" in said["main.outbox"]

    with project.running(spark) as running:
        client = running.wait_for(lambda: _capturing(project), "capture")
        read = project.copied("lake/history/orders", "id", "_snapshot")
        client.request_snapshot("shop", ["main.orders"])
        running.wait_for(lambda: len(project.copied("lake/history/orders", "id")) >= len(read) + len(there), "its rows")
        running.wait_for(lambda: not client.head("shop").published.snapshots, "its end")
        project.execute("INSERT INTO orders VALUES (77777, 1, 'open', 1, NULL)")
        running.wait_for(lambda: (77777,) in project.copied("lake/copy/orders", "id"), "what comes after it")
    held = project.copied("lake/copy/orders", "id", "__deleted")
    assert {row[0] for row in held if row[1]} == gone, "the snapshot does not find them, and they stay"
    assert [row[:1] for row in held if not row[1]] == project.select("SELECT id FROM orders")


def _capturing(project: Project) -> RelayClient | None:
    """A client of the relay that the pipeline has started, once that captures."""
    try:
        url = json.loads((project.folder / ".databus" / "relay" / "relay.json").read_text())["url"]
        client = RelayClient(url, read_ms_max=2_000)
        return client if client.states()[0]["status"] == "running" else None
    except (OSError, DatabusError):
        return None
