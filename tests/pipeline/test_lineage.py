"""What filters do to columns, and whether a copy behind them can follow a change of the table's schema."""

from pathlib import Path
from typing import Any

import pytest

from databus.flow import CopySteps, Lineage, SchemaAhead
from databus.pipeline.filters._python import PythonConfig, PythonFilter
from databus.pipeline.filters._route import RouteConfig, RouteFilter
from databus.pipeline.filters._sql import SqlConfig, SqlFilter
from databus.schema import Column, SchemaChange, TableSchema

NAMES = ("id", "a", "City")


def sql(**options: Any) -> SqlFilter:
    return SqlFilter(SqlConfig(**{"from": "x", **options}), Path())


def python(**options: Any) -> PythonFilter:
    return PythonFilter(PythonConfig(**{"from": "x", "function": "f.py:f", **options}), Path())


@pytest.mark.parametrize(
    ("options", "columns", "reads"),
    [
        ({"where": "a > 1 AND _seq > 3"}, {"id": "id", "a": "a", "City": "City"}, {"a"}),
        ({"select": "SELECT * FROM t WHERE city = 'Bern'"}, {"id": "id", "a": "a", "City": "City"}, {"City"}),
        ({"select": "SELECT * EXCEPT (A), a + 1 AS b FROM t"}, {"id": "id", "City": "City", "b": None}, {"a"}),
        ({"select": "SELECT o.id, o.CITY AS town FROM t AS o"}, {"id": "id", "town": "City"}, set()),
        ({"select": "SELECT id, upper(city) AS city FROM t"}, {"id": "id", "city": None}, {"City"}),
        ({"select": "SELECT id, 7 AS seven FROM t"}, {"id": "id", "seven": None}, set()),
        (
            {"select": "SELECT id, filter(split(a, ','), each -> each <> '') AS p FROM t"},
            {"id": "id", "p": None},
            {"a"},
        ),
    ],
)
def test_sql_says_which_columns_it_keeps_computes_and_reads(
    options: dict[str, str], columns: dict[str, str | None], reads: set[str]
) -> None:
    found = sql(**options).lineage(NAMES, None)
    assert (found.columns, found.reads) == (columns, reads)


@pytest.mark.parametrize(
    ("select", "key"),
    [
        ("SELECT a, id FROM t", ("id",)),
        ("SELECT id AS number, a AS id FROM t", ("number",)),
        ("SELECT a AS id FROM t", ()),
        ("SELECT id + 0 AS id FROM t", ()),
        ("SELECT a FROM t", ()),
        ("SELECT ID, a FROM t", ("ID",)),
        ("SELECT id AS one, id AS two FROM t", ("one",)),
    ],
)
def test_the_key_behind_a_filter_is_the_column_that_it_was(select: str, key: tuple[str, ...]) -> None:
    assert sql(select=select).lineage(NAMES, None).key(["id"]) == key


def test_of_a_function_the_key_is_what_has_its_name() -> None:
    assert python().lineage(NAMES, None).key(["id"]) == ("id",)
    assert python(columns={"id": "int64"}).lineage(NAMES, None).key(["id"]) == ("id",)
    assert python(columns={"n": "int64"}).lineage(NAMES, None).key(["id"]) == ()


def test_a_column_may_be_made_of_one_before_it() -> None:
    found = sql(select="SELECT id, a + 1 AS b, b + 1 AS c, b AS d, id AS e, e AS f FROM t").lineage(NAMES, None)
    assert found.columns == {"id": "id", "b": None, "c": None, "d": None, "e": "id", "f": "id"}
    assert found.reads == {"a"}


def test_a_column_that_is_not_there_is_named() -> None:
    with pytest.raises(KeyError, match="town"):
        sql(where="town = 'Bern'").lineage(NAMES, None)


def test_a_branch_of_a_route_reads_its_condition_and_the_rest_reads_all() -> None:
    where = {"big": "a > 1", "near": "city = 'Bern'"}
    route = RouteFilter(RouteConfig(**{"from": "x", "where": where, "otherwise": "rest"}), Path())
    assert [route.lineage(NAMES, branch).reads for branch in ("big", "near", "rest")] == [
        {"a"}, {"City"}, {"a", "City"},
    ]  # fmt: skip


def test_filters_behind_one_another_are_told_by_the_table() -> None:
    first = sql(select="SELECT id, a AS b, length(city) AS c FROM t").lineage(NAMES, None)
    both = first.then(sql(select="SELECT id, b AS d, c FROM t WHERE b > 1 AND c > 1").lineage([*first.columns], None))
    assert both.columns == {"id": "id", "d": "a", "c": None}
    assert both.reads == {"a", "City"}
    assert both.then(python().lineage([*both.columns], None)).is_opaque


BEFORE = TableSchema("main.t", (Column("id", "int64"), Column("a", "int32"), Column("b", "int32")), ("id",))


def steps(lineage_of: Any, after: tuple[str, ...], **change: Any) -> CopySteps:
    table = TableSchema("main.t", tuple(Column(name, "int64" if name == "id" else "int32") for name in after), ("id",))
    found = SchemaAhead((SchemaChange((5, 1), BEFORE, table, **change),), lineage_of).steps((4, 9))
    assert found is not None
    return found


def test_a_function_of_the_users_hides_what_becomes_of_renamed_and_filled_columns() -> None:
    def opaque(names: Any) -> Lineage:
        return python().lineage(names, None)

    assert steps(opaque, ("id", "a", "c"), renamed={"b": "c"}).inexact
    assert steps(opaque, ("id", "a", "b", "c"), fill={"c": 7}).inexact
    assert not steps(opaque, ("id", "a", "b", "c"), fill={"c": None}).inexact
    assert not steps(opaque, ("id", "a")).inexact


def test_a_function_that_names_its_columns_follows_what_keeps_its_name() -> None:
    def declared(names: Any) -> Lineage:
        return python(columns={"id": "int64", "sum": "int64"}).lineage(names, None)

    found = steps(declared, ("id", "a", "b", "c"), fill={"c": 7})
    assert (found.moved, found.fill, found.inexact) == ({"id": "id", "sum": "sum"}, {}, [])
    assert steps(declared, ("id", "a", "b"), renamed={"a": "b", "b": "a"}).inexact


def test_changes_that_a_copy_has_followed_are_not_followed_again() -> None:
    change = SchemaChange((5, 1), BEFORE, BEFORE, renamed={"a": "b", "b": "a"})
    ahead = SchemaAhead((change,))
    assert ahead.steps((5, 1)) is None
    found = ahead.steps((5, 0))
    assert found is not None
    assert found.moved == {"id": "id", "a": "b", "b": "a"}
