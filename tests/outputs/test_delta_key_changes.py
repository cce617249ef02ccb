"""Mirrors whose files are divided by a key, after changes of the schema that concern the key or leave it alone."""

import random
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from databus.flow import SchemaAhead
from databus.schema import Column, SchemaChange, TableSchema
from databus.sinks import read_delta
from databus.testing._change_log import ChangeLog
from databus.testing._staged_writes import write_here
from tests.outputs.harnesses import DeltaHarness
from tests.outputs.test_delta_merge import SharedHarness

ROWS = 400


def codes(*names, key=()):
    return TableSchema("main.codes", tuple(Column(name, "string", nullable=False) for name in names), key)


FIRST = codes("a", "b", "v")


def first_rows():
    random_ = random.Random(1)
    return [{"a": f"k{n}", "b": f"m{n}", "v": random_.randbytes(2000).hex()} for n in range(ROWS)]


def changes(table, row_of, **body):
    """Many rows, a change of the schema, and then updates and deletes, each in a batch of its own."""
    log = ChangeLog().begin()
    for row in first_rows():
        log.insert(FIRST, row)
    log.begin().schema(table, 1, **body)
    rows = [row_of(row) for row in first_rows()]
    for row in rows[:8]:
        log.begin().update(table, row, {**row, "v": "new"})
    for row in rows[8:16]:
        log.begin().delete(table, row)
    batches = log.batches([ROWS, *range(ROWS + 1, len(log.entries), 3)])
    wanted = [{**row, "v": "new"} for row in rows[:8]] + rows[16:]
    return batches, wanted


def held(harness, names):
    rows = read_delta(harness.make().table_path("shop", FIRST.source)).select(names).to_pylist()
    return sorted_rows(rows)


def sorted_rows(rows):
    return sorted(rows, key=lambda row: row["a"])


def harness_of(make, folder):
    return make(folder, "mirror", file_bytes_max=1 << 20, key=["a"])


def files_of(harness, source=None):
    table = DeltaTable(harness.make().table_path("shop", FIRST.source))
    files = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return [file["path"] for file in files if source in (None, file.get("partition._source"))]


TAKES_THE_NAME = {"a": "tmp", "b": "a"}


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
def test_changes_find_their_rows_after_another_column_took_the_keys_name(tmp_path, make):
    harness = harness_of(make, tmp_path)
    table = codes("tmp", "a", "v")
    batches, wanted = changes(
        table, lambda row: {"tmp": row["a"], "a": row["b"], "v": row["v"]}, renamed=TAKES_THE_NAME
    )
    for batch in batches:
        harness.make().write(batch)
    assert held(harness, ["tmp", "a", "v"]) == sorted_rows(wanted)


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
def test_changes_find_their_rows_after_another_column_took_the_keys_name_ahead_of_the_copy(tmp_path, make):
    harness = harness_of(make, tmp_path)
    table = codes("tmp", "a", "v")
    log = ChangeLog().begin()
    for row in first_rows():
        log.insert(FIRST, row)
    now = [{"tmp": row["a"], "a": row["b"], "v": row["v"]} for row in first_rows()]
    for row in now[:8]:
        log.begin().update(table, row, {**row, "v": "new"})
    before, after = log.batches([ROWS])
    ahead = SchemaAhead((SchemaChange((99, 1), FIRST, table, TAKES_THE_NAME),))
    harness.make().write(before)
    write_here(harness.make(), replace(after, ahead=ahead))  # as behind a typed query
    wanted = [{**row, "v": "new"} for row in now[:8]] + now[8:]
    assert held(harness, ["tmp", "a", "v"]) == sorted_rows(wanted)


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
def test_changes_find_their_rows_after_the_keys_column_was_dropped_and_added_with_another_value(tmp_path, make):
    harness = make(tmp_path, "mirror", file_bytes_max=1 << 20, key=["a", "b"])
    table = codes("a", "b", "v")
    batches, _ = changes(table, lambda row: {**row, "a": "one"}, fill={"a": "one"})
    for batch in batches:
        harness.make().write(batch)
    found = held(harness, ["a", "b", "v"])
    assert sorted(row["b"] for row in found) == sorted(f"m{n}" for n in range(ROWS) if not 8 <= n < 16)
    assert {row["a"] for row in found} == {"one"}


