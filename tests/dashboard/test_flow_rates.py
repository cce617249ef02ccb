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
        "nodes": [
            {"id": each, "kind": kinds[each[0]], "name": each.partition(".")[2]}
            for each in names
            if not each.startswith("sources")
        ],
        "edges": [{"from": start, "to": end} for start, end in edges],
    }


def rates(ways, numbers):
    """By edge, without the name of the pipeline."""
    dropped = {node.partition(" ")[2]: 1 for node in numbers if " " in node}
    outputs = {"copy": {"flow": {"dropped": dropped}}}
    found = edge_rates(graph(*ways), outputs, "shop", lambda node: numbers.get(node, {}))
    return {(each["from"].removeprefix("shop/"), each["to"].removeprefix("shop/")): each for each in found}


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
    found = rates(ways, told)
    rows = {start: each["rows_s"] for (start, _), each in found.items()}
    assert rows == {"inputs.i": 100.0, "filters.a": 40.0, "filters.b": 30.0}
    assert found["inputs.i", "filters.a"]["bytes_s"] == 5000.0
    assert found["filters.a", "filters.b"]["rows_s_5m"] == 4.0


def test_edges_are_known_up_to_where_ways_meet_and_none_is_wrong():
    told = {
        COPY: {"in_rows_s": 100.0, "in_bytes_s": 9.0, "rows_s": 30.0},
        dropped_by(COPY, "filters.a"): {"dropped_s": 50.0},
        dropped_by(COPY, "filters.b"): {"dropped_s": 20.0},
        dropped_by(COPY, "filters.x"): {"dropped_s": 7.0},
    }
    last = [("filters.a", "filters.b"), ("filters.b", "outputs.copy")]
    meet = [("inputs.i", "filters.x"), ("filters.x", "filters.a"), ("inputs.j", "filters.a"), *last]
    rows = {edge: each["rows_s"] for edge, each in rates(meet, told).items()}
    assert rows == {("filters.a", "filters.b"): 43.0, ("filters.b", "outputs.copy"): 23.0}
    both = [("inputs.i", "outputs.copy"), ("inputs.j", "outputs.copy")]
    assert rates(both, told) == {}
    part = [
        ("inputs.i", "filters.x"),
        *((start, end) for start in ("filters.x",) for end in ("filters.l", "filters.r")),
        *((start, "filters.a") for start in ("filters.l", "filters.r")),
        *last,
    ]
    found = rates(part, told)
    assert {edge: each["rows_s"] for edge, each in found.items()} == {**rows, ("inputs.i", "filters.x"): 100.0}
    assert found["inputs.i", "filters.x"]["bytes_s"] == 9.0


def test_between_filters_that_count_together_nothing_is_said():
    told = {COPY: {"in_rows_s": 100.0}, dropped_by(COPY, "filters.a + filters.b"): {"dropped_s": 70.0}}
    ways = [("inputs.i", "filters.a"), ("filters.a", "filters.b"), ("filters.b", "outputs.copy")]
    rows = {edge: each["rows_s"] for edge, each in rates(ways, told).items()}
    assert rows == {("inputs.i", "filters.a"): 100.0, ("filters.b", "outputs.copy"): 30.0}


def test_of_an_earlier_version_the_last_edge_has_what_was_written():
    ways = [("inputs.i", "filters.a"), ("filters.a", "outputs.copy")]
    rows = {edge: each["rows_s"] for edge, each in rates(ways, {COPY: {"rows_s": 30.0}}).items()}
    assert rows == {("filters.a", "outputs.copy"): 30.0}


def test_an_edge_to_several_outputs_carries_what_the_fastest_reads():
    told = {COPY: {"in_rows_s": 100.0}, "shop/outputs.other": {"in_rows_s": 700.0}}
    ways = [("inputs.i", "filters.a"), ("filters.a", "outputs.copy"), ("filters.a", "outputs.other")]
    found = {edge: each["rows_s"] for edge, each in rates(ways, told).items()}
    assert found["inputs.i", "filters.a"] == 700.0
    assert found["filters.a", "outputs.copy"] == 100.0


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
