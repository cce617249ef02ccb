"""Outputs know how far they have come: whatever becomes of the pipeline's state, its file or its lake, no gap."""

import json
from dataclasses import replace
from types import SimpleNamespace

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
from databus.pipeline._begin import advised
from databus.pipeline._handle import Bringing, OutputHandle
from databus.pipeline._ledger import Ledger
from databus.pipeline._output_contract import Place
from databus.pipeline._streams import Entry, Stream
from databus.pipeline.outputs import read_delta
from databus.tasks import TableChoice
from databus.testing._change_log import ORDERS, ChangeLog
from tests.kafka.support import output_of
from tests.outputs.harnesses import DeltaHarness


def at(scn):
    return Checkpoint({"shop": SourceCheckpoint(uuid="u", scn=scn, txid=f"t{scn}")})


def choice(*patterns):
    return (TableChoice(patterns),)


def bringing(of, *patterns):
    """What a stream of now brings."""
    return of, tuple(map(choice, patterns))


def ledger(folder):
    return Ledger.load(located(folder / "lake" / "ledger.json"), "shop", "copy")


# The file


def test_a_ledger_of_a_newer_databus_is_left_as_it_is(tmp_path):
    newer = '{"v": 2, "streams": "who knows"}'
    (tmp_path / "lake").mkdir()
    path = tmp_path / "lake" / "ledger.json"
    path.write_text(newer)
    with pytest.raises(ConfigError, match=r"ledger\.json: is of version 2, and this databus reads version 1"):
        ledger(tmp_path)
    assert path.read_text() == newer


def put(folder, name, of, checkpoint, current):
    ledger(folder).put(name, Stream(of, checkpoint), current)


def test_what_is_noted_is_there_after_a_restart(tmp_path):
    noted = Stream(
        "shop/*",
        at(3),
        (choice("shop/main.o*"),),
        {"shop/main.o": Entry(Place((3, 1), "7"), "x")},
        frozenset(["shop/main.orders"]),
    )
    now = {"a": noted.brings}
    ledger(tmp_path).put("a", noted, now)
    assert ledger(tmp_path).found("a", "shop/*", now) == noted
    assert ledger(tmp_path).found("b", "main.orders", {"b": bringing("main.orders")}) is None


def test_a_stream_under_another_name_goes_on_where_the_least_of_those_before_it_stands(tmp_path):
    orders, users = bringing("main.orders"), bringing("main.users")
    before = {"a": orders, "b": orders, "c": users}
    for name, scn in (("a", 5), ("b", 3), ("c", 1)):
        put(tmp_path, name, before[name][0], at(scn), before)
    now = {"x": orders, "y": orders, "c": users}
    for name, scn in (("x", 6), ("y", 7)):
        assert ledger(tmp_path).found(name, "main.orders", now).checkpoint == at(3)
        put(tmp_path, name, "main.orders", at(scn), now)
    assert {name: each.pair[0] for name, each in ledger(tmp_path).streams.items()} == {"x": 6, "y": 7, "c": 1}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"v": 0, "streams": {}}', '{"v": 1, "streams": {"a": {}}}'])
