"""Delta tables that several sources share: each one's rows are as they would be in a table of its own."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from decimal import Decimal

import pytest
from deltalake import DeltaTable

from databus.core import ControlKind, CorruptData, LimitExceeded, LockHeld, UnsupportedFeature
from databus.schema import Column, TableSchema
from databus.sinks import read_delta
from databus.testing import OUTPUT_CHECKS
from databus.testing._change_log import ORDERS, STOCK, ChangeLog, Image, mirror_of, random_log
from databus.testing._output_harness import same
from databus.testing._staged_writes import write_by_tasks
from tests.outputs.harnesses import DeltaHarness

EAST, WEST = "shard-east", "shard-west"


class SharedHarness(DeltaHarness):
    """Reads, of a shared table, the rows of one source."""

    def __init__(self, folder, mode, **options):
        super().__init__(folder, mode, **{"merge": True, **options})

    def read(self, physical, table):
        path, source = self.make().table_path(physical, table.source), f"{physical}/{table.source}"
        return read_delta(path, source=source).to_pylist()


class CrowdedHarness(SharedHarness):
    """Another source has written into every table of the suite before."""

    def __init__(self, folder, mode, **options):
        super().__init__(folder, mode, **options)
        for table in (ORDERS, STOCK):
            self.make().write(neighbours(table).batch(0, 4))

    def check_neighbours(self):
        for table in (ORDERS, STOCK):
            kept = [row["_seq"] for row in self.read("elsewhere", table)]
            assert sorted(kept) == [1, 2, 3, 4]


def neighbours(table):
    log = ChangeLog(physical="elsewhere").begin()
    values = {"int64": int, "string": str, "int32": int}
    for number in range(4):
        row = {column.name: values.get(column.type, lambda _: None)(number) for column in table.columns}
        log.insert(table, row)
    return log


@pytest.mark.nightly
@pytest.mark.parametrize("check", OUTPUT_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("mode", ["mirror", pytest.param("history", marks=pytest.mark.nightly)])
def test_a_source_that_shares_its_table_conforms_and_its_neighbour_keeps_its_rows(mode, check, tmp_path):
    harness = CrowdedHarness(tmp_path, mode)
    check(harness)
    harness.check_neighbours()


@pytest.fixture
def mirror(tmp_path):
    return SharedHarness(tmp_path, "mirror")


def order(number, note="x"):
    return {"id": number, "note": note, "total": None}


def shard(physical, *numbers, table=ORDERS):
    log = ChangeLog(physical=physical, uuid=f"log of {physical}")
    for number in numbers:
        log.begin().insert(table, order(number, physical))
    return log


def write_all(harness, *logs):
    for log in logs:
        harness.make().write(log.batch(0, len(log.entries)))


def notes(harness, physical, table=ORDERS):
    return {row["id"]: row["note"] for row in harness.read(physical, table)}


def version_of(harness, table=ORDERS):
    return DeltaTable(harness.make().table_path(EAST, table.source)).version()


@pytest.mark.parametrize("mode", ["mirror", "history"])
@pytest.mark.parametrize("seed", range(2))
def test_shards_that_write_in_turns_and_again_after_crashes_end_as_each_alone(tmp_path, mode, seed):
    """The law: a shard's rows in the shared table depend on its own log only."""
    dice = random.Random(seed)
    harness = SharedHarness(tmp_path, mode, merge_rows_max=11, compact_every_commits=4, checkpoint_every_commits=3)
    logs = [random_log(seed * 10 + number, transactions=15) for number in range(3)]
    for number, log in enumerate(logs):
        log.physical = f"shard{number}"
    done = [0] * len(logs)
    output = harness.make()
    while any(at < len(log.entries) for at, log in zip(done, logs, strict=True)):
        which = dice.randrange(len(logs))
        log, size = logs[which], len(logs[which].entries)
        start = max(0, done[which] - dice.randrange(6))
        done[which] = min(size, max(done[which], start + dice.randrange(1, 25)))
        output.write(log.batch(start, done[which]))
        if dice.random() < 0.2:
            output = harness.make()
    for log, table in itertools.product(logs, (ORDERS, STOCK)):
        assert_is_alone(harness.read(log.physical, table), log, table, mode)


