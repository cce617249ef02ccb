"""The files of mirrors: what they say of their contents, what is left of those that pass, who else may arrange them."""

import datetime as dt
import json
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, TableFeatures

from databus.core import ControlKind, CorruptData, LockHeld, ServiceUnavailable, UnsupportedFeature
from databus.schema import Column, TableSchema
from databus.sinks.delta._table import DeltaTarget
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch, write_here
from tests.outputs.harnesses import DeltaHarness, ids, log_of, order
from tests.outputs.test_delta_merge import SharedHarness

COLUMNS = (Column("k", "int64"), Column("at", "timestamptz"), Column("n", "uint64"), Column("d", "date"))
TIMES = TableSchema("main.times", COLUMNS, ("k",))
WIDER = TableSchema(TIMES.source, (*COLUMNS, Column("late", "timestamptz")), TIMES.key)
LATE = dt.datetime(2026, 5, 6, 7, 8, 9, 123456, dt.UTC)


def times(number, **more):
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, dt.UTC) + dt.timedelta(days=number)
    return {"k": number, "at": at, "n": Decimal(2**64 - 1 - number), "d": dt.date(1, 1, 1 + number), **more}


def changes():
    """Files that a merge writes, the end of a snapshot, and a change of the schema that fills."""
    log = ChangeLog()
    for number in range(8):
        log.begin().insert(TIMES, times(number))
    log.begin().delete(TIMES, times(3))
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, TIMES, generation=1)
    log.snapshot(TIMES, [times(number) for number in range(6)])
    log.bus_control(ControlKind.SNAPSHOT_END, TIMES, generation=1, begin=list(begin.pair), complete=True)
    log.begin().schema(WIDER, 2, fill={"late": LATE.isoformat().replace("+00:00", "Z")})
    log.begin().insert(WIDER, times(9, late=LATE))
    return log


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
@pytest.mark.parametrize("cuts", [(), (2, 9, 12, 16, 17)], ids=["at once", "in parts"])
def test_readers_with_a_filter_find_every_row(tmp_path, make, cuts):
    """The engine's own files of mirrors said bounds that are not those of their rows."""
    harness = make(tmp_path, "mirror")
    log = changes()
    for batch in log.batches(cuts):
        harness.make().write(batch)
    dataset = DeltaTable(harness.make().table_path("shop", TIMES.source)).to_pyarrow_dataset()
    rows = dataset.to_table().to_pylist()
    assert sorted(row["k"] for row in rows) == [0, 1, 2, 3, 4, 5, 9]
    for row in rows:
        for name, value in row.items():
            wanted = pa.scalar(value, dataset.schema.field(name).type)
            held = sum(each[name] == value for each in rows)
            assert dataset.to_table(filter=pc.field(name) == wanted).num_rows == held, name


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
def test_files_of_a_history_that_are_joined_say_what_is_in_them_and_change_no_row(tmp_path, make):
    """The engine's own joining cut times down to milliseconds; who follows a table must not be told of rows again."""
    harness = make(tmp_path, "history", compact_every_commits=4)
    for batch in changes().batches([2, 5, 7, 9, 12, 14, 16, 17]):
        write_batch(harness.make(), batch)
    table = DeltaTable(harness.make().table_path("shop", TIMES.source))
    removed, added = actions_of(table, "remove"), actions_of(table, "add")
    versions = {file["version"] for file in removed}
    assert versions
    assert {file["dataChange"] for file in (*removed, *added) if file["version"] in versions} == {False}
    dataset = table.to_pyarrow_dataset()
    rows = dataset.to_table().to_pylist()
    assert len({(row["_commit_version"], row["_seq"]) for row in rows}) == len(rows) > 10
    for row in rows:
        for name in ("k", "at", "n", "d", "_commit_timestamp"):
            wanted = pa.scalar(row[name], dataset.schema.field(name).type)
            held = sum(each[name] == row[name] for each in rows)
            assert dataset.to_table(filter=pc.field(name) == wanted).num_rows == held, name


