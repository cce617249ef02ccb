"""Filters over whole tables in a pipeline: a mirror, a history and files, through DDL, restarts, and compared."""

import pytest
from deltalake.exceptions import TableNotFoundError

from databus.pipeline import compare, load_pipeline, run, validate
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

FILTERED = """
filters:
  live: {type: where, from: shop, tables: [main.orders], where: total_cents > 40000 AND status <> 'cancelled'}
  short: {type: project, from: live, tables: [main.orders], exclude: [placed_at]}
  named: {type: rename, from: short, tables: [main.orders], columns: {total_cents: cents}}
  safe: {type: mask, from: named, missing: skip, hash: [email], truncate: {name: 1}, salt: 'sixteen bytes and more'}
outputs:
  copy: {type: delta, from: safe, mode: mirror, path: lake/copy}
  history: {type: delta, from: safe, mode: history, path: lake/history}
  lines: {type: files, from: live, path: out, format: json}
"""
NEAR = """
filters: {near: {type: where, from: shop, tables: [main.orders], where: city = 'Bern'}}
outputs: {near: {type: delta, from: near, mode: mirror, path: lake/near}}
"""


@pytest.mark.spark
def test_all_outputs_behind_filters_follow_the_tables_through_a_change(spark, tmp_path):
    project = Project(tmp_path, FILTERED)
    project.work(20)
    project.once(spark)
    project.work(40)
    project.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    project.execute("UPDATE orders SET total_cents = 1 WHERE id % 7 = 0 AND total_cents > 40000")
    project.work(20)
    project.once(spark)
    expected = project.select(
        "SELECT id, total_cents, city FROM orders WHERE total_cents > 40000 AND status <> 'cancelled'"
    )
    assert expected
    assert project.copied("lake/copy/orders", "id", "cents", "city") == expected
    names = project.select("SELECT id, substr(name, 1, 1) FROM customers")
    assert project.copied("lake/copy/customers", "id", "name") == names
    kinds = {row[0] for row in project.copied("lake/history/orders", "_change_type", "cents")}
    assert {"insert", "delete"} <= kinds
    lines = "".join(path.read_text() for path in sorted((tmp_path / "out" / "orders").glob("*.jsonl")))
    assert '"total_cents":' in lines
    found = compare(load_pipeline(project.path), "copy", session=spark)
    assert found.is_identical, found.details()


def test_an_input_leaves_out_the_tables_that_a_mirror_cannot_have(engine, tmp_path):
    """A table without a key, which stops a mirror; leaving one out later takes nothing from what is there."""
    head = HEAD.replace("inputs: {shop: {type: databus", "inputs: {shop: {type: databus, exclude: [main.visits]")
    assert head != HEAD
    outputs = "outputs: {all: {type: delta, from: shop, mode: mirror, path: lake/all}}\n"
    project = Project(tmp_path, outputs)
    project.execute("CREATE TABLE visits (at TEXT)")
    project.execute("INSERT INTO visits VALUES ('today')")
    project.path.write_text(head + outputs)
    project.work(10)
    project.once(engine)
    assert project.copied("lake/all/orders", "id") == project.select("SELECT id FROM orders")
    assert not (tmp_path / "lake/all/visits").exists()
    project.path.write_text(head.replace("[main.visits]", "['main.v*', main.customers]") + outputs)
    project.work(10)
    project.once(engine)
    assert project.copied("lake/all/orders", "id") == project.select("SELECT id FROM orders")
    assert (tmp_path / "lake/all/customers").exists()


def test_a_column_that_comes_while_the_pipeline_is_down_is_waited_for_and_older_rows_are_read_anew(engine, tmp_path):
    project = Project(tmp_path, "outputs: {all: {type: delta, from: shop, mode: mirror, path: lake/all}}\n")
    project.once(engine)
    project.work(10)
    project.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    project.path.write_text(HEAD + NEAR)
    with project.running(engine) as running:
        expected = project.select("SELECT id FROM orders WHERE city = 'Bern'")
        assert expected

        def is_there():
            try:
                return project.copied("lake/near/orders", "id") == expected
            except TableNotFoundError:
                return False

        running.wait_for(is_there, "the copy")
        project.execute("UPDATE orders SET city = 'Rome' WHERE id % 3 = 0")
        expected = project.select("SELECT id FROM orders WHERE city = 'Bern'")
        running.wait_for(is_there, "what left")


def test_a_table_that_lacks_the_column_stops_the_output_and_names_both(engine, tmp_path):
    project = Project(tmp_path, NEAR.replace("[main.orders]", "['main.*']"))
    events = []
    assert run(project.path, once=True, session=engine, on_event=events.append) == 2
    said = [event["message"] for event in events if event["event"] == "failed"]
    assert 'filters.near: shop/main.order_lines has no column "city"' in said[0]
    found = "\n".join(map(str, validate(project.path)))
    assert 'filters.near.where: shop/main.order_lines has no column "city"' in found
