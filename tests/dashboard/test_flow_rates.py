"""What goes over each edge: from what outputs count, where it can be known."""

import pytest

from databus.dashboard import part_of_file
from databus.dashboard._flow_rates import dropped_by, edge_rates
from tests.dashboard.parts import Pipeline, wait_until
from tests.dashboard.running import Running, token_of
from tests.dashboard.test_alert_config import advanced

COPY = "shop/outputs.copy"


def graph(*edges):
    names = {name for edge in edges for name in edge}
    kinds = {"o": "output", "f": "filter", "i": "input"}
    return {
        "nodes": [{"id": each, "kind": kinds[each[0]]} for each in names if not each.startswith("sources")],
        "edges": [{"from": start, "to": end} for start, end in edges],
    }


def rates(numbers):
    return lambda node: numbers.get(node, {})


def test_rows_become_fewer_from_filter_to_filter():
    told = {
        COPY: {"in_rows_s": 100.0, "in_rows_s_5m": 10.0, "in_bytes_s": 5000.0, "rows_s": 30.0},
        dropped_by(COPY, "filters.a"): {"dropped_s": 60.0, "dropped_s_5m": 6.0},
        dropped_by(COPY, "filters.b"): {"dropped_s": 10.0},
    }
    ways = [
        ("inputs.i", "filters.a"),
        ("filters.a", "filters.b"),
        ("filters.b", "outputs.copy"),
        ("sources.s", "inputs.i"),
    ]
    found = {(each["from"], each["to"]): each for each in edge_rates(graph(*ways), "shop", rates(told))}
    rows = {start: each["rows_s"] for (start, _), each in found.items()}
    assert rows == {"shop/inputs.i": 100.0, "shop/filters.a": 40.0, "shop/filters.b": 30.0}
    assert found["shop/inputs.i", "shop/filters.a"]["bytes_s"] == 5000.0
    assert found["shop/filters.a", "shop/filters.b"]["rows_s_5m"] == 4.0


def test_where_ways_meet_only_what_is_certain_is_said():
    told = {COPY: {"in_rows_s": 100.0, "rows_s": 30.0}}
    ways = [("inputs.i", "filters.a"), ("inputs.j", "filters.a"), ("filters.a", "outputs.copy")]
    (last,) = edge_rates(graph(*ways), "shop", rates(told))
    assert (last["from"], last["rows_s"]) == ("shop/filters.a", 30.0)
    both = [("inputs.i", "outputs.copy"), ("inputs.j", "outputs.copy")]
    assert edge_rates(graph(*both), "shop", rates(told)) == []


def test_an_edge_to_several_outputs_carries_what_the_fastest_reads():
    told = {COPY: {"in_rows_s": 100.0}, "shop/outputs.other": {"in_rows_s": 700.0}}
    ways = [("inputs.i", "filters.a"), ("filters.a", "outputs.copy"), ("filters.a", "outputs.other")]
    found = {(each["from"], each["to"]): each["rows_s"] for each in edge_rates(graph(*ways), "shop", rates(told))}
    assert found["shop/inputs.i", "shop/filters.a"] == 700.0
    assert found["shop/filters.a", "shop/outputs.copy"] == 100.0


def test_the_api_says_what_goes_over_edges_and_what_filters_drop(tmp_path):
    people = [{"name": "ann"}, {"name": "other", "projects": ["other"]}]
    with Pipeline(tmp_path) as shop, Running(tmp_path / "d", [part_of_file(shop.file)], people) as running:

        def told(who="ann"):
            return running.api("/status", token=token_of(who))[1]

        def edges():
            advanced(shop)
            return {(each["from"], each["to"]): each for each in told()["edges"] if each.get("rows_s")}

        found = wait_until(lambda: each if len(each := edges()) == 2 else None)
        before, behind = found["shop/inputs.rows", "shop/filters.big"], found["shop/filters.big", COPY]
        assert behind["rows_s"] == pytest.approx(before["rows_s"] * 0.6, rel=0.01)
        assert before["bytes_s"] == pytest.approx(100 * before["rows_s"], rel=0.01)
        (dropping,) = told()["filters"]
        assert dropping["node"] == "shop/filters.big"
        assert (told("other")["edges"], told("other")["filters"]) == ([], [])
