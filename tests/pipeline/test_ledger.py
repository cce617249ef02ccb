"""Outputs know how far they have come: whatever becomes of the pipeline's state, its file or its lake, no gap."""

import json
import re
import shutil
from dataclasses import replace

import pytest
from deltalake import DeltaTable

from databus.core import (
    Checkpoint,
    ConfigError,
    ControlKind,
    CorruptData,
    InputError,
    LockHeld,
    PositionForeign,
    SourceCheckpoint,
    UnsupportedFeature,
)
from databus.pipeline import compare, load_pipeline, rebuild, run
from databus.pipeline._contract import Place
from databus.pipeline._handle import Bringing, OutputHandle
from databus.pipeline._ledger import Entry, Ledger, Stream
from databus.pipeline._tables import TableChoice
from databus.pipeline.outputs import read_delta
from databus.relay import Relay, parse_relay
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing.shop import create_shop
from tests.outputs.harnesses import DeltaHarness
from tests.pipeline.projects import HEAD, Project

LARGE = "lake/large/orders"


def at(scn):
    return Checkpoint({"shop": SourceCheckpoint(uuid="u", scn=scn, txid=f"t{scn}")})


def choice(*patterns):
    return (TableChoice(patterns),)


def ledger(folder):
    return Ledger.load(folder / "lake" / "ledger.json", "shop", "copy")


# The file


def put(folder, name, of, checkpoint, current):
    ledger(folder).put(name, Stream(of, checkpoint), current)


def test_what_is_noted_is_there_after_a_restart(tmp_path):
    noted = Stream(
        "shop/*",
        at(3),
        (choice("shop/main.o*"),),
        {"shop/main.o": Entry(Place((3, 1), "7"), "x")},
        frozenset(["a/b.c"]),
    )
    ledger(tmp_path).put("a", noted, {"a": "shop/*"})
    assert ledger(tmp_path).found("a", "shop/*", {"a": "shop/*"}) == noted
    assert ledger(tmp_path).found("b", "main.orders", {"b": "main.orders"}) is None


def test_a_stream_under_another_name_goes_on_where_the_least_of_those_before_it_stands(tmp_path):
    before = {"a": "main.orders", "b": "main.orders", "c": "main.users"}
    for name, scn in (("a", 5), ("b", 3), ("c", 1)):
        put(tmp_path, name, before[name], at(scn), before)
    now = {"x": "main.orders", "y": "main.orders", "c": "main.users"}
    for name, scn in (("x", 6), ("y", 7)):
        assert ledger(tmp_path).found(name, "main.orders", now).checkpoint == at(3)
        put(tmp_path, name, "main.orders", at(scn), now)
    assert {name: each.pair[0] for name, each in ledger(tmp_path).streams.items()} == {"x": 6, "y": 7, "c": 1}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v": 2, "streams": {}}', '{"v": 1, "streams": {"a": {}}}'])
