"""Delta: what the conformance suite does not reach. Each test fails without the code that its name speaks of."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from databus.core import ConfigError, ControlKind, CorruptData, DiskFull, LimitExceeded, LockHeld, UnsupportedFeature
from databus.pipeline import ChangeBatch
from databus.pipeline.outputs import DeltaConfig, DeltaOutput
from databus.pipeline.outputs._delta_mirror import last_images
from databus.schema import Column, TableSchema, converts_exactly, widens_to
from databus.testing._change_log import ORDERS, ChangeLog, mirror_of, random_log
from tests.outputs.harnesses import FROM, DeltaHarness, context


def order(number, note="x"):
    return {"id": number, "note": note, "total": None}


def log_of(*numbers, uuid="log-1"):
    log = ChangeLog(uuid=uuid)
    for number in numbers:
        log.begin().insert(ORDERS, order(number))
    return log


def versions(harness, table=ORDERS):
    return harness.target("shop", table).table.version()


def ids(harness, table=ORDERS):
    return sorted(row["id"] for row in harness.read("shop", table))


@pytest.fixture(params=["mirror", "history"])
def either(request, tmp_path):
    return DeltaHarness(tmp_path, request.param)


@pytest.fixture
def mirror(tmp_path):
    return DeltaHarness(tmp_path, "mirror")


# Exactly once


def test_repeated_batch_commits_nothing(either):
    log = log_of(1, 2, 3)
    either.make().write(log.batch(0, 3))
    version = versions(either)
    either.make().write(log.batch(0, 3))
    either.make().write(log.batch(1, 2))
    assert versions(either) == version


def test_pair_and_rows_are_one_commit(either):
    either.make().write(log_of(1, 2).batch(0, 2))
    path = either.make().table_path("shop", ORDERS.source)
    texts = [file.read_text() for file in sorted((path / "_delta_log").glob("*.json"))]
    with_rows = [text for text in texts if '"add"' in text]
    assert len(with_rows) == 1
    stored = [json.loads(line)["txn"] for line in with_rows[0].splitlines() if '"txn"' in line]
    name = f"databus/shop/copy/{ORDERS.source}/shop"
    assert {each["appId"]: each["version"] for each in stored if not each["appId"].endswith("/log")} == {
        name: 2,
        f"{name}/seq": (1 << 40) - 1,
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
    path = output.table_path("shop", ORDERS.source)
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
    rows = log.batch(0, 1).items[0].rows
    copy.kind.write(ORDERS, rows, ("id",), stored)
    assert [row["note"] for row in mirror.read("shop", ORDERS)] == ["young"]


def test_older_delete_never_removes_a_younger_row(mirror):
    log = ChangeLog().begin()
    log.delete(ORDERS, order(1))
    log.begin().insert(ORDERS, order(1, "young"))
    output = mirror.make()
    output.write(log.batch(0, 2))
    copy = output._copies["shop", ORDERS.source]
    copy.kind.write(ORDERS, log.batch(0, 1).items[0].rows, ("id",), copy.target.stored())
    assert ids(mirror) == [1]


def test_truncate_that_comes_late_leaves_younger_rows(mirror):
    log = ChangeLog().begin()
    control = log.control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(1))
    output = mirror.make()
    output.write(log.batch(0, 2))
    copy = output._copies["shop", ORDERS.source]
    copy.kind.control(control, copy.target.stored())
    assert ids(mirror) == [1]


def test_last_images_are_those_of_a_loop():
    rows = pa.table({"k": [1, 2, 1, None, None, 2], "v": [0, 1, 2, 3, 4, 5]})
    last = {}
    for row in rows.to_pylist():
        last[row["k"]] = row["v"]
    assert {row["k"]: row["v"] for row in last_images(rows, ["k"]).to_pylist()} == last


def test_table_without_key_is_refused_unless_one_is_named(tmp_path):
    table = TableSchema("main.t", (Column("a", "int64"), Column("b", "string")))
    log = ChangeLog().begin()
    for a in (1, 1, 2):
        log.insert(table, {"a": a, "b": "x"})
    with pytest.raises(UnsupportedFeature, match=r"main.t has no key.*mode: history"):
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
    output.incomplete = frozenset({"shop/main.orders"})
    output.write(log.batch(0, 3))
    assert ids(mirror) == [1, 2]


@pytest.mark.parametrize("cuts", [[], [1], [2], [3]])
def test_a_gap_behind_the_begin_of_the_snapshot_that_completes_a_mirror_stops_it(mirror, cuts):
    log = log_of(1)
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(1)])
    log.bus_control(ControlKind.GAP, ORDERS, **{"from": 1, "to": 9, "reason": "skipped"})
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    output = mirror.make()
    output.incomplete = frozenset({"shop/main.orders"})
    with pytest.raises(UnsupportedFeature, match="skipped"):
        for batch in log.batches(cuts):
            output.write(batch)


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


# Schemas

NARROW = TableSchema("main.t", (Column("id", "int64"), Column("v", "float64"), Column("w", "string")), ("id",))


def schema_log(to, change_class, values=(1.0, 2.5), **body):
    log = ChangeLog().begin()
    for number, value in enumerate(values):
        log.insert(NARROW, {"id": number, "v": value, "w": "w"})
    log.begin().schema(to, change_class, **body)
    return log


def table(*columns):
    return TableSchema("main.t", (Column("id", "int64"), *(Column(*each) for each in columns)), ("id",))


def test_mirror_drops_and_renames_in_one_commit(mirror):
    to = table(("value", "float64"))
    log = schema_log(to, 1, renamed={"v": "value"})
    mirror.make().write(log.batch(0, 2))
    version = versions(mirror, NARROW)
    mirror.make().write(log.batch(2, 3))
    assert versions(mirror, NARROW) == version + 1
    rows = sorted(mirror.read("shop", to), key=lambda row: row["id"])
    assert [(row["value"], row["_commit_version"], row["_seq"], len(row)) for row in rows] == [
        (1.0, 1, 1, 4),
        (2.5, 1, 2, 4),
    ]


def test_fill_leaves_pairs_alone_and_takes_rows_below_the_control_only(mirror):
    to = table(("v", "float64"), ("w", "string"), ("rate", "decimal(6,3)"))
    log = schema_log(to, 2, fill={"rate": "1.250"})
    log.begin().insert(to, {"id": 9, "v": 0.0, "w": "", "rate": None})
    mirror.make().write(log.batch(0, 4))
    rows = sorted(mirror.read("shop", to), key=lambda row: row["id"])
    assert [(row["rate"], row["_commit_version"]) for row in rows] == [
        (Decimal("1.250"), 1),
        (Decimal("1.250"), 1),
        (None, 3),
    ]


def test_fill_that_comes_late_leaves_younger_rows(mirror):
    to = table(("v", "float64"), ("w", "string"), ("rate", "decimal(6,3)"))
    log = schema_log(to, 2, fill={"rate": "1.250"})
    log.begin().insert(to, {"id": 9, "v": 0.0, "w": "", "rate": Decimal(7)})
    output = mirror.make()
    output.write(log.batch(0, 4))
    copy = output._copies["shop", NARROW.source]
    copy.kind.control(log.entries[2], copy.target.stored())
    rows = sorted(mirror.read("shop", to), key=lambda row: row["id"])
    assert [row["rate"] for row in rows] == [Decimal("1.250"), Decimal("1.250"), Decimal(7)]


def test_class_3_empties_a_mirror_whose_values_do_not_convert(mirror):
    to = table(("v", "int32"), ("w", "string"))
    log = schema_log(to, 3)
    mirror.make().write(log.batch(0, 2))
    version = versions(mirror, NARROW)
    mirror.make().write(log.batch(2, 3))
    assert mirror.read("shop", to) == []
    assert versions(mirror, NARROW) == version + 1
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, to, generation=1)
    log.snapshot(to, [{"id": 0, "v": 1, "w": "w"}, {"id": 1, "v": 3, "w": "w"}])
    log.bus_control(ControlKind.SNAPSHOT_END, to, generation=1, begin=list(begin.pair), complete=True)
    mirror.make().write(log.batch(3, len(log.entries)))
    assert sorted(row["v"] for row in mirror.read("shop", to)) == [1, 3]


def test_class_3_keeps_values_that_convert_exactly(mirror):
    to = table(("v", "int32"), ("w", "string"))
    log = schema_log(to, 3, values=(1.0, -7.0))
    mirror.make().write(log.batch(0, 3))
    assert sorted(row["v"] for row in mirror.read("shop", to)) == [-7, 1]


def test_class_1_that_would_change_values_stops(mirror):
    log = schema_log(table(("v", "int32"), ("w", "string")), 1)
    with pytest.raises(UnsupportedFeature, match="do not become the new type exactly"):
        mirror.make().write(log.batch(0, 3))
    assert sorted(row["v"] for row in mirror.read("shop", NARROW)) == [1.0, 2.5]


def test_rewrite_stops_at_its_limit_and_names_it(tmp_path):
    harness = DeltaHarness(tmp_path, "mirror", rewrite_bytes_max=10)
    with pytest.raises(LimitExceeded, match="rewrite_bytes_max=10"):
        harness.make().write(schema_log(table(("v", "float64")), 1).batch(0, 3))


def test_rows_in_another_schema_without_its_control_stop_a_mirror(mirror):
    other = table(("v", "float64"), ("w", "string"), ("more", "string"))
    log = ChangeLog().begin()
    log.insert(NARROW, {"id": 1, "v": 1.5, "w": ""})
    log.begin().insert(other, {"id": 2, "v": 1.5, "w": "", "more": ""})
    mirror.make().write(log.batch(0, 1))
    with pytest.raises(UnsupportedFeature, match=r"more string.*without the `schema` control"):
        mirror.make().write(log.batch(1, 2))


def test_history_keeps_dropped_columns_and_takes_renamed_ones_as_new(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    to = table(("value", "float64"))
    log = schema_log(to, 1, renamed={"v": "value"}, fill={"value": 9.0})
    log.begin().insert(to, {"id": 5, "value": 5.0})
    harness.make().write(log.batch(0, 4))
    rows = sorted(harness.read("shop", to), key=lambda row: row["id"])
    assert [(row["v"], row["w"], row["value"]) for row in rows] == [
        (1.0, "w", None),
        (2.5, "w", None),
        (None, None, 5.0),
    ]


def test_history_stops_at_a_type_that_does_not_widen(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    log = schema_log(table(("v", "string"), ("w", "string")), 3)
    with pytest.raises(UnsupportedFeature, match=r"v of main.t became string.*holds double.*databus rebuild"):
        harness.make().write(log.batch(0, 3))
    assert len(harness.read("shop", NARROW)) == 2


def test_history_takes_a_narrower_type_as_what_it_has(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    wide, narrow = table(("v", "int64")), table(("v", "int16"))
    log = ChangeLog().begin()
    log.insert(wide, {"id": 1, "v": 2**40})
    log.begin().schema(narrow, 3)
    log.begin().insert(narrow, {"id": 2, "v": -5})
    harness.make().write(log.batch(0, 3))
    assert sorted(row["v"] for row in harness.read("shop", wide)) == [-5, 2**40]


def test_one_and_a_half_never_becomes_one():
    assert not converts_exactly(pa.array([1.0, 1.5]), pa.int64())
    assert converts_exactly(pa.array([1.0, None]), pa.int64())
    assert not converts_exactly(pa.array([2**53 + 1]), pa.float64())
    assert not converts_exactly(pa.array([0.1]), pa.float32())
    assert not converts_exactly(pa.array(["1"]), pa.int64())
    assert widens_to(pa.int32(), pa.decimal128(10, 0))
    assert not widens_to(pa.int64(), pa.decimal128(18, 0))


# A disk that is full


@contextmanager
def room_for_files_of(size):
    """Files of at most so many bytes, as on a disk that is full; the process may have its room back."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 256, 1_500])
