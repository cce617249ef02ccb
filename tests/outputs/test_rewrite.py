"""A mirror's files are rewritten by the mirror rule, whatever keys they hold, and no more of them than need be."""

import math
import random
import tempfile
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from databus.core import UnsupportedFeature
from databus.sinks.delta import Layout, LiveFile, divided, last_images
from tests.outputs.file_table import FileTable, Model, changes_of

KEYS = {
    (pa.int64(),): st.tuples(st.integers(-20, 60)),
    (pa.int32(),): st.tuples(st.none() | st.integers(0, 20)),
    (pa.string(),): st.tuples(st.text("abé", max_size=3)),
    (pa.decimal128(20, 0),): st.tuples(st.sampled_from([Decimal(n) for n in (0, 1, 2**63, 2**64 - 1, 7, 8)])),
    (pa.decimal128(9, 2),): st.tuples(st.integers(0, 500).map(lambda n: Decimal(n) / 100)),
    (pa.float64(),): st.tuples(st.sampled_from([0.0, -0.0, math.nan, 1.5, -2.0, math.inf])),
    (pa.binary(), pa.int64()): st.tuples(st.binary(max_size=1), st.none() | st.integers(0, 9)),
    (pa.int64(), pa.int32()): st.tuples(st.integers(0, 5), st.integers(0, 9)),
    (pa.timestamp("us", "UTC"), pa.string()): st.tuples(st.datetimes().map(lambda t: t.replace(second=0)), st.none()),
}
KINDS = st.sampled_from(["insert", "update_postimage", "update_postimage", "delete", "update_preimage"])


@st.composite
def histories(draw):
    types = draw(st.sampled_from([types for types in KEYS if "timestamp" not in str(types[0])]))
    image = st.tuples(KINDS, KEYS[types], st.text("xyz", max_size=4), st.tuples(st.integers(1, 9), st.integers(0, 5)))
    steps = st.fixed_dictionaries(
        {
            "rows": st.lists(image, max_size=60, unique_by=lambda each: (each[3], str(each[1]))),
            "is_optimized": st.integers(0, 5).map(lambda n: n == 0),
            "parts_max": st.sampled_from([1, 2, 4]),
            "file_bytes_max": st.sampled_from([4_000, 30_000, 1 << 20]),
            "group_bytes_max": st.sampled_from([1_000, 1 << 20]),
        }
    )
    return types, draw(st.lists(steps, min_size=1, max_size=6))


@settings(max_examples=100, deadline=None)
@given(histories())
def test_files_hold_what_the_mirror_rule_leaves_of_any_history(history):
    types, steps = history
    with tempfile.TemporaryDirectory() as folder:
        table, model = FileTable(Path(folder), types, 1 << 20), Model()
        for step in steps:
            if step["is_optimized"]:
                table.join_all()
            table.file_bytes_max = step["file_bytes_max"]
            parts_max = step["parts_max"]
            changes = changes_of(table.schema, step["rows"])
            more = {"buckets_min": parts_max, "group_bytes_max": step["group_bytes_max"]}
            table.apply(changes, parts_max=parts_max, **more)
            model.apply(step["rows"])
            model.is_equal_to(table.rows(), table.key)
            table.check_marks()
            assert table.apply(changes) == 0  # a repeated batch changes nothing that it has put
            model.apply(step["rows"])
            model.is_equal_to(table.rows(), table.key)


