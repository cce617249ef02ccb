"""Delta: what the conformance suite does not reach. Each test fails without the code that its name speaks of."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from databus.core import ControlKind, LockHeld, UnsupportedFeature
from databus.flow import Here, staged_rows
from databus.pipeline import ChangeBatch, TableControl
from databus.schema import Column, TableSchema
from databus.sinks import DeltaConfig, DeltaOutput, read_delta
from databus.sinks.delta import run_all
from databus.testing._change_log import ORDERS, STOCK, ChangeLog, mirror_of, random_log
from tests.outputs.harnesses import FROM, DeltaHarness, context, ids, log_of, order, versions

# Exactly once


def test_repeated_batch_commits_nothing(either):
    log = log_of(1, 2, 3)
    either.make().write(log.batch(0, 3))
    version = versions(either)
    either.make().write(log.batch(0, 3))
    either.make().write(log.batch(1, 2))
    assert versions(either) == version


def test_what_a_table_stores_is_remembered_as_it_would_be_read(either):
    """To read it takes a look at the whole log since its last checkpoint."""
    log = random_log(31)
    output = either.make()
    for batch in log.batches(range(0, len(log.entries), 9)):
        output.write(batch)
        for table in (ORDERS, STOCK):
            target = output._copy("shop", table.source).target
            assert not target.exists or target.stored() == target._read_stored()


def test_pair_and_rows_are_one_commit(either):
    either.make().write(log_of(1, 2).batch(0, 2))
    path = Path(either.make().table_path("shop", ORDERS.source))
    texts = [file.read_text() for file in sorted((path / "_delta_log").glob("*.json"))]
    with_rows = [text for text in texts if '"add"' in text]
    assert len(with_rows) == 1
    stored = [json.loads(line)["txn"] for line in with_rows[0].splitlines() if '"txn"' in line]
    name = f"databus/shop/copy/{ORDERS.source}/shop"
    assert {each["appId"]: each["version"] for each in stored if not each["appId"].endswith("/log")} == {
        name: 2,
        f"{name}/seq": (1 << 40) - 1,
        f"{name}/seed": 0,
    }


def test_table_without_changes_in_a_batch_gets_no_commit(mirror):
    log = random_log(3, transactions=20)
    output = mirror.make()
    output.write(log.batch(0, len(log.entries)))
    version = versions(mirror)
    size = len(log.entries)
    output.write(ChangeBatch(log.physical, log.position(size), log.position(size), ()))
    assert versions(mirror) == version


WRITE_AND_DIE = """
from pathlib import Path
from tests.outputs.test_delta import LOGS
from tests.outputs.harnesses import DeltaHarness
log = LOGS[{log!r}]()
out = DeltaHarness(Path({folder!r}), {mode!r}, **{options!r}).make()
for start in range(0, len(log.entries), {step}):
    out.write(log.batch(start, min(start + {step}, len(log.entries))))