def test_a_full_disk_is_called_one_and_the_output_goes_on_when_there_is_room(either, size):
    log = log_of(*range(1, 5))
    either.make().write(log.batch(0, 1))
    output = either.make()
    with room_for_files_of(size), pytest.raises(DiskFull, match=r"lake.*tried again: free some room"):
        output.write(log.batch(1, 4))
    output.close()
    output.open()
    output.write(log.batch(1, 4))
    assert ids(either) == [1, 2, 3, 4]


def test_a_first_table_waits_for_room_too(either):
    log = log_of(1)
    with room_for_files_of(0), pytest.raises(DiskFull):
        either.make().write(log.batch(0, 1))
    either.make().write(log.batch(0, 1))
    assert ids(either) == [1]


# Tables that are missing, broken, or somebody else's


def test_table_that_is_gone_is_missed(either):
    log = log_of(1, 2)
    either.make().write(log.batch(0, 1))
    shutil.rmtree(either.make().table_path("shop", ORDERS.source))
    with pytest.raises(CorruptData, match=r"is gone.*Restore it. Or: Have the table made anew"):
        either.make().write(log.batch(1, 2))


def test_snapshot_makes_a_table_that_is_gone_again(mirror):
    log = log_of(1)
    mirror.make().write(log.batch(0, 1))
    shutil.rmtree(mirror.make().table_path("shop", ORDERS.source))
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(1), order(7)])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    mirror.make().write(log.batch(1, 2))
    mirror.make().write(log.batch(2, len(log.entries)))
    assert ids(mirror) == [1, 7]


