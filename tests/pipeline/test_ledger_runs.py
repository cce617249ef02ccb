"""Pipelines begin where their ledgers say, whatever was removed, renamed, replaced or restored meanwhile."""

import json
import re
import shutil

import pytest
from deltalake import DeltaTable

from databus.core import (
    CorruptData,
    InputError,
    PositionForeign,
)
from databus.pipeline import compare, load_pipeline, rebuild, run
from databus.relay import Relay, parse_relay
from databus.testing.shop import create_shop
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

LARGE = "lake/large/orders"
FILTERED = """
filters: {large: {type: sql, from: shop, table: main.orders, where: total_cents >= 0}}
outputs: {large: {type: delta, from: large, mode: history, path: lake/large}}
"""
LATEST = HEAD.replace("tables: [shop/main.*]", "tables: [shop/main.*], starting_version: latest")
BOTH = """
outputs:
  copy: {type: delta, from: shop, mode: mirror, path: lake/copy}
  history: {type: delta, from: shop, mode: history, path: lake/history}
"""


def rewrite(project, sections, head=HEAD):
    project.path.write_text(head + sections)


@pytest.mark.spark
def test_a_renamed_filter_after_latest_leaves_nothing_out(spark, tmp_path):
    project = Project(tmp_path, FILTERED, head=LATEST)
    project.once(spark)
    last = project.select("SELECT max(id) FROM orders")[0][0]
    project.work(60)
    rewrite(
        project, FILTERED.replace("large: {type: sql", "big: {type: sql").replace("from: large", "from: big"), LATEST
    )
    project.once(spark)
    made = {row[0] for row in project.select(f"SELECT id FROM orders WHERE id > {last}")}
    assert made
    assert made <= {row[0] for row in project.copied(LARGE, "id")}


def test_a_lake_that_was_removed_is_made_whole_again(engine, tmp_path):
    project = Project(tmp_path, BOTH)
    project.once(engine)
    project.work(20)
    project.once(engine)
    shutil.rmtree(tmp_path / "lake")
    project.work(5)
    project.once(engine)
    project.assert_history_is_whole("lake/history", "orders", "id")
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical


def test_a_table_that_was_restored_from_a_backup_is_missed_though_nothing_changes(engine, tmp_path):
    project = Project(tmp_path, BOTH)
    project.once(engine)
    orders, backup = tmp_path / "lake/copy/orders", tmp_path / "backup"
    shutil.copytree(orders, backup)
    project.execute("UPDATE orders SET total_cents = total_cents + 1")
    project.once(engine)
    shutil.rmtree(orders)
    backup.rename(orders)
    code, events = run_once(project, engine)
    assert code == CorruptData.exit_code
    said = r"copy of shop/main.orders holds changes up to \(\d+, .*had come to \(\d+, .*rebuild FILE copy shop/main"
    assert re.search(said, told(events))
    rebuild(load_pipeline(project.path), "copy", ["shop/main.orders"], confirm=lambda _: True)
    read_whole(project, engine, "copy")


def test_a_ledger_that_was_removed_leaves_nothing_out_where_the_options_say_latest(engine, tmp_path):
    """The tables say where they stand."""
    sections = "outputs: {history: {type: delta, from: shop, mode: history, path: lake/history}}\n"
    project = Project(tmp_path, sections, head=LATEST)
    project.once(engine)
    project.execute("UPDATE orders SET total_cents = total_cents + 1")
    project.once(engine)
    ledger_of(tmp_path, "history").unlink()
    project.execute("UPDATE orders SET total_cents = total_cents + 1")
    project.once(engine)
    versions = {row[0] for row in project.copied("lake/history/orders", "_commit_version")}
    assert len(versions) == 2


def test_tables_of_another_database_without_their_ledger_are_not_gone_on_with(engine, tmp_path):
    (tmp_path / "other").mkdir()
    one, two = Project(tmp_path, BOTH), Project(tmp_path / "other", BOTH, seed=8)
    one.once(engine)
    (tmp_path / "lake").rename(tmp_path / "other/lake")
    for output in ("copy", "history"):
        ledger_of(tmp_path / "other", output).unlink()
    code, events = run_once(two, engine)
    assert code == PositionForeign.exit_code
    assert re.search(r"a position in another database.*databus rebuild FILE copy", told(events), re.S)


@pytest.mark.spark
def test_a_filter_in_the_way_of_a_table_after_latest_leaves_nothing_out(spark, tmp_path):
    way = "outputs: {out: {type: delta, from: %s, mode: history, path: lake/out, on_change: continue}}\n"
    head = LATEST.replace("main.*", "main.orders")
    project = Project(tmp_path, way % "shop", head=head)
    project.once(spark)
    for source in ("all", "shop", "all"):
        last = project.select("SELECT max(id) FROM orders")[0][0]
        filters = (
            "filters: {all: {type: sql, from: shop, table: main.orders, where: 1 = 1}}\n" if source == "all" else ""
        )
        rewrite(project, filters + way % source, head)
        project.work(40)
        project.once(spark)
        made = project.select(f"SELECT id FROM orders WHERE id > {last}")
        assert made
        assert set(made) <= set(project.copied("lake/out/orders", "id"))


