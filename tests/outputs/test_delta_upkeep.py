"""What upkeep of a Delta table removes: what its killed tasks have left, and nothing that is somebody else's."""

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from databus.testing._change_log import ORDERS
from tests.outputs.harnesses import DeltaHarness, ids, log_of, order
from tests.outputs.test_delta_merge import SharedHarness

OPTIONS = {"compact_every_commits": 1, "vacuum_hours": 1}
LEFT = "4f1c0000000000000000000000000000"


def age(*files):
    old_s = time.time() - 1_000_000
    for file in files:
        os.utime(file, (old_s, old_s))


@pytest.fixture(params=[DeltaHarness, SharedHarness])
def harness(request, tmp_path):
    return request.param(tmp_path, "mirror", **OPTIONS)


@pytest.fixture
def folder(harness):
    """Of a table with a row."""
    harness.make().write(log_of(1, 2).batch(0, 1))
    return Path(harness.make().table_path("shop", "main.orders"))


def upkeep(harness):
    """Another batch, after which an output that has just started looks after its tables."""
    harness.make().write(log_of(1, 2).batch(1, 2))
    assert ids(harness) == [1, 2]


def test_upkeep_leaves_tables_and_files_below_the_table_alone(harness, folder):
    write_deltalake(folder / "history", pa.table({"a": [1, 2, 3]}))
    for name in ("raw/x.parquet", f"raw/rows-{LEFT}.parquet", "notes.parquet", "raw/_staged.7.part"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"mine")
    theirs = [path for path in (*(folder / "history").rglob("*"), *(folder / "raw").glob("*")) if path.is_file()]
    theirs.append(folder / "notes.parquet")
    age(*theirs)
    upkeep(harness)
    assert [path for path in theirs if not path.exists()] == []
    assert DeltaTable(folder / "history").to_pyarrow_table().num_rows == 3


def test_upkeep_removes_what_killed_tasks_have_left_when_it_is_old(harness, folder):
    left = [folder / name.format(LEFT) for name in ("rows-{}.parquet", "rows-{}.arrow", ".rows-{}.parquet.partial")]
    young = [path.with_name(path.name.replace("4f1c", "0b2d")) for path in left]
    for path in (*left, *young):
        path.write_bytes(b"1")
    age(*left)
    upkeep(harness)
    assert [path.name for path in left if path.exists()] == []
    assert [path.name for path in young if not path.exists()] == []


def test_upkeep_leaves_files_that_no_version_needs_since_a_moment_ago(harness, folder):
    table = DeltaTable(folder)
    rows = table.to_pyarrow_table()
    files = [Path(uri) for uri in table.file_uris()]
    age(*files)
    log = log_of(1)
    log.begin().update(ORDERS, order(1), order(1, "new"))
    harness.make().write(log.batch(1, 3))
    assert not {path.name for path in files} & {Path(uri).name for uri in DeltaTable(folder).file_uris()}
    assert DeltaTable(folder, version=table.version()).to_pyarrow_table() == rows


def test_a_kill_while_a_task_writes_into_a_table_that_is_not_made_yet_is_no_damage(harness):
    folder = Path(harness.make().table_path("shop", "main.orders"))
    (folder / "_delta_log").mkdir(parents=True)
    (folder / f".rows-{LEFT}.parquet.partial").write_bytes(b"1")
    harness.make().write(log_of(1, 2).batch(0, 1))
    assert ids(harness) == [1]