def test_mirror_that_would_lack_its_first_rows_is_refused(mirror):
    log = log_of(1, 2)
    with pytest.raises(UnsupportedFeature, match="from SCN 1 on, without the rows from before"):
        mirror.make().write(log.batch(1, 2))


def test_history_may_begin_anywhere(tmp_path):
    harness = DeltaHarness(tmp_path, "history")
    harness.make().write(log_of(1, 2).batch(1, 2))
    assert ids(harness) == [2]


def test_broken_log_of_a_table_is_an_error_with_the_way_out(either):
    either.make().write(log_of(1, 2).batch(0, 1))
    path = either.make().table_path("shop", ORDERS.source)
    for file in (path / "_delta_log").glob("*.json"):
        file.write_text("{not json")
    with pytest.raises(CorruptData, match="Restore the folder"):
        either.make().write(log_of(1, 2).batch(1, 2))


@pytest.mark.parametrize("left", [[], ["_commit_5e0c.json.tmp"]], ids=["nothing", "an unfinished commit"])
def test_a_kill_while_a_table_is_created_is_no_damage(either, left):
    log = either.make().table_path("shop", ORDERS.source) / "_delta_log"
    log.mkdir(parents=True)
    for name in left:
        (log / name).write_text('{"commitInfo')
    either.make().write(log_of(1, 2).batch(0, 2))
    assert ids(either) == [1, 2]


