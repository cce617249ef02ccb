"""`unnest` in a pipeline: a copy of the rows is what SQLite finds in the JSON of its table."""

import json
import random

import pytest

from databus.pipeline import compare, load_pipeline
from tests.pipeline.projects import Project

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.baskets]}}
"""
SECTIONS = """
filters:
  lines: {type: unnest, from: shop, tables: [baskets], column: lines, columns: {sku: string, n: int32}, keep: [who]}
  changed: {type: dedupe, from: lines}
outputs:
  copy: {type: delta, from: changed, mode: mirror, path: "lake/{table}_lines", merge_rows_max: 16}
  history: {type: delta, from: changed, mode: history, path: "history/{table}_lines"}
"""
BASKETS = "CREATE TABLE baskets (id INTEGER PRIMARY KEY, who TEXT, lines TEXT)"
LINES = """
SELECT baskets.id, who, line.key + 1, line.value ->> 'sku', line.value ->> 'n'
FROM baskets, json_each(baskets.lines) AS line
"""


def changes(rng: random.Random, count: int) -> list[str]:
    """Statements over some baskets; some have more lines than a merge takes rows."""
    found = []
    for _ in range(count):
        lines = [{"sku": rng.choice("abc"), "n": rng.randrange(3)} for _ in range(rng.choice((0, 1, 2, 40)))]
        key, text = rng.randrange(12), json.dumps(lines)
        found.append(
            rng.choice(
                (
                    f"INSERT INTO baskets VALUES ({key}, 'ann', '{text}') ON CONFLICT DO UPDATE SET lines = '{text}'",
                    f"UPDATE baskets SET lines = '{text}' WHERE id = {key}",
                    f"UPDATE baskets SET lines = json_insert(lines, '$[#]', json_object('sku', 'z')) WHERE id = {key}",
                    f"UPDATE OR IGNORE baskets SET id = {rng.randrange(12)} WHERE id = {key}",
                    f"DELETE FROM baskets WHERE id = {key}",
                )
            )
        )
    return found


def test_a_copy_of_the_rows_is_what_the_database_finds_in_its_documents(spark, tmp_path, seed):
    rng = random.Random(seed)
    project = Project(tmp_path, SECTIONS, head=HEAD)
    project.execute(BASKETS, *changes(rng, 20))
    for _ in range(2):
        project.once(spark)  # the first reads a snapshot
        for _ in range(10):
            project.execute(*changes(rng, 3))
    project.once(spark)

    columns = ("id", "who", "ordinal", "sku", "n")
    assert project.copied("lake/baskets_lines", *columns) == project.select(LINES)
    kinds = {row[0] for row in project.copied("history/baskets_lines", "_change_type")}
    assert kinds == {"insert", "update_preimage", "update_postimage", "delete"}
    found = compare(load_pipeline(project.path), "copy", session=spark)
    assert [(each.name, each.rows, each.note) for each in found.tables] == [
        ("main.baskets", len(project.select(LINES)), "")
    ]
