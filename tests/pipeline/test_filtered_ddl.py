"""Filtered copies of a database whose schema changed while the pipeline was down: what SQL says, and nothing else."""

import hmac

import pytest

from databus.pipeline import run
from databus.sinks import read_delta
from databus.testing.servers import ServerMissing, open_server
from tests.pipeline.projects import HEAD, Project

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

BEFORE = """
filters: {large: {type: sql, from: shop, table: main.orders, where: total_cents > 40000}}
outputs:
  large: {type: delta, from: large, mode: mirror, path: lake/large}
"""
AFTER = """
filters:
  large: {type: sql, from: shop, table: main.orders, where: total_cents > 40000}
  near: {type: sql, from: shop, select: "SELECT id, city AS town FROM main.orders WHERE city = 'Bern'"}
outputs:
  large: {type: delta, from: large, mode: mirror, path: lake/large}
  near: {type: delta, from: near, mode: mirror, path: lake/near}
  all_near: {type: delta, from: near, mode: history, path: lake/all_near}
"""


def test_a_column_with_a_default_is_filled_before_filters_judge_and_a_mirror_that_is_behind_follows(spark, tmp_path):
    project = Project(tmp_path, BEFORE)
    project.once(spark)
    project.work(40)
    project.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
    project.path.write_text(HEAD + AFTER)
    project.once(spark)
    project.work(20)
    project.execute("UPDATE orders SET city = 'Rome' WHERE id % 3 = 0")
    project.once(spark)
    large = "SELECT id, total_cents, city FROM orders WHERE total_cents > 40000"
    assert project.copied("lake/large/orders", "id", "total_cents", "city") == project.select(large)
    near = project.select("SELECT id, city FROM orders WHERE city = 'Bern'")
    assert near
    assert project.copied("lake/near/orders", "id", "town") == near
    kinds = [row[0] for row in project.copied("lake/all_near/orders", "_change_type", "town")]
    assert "delete" in kinds, "an update that left the filter"


ON_A_SERVER = """\
name: shop
sources:
  shop: {{type: mysql, hosts: ["127.0.0.1:{port}"], user: {user}, password: {password}, tables: [town.*]}}
inputs: {{shop: {{type: databus, tables: [shop/town.*]}}}}
filters:
  some: {{type: sql, from: shop, table: town.t, where: id > 1}}
"""
FIRST = "outputs: {some: {type: delta, from: some, mode: mirror, path: lake/some}}\n"
LATER = """\
  near: {type: sql, from: shop, select: "SELECT id, b AS number, city AS town FROM town.t WHERE city = 'Bern'"}
outputs:
  some: {type: delta, from: some, mode: mirror, path: lake/some}
  near: {type: delta, from: near, mode: mirror, path: lake/near}
  all: {type: delta, from: some, mode: history, path: lake/all}
"""


def test_values_of_a_renamed_column_come_through_a_filter_that_starts_later(spark, tmp_path):
    try:
        server = open_server("mariadb-10.11", tmp_path / "server")
        server.start()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    with server:
        path = tmp_path / "databus.yml"
        head = ON_A_SERVER.format(port=server.port, user=server.capture_user, password=server.capture_password)
        path.write_text(head + FIRST)
        server.run(
            "CREATE DATABASE town",
            "CREATE TABLE town.t (id INT PRIMARY KEY, a INT)",
            "INSERT INTO town.t VALUES (1, 5), (2, 50)",
        )
        assert run(path, once=True, session=spark) == 0
        server.run(
            "INSERT INTO town.t VALUES (3, 500)",
            "ALTER TABLE town.t RENAME COLUMN a TO b",
            "INSERT INTO town.t VALUES (4, 5000)",
            "ALTER TABLE town.t ADD COLUMN city VARCHAR(20) DEFAULT 'Bern'",
            "UPDATE town.t SET city = 'Rome' WHERE id = 4",
        )
        path.write_text(head + LATER)
        assert run(path, once=True, session=spark) == 0
    some = read_delta(tmp_path / "lake/some/t", ["id", "b", "city"]).sort_by("id")
    assert [tuple(row.values()) for row in some.to_pylist()] == [(2, 50, "Bern"), (3, 500, "Bern"), (4, 5000, "Rome")]
    near = read_delta(tmp_path / "lake/near/t", ["id", "number", "town"]).sort_by("id")
    assert [tuple(row.values()) for row in near.to_pylist()] == [(1, 5, "Bern"), (2, 50, "Bern"), (3, 500, "Bern")]
    everything = read_delta(tmp_path / "lake/all/t", ["id", "b", "city", "_change_type"])
    assert sorted(map(tuple, map(dict.values, everything.to_pylist()))) == [
        (2, 50, "Bern", "insert"),
        (3, 500, "Bern", "insert"),
        (4, 5000, "Bern", "insert"),
        (4, 5000, "Bern", "update_preimage"),
        (4, 5000, "Rome", "update_postimage"),
    ]


MASKED = """
run: {start_ms_max: 1000}
filters: {safe: {type: mask, from: shop, tables: [main.customers], hash: %s, salt: %s}}
outputs: {copy: {type: delta, from: safe, mode: mirror, path: lake/copy%s}}
"""
SALTS = ("sixteen bytes of it", "sixteen other bytes")


@pytest.mark.nightly
def test_a_masked_column_that_was_renamed_is_hidden_by_both_names(spark, tmp_path):
    """As the error says: rows of before stay, and so do they where the output is made anew."""
    project = Project(tmp_path, MASKED % ("[name]", SALTS[0], ""))
    project.once(spark)
    project.execute("UPDATE customers SET name = 'before' WHERE id = 1")
    project.execute("ALTER TABLE customers RENAME COLUMN name TO called")
    project.execute("UPDATE customers SET called = 'after' WHERE id = 2")
    events = []
    assert run(project.path, once=True, session=spark, on_event=events.append) != 0
    assert "Hide it by both names" in str(events)
    for salt, on_change in zip(SALTS, ("continue", "rebuild"), strict=True):
        project.write(MASKED % ("[name, called], missing: skip", salt, f", on_change: {on_change}"))
        project.once(spark)
        wanted = [
            (key, hmac.new(salt.encode(), name.encode(), "sha256").hexdigest())
            for key, name in project.select("SELECT id, called FROM customers")
        ]
        assert project.copied("lake/copy/customers", "id", "called") == sorted(wanted, key=repr)