def test_a_table_that_has_lost_its_log_is_an_error_with_the_way_out(either):
    either.make().write(log_of(1, 2).batch(0, 1))
    for file in (either.make().table_path("shop", ORDERS.source) / "_delta_log").iterdir():
        file.unlink()
    with pytest.raises(CorruptData, match="Restore"):
        either.make().write(log_of(1, 2).batch(1, 2))


def test_missing_file_of_a_mirror_is_an_error_and_commits_nothing(mirror):
    log = log_of(1)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    mirror.make().write(log.batch(0, 1))
    path = mirror.make().table_path("shop", ORDERS.source)
    version = versions(mirror)
    for file in path.glob("*.parquet"):
        file.unlink()
    with pytest.raises(CorruptData, match=r"Nothing was committed\. Restore"):
        mirror.make().write(log.batch(1, 3))
    assert versions(mirror) == version


def test_table_of_another_source_or_program_is_refused(tmp_path):
    harness = DeltaHarness(tmp_path, "mirror")
    path = harness.make().table_path("shop", ORDERS.source)
    write_deltalake(path, pa.table({"id": [1]}))
    with pytest.raises(UnsupportedFeature, match="did not make"):
        harness.make().write(log_of(1).batch(0, 1))


def test_two_sources_never_share_a_folder(mirror):
    log = log_of(1)
    log.begin().insert(TableSchema("archive.orders", ORDERS.columns, ORDERS.key), order(1))
    with pytest.raises(ConfigError, match=r"archive.orders and shop/main.orders would both be"):
        mirror.make().write(log.batch(0, 2))


def test_renamed_pipeline_does_not_write_over_rows_whose_place_it_does_not_know(mirror):
    mirror.make().write(log_of(1).batch(0, 1))
    output = mirror.make()
    output.context = type(output.context)("renamed", "copy", output.context.folder)
    with pytest.raises(UnsupportedFeature, match="renamed pipeline"):
        output.write(log_of(1, 2).batch(0, 2))


def test_template_that_names_something_else_is_a_configuration_error(tmp_path):
    harness = DeltaHarness(tmp_path, "mirror", path="lake/{tabel}")
    with pytest.raises(ConfigError, match=r"\{physical\}, \{db\} and \{table\}"):
        harness.make().write(log_of(1).batch(0, 1))


def test_options_say_their_units_and_bounds():
    with pytest.raises(ValueError, match="compact_every_commits"):
        DeltaConfig(mode="mirror", path="x", compact_every_commits=0, **FROM)


def test_two_pipelines_in_one_folder_do_not_forget_each_others_tables(tmp_path):
    log = log_of(1, 2)
    outputs = [
        DeltaOutput(DeltaConfig(mode="mirror", path="lake/{physical}", **FROM), context(tmp_path, pipeline))
        for pipeline in ("one", "two")
    ]
    for number, output in enumerate(outputs):
        output.open()
        output.write(replace(log.batch(0, 1), physical=f"shop{number}"))
    for number, output in enumerate(outputs):
        output.write(replace(log.batch(1, 2), physical=f"shop{number}"))
        output.close()
        assert [*output.tables()] == [f"shop{number}/main.orders"]


def test_the_tables_of_an_output_of_an_earlier_version_are_known(mirror, tmp_path):
    output = mirror.make()
    output.open()
    output.write(log_of(1).batch(0, 1))
    output.close()
    (new,) = tmp_path.rglob(".databus-*.tables.json")
    new.rename(new.with_name(".databus-copy.json"))
    assert [*mirror.make().tables()] == ["shop/main.orders"]