CHANGED = """
filters: {large: {type: sql, from: shop, table: main.orders, where: %s}}
outputs: {large: {type: delta, from: large, mode: %s, path: lake/large%s}}
"""


@pytest.mark.spark
@pytest.mark.parametrize("now", [("total_cents < 20000", "mirror"), ("total_cents >= 0", "history")])
def test_rows_of_another_filter_or_mode_are_not_mixed(spark, tmp_path, now):
    project = Project(tmp_path, CHANGED % ("total_cents >= 0", "mirror", ""))
    project.once(spark)
    rewrite(project, CHANGED % (*now, ""))
    code, events = run_once(project, spark)
    assert code == InputError.exit_code
    assert re.search(
        r"what decides the rows of shop/main.orders.*rebuild FILE large main.orders.*on_change: rebuild", told(events)
    )


@pytest.mark.spark
def test_a_table_whose_filter_was_changed_is_made_anew_where_that_is_wished(spark, tmp_path):
    project = Project(tmp_path, CHANGED % ("total_cents >= 0", "mirror", ""))
    project.once(spark)
    assert project.select("SELECT count(*) FROM orders WHERE total_cents >= 20000") != [(0,)]
    rewrite(project, CHANGED % ("total_cents < 20000", "mirror", ", on_change: rebuild"))
    read_whole(project, spark, "large")
    small = project.select("SELECT id FROM orders WHERE total_cents < 20000")
    assert project.copied(LARGE, "id") == small
    project.once(spark)
    assert project.copied(LARGE, "id") == small


def test_rows_of_another_filter_stay_where_that_is_wished(engine, tmp_path):
    where = "filters: {some: {type: where, from: shop, tables: [main.orders], where: '%s'}}\n"
    out = "outputs: {out: {type: delta, from: some, mode: history, path: lake/out, on_change: continue}}\n"
    project = Project(tmp_path, where % "total_cents >= 0" + out)
    project.once(engine)
    first = project.copied("lake/out/orders", "id")
    rewrite(project, where % "total_cents < 0" + out)
    project.work(20)
    project.once(engine)
    assert project.copied("lake/out/orders", "id") == first


def test_an_output_whose_ledger_cannot_be_read_is_made_anew(engine, tmp_path):
    project = Project(tmp_path, BOTH)
    project.once(engine)
    ledger_of(tmp_path, "copy").write_text("torn")
    code, events = run_once(project, engine)
    assert code == CorruptData.exit_code
    assert "databus rebuild FILE copy" in told(events)
    asked = []
    rebuild(load_pipeline(project.path), "copy", confirm=lambda names: asked.extend(names) or True)
    assert "shop/main.orders" in asked
    read_whole(project, engine, "copy")


def read_whole(project, session, output):
    """Run it until nothing is incomplete; then it must be identical."""
    path = ledger_of(project.folder, output)
    with project.running(session) as running:
        running.wait_for(lambda: json.loads(path.read_text())["positions"], "its begin")
        running.wait_for(lambda: not position_in(path)["seeds"], "the end of its snapshots")
    project.once(session)
    assert compare(load_pipeline(project.path), output, wait_ms_max=5_000).is_identical


def test_files_are_not_written_again_when_the_state_is_gone(engine, tmp_path):
    project = Project(tmp_path, "outputs: {out: {type: files, from: shop, path: out, format: json}}\n")
    project.once(engine)
    project.work(20)
    project.once(engine)
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.jsonl"))
    shutil.rmtree(project.state)
    project.once(engine)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.jsonl")) == names
    told = json.loads((tmp_path / "out" / ".databus-shop-out.ledger.json").read_text())
    assert told["positions"]["shop"]["tables"] == [[[["shop/main.*"], []]]]


@pytest.mark.spark
def test_outputs_go_on_where_the_state_was_removed_while_they_were_written(spark, tmp_path):
    """Spark makes its folders again, with what comes next, and without the metadata that it wants to see at a start."""
    project = Project(tmp_path, BOTH)
    project.once(spark)
    project.work(20)
    removed = [each for each in project.state.rglob("*") if each.name == "metadata"]
    assert len(removed) == 2
    for each in removed:
        each.unlink()
    project.once(spark)
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical
    project.assert_history_is_whole("lake/history", "orders", "id")


