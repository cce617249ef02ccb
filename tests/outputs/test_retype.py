"""A history whose columns get types that their values do not fit into goes on, and is read back as it was written."""

import random
from decimal import Decimal

import pytest

from databus.core import UnsupportedFeature
from databus.schema import Column, TableSchema
from databus.stores import under_own_names, user_rows
from databus.testing._change_log import ChangeLog
from tests.outputs.harnesses import DeltaHarness

VALUES = {
    "int32": [1, -7],
    "int64": [1 << 40, 3],
    "string": ["7", "x"],
    "bool": [True, False],
    "decimal(20,2)": [Decimal("1.25"), Decimal("-3.00")],
    "float64": [0.5, 2.0],
}


def table_of(kind, *more):
    columns = (Column("id", "int64", nullable=False), Column("v", kind), *(Column(name, "string") for name in more))
    return TableSchema("main.t", columns, ("id",))


def history(seed):
    dice, log = random.Random(seed), ChangeLog()
    table, number = table_of(dice.choice([*VALUES]), *dice.choice(((), ("v__string",)))), 0
    for _ in range(dice.randrange(4, 9)):
        log.begin()
        log.schema(table, 3, previous=None)
        for _ in range(dice.randrange(3)):
            number += 1
            more = {name: name for name in table.names[2:]}
            log.begin().insert(table, {"id": number, "v": dice.choice(VALUES[table.columns[1].type]), **more})
        more = dice.choice(((), (), ("v__string",)))  # a column of the table's own, with such a name
        table = table_of(dice.choice([*VALUES]), *more)
    return log, [dice.randrange(len(log.entries)) for _ in range(3)]


@pytest.mark.parametrize("rewrite_bytes_max", [0, 1 << 30])
def test_rows_of_every_definition_are_read_back_as_they_were(tmp_path, rewrite_bytes_max):
    """Through all changes of types, widening ones too, where a column's files may be rewritten and where not."""
    for seed in range(8):
        log, cuts = history(seed)
        options = {"controls": "all", "retype": "new_column", "rewrite_bytes_max": rewrite_bytes_max}
        harness = DeltaHarness(tmp_path / str(seed), "history", **options)
        for batch in (*log.batches(cuts), *log.batches(cuts)):
            harness.make().write(batch)
        table = log.entries[0].table
        found = harness.target("shop", table).read()
        by_pair = {(row["_commit_version"], row["_seq"]): at for at, row in enumerate(found.to_pylist())}
        assert by_pair.keys() == {entry.pair for entry in log.entries}
        for entry in log.entries:
            if hasattr(entry, "row"):
                (row,) = user_rows(
                    entry.table, under_own_names(entry.table, found.slice(by_pair[entry.pair], 1))
                ).to_pylist()
                assert {name: row[name] for name in entry.table.names} == entry.row, (seed, entry)


def test_a_history_stops_without_the_option_and_says_which_one(tmp_path):
    log = ChangeLog()
    log.begin().insert(table_of("int32"), {"id": 1, "v": 1})
    log.begin().schema(table_of("string"), 3)
    harness = DeltaHarness(tmp_path, "history")
    with pytest.raises(UnsupportedFeature, match="retype: new_column"):
        harness.make().write(log.batch(0, 2))
