"""Which rows of a batch are one change: an update is two, the row before it and the row after it."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import CHANGE_TYPE, COMMIT_VERSION, ChangeType, UnrepresentableValue, UnsupportedFeature
from databus.schema import TableSchema

_OF_WHOLE_ROWS = frozenset({"maxwell", "canal"})
_NUMBERS = {kind.label: kind.value for kind in ChangeType}

Places = npt.NDArray[np.int64]


class ChangeImages(NamedTuple):
    """The changes of a batch."""

    kinds: npt.NDArray[np.int8]
    """`INSERT`, `UPDATE_POSTIMAGE` or `DELETE`."""
    rows: Places
    """Where the change's last image stands; an insert and a delete have no other."""
    before: Places
    """Where the first image of an update stands; -1 for inserts and deletes, and where it is missing."""

    @property
    def has_before(self) -> npt.NDArray[np.bool_]:
        """Whether a change is an update with the row before it."""
        return self.before >= 0


def images_of(table: TableSchema, batch: pa.RecordBatch) -> ChangeImages:
    """The changes of a batch of change rows, whose `_change_type` are numbers or names.

    An update without the row before it is taken: something left that out. Raises `UnrepresentableValue` for a row
    before an update that is followed by none after it.
    """
    kinds = change_types(batch)
    scns = batch.column(COMMIT_VERSION).to_numpy(zero_copy_only=False)
    is_pre = kinds == ChangeType.UPDATE_PREIMAGE
    is_post = kinds == ChangeType.UPDATE_POSTIMAGE
    is_paired = np.zeros(len(kinds), np.bool_)
    is_paired[1:] = is_pre[:-1] & is_post[1:] & (scns[:-1] == scns[1:])
    alone = np.flatnonzero(is_pre & ~np.append(is_paired[1:], False))
    if len(alone):
        raise UnrepresentableValue(
            f"{table.source}: the row before an update (row {alone[0]} of the batch, SCN {scns[alone[0]]}) is not "
            "followed by the row after it; keep both, or make it a delete"
        )
    rows = np.flatnonzero(~is_pre)
    return ChangeImages(kinds[rows], rows, np.where(is_paired[rows], rows - 1, -1))


def check_whole_rows(table: TableSchema, words: str, where: str = "") -> None:
    """Raises `UnsupportedFeature` for a table whose messages in this format would need values that are unknown.

    where: what the error begins with.
    """
    if not table.first_images and words in _OF_WHOLE_ROWS:
        raise UnsupportedFeature(
            f"{where}{table.source}: its updates may come without first images, and its deletes with the key alone: "
            f"{words} would call such an update an insert, and say null for what a deleted row had. Take Debezium's "
            "words or our own; or have the database log whole rows, and say `first_images: true` in the source"
        )


def change_types(batch: pa.RecordBatch) -> npt.NDArray[np.int8]:
    """The numbers of a batch's change types, which are numbers or names."""
    column = batch.column(CHANGE_TYPE)
    if pa.types.is_integer(column.type):
        kinds: npt.NDArray[np.int8] = column.to_numpy(zero_copy_only=False).astype(np.int8)
        return kinds
    distinct = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    numbers = np.array([_NUMBERS[label] for label in distinct.dictionary.to_pylist()], np.int8)
    of_rows: npt.NDArray[np.int8] = numbers[distinct.indices.to_numpy(zero_copy_only=False)]
    return of_rows


def rows_at(values: pa.Array, places: Places) -> pa.Array:
    """The values at these places; null at -1."""
    is_none = places < 0
    return values.take(pa.array(places, mask=is_none) if is_none.any() else pa.array(places))
