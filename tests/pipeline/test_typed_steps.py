"""Filters over whole tables before and behind `sql`, `python` and `route`, against what SELECT answers."""

import hmac

import pytest

from databus.pipeline import compare, load_pipeline, run
from tests.pipeline.projects import HEAD, Project

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

SALT = "sixteen bytes and more"
AROUND = f"""
filters:
  live: {{type: where, from: shop, tables: [main.orders], where: status <> 'open'}}
  large:
    type: sql
    from: live
    select: >-
      SELECT id, customer_id, total_cents, total_cents / 100 AS total, status FROM main.orders WHERE total_cents > 9000
  plain: {{type: project, from: large, exclude: [status]}}
  named: {{type: rename, from: plain, columns: {{total_cents: cents}}}}
  safe: {{type: mask, from: named, hash: [customer_id], salt: {SALT}}}
  larger: {{type: where, from: named, where: cents > 30000}}
outputs:
  copy: {{type: delta, from: safe, mode: mirror, path: lake/copy}}
  history: {{type: delta, from: larger, mode: history, path: lake/history}}
"""
LARGE = "FROM orders WHERE status <> 'open' AND total_cents > 9000"


def hashed(value):
    return None if value is None else hmac.new(SALT.encode(), str(value).encode(), "sha256").hexdigest()


def alive(rows, key):
    """The keys that a history's changes leave."""
    found = {}
    for row in sorted(rows, key=lambda row: row[:2]):
        found[row[key]] = row[2] in ("insert", "update_postimage")
    return {value for value, is_alive in found.items() if is_alive}


def test_filters_before_and_behind_a_select_make_what_one_select_would(spark, tmp_path):
    project = Project(tmp_path, AROUND)
    project.work(20)
    project.once(spark)
    project.work(30)
    project.execute(
        "UPDATE orders SET status = 'open' WHERE id % 5 = 0",
        "UPDATE orders SET status = 'paid' WHERE id % 5 = 1",
        "UPDATE orders SET total_cents = 9000 WHERE id % 7 = 0",
        "UPDATE orders SET total_cents = 29999 WHERE id % 7 = 1",
        "UPDATE orders SET id = id + 1000 WHERE id % 11 = 2 AND id NOT IN (SELECT order_id FROM order_lines)",
    )
    project.once(spark)
    rows = project.select(f"SELECT id, customer_id, total_cents, total_cents / 100.0 {LARGE}")
    assert rows
    expected = sorted(((id_, hashed(customer), cents, total) for id_, customer, cents, total in rows), key=repr)
    assert project.copied("lake/copy/orders", "id", "customer_id", "cents", "total") == expected
    changes = project.copied("lake/history/orders", "_commit_version", "_seq", "_change_type", "id", "cents")
    assert {row[2] for row in changes} >= {"insert", "delete"}
    assert all(row[4] > 30_000 for row in changes)
    assert alive(changes, 3) == {id_ for id_, _, cents, _ in rows if cents > 30_000}
    found = compare(load_pipeline(project.path), "copy", session=spark)
    assert found.is_identical, found.details()


def test_filters_go_before_and_behind_a_function_and_a_route(spark, tmp_path):
    (tmp_path / "twice.py").write_text(
        "import pyarrow.compute as pc\n"
        "def twice(batch):\n"
        "    at = batch.schema.get_field_index('total_cents')\n"
        "    return batch.set_column(at, 'total_cents', pc.multiply(batch.column(at), 2))\n"
    )
    project = Project(
        tmp_path,
        """
        filters:
          some: {type: where, from: shop, tables: [main.orders], where: id BETWEEN 5 AND 40}
          twice: {type: python, from: some, table: main.orders, function: 'twice.py:twice'}
          dear: {type: where, from: twice, where: total_cents > 8000}
          split: {type: route, from: dear, where: {odd: id % 2 = 1}, otherwise: even}
          odd: {type: rename, from: split.odd, columns: {status: state}}
        outputs:
          odd: {type: delta, from: odd, mode: mirror, path: lake/odd}
          even: {type: delta, from: split.even, mode: mirror, path: lake/even}
        """,
    )
    project.work(30)
    project.once(spark)
    project.execute("UPDATE orders SET total_cents = 4000 WHERE id % 3 = 0")
    project.once(spark)
    where = "FROM orders WHERE id BETWEEN 5 AND 40 AND total_cents * 2 > 8000 AND id % 2 ="
    for name, column, rest in (("odd", "state", 1), ("even", "status", 0)):
        expected = project.select(f"SELECT id, {column if rest == 0 else 'status'}, total_cents * 2 {where} {rest}")
        assert expected
        assert project.copied(f"lake/{name}/orders", "id", column, "total_cents") == expected


