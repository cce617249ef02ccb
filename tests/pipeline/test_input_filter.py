"""Filters at the input: the relay leaves rows and columns out, and a copy holds what SELECT says with that WHERE."""

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from databus.core import ControlKind, FatalError, SourceCheckpoint
from databus.filters import FrameFilter, StreamFilter
from databus.flow import StagedBatch, TableControl
from databus.link import RelayClient
from databus.pipeline import compare, load_pipeline, run, validate
from databus.pipeline.comparing._compare_filtered import Behind
from databus.pipeline.engine._plan import plan_queries, way_of
from databus.pipeline.engine._writer import Writer
from databus.pipeline.inputs._databus import DatabusInput
from databus.plugins._output import OutputContext
from databus.relay import Relay, parse_relay
from databus.schema import Column, TableSchema
from databus.sinks.delta._output import DeltaConfig, DeltaOutput
from tests.client.conftest import wait_for
from tests.feeds import feed_of
from tests.pipeline.projects import Project

HEAD = """\
name: shop
sources: {shop: {type: sqlite, path: shop.db}}
inputs: {shop: {type: databus, tables: [shop/main.orders]%s}}
"""
COPY = "outputs: {copy: {type: delta, from: shop, mode: mirror, path: lake/copy%s}}\n"
LARGE = ", where: total_cents > 40000, columns: [id, total_cents]"


def same(project: Project, query: str, columns: tuple[str, ...] = ("id", "total_cents"), path: str = "copy") -> None:
    wanted = project.select(query)
    assert wanted
    assert project.copied(f"lake/{path}/orders", *columns) == wanted


def served(folder: Path) -> Relay:
    sources = {"shop": {"type": "sqlite", "path": str(folder / "shop.db")}}
    return Relay(parse_relay({"listen": "127.0.0.1:0", "folder": "relay", "sources": sources}, folder=folder))


def caught_up(project: Project, relay: Relay) -> None:
    """Wait until the relay's log has all that was written, and no snapshot is open."""
    project.execute("UPDATE customers SET name = name || '!' WHERE id = 1")
    (name,) = project.select("SELECT name FROM customers WHERE id = 1")[0]
    client = RelayClient(relay.url)

    def is_there() -> bool:
        start = client.position("shop", start="earliest")
        with client.stream("shop", start, sources=["main.customers"], wait_ms=0) as stream:
            names = [
                value for groups in stream for group in groups for frame in group.rows
                for value in frame.batch.column("name").to_pylist()
            ]  # fmt: skip
        return name in names and not client.head("shop").published.snapshots

    wait_for(is_there, "the relay to have it")


@pytest.mark.spark
def test_a_mirror_holds_what_select_says_with_that_where_also_after_a_column_with_a_default(
    spark, tmp_path, monkeypatch
):
    asked: list[Any] = []
    read_anew = DatabusInput.read_anew
    monkeypatch.setattr(DatabusInput, "read_anew", lambda *given: asked.append(given[-1]) or read_anew(*given))
    project = Project(tmp_path, "")
    with served(tmp_path) as relay:
        head = HEAD.replace("sources: {shop: {type: sqlite, path: shop.db}}", f"relay: {{url: '{relay.url}'}}")
        project.write(COPY % "", head=head % LARGE)
        project.once(spark)
        same(project, "SELECT id, total_cents FROM orders WHERE total_cents > 40000")
        project.work(30)
        project.execute("UPDATE orders SET total_cents = 50000 WHERE id % 3 = 0")
        project.execute("UPDATE orders SET total_cents = 30000 WHERE id % 3 = 1")
        project.execute("UPDATE orders SET id = id + 100000 WHERE id % 5 = 0")
        caught_up(project, relay)
        project.once(spark)
        same(project, "SELECT id, total_cents FROM orders WHERE total_cents > 40000")
        assert not asked
        found = compare(load_pipeline(project.path), "copy", database=project.database, wait_ms_max=20_000)
        assert found.is_identical
        assert found.rows == len(project.copied("lake/copy/orders", "id"))

        project.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
        caught_up(project, relay)  # else its triggers do not know the column yet, and the table is read again anyway
        project.execute("UPDATE orders SET city = 'Rome' WHERE id % 4 = 0")
        caught_up(project, relay)
        town = ", where: city = 'Bern' AND total_cents > 40000, columns: [id, city]"
        project.write(COPY % ", on_change: continue", head=head % town)
        project.once(spark)
        assert asked == [["shop/main.orders"]], "rows from before were judged by a column that was not there"
        caught_up(project, relay)
        project.once(spark)
        same(project, "SELECT id, city FROM orders WHERE city = 'Bern' AND total_cents > 40000", ("id", "city"))


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.usefixtures("relay_in_thread")
def test_a_column_of_the_condition_that_gets_another_name_ends_the_stream_until_the_condition_has_it(spark, tmp_path):
    project = Project(tmp_path, COPY % "", head=HEAD % LARGE)
    project.once(spark)
    project.execute("ALTER TABLE orders RENAME COLUMN total_cents TO amount")
    project.execute("UPDATE orders SET amount = 60000 WHERE id % 4 = 0")
    events: list[Any] = []
    assert run(project.path, once=True, session=spark, on_event=events.append) != 0
    assert "has no column 'total_cents'" in str(events)
    project.write(COPY % "", head=HEAD % LARGE.replace("total_cents", "amount"))
    events.clear()
    assert run(project.path, once=True, session=spark, on_event=events.append) != 0
    assert "what decides the rows of shop/main.orders" in str(events)
    project.write(COPY % ", on_change: rebuild", head=HEAD % LARGE.replace("total_cents", "amount"))
    project.once(spark)
    same(project, "SELECT id, amount FROM orders WHERE amount > 40000", ("id", "amount"))


