"""Pipelines with a real database, a real relay and a real Spark: copies hold what SQL says that they must."""

import os
import shutil
import signal

import pytest
from deltalake.exceptions import TableNotFoundError

from databus.core import LockHeld
from databus.pipeline import compare, load_pipeline, run
from databus.pipeline.graph._registry import NodeKind, plugin_class
from tests.pipeline.projects import Project

pytestmark = pytest.mark.spark

EVERYTHING = """
filters:
  large: {type: sql, from: shop, table: main.orders, where: total_cents > 40000}
  slim: {type: sql, from: shop, select: "SELECT o.id, total_cents / 100 AS total, * EXCEPT (id, total_cents, placed_at)
          FROM main.orders AS o WHERE status <> 'open'"}
  by_size: {type: route, from: shop, table: orders, where: {big: total_cents > 30000}, otherwise: small}
  by_table: {type: route, from: shop, tables: {people: customers}, otherwise: rest}
  masked: {type: python, from: shop, table: main.customers, function: "mask.py:mask",
           columns: {id: int64, email: string}}
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: [by_table.people, by_table.rest], mode: history, path: lake/history}
  people: {type: delta, from: by_table.people, mode: mirror, path: lake/people, lane: side}
  rest: {type: delta, from: by_table.rest, mode: mirror, path: lake/rest, lane: side}
  large: {type: delta, from: large, mode: mirror, path: lake/large}
  slim: {type: delta, from: slim, mode: mirror, path: lake/slim}
  big: {type: delta, from: by_size.big, mode: mirror, path: lake/big}
  small: {type: delta, from: by_size.small, mode: mirror, path: lake/small}
  masked: {type: delta, from: masked, mode: mirror, path: lake/masked}
"""
MASK = """
import pyarrow as pa
import pyarrow.compute as pc

def mask(batch):
    return pa.record_batch({"id": batch["id"], "email": pc.utf8_upper(batch["email"])})
"""


def assert_copies_are_right(project, spark):
    found = compare(load_pipeline(project.path), "copy", wait_ms_max=5_000)
    assert found.is_identical, found.details()
    assert found.rows == sum(
        project.select(f"SELECT count(*) FROM {t}")[0][0] for t in ("customers", "orders", "stock", "order_lines")
    )
    for name in ("large", "slim", "big", "small", "masked"):
        typed = compare(load_pipeline(project.path), name, wait_ms_max=5_000, session=spark)
        assert typed.is_identical, (name, typed.details())
        assert typed.rows == len(project.copied(f"lake/{name}/{'customers' if name == 'masked' else 'orders'}", "id"))
    order = ("id", "status", "total_cents")
    orders = "SELECT id, status, total_cents FROM orders WHERE"
    assert project.copied("lake/large/orders", *order) == project.select(f"{orders} total_cents > 40000")
    assert project.copied("lake/big/orders", *order) == project.select(f"{orders} total_cents > 30000")
    assert project.copied("lake/small/orders", *order) == project.select(f"{orders} NOT total_cents > 30000")
    assert project.copied("lake/slim/orders", "id", "total", "customer_id", "status") == project.select(
        "SELECT id, total_cents / 100.0, customer_id, status FROM orders WHERE status <> 'open'"
    )
    assert project.copied("lake/masked/customers", "id", "email") == project.select(
        "SELECT id, upper(email) FROM customers"
    )
    assert project.copied("lake/people/customers", "id") == project.select("SELECT id FROM customers")
    assert project.copied("lake/rest/orders", "id") == project.select("SELECT id FROM orders")
    with pytest.raises(TableNotFoundError):
        project.copied("lake/rest/customers", "id")
    for table, key in (("orders", "id"), ("customers", "id"), ("stock", "product_id")):
        project.assert_history_is_whole("lake/history", table, key)


def test_every_kind_of_branch_holds_what_sql_says_over_snapshot_changes_and_restarts(spark, tmp_path):
    project = Project(tmp_path, EVERYTHING)
    (tmp_path / "mask.py").write_text(MASK)
    events = project.once(spark)
    assert_copies_are_right(project, spark)
    queries = next(event["queries"] for event in events if event["event"] == "running")
    assert sorted(queries) == [
        "lanes/lane-side/shop@shop",
        "outputs/big/shop@shop",
        "outputs/copy/shop@shop",
        "outputs/history/shop@shop",
        "outputs/large/shop@shop",
        "outputs/masked/shop@shop",
        "outputs/slim/shop@shop",
        "outputs/small/shop@shop",
    ]
    project.work(150)
    project.execute(
        "UPDATE orders SET total_cents = 70000 - total_cents", "UPDATE orders SET id = id + 100000 WHERE id < 20"
    )
    project.once(spark)
    assert_copies_are_right(project, spark)