def test_a_file_that_says_nothing_is_no_empty_ledger(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(CorruptData, match=r"ledger.json: does not say how far this output has come.*Restore it"):
        Ledger.load(path, "shop", "copy")


def test_two_pipelines_whose_files_have_one_name_do_not_take_each_others_place(tmp_path):
    path = tmp_path / ".databus-shop-eu-copy.ledger.json"
    Ledger(path, "shop-eu", "copy").put("outputs/copy/shop@shop", Stream("shop/*", at(5)), {})
    with pytest.raises(ConfigError, match=r"is of output copy of pipeline shop-eu.*give one of them another name"):
        Ledger.load(path, "shop", "eu-copy")


# Outputs


def handle(folder):
    found = OutputHandle("copy", DeltaHarness(folder, "mirror").make(), folder / "state")
    found.bringing = {"a": Bringing("shop/*", (choice("shop/*"),))}
    return found


def log_of(*ids):
    log = ChangeLog()
    for each in ids:
        log.begin().insert(ORDERS, {"id": each, "note": None, "total": None})
    return log


def test_changes_that_begin_above_what_the_target_has_are_refused(tmp_path):
    log = log_of(1, 2, 3)
    first = handle(tmp_path)
    first.write("a", log.batch(0, 1))
    first.advance("a", Checkpoint({"shop": log.position(1)}))
    later = handle(tmp_path)
    with pytest.raises(UnsupportedFeature, match=r"begin after \(2, .*has come to \(1, .*ledger.json.*databus rebuild"):
        later.write("a", log.batch(2, 3))
    later.write("a", log.batch(0, 3))


def test_who_takes_a_target_later_stops_the_one_before(tmp_path):
    log = log_of(1, 2, 3)
    first, second = handle(tmp_path), handle(tmp_path)
    first.write("a", log.batch(0, 1))
    second.write("a", log.batch(0, 2))
    with pytest.raises(LockHeld, match=r"process \d+ on .* has begun to write this output"):
        first.write("a", log.batch(1, 3))
    second.write("a", log.batch(2, 3))


def test_a_snapshot_that_has_not_begun_is_asked_for_again(tmp_path):
    open_ones = SourceCheckpoint(uuid="u", scn=3, log="l", snapshots={"main.stock": 1, "main.orders": 1})
    stream = Stream("shop/*", Checkpoint({"shop": open_ones}), incomplete=frozenset({"shop/main.stock"}))
    assert stream.unread() == frozenset()
    more = stream.reading(["shop/main.orders", "shop/main.users"])
    assert more.unread() == {"shop/main.orders", "shop/main.users"}
    assert more.checkpoint.sources["shop"].snapshots == {"main.stock": 1}


def test_a_filter_that_names_another_table_does_not_go_on_where_the_old_one_stood(tmp_path):
    put(tmp_path, "a", "main.orders", at(3), {"a": "main.orders"})
    assert ledger(tmp_path).found("a", "main.users", {"a": "main.users"}) is None


def test_a_stream_goes_on_where_others_stand_that_brought_its_tables(tmp_path):
    current = {"all": "shop/*", "one": "main.orders"}
    tables = {f"shop/main.{name}": Entry(Place((3, 1), "7")) for name in ("orders", "users")}
    with_tables = Stream("shop/*", at(3), (choice("shop/*"),), tables, frozenset(["shop/main.orders"]))
    book = ledger(tmp_path)
    book.put("all", with_tables, current)
    assert book.inherited("one", ["more/main.stock"]) is None
    found = book.inherited("one", ["shop/main.orders"])
    assert (found.checkpoint, [*found.tables], found.incomplete) == (at(3), ["shop/main.orders"], {"shop/main.orders"})
    book.put("one", replace(found, of="main.orders"), current)
    left = ledger(tmp_path).streams
    assert [*left["all"].tables] == ["shop/main.users"]
    assert not left["all"].incomplete
    book.put("two", replace(left["all"], of="main.users"), {"two": "main.users"})
    assert "all" not in ledger(tmp_path).streams


def test_a_ledger_that_is_removed_while_its_output_is_written_is_missed(tmp_path):
    log = log_of(1, 2)
    first = handle(tmp_path)
    first.write("a", log.batch(0, 1))
    first.ledger_path.unlink()
    with pytest.raises(CorruptData, match="was removed while this output was written"):
        first.write("a", log.batch(1, 2))


def test_a_history_says_where_a_table_was_left_out_for_a_while(tmp_path):
    """Once, whatever is killed and comes again: a row that was deleted meanwhile would look alive for ever."""
    log = log_of(1, 2, 3, 4)

    def history():
        found = OutputHandle("copy", DeltaHarness(tmp_path, "history").make(), tmp_path / "state")
        found.bringing = {"a": Bringing("shop/*", (choice("shop/*"),))}
        return found

    history().write("a", log.batch(0, 1))
    history().begin("a", Checkpoint({"shop": log.position(2)}), ["shop/main.orders"])
    history().write("a", log.batch(2, 3))
    again = history()
    again.write("a", log.batch(2, 4))
    rows = read_delta(again.output.table_path("shop", "main.orders"), ["_commit_version", "_change_type", "id"])
    assert sorted(map(tuple, map(dict.values, rows.to_pylist()))) == [
        (1, "insert", 1), (2, "gap", None), (3, "insert", 3), (4, "insert", 4),
    ]  # fmt: skip


def test_a_table_that_stays_incomplete_has_no_gap(tmp_path):
    stream = Stream("shop/*", at(3), (), {"shop/main.orders": Entry(Place((3, 1)))})
    asked = stream.reading(["shop/main.orders"])
    assert not asked.tables
    written = replace(asked, tables=stream.tables)
    assert written.reading(["shop/main.orders"]).tables == stream.tables
    assert not written.emptied(["shop/main.orders"]).tables


def test_what_was_to_be_removed_when_somebody_was_killed_is_removed_before_anything_is_written(tmp_path):
    """Else a history would keep rows of filters that are no more, such as those without a mask."""
    log = log_of(1, 2)
    first = handle(tmp_path)
    first.write("a", log.batch(0, 1))
    first.advance("a", Checkpoint({"shop": log.position(1)}))
    place = first.output.place("shop/main.orders")

    def killed(tables):
        raise KeyboardInterrupt(*tables)

    with pytest.raises(KeyboardInterrupt, match=r"shop/main\.orders"):
        Ledger.load(first.ledger_path, "shop", "copy").make_anew(["shop/main.orders"], killed)
    later = handle(tmp_path)
    assert handle(tmp_path).output.place("shop/main.orders") == place
    stream = later.stream("a")
    assert later.output.place("shop/main.orders") is None
    assert (stream.tables, stream.incomplete) == ({}, {"shop/main.orders"})
    assert handle(tmp_path).stream("a") == stream


def test_an_output_that_refuses_to_remove_is_left_as_it_was(tmp_path):
    log = log_of(1)
    first = handle(tmp_path)
    first.write("a", log.batch(0, 1))
    first.advance("a", Checkpoint({"shop": log.position(1)}))

    def refuses(tables):
        raise UnsupportedFeature("several sources share a table")

    with pytest.raises(UnsupportedFeature, match="several sources"):
        Ledger.load(first.ledger_path, "shop", "copy").make_anew(["shop/main.orders"], refuses)
    assert handle(tmp_path).stream("a") == first.stream("a")


def test_a_table_is_complete_when_a_snapshot_has_ended_that_began_for_this_output(tmp_path):
    log = log_of(1, 2)
    log.begin()
    begun = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begun.pair), complete=True)
    first = handle(tmp_path)
    first.begin("a", Checkpoint({"shop": log.position(1)}), ["shop/main.orders", "shop/main.stock"])
    for start in range(1, 4):
        assert handle(tmp_path).stream("a").incomplete == {"shop/main.orders", "shop/main.stock"}
        first = handle(tmp_path)
        first.write("a", log.batch(start, start + 1))
        first.advance("a", Checkpoint({"shop": log.position(start + 1)}))
    assert handle(tmp_path).stream("a").incomplete == {"shop/main.stock"}


