"""Filtered copies of a database whose schema changed while the pipeline was down: what SQL says, and nothing else."""

import pytest

from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.spark

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
