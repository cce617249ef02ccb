"""Outputs know how far they have come: whatever becomes of the pipeline's state, its file or its lake, no gap."""

import pytest
from deltalake import DeltaTable

from databus.core import (
    Checkpoint,
    ConfigError,
    ControlKind,
    CorruptData,
    LockHeld,
    PositionPurged,
    SourceCheckpoint,
    UnsupportedFeature,
)
from databus.disk import located
from databus.filters import TableChoice
from databus.pipeline import load_pipeline
from databus.pipeline.checks._check_options import check_targets
from databus.pipeline.engine import ledger_path, plan_queries, way_of
from databus.pipeline.engine._begin import advised
from databus.pipeline.engine._handle import BatchSpan, OutputHandle
from databus.pipeline.engine._ledger import Ledger
from databus.places import GAP, Noted, Position
from databus.sinks import read_delta
from databus.testing._change_log import ORDERS, ChangeLog
from tests.feeds import bring
from tests.kafka.support import output_of
from tests.outputs.harnesses import DeltaHarness

ALL = ((TableChoice(("shop/*",)),),)
NAME = f"shop/{ORDERS.source}"


def at(scn):
    return SourceCheckpoint(uuid="u", scn=scn, txid=f"t{scn}")


def ledger(folder):
    return Ledger.load(located(folder / "lake" / "ledger.json"), "shop", "copy")


# The file


def test_a_ledger_of_a_newer_databus_is_left_as_it_is(tmp_path):
    newer = '{"v": 2, "positions": "who knows"}'
    (tmp_path / "lake").mkdir()
    path = tmp_path / "lake" / "ledger.json"
    path.write_text(newer)
    with pytest.raises(ConfigError, match=r"ledger\.json: is of version 2, and this databus reads version 1"):
        ledger(tmp_path)
    assert path.read_text() == newer


