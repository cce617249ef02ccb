"""Two databases of one kind in one Delta table, by one pipeline: two relays' logs, two queries, one table."""

import random
from contextlib import closing

import pytest

from databus.pipeline import compare, load_pipeline, run
from databus.sinks import read_delta
from databus.testing.shop import SqliteWorkload, connect, create_shop

pytestmark = pytest.mark.usefixtures("relay_in_thread")

FILE = """
name: shops
sources:
  east: {type: sqlite, path: east.db}
  west: {type: sqlite, path: west.db}
inputs: {shops: {type: databus}}
outputs:
  copy: {type: delta, from: shops, mode: mirror, path: lake/copy, merge: true}
  history: {type: delta, from: shops, mode: history, path: lake/history, merge: true}
"""
SHARDS = ("east", "west")
TABLES = ("customers", "orders")


def once(path, session):
    events = []
    assert run(path, once=True, session=session, on_event=events.append) == 0, events


def assert_is_copied(folder, path):
    found = compare(load_pipeline(path), "copy", wait_ms_max=5_000)
    assert found.is_identical, found.details()
    assert set(found.positions) == set(SHARDS)
    for table in TABLES:
        counts = {}
        for shard in SHARDS:
            with closing(connect(folder / f"{shard}.db")) as database:
                (counts[shard],) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
            assert (
                read_delta(folder / "lake" / "copy" / table, source=f"{shard}/main.{table}").num_rows == counts[shard]
            )
        assert read_delta(folder / "lake" / "copy" / table).num_rows == sum(counts.values())


def test_shards_share_their_tables_over_snapshot_changes_and_restarts(engine, tmp_path):
    path = tmp_path / "databus.yml"
    path.write_text(FILE)
    for number, shard in enumerate(SHARDS):
        create_shop(tmp_path / f"{shard}.db", customers=20 + number, products=10, orders=30, seed=number)
    once(path, engine)
    assert_is_copied(tmp_path, path)
    for number, shard in enumerate(SHARDS):
        with closing(connect(tmp_path / f"{shard}.db")) as database:
            workload = SqliteWorkload(database, random.Random(number))
            for _ in range(30):
                workload.step()
            if shard == "west":
                database.execute("DELETE FROM orders WHERE id % 3 = 0")
    once(path, engine)
    assert_is_copied(tmp_path, path)
    for table in TABLES:
        rows = read_delta(tmp_path / "lake" / "history" / table, ["_source", "_commit_version", "_seq"]).to_pylist()
        assert len({tuple(row.values()) for row in rows}) == len(rows)
        assert {row["_source"] for row in rows} == {f"{shard}/main.{table}" for shard in SHARDS}
