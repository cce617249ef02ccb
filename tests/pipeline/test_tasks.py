"""Tasks write what a pipeline keeps: the driver sees no row, and killed or repeated tasks alter nothing."""

import contextlib
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow.dataset import dataset

from databus.sinks import read_delta
from tests.local_engine import LocalEngine, LocalRows
from tests.pipeline.projects import HEAD, Project

pytestmark = pytest.mark.usefixtures("relay_in_thread")

HISTORY = """
outputs: {history: {type: delta, mode: history, path: lake, from: shop}}
"""
MIRROR = """
outputs: {mirror: {type: delta, mode: mirror, path: lake, from: shop}}
"""
FILES = """
outputs: {files: {type: files, path: lake, from: shop}}
"""
_KILLS_MAX = 6
IN_PARTS = HEAD.replace("tables: [shop/main.*]", "tables: [shop/main.*], partitions: 4, max_rows_per_trigger: 400")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Of a Delta table, or of a folder of Parquet files."""
    found = read_delta(folder) if (folder / "_delta_log").exists() else dataset(folder, format="parquet").to_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def assert_is_all_that_happened(project: Project, folder: str = "lake") -> None:
    """No change stands there twice, and the last image of each key is what the database has."""
    for table, columns in (("orders", ("id", "status")), ("customers", ("id", "email"))):
        rows = rows_of(project.folder / folder / table)
        pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
        assert len(set(pairs)) == len(pairs)
        last: dict[Any, dict[str, Any]] = {}
        for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"])):
            last[row["id"]] = row
        held = [row for row in last.values() if row["_change_type"] in ("insert", "update_postimage")]
        found = sorted((tuple(row[name] for name in columns) for row in held), key=repr)
        assert found == project.select(f"SELECT {', '.join(columns)} FROM {table}")


def assert_is_what_the_database_has(project: Project, folder: str = "lake") -> None:
    """Each row once, as it is now."""
    for table, columns in (("orders", ("id", "status")), ("customers", ("id", "email"))):
        rows = read_delta(project.folder / folder / table).to_pylist()
        found = sorted((tuple(row[name] for name in columns) for row in rows), key=repr)
        assert found == project.select(f"SELECT {', '.join(columns)} FROM {table}")


HOLDS = {
    HISTORY: assert_is_all_that_happened,
    MIRROR: assert_is_what_the_database_has,
    FILES: assert_is_all_that_happened,
}


@pytest.mark.parametrize("sections", [*HOLDS], ids=["history", "mirror", "files"])
def test_the_driver_sees_no_row(tmp_path: Path, spark: Any, sections: str) -> None:
    project = Project(tmp_path, sections, head=IN_PARTS)
    project.work(150)
    events = project.once(spark)
    batches = [event for event in events if event["event"] == "batch"]
    assert sum(event["rows"] for event in batches) > 400
    assert len(batches) > 1
    assert {event["driver_row_bytes"] for event in batches} == {0}
    HOLDS[sections](project)


def test_a_mirror_of_which_one_task_reads_a_batch_needs_no_second_round(
    tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where it has just begun, or a control stands beside its rows."""
    rounds: list[int] = []
    run = LocalRows.run
    monkeypatch.setattr(LocalRows, "run", lambda self, task, count: rounds.append(count) or run(self, task, count))
    project = Project(tmp_path, MIRROR, head=HEAD.replace("main.*]", "main.*], max_rows_per_trigger: 60"))
    project.once(engine)
    project.work(150)
    rounds.clear()
    batches = [event for event in project.once(engine) if event["event"] == "batch" and event["rows"]]
    assert len(batches) > 3
    assert len(rounds) < len(batches) / 2
    assert {event["driver_row_bytes"] for event in batches} == {0}
    assert_is_what_the_database_has(project)


def test_an_output_that_is_given_rows_in_the_driver_says_so(tmp_path: Path, engine: LocalEngine) -> None:
    project = Project(tmp_path, "outputs: {out: {type: console, from: shop}}")
    events = project.once(engine)
    assert sum(event["driver_row_bytes"] for event in events if event["event"] == "batch") > 0


