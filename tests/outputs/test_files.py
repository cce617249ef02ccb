"""Files: names from pairs, whole or not at all, nothing written twice."""

import json
import os
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
from pyarrow.dataset import dataset

from databus.core import ControlKind, InputError, UnsupportedFeature
from databus.testing._change_log import ORDERS, ChangeLog
from databus.testing._staged_writes import write_batch
from tests.outputs.harnesses import FilesHarness


def log_of(*numbers, uuid="log-1"):
    log = ChangeLog(uuid=uuid)
    for number in numbers:
        log.begin().insert(ORDERS, {"id": number, "note": "x", "total": None})
    return log


def ids(harness):
    return sorted(row["id"] for row in harness.read("shop", ORDERS))


def test_repeated_batch_makes_the_same_file_or_none(tmp_path):
    harness, other = FilesHarness(tmp_path / "a", "parquet"), FilesHarness(tmp_path / "b", "parquet")
    log = log_of(1, 2, 3)
    for _ in range(2):
        harness.make().write(log.batch(0, 3))
    other.make().write(log.batch(0, 3))
    assert [path.name for path in harness.files(ORDERS)] == [path.name for path in other.files(ORDERS)]
    assert len(harness.files(ORDERS)) == 1


def test_names_sort_as_their_rows_do(tmp_path):
    harness = FilesHarness(tmp_path, "parquet", rows_per_file_max=1)
    log = log_of(*range(12))
    harness.make().write(log.batch(0, 12))
    assert [pq.read_table(path)["id"][0].as_py() for path in harness.files(ORDERS)] == list(range(12))


@pytest.mark.parametrize("where", ["files.before_rename:2", "files.after_rename:2"])
def test_kill_at_a_rename_leaves_no_torn_file_and_loses_nothing(tmp_path, where):
    script = (
        "from pathlib import Path\nfrom tests.outputs.test_files import log_of\n"
        "from tests.outputs.harnesses import FilesHarness\n"
        f"out = FilesHarness(Path({str(tmp_path)!r}), 'parquet').make()\n"
        "[out.write(log_of(*range(9)).batch(i, i + 3)) for i in (0, 3, 6)]"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "DATABUS_CRASH_AT": where}, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    harness = FilesHarness(tmp_path, "parquet")
    harness.make().write(log_of(*range(9)).batch(0, 9))
    assert ids(harness) == list(range(9))
    assert not [path for path in harness.files(ORDERS) if path.name.endswith(".partial")]


def test_controls_are_files_between_those_of_the_rows(tmp_path):
    harness = FilesHarness(tmp_path, "json")
    log = log_of(1)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    log.begin().insert(ORDERS, {"id": 2, "note": None, "total": None})
    harness.make().write(log.batch(0, 3))
    kinds = [path.name.partition(".jsonl")[1] or path.name.partition(".control")[1] for path in harness.files(ORDERS)]
    assert kinds == [".jsonl", ".control", ".jsonl"]
    control = json.loads(harness.files(ORDERS)[1].read_text())
    assert (control["_control"]["kind"], control["_commit_version"], control["_seq"]) == ("truncate", 2, 1)


def test_a_folder_with_controls_is_read_by_anyone_who_reads_a_folder_of_parquet_files(tmp_path):
    harness = FilesHarness(tmp_path, "parquet")
    log = log_of(1)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    harness.make().write(log.batch(0, 2))
    folder = harness.files(ORDERS)[0].parent
    assert len(list(folder.iterdir())) == 2
    assert dataset(folder).to_table().column("id").to_pylist() == [1]


def test_part_of_a_transaction_from_another_log_stops_with_the_way_out(tmp_path):
    harness = FilesHarness(tmp_path, "parquet")
    for uuid in ("log-1", "log-2"):
        log = ChangeLog(uuid=uuid).begin()
        for number in range(4):
            log.insert(ORDERS, {"id": number, "note": None, "total": None})
        if uuid == "log-1":
            harness.make().write(log.batch(0, 2))
    with pytest.raises(UnsupportedFeature, match=r"Rebuild the table: .databus rebuild"):
        harness.make().write(log.batch(0, 4))


def test_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="out/orders: cannot be made a folder: Not a directory"):
        FilesHarness(tmp_path, "parquet").make().write(log_of(1).batch(0, 1))


def test_what_killed_tasks_have_left_is_no_row_to_any_reader_and_is_removed_by_the_next_run(tmp_path):
    harness = FilesHarness(tmp_path, "parquet")
    log = log_of(1, 2, 3)
    write_batch(harness.make(), log.batch(0, 2))  # of which one task runs twice
    folder = harness.files(ORDERS)[0].parent
    batch = log.batch(2, 3)
    (rows,) = batch.items
    left = harness.make().part_writer().write(f"shop/{ORDERS.source}", rows)
    assert {each.name for each in left} <= {path.name for path in folder.iterdir()}
    assert not list(folder.glob(f"{left[0].name}.parquet"))
    assert dataset(folder).to_table().column("id").to_pylist() == [1, 2]
    harness.make().write(batch)
    assert {path.suffix for path in folder.iterdir()} == {".parquet"}
    assert ids(harness) == [1, 2, 3]


def test_a_batch_of_which_a_part_was_shown_is_written_by_tasks_again(tmp_path):
    harness = FilesHarness(tmp_path, "parquet", rows_per_file_max=2)
    log = log_of(*range(9))
    harness.make().write(log.batch(0, 4))
    write_batch(harness.make(), log.batch(2, 9))
    assert ids(harness) == list(range(9))
