"""Columns of few values stay packed through rewrites, and a file has no value that no row of it has."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from databus.sinks.delta import _rewrite
from tests.outputs.file_table import FileTable, Model, changes_of

LONG = "long enough not to be worth its bytes in each row "
KEYS = {"ranges": ([pa.int64()], lambda n: (n,)), "buckets": ([pa.string()], lambda n: (f"{n * 7919 % 2**20:05x}",))}


def listed(table):
    """The values of `v` in the lists of its files."""
    found = set()
    for file in table.files:
        column = pq.ParquetFile(table.folder / file.name, read_dictionary=["v"]).read(columns=["v"]).column("v")
        found.update(value for chunk in column.chunks for value in chunk.dictionary.to_pylist())
    return found


@pytest.mark.parametrize("kind", KEYS)
def test_a_table_of_few_values_is_rewritten_as_the_mirror_rule_says(tmp_path, seed, kind, monkeypatch):
    """Files of few values, of many, and of none meet in one rewrite."""
    types, key_of = KEYS[kind]
    rng, table, model, packed = random.Random(seed), FileTable(tmp_path, types, 200_000, 500), Model(), []
    find = _rewrite.packed_columns
    monkeypatch.setattr(_rewrite, "packed_columns", lambda *given: packed.append(find(*given)) or packed[-1])
    for scn in range(1, 9):
        values = [f"{LONG}{n}" for n in range(5)] + [None] if scn % 3 else [f"{LONG}{n} in {scn}" for n in range(3000)]
        keys = rng.sample(range(3_000), 2_000 if scn < 3 else 150)
        kinds = ["insert", "update_postimage", "delete"] if scn > 2 else ["insert"]
        rows = [(rng.choice(kinds), key_of(n), rng.choice(values), (scn, seq)) for seq, n in enumerate(keys)]
        changes = changes_of(table.schema, rows)
        table.apply(changes, parts_max=2)
        model.apply(rows)
        model.is_equal_to(table.rows(), table.key)
    assert ["v"] in packed
    assert [] in packed


def test_a_value_that_was_removed_is_in_no_file(tmp_path):
    """It may be what somebody had removed because nobody is to have it."""
    table = FileTable(tmp_path, [pa.int64()], 200_000, 5_000)
    first = [("insert", (n,), f"{LONG}{n % 4}", (1, n)) for n in range(4_000)]
    table.apply(changes_of(table.schema, first))
    assert listed(table) == {f"{LONG}{n}" for n in range(4)}
    changes = [("delete", (n,), None, (2, n)) for n in range(3, 4_000, 4)]
    changes += [("update_postimage", (n,), f"{LONG}new", (2, n)) for n in range(2, 4_000, 4)]
    table.apply(changes_of(table.schema, changes))
    assert listed(table) == {f"{LONG}0", f"{LONG}1", f"{LONG}new"}