@pytest.mark.parametrize("as_configured", [True, False])
def test_a_table_is_complete_too_when_all_was_read_that_its_configuration_asks_for(tmp_path, as_configured):
    log = log_of(1)
    begun = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    told = {"complete": False, "as_configured": as_configured}
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begun.pair), **told)
    first = handle(tmp_path)
    first.begin("a", Checkpoint({"shop": log.position(1)}), ["shop/main.orders"])
    first.write("a", log.batch(1, 3))
    first.advance("a", Checkpoint({"shop": log.position(3)}))
    assert bool(handle(tmp_path).stream("a").incomplete) is not as_configured


# Pipelines

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


@pytest.mark.spark
def test_a_lake_that_was_removed_is_made_whole_again(spark, tmp_path):
    project = Project(tmp_path, BOTH)
    project.once(spark)
    project.work(20)
    project.once(spark)
    shutil.rmtree(tmp_path / "lake")
    project.work(5)
    project.once(spark)
    project.assert_history_is_whole("lake/history", "orders", "id")
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical


@pytest.mark.spark
def test_a_table_that_was_restored_from_a_backup_is_missed_though_nothing_changes(spark, tmp_path):
    project = Project(tmp_path, BOTH)
    project.once(spark)
    orders, backup = tmp_path / "lake/copy/orders", tmp_path / "backup"
    shutil.copytree(orders, backup)
    project.execute("UPDATE orders SET total_cents = total_cents + 1")
    project.once(spark)
    shutil.rmtree(orders)
    backup.rename(orders)
    code, events = run_once(project, spark)
    assert code == CorruptData.exit_code
    said = r"copy of shop/main.orders holds changes up to \(\d+, .*had come to \(\d+, .*rebuild FILE copy shop/main"
    assert re.search(said, told(events))
    rebuild(load_pipeline(project.path), "copy", ["shop/main.orders"], confirm=lambda _: True)
    read_whole(project, spark, "copy")


