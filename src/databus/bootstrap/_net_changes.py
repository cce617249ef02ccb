"""What a range of changes comes to: of each key at most one change. Memory is bounded by a share of the keys.

Rows are dealt by the hash of their key into files beside, and a share of them is looked at at a time. All rows are in
the columns that the table has at the end of the range.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.bootstrap._shares import RowShares
from databus.core import CHANGE_TYPE, ChangeType
from databus.filters import differs, row_hashes
from databus.flow import TableControl, TableRows, steps_at, user_rows_schema
from databus.schema import TableSchema, key_bytes
from databus.sinks.delta import plan as plan_columns

SHARE_ROWS: Final = 250_000
_PUTS: Final = (ChangeType.INSERT.label, ChangeType.UPDATE_POSTIMAGE.label)

ColumnStep = Callable[[pa.Table], pa.Table]


def step_of(control: TableControl, have: TableSchema) -> ColumnStep:
    """What a `schema` control makes of rows, as users see them, from before it."""
    old, new = user_rows_schema(have), user_rows_schema(control.table)
    steps = steps_at(control, have.names)
    bus = {name: name for name in new.names if name not in control.table.names}
    return plan_columns(old, new, moved={**steps.moved, **bus}, fill=steps.fill, below=steps.below)


def through(rows: pa.Table, steps: Iterable[ColumnStep]) -> pa.Table:
    """Rows in the columns that they have after changes of the schema, in order."""
    for step in steps:
        rows = step(rows)
    return rows


def net_changes(
    items: Callable[[], Iterable[TableRows | TableControl]], end: TableSchema, rows_max: int
) -> Iterator[pa.Table]:
    """What changes come to: rows as users see them, by key an insert, a delete, or both images of an update.

    items: gives the changes, as often as it is called: controls that change columns are looked for before rows are
    read. end: the definition behind them. rows_max: at least as many as there are.
    """
    steps = _steps(items())
    count = max(-(-rows_max // SHARE_ROWS), 1)
    with RowShares() as shares:
        passed = 0
        for item in items():
            if isinstance(item, TableControl):
                passed += item.kind == "schema"
            else:
                rows = through(item.rows, steps[passed:])
                shares.add(row_hashes(end, rows) % count, rows)
        for _, rows in shares.each():
            changes = _net(rows, end)
            if changes.num_rows:
                yield changes


def _steps(items: Iterable[TableRows | TableControl]) -> list[ColumnStep]:
    steps, before = list[ColumnStep](), None
    for item in items:
        if isinstance(item, TableControl) and item.kind == "schema":
            steps.append(step_of(item, before or item.table))
        before = item.table
    return steps


def _net(rows: pa.Table, table: TableSchema) -> pa.Table:
    """rows: all images of some keys, in order."""
    codes = key_bytes([rows.column(name) for name in table.key]).dictionary_encode().indices.to_numpy()
    first, last = _ends(codes)
    kinds = rows.column(CHANGE_TYPE)
    puts = np.asarray(pc.is_in(kinds, pa.array(_PUTS)))
    was_there, is_there = ~puts[first], puts[last]
    is_unknown = np.zeros(len(first), bool)
    if not table.first_images:  # what was there before is not known
        is_unknown = np.asarray(pc.equal(kinds, ChangeType.UPDATE_POSTIMAGE.label))[first]
    pairs = np.column_stack([first, last])
    is_update = was_there & is_there
    if is_update.any():
        both = rows.take(pa.array(pairs[is_update].reshape(-1)))
        at = np.arange(0, both.num_rows, 2)
        changed = np.zeros(len(at), bool)
        for name in table.names:
            changed |= differs(both.column(name), at)
        is_update[is_update] = changed
    labels = np.full(pairs.shape, "", object)
    labels[is_update] = ChangeType.UPDATE_PREIMAGE.label, ChangeType.UPDATE_POSTIMAGE.label
    labels[was_there & ~is_there, 0] = ChangeType.DELETE.label
    labels[~was_there & is_there, 1] = ChangeType.INSERT.label
    labels[is_unknown & is_there, 1] = ChangeType.UPDATE_POSTIMAGE.label
    labels[is_unknown & ~is_there, 1] = ChangeType.DELETE.label
    order = np.argsort(last, kind="stable")
    words = pa.array(labels[order].reshape(-1).tolist(), pa.string())
    is_said = pc.not_equal(words, "")
    changes = rows.take(pa.array(pairs[order].reshape(-1)).filter(is_said))
    at = changes.schema.get_field_index(CHANGE_TYPE)
    return changes.set_column(at, changes.schema.field(at), words.filter(is_said))


def _ends(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each code, where it stands first and last."""
    numbers = np.arange(len(codes))
    count = int(codes.max()) + 1 if len(codes) else 0
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    first[codes[::-1]] = numbers[::-1]
    last[codes] = numbers
    return first, last