def rows_of(keys, scn=1, width=0):
    """Inserts with values that do not compress."""
    values = (random.Random(seq).randbytes(width // 2).hex() for seq in range(len(keys)))
    return [("insert", (key,), value, (scn, seq)) for seq, (key, value) in enumerate(zip(keys, values, strict=True))]


def filled(folder, kind, keys, file_bytes_max=256 << 10, at_once=500):
    """A table with rows of some 100 bytes, made by many small batches."""
    table = FileTable(folder, (kind,), file_bytes_max, row_group_rows=10_000)
    for start in range(0, len(keys), at_once):
        table.apply(changes_of(table.schema, rows_of(keys[start : start + at_once], width=200)))
    return table


def text_keys(count):
    return [f"{number * 2654435761 % 2**32:08x}" for number in range(count)]


def test_a_younger_row_stays_and_an_image_of_the_same_pair_changes_nothing(tmp_path):
    table = filled(tmp_path, pa.int64(), [1, 2])
    before = [file.name for file in table.files]
    older = [("update_postimage", (1,), "old", (0, 9)), ("delete", (2,), "old", (1, 1))]
    assert table.apply(changes_of(table.schema, older)) == 0
    assert [file.name for file in table.files] == before


def test_the_last_image_is_found_in_rows_of_any_order(tmp_path):
    table = FileTable(tmp_path, (pa.string(),), 1 << 20)
    rows = [("insert", ("a",), "3", (3, 0)), ("delete", ("a",), "2", (2, 0)), ("insert", ("b",), "1", (1, 0))]
    images = last_images(changes_of(table.schema, rows), table.layout())
    found = zip(*[images.rows[name].to_pylist() for name in ("k0", "_commit_version", "_seq")], strict=True)
    assert {key: pair for key, *pair in found} == {"a": [3, 0], "b": [1, 0]}


def test_a_value_that_its_column_cannot_hold_is_an_error(tmp_path):
    table = FileTable(tmp_path, (pa.int32(),), 1 << 20)
    wide = changes_of(pa.schema([pa.field("k0", pa.int64()), *list(table.schema)[1:]]), rows_of([2**40]))
    with pytest.raises(pa.ArrowInvalid):
        last_images(wide, table.layout())


@pytest.mark.parametrize(
    "spoil", [lambda rows: rows.drop_columns("v"), lambda rows: rows.append_column("w", rows["v"])]
)
def test_rows_of_other_columns_than_the_table_has_are_refused(tmp_path, spoil):
    table = FileTable(tmp_path, (pa.int32(),), 1 << 20)
    with pytest.raises(UnsupportedFeature, match=r"differ in [vw]:"):
        last_images(spoil(changes_of(table.schema, rows_of([1]))), table.layout())


def test_a_changed_integer_key_costs_the_file_that_holds_its_range(tmp_path):
    table = filled(tmp_path, pa.int64(), list(range(20_000)), at_once=2_000)
    assert len(table.files) > 8
    table.apply(changes_of(table.schema, rows_of([7_777], scn=2)))
    assert len(table.rewritten) == 1


def test_ranges_stay_apart_when_far_files_change_together(tmp_path):
    table = filled(tmp_path, pa.int64(), list(range(20_000)), at_once=2_000)
    widest = max(high - low for file in table.files for low, high in file.bounds)
    for scn in range(2, 6):
        table.apply(changes_of(table.schema, rows_of([3, 9_000, 19_990], scn)))
    assert max(high - low for file in table.files for low, high in file.bounds) <= widest


def test_a_changed_text_key_costs_the_files_of_its_bucket(tmp_path):
    keys = text_keys(20_000)
    table = filled(tmp_path, pa.string(), keys)
    costs = []
    for number in range(30):
        sizes = {file.name: file.size_bytes for file in table.files}
        table.apply(changes_of(table.schema, rows_of([keys[number * 600]], scn=2)))
        costs.append(sum(sizes[name] for name in table.rewritten))
    assert min(costs) > 0
    assert sum(costs) / len(costs) < sum(sizes.values()) / 50


def test_new_keys_do_not_cost_a_file_in_each_bucket(tmp_path):
    table = filled(tmp_path, pa.string(), text_keys(20_000), at_once=2_000)
    before = table.files_written
    for number in range(100):
        table.apply(changes_of(table.schema, rows_of([f"new-{number}-{i}" for i in range(3)], scn=2)))
    assert table.files_written - before < 400
    assert len(table.rows()) == 20_300


def test_files_stay_few_where_many_small_batches_came(tmp_path):
    table = filled(tmp_path, pa.string(), text_keys(20_000), at_once=400)
    layout = table.layout()
    assert max(file.size_bytes for file in table.files) <= table.file_bytes_max
    assert len(table.files) < 8 * layout.table_bytes / layout.target_bytes


def test_a_table_of_foreign_files_is_divided_bit_by_bit_though_few_rows_change(tmp_path):
    table = filled(tmp_path, pa.string(), text_keys(20_000), file_bytes_max=1 << 20, at_once=20_000)
    rows = pa.concat_tables([table.rows_of(file) for file in table.files])
    table.files = [table.live(table.write(rows.slice(start, 1_000), "")) for start in range(0, 20_000, 1_000)]
    table.file_bytes_max = 256 << 10
    a_third = sum(file.size_bytes for file in table.files) // 3
    left = []
    for scn in range(2, 7):
        table.apply(changes_of(table.schema, rows_of(["none"], scn)), split_bytes_max=a_third)
        left.append(len([file for file in table.files if table.layout().bucket_of(file) == (1, 0) and file.rows > 1]))
    assert left[0] > 0
    assert left[-1] == 0
    assert len(table.rows()) == 20_001
    table.check_marks()


def test_buckets_of_another_key_mean_nothing(tmp_path):
    table = filled(tmp_path, pa.string(), text_keys(20_000), at_once=20_000)
    marked = [file for file in table.files if table.layout().bucket_of(file) != (1, 0)]
    assert marked
    other = Layout(table.schema, ("v",), 1 << 20, table.file_bytes_max)
    assert {other.bucket_of(file) for file in marked} == {(1, 0)}


@pytest.mark.parametrize("name", ["rows-b5of4k{key}-1.parquet", "rows-b0of3k{key}-1.parquet", "part-b0of4k{key}-1"])
def test_a_name_that_is_no_mark_says_nothing(tmp_path, name):
    table = FileTable(tmp_path, (pa.string(),), 1 << 20)
    layout = table.layout()
    key = layout.mark(2, 0).partition("k")[2].rstrip("-")
    assert layout.bucket_of(LiveFile(name.format(key=key), 1, 1, (None,))) == (1, 0)
    assert layout.bucket_of(LiveFile(f"rows-{layout.mark(2, 1)}x.parquet", 1, 1, (None,))) == (2, 1)


def test_parts_of_a_table_share_no_bucket_and_are_joined_by_a_file_of_both(tmp_path):
    table = FileTable(tmp_path, (pa.string(),), 1 << 20)
    layout = table.layout()

    def file(buckets, bucket):
        return LiveFile(f"rows-{layout.mark(buckets, bucket)}{buckets}.parquet", 1, 1, (None,))

    small = [file(8, bucket) for bucket in range(8)]
    assert [len(part) for part in divided(small, layout, 4).files] == [2, 2, 2, 2]
    assert [len(part) for part in divided([*small, file(2, 1)], layout, 4).files] == [2, 5, 2]
    assert [len(part) for part in divided([*small, file(1, 0)], layout, 4).files] == [9]


def test_parts_of_ranges_are_divided_where_no_file_is(tmp_path):
    table = FileTable(tmp_path, (pa.int64(),), 1 << 20)
    files = [LiveFile(str(low), 1, 1, ((low, high),)) for low, high in [(0, 9), (5, 12), (20, 29), (30, 39), (50, 50)]]
    parts = divided(files, table.layout(), 3)
    assert [[file.name for file in part] for part in parts.files] == [["0", "5"], ["20", "30"], ["50"]]
    rows = pa.table({"k0": pa.array([-5, 12, 13, 20, 45, 50, None])})
    assert parts.part_of(rows).tolist() == [0, 0, 0, 1, 1, 2, 0]
    unknown = [*files, LiveFile("unknown", 1, 1, (None,))]
    assert len(divided(unknown, table.layout(), 3).files) == 1
