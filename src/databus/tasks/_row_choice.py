"""Rows that a condition chooses, image by image, and what an update's two images have to do with each other. Pure.

Where updates come without first images, nobody knows whether a row that does not hold was in the copy before. It passes
as a delete of its key, as Kafka Streams' filters over tables do: a copy that does not have it has nothing to remove.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, ConfigError
from databus.schema import TableSchema

_INTEGERS_OF: Final = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class RowChoice:
    """What a choice among a table's rows leaves. by: the columns that decide it; none where that does not matter.

    Raises `ConfigError` where what leaves the choice cannot be removed, since the table has no key.
    """

    table: TableSchema
    by: Collection[str] = ()

    def __post_init__(self) -> None:
        if self._removes and not self.table.key:
            raise ConfigError(
                "its updates may come without first images, and it has no key by which a row that leaves the choice "
                "could be removed. Say its `key` in the source; or `first_images: true`, if its messages have whole "
                "rows"
            )

    @property
    def _removes(self) -> bool:
        return not self.table.first_images and not (self.by and {*self.by} <= {*self.table.key})

    @cached_property
    def after(self) -> TableSchema:
        """The definition of what is left: a delete of the key alone has no other values."""
        if not self._removes:
            return self.table
        key = self.table.key
        return replace(
            self.table,
            columns=tuple(each if each.name in key else replace(each, nullable=True) for each in self.table.columns),
        )

    def left(self, rows: pa.Table, holds: "Flags | pa.Array | pa.ChunkedArray") -> pa.Table:
        """The rows for which it holds, and deletes of the others where those may have been in a copy."""
        chosen = np.asarray(holds)
        if not self._removes:
            return rows.filter(pa.array(chosen))
        stays = np.ones(rows.num_rows, bool)
        before = self._of_one_key(rows)  # where one of the two images says what becomes of the key
        stays[before] = chosen[before]
        stays[before + 1] = chosen[before + 1] | ~chosen[before]
        gone = pa.array(~chosen)
        kinds = pc.if_else(gone, ChangeType.DELETE.label, rows.column(CHANGE_TYPE))
        rows = rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, kinds)
        for index, name in enumerate(self.table.names):
            if name not in self.table.key:
                column = rows.column(name)
                rows = rows.set_column(index, name, pc.if_else(gone, pa.scalar(None, column.type), column))
        return rows.filter(pa.array(stays))

    def _of_one_key(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """The first images of updates that leave the key as it is."""
        before = np.flatnonzero(begins_update(rows))
        moved = np.zeros(len(before), bool)
        for name in self.table.key:
            moved |= differs(rows.column(name), before)
        return before[~moved]


def begins_update(rows: pa.Table) -> Flags:
    """By row: whether it and the next are the two images of one update."""
    kinds = rows.column(CHANGE_TYPE)
    is_before = pc.equal(kinds, ChangeType.UPDATE_PREIMAGE.label).to_numpy()
    is_after = pc.equal(kinds, ChangeType.UPDATE_POSTIMAGE.label).to_numpy()
    scns, seqs = rows.column(COMMIT_VERSION).to_numpy(), rows.column(SEQ).to_numpy()
    begins = np.zeros(rows.num_rows, bool)
    begins[:-1] = is_before[:-1] & is_after[1:] & (scns[1:] == scns[:-1]) & (seqs[1:] == seqs[:-1] + 1)
    return begins


def differs(column: pa.ChunkedArray, before: npt.NDArray[np.int64]) -> Flags:
    """Of each of these rows, whether it and the next have other values; floats by their bits."""
    values = column.combine_chunks()
    values = values.view(_INTEGERS_OF[values.type]) if values.type in _INTEGERS_OF else values
    one, other = values.take(pa.array(before)), values.take(pa.array(before + 1))
    is_same = pc.fill_null(pc.equal(one, other), False)
    is_same = pc.or_(is_same, pc.and_(one.is_null(), other.is_null()))
    return ~np.asarray(is_same)