@pytest.mark.spark
def test_a_ledger_that_was_removed_makes_no_gap_in_tables_that_stay(spark, tmp_path):
    sections = "outputs: {history: {type: delta, from: shop, mode: history, path: lake/history}}\n"
    project = Project(tmp_path, sections, head=LATEST)
    for _ in range(2):
        project.once(spark)
        project.execute("UPDATE orders SET total_cents = total_cents + 1")
    project.once(spark)
    ledger_of(tmp_path, "history").unlink()
    for _ in range(2):
        project.execute("UPDATE orders SET total_cents = total_cents + 1")
        code, events = run_once(project, spark)
    assert code == UnsupportedFeature.exit_code
    assert re.search(r"begin after \(\d.*holds those up to .*rebuild FILE history shop/main.orders", told(events))


@pytest.mark.spark
def test_tables_of_another_database_without_their_ledger_are_not_gone_on_with(spark, tmp_path):
    (tmp_path / "other").mkdir()
    one, two = Project(tmp_path, BOTH), Project(tmp_path / "other", BOTH, seed=8)
    one.once(spark)
    (tmp_path / "lake").rename(tmp_path / "other/lake")
    for output in ("copy", "history"):
        ledger_of(tmp_path / "other", output).unlink()
    code, events = run_once(two, spark)
    assert code == UnsupportedFeature.exit_code
    assert re.search(r"does not know the copy of .* another log than .*rebuild FILE copy shop/main", told(events), re.S)


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
    assert re.search(r"what decides the rows of shop/main.orders.*on_change: rebuild.*rebuild FILE large", told(events))


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


@pytest.mark.spark
def test_rows_of_another_filter_stay_where_that_is_wished(spark, tmp_path):
    where = "filters: {some: {type: where, from: shop, tables: [main.orders], where: '%s'}}\n"
    out = "outputs: {out: {type: delta, from: some, mode: history, path: lake/out, on_change: continue}}\n"
    project = Project(tmp_path, where % "total_cents >= 0" + out)
    project.once(spark)
    first = project.copied("lake/out/orders", "id")
    rewrite(project, where % "total_cents < 0" + out)
    project.work(20)
    project.once(spark)
    assert project.copied("lake/out/orders", "id") == first


@pytest.mark.spark
def test_an_output_whose_ledger_cannot_be_read_is_made_anew(spark, tmp_path):
    project = Project(tmp_path, BOTH)
    project.once(spark)
    ledger_of(tmp_path, "copy").write_text("torn")
    code, events = run_once(project, spark)
    assert code == CorruptData.exit_code
    assert "databus rebuild FILE copy" in told(events)
    asked = []
    rebuild(load_pipeline(project.path), "copy", confirm=lambda names: asked.extend(names) or True)
    assert "shop/main.orders" in asked
    read_whole(project, spark, "copy")