"""


def log_with_controls():
    """Rows between controls: several commits in one batch."""
    log = log_of(1, 2, 3)
    wider = TableSchema(ORDERS.source, (*ORDERS.columns, Column("city", "string")), ORDERS.key)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(4))
    log.begin().schema(wider, 2, fill={"city": "Bern"})
    for number in (5, 6, 7):
        log.begin().insert(wider, {**order(number), "city": "x"})
    return log


LOGS = {"random": lambda: random_log(8, transactions=12), "controls": log_with_controls}


@pytest.mark.parametrize(
    ("mode", "log_name", "step", "where", "options"),
    [
        ("mirror", "random", 9, "before_commit:5", {}),
        ("history", "random", 9, "after_commit:5", {}),
        ("mirror", "random", 1000, "after_commit:1", {"merge_rows_max": 7}),
        ("mirror", "controls", 1000, "after_commit:1", {}),
        ("mirror", "controls", 1000, "before_commit:4", {}),
        ("history", "controls", 1000, "after_commit:2", {}),
        ("history", "controls", 1000, "before_commit:4", {}),
    ],
)
def test_kill_at_a_commit_loses_and_repeats_nothing(tmp_path, mode, log_name, step, where, options):
    script = WRITE_AND_DIE.format(log=log_name, folder=str(tmp_path), mode=mode, options=options, step=step)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "DATABUS_CRASH_AT": f"delta.{mode}.{where}"},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    log = LOGS[log_name]()
    harness = DeltaHarness(tmp_path, mode)
    output = harness.make()
    for start in range(0, len(log.entries), 13):
        output.write(log.batch(start, min(start + 13, len(log.entries))))
    for table in {entry.table.source: entry.table for entry in log.entries}.values():
        assert_whole(harness.read("shop", table), log, table, mode)


def assert_whole(found, log, table, mode):
    """The table holds what the log says, and nothing twice."""
    if mode == "mirror":
        expected = {key: row for key, (row, _) in mirror_of(log.entries, table.source).items()}
        assert {tuple(row[k] for k in table.key): {n: row[n] for n in table.names} for row in found} == expected
    else:
        kept = [entry for entry in log.entries if getattr(entry, "kind", None) is not ControlKind.SCHEMA]
        pairs = sorted((row["_commit_version"], row["_seq"]) for row in found)
        assert pairs == sorted(entry.pair for entry in kept if entry.table.source == table.source)


def test_part_of_a_transaction_from_another_log_stops_with_the_way_out(either):
    for uuid, outcome in (("log-1", "goes on"), ("log-2", "stops")):
        log = ChangeLog(uuid=uuid).begin()
        for number in range(4):
            log.insert(ORDERS, order(number))
        if outcome == "goes on":
            either.make().write(log.batch(0, 2))
            continue
        with pytest.raises(UnsupportedFeature, match=r"part of .* at SCN 1 .*another log.*databus rebuild"):
            either.make().write(log.batch(0, 4))


def test_another_log_goes_on_behind_a_transaction_whose_last_part_had_no_row_of_the_table(either):
    """The target says that it has a part; that it is all of it says the place where the batch begins."""
    for uuid in ("log-1", "log-2"):
        log = ChangeLog(uuid=uuid).begin()
        log.insert(ORDERS, order(1))
        log.insert(STOCK, {**dict.fromkeys(STOCK.names), STOCK.key[0]: 1})
        log.begin().insert(ORDERS, order(2))
        either.make().write(log.batch(0, 1) if uuid == "log-1" else log.batch(2, 3))
    assert ids(either) == [1, 2]


def test_whole_transactions_from_another_log_go_on(either):
    either.make().write(log_of(1, 2).batch(0, 2))
    either.make().write(log_of(1, 2, 3, uuid="log-2").batch(0, 3))
    assert ids(either) == [1, 2, 3]


def test_second_writer_is_refused_and_nothing_is_doubled(either):
    log = log_of(1, 2, 3)
    first, second = either.make(), either.make()
    first.write(log.batch(0, 1))
    second.write(log.batch(0, 1))
    first.write(log.batch(1, 2))
    with pytest.raises(LockHeld, match="another process"):
        second.write(log.batch(1, 2))
    assert ids(either) == [1, 2]


def test_pair_survives_checkpoints_compaction_and_removal_of_files(tmp_path):
    harness = DeltaHarness(
        tmp_path, "mirror", checkpoint_every_commits=2, compact_every_commits=4, vacuum_hours=1, log_hours=1
    )
    log = log_of(*range(15))
    output = harness.make()
    for i in range(15):
        output.write(log.batch(i, i + 1))
    path = Path(output.table_path("shop", ORDERS.source))
    assert list((path / "_delta_log").glob("*.checkpoint.parquet"))
    assert len(DeltaTable(path).file_uris()) < 8
    version = versions(harness)
    harness.make().write(log.batch(0, 15))
    assert versions(harness) == version
    assert ids(harness) == list(range(15))


def test_outputs_that_write_one_batch_each_join_small_files_too(tmp_path):
    harness = DeltaHarness(tmp_path, "history", compact_every_commits=4)
    log = log_of(*range(9))
    for i in range(9):
        output = harness.make()
        output.write(log.batch(i, i + 1))
        output.close()
    assert len(DeltaTable(harness.make().table_path("shop", ORDERS.source)).file_uris()) < 5
    assert ids(harness) == list(range(9))


# Mirror rule


def test_older_image_never_overwrites_a_younger_row(mirror):
    log = log_of(1)
    log.begin().update(ORDERS, order(1), order(1, "young"))
    output = mirror.make()
    output.write(log.batch(0, 3))
    copy = output._copies["shop", ORDERS.source]
    stored = copy.target.stored()
    apply_again(output, log.batch(0, 1).items[0], stored)
    assert [row["note"] for row in mirror.read("shop", ORDERS)] == ["young"]


def apply_again(output, rows, stored):
    """Apply rows that the mirror has, past the look at its pair."""
    staged = staged_rows(ORDERS, rows.rows, tuple(output.part_writer().write("shop/main.orders", rows)))
    kind = output._copies["shop", ORDERS.source].kind
    run_all([kind.commit(staged, ("id",), stored)], Here())


def test_older_delete_never_removes_a_younger_row(mirror):
    log = ChangeLog().begin()
    log.delete(ORDERS, order(1))
    log.begin().insert(ORDERS, order(1, "young"))
    output = mirror.make()
    output.write(log.batch(0, 2))
    copy = output._copies["shop", ORDERS.source]
    apply_again(output, log.batch(0, 1).items[0], copy.target.stored())
    assert ids(mirror) == [1]


def test_truncate_that_comes_late_leaves_younger_rows(mirror):
    log = ChangeLog().begin()
    control = log.control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(1))
    output = mirror.make()
    output.write(log.batch(0, 2))
    copy = output._copies["shop", ORDERS.source]
    run_all([copy.kind.control(control, copy.target.stored())], Here())
    assert ids(mirror) == [1]


def test_table_without_key_is_refused_unless_one_is_named(tmp_path):
    table = TableSchema("main.t", (Column("a", "int64"), Column("b", "string")))
    log = ChangeLog().begin()
    for a in (1, 1, 2):
        log.insert(table, {"a": a, "b": "x"})
    how = r"main.t comes without a key.*mode: history.*out of the output's input \(`inputs: ... exclude: \[main.t\]`\)"
    with pytest.raises(UnsupportedFeature, match=how):  # the relay's log has it: without it in the source, it comes too
        DeltaHarness(tmp_path / "1", "mirror").make().write(log.batch(0, 3))
    with pytest.raises(UnsupportedFeature, match="no column 'c'"):
        DeltaHarness(tmp_path / "2", "mirror", key=["c"]).make().write(log.batch(0, 3))
    named = DeltaHarness(tmp_path / "3", "mirror", key={"main.t": ["a"]})
    named.make().write(log.batch(0, 3))
    assert sorted(row["a"] for row in named.read("shop", table)) == [1, 2]


@pytest.mark.parametrize("first_key", ["\U0010ffff" * 20 + "a", "é" * 70 + "a", "z" * 300 + "a"])
def test_files_are_not_skipped_by_cut_statistics(tmp_path, first_key):
    """Delta keeps only the first characters of a file's greatest string; the row must be found all the same."""
    table = TableSchema("main.t", (Column("k", "string"), Column("n", "int32")), ("k",))
    harness = DeltaHarness(tmp_path, "mirror", compact_every_commits=1000)
    log = ChangeLog().begin()
    log.insert(table, {"k": first_key, "n": 1})
    log.begin().insert(table, {"k": "0", "n": 1})
    log.begin().update(table, {"k": first_key, "n": 1}, {"k": first_key, "n": 2})
    output = harness.make()
    for start, end in ((0, 1), (1, 2), (2, 4)):
        output.write(log.batch(start, end))
    assert sorted((row["k"], row["n"]) for row in harness.read("shop", table)) == sorted([(first_key, 2), ("0", 1)])


