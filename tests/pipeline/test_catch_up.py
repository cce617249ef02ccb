"""Tables that are behind the others of their output come on by ranges of their own: no row lacks, none is twice."""

import json

import pytest

from databus.pipeline import compare, load_pipeline
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

OUTPUTS = """
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: shop, mode: history, path: lake/history}
"""


def head(*tables):
    return HEAD.replace("tables: [shop/main.*]", f"tables: {json.dumps(tables)}, max_rows_per_trigger: 40")


def test_a_table_that_was_left_out_for_a_while_goes_on_where_it_stood(engine, tmp_path):
    """In steps of at most a batch, and without a snapshot: a history has each change that was made meanwhile."""
    project = Project(tmp_path, OUTPUTS, head=head("main.orders", "main.stock"))
    project.once(engine)
    project.path.write_text(head("main.orders") + OUTPUTS)
    project.execute(*["UPDATE stock SET quantity = quantity + 1"] * 4)
    project.work(20)
    project.once(engine)
    ledger = json.loads((tmp_path / "lake/history/.databus-shop-history.ledger.json").read_text())
    assert [names for _, names in ledger["positions"]["shop"]["except"] if "shop/main.stock" in names]
    project.path.write_text(head("main.orders", "main.stock") + OUTPUTS)
    project.work(5)
    project.once(engine)
    ledger = json.loads((tmp_path / "lake/history/.databus-shop-history.ledger.json").read_text())
    assert not [names for _, names in ledger["positions"]["shop"]["except"] if "shop/main.stock" in names]
    project.once(engine)
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical
    pairs = project.copied("lake/history/stock", "_commit_version", "_seq", "_snapshot")
    read = {pair for *pair, is_snapshot in map(list, pairs) if is_snapshot for pair in [tuple(pair)]}
    assert len(pairs) == len({row[:2] for row in pairs})
    assert len(pairs) - len(read) >= 4 * 2 * len(read)  # each row, four times, before and after
