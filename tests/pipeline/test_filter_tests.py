"""`tests` in a pipeline's file: what passes, what is said of what does not, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from databus.cli._app import app
from databus.core import ConfigError
from databus.pipeline import load_pipeline, run_filter_tests, validate
from databus.testing.shop import create_shop
from tests.pipeline.validated import problems_of, written

HEAD = """
sources: {shop: {type: mock}}
inputs: {shop: {type: databus, tables: [shop/main.*]}}
filters:
  live: {type: where, from: shop, tables: [main.orders], where: total > 10}
  safe: {type: mask, from: live, tables: [main.orders], truncate: {name: 1}}
  split: {type: route, from: safe, tables: {orders: [main.orders]}, otherwise: rest}
  large: {type: sql, from: shop, table: main.orders, select: "SELECT id, total*2 AS twice FROM orders WHERE total > 10"}
outputs:
  copy: {type: delta, from: split.orders, mode: mirror, path: lake/copy}
  rest: {type: mock, from: split.rest}
  lines: {type: files, from: large, format: json, path: out}
"""
COLUMNS = "{id: int64, total: 'decimal(10,2)', name: string, at: timestamptz}"
ORDERS = f"table: main.orders, columns: {COLUMNS}, key: id"
PASSING = f"""
tests:
  leaves:
    {{ {ORDERS}, to: copy,
      rows: [
        {{id: 1, total: "50.00", name: ann, at: "2026-01-31T12:00:00Z"}},
        {{id: 2, total: "5", name: bob}},
        {{_change_type: update_preimage, id: 1, total: "50", name: ann}},
        {{_change_type: update_postimage, id: 1, total: "7", name: ann}},
        {{_change_type: delete, id: 2, total: "5", name: bob}}],
      expect: [
        {{id: 1, total: "50", name: a, at: "2026-01-31T12:00:00Z", _commit_version: 1}},
        {{_change_type: delete, id: 1, total: "50.00", name: a, _commit_version: 3}}] }}
  at_the_filter: {{ {ORDERS}, to: live, rows: [{{id: 1, total: "11"}}], expect: [{{id: 1, total: "11"}}] }}
  at_a_branch: {{ {ORDERS}, to: split.orders, rows: [{{id: 1, total: "1"}}], expect: [] }}
"""
TYPED = f"""
tests:
  large: {{ {ORDERS}, to: lines, rows: [
        {{_change_type: update_preimage, id: 1, total: "50"}}, {{_change_type: update_postimage, id: 1, total: "5"}},
        {{id: 2, total: "20"}}],
      expect: [{{_change_type: delete, id: 1, twice: "100.00"}}, {{id: 2, twice: "40"}}] }}
  wrong: {{ {ORDERS}, to: large, rows: [{{id: 2, total: "20"}}], expect: [{{id: 2, twice: "41"}}] }}