def ways(folder: Path, given: str) -> Any:
    (folder / "databus.yml").write_text(HEAD % given + COPY % "")
    graph = load_pipeline(folder / "databus.yml")
    (plan,) = plan_queries(graph, ["shop"])
    node = graph.config.nodes["outputs.copy"]
    return way_of(graph, plan.feeds[0], node.plugin(node.config, OutputContext("shop", "copy", folder)))


def test_an_edit_of_the_filter_is_noticed_and_where_it_is_written_does_not_matter(tmp_path: Path) -> None:
    given = ["", ", where: a > 1", ", where: a > 2", ", where: a > 2, columns: [b]", ", partition: 1/2"]
    found = [ways(tmp_path, each)("shop/main.orders") for each in given]
    assert len({*found}) == len(found)
    elsewhere = ways(tmp_path, ", filters: {main.orders: {where: a > 1}}")
    others = ways(tmp_path, ", filters: {main.users: {where: a > 1}}")
    assert [each("shop/main.orders") for each in (elsewhere, others)] == [found[1], found[0]]


@pytest.mark.parametrize(
    ("given", "path", "said"),
    [
        (", where: total_cent > 1", "inputs.shop.where", "has no column 'total_cent'; did you mean 'total_cents'"),
        (", where: total_cents >", "inputs.shop.where", "character"),
        (', where: "status > 1"', "inputs.shop.where", "status"),
        (", columns: [totals]", "inputs.shop.columns", "has no column 'totals'"),
        (", partition: 3/2", "inputs.shop.partition", "3/2"),
        (", filters: {orders: {where: x = 1}}", "inputs.shop.filters.orders.where", "has no column 'x'"),
        (", filters: {ordrs: {where: id = 1}}", "inputs.shop.filters.ordrs", 'did you mean "orders"'),
        (", filters: {orders: {were: id = 1}}", "inputs.shop.filters.orders.were", "no such option"),
        (", filters: {orders: {where: id =}}", "inputs.shop.filters.orders.where", "character"),
    ],
)
def test_what_does_not_fit_is_told_before_anything_runs(tmp_path: Path, given: str, path: str, said: str) -> None:
    Project(tmp_path, COPY % "", head=HEAD % given)
    problems = [each for each in validate(tmp_path / "databus.yml") if not each.is_warning]
    assert [each.path for each in problems] == [path]
    assert said in problems[0].message


def test_filters_behind_see_the_columns_that_the_input_lets_through(tmp_path: Path) -> None:
    text = "filters: {f: {type: where, from: shop, where: status = 'new'}}\n" + COPY.replace("shop", "f") % ""
    project = Project(tmp_path, text, head=HEAD % ", columns: [status]")
    assert not validate(project.path)
    project.write(text, head=HEAD % ", columns: [total_cents]")
    (problem,) = validate(project.path)
    assert problem.path == "filters.f.where"
    assert 'has no column "status"' in problem.message


SENT = TableSchema("main.orders", (Column("id", "int64", nullable=False), Column("town", "string")), ("id",))
INEXACT = TableControl(SENT, ControlKind.SCHEMA, (7, 1), {"kind": "schema", "exact": False})
BATCH = StagedBatch("shop", SourceCheckpoint(scn=6), SourceCheckpoint(scn=7), (INEXACT,))


