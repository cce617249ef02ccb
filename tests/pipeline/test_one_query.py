"""One query for an output and a physical source, whatever inputs and filters its tables come by."""

import pytest

from databus.pipeline import compare, load_pipeline, run, validate
from tests.pipeline.projects import HEAD, Project

TWO_INPUTS = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs:
  some: {type: databus, tables: [main.orders, main.customers], where: id > 5}
  all: {type: databus, tables: [main.stock, main.order_lines]}
"""
MIXED = """
filters:
  large: {type: sql, from: some, table: main.orders, where: total_cents > 30000}
  people: {type: route, from: some, tables: {people: [main.customers]}}
outputs:
  copy: {type: delta, from: [large, people.people, all], mode: mirror, path: lake/copy}
  history: {type: delta, from: [large, people.people, all], mode: history, path: lake/history}
"""
MOVED = """
filters:
  big: {type: sql, from: some, table: main.orders, where: total_cents > 30000}
  people: {type: route, from: some, tables: {people: [main.customers]}}
outputs:
  copy: {type: delta, from: [all, big, people.people], mode: mirror, path: lake/copy, lane: both}
  history: {type: delta, from: [all, big, people.people], mode: history, path: lake/history, lane: both}
"""
FAILING = """
run: {retry_ms_min: 10, retry_ms_max: 200, retries_max: 3, start_ms_max: 2000}
filters:
  checked: {type: python, from: shop, table: main.orders, function: "check.py:check", keeps_rows: true}
  rest: {type: route, from: shop, tables: {rest: [main.customers, main.stock]}}
outputs:
  history: {type: delta, from: [checked, rest.rest], mode: history, path: lake/history, on_failure: retry}
"""
CHECK = """
import pathlib

def check(batch):
    if not pathlib.Path({mended!r}).exists():
        raise ValueError("a row that the function does not take")
    return batch