# Controls


def gap_log(**body):
    log = log_of(1)
    log.bus_control(ControlKind.GAP, ORDERS, **{"from": 1, "to": 9, "reason": "binlog purged", **body})
    log.begin().insert(ORDERS, order(2))
    return log


def test_a_gap_before_the_snapshot_that_completes_a_mirror_does_not_stop_it(mirror):
    log = gap_log()
    output = mirror.make()
    output.write(replace(log.batch(0, 3), seeds={"shop/main.orders": "asked"}))
    assert ids(mirror) == [1, 2]


@pytest.mark.parametrize("cuts", [[], [1], [2], [3]])
def test_a_gap_behind_the_begin_of_the_snapshot_that_completes_a_mirror_stops_it(mirror, cuts):
    log = log_of(1)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(1)])
    log.bus_control(ControlKind.GAP, ORDERS, **{"from": 1, "to": 9, "reason": "skipped"})
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    output = mirror.make()
    with pytest.raises(UnsupportedFeature, match="skipped"):
        for batch in log.batches(cuts):
            output.write(replace(batch, seeds={"shop/main.orders": "asked"}))


def test_the_end_of_a_snapshot_whose_begin_never_came_deletes_nothing(mirror, tmp_path):
    log = log_of(1)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(1)])
    log.snapshot(ORDERS, [order(2)])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    last = log.batch(3, 5)
    moved = replace(last, start=replace(last.start, snapshots={}))
    mirror.make().write(log.batch(0, 1))
    with pytest.raises(UnsupportedFeature, match=r"a snapshot of shop/main.orders ends whose begin never came"):
        mirror.make().write(moved)
    DeltaHarness(tmp_path, "mirror", on_gap="continue").make().write(moved)
    assert ids(mirror) == [1, 2]