def read_whole(project, session, output):
    """Run it until nothing is incomplete; then it must be identical."""
    path = ledger_of(project.folder, output)
    with project.running(session) as running:
        running.wait_for(lambda: json.loads(path.read_text())["streams"], "its begin")
        running.wait_for(lambda: not streams_of(path)["incomplete"], "the end of its snapshots")
    project.once(session)
    assert compare(load_pipeline(project.path), output, wait_ms_max=5_000).is_identical


@pytest.mark.spark
def test_files_are_not_written_again_when_the_state_is_gone(spark, tmp_path):
    project = Project(tmp_path, "outputs: {out: {type: files, from: shop, path: out, format: json}}\n")
    project.once(spark)
    project.work(20)
    project.once(spark)
    names = sorted(path.name for path in (tmp_path / "out").rglob("*.jsonl"))
    shutil.rmtree(project.state)
    project.once(spark)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*.jsonl")) == names
    told = json.loads((tmp_path / "out" / ".databus-shop-out.ledger.json").read_text())
    assert told["streams"]["outputs/out/shop@shop"]["of"] == "shop/*"


@pytest.mark.spark
def test_an_output_that_joins_a_lane_later_lacks_nothing(spark, tmp_path):
    one = "  copy: {type: delta, from: shop, mode: mirror, path: lake/copy, lane: all}\n"
    other = "  history: {type: delta, from: shop, mode: history, path: lake/history, lane: all}\n"
    project = Project(tmp_path, "")
    rewrite(project, f"outputs:\n{one}")
    project.once(spark)
    project.work(20)
    rewrite(project, f"outputs:\n{one}{other}")
    project.once(spark)
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


