"""What real pipelines note of their batches: all rows of the log between the same places, whatever stands there."""

import json

import pytest

from databus.core import FatalError
from databus.link import RelayClient
from databus.pipeline import ask, audit, load_pipeline, read_batches, rebuild, run
from databus.pipeline.engine._handle import OutputHandle
from tests.pipeline.projects import Project

HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs:
  some: {type: databus, tables: [main.orders, main.customers]}
  all: {type: databus, tables: [main.stock]}
  rest: {type: databus, tables: [main.order_lines], where: quantity > 1}
"""
SECTIONS = """
run: {retry_ms_min: 10, retry_ms_max: 200, retries_max: 3}
filters:
  large: {type: sql, from: some, table: main.orders, where: total_cents > 30000}
  named: {type: sql, from: large, select: "SELECT id, total_cents / 100 AS total FROM orders"}
  seen: {type: python, from: some, table: main.customers, function: "check.py:check"}
  few: {type: where, from: all, tables: [main.stock], where: product_id > 10}
outputs:
  copy: {type: delta, from: [named, seen, few], mode: mirror, path: lake/copy, on_failure: retry}
  history: {type: delta, from: [large, seen, all, rest], mode: history, path: lake/history, on_failure: retry}
  lines: {type: files, from: few, path: "lines/{table}", format: json}
"""
CHECK = """
import pathlib
import pyarrow.compute as pc

def check(batch):
    if not pathlib.Path({mended!r}).exists():
        raise ValueError("a row that the function does not take")
    return batch.filter(pc.greater(batch.column("id"), 9))
"""
TABLES = ("orders", "customers", "stock", "order_lines")


@pytest.fixture
def project(tmp_path):
    (tmp_path / "check.py").write_text(CHECK.format(mended=str(tmp_path / "mended")))
    return Project(tmp_path, SECTIONS, head=HEAD)


def died(*_):
    raise FatalError("killed between the journal and the ledger")


def audited(project, running):
    """The audit, once all outputs have come to where the log ends, with a transaction of which each has something."""
    project.execute(
        "UPDATE orders SET total_cents = total_cents + 1",
        "UPDATE customers SET city = city || '.'",
        "UPDATE stock SET quantity = quantity + 1",
    )
    client = RelayClient(running.event(event="relay")["url"])

    def done():
        found = list(audit(load_pipeline(project.path), client))
        published = client.head("shop").published.pair
        is_done = len(found) == 3 and all(each.chain.end >= published and not each.chain.behind for each in found)
        return is_done and found

    return {each.chain.output: each for each in running.wait_for(done, "all outputs")}


def counts_of(project, output):
    """By table, what the journal adds up to."""
    found = {}
    for line in read_batches(project.state, output):
        for table in {*line["rows"], *line["counts"]}:
            mine = found.setdefault(table, {"in": 0, "out": 0, "dropped": 0})
            counts = line["counts"].get(table, {"in": line["rows"].get(table)})
            mine["in"] += counts["in"]
            mine["out"] += line["rows"].get(table, 0)
            mine["dropped"] += sum(counts.get("dropped", {}).values())
            assert counts["in"] == (
                line["rows"].get(table, 0)
                + sum(counts.get("dropped", {}).values())
                + counts.get("already", 0)
                + counts.get("letters", 0)
            )
    return found


@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_batches_have_all_rows_of_the_log_behind_filters_and_of_a_table_that_catches_up(spark, project):
    with project.running(spark) as running:
        running.event(event="table_retry", table="shop/main.customers")
        project.work(15)
        running.wait_for(lambda: list(read_batches(project.state, "copy")), "a batch without the table that fails")
        (project.folder / "mended").touch()
        running.event(event="table_well", table="shop/main.customers")
        project.work(15)
        found = audited(project, running)
        assert [(each.chain.output, each.why_unknown, each.is_whole) for each in found.values()] == [
            (name, "", True) for name in ("copy", "history", "lines")
        ], [each.to_json() for each in found.values()]
        assert found["copy"].log_rows == found["copy"].came > 0
    own = [line for line in read_batches(project.state, "copy") if line["only"]]
    assert {name for line in own for name in line["only"]} == {"shop/main.customers"}
    counts = counts_of(project, "copy")
    assert counts["main.orders"]["dropped"] > 0
    assert counts["main.customers"]["dropped"] > 0
    assert counts["main.stock"]["dropped"] > 0
    lines = [json.loads(row) for file in (project.folder / "lines/stock").glob("*.jsonl") for row in file.open()]
    assert counts_of(project, "lines")["main.stock"]["out"] == len(lines)
    last = list(read_batches(project.state, "copy"))[-1]
    assert {"bytes", "spent_ms", "marks", "epoch"} <= last.keys()
    steps = {name for line in read_batches(project.state, "copy") for name in line["spent_ms"]}
    assert {"fetch", "decode", "filter", "write", "commit"} <= steps
    assert not [each for each in running.events if each["event"] == "journal_break"]


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("relay_in_thread")
def test_batches_stay_whole_over_kills_a_rebuild_and_a_reload(spark, project, monkeypatch):
    (project.folder / "mended").touch()
    for _ in range(2):
        with monkeypatch.context() as patched:
            patched.setattr(OutputHandle, "advance", died)
            assert run(project.path, once=True, session=spark) != 0
        project.work(15)
    project.once(spark)
    rebuild(load_pipeline(project.path), "copy", ["shop/main.stock", "shop/main.orders"], confirm=lambda _: True)
    project.work(10)
    project.once(spark)
    other = SECTIONS.replace("total_cents > 30000", "total_cents > 20000").replace("path: lake", "ON, path: lake")
    other = other.replace("ON", "on_change: rebuild", 1).replace("ON", "on_change: continue")
    with project.running(spark) as running:
        project.work(5)
        running.event(event="batch", output="copy")
        project.write(other, head=HEAD)
        ask(project.state, "reload")
        project.work(10)
        found = audited(project, running)
        assert all(each.is_whole and not each.why_unknown for each in found.values()), [
            each.to_json() for each in found.values()
        ]
