"""What is wrong with a file is found before anything is removed for it; what was removed comes again."""

import pytest

from databus.pipeline import run
from databus.pipeline.inputs import DatabusInput
from databus.relay import Relay, parse_relay
from tests.pipeline.projects import Project

HEAD = "name: shop\nrelay: {url: '%s'}\ninputs: {shop: {type: databus, tables: [shop/main.orders]}}\n"
GOOD = """
filters:
  all: {type: where, from: shop, where: total_cents >= 0}
  large: {type: sql, from: shop, table: main.orders, where: total_cents >= 0}
outputs:
  copy: {type: delta, from: all, mode: mirror, path: lake/copy, on_change: rebuild}
  lines: {type: files, from: all, path: lake/lines, format: json, on_change: rebuild}
  keyed: {type: delta, from: shop, mode: mirror, path: lake/keyed, on_change: rebuild}
  large: {type: delta, from: large, mode: mirror, path: lake/large, on_change: rebuild}
"""
WRONG = (
    GOOD.replace("where, from: shop, where: total_cents", "where, from: shop, where: totl_cents")
    .replace("where: total_cents >= 0}\noutputs", "where: total_cents >= nosuch}\noutputs")
    .replace("path: lake/keyed", "path: lake/keyed, key: {main.orders: [nosuch]}")
)
CHANGED = GOOD.replace("total_cents >= 0", "total_cents >= 10000").replace("lake/keyed", "lake/keyed, key: [id]")
OUTPUTS = ("copy", "lines", "keyed", "large")


@pytest.mark.spark
def test_what_a_mistake_would_have_made_anew_stays_and_nothing_is_asked_for(spark, tmp_path, monkeypatch):
    project, asked = Project(tmp_path, ""), []
    read_anew = DatabusInput.read_anew

    def asking(self, context, physical, tables):
        asked.extend(tables)
        read_anew(self, context, physical, tables)

    monkeypatch.setattr(DatabusInput, "read_anew", asking)
    sources = {"shop": {"type": "sqlite", "path": "shop.db"}}
    given = {"listen": "127.0.0.1:0", "folder": "log", "sources": sources}
    with Relay(parse_relay(given, folder=tmp_path)) as relay:
        head = HEAD % relay.url
        project.write(GOOD, head=head)
        project.once(spark)
        before = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()}
        project.write(WRONG, head=head)
        events = []
        assert run(project.path, once=True, session=spark, on_event=events.append) != 0
        stopped = {(event["event"], *event["outputs"]) for event in events if event["event"] in ("failed", "refused")}
        assert stopped == {("failed", "copy"), ("failed", "lines"), ("refused", "keyed"), ("failed", "large")}, events
        now = {path: path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()}
        assert {path for path in before if "ledger" not in path.name and before[path] != now.get(path)} == set()
        assert asked == []
        project.write(CHANGED, head=head)
        for _ in range(2):  # the snapshot is in the log by the second run at the latest
            project.once(spark)
    assert sorted(set(asked)) == ["shop/main.orders"]
    assert len(asked) <= 2 * len(OUTPUTS)
    large = project.select("SELECT id FROM orders WHERE total_cents >= 10000")
    assert project.copied("lake/copy/orders", "id") == project.copied("lake/large/orders", "id") == large
    assert project.copied("lake/keyed/orders", "id") == project.select("SELECT id FROM orders")
