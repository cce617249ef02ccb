"""What a file becomes: edges and what they carry, branches, queries with stable names, drawings."""

import textwrap
from pathlib import Path

import pytest

from databus.filters import TableChoice, may_select, patterns_of, selections_meet
from databus.pipeline import Shape, load_pipeline, render
from databus.pipeline.engine._plan import plan_queries

FILE = """
name: shop
sources: {shop: {type: mock}, hr: {type: mock}}
inputs:
  all: {type: databus}
  gen: {type: mock}
filters:
  split: {type: route, from: all, tables: {people: [customers, hr/*], money: [orders]}, otherwise: rest}
  big: {type: sql, from: split.money, table: shop/main.orders, where: total > 1000}
  sizes: {type: route, from: big, where: {large: total > 5000}, otherwise: small}
outputs:
  people: {type: mock, from: split.people, lane: one}
  rest: {type: mock, from: [split.rest, split.money], lane: one}
  large: {type: mock, from: sizes.large}
  small: {type: mock, from: [sizes.small, gen]}
"""


@pytest.fixture
def graph(tmp_path: Path):
    path = tmp_path / "databus.yml"
    path.write_text(textwrap.dedent(FILE))
    return load_pipeline(path)


def test_an_edge_turns_typed_where_a_filter_names_a_table(graph):
    shapes = {(edge.source, edge.branch, edge.target): edge.shape for edge in graph.edges}
    assert shapes == {
        ("inputs.all", None, "filters.split"): Shape.TABLES,
        ("filters.split", "people", "outputs.people"): Shape.TABLES,
        ("filters.split", "rest", "outputs.rest"): Shape.TABLES,
        ("filters.split", "money", "outputs.rest"): Shape.TABLES,
        ("filters.split", "money", "filters.big"): Shape.TYPED,
        ("filters.big", None, "filters.sizes"): Shape.TYPED,
        ("filters.sizes", "large", "outputs.large"): Shape.TYPED,
        ("filters.sizes", "small", "outputs.small"): Shape.TYPED,
        ("inputs.gen", None, "outputs.small"): Shape.TYPED,
    }


def test_a_typed_branch_reads_its_table_from_the_start_and_keeps_its_filters(graph):
    (branch,) = graph.branches("outputs.large")
    assert branch.table == "shop/main.orders"
    assert [(step.node, step.branch) for step in branch.steps] == [("filters.big", None), ("filters.sizes", "large")]


def test_queries_are_one_for_each_output_or_lane_and_physical_source(graph):
    plans = {plan.name: plan for plan in plan_queries(graph, ["shop", "hr"])}
    assert sorted(plans) == [
        "lanes/lane-one/all@hr",
        "lanes/lane-one/all@shop",
        "outputs/large/all@shop",
        "outputs/small/all@shop",
        "outputs/small/gen",
    ]
    shared = plans["lanes/lane-one/all@shop"]
    assert [feed.output for feed in shared.feeds] == ["outputs.people", "outputs.rest"]


def test_each_table_goes_to_the_outputs_of_its_branch_and_no_other(graph):
    plans = {plan.name: plan for plan in plan_queries(graph, ["shop", "hr"])}
    people, rest = plans["lanes/lane-one/all@shop"].feeds
    tables = ["shop/main.customers", "hr/main.x", "shop/main.orders", "shop/main.stock"]
    assert [people.selects(each) for each in tables] == [True, True, False, False]
    assert [rest.selects(each) for each in tables] == [False, False, True, True]


def test_the_name_of_a_query_does_not_depend_on_other_nodes(graph, tmp_path):
    path = tmp_path / "more.yml"
    path.write_text(textwrap.dedent(FILE) + "  another: {type: mock, from: all}\n")
    before = {plan.name for plan in plan_queries(graph, ["shop", "hr"])}
    after = {plan.name for plan in plan_queries(load_pipeline(path), ["shop", "hr"])}
    assert before < after


def test_drawings_hold_every_node_and_say_what_edges_carry(graph):
    dot, mermaid = render(graph, "dot"), render(graph, "mermaid")
    for name in ("all", "gen", "split", "big", "sizes", "people", "rest", "large", "small", "shop", "hr"):
        assert f'"{name}\\n' in dot
        assert f'"{name}<br>' in mermaid
    assert '"filters.split" -> "filters.big" [label="money: typed shop/main.orders", style=solid];' in dot
    assert '==>|"people: tables"|' in mermaid


def test_patterns_to_ask_with_are_as_narrow_as_the_choices_allow():
    choices = (TableChoice(("shop/*",)), TableChoice(("shop/main.a*", "hr/*")))
    assert patterns_of(choices) == ("shop/main.a*",)
    assert may_select(choices, "shop/main.abc")
    assert not may_select(choices, "shop/main.b")
    assert not selections_meet(choices, (TableChoice(("main.b*",)),))
    assert selections_meet(choices, (TableChoice(("ab*",)),))