def test_an_output_of_a_lane_that_cannot_go_on_is_named_though_the_other_begins_anew(engine, tmp_path):
    lane = BOTH.replace("lake/copy", "lake/copy, lane: all").replace("lake/history", "lake/history, lane: all")
    project = Project(tmp_path, lane)
    project.once(engine)
    shutil.rmtree(tmp_path / ".databus")
    project.execute("DELETE FROM orders WHERE id NOT IN (SELECT order_id FROM order_lines)")
    project.work(10)
    rebuild(load_pipeline(project.path), "copy", (), confirm=lambda _: True)
    events = []
    assert run(project.path, once=True, session=engine, on_event=events.append) != 0
    said = [event["message"] for event in events if event["event"] == "failed"]
    assert "databus rebuild FILE history" in said[0]
    rebuild(load_pipeline(project.path), "history", (), confirm=lambda _: True)
    project.once(engine)
    project.assert_history_is_whole("lake/history", "orders", "id")


def test_an_output_that_joins_a_lane_later_lacks_nothing(engine, tmp_path):
    one = "  copy: {type: delta, from: shop, mode: mirror, path: lake/copy, lane: all}\n"
    other = "  history: {type: delta, from: shop, mode: history, path: lake/history, lane: all}\n"
    project = Project(tmp_path, "")
    rewrite(project, f"outputs:\n{one}")
    project.once(engine)
    project.work(20)
    rewrite(project, f"outputs:\n{one}{other}")
    project.once(engine)
    project.assert_history_is_whole("lake/history", "orders", "id")
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical


TWO = """\
name: shop
sources: {{shop: {{type: sqlite, path: {database}}}}}
inputs: {{shop: {{type: databus, tables: [{tables}]}}}}
outputs:
  copy: {{type: delta, from: shop, mode: mirror, path: {lake}/copy}}
  history: {{type: delta, from: shop, mode: history, path: {lake}/history}}
"""


def run_once(project, session):
    events = []
    return run(project.path, once=True, session=session, on_event=events.append), events


def told(events):
    return " ".join(str(each["message"]) for each in events if each["event"] == "failed")


FILTER = """
filters: {{large: {{type: sql, from: shop, table: main.orders, where: total_cents > {least}}}}}
outputs: {{large: {{type: delta, from: large, mode: {mode}, path: lake/large{more}}}}}
"""


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_filter_that_was_changed_is_noticed_though_the_ledger_is_gone(spark, tmp_path, mode):
    project = Project(tmp_path, FILTER.format(least=20_000, mode=mode, more=""))
    project.once(spark)
    (ledger,) = (tmp_path / "lake/large").glob("*.ledger.json")
    ledger.unlink()
    project.once(spark)  # what has not changed goes on

    ledger.unlink()
    project.write(FILTER.format(least=10_000, mode=mode, more=""))
    project.work(5)
    code, events = run_once(project, spark)
    assert code == InputError.exit_code
    assert "what decides the rows of shop/main.orders" in told(events)

    project.write(FILTER.format(least=10_000, mode=mode, more=", on_change: rebuild"))
    ledger.unlink()
    project.once(spark)
    wanted = {row[0] for row in project.select("SELECT id FROM orders WHERE total_cents > 10000")}
    assert wanted <= {row[0] for row in project.copied(LARGE, "id")}