CHANGES_BESIDE_THE_KEY = {
    "added": (codes("a", "b", "v", "n"), lambda row: {**row, "n": "x"}, {"fill": {"n": "x"}}),
    "dropped": (codes("a", "v"), lambda row: {"a": row["a"], "v": row["v"]}, {}),
    "renamed": (
        codes("a", "c", "v"),
        lambda row: {"a": row["a"], "c": row["b"], "v": row["v"]},
        {"renamed": {"b": "c"}},
    ),
}


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
@pytest.mark.parametrize("what", CHANGES_BESIDE_THE_KEY)
def test_a_change_beside_the_key_leaves_the_table_divided(tmp_path, make, what):
    harness = harness_of(make, tmp_path)
    table, row_of, body = CHANGES_BESIDE_THE_KEY[what]
    batches, wanted = changes(table, row_of, **body)
    rest = iter(batches)
    harness.make().write(next(rest))
    harness.make().write(next(rest))
    names = files_of(harness)
    assert len(names) == 4
    assert all(name.startswith("rows-b") for name in names)
    for batch in rest:
        harness.make().write(batch)
    assert held(harness, list(table.names)) == sorted_rows(wanted)


def test_a_change_of_one_source_leaves_the_rows_of_others_divided(tmp_path):
    harness = harness_of(SharedHarness, tmp_path)
    other = ChangeLog(physical="other", uuid="other").begin()
    for row in first_rows():
        other.insert(FIRST, row)
    harness.make().write(other.batch(0, ROWS))
    table = codes("tmp", "a", "v")
    batches, _ = changes(table, lambda row: {"tmp": row["a"], "a": row["b"], "v": row["v"]}, renamed=TAKES_THE_NAME)
    rest = iter(batches)
    harness.make().write(next(rest))
    harness.make().write(next(rest))
    names = files_of(harness, "other/main.codes")
    assert len(names) == 4
    assert all(name.startswith("rows-b") for name in names)


def items(*names):
    kept = (Column("id", "int64", nullable=False), *(Column(name, "string") for name in names))
    return TableSchema("main.codes", kept, ("id",))


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
def test_a_column_that_was_dropped_and_added_again_ahead_of_the_copy_is_null(tmp_path, make):
    both, one = items("a", "b"), items("a")
    log = ChangeLog()
    log.begin().insert(both, {"id": 1, "a": "x", "b": "old"})
    log.begin().insert(both, {"id": 2, "a": "x", "b": None})  # read with the columns of today
    before, after = log.batches([1])
    ahead = SchemaAhead((SchemaChange((3, 1), both, one), SchemaChange((4, 1), one, both)))
    harness = make(tmp_path, "mirror")
    harness.make().write(before)
    write_here(harness.make(), replace(after, ahead=ahead))  # as behind a typed query
    assert {row["id"]: row["b"] for row in harness.read("shop", both)} == {1: None, 2: None}


@pytest.mark.parametrize("make", [DeltaHarness, SharedHarness])
def test_a_new_column_under_the_name_of_one_that_was_renamed_is_null(tmp_path, make):
    first, now = items("b"), items("c", "b")
    log = ChangeLog()
    log.begin().insert(first, {"id": 1, "b": "old"})
    log.begin().schema(now, 1, renamed={"b": "c"})
    harness = make(tmp_path, "mirror")
    harness.make().write(log.batch(0, 2))
    assert [(row["c"], row["b"]) for row in harness.read("shop", now)] == [("old", None)]