@pytest.mark.usefixtures("relay_in_thread")
def test_an_older_checkpoint_or_none_repeats_nothing_in_history_and_leaves_the_mirror_identical(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        filters: {large: {type: sql, from: shop, table: main.orders, where: total_cents > 40000}}
        outputs:
          copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
          history: {type: delta, from: shop, mode: history, path: lake/history}
          large: {type: delta, from: large, mode: history, path: lake/large}
        """,
    )
    queries = project.state / "queries"
    project.once(spark)
    shutil.copytree(queries, tmp_path / "older")
    project.work(60)
    project.once(spark)
    for checkpoint in (tmp_path / "older", None):
        shutil.rmtree(queries)
        if checkpoint is not None:
            shutil.copytree(checkpoint, queries)
        project.work(20)
        project.once(spark)
        assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical
        project.assert_history_is_whole("lake/history", "orders", "id")
        large = project.copied("lake/large/orders", "_commit_version", "_seq")
        assert len(large) == len(set(large))


def test_a_running_pipeline_follows_a_new_column_survives_its_relays_death_and_refuses_a_second_one(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        filters:
          open: {type: sql, from: shop, table: main.orders, where: status = 'open'}
          ids: {type: sql, from: shop, select: SELECT id FROM main.orders}
        outputs:
          ids: {type: delta, from: ids, mode: mirror, path: lake/ids}
          copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
          open: {type: delta, from: open, mode: mirror, path: lake/open}
        """,
    )
    with project.running(spark) as running:
        relay = running.event(event="relay")
        running.event(event="batch", output="open")
        with pytest.raises(LockHeld, match=f"runs already, as .*{os.getpid()}"):
            run(project.path, session=spark)

        os.kill(relay["pid"], signal.SIGKILL)
        project.work(20)
        again = running.wait_for(lambda: [e for e in list(running.events) if e["event"] == "relay"][1:], "a new relay")[
            0
        ]
        assert again["url"] == relay["url"]

        starts = [event["query"] for event in running.events if event["event"] == "started"]
        project.execute("ALTER TABLE orders ADD COLUMN channel TEXT DEFAULT 'web'")
        project.execute("INSERT INTO orders (customer_id, status, total_cents, channel) VALUES (1, 'open', 5, 'app')")
        open_orders = project.select("SELECT id, channel FROM orders WHERE status = 'open'")

        def has_them():
            try:
                return project.copied("lake/open/orders", "id", "channel") == open_orders
            except Exception:  # noqa: BLE001 - the column is not there yet
                return False

        running.wait_for(has_them, "the new column")
        ids = project.select("SELECT id FROM orders")
        running.wait_for(lambda: project.copied("lake/ids/orders", "id") == ids, "the row after the change")
        assert compare(load_pipeline(project.path), "copy").is_identical
    assert running.code == 0
    assert [event["query"] for event in running.events if event["event"] == "started"] == starts, "a query restarted"


@pytest.mark.usefixtures("relay_in_thread")
def test_an_output_that_fails_for_good_stops_alone_and_one_that_fails_once_goes_on(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        outputs:
          copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
          shaky: {type: mock, from: shop, fail_at_row: 10, report: shaky.json}
        """,
    )
    project.execute("CREATE TABLE log (line TEXT)", "INSERT INTO log VALUES ('a')")
    project.path.write_text(
        project.path.read_text()
        .replace("outputs:", "outputs:\n  keyless: {type: delta, from: lines, mode: mirror, path: lake/k}")
        .replace("from: shop, mode: mirror, path: lake/copy", "from: tables.keyed, mode: mirror, path: lake/copy")
        + "filters:\n"
        "  tables: {type: route, from: shop, tables: {none: log}, otherwise: keyed}\n"
        "  lines: {type: sql, from: shop, select: SELECT line FROM main.log}\n"
    )
    events = []
    code = run(project.path, once=True, session=spark, on_event=events.append)
    assert code == 3
    (failed,) = [event for event in events if event["event"] == "failed"]
    assert (failed["outputs"], failed["error"]) == (["keyless"], "UnsupportedFeature")
    assert "main.log comes without a key" in failed["message"]
    assert {tuple(event["outputs"]) for event in events if event["event"] == "retry"} == {("shaky",)}
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical
    assert (tmp_path / "shaky.json").is_file()


@pytest.mark.usefixtures("relay_in_thread")
def test_a_filter_that_spark_refuses_or_a_function_that_fails_is_named(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        filters:
          wrong: {type: sql, from: shop, table: main.orders, where: no_such_column > 1}
          broken: {type: python, from: shop, table: main.orders, function: "f.py:f"}
        outputs:
          a: {type: mock, from: wrong}
          b: {type: mock, from: broken}
        """,
    )
    (tmp_path / "f.py").write_text("def f(batch):\n    raise KeyError('price')\n")
    events = []
    code = run(project.path, once=True, session=spark, on_event=events.append)
    told = {event["outputs"][0]: event["message"] for event in events if event["event"] == "failed"}
    assert code == 2
    assert "filters.wrong: Spark refuses it" in told["a"]
    assert "no_such_column" in told["a"]
    assert "function f.py:f failed on a batch" in told["b"]
    assert "KeyError: 'price'" in told["b"]