def test_the_copies_of_another_database_are_not_gone_on_with(engine, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = Project(tmp_path / "one", ""), Project(tmp_path / "two", "", seed=8)
    for project in (one, two):
        project.path.write_text(TWO.format(database="shop.db", tables="shop/main.*", lake=tmp_path / "lake"))
    one.once(engine)
    code, events = run_once(two, engine)
    assert code == PositionForeign.exit_code
    assert re.search(r"is a position in .*ledger.json.*another `path`.*databus rebuild FILE copy", told(events), re.S)
    assert compare(load_pipeline(one.path), "copy", wait_ms_max=5_000).is_identical


@pytest.mark.parametrize("runs", [1, 3])
def test_the_copies_of_a_database_with_more_or_as_many_changes_are_not_taken_for_done(engine, tmp_path, runs):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = Project(tmp_path / "one", ""), Project(tmp_path / "two", "", seed=8)
    for project in (one, two):
        project.path.write_text(TWO.format(database="shop.db", tables="shop/main.*", lake="lake"))
    for project, rounds in ((one, runs), (two, 1)):
        for _ in range(rounds):
            project.once(engine)
            project.execute("UPDATE orders SET total_cents = total_cents + 1")
        project.once(engine)
    shutil.rmtree(tmp_path / "two/lake")
    (tmp_path / "one/lake").rename(tmp_path / "two/lake")
    code, events = run_once(two, engine)
    assert code == PositionForeign.exit_code
    assert "databus rebuild FILE copy" in told(events)


def test_a_table_that_is_chosen_later_is_read_anew(engine, tmp_path):
    project = Project(tmp_path, "")
    project.path.write_text(TWO.format(database="shop.db", tables="main.orders", lake="lake"))
    project.once(engine)
    project.work(10)
    project.once(engine)
    project.path.write_text(TWO.format(database="shop.db", tables="main.orders, main.stock", lake="lake"))
    project.work(10)
    with project.running(engine) as running:
        path = tmp_path / "lake" / "copy" / ".databus-shop-copy.ledger.json"
        running.wait_for(lambda: "shop/main.stock" in position_in(path)["marks"], "the table")
        running.wait_for(lambda: not position_in(path)["seeds"], "the end of its snapshot")
    project.once(engine)
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical
    columns = "product_id", "quantity"
    alive = project.copied("lake/history/stock", *columns)
    assert set(project.select(f"SELECT {', '.join(columns)} FROM stock")) <= set(alive)


def position_in(path):
    (found,) = json.loads(path.read_text())["positions"].values()
    return found


@pytest.mark.parametrize("tables", [(), ("main.orders",)])
def test_an_output_is_made_anew_where_one_asks_for_it(engine, tmp_path, tables):
    project = Project(tmp_path, BOTH)
    project.once(engine)
    wrong = DeltaTable(tmp_path / "lake/copy/orders")
    wrong.delete("id < 20")
    project.work(10)
    asked = []
    rebuild(load_pipeline(project.path), "copy", tables, confirm=lambda names: asked.extend(names) or True)
    assert "shop/main.orders" in asked
    assert len(asked) == 1 or not tables
    assert not (tmp_path / "lake/copy/orders").exists()
    path = tmp_path / "lake" / "copy" / ".databus-shop-copy.ledger.json"
    with project.running(engine) as running:
        running.wait_for(lambda: json.loads(path.read_text())["positions"], "its begin")
        running.wait_for(lambda: not position_in(path)["seeds"], "the end of its snapshot")
        running.wait_for(lambda: "shop/main.orders" in position_in(path)["marks"], "its tables")
    project.once(engine)
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical


def relay_of(folder, names, listen):
    sources = {name: {"type": "sqlite", "path": f"{name}.db"} for name in names}
    return Relay(parse_relay({"listen": listen, "folder": "log", "sources": sources}, folder=folder))


def test_a_source_that_a_relay_elsewhere_gets_later_is_read(engine, tmp_path):
    project = Project(tmp_path, "")
    create_shop(tmp_path / "more.db", customers=4, products=3, orders=5, seed=8)
    head = "name: shop\nrelay: {{url: '{url}'}}\ninputs: {{all: {{type: databus}}}}\n"
    out = "outputs: {copy: {type: delta, from: all, mode: mirror, path: 'lake/{physical}/{table}'}}\n"
    with relay_of(tmp_path, ["shop"], "127.0.0.1:0") as relay:
        url = relay.url
        project.path.write_text(head.format(url=url) + out)
        with project.running(engine) as running:
            running.event(event="batch", output="copy")
            relay.stop()
            with relay_of(tmp_path, ["shop", "more"], url.split("/")[2]):
                running.wait_for((tmp_path / "lake/more/orders/_delta_log").exists, "the other source")
                running.wait_for(lambda: len(project.copied("lake/more/orders", "id")) == 5, "its rows")


def test_a_new_output_has_what_the_relay_no_longer_has_read_anew(engine, tmp_path):
    project = Project(tmp_path, "relay: {log: {segment_bytes_max: 65536, retention_bytes_max: 300000}}\n" + BOTH)
    with project.running(engine) as running:
        for count in range(1, 13):
            for output in ("copy", "history"):
                running.wait_for(lambda o=output, c=count: scn_of(ledger_of(tmp_path, o)) >= c, f"SCN {count}")
            project.execute("UPDATE orders SET placed_at = hex(randomblob(200))")
    project.once(engine)
    later = "  later: {type: delta, from: shop, mode: mirror, path: lake/later}\n"
    project.path.write_text(project.path.read_text() + later)
    with project.running(engine) as running:
        running.wait_for(lambda: scn_of(ledger_of(tmp_path, "later")), "its begin")
        running.wait_for(lambda: not position_in(ledger_of(tmp_path, "later"))["seeds"], "the end of its snapshot")
    project.once(engine)
    for output in ("copy", "later"):
        assert compare(load_pipeline(project.path), output, wait_ms_max=5_000).is_identical


def ledger_of(folder, output):
    return folder / "lake" / output / f".databus-shop-{output}.ledger.json"


def scn_of(path):
    positions = json.loads(path.read_text())["positions"] if path.exists() else {}
    return positions["shop"]["at"]["scn"] if positions else 0
