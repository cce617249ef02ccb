"""What a reload finds changed: pure, from pairs of files."""

import threading

import pytest

from databus.core import FatalError, ServiceUnavailable
from databus.pipeline import load_pipeline
from databus.pipeline.engine._plan import plan_queries
from databus.pipeline.running import _reload
from databus.pipeline.running._reload import Handed
from databus.pipeline.running._reload_changes import ReloadChanges, changes, refusals

FILE = """\
name: shop
relay: {url: 'http://127.0.0.1:9'}
run: {trigger_ms: 0}
inputs:
  one: {type: databus, tables: [shop/*]}
  two: {type: databus, tables: [hr/*]}
filters:
  pick: {type: where, from: one, tables: [main.orders], where: id > 1}
  split: {type: route, from: two, tables: {staff: [main.staff], rest: [main.pay]}}
outputs:
  plain: {type: files, path: out/plain, from: one}
  picked: {type: files, path: out/picked, from: pick}
  staff: {type: files, path: out/staff, from: split.staff}
  rest: {type: files, path: out/rest, from: split.rest}
  left: {type: files, path: out/left, from: one, lane: both}
  right: {type: files, path: out/right, from: two, lane: both}
"""
ALL = {"plain", "picked", "staff", "rest", "left", "right"}


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("id > 1", "id > 2", {"picked"}),
        ("rest: [main.pay]", "rest: [main.wages]", {"rest"}),
        ("tables: [shop/*]", "tables: [shop/main.*]", {"plain", "picked", "left", "right"}),
        (
            "from: one, lane: both}",
            "from: pick, lane: both}",
            {"left", "right"},
        ),
        ("from: two, lane: both}", "from: two}", {"left", "right"}),
        ("trigger_ms: 0", "trigger_ms: 5", ALL),
        ("trigger_ms: 0", "write_ms_max: 5000", set()),
        ("outputs:", "tests: {}\n# a comment\noutputs:", set()),
    ],
)
def test_outputs_change_by_what_decides_their_rows_and_with_their_lane(tmp_path, old, new, changed):
    assert old in FILE
    found = _found(tmp_path, FILE.replace(old, new))
    assert set(found.changed) == changed
    assert set(found.unchanged) == ALL - changed
    assert not found.added
    assert not found.removed


def test_what_was_added_and_taken_out_is_told(tmp_path):
    found = _found(tmp_path, FILE.replace("plain:", "plainer:"))
    assert (found.added, found.removed, set(found.unchanged)) == (("plainer",), ("plain",), ALL - {"plain"})


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("name: shop", "name: shops", "name"),
        ("name: shop", "name: shop\nstate: here", "state"),
        ("127.0.0.1:9", "127.0.0.1:10", "relay.url"),
        ("name: shop", "name: shop\nspark: {settings: {spark.ui.port: '4050'}}", "spark.settings"),
        ("trigger_ms: 0", "http: '127.0.0.1:0'", "run.http"),
    ],
)
def test_what_would_lose_its_place_is_refused_with_what_to_do(tmp_path, old, new, place):
    found = refusals(_graph(tmp_path, "a.yml", FILE).config, _graph(tmp_path, "b.yml", FILE.replace(old, new)).config)
    assert place in [each.path for each in found]
    assert "`databus stop`" in found[0].message


def test_work_that_nobody_takes_in_time_is_withdrawn_and_never_done(monkeypatch):
    monkeypatch.setattr(_reload, "_TAKE_S_MAX", 0.01)
    done = threading.Event()

    def do() -> ReloadChanges:
        done.set()
        return ReloadChanges()

    handed = Handed(do)
    with pytest.raises(ServiceUnavailable, match="Nothing has changed"):
        handed.wait()
    handed.take()
    assert not done.is_set()


def test_a_defect_in_what_is_handed_over_is_an_answer_and_does_not_end_who_takes_it():
    def do() -> ReloadChanges:
        raise ValueError("a plugin's own")

    handed = Handed(do)
    handed.take()
    with pytest.raises(FatalError, match="ValueError: a plugin's own"):
        handed.wait()


def _graph(folder, name, text):
    path = folder / name
    path.write_text(text)
    return load_pipeline(path)


def _found(folder, text):
    old, new = _graph(folder, "a.yml", FILE), _graph(folder, "b.yml", text)
    physicals = ["shop", "hr"]
    return changes(old, plan_queries(old, physicals), new, plan_queries(new, physicals))
