"""What a range of changes comes to: of each key at most one change. Memory is bounded by a share of the keys.

Rows are dealt by the hash of their key into files beside, and a share of them is looked at at a time. All rows are in
the columns that the table has at the end of the range.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, ChangeType
from databus.filters import differs, row_hashes
from databus.flow import TableControl, TableRows, steps_at, user_rows_schema
from databus.flow import plan as plan_columns
from databus.schema import TableSchema, key_bytes

SHARE_ROWS: Final = 250_000
_PUTS: Final = (ChangeType.INSERT.label, ChangeType.UPDATE_POSTIMAGE.label)

Step = Callable[[pa.Table], pa.Table]


def step_of(control: TableControl, have: TableSchema) -> Step:
    """What a `schema` control makes of rows, as users see them, from before it."""
    old, new = user_rows_schema(have), user_rows_schema(control.table)
    steps = steps_at(control, have.names)
    bus = {name: name for name in new.names if name not in control.table.names}
    return plan_columns(old, new, moved={**steps.moved, **bus}, fill=steps.fill, below=steps.below)


def through(rows: pa.Table, steps: Iterable[Step]) -> pa.Table:
    """Rows in the columns that they have after changes of the schema, in order."""
    for step in steps:
        rows = step(rows)
    return rows


class Shares:
    """Rows dealt by the hash of their key, on the disk where there are many. A context manager."""

    def __init__(self, rows_max: int) -> None:
        self._count = max(-(-rows_max // SHARE_ROWS), 1)
        self._held: list[pa.Table] = []
        self._open = ExitStack()
        self._writers: dict[int, tuple[pa.ipc.RecordBatchStreamWriter, BinaryIO]] = {}
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        if self._count > 1:
            self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="databus-")))
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, table: TableSchema, rows: pa.Table) -> None:
        """Add rows; all have the same columns."""
        if self._folder is None:
            self._held.append(rows)
            return
        numbers = row_hashes(table, rows) % self._count
        order = np.argsort(numbers, kind="stable")
        starts = np.searchsorted(numbers[order], np.arange(self._count + 1))
        rows = rows.take(pa.array(order))
        for number in np.flatnonzero(np.diff(starts)).tolist():
            part = rows.slice(starts[number], starts[number + 1] - starts[number])
            self._writer(number, rows.schema).write_table(part)

    def _writer(self, number: int, schema: pa.Schema) -> "pa.ipc.RecordBatchStreamWriter":
        if number not in self._writers:
            assert self._folder is not None  # noqa: S101 - there are several shares
            file = self._open.enter_context((self._folder / str(number)).open("wb"))
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writers[number] = pa.ipc.new_stream(file, schema, options=options), file
        return self._writers[number][0]

    def each(self) -> Iterator[pa.Table]:
        """The shares, each with its rows in the order in which they were added."""
        if self._held:
            yield pa.concat_tables(self._held)
        for writer, file in self._writers.values():
            writer.close()
            file.close()
            with Path(file.name).open("rb") as written:
                yield pa.ipc.open_stream(written).read_all()


def net_changes(
    items: Callable[[], Iterable[TableRows | TableControl]], end: TableSchema, rows_max: int
) -> Iterator[pa.Table]:
    """What changes come to: rows as users see them, by key an insert, a delete, or both images of an update.

    items: gives the changes, as often as it is called: controls that change columns are looked for before rows are
    read. end: the definition behind them. rows_max: at least as many as there are.
    """
    steps = _steps(items())
    with Shares(rows_max) as shares:
        passed = 0
        for item in items():
            if isinstance(item, TableControl):
                passed += item.kind == "schema"
            else:
                shares.add(end, through(item.rows, steps[passed:]))
        for rows in shares.each():
            found = _net(rows, end)
            if found.num_rows:
                yield found


def _steps(items: Iterable[TableRows | TableControl]) -> list[Step]:
    steps, before = list[Step](), None
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
    if not table.first_images:  # what was there before, nobody knows
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
    found = rows.take(pa.array(pairs[order].reshape(-1)).filter(is_said))
    at = found.schema.get_field_index(CHANGE_TYPE)
    return found.set_column(at, found.schema.field(at), words.filter(is_said))


def _ends(codes: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of each code, where it stands first and last."""
    numbers = np.arange(len(codes))
    count = int(codes.max()) + 1 if len(codes) else 0
    first, last = np.empty(count, np.int64), np.empty(count, np.int64)
    first[codes[::-1]] = numbers[::-1]
    last[codes] = numbers
    return first, last