def test_a_hashed_key_is_the_key_behind_sql_too(spark, tmp_path):
    project = Project(
        tmp_path,
        f"""
        filters:
          safe: {{type: mask, from: shop, tables: [main.customers], hash: [id], truncate: {{name: 1}}, salt: {SALT}}}
          some:
            type: sql
            from: safe
            select: SELECT id AS who, name, city FROM main.customers WHERE length(name) = 1
        outputs: {{copy: {{type: delta, from: some, mode: mirror, path: lake}}}}
        """,
    )
    project.once(spark)
    project.execute("UPDATE customers SET city = 'Bern' WHERE id % 2 = 0", "DELETE FROM customers WHERE id = 39")
    project.once(spark)
    rows = project.select("SELECT id, substr(name, 1, 1), city FROM customers")
    expected = sorted(((hashed(id_), name, city) for id_, name, city in rows), key=repr)
    assert project.copied("lake/customers", "who", "name", "city") == expected


def test_older_rows_are_judged_by_what_an_added_column_gave_them(spark, tmp_path):
    project = Project(tmp_path, "outputs: {all: {type: delta, from: shop, mode: mirror, path: lake/all}}\n")
    project.once(spark)
    project.execute("ALTER TABLE orders ADD COLUMN region TEXT DEFAULT 'west'")
    project.execute("UPDATE orders SET region = 'east' WHERE id % 3 = 0")
    project.path.write_text(
        HEAD
        + "filters:\n"
        + "  west: {type: where, from: shop, tables: [main.orders], where: region = 'west'}\n"
        + "  few: {type: sql, from: west, table: main.orders, where: id > 10}\n"
        + "outputs: {few: {type: delta, from: few, mode: mirror, path: lake/few}}\n"
    )
    with project.running(spark) as running:
        running.event(event="batch", output="few")
    project.once(spark)
    expected = project.select("SELECT id, region FROM orders WHERE region = 'west' AND id > 10")
    assert expected
    assert project.copied("lake/few/orders", "id", "region") == expected


def refusal(project, session, code=2):
    events = []
    assert run(project.path, once=True, session=session, on_event=events.append) == code
    return next(event["message"] for event in events if event["event"] == "failed")


def test_a_hidden_column_that_goes_on_by_another_name_stops_the_output(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        filters:
          safe: {type: mask, from: shop, missing: skip, redact: [email]}
          all: {type: sql, from: safe, table: main.customers, where: id > 0}
        outputs: {copy: {type: delta, from: all, mode: mirror, path: lake}}
        """,
    )
    project.once(spark)
    assert {row[0] for row in project.copied("lake/customers", "email")} == {None}
    project.execute("ALTER TABLE customers RENAME COLUMN email TO mail")
    said = refusal(project, spark, code=3)
    assert "filters.safe: shop/main.customers had a column email, which is hidden" in said
    assert "Say in the filter what to hide now" in said


def test_a_key_that_would_no_more_tell_rows_apart_is_refused(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        filters:
          all: {type: sql, from: shop, select: "SELECT name AS who, city FROM main.customers"}
          safe: {type: mask, from: all, truncate: {who: 2}}
        outputs: {copy: {type: delta, from: safe, mode: mirror, path: lake, key: [who]}}
        """,
    )
    assert "filters.safe: column who of shop/main.customers is in the `key`" in refusal(project, spark)


def test_a_filter_about_a_table_that_there_is_not_lets_nothing_pass(spark, tmp_path):
    project = Project(
        tmp_path,
        """
        run: {retries_max: 0}
        filters:
          safe: {type: mask, from: shop, tables: [main.custmers], redact: [email]}
          all: {type: sql, from: safe, table: main.customers, where: id > 0}
        outputs: {copy: {type: delta, from: all, mode: mirror, path: lake}}
        """,
    )
    events = []
    assert run(project.path, once=True, session=spark, on_event=events.append) != 0
    assert not (tmp_path / "lake" / "customers").exists()
    said = [event["message"] for event in events if event["event"] == "failed"]
    assert "filters.safe.tables: no table called main.custmers" in said[0]