def test_gap_stops_a_mirror_and_says_what_to_do(mirror):
    with pytest.raises(UnsupportedFeature, match=r"binlog purged.*databus rebuild.*on_gap: continue"):
        mirror.make().write(gap_log().batch(0, 3))
    assert ids(mirror) == [1]


@pytest.mark.parametrize("way", ["announced", "option"])
def test_gap_is_passed_where_a_snapshot_follows(tmp_path, way):
    harness = DeltaHarness(tmp_path, "mirror", on_gap="continue" if way == "option" else "stop")
    log = gap_log(**({"resnapshot": True} if way != "option" else {}))
    harness.make().write(log.batch(0, 3))
    assert ids(harness) == [1, 2]


def test_history_records_gaps_truncates_and_drops(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    log = gap_log()
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().control(ControlKind.DROP, ORDERS)
    harness.make().write(log.batch(0, len(log.entries)))
    rows = sorted(harness.read("shop", ORDERS), key=lambda row: (row["_commit_version"], row["_seq"]))
    assert [row["_change_type"] for row in rows] == ["insert", "gap", "insert", "truncate", "drop"]


@pytest.mark.parametrize("cuts", [(), (1, 2, 3, 4, 5, 6)])
def test_a_history_with_all_controls_tells_each_with_the_table_s_definition(tmp_path, cuts):
    """Schemas, snapshots and gaps can be told again from the table alone."""
    harness, log = DeltaHarness(tmp_path, "history", controls="all"), ChangeLog()
    wider = TableSchema(ORDERS.source, (*ORDERS.columns, Column("city", "string")), ORDERS.key)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=7)
    log.snapshot(ORDERS, [order(1)])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=7, begin=list(begin.pair), complete=True)
    log.begin().insert(ORDERS, order(2))
    log.begin().schema(wider, 2, fill={"city": "Bern"})
    log.begin().control(ControlKind.TRUNCATE, wider)
    log.begin().insert(wider, {**order(3), "city": "x"})
    for batch in (*log.batches(cuts), *log.batches(cuts)):
        harness.make().write(batch)
    rows = sorted(harness.read("shop", ORDERS), key=lambda row: (row["_commit_version"], row["_seq"]))
    controls = [entry for entry in log.entries if isinstance(entry, TableControl)]
    assert [(row["_commit_version"], row["_seq"]) for row in rows] == [entry.pair for entry in log.entries]
    told = [(row["_change_type"], json.loads(row["_control"])) for row in rows if row["_control"] is not None]
    assert [kind for kind, _ in told] == [control.kind for control in controls]
    assert [TableSchema.from_json(body.pop("table")) for _, body in told] == [control.table for control in controls]
    assert [body for _, body in told] == [json.loads(json.dumps(dict(control.body))) for control in controls]


@pytest.mark.parametrize("name", ["größe", "订单", "a/b", "[ab]", "100%", "a=b", "a%2Fb", "it's #1?"])
def test_a_table_may_have_any_name(either, name):
    """Delta's engine takes `%` in a path for an escape of its own."""
    table = replace(ORDERS, source=f"main.{name}")
    log = ChangeLog()
    for each in (1, 2):
        log.begin().insert(table, {"id": each, "note": None, "total": None})
    for start in (0, 1):
        either.make().write(log.batch(start, start + 1))
    output = either.make()
    found = Path(output.table_path("shop", table.source))
    assert sorted(read_delta(found, ["id"]).column("id").to_pylist()) == [1, 2]
    assert [path.name for path in found.parent.iterdir() if path.is_dir()] == [found.name]
    assert [*map(Path, output.remove([f"shop/{table.source}"]))] == [found]


def test_names_that_differ_have_folders_that_differ(tmp_path):
    output = DeltaOutput(DeltaConfig(mode="mirror", path="lake", **FROM), context(tmp_path))
    names = ["a/b", "a=2Fb", "a%2Fb", "a=3D2Fb", "größe", "gr=C3=B6ße"]
    assert len({output.table_path("shop", f"main.{name}") for name in names}) == len(names)
    with pytest.raises(UnsupportedFeature, match="has no name that a folder can have"):
        output.table_path("shop", "main...")