def actions_of(table, kind):
    """What a table's log says was added or removed, with the version that says it."""
    found = []
    for path in sorted(Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json")):
        said = map(json.loads, path.read_text().splitlines())
        found += [{**each[kind], "version": int(path.stem)} for each in said if kind in each]
    return found


@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_table_whose_rows_may_be_marked_as_deleted_is_refused(tmp_path, mode):
    """Its files hold rows that it does not."""
    harness = DeltaHarness(tmp_path, mode)
    harness.make().write(log_of(1, 2, 3).batch(0, 2))
    table = DeltaTable(harness.make().table_path("shop", ORDERS.source))
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(UnsupportedFeature, match="deletionVectors"):
        harness.make().write(log_of(1, 2, 3).batch(2, 3))


def left_in(harness, table=ORDERS):
    """Files in a table's folder that are not part of it."""
    folder = Path(harness.make().table_path("shop", table.source))
    live = {Path(uri).name for uri in DeltaTable(folder).file_uris()}
    return {path.name for path in folder.iterdir() if path.is_file()} - live


def write_of(harness, way):
    output = harness.make()
    return output.write if way == "by tasks" else partial(write_here, output)


@pytest.mark.parametrize("way", ["by tasks", "by one task"])
def test_files_that_pass_are_gone_after_a_batch(mirror, way):
    log = log_of(1, 2, 3)
    write = write_of(mirror, way)
    for batch in log.batches([1]):
        write(batch)
    left = sorted(name.rpartition(".")[2] for name in left_in(mirror))
    assert left == (["arrow", "parquet", "parquet"] if way == "by tasks" else [])  # of tasks whose answers are lost


@pytest.mark.parametrize("way", ["by tasks", "by one task"])
def test_a_commit_that_fails_leaves_no_files(tmp_path, monkeypatch, way):
    harness = DeltaHarness(tmp_path, "mirror")
    log = log_of(1, 2, 3)
    harness.make().write(log.batch(0, 1))
    before = left_in(harness)

    def conflict(*given):
        raise LockHeld("somebody else writes")

    write = write_of(harness, way)
    with monkeypatch.context() as patched:
        patched.setattr(DeltaTarget, "_transact", conflict)
        with pytest.raises(ServiceUnavailable):  # nobody has written the commit
            write(log.batch(1, 3))
    assert len(left_in(harness) - before) == (2 if way == "by tasks" else 0)  # of tasks whose answers are lost
    harness.make().write(log.batch(1, 3))
    assert ids(harness) == [1, 2, 3]


def test_somebody_who_writes_at_the_same_time_is_found(mirror):
    log = log_of(1, 2)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    output = mirror.make()
    output.write(log.batch(0, 2))
    DeltaTable(output.table_path("shop", ORDERS.source)).optimize.compact()
    other = DeltaTable(output.table_path("shop", ORDERS.source))
    other.delete("id = 2")
    with pytest.raises(CorruptData, match="DELETE"):
        output.write(log.batch(2, 4))


@pytest.mark.parametrize("physical", ["shop", "größe 1%2F"])
def test_files_that_somebody_else_has_arranged_are_rewritten(tmp_path, physical):
    """The engine puts those of a shared table into folders whose names are escaped twice in the log."""
    harness = SharedHarness(tmp_path, "mirror")
    log = replace(log_of(1, 2, 3), physical=physical)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    log.begin().delete(ORDERS, order(2))
    for start in range(3):
        harness.make().write(log.batch(start, start + 1))
    DeltaTable(harness.make().table_path(physical, ORDERS.source)).optimize.compact()
    harness.make().write(log.batch(3, 6))
    found = {row["id"]: row["note"] for row in harness.read(physical, ORDERS)}
    assert len(harness.read(physical, ORDERS)) == 2
    assert found == {1: "new", 3: "x"}


def test_a_truncate_reads_no_file_that_is_older_as_a_whole(mirror):
    log = log_of(1, 2)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, order(3))
    mirror.make().write(log.batch(0, 2))
    for path in Path(mirror.make().table_path("shop", ORDERS.source)).glob("*.parquet"):
        path.write_bytes(b"")
    mirror.make().write(log.batch(2, 4))
    assert ids(mirror) == [3]
