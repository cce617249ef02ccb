"""Direct outputs: tasks write buckets of keys where they are seen at once; nothing twice, nothing missing, in order."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from databus.core import FatalError
from databus.link import RelayClient
from databus.pipeline import audit, load_pipeline
from databus.pipeline.engine._handle import OutputHandle
from tests.outputs import chest
from tests.outputs.chest import chest_lines
from tests.pipeline.projects import HEAD, Project, RelayInThread

pytestmark = pytest.mark.usefixtures("relay_in_thread")

IN_PARTS = HEAD.replace("tables: [shop/main.*]", "tables: [shop/main.*], partitions: 3, max_rows_per_trigger: 300")
CHEST = "outputs: {chest: {type: 'chest.py:Chest', from: shop, path: chest, buckets: 2}}"
LARGE = """
filters: {large: {type: where, from: shop, tables: [orders], where: "id > 10"}}
outputs: {chest: {type: 'chest.py:Chest', from: large, path: chest, buckets: 2}}
"""
TYPED = """
filters: {sold: {type: sql, from: shop, table: main.orders, where: status <> 'cancelled'}}
outputs: {chest: {type: 'chest.py:Chest', from: sold, path: chest, buckets: 2}}
"""


LANE = """
outputs:
  ahead: {type: 'chest.py:Chest', from: shop, path: ahead, buckets: 2, lane: one}
  behind: {type: 'chest.py:Chest', from: shop, path: behind, buckets: 2, lane: one}
"""


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


def project_of(folder: Path, sections: str) -> Project:
    shutil.copy(chest.__file__, folder / "chest.py")
    return Project(folder, sections, head=IN_PARTS)


def assert_is_all_that_happened(project: Project, where: str = "1 = 1") -> None:
    """Each change once; the rows of a key are in one bucket, in order; what they add up to is what the database has."""
    buckets = [[line for line in lines if "_control" not in line] for lines in chest_lines(project.folder / "chest")]
    rows = [row for lines in buckets for row in lines if row["_source"] == "shop/main.orders"]
    pairs = [(row["_commit_version"], row["_seq"]) for row in rows]
    assert len(set(pairs)) == len(pairs)
    alive: dict[int, str] = {}
    keys = []
    for lines in buckets:
        mine = [row for row in lines if row["_source"] == "shop/main.orders"]
        places = [(row["_commit_version"], row["_seq"]) for row in mine]
        assert places == sorted(places)
        keys.append({row["id"] for row in mine})
        for row in mine:
            if row["_change_type"] in ("insert", "update_postimage"):
                alive[row["id"]] = row["status"]
            else:
                alive.pop(row["id"])
    assert all(keys), "one of the buckets is empty"
    assert not set.intersection(*keys)
    assert sorted(alive.items()) == sorted(project.select(f"SELECT id, status FROM orders WHERE {where}"))


@pytest.mark.parametrize(("sections", "where"), [(CHEST, "1 = 1"), (LARGE, "id > 10")], ids=["tables", "filtered"])
def test_buckets_hold_all_that_happened_in_order(tmp_path: Path, engine: Any, sections: str, where: str) -> None:
    assert_holds_all(project_of(tmp_path, sections), engine, where)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sections", "where"), [(CHEST, "1 = 1"), (TYPED, "status <> 'cancelled'")], ids=["tables", "typed"]
)
def test_buckets_that_tasks_of_spark_write_hold_it_too(tmp_path: Path, spark: Any, sections: str, where: str) -> None:
    assert_holds_all(project_of(tmp_path, sections), spark, where)


def assert_holds_all(project: Project, engine: Any, where: str) -> None:
    project.work(100)
    events = project.once(engine)
    assert {event["driver_row_bytes"] for event in events if event["event"] == "batch"} == {0}
    project.work(60)
    more = project.once(engine)
    assert_is_all_that_happened(project, where)
    lines = [line for bucket in chest_lines(project.folder / "chest") for line in bucket if "_control" not in line]
    assert sum(event["rows"] for event in [*events, *more] if event["event"] == "batch") == len(lines)


def test_batches_that_buckets_have_already_are_not_written_again(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the buckets and before the ledger; and the ledger lost, with all that the pipeline knows."""
    project = project_of(tmp_path, CHEST)
    project.work(60)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(engine)
    assert chest_lines(tmp_path / "chest") != []
    project.once(engine)
    assert_is_all_that_happened(project)
    for name in ("ledgers", "queries"):
        shutil.rmtree(project.state / name)
    project.work(20)
    project.once(engine)
    assert_is_all_that_happened(project)


def test_a_batch_that_one_output_of_a_lane_has_already_is_no_missing_one(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the ledgers of two outputs: the one that is ahead gets the batch again, and writes nothing."""
    project, advance = project_of(tmp_path, LANE), OutputHandle.advance

    def died_at_second(handle: OutputHandle, *args: Any) -> None:
        if handle.name == "behind":
            died()
        advance(handle, *args)

    project.work(60)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died_at_second)
        with pytest.raises(AssertionError, match="killed before the ledger"):
            project.once(engine)
    project.work(20)
    project.once(engine)
    assert_audit_is_whole(project)


def test_an_output_that_goes_back_to_where_another_of_its_lane_is_misses_nothing(tmp_path: Path, engine: Any) -> None:
    """A lane begins where the last of its outputs is, in batches of its own."""
    ahead, behind = LANE.rstrip().rsplit("\n", 1)
    project = project_of(tmp_path, f"{ahead}\n")
    project.work(60)
    project.once(engine)
    project.write(f"{ahead}\n{behind}\n", head=IN_PARTS.replace("300", "120"))
    project.work(20)
    project.once(engine)
    assert_audit_is_whole(project)


def assert_audit_is_whole(project: Project) -> None:
    """As `databus audit` says, of all outputs."""
    graph = load_pipeline(project.path)
    relay = RelayInThread(graph.config, lambda: None)
    relay.start()
    try:
        audited = list(audit(graph, RelayClient(relay.url)))
    finally:
        relay.stop()
    assert audited
    assert [chain.to_json() for chain in audited if not chain.is_whole] == []
    assert all(chain.came == chain.log_rows for chain in audited)
    assert sum(chain.came for chain in audited) > 0