def test_a_file_that_says_nothing_is_no_empty_ledger(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(CorruptData, match=r"ledger.json: does not say how far this output has come.*Restore it"):
        Ledger.load(located(path), "shop", "copy")


def test_two_pipelines_whose_files_have_one_name_do_not_take_each_others_place(tmp_path):
    path = tmp_path / ".databus-shop-eu-copy.ledger.json"
    Ledger(located(path), "shop-eu", "copy").put("outputs/copy/shop@shop", Stream("shop/*", at(5)), {})
    with pytest.raises(ConfigError, match=r"is of output copy of pipeline shop-eu.*give one of them another name"):
        Ledger.load(located(path), "shop", "eu-copy")


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
    put(tmp_path, "a", "main.orders", at(3), {"a": bringing("main.orders")})
    assert ledger(tmp_path).found("a", "main.users", {"a": bringing("main.users")}) is None


def test_a_stream_goes_on_where_others_stand_that_brought_its_tables(tmp_path):
    before = {"all": bringing("shop/*", "shop/*")}
    tables = {f"shop/main.{name}": Entry(Place((3, 1), "7")) for name in ("orders", "users")}
    with_tables = Stream("shop/*", at(3), (choice("shop/*"),), tables, frozenset(["shop/main.orders"]))
    ledger(tmp_path).put("all", with_tables, before)
    now = {"all": bringing("shop/*", "shop/main.users"), "one": bringing("main.orders")}
    assert ledger(tmp_path).inherited(["more/main.stock"], now) is None
    found = ledger(tmp_path).inherited(["shop/main.orders"], now)
    assert (found.checkpoint, [*found.tables], found.incomplete) == (at(3), ["shop/main.orders"], {"shop/main.orders"})
    ledger(tmp_path).put("one", replace(found, of="main.orders"), now)
    left = ledger(tmp_path).found("all", "shop/*", now)
    assert [*left.tables] == ["shop/main.users"]
    assert not left.incomplete
    ledger(tmp_path).put("two", replace(left, of="main.users", selections=()), {"two": bringing("main.users")})
    assert {*ledger(tmp_path).streams} == {"one", "two"}  # the file is without orders for a while


def test_a_ledger_that_is_removed_while_its_output_is_written_is_missed(tmp_path):
    log = log_of(1, 2)
    first = handle(tmp_path)
    first.write("a", log.batch(0, 1))
    first.ledger_path.remove()
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


def test_a_table_that_is_restored_before_its_first_batch_of_a_run_is_missed(tmp_path):
    """It was looked at when the run began, and is opened only now."""
    harness, log = DeltaHarness(tmp_path, "mirror"), ChangeLog()
    for number in range(4):
        log.begin().insert(ORDERS, {"id": number, "note": "x", "total": None})
    handle = OutputHandle("copy", harness.make(), tmp_path / ".databus")
    handle.bringing = {"q": Bringing("shop/*")}
    handle.open("q")
    for number in range(3):
        batch = log.batch(number, number + 1)
        handle.write("q", batch)
        handle.advance("q", Checkpoint({"shop": batch.end}))
    handle.close()
    handle.check("q")
    handle.open("q")
    table = DeltaTable(harness.make().table_path("shop", ORDERS.source))
    table.restore(table.version() - 1)
    with pytest.raises(CorruptData, match="was put back to how it was before"):
        handle.write("q", log.batch(3, 4))


def test_a_table_is_found_where_a_query_left_it_that_has_begun_first_without_it(tmp_path):
    """The order in which queries begin is nobody's choice."""
    now = {"all": bringing("shop/*", "shop/main.stock"), "one": bringing("main.orders")}
    ledger(tmp_path).put("all", Stream("shop/*", at(3), (choice("shop/*"),)), {"all": bringing("shop/*", "shop/*")})
    for scn in (3, 8):
        ledger(tmp_path).put("all", Stream("shop/*", at(scn), (choice("shop/main.stock"),)), now)
    found = ledger(tmp_path).inherited(["shop/main.orders"], now)
    assert found.checkpoint == at(3)
    ledger(tmp_path).put("one", replace(found, of="main.orders", selections=()), now)
    later = {"other": bringing("shop/*", "shop/*")}
    assert ledger(tmp_path).inherited(["shop/main.stock"], later).checkpoint == at(8)
    assert not ledger(tmp_path).earlier


def test_a_table_of_another_source_does_not_begin_where_one_of_its_name_stands(tmp_path):
    """Its positions say nothing there: the shards of a shop have tables of one name."""
    before = {"typed": bringing("main.orders")}
    put(tmp_path, "typed", "main.orders", at(900), before)
    now = {"renamed": bringing("main.orders"), "new": bringing("more/*", "*")}
    assert ledger(tmp_path).inherited(["more/main.orders"], now) is None
    assert ledger(tmp_path).inherited(["shop/main.orders"], now).checkpoint == at(900)


def test_a_source_that_was_not_there_for_a_run_goes_on_where_it_stood(tmp_path):
    """A relay names no source whose database it does not reach; with `starting_version: latest`, changes were lost."""
    both = {name: bringing(f"{name}/*", "*") for name in ("a", "b")}
    for name, scn, now in (("a", 5, "ab"), ("b", 900, "ab"), ("a", 6, "a"), ("a", 7, "a")):
        ledger(tmp_path).put(name, Stream(both[name][0], at(scn), both[name][1]), {each: both[each] for each in now})
    assert ledger(tmp_path).found("b", "b/*", both).checkpoint == at(900)
    ledger(tmp_path).put("b", Stream("b/*", at(901), both["b"][1]), both)
    assert not ledger(tmp_path).earlier


def test_a_stream_that_goes_on_from_several_brings_what_they_brought(tmp_path):
    now = {name: bringing("shop/*", f"shop/main.{name}") for name in ("orders", "stock")}
    for name, scn in (("orders", 5), ("stock", 3)):
        ledger(tmp_path).put(name, Stream("shop/*", at(scn), now[name][1]), now)
    both = bringing("shop/*", "shop/main.orders", "shop/main.stock")
    found = ledger(tmp_path).inherited(["shop/main.orders", "shop/main.stock"], {"both": both})
    assert found.checkpoint == at(3)
    assert [(each.at.scn, each.has("shop/main.orders")) for each in found.written] == [(5, True)]
    found = replace(found, of=both[0], selections=both[1])
    ledger(tmp_path).put("both", found, {"both": both})
    assert ledger(tmp_path).streams == {"both": found}
    ledger(tmp_path).put("both", replace(found, checkpoint=at(5)), {"both": both})
    assert ledger(tmp_path).streams["both"].written == ()


def test_who_brought_a_table_last_says_how_far_it_is_whatever_its_name(tmp_path):
    """Also where the file is changed back before all of its queries have begun."""
    before = {"a": bringing("shop/*", "shop/main.orders", "shop/main.stock")}
    apart = {"a": bringing("shop/*", "shop/main.orders"), "b": bringing("shop/*", "shop/main.stock")}
    tables = ["shop/main.orders", "shop/main.stock"]
    ledger(tmp_path).put("a", Stream("shop/*", at(3), before["a"][1]), before)
    ledger(tmp_path).put("b", Stream("shop/*", at(8), apart["b"][1]), apart)
    assert not ledger(tmp_path).has_begun("a", before)
    found = ledger(tmp_path).inherited(tables, before)
    assert (found.checkpoint, found.incomplete) == (at(3), frozenset())
    assert [(each.at.scn, *map(each.has, tables)) for each in found.written] == [(8, False, True)]


def test_of_branches_of_which_one_never_began_a_table_is_not_whole(tmp_path):
    """The other one's rows were written by nobody."""
    now = dict.fromkeys(("big", "small"), bringing("main.orders"))
    ledger(tmp_path).put("big", Stream("main.orders", at(8)), now)
    found = ledger(tmp_path).inherited(["shop/main.orders"], {"all": bringing("shop/*", "shop/*")})
    assert (found.incomplete, found.written) == ({"shop/main.orders"}, ())


def test_a_branch_that_never_began_stands_where_it_would_have_gone_on(tmp_path):
    before, now = {"all": bringing("main.orders")}, dict.fromkeys(("big", "small"), bringing("main.orders"))
    ledger(tmp_path).put("all", Stream("main.orders", at(3)), before)
    ledger(tmp_path).put("big", Stream("main.orders", at(8)), now)
    found = ledger(tmp_path).inherited(["shop/main.orders"], before)
    assert (found.checkpoint, found.incomplete, found.written) == (at(3), frozenset(), ())
    assert ledger(tmp_path).needed(before) == {"all", "big"}


def test_a_ledger_of_old_says_what_it_said(tmp_path):
    """With streams that others had gone on from, and such as had been given other tables."""
    streams = {"all": Stream("shop/*", at(8), (choice("shop/main.stock"),)), "gone": Stream("main.orders", at(3))}
    left = Stream("shop/*", at(5), (choice("shop/*"),))
    told = {
        "v": 1, "pipeline": "shop", "output": "copy", "epoch": 3, "writer": "w", "passed": ["gone"], "removing": [],
        "streams": {name: each.to_json() for name, each in streams.items()}, "left": [["all", left.to_json()]],
    }  # fmt: skip
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "ledger.json").write_text(json.dumps(told))
    now = {"all": streams["all"].brings, "one": bringing("main.users")}
    assert ledger(tmp_path).found("all", "shop/*", now) == streams["all"]
    assert ledger(tmp_path).inherited(["shop/main.users"], now).checkpoint == at(5)
    assert ledger(tmp_path).inherited(["shop/main.orders"], now).checkpoint == at(3)


def test_an_output_that_keeps_nothing_is_not_sent_to_a_rebuild(tmp_path):
    """`databus rebuild` refuses it."""
    nowhere = SimpleNamespace(bootstrap="127.0.0.1:9")
    topics = OutputHandle("topics", output_of(nowhere, tmp_path, "shop"), tmp_path / "state")
    copy = OutputHandle("copy", DeltaHarness(tmp_path, "mirror").make(), tmp_path / "state")
    told = [str(advised(PositionPurged("gone"), [(None, each)], resumed=True)) for each in (topics, copy)]
    assert "rebuild" not in told[0]
    assert "Give outputs.topics another name" in told[0]
    assert "`databus rebuild FILE copy`" in told[1]