@pytest.mark.spark
def test_the_copies_of_another_database_are_not_gone_on_with(spark, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = Project(tmp_path / "one", ""), Project(tmp_path / "two", "", seed=8)
    for project in (one, two):
        project.path.write_text(TWO.format(database="shop.db", tables="shop/main.*", lake=tmp_path / "lake"))
    one.once(spark)
    code, events = run_once(two, spark)
    assert code == PositionForeign.exit_code
    assert re.search(r"is a position in .*ledger.json.*another `path`.*databus rebuild FILE copy", told(events), re.S)
    assert compare(load_pipeline(one.path), "copy", wait_ms_max=5_000).is_identical


@pytest.mark.spark
@pytest.mark.parametrize("runs", [1, 3])
def test_the_copies_of_a_database_with_more_or_as_many_changes_are_not_taken_for_done(spark, tmp_path, runs):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = Project(tmp_path / "one", ""), Project(tmp_path / "two", "", seed=8)
    for project in (one, two):
        project.path.write_text(TWO.format(database="shop.db", tables="shop/main.*", lake="lake"))
    for project, rounds in ((one, runs), (two, 1)):
        for _ in range(rounds):
            project.once(spark)
            project.execute("UPDATE orders SET total_cents = total_cents + 1")
        project.once(spark)
    shutil.rmtree(tmp_path / "two/lake")
    (tmp_path / "one/lake").rename(tmp_path / "two/lake")
    code, events = run_once(two, spark)
    assert code == PositionForeign.exit_code
    assert "databus rebuild FILE copy" in told(events)


@pytest.mark.spark
def test_a_table_that_is_chosen_later_is_read_anew(spark, tmp_path):
    project = Project(tmp_path, "")
    project.path.write_text(TWO.format(database="shop.db", tables="main.orders", lake="lake"))
    project.once(spark)
    project.work(10)
    project.once(spark)
    project.path.write_text(TWO.format(database="shop.db", tables="main.orders, main.stock", lake="lake"))
    project.work(10)
    with project.running(spark) as running:
        path = tmp_path / "lake" / "copy" / ".databus-shop-copy.ledger.json"
        running.wait_for(lambda: "shop/main.stock" in streams_of(path)["tables"], "the table")
        running.wait_for(lambda: not streams_of(path)["incomplete"], "the end of its snapshot")
    project.once(spark)
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical
    columns = "product_id", "quantity"
    alive = project.copied("lake/history/stock", *columns)
    assert set(project.select(f"SELECT {', '.join(columns)} FROM stock")) <= set(alive)


def streams_of(path):
    (found,) = json.loads(path.read_text())["streams"].values()
    return found


@pytest.mark.spark
@pytest.mark.parametrize("tables", [(), ("main.orders",)])
def test_an_output_is_made_anew_where_one_asks_for_it(spark, tmp_path, tables):
    project = Project(tmp_path, BOTH)
    project.once(spark)
    wrong = DeltaTable(tmp_path / "lake/copy/orders")
    wrong.delete("id < 20")
    project.work(10)
    asked = []
    rebuild(load_pipeline(project.path), "copy", tables, confirm=lambda names: asked.extend(names) or True)
    assert "shop/main.orders" in asked
    assert len(asked) == 1 or not tables
    assert not (tmp_path / "lake/copy/orders").exists()
    path = tmp_path / "lake" / "copy" / ".databus-shop-copy.ledger.json"
    with project.running(spark) as running:
        running.wait_for(lambda: json.loads(path.read_text())["streams"], "its begin")
        running.wait_for(lambda: not streams_of(path)["incomplete"], "the end of its snapshot")
        running.wait_for(lambda: "shop/main.orders" in streams_of(path)["tables"], "its tables")
    project.once(spark)
    assert compare(load_pipeline(project.path), "copy", wait_ms_max=5_000).is_identical


def relay_of(folder, names, listen):
    sources = {name: {"type": "sqlite", "path": f"{name}.db"} for name in names}
    return Relay(parse_relay({"listen": listen, "folder": "log", "sources": sources}, folder=folder))


@pytest.mark.spark
def test_a_source_that_a_relay_elsewhere_gets_later_is_read(spark, tmp_path):
    project = Project(tmp_path, "")
    create_shop(tmp_path / "more.db", customers=4, products=3, orders=5, seed=8)
    head = "name: shop\nrelay: {{url: '{url}'}}\ninputs: {{all: {{type: databus}}}}\n"
    out = "outputs: {copy: {type: delta, from: all, mode: mirror, path: 'lake/{physical}/{table}'}}\n"
    with relay_of(tmp_path, ["shop"], "127.0.0.1:0") as relay:
        url = relay.url
        project.path.write_text(head.format(url=url) + out)
        with project.running(spark) as running:
            running.event(event="batch", output="copy")
            relay.stop()
            with relay_of(tmp_path, ["shop", "more"], url.split("/")[2]):
                running.wait_for((tmp_path / "lake/more/orders/_delta_log").exists, "the other source")
                running.wait_for(lambda: len(project.copied("lake/more/orders", "id")) == 5, "its rows")


@pytest.mark.spark
def test_a_new_output_has_what_the_relay_no_longer_has_read_anew(spark, tmp_path):
    project = Project(tmp_path, "relay: {log: {segment_bytes_max: 65536, retention_bytes_max: 300000}}\n" + BOTH)
    with project.running(spark) as running:
        for count in range(1, 13):
            for output in ("copy", "history"):
                running.wait_for(lambda o=output, c=count: scn_of(ledger_of(tmp_path, o)) >= c, f"SCN {count}")
            project.execute("UPDATE orders SET placed_at = hex(randomblob(200))")
    project.once(spark)
    later = "  later: {type: delta, from: shop, mode: mirror, path: lake/later}\n"
    project.path.write_text(project.path.read_text() + later)
    with project.running(spark) as running:
        running.wait_for(lambda: scn_of(ledger_of(tmp_path, "later")), "its begin")
        running.wait_for(lambda: not streams_of(ledger_of(tmp_path, "later"))["incomplete"], "the end of its snapshot")
    project.once(spark)
    for output in ("copy", "later"):
        assert compare(load_pipeline(project.path), output, wait_ms_max=5_000).is_identical


def ledger_of(folder, output):
    return folder / "lake" / output / f".databus-shop-{output}.ledger.json"


def scn_of(path):
    streams = json.loads(path.read_text())["streams"].values() if path.exists() else ()
    return next((each["checkpoint"]["sources"]["shop"]["scn"] for each in streams), 0)