@pytest.mark.usefixtures("relay_in_thread")
def test_a_mirror_tells_rows_apart_by_the_source_s_key_or_not_at_all(spark, tmp_path):
    """A column that got the name of the key by a SELECT is not the key: rows with one value of it would become one."""
    project = Project(
        tmp_path,
        """
        filters:
          renamed: {type: sql, from: shop, select: "SELECT id AS number, customer_id AS id FROM main.orders"}
          lost: {type: sql, from: shop, select: "SELECT customer_id AS id, total_cents FROM main.orders"}
        outputs:
          good: {type: delta, from: renamed, mode: mirror, path: lake/good}
          bad: {type: delta, from: lost, mode: mirror, path: lake/bad}
        """,
    )
    events = []
    assert run(project.path, once=True, session=spark, on_event=events.append) == 3
    (failed,) = (event for event in events if event["event"] == "failed")
    assert "outputs.bad: main.orders comes without a key" in failed["message"]
    project.work(20)
    assert run(project.path, once=True, session=spark) == 3
    assert project.copied("lake/good/orders", "number", "id") == project.select("SELECT id, customer_id FROM orders")


def control_and_rows(spark):
    meta = "'x' _txid, false _snapshot, string(null) _control"
    return spark.sql(
        "SELECT id, 'insert' _change_type, 7L _commit_version, timestamp'2026-01-01' _commit_timestamp, id _seq, "
        f"{meta} FROM range(3) UNION ALL SELECT null, 'control', 7L, timestamp'2026-01-01', 3L, 'x', false, '{{}}'"
    )


FILTERS = {
    "where": ({"type": "sql", "where": "id > 0"}, None, [1, 2]),
    "select": ({"type": "sql", "select": "SELECT id + 10 AS id FROM t WHERE id < 1"}, None, [10]),
    "route": ({"type": "route", "where": {"a": "id > 1"}, "otherwise": "b"}, "a", [2]),
    "otherwise": ({"type": "route", "where": {"a": "id > 1", "c": "id > null"}, "otherwise": "b"}, "b", [0, 1]),
    "python": ({"type": "python", "function": "f.py:f"}, None, []),
}


@pytest.mark.parametrize("kind", FILTERS)
def test_controls_pass_every_filter_and_every_branch(spark, tmp_path, kind):
    options, branch, kept = FILTERS[kind]
    (tmp_path / "f.py").write_text("def f(batch):\n    return batch.slice(0, 0)\n")
    plugin = plugin_class(NodeKind.FILTER, options["type"])
    config = plugin.config_model.model_validate({**options, "from": "x", "table": "main.t"})
    found = plugin(config, tmp_path).apply(control_and_rows(spark), branch).collect()
    assert sorted(row["id"] for row in found if row["_change_type"] == "insert") == kept
    assert [(row["_control"], row["_seq"]) for row in found if row["_change_type"] == "control"] == [("{}", 3)]
    assert all(row["_commit_version"] == 7 for row in found)


def test_spark_reads_a_select_as_it_was_written(spark, tmp_path):
    """Not as a parser writes it again, which takes `to_char` for a plain cast."""
    year = "to_char(_commit_timestamp, 'yyyy')"
    select = f"SELECT id, {year} AS year, year || '!' AS said -- a, b\nFROM t WHERE {year} IS NOT DISTINCT FROM '2026'"
    plugin = plugin_class(NodeKind.FILTER, "sql")
    made = plugin(plugin.config_model.model_validate({"from": "x", "type": "sql", "select": select}), tmp_path)
    assert made.problems() == []
    found = made.apply(control_and_rows(spark), None).where("_change_type = 'insert'").collect()
    assert sorted((row["id"], row["year"], row["said"]) for row in found) == [
        (0, "2026", "2026!"), (1, "2026", "2026!"), (2, "2026", "2026!"),
    ]  # fmt: skip


def test_rows_made_inside_spark_pass_a_filter_and_are_counted_without_a_relay(spark, tmp_path):
    path = tmp_path / "dry.yml"
    path.write_text(
        "inputs: {events: {type: mock, rows_total: 50000, max_rows_per_trigger: 20000}}\n"
        "filters: {odd: {type: sql, from: events, where: id % 2 = 1}}\n"
        "outputs: {n: {type: count, from: odd}, checked: {type: mock, from: odd, check: order, report: report.json}}\n"
    )
    events = []
    assert run(path, once=True, session=spark, on_event=events.append) == 0
    batches = [event for event in events if event["event"] == "batch"]
    assert {name: sum(e["rows"] for e in batches if e["output"] == name) for name in ("n", "checked")} == {
        "n": 25_000,
        "checked": 25_000,
    }