def test_what_filters_leave_is_written_by_tasks(tmp_path: Path, engine: LocalEngine) -> None:
    """Filters travel to the tasks; so does a column that was added, and one that became wider, in mid-stream."""
    project = Project(
        tmp_path,
        """
        filters:
          large: {type: where, from: shop, tables: [orders], where: "id > 10"}
          hidden: {type: mask, from: large, tables: [customers], redact: [email]}
        outputs: {history: {type: delta, mode: history, path: lake, from: hidden}}
        """,
        head=IN_PARTS,
    )
    project.work(60)
    project.once(engine)
    project.execute("ALTER TABLE orders ADD COLUMN note TEXT", "UPDATE orders SET note = 'new' WHERE id = 20")
    project.work(30)
    events = project.once(engine)
    assert {event["driver_row_bytes"] for event in events if event["event"] == "batch"} == {0}
    orders = read_delta(tmp_path / "lake" / "orders").to_pylist()
    assert min(row["id"] for row in orders) > 10
    assert {row["note"] for row in orders if row["id"] == 20} >= {None, "new"}
    assert {row["email"] for row in read_delta(tmp_path / "lake" / "customers").to_pylist()} != set()
    emails = {email for (email,) in project.select("SELECT email FROM customers")}
    assert not emails & {row["email"] for row in read_delta(tmp_path / "lake" / "customers").to_pylist()}


BEHIND_FILTERS = """
filters:
  sold: {type: sql, from: shop, table: main.orders, where: status <> 'cancelled'}
  turned: {type: python, from: sold, function: 'turned.py:turned'}
  late: {type: where, from: turned, where: id > 5}
outputs: {out: {type: KIND, path: lake, from: late}}
"""
TURNED = """
import pyarrow as pa
def turned(rows):
    return rows.take(pa.array(range(rows.num_rows - 1, -1, -1)))
"""


@pytest.mark.parametrize("kind", ["delta, mode: mirror", "delta, mode: history", "files"])
def test_typed_rows_are_written_by_tasks_in_their_order(tmp_path: Path, spark: Any, kind: str) -> None:
    """Though a function gives its rows the other way round, and filters cut updates in two."""
    project = Project(tmp_path, BEHIND_FILTERS.replace("KIND", kind), head=IN_PARTS)
    (tmp_path / "turned.py").write_text(TURNED)
    project.work(60)
    project.once(spark)
    project.execute("UPDATE orders SET status = 'cancelled' WHERE id % 7 = 0")
    project.work(100)
    events = project.once(spark)
    assert {event["driver_row_bytes"] for event in events if event["event"] == "batch"} == {0}
    rows = rows_of(tmp_path / "lake" / "orders")
    if "mirror" not in kind:
        pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
        assert len(set(pairs)) == len(pairs)
        last = {row["id"]: row for row in sorted(rows, key=lambda row: (row["_commit_version"], row["_seq"]))}
        rows = [row for row in last.values() if row["_change_type"] in ("insert", "update_postimage")]
    found = sorted(((row["id"], row["status"], row["total_cents"]) for row in rows), key=repr)
    assert found == project.select("SELECT id, status, total_cents FROM orders WHERE status <> 'cancelled' AND id > 5")


def kill_tasks(until: threading.Event, dice: random.Random, killed: list[int]) -> None:
    """Kill some of Spark's Python processes, one now and then; what plans the stream is among them."""
    while len(killed) < _KILLS_MAX and not until.wait(dice.uniform(0.1, 1.5)):
        children = psutil.Process(os.getpid()).children(recursive=True)
        workers = [each for each in children if _is_worker(each)]
        if workers:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                victim = dice.choice(workers)
                os.kill(victim.pid, signal.SIGKILL)
                killed.append(victim.pid)


def _is_worker(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and parent.name() == "pyspark.daemon"
    return False


@pytest.mark.parametrize(
    "kept",
    [
        pytest.param(sections, marks=[] if name == "mirror" else pytest.mark.nightly, id=name)
        for name, sections in zip(["history", "mirror", "files"], HOLDS, strict=True)
    ],
)
def test_tasks_that_are_killed_change_nothing(tmp_path: Path, spark: Any, seed: int, kept: str) -> None:
    sections = kept + "run: {retries_max: 100, retry_ms_min: 100, retry_ms_max: 200}\n"
    project = Project(tmp_path, sections, head=IN_PARTS.replace("400", "40"), seed=seed % 1000)
    project.work(200)
    until, killed = threading.Event(), list[int]()
    killer = threading.Thread(target=kill_tasks, args=(until, random.Random(seed), killed))
    killer.start()
    try:
        project.once(spark)
    finally:
        until.set()
        killer.join(30)
    if not killed:
        pytest.fail("the run ended before a task was killed; make it longer")
    HOLDS[kept](project)