def test_what_is_noted_is_there_after_a_restart(tmp_path):
    noted = Position(
        at(3), ALL, {"shop/main.o": at(2)}, {NAME: "asked"}, {NAME: "x"}, {"shop/main.o": Noted((2, 1), "7")}
    )
    ledger(tmp_path).put("shop", noted)
    assert ledger(tmp_path).positions == {"shop": noted}
    ledger(tmp_path).put("crm", Position(at(9)))
    assert ledger(tmp_path).positions["shop"] == noted


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v": 0, "positions": {}}', '{"v": 1, "positions": {"a": {}}}'])
def test_a_file_that_says_nothing_is_no_empty_ledger(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(CorruptData, match=r"ledger.json: does not say how far this output has come.*Restore it"):
        Ledger.load(located(path), "shop", "copy")


def test_two_pipelines_whose_files_have_one_name_do_not_take_each_others_place(tmp_path):
    path = tmp_path / ".databus-shop-eu-copy.ledger.json"
    Ledger(located(path), "shop-eu", "copy").put("shop", Position(at(5)))
    with pytest.raises(ConfigError, match=r"is of output copy of pipeline shop-eu.*give one of them another name"):
        Ledger.load(located(path), "shop", "eu-copy")


# Outputs


def handle(folder, mode="mirror"):
    found = OutputHandle("copy", DeltaHarness(folder, mode).make(), folder / "state")
    bring(found)
    return found


def log_of(*ids):
    log = ChangeLog()
    for each in ids:
        log.begin().insert(ORDERS, {"id": each, "note": None, "total": None})
    return log


def write(to, batch):
    to.write(batch)
    to.advance(Checkpoint({"shop": batch.end}))


def test_changes_that_begin_above_what_the_target_has_are_refused(tmp_path):
    log = log_of(1, 2, 3)
    write(handle(tmp_path), log.batch(0, 1))
    later = handle(tmp_path)
    with pytest.raises(UnsupportedFeature, match=r"begin after \(2, .*has come to \(1, .*ledger.json.*databus rebuild"):
        later.write(log.batch(2, 3))
    later.write(log.batch(0, 3))


def test_an_output_is_busy_for_as_long_as_it_writes(tmp_path, monkeypatch):
    """Also once its target was asked what it has of a table: else nobody is told of one that hangs."""
    to, busy = handle(tmp_path), []
    monkeypatch.setattr(to.output, "write", lambda batch: busy.append(to.busy_s > 0))
    to.write(log_of(1).batch(0, 1))
    assert (busy, to.busy_s) == ([True], 0)


def test_who_takes_a_target_later_stops_the_one_before(tmp_path):
    log = log_of(1, 2, 3)
    first, second = handle(tmp_path), handle(tmp_path)
    first.write(log.batch(0, 1))
    second.write(log.batch(0, 2))
    with pytest.raises(LockHeld, match=r"process \d+ on .* has begun to write this output"):
        first.write(log.batch(1, 3))
    second.write(log.batch(2, 3))


def test_a_ledger_that_is_removed_while_its_output_is_written_is_missed(tmp_path):
    log = log_of(1, 2)
    first = handle(tmp_path)
    first.write(log.batch(0, 1))
    first.ledger_path.remove()
    with pytest.raises(CorruptData, match="was removed while this output was written"):
        first.write(log.batch(1, 2))


def test_a_history_says_once_where_the_log_had_lost_some_of_a_table(tmp_path):
    """Whatever is killed and comes again: a row that was deleted meanwhile would look alive for ever."""
    log = log_of(1, 2, 3, 4)
    write(handle(tmp_path, "history"), log.batch(0, 1))
    between = handle(tmp_path, "history")
    position = between.known("shop")
    between.put("shop", Position(log.position(2), ALL, marks=position.marks).reading([NAME], seed=GAP))
    handle(tmp_path, "history").write(log.batch(2, 3))
    again = handle(tmp_path, "history")
    write(again, log.batch(2, 4))
    rows = read_delta(again.output.table_path("shop", "main.orders"), ["_commit_version", "_change_type", "id"])
    assert sorted(map(tuple, map(dict.values, rows.to_pylist()))) == [
        (1, "insert", 1), (2, "gap", None), (3, "insert", 3), (4, "insert", 4),
    ]  # fmt: skip
    assert again.known("shop").seeds == {NAME: "asked"}


def test_what_was_to_be_removed_when_somebody_was_killed_is_removed_before_anything_is_written(tmp_path):
    """Else a history would keep rows of filters that are no more, such as those without a mask."""
    log = log_of(1, 2)
    first = handle(tmp_path)
    write(first, log.batch(0, 1))

    def killed(tables):
        raise KeyboardInterrupt(*tables)

    with pytest.raises(KeyboardInterrupt, match=r"shop/main\.orders"):
        Ledger.load(first.ledger_path, "shop", "copy").rebuild([NAME], killed)
    assert handle(tmp_path).output.held({NAME: None}) != {}
    later = handle(tmp_path)
    position = later.known("shop")
    assert later.output.held({NAME: None}) == {}
    assert (dict(position.marks), position.done(NAME)[0], position.at.scn) == ({}, 0, 1)


def test_an_output_that_refuses_to_remove_is_left_as_it_was(tmp_path):
    log = log_of(1)
    first = handle(tmp_path)
    write(first, log.batch(0, 1))

    def refuses(tables):
        raise UnsupportedFeature("several sources share a table")

    with pytest.raises(UnsupportedFeature, match="several sources"):
        Ledger.load(first.ledger_path, "shop", "copy").rebuild([NAME], refuses)
    assert handle(tmp_path).known("shop") == first.known("shop")


@pytest.mark.parametrize("told", [{"complete": True}, {"complete": False, "as_configured": True}, {"complete": False}])
def test_a_table_is_complete_when_a_snapshot_has_ended_that_began_for_this_output(tmp_path, told):
    log = log_of(1, 2)
    log.begin()
    begun = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begun.pair), **told)
    first = handle(tmp_path)
    first.put("shop", Position(log.position(1), ALL).reading([NAME, "shop/main.stock"]))
    for start, seed in ((1, "asked"), (2, 1)):
        write(handle(tmp_path), log.batch(start, start + 1))
        assert handle(tmp_path).known("shop").seeds == {NAME: seed, "shop/main.stock": "asked"}
    write(handle(tmp_path), log.batch(3, 4))
    is_whole = told != {"complete": False}
    assert {*handle(tmp_path).known("shop").seeds} == {"shop/main.stock"} | (set() if is_whole else {NAME})


def test_a_change_of_values_unseen_makes_a_table_incomplete_until_it_was_read_again(tmp_path):
    """Also where a snapshot was open, which then has no end: who dies before the next begins asks for it again."""
    log = log_of(1)
    log.begin()
    log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.begin().schema(ORDERS, 3)
    log.begin()
    begun = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=2)
    log.snapshot(ORDERS, [{"id": 1, "note": None, "total": None}])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=2, begin=list(begun.pair), complete=True)
    for start, seeds in enumerate([{}, {}, {NAME: "asked"}, {NAME: 2}, {NAME: 2}, {}]):
        write(handle(tmp_path), log.batch(start, start + 1))
        assert handle(tmp_path).known("shop").seeds == seeds, start


