"""How the conformance suite of outputs reaches an output and its target, and how it checks the rows there."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

from databus.core import COMMIT_VERSION, SEQ, Pair
from databus.pipeline import Delivery, Output
from databus.schema import TableSchema
from databus.testing._change_log import ChangeLog, Image, Row, mirror_of


class OutputHarness(Protocol):
    """How the suite reaches an output and its target. Each check is given a new one, with an empty target."""

    keeps: Literal["mirror", "changes"]
    """`mirror` where the target holds the rows that the source has now, `changes` where it holds every change."""

    def make(self) -> Output:
        """The output, as a process that has just started makes it: a second time, on what the first has left."""
        ...

    def read(self, physical: str, table: TableSchema) -> list[dict[str, Any]]:
        """The rows of a table in the target, as Python values, with at least `_commit_version` and `_seq`."""
        ...

    def full(self) -> AbstractContextManager[None] | None:
        """Within it, the target has no room; None where that cannot be had in a test."""
        ...


def assert_holds(harness: OutputHarness, log: ChangeLog, tables: Sequence[TableSchema], delivery: Delivery) -> None:
    """Assert that the target holds what a log says of these tables, as the level of delivery lets it."""
    for table in tables:
        rows = harness.read(log.physical, table)
        if harness.keeps == "mirror":
            _assert_mirror(rows, log, table)
        else:
            _assert_changes(rows, log, table, delivery)


def _pair(row: Row) -> Pair:
    return row[COMMIT_VERSION], row[SEQ]


def _assert_mirror(rows: Sequence[Row], log: ChangeLog, table: TableSchema) -> None:
    expected = mirror_of(log.entries, table.source)
    got = {tuple(row[name] for name in table.key): row for row in rows}
    assert len(got) == len(rows), f"{table.source}: {len(rows) - len(got)} keys stand twice"
    assert set(got) == set(expected), f"{table.source}: keys differ by {set(got) ^ set(expected)}"
    for key, (row, pair) in expected.items():
        same(got[key], row, f"{table.source} {key}")
        assert _pair(got[key]) == pair, f"{table.source} {key}: pair {_pair(got[key])}, expected {pair}"


def _assert_changes(written: Sequence[Row], log: ChangeLog, table: TableSchema, delivery: Delivery) -> None:
    expected = {e.pair: e for e in log.entries if isinstance(e, Image) and e.table.source == table.source}
    rows = [
        row for row in written if row["_change_type"] in ("insert", "update_preimage", "update_postimage", "delete")
    ]
    got = {_pair(row): row for row in rows}
    assert set(got) == set(expected), f"{table.source}: pairs differ by {sorted(set(got) ^ set(expected))[:10]}"
    if delivery is not Delivery.AT_LEAST_ONCE:
        assert len(got) == len(rows), f"{table.source}: {len(rows) - len(got)} rows stand twice"
    for pair, image in expected.items():
        same(got[pair], image.row, f"{table.source} {pair}")
        assert got[pair]["_change_type"] == image.kind.label, f"{table.source} {pair}: {got[pair]}"
        assert got[pair]["_snapshot"] == image.snapshot, f"{table.source} {pair}: {got[pair]}"


def same(row: Row, expected: Row, where: str) -> None:
    """Assert that the columns of `expected` have the same values in `row`: NaN is NaN, -0.0 is not 0.0."""
    for name, value in expected.items():
        other = row[name]
        if isinstance(value, float) and isinstance(other, float):
            equal = math.isnan(value) and math.isnan(other)
            equal = equal or (value == other and math.copysign(1, value) == math.copysign(1, other))
        else:
            equal = value == other
        assert equal, f"{where}: {name} is {other!r}, expected {value!r}"
