"""Rows that a condition chooses, image by image, and what an update's two images have to do with each other. Pure.

Rows are a table or a batch with the bus's columns, as they stand in a frame, where `_change_type` is a number, or as
users see them, where it is a name.

Where updates come without first images, it is unknown whether the copy has a row for which the condition does not hold.
It passes as a delete of its key, as in Kafka Streams' filters over tables: a copy without the row has nothing to
remove.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, ConfigError
from databus.schema import TableSchema

Rows: TypeAlias = Any  # `pa.Table` or `pa.RecordBatch`: pyarrow has no types to check

_INTEGERS_OF: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowChoice:
    """What a choice among a table's rows leaves.

    Raises `ConfigError` where what leaves the choice cannot be removed, since the table has no key.
    """

    table: TableSchema
    by: Collection[str] = ()
    """The columns that decide the choice; empty where it does not matter which."""

    def __post_init__(self) -> None:
        if self.removes and not self.table.key:
            raise ConfigError(
                "its updates may come without first images, and it has no key by which a row that leaves the choice "
                "could be removed. Say its `key` in the source; or `first_images: true`, if its messages have whole "
                "rows"
            )

    @property
    def removes(self) -> bool:
        """Whether a row outside the choice is removed by its key, since the copy may have it."""
        return not self.table.first_images and not (self.by and {*self.by} <= {*self.table.key})

    @cached_property
    def after(self) -> TableSchema:
        """The definition of what is left: a delete of the key alone has no other values."""
        if not self.removes:
            return self.table
        key = self.table.key
        return replace(
            self.table,
            columns=tuple(
                column if column.name in key else replace(column, nullable=True) for column in self.table.columns
            ),
        )

    def left(self, rows: Rows, holds: "Flags | pa.Array | pa.ChunkedArray") -> Rows:
        """The rows for which it holds, and deletes of the others where those may have been in a copy."""
        chosen = np.asarray(holds)
        if not self.removes:
            return rows.filter(pa.array(chosen))
        stays = np.ones(rows.num_rows, bool)
        before = self._of_one_key(rows)  # where one of the two images says what becomes of the key
        stays[before] = chosen[before]
        stays[before + 1] = chosen[before + 1] | ~chosen[before]
        is_gone = pa.array(~chosen)
        kinds = pc.if_else(is_gone, _kind(rows, ChangeType.DELETE), rows.column(CHANGE_TYPE))
        rows = rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, kinds)
        for index, name in enumerate(self.table.names):
            if name not in self.table.key:
                column = rows.column(name)
                rows = rows.set_column(index, name, pc.if_else(is_gone, pa.scalar(None, column.type), column))
        return rows.filter(pa.array(stays))

    def _of_one_key(self, rows: Rows) -> npt.NDArray[np.int64]:
        """The first images of updates that leave the key as it is."""
        before = np.flatnonzero(begins_update(rows))
        moved = np.zeros(len(before), bool)
        for name in self.table.key:
            moved |= differs(rows.column(name), before)
        return before[~moved]


def _kind(rows: Rows, change: ChangeType) -> pa.Scalar:
    """A change type as these rows have it."""
    kind = rows.column(CHANGE_TYPE).type
    return pa.scalar(int(change) if pa.types.is_integer(kind) else change.label, kind)


def _images(rows: Rows) -> tuple[Flags, Flags]:
    """Which rows are first images of updates, and which second ones."""
    kinds, images = rows.column(CHANGE_TYPE), (ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE)
    if pa.types.is_integer(kinds.type):
        numbers = np.asarray(kinds)
        before, after = (numbers == int(image) for image in images)
    else:
        before, after = (np.asarray(pc.equal(kinds, image.label)) for image in images)
    return before, after


def _joined(rows: Rows, is_before: Flags, is_after: Flags) -> Flags:
    """By row but the last: whether it and the next are the two images of one update."""
    scns, seqs = np.asarray(rows.column(COMMIT_VERSION)), np.asarray(rows.column(SEQ))
    joined: Flags = is_before[:-1] & is_after[1:] & (scns[1:] == scns[:-1]) & (seqs[1:] == seqs[:-1] + 1)
    return joined


def begins_update(rows: Rows) -> Flags:
    """By row: whether it and the next are the two images of one update."""
    is_before, is_after = _images(rows)
    begins = np.zeros(rows.num_rows, bool)
    begins[:-1] = _joined(rows, is_before, is_after)
    return begins


def whole_changes(rows: Rows) -> Rows:
    """Sorted rows in which an image of an update without the other is an insert or a delete."""
    is_before, is_after = _images(rows)
    if not (np.count_nonzero(is_before) or np.count_nonzero(is_after)):
        return rows
    joined = _joined(rows, is_before, is_after)
    left, entered = is_before.copy(), is_after.copy()
    left[:-1] &= ~joined
    entered[1:] &= ~joined
    if not (left.any() or entered.any()):
        return rows
    kinds = pc.if_else(pa.array(left), _kind(rows, ChangeType.DELETE), rows.column(CHANGE_TYPE))
    kinds = pc.if_else(pa.array(entered), _kind(rows, ChangeType.INSERT), kinds)
    return rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, kinds)


def differs(column: pa.Array | pa.ChunkedArray, before: npt.NDArray[np.int64]) -> Flags:
    """Of each of these rows, whether it and the next have other values; floats by their bits."""
    values = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = values.view(_INTEGERS_OF[values.type]) if values.type in _INTEGERS_OF else values
    one, other = values.take(pa.array(before)), values.take(pa.array(before + 1))
    is_same = pc.fill_null(pc.equal(one, other), False)
    is_same = pc.or_(is_same, pc.and_(one.is_null(), other.is_null()))
    return ~np.asarray(is_same)