def test_a_table_that_is_restored_before_its_first_batch_of_a_run_is_missed(tmp_path):
    """It was looked at when the run began, and is opened only now."""
    log, harness = log_of(1, 2, 3, 4), DeltaHarness(tmp_path, "mirror")
    first = handle(tmp_path)
    first.open()
    for number in range(3):
        write(first, log.batch(number, number + 1))
    first.close()
    first.open()
    table = DeltaTable(harness.make().table_path("shop", ORDERS.source))
    table.restore(table.version() - 1)
    with pytest.raises(CorruptData, match="was put back to how it was before"):
        first.write(log.batch(3, 4))


def test_a_table_that_is_held_stays_where_it_is_while_the_others_go_on(tmp_path):
    """As one behind a filter that fails; and one that is further keeps its place."""
    both, names = handle(tmp_path), [NAME, "shop/main.stock"]
    both.put("shop", Position(at(2), both.choice("shop")), names)
    both.hold("shop", names[1:])
    both.advance(Checkpoint({"shop": at(5)}), BatchSpan(at(2).pair, but=frozenset(names[1:])))
    assert [both.known("shop").place(name) for name in names] == [at(5), at(2)]
    for scn in (4, 3):
        both.hold("shop", names[1:], at(scn))
    both.advance(Checkpoint({"shop": at(6)}), BatchSpan(at(5).pair))
    assert [both.known("shop").place(name) for name in names] == [at(6), at(4)]
    both.advance(Checkpoint({"shop": at(6)}), BatchSpan(at(4).pair, frozenset(names[1:])))
    assert both.known("shop").places == {}


def test_a_table_that_is_held_before_anything_was_written_stands_where_the_first_batch_begins(tmp_path):
    """Where that is, the options say by a number, and no ledger does."""
    both, names = handle(tmp_path), [NAME, "shop/main.stock"]
    both.put("shop", Position(None, both.choice("shop")), names)
    both.hold("shop", names[1:], at(1))
    both.advance(Checkpoint({"shop": at(5)}), BatchSpan(at(1).pair, but=frozenset(names[1:])))
    assert [both.known("shop").place(name) for name in names] == [at(5), at(1)]


def test_an_output_that_keeps_nothing_is_not_sent_to_a_rebuild(tmp_path):
    """`databus rebuild` refuses it."""
    topics = OutputHandle("topics", output_of(Nowhere, tmp_path, "shop"), tmp_path / "state")
    copy = OutputHandle("copy", DeltaHarness(tmp_path, "mirror").make(), tmp_path / "state")
    told = [str(advised(PositionPurged("gone"), [(None, each)], resumed=True)) for each in (topics, copy)]
    assert "rebuild" not in told[0]
    assert "Give outputs.topics another name" in told[0]
    assert "`databus rebuild FILE copy`" in told[1]


class Nowhere:
    bootstrap = "127.0.0.1:9"


def test_a_filter_over_tables_of_a_relay_elsewhere_is_checked_before_a_reload_stops_its_output(tmp_path):
    text = """\
name: shop
relay: {{url: 'http://127.0.0.1:1'}}
inputs: {{rows: {{type: databus, tables: [shop/main.*]}}}}
filters: {{large: {{type: sql, from: rows, table: {table}, where: total > {least}}}}}
outputs: {{large: {{type: files, from: large, format: json, path: large}}}}
"""
    path = tmp_path / "databus.yml"
    path.write_text(text.format(table=ORDERS.source, least=1))
    graph = load_pipeline(path)
    output = graph.config.output_of("large")
    (plan,) = plan_queries(graph, ["shop"])
    written = Ledger.load(ledger_path(output, graph.config.state), "shop", "large")
    written.take()
    ways = {NAME: way_of(graph, plan.feeds[0], output)(NAME)}
    written.put("shop", Position(at(7), ALL, ways=ways, marks={NAME: Noted((7, 0), "m")}))
    assert list(check_targets(graph)) == []

    path.write_text(text.format(table=ORDERS.source, least=2))
    (problem,) = check_targets(load_pipeline(path))
    assert "what decides the rows of shop/main.orders" in problem.message