def assert_is_alone(found, log, table, mode):
    if mode == "history":
        kept = [e for e in log.entries if e.table.source == table.source and isinstance(e, Image)]
        rows = [row for row in found if row["_change_type"] not in ("truncate", "drop", "gap")]
        assert sorted((row["_commit_version"], row["_seq"]) for row in rows) == sorted(e.pair for e in kept)
        return
    expected = mirror_of(log.entries, table.source)
    got = {tuple(row[name] for name in table.key): row for row in found}
    assert len(got) == len(found)
    assert set(got) == set(expected)
    for key, (row, pair) in expected.items():
        same(got[key], row, f"{log.physical} {key}")
        assert (got[key]["_commit_version"], got[key]["_seq"]) == pair


def test_the_same_key_in_two_shards_is_two_rows(mirror):
    east, west = shard(EAST, 1, 2), shard(WEST, 1, 3)
    west.begin().delete(ORDERS, order(1, WEST))
    write_all(mirror, east, west)
    assert notes(mirror, EAST) == {1: EAST, 2: EAST}
    assert notes(mirror, WEST) == {3: WEST}


def test_a_snapshots_end_takes_the_older_rows_of_its_own_source_only(mirror):
    east, west = shard(EAST, 1, 2, 3), shard(WEST, 1, 2, 3)
    begin = west.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    west.snapshot(ORDERS, [order(2, "read")])
    west.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    write_all(mirror, east, west)
    assert notes(mirror, EAST) == {1: EAST, 2: EAST, 3: EAST}
    assert notes(mirror, WEST) == {2: "read"}


@pytest.mark.parametrize("kind", [ControlKind.TRUNCATE, ControlKind.DROP])
def test_truncate_and_drop_take_the_rows_of_their_own_source_only(mirror, kind):
    east, west = shard(EAST, 1, 2), shard(WEST, 1, 2)
    east.begin().control(kind, ORDERS)
    write_all(mirror, west, east)
    assert notes(mirror, EAST) == {}
    assert notes(mirror, WEST) == {1: WEST, 2: WEST}


def test_each_source_has_a_pair_of_its_own_and_a_repeat_commits_nothing(mirror):
    east, west = shard(EAST, 1, 2, 3), shard(WEST, *range(9))
    write_all(mirror, east, west)
    version = version_of(mirror)
    write_all(mirror, west, east)
    assert version_of(mirror) == version
    table = DeltaTable(mirror.make().table_path(EAST, ORDERS.source))
    pairs = [table.transaction_version(f"databus/shop/copy/{ORDERS.source}/{each}") for each in (EAST, WEST)]
    assert pairs == [3, 9]


WRITE_AND_DIE = """
from pathlib import Path
from tests.outputs.test_delta_merge import SharedHarness, shard
harness = SharedHarness(Path({folder!r}), {mode!r})
for physical in ("shard-east", "shard-west") * 2:
    harness.make().write(shard(physical, *range(6)).batch(0, 3))
    harness.make().write(shard(physical, *range(6)).batch(2, 6))
"""


