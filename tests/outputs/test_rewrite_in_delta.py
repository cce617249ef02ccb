"""A Delta table whose files are rewritten is what other engines' readers find, whoever else arranged its files."""

import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from databus.disk import located
from databus.flow import write_data_file
from databus.sinks.delta import Layout, divided, last_images, live_files, rewrite
from databus.sinks.delta._read import read_delta
from tests.outputs.file_table import Model, changes_of

KEYS = {
    "integers": ([pa.int64()], lambda n: (n,)),
    "text": ([pa.string()], lambda n: (f"{n * 2654435761 % 2**32:08x}",)),
    "both": ([pa.string(), pa.int32()], lambda n: (f"shop-{n % 7}", n // 7)),
}


def schema_of(types):
    keys = [pa.field(f"k{i}", kind) for i, kind in enumerate(types)]
    return pa.schema([*keys, ("v", pa.string()), ("_commit_version", pa.int64()), ("_seq", pa.int64())])


def merge(table, rows, key, *, parts_max=1, file_bytes_max=100_000):
    """What a pipeline's driver and its tasks do with a batch."""
    actions = pa.table(table.get_add_actions(flatten=True))
    files = live_files(actions, key)
    size = sum(file.size_bytes for file in files)
    layout = Layout(pa.schema(table.schema().to_arrow()), key, size, file_bytes_max, buckets_min=parts_max)
    folder = Path(table.table_uri.removeprefix("file://"))
    parts = divided(files, layout, parts_max)
    numbers = parts.part_of(rows)
    adds, removes = [], []

    def write(rows, mark):
        return write_data_file(folder, rows, mark=mark)

    for number, mine in enumerate(parts.files):
        images = last_images(rows.filter(pa.array(numbers == number)), layout)
        done = rewrite(mine, images, layout, located(folder), write)
        now_ms = int(time.time() * 1000)
        adds += [AddAction(file.name, file.size_bytes, {}, now_ms, True, file.stats) for file in done.added]
        sizes = {file.name: file.size_bytes for file in mine}
        removes += [RemoveAction(name, True, now_ms, size=sizes[name]) for name in done.removed]
    table.create_write_transaction(
        [*adds, *removes],
        "append",
        table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction("databus/x", 1)], max_commit_retries=0),
    )
    table.update_incremental()


@pytest.mark.parametrize("kind", KEYS)
def test_a_delta_table_is_rewritten_as_the_mirror_rule_says(tmp_path, kind):
    types, key_of = KEYS[kind]
    schema = schema_of(types)
    key = tuple(schema.names[: len(types)])
    table = DeltaTable.create(tmp_path / "t", schema)
    model = Model()
    for scn in range(1, 13):
        numbers = range(scn * 37 % 200, 4_000, 1 + scn % 5)
        rows = [
            ("delete" if (n + scn) % 11 == 0 else "update_postimage", key_of(n), f"{scn} of {n}" * 5, (scn, seq))
            for seq, n in enumerate(numbers)
        ]
        merge(table, changes_of(schema, rows), key, parts_max=4 if scn > 6 else 1)
        model.apply(rows)
        found = read_delta(tmp_path / "t").to_pylist()
        assert {
            tuple(row[name] for name in key): (row["v"], (row["_commit_version"], row["_seq"])) for row in found
        } == model.rows
        assert len(found) == len(model.rows)
        if scn == 4:
            table.optimize.compact()
        if scn == 8:
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)


def test_statistics_let_a_reader_skip_rewritten_files(tmp_path):
    schema = schema_of([pa.int64()])
    rows = changes_of(schema, [("insert", (n,), "x" * 40 + str(n), (1, n)) for n in range(10_000)])
    write_deltalake(tmp_path / "t", rows.drop_columns("_change_type"))
    table = DeltaTable(tmp_path / "t")
    merge(table, changes_of(schema, [("update_postimage", (5,), "new", (2, 0))]), ("k0",), file_bytes_max=40_000)
    actions = pa.table(table.get_add_actions(flatten=True))
    assert actions.num_rows > 3
    ranges = zip(*[actions.column(name).to_pylist() for name in ("min.k0", "max.k0")], strict=True)
    assert sum(low <= 5 <= high for low, high in ranges) == 1
    assert sum(actions.column("num_records").to_pylist()) == 10_000


def test_rows_of_before_a_column_was_added_have_null_in_it(tmp_path):
    schema = schema_of([pa.int64()])
    table = DeltaTable.create(tmp_path / "t", schema)
    merge(table, changes_of(schema, [("insert", (n,), "old", (1, n)) for n in range(3)]), ("k0",))
    wider = pa.schema([*schema, ("w", pa.int32())])
    write_deltalake(table, wider.empty_table(), mode="append", schema_mode="merge")
    change = changes_of(schema, [("update_postimage", (1,), "new", (2, 0))])
    merge(table, change.append_column("w", pa.array([7], pa.int32())), ("k0",))
    found = {row["k0"]: (row["v"], row["w"]) for row in read_delta(tmp_path / "t").to_pylist()}
    assert found == {0: ("old", None), 1: ("new", 7), 2: ("old", None)}