"""


def pairs(project, path):
    return [row[:2] for row in project.copied(path, "_commit_version", "_seq")]


def assert_is_right(project, spark):
    found = compare(load_pipeline(project.path), "copy", wait_ms_max=5_000, session=spark)
    assert found.is_identical, found.details()
    wanted = project.select("SELECT id FROM orders WHERE id > 5 AND total_cents > 30000")
    assert project.copied("lake/copy/orders", "id") == wanted
    assert project.copied("lake/copy/stock", "product_id") == project.select("SELECT product_id FROM stock")
    for table in ("orders", "customers", "stock", "order_lines"):
        here = pairs(project, f"lake/history/{table}")
        assert len(here) == len(set(here)), table


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_inputs_and_filters_of_one_source_share_a_query_and_other_names_and_a_lane_are_no_event(spark, tmp_path):
    project = Project(tmp_path, MIXED, head=TWO_INPUTS)
    events = project.once(spark)
    assert next(each["queries"] for each in events if each["event"] == "running") == [
        "outputs/copy/some+all@shop",
        "outputs/history/some+all@shop",
    ]
    assert_is_right(project, spark)
    before = {table: pairs(project, f"lake/history/{table}") for table in ("orders", "stock")}
    project.write(MOVED, head=TWO_INPUTS)
    project.work(40)
    events = project.once(spark)
    assert next(each["queries"] for each in events if each["event"] == "running") == ["lanes/lane-both/all+some@shop"]
    assert_is_right(project, spark)
    for table, known in before.items():
        assert set(known) <= set(pairs(project, f"lake/history/{table}")), table
    reads = project.copied("lake/history/orders", "_commit_version", "_seq", "_snapshot")
    assert {row[:2] for row in reads if row[2]} <= set(before["orders"]), "a snapshot was asked for"


@pytest.mark.spark
def test_what_a_mistake_in_a_typed_filter_would_have_made_anew_stays(spark, tmp_path):
    """Beside tables that are well, too: what stays behind with what it has loses nothing."""
    one = MIXED.replace("path: lake/copy}", "path: lake/copy, on_change: rebuild}").partition("  history:")[0]
    project = Project(tmp_path, one, head=TWO_INPUTS)
    project.once(spark)
    orders = project.copied("lake/copy/orders", "id")
    project.write(one.replace("total_cents > 30000", "nosuch > 30000"), head=TWO_INPUTS)
    assert run(project.path, once=True, session=spark) != 0
    assert project.copied("lake/copy/orders", "id") == orders
    assert orders == project.select("SELECT id FROM orders WHERE id > 5 AND total_cents > 30000")


@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_a_table_whose_filter_fails_stays_where_it_is_and_the_others_go_on(spark, tmp_path):
    mended = tmp_path / "mended"
    (tmp_path / "check.py").write_text(CHECK.format(mended=str(mended)))
    project = Project(tmp_path, FAILING)
    with project.running(spark) as running:
        told = running.event(event="table_retry", table="shop/main.orders")
        assert "a row that the function does not take" in told["message"]
        project.work(10)
        stock = project.select("SELECT product_id, quantity FROM stock")

        def is_there():
            rows = project.copied("lake/history/stock", "_commit_version", "_seq", "product_id", "quantity")
            return sorted({row[2]: row[2:] for row in sorted(rows)}.values(), key=repr) == stock

        running.wait_for(is_there, "the other table")
        assert not (tmp_path / "lake/history/orders").exists()
        mended.touch()
        running.event(event="table_well", table="shop/main.orders")
    assert running.code == 0
    project.once(spark)
    for table, key in (("orders", "id"), ("stock", "product_id"), ("customers", "id")):
        project.assert_history_is_whole("lake/history", table, key)


@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_a_table_whose_filter_fails_in_the_very_first_batch_from_a_version_on_loses_nothing(spark, tmp_path):
    """No ledger says yet where anything stands: the options do, by a number."""
    mended, whole = tmp_path / "mended", "  whole: {type: delta, from: shop, mode: history, path: lake/whole}\n"
    (tmp_path / "check.py").write_text(CHECK.format(mended=str(mended)))
    project = Project(tmp_path, f"outputs:\n{whole}")
    project.once(spark)
    version = max(pair[0] for pair in pairs(project, "lake/whole/orders")) + 1
    project.write(FAILING + whole, head=HEAD.replace("databus,", f"databus, starting_version: {version},"))
    project.work(30)
    with project.running(spark) as running:
        running.event(event="table_retry", table="shop/main.orders")
        running.event(event="advanced", output="history")
        mended.touch()
        running.event(event="table_well", table="shop/main.orders")
    assert running.code == 0
    project.once(spark)
    wanted = [pair for pair in pairs(project, "lake/whole/orders") if pair[0] >= version]
    assert wanted
    assert pairs(project, "lake/history/orders") == wanted


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_a_run_to_the_present_end_says_which_table_could_not_be_written(spark, tmp_path):
    """And holds one that no relay knows until it is there: none of its rows is left out then."""
    sections = FAILING.replace("table: main.orders", "table: main.later").replace(", on_failure: retry", "")
    mended = tmp_path / "mended"
    mended.touch()
    (tmp_path / "check.py").write_text(CHECK.format(mended=str(mended)))
    project = Project(tmp_path, sections)
    events = []
    assert run(project.path, once=True, session=spark, on_event=events.append) != 0
    (stopped,) = [each for each in events if each["event"] == "stopped"]
    assert stopped["failed"] == ["history"]
    assert "no main.later" in stopped["reasons"][0]
    stock = "SELECT product_id FROM stock"
    assert {*project.copied("lake/history/stock", "product_id")} == {*project.select(stock)}
    with project.running(spark) as running:
        running.event(event="table_failed", table="main.later")
        project.execute("CREATE TABLE later (id INTEGER PRIMARY KEY, note TEXT)")
        project.execute("INSERT INTO later VALUES (1, 'a'), (2, 'b')")
        running.event(event="table_well", table="shop/main.later")
        project.work(5)
    project.once(spark)
    project.assert_history_is_whole("lake/history", "later", "id")
    assert project.copied("lake/history/later", "id") == [(1,), (2,)]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("where: id > 5", "starting_version: latest", "and they begin at different places"),
        ("where: id > 5", "where: id > 5", ""),
    ],
)
def test_inputs_that_one_query_cannot_read_are_told(tmp_path, old, new, said):
    project = Project(tmp_path, MIXED, head=TWO_INPUTS.replace(old, new))
    found = [str(each) for each in validate(project.path) if not each.is_warning]
    assert ([said in each for each in found] == [True, True]) if said else found == []