@pytest.mark.parametrize("mode", ["mirror", "history"])
@pytest.mark.parametrize("where", ["before_commit:2", "after_commit:2", "after_commit:3"])
def test_kill_at_a_commit_loses_and_repeats_nothing_in_either_shard(tmp_path, mode, where):
    env = {**os.environ, "DATABUS_CRASH_AT": f"delta.{mode}.{where}"}
    script = WRITE_AND_DIE.format(folder=str(tmp_path), mode=mode)
    done = subprocess.run([sys.executable, "-c", script], env=env, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    harness = SharedHarness(tmp_path, mode)
    for log in (shard(EAST, *range(6)), shard(WEST, *range(6))):
        harness.make().write(log.batch(0, 6))
        assert sorted(row["id"] for row in harness.read(log.physical, ORDERS)) == list(range(6))


def test_names_that_are_long_alike_or_full_of_signs_keep_their_rows_apart(mirror):
    names = ["x" * 60 + "1", "x" * 60 + "2", 'it\'s a "shard"', "ütf/8=%2F", "a", "A"]
    for name in names:
        write_all(mirror, shard(name, 1, 2, 3))
    for name in names:
        log = shard(name, 1, 2, 3)
        log.begin().update(ORDERS, order(2, name), order(2, "new"))
        log.begin().delete(ORDERS, order(3, name))
        write_all(mirror, log)
    for name in names:
        assert notes(mirror, name) == {1: name, 2: "new"}, name


def test_tables_of_different_names_may_share_one_too(tmp_path):
    harness = SharedHarness(tmp_path, "mirror", path="lake/{physical}/all")
    years = [TableSchema(f"main.orders_{year}", ORDERS.columns, ORDERS.key) for year in (2024, 2025)]
    log = ChangeLog()
    for table in years:
        log.begin().insert(table, order(1, table.source))
    write_all(harness, log)
    assert [notes(harness, "shop", table) for table in years] == [{1: table.source} for table in years]


# Schemas that differ for a while, or for ever


def columns(*more, drop=()):
    kept = tuple(column for column in ORDERS.columns if column.name not in drop)
    return TableSchema(ORDERS.source, (*kept, *(Column(*each) for each in more)), ORDERS.key)


def values(harness, physical, column):
    return {row["id"]: row[column] for row in harness.read(physical, ORDERS)}


def test_a_new_column_is_filled_in_the_rows_of_the_source_that_has_it(mirror):
    wider = columns(("city", "string"))
    east, west = shard(EAST, 1), shard(WEST, 1)
    write_all(mirror, east, west)
    east.begin().schema(wider, 2, fill={"city": "Bern"})
    east.begin().insert(wider, {**order(2), "city": "Chur"})
    write_all(mirror, east)
    west.begin().insert(ORDERS, order(5))
    write_all(mirror, west)
    assert values(mirror, EAST, "city") == {1: "Bern", 2: "Chur"}
    assert values(mirror, WEST, "city") == {1: None, 5: None}
    west.begin().schema(wider, 2, fill={"city": "Rome"})
    write_all(mirror, west)
    assert values(mirror, EAST, "city") == {1: "Bern", 2: "Chur"}
    assert values(mirror, WEST, "city") == {1: "Rome", 5: "Rome"}


def test_a_dropped_column_is_null_in_the_rows_of_the_source_that_dropped_it(mirror):
    without = columns(drop=("note",))
    east, west = shard(EAST, 1), shard(WEST, 1)
    write_all(mirror, east, west)
    east.begin().schema(without, 1)
    east.begin().insert(without, {"id": 2, "total": None})
    write_all(mirror, east)
    west.begin().insert(ORDERS, order(2, "new"))
    write_all(mirror, west)
    assert notes(mirror, EAST) == {1: None, 2: None}
    assert notes(mirror, WEST) == {1: WEST, 2: "new"}


def test_a_renamed_column_moves_in_the_rows_of_its_source_and_leaves_pairs_alone(mirror):
    renamed = columns(("remark", "string"), drop=("note",))
    east, west = shard(EAST, 1), shard(WEST, 1)
    write_all(mirror, east, west)
    for log in (east, west):
        log.begin().schema(renamed, 1, renamed={"note": "remark"})
    write_all(mirror, east)
    assert (values(mirror, EAST, "remark"), notes(mirror, EAST)) == ({1: EAST}, {1: None})
    assert (values(mirror, WEST, "remark"), notes(mirror, WEST)) == ({1: None}, {1: WEST})
    write_all(mirror, west)
    assert (values(mirror, WEST, "remark"), notes(mirror, WEST)) == ({1: WEST}, {1: None})
    assert {(row["_commit_version"], row["_seq"]) for row in mirror.read(EAST, ORDERS)} == {(1, 1)}


def test_a_control_that_changes_nothing_for_the_others_writes_no_file(mirror):
    east, west = shard(EAST, 1), shard(WEST, 1)
    wider = columns(("city", "string"))
    east.begin().schema(wider, 2, fill={"city": "Bern"})
    write_all(mirror, east, west)
    version = version_of(mirror)
    west.begin().schema(columns(drop=()), 1, ddl="ALTER TABLE orders COMMENT 'x'")
    write_all(mirror, west)
    assert version_of(mirror) == version


NARROW = TableSchema("main.t", (Column("id", "int64"), Column("v", "int32")), ("id",))
WIDE = TableSchema("main.t", (Column("id", "int64"), Column("v", "int64")), ("id",))
TEXT = TableSchema("main.t", (Column("id", "int64"), Column("v", "string")), ("id",))


def t_log(physical, table, *values):
    log = ChangeLog(physical=physical).begin()
    for number, value in enumerate(values):
        log.insert(table, {"id": number, "v": value})
    return log


def t_values(harness, physical):
    return sorted(row["v"] for row in harness.read(physical, WIDE))


@pytest.mark.parametrize("mode", ["mirror", "history"])
@pytest.mark.parametrize("first", [WIDE, NARROW], ids=["wide first", "narrow first"])
def test_a_column_has_a_type_that_holds_everybodys_values(tmp_path, mode, first):
    harness = SharedHarness(tmp_path, mode)
    logs = [t_log(EAST, WIDE, 2**40), t_log(WEST, NARROW, -5)]
    write_all(harness, *(logs if first is WIDE else reversed(logs)))
    assert (t_values(harness, EAST), t_values(harness, WEST)) == ([2**40], [-5])


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_types_that_do_not_go_together_stop_the_one_that_comes_later(tmp_path, mode):
    harness = SharedHarness(tmp_path, mode)
    write_all(harness, t_log(EAST, WIDE, 1))
    with pytest.raises(UnsupportedFeature, match=r"shard-west|main\.t"):
        write_all(harness, t_log(WEST, TEXT, "one"))
    assert t_values(harness, EAST) == [1]
    assert harness.read(WEST, TEXT) == []


def test_values_that_do_not_become_the_new_type_stop_or_wait_for_the_snapshot(mirror):
    write_all(mirror, t_log(WEST, WIDE, 2**40))
    stops, empties = t_log(EAST, WIDE, 2**40), t_log(EAST, WIDE, 2**40)
    stops.begin().schema(NARROW, 1)
    empties.begin().schema(NARROW, 3)
    empties.begin().insert(NARROW, {"id": 7, "v": 7})
    with pytest.raises(UnsupportedFeature, match=r"v, and the values .* do not become the new type exactly"):
        write_all(mirror, stops)
    write_all(mirror, empties)
    assert (t_values(mirror, EAST), t_values(mirror, WEST)) == ([7], [2**40])


def test_rewrite_stops_at_its_limit_and_names_it(tmp_path):
    harness = SharedHarness(tmp_path, "mirror", rewrite_bytes_max=10)
    write_all(harness, t_log(WEST, NARROW, 1))
    with pytest.raises(LimitExceeded, match="rewrite_bytes_max=10"):
        write_all(harness, t_log(EAST, WIDE, 1))


def test_decimals_and_keys_of_a_shard_are_matched_in_the_tables_wider_type(mirror):
    small = TableSchema("main.d", (Column("id", "int32"), Column("v", "decimal(5,1)")), ("id",))
    large = TableSchema("main.d", (Column("id", "int64"), Column("v", "decimal(20,4)")), ("id",))
    write_all(mirror, t_log(EAST, large, Decimal("1.2345")))
    west = ChangeLog(physical=WEST).begin()
    west.insert(small, {"id": 1, "v": Decimal("1.5")})
    write_all(mirror, west)
    west.begin().update(small, {"id": 1, "v": Decimal("1.5")}, {"id": 1, "v": Decimal("2.5")})
    write_all(mirror, west)
    assert [row["v"] for row in mirror.read(WEST, small)] == [Decimal("2.5")]


# Who may write there


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_table_that_is_gone_is_missed_by_each_of_its_sources(tmp_path, mode):
    harness = SharedHarness(tmp_path, mode)
    write_all(harness, shard(EAST, 1), shard(WEST, 1))
    shutil.rmtree(harness.make().table_path(EAST, ORDERS.source))
    write_all(harness, shard("a new shard", 1))
    for physical in (EAST, WEST):
        with pytest.raises(CorruptData, match="is gone"):
            harness.make().write(shard(physical, 1, 2).batch(1, 2))


def test_a_shard_that_would_lack_its_first_rows_is_refused_whoever_was_there_before(mirror):
    write_all(mirror, shard(EAST, 1))
    with pytest.raises(UnsupportedFeature, match=f"would mirror {WEST}/main.orders from SCN 1 on"):
        mirror.make().write(shard(WEST, 1, 2).batch(1, 2))


def test_a_shard_that_joins_in_the_middle_begins_with_its_snapshot(mirror):
    write_all(mirror, shard(EAST, 1))
    west = shard(WEST, 1, 2)
    begin = west.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    west.snapshot(ORDERS, [order(1, "read")])
    west.snapshot(ORDERS, [order(2, "read")])
    west.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    for index in range(2, len(west.entries)):
        mirror.make().write(west.batch(index, index + 1))
    assert (notes(mirror, EAST), notes(mirror, WEST)) == ({1: EAST}, {1: "read", 2: "read"})


def test_a_second_process_is_refused_and_nothing_is_doubled(mirror, monkeypatch):
    east, west = shard(EAST, 1, 2), shard(WEST, 1, 2)
    first, second = mirror.make(), mirror.make()
    first.write(east.batch(0, 1))
    second.write(west.batch(0, 1))
    target = second._copies[WEST, ORDERS.source].target

    def refresh(**_):  # between reading and committing
        first.write(east.batch(1, 2))

    monkeypatch.setattr(target, "refresh", refresh)
    with pytest.raises(LockHeld, match="another process"):
        second.write(west.batch(1, 2))
    assert (set(notes(mirror, EAST)), set(notes(mirror, WEST))) == ({1, 2}, {1})


def test_a_table_of_one_source_is_not_shared_and_a_shared_one_not_taken(tmp_path):
    alone, shared = DeltaHarness(tmp_path, "mirror"), SharedHarness(tmp_path, "mirror")
    write_all(alone, shard(EAST, 1))
    with pytest.raises(UnsupportedFeature, match=r"is the copy of shard-east/main\.orders"):
        write_all(shared, shard(WEST, 1))
    shutil.rmtree(tmp_path / "lake")
    write_all(shared, shard(EAST, 1))
    with pytest.raises(UnsupportedFeature, match="is the copy of several, by shop/copy"):
        write_all(alone, shard(EAST, 1, 2))


@pytest.mark.parametrize(
    ("mode", "change"),
    [
        ("mirror", lambda table: table.restore(table.version() - 2)),
        ("history", lambda table: table.restore(table.version() - 2)),
        ("mirror", lambda table: table.delete("id = 1")),
    ],
)
def test_rows_that_somebody_else_changes_between_batches_are_noticed(tmp_path, mode, change):
    harness = SharedHarness(tmp_path, mode)
    east, output = shard(EAST, *range(5)), harness.make()
    for at in range(4):
        output.write(east.batch(at, at + 1))
    change(DeltaTable(output.table_path(EAST, ORDERS.source)))
    with pytest.raises(CorruptData, match=r"another program has changed its rows in version \d+ \((RESTORE|DELETE)\)"):
        output.write(east.batch(4, 5))


def test_files_that_somebody_else_joins_between_batches_are_no_trouble(tmp_path):
    harness = SharedHarness(tmp_path, "history")
    logs, output = [shard(EAST, *range(6)), shard(WEST, *range(6))], harness.make()
    for at in range(6):
        for log in logs:
            output.write(log.batch(at, at + 1))
        DeltaTable(output.table_path(EAST, ORDERS.source)).optimize.compact()
    assert [ids(harness, log.physical) for log in logs] == [[*range(6)]] * 2


def ids(harness, physical):
    return sorted(row["id"] for row in harness.read(physical, ORDERS))


def test_upkeep_leaves_what_tasks_have_written_for_another_source_of_the_batch(tmp_path):
    harness = SharedHarness(tmp_path, "history", path="lake/{db}", compact_every_commits=1, vacuum_hours=1)
    tables = [TableSchema(f"main.orders_{each}", ORDERS.columns, ORDERS.key) for each in "ab"]
    log = ChangeLog()
    for table in tables:
        log.begin().insert(table, order(1))
    output = harness.make()
    commit, hours_ago = output.commit, time.time() - 2 * 3600

    def commit_late(staged, tasks):
        for file in tmp_path.rglob("rows-*"):
            os.utime(file, (hours_ago, hours_ago))
        commit(staged, tasks)

    write_by_tasks(output, log.batch(0, 2), commit_late, output.discard)
    assert [len(harness.read("shop", table)) for table in tables] == [1, 1]