"""


def results_of(folder, tests, **options):
    graph = load_pipeline(written(folder, HEAD + tests))
    return {each.name: each.differences for each in run_filter_tests(graph, **options)}


def one(options, rows, expect):
    return f"\ntests:\n  t: {{ {options}, rows: {json.dumps(rows)}, expect: {json.dumps(expect)} }}\n"


def test_tests_of_filters_over_tables_pass_without_spark(tmp_path, monkeypatch):
    monkeypatch.setattr("databus.spark.tuned_session", lambda *_, **__: pytest.fail("Spark was started"))
    assert results_of(tmp_path, PASSING) == {"leaves": (), "at_the_filter": (), "at_a_branch": ()}


ROW = {"id": 1, "total": "50.00", "name": "a", "at": None}
TEXT = '{"_change_type": "insert", "id": 1, "total": "50.00", "name": "a", "at": null}'
DIFFERENT = [
    ([ROW], [{**ROW, "name": "ann"}], 'expect[0]: name is "a", expected "ann"'),
    ([ROW], [{"id": "1"}], "expect[0].id: '1' is not the JSON form of a int64 (behind the filters)"),
    ([ROW], [], f"not expected: {TEXT}"),
    ([], [ROW], f"expect[0]: missing: {TEXT}"),
    ([ROW, {**ROW, "id": 2}], [{**ROW, "id": 2}], f"not expected: {TEXT}"),
    ([ROW], [{**ROW, "_seq": 7}], "expect[0]: _seq is 1, expected 7"),
    ([ROW], [{**ROW, "_change_type": "delete"}], 'expect[0]: _change_type is "insert", expected "delete"'),
    ([ROW], [{"nmae": "a"}], 'expect[0]: main.orders has no column nmae; did you mean "name"? (behind the filters)'),
]


@pytest.mark.parametrize(("rows", "expect", "told"), DIFFERENT)
def test_what_differs_is_said_row_by_row_and_column_by_column(tmp_path, rows, expect, told):
    assert results_of(tmp_path, one(f"{ORDERS}, to: copy", rows, expect)) == {"t": (told,)}


def test_a_filter_that_refuses_the_table_fails_its_test_and_says_why(tmp_path):
    options = "table: main.orders, columns: {id: int64, total: string, name: string}, key: id, to: copy"
    (line,) = results_of(tmp_path, one(options, [], []))["t"]
    assert line.startswith("filters.live: shop/main.orders: character 9: column 'total' is text")


def test_a_long_list_of_differences_is_cut_and_counted(tmp_path):
    rows = [{**ROW, "id": number} for number in range(50)]
    found = results_of(tmp_path, one(f"{ORDERS}, to: copy", rows, []))["t"]
    assert len(found) == 21
    assert found[-1] == "and 30 more"


def test_the_columns_of_a_table_in_a_sqlite_file_need_not_be_said(tmp_path):
    create_shop(tmp_path / "shop.db", customers=1, products=1, orders=0)
    text = """
    sources: {shop: {type: sqlite, path: shop.db}}
    inputs: {shop: {type: databus}}
    filters: {live: {type: where, from: shop, tables: [main.orders], where: total_cents > 10}}
    outputs: {copy: {type: delta, from: live, mode: mirror, path: lake}}
    tests: {t: {table: main.orders, to: copy, rows: [{id: 1, total_cents: 11}], expect: [{id: 1, total_cents: 11}]}}
    """
    graph = load_pipeline(written(tmp_path, text))
    assert [each.is_passed for each in run_filter_tests(graph)] == [True]


@pytest.mark.parametrize(
    ("options", "rows", "told"),
    [
        (f"{ORDERS}, to: cpoy", [], 'tests.t.to: no output or filter called "cpoy"; did you mean "copy"?'),
        (f"{ORDERS}, to: split", [], 'tests.t.to: no output or filter called "split"; did you mean "split.'),
        (f"{ORDERS}, to: rest", [], "tests.t.to: no row of shop/main.orders comes to rest"),
        (f"{ORDERS}, to: copy, from: x", [], 'tests.t.from: no input called "x"; there are shop'),
        (f"{ORDERS}, to: copy", [{"idd": 1}], 'tests.t.rows[0]: main.orders has no column idd; did you mean "id"?'),
        (f"{ORDERS}, to: copy", [{"id": "x"}], "tests.t.rows[0].id: 'x' is not the JSON form of a int64"),
        (f"{ORDERS}, to: copy", [{"_change_type": "upsert"}], "tests.t.rows[0]._change_type: 'upsert' is none"),
        ("table: main.orders, to: copy", [], "tests.t.columns: missing: databus knows the columns of"),
        ("table: main.orders, columns: {id: int65}, to: copy", [], "tests.t.columns.id: "),
        ("table: main.orders, columns: {id: int64}, key: none, to: copy", [], "tests.t.columns: main.orders: key"),
        ("table: main.orders, to: copy, wrong: 1", [], "tests.t.wrong: "),
    ],
)  # fmt: skip
def test_a_test_that_makes_no_sense_is_named_with_its_place(tmp_path, options, rows, told):
    found = problems_of(tmp_path, HEAD + one(options, rows, []))
    assert [each for each in found if each.startswith(told)], found


def test_mistakes_in_tests_are_warnings_and_all_of_them_errors_of_the_command(tmp_path):
    """The table may have changed since they were written, and the pipeline has to start all the same."""
    path = written(tmp_path, HEAD + PASSING.replace("id: 1, total: ", "id: 1, totl: ").replace("to: live", "to: lvie"))
    mistakes = ["tests.at_a_branch.rows[0]: ", "tests.at_the_filter.to: ", "tests.leaves.rows[0]: "]
    found = validate(path)
    assert all(problem.is_warning for problem in found)
    for problem, mistake in zip(found, mistakes, strict=True):
        assert str(problem).startswith(mistake)
    graph = load_pipeline(path)
    with pytest.raises(ConfigError) as error:
        list(run_filter_tests(graph))
    assert sorted(str(error.value).splitlines()) == sorted(
        str(each.in_file(path)).replace("warning: ", "") for each in found
    )


def test_the_command_says_what_failed_and_leaves_with_1(tmp_path):
    text = PASSING + f"  wrong: {{ {ORDERS}, to: copy, rows: [{{id: 1, total: '50'}}], expect: [] }}\n"
    path = str(written(tmp_path, HEAD + text))
    found = CliRunner().invoke(app, ["test", path])
    assert found.exit_code == 1
    assert "passed  leaves  (main.orders to copy)" in found.stdout
    assert "FAILED  wrong  (main.orders to copy)\n        not expected: " in found.stdout
    assert found.stdout.endswith("3 passed, 1 failed\n")
    found = CliRunner().invoke(app, ["test", path, "--json", "--only", "wrong", "--only", "leaves"])
    told = json.loads(found.stdout)
    assert [(each["test"], each["passed"], len(each["differences"])) for each in told] == [
        ("leaves", True, 0),
        ("wrong", False, 1),
    ]
    assert CliRunner().invoke(app, ["test", path, "--only", "leaves"]).exit_code == 0


def test_a_name_that_is_none_and_a_file_without_tests_are_errors(tmp_path):
    with pytest.raises(ConfigError, match='no test called "leavs"; did you mean "leaves"'):
        results_of(tmp_path, PASSING, only=["leavs"])
    with pytest.raises(ConfigError, match="has no `tests`"):
        results_of(tmp_path, "")


@pytest.mark.spark
def test_filters_of_typed_rows_run_in_spark(spark, tmp_path):
    found = results_of(tmp_path, TYPED, session=spark)
    assert found == {"large": (), "wrong": ('expect[0]: twice is "40.00", expected "41.00"',)}


def test_a_start_of_spark_is_said_before_it_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    monkeypatch.setattr("databus.spark.tuned_session", lambda *_, **__: pytest.fail("after it was said"))
    said = []
    with pytest.raises(pytest.fail.Exception, match="after it was said"):
        results_of(tmp_path, TYPED, on_start=said.append)
    assert [text.partition(":")[0] for text in said] == ["starting Spark"]