def follow(asked: list[Any], *, stops: bool = False) -> Any:
    output = object.__new__(DeltaOutput)
    output.config = DeltaConfig.model_validate({"type": "delta", "from": "shop", "mode": "mirror", "path": "x"})
    handle = SimpleNamespace(output=output, expect_snapshot=lambda physical, names: asked.append((physical, *names)))
    offsets = SimpleNamespace(physical="shop")
    given = {"read_anew": asked.append, "stops_on_filter_change": lambda _: stops}
    writer = Writer("q", [], print, offsets, **given)  # type: ignore[arg-type]
    return writer._for_feed(SimpleNamespace(filters={}), BATCH, feed_of(), handle)  # type: ignore[arg-type]


def test_where_the_relay_judged_by_other_values_the_table_is_read_again_or_the_output_stops() -> None:
    asked: list[Any] = []
    assert follow(asked) == BATCH
    assert asked == [["shop/main.orders"], ("shop", "shop/main.orders")]
    with pytest.raises(FatalError, match=r"shop/main.orders: at SCN 7.*on_filter_change: snapshot"):
        follow(asked, stops=True)


def test_a_comparison_reads_of_each_partition_what_the_relay_sends_of_it() -> None:
    table = TableSchema(
        "main.t", (Column("id", "uint64", nullable=False), Column("a", "int32"), Column("b", "date")), ("id",)
    )
    rows = [(Decimal(number), number % 7 or None, None) for number in range(200)]
    found: list[Any] = []
    for part in range(3):
        behind = Behind(StreamFilter.parse("a > 2", "a", None, f"{part}/3"), "shop", table)
        assert behind.result.names == ("id", "a")
        found.append(list(behind.rows(table.names, rows)))
    assert all(found)
    assert sorted(row for each in found for row in each) == [row[:2] for row in rows if (row[1] or 0) > 2]


def test_a_condition_that_fits_one_table_says_nothing_of_another_with_a_column_of_that_name() -> None:
    """The relay is asked for a definition by its fingerprint, among all that it has."""
    table = TableSchema("main.t", (Column("id", "int64", nullable=False), Column("a", "string")), ("id",))
    assert FrameFilter.over(StreamFilter.parse("a > 2"), "shop", table).after(table) == ()


@pytest.mark.nightly
@pytest.mark.spark
def test_a_typed_branch_follows_too(spark, tmp_path, monkeypatch):
    asked: list[Any] = []
    read_anew = DatabusInput.read_anew
    monkeypatch.setattr(DatabusInput, "read_anew", lambda *given: asked.append(given[-1]) or read_anew(*given))
    project = Project(tmp_path, "")
    small = "filters: {small: {type: sql, from: shop, table: main.orders, where: total_cents < 80000}}\n"
    with served(tmp_path) as relay:
        head = HEAD.replace("sources: {shop: {type: sqlite, path: shop.db}}", f"relay: {{url: '{relay.url}'}}")
        project.write(small + COPY.replace("shop", "small") % "", head=head % LARGE)
        project.once(spark)
        project.execute("UPDATE orders SET total_cents = 50000 WHERE id % 3 = 0")
        project.execute("UPDATE orders SET total_cents = 30000 WHERE id % 3 = 1")
        caught_up(project, relay)
        project.once(spark)
        same(project, "SELECT id, total_cents FROM orders WHERE total_cents > 40000 AND total_cents < 80000")
        assert compare(load_pipeline(project.path), "copy", database=project.database, session=spark).is_identical
        asked.clear()
        project.execute("ALTER TABLE orders ADD COLUMN city TEXT DEFAULT 'Bern'")
        caught_up(project, relay)
        project.execute("UPDATE orders SET city = 'Rome' WHERE id % 4 = 0")
        caught_up(project, relay)
        town = ", where: city = 'Bern' AND total_cents > 40000, columns: [id, total_cents]"
        project.write(small + COPY.replace("shop", "small") % ", on_change: continue", head=head % town)
        project.once(spark)
        assert asked == [["shop/main.orders"]]
        caught_up(project, relay)
        project.once(spark)
        wanted = (
            "SELECT id, total_cents FROM orders WHERE city = 'Bern' AND total_cents > 40000 AND total_cents < 80000"
        )
        same(project, wanted)
