"""Rows that are too large: a marker replaces their largest values, and says how many bytes were omitted.

The size of a row is that of its values of variable length as consumers get them: text in UTF-8, bytes, JSON as text. It
is counted in the finished arrays, so a row of the log and the same row of a snapshot lose the same values. A batch
whose text altogether fits the limit is not looked at any further.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from databus.core import LimitExceeded
from databus.schema import TableSchema
from databus.sources.mysql._definition import FieldType, TableDefinition
from databus.sources.mysql.rows._arrow_types import TEXTS, address_type
from databus.sources.mysql.rows._text import RowPlaces

OMITTED: Final = "__databus_value_omitted__"
"""What a marker begins with; a blank and the number of bytes that the value had follow. In JSON it is a string."""

_NUMBERS: Final = np.array([10**digits for digits in range(1, 11)], np.int64)
_OF_BYTES: Final = TEXTS | {FieldType.GEOMETRY, FieldType.VECTOR}


class Omitter:
    """Puts markers in the place of the largest values of rows above `row_bytes_max`, and counts them by table.

    One for all threads that decode rows of a source.
    """

    def __init__(self, row_bytes_max: int) -> None:
        self.row_bytes_max = row_bytes_max
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def counts(self) -> dict[str, int]:
        """How many values of each table were lost so far; those of a row that was decoded again count again."""
        with self._lock:
            return dict(self._counts)

    def apply(
        self, definition: TableDefinition, table: TableSchema, arrays: Sequence[pa.Array], where: RowPlaces
    ) -> list[pa.Array]:
        """The arrays of `table`'s columns with every row within the limit: the largest values go first, of two equal
        ones the first column's.

        Columns of the key are never touched. Raises `LimitExceeded` if a row does not fit without them.
        """
        is_variable = [pa.types.is_string(array.type) or pa.types.is_binary(array.type) for array in arrays]
        places = [number for number, is_candidate in enumerate(is_variable) if is_candidate]
        offsets = [_offsets(arrays[number]) for number in places]
        if sum(int(column_offsets[-1] - column_offsets[0]) for column_offsets in offsets) <= self.row_bytes_max:
            return list(arrays)
        sizes = np.stack([np.diff(column_offsets) for column_offsets in offsets], axis=1).astype(np.int64)
        large = np.flatnonzero(sizes.sum(axis=1) > self.row_bytes_max)
        if not large.size:
            return list(arrays)
        quotes = np.array([_quotes(definition, table, number) for number in places], np.int64)
        goes = self._choose(table.source, sizes[large], quotes, large, where)
        made = list(arrays)
        for at, number in enumerate(places):
            rows = large[goes[:, at]]
            if rows.size:
                made[number] = _with_markers(arrays[number], rows, sizes[rows, at], is_quoted=quotes[at] > 0)
        with self._lock:
            self._counts[table.source] += int(goes.sum())
        return made

    def _choose(
        self,
        source: str,
        sizes: NDArray[np.int64],
        quotes: NDArray[np.int64],
        rows: NDArray[np.int64],
        where: RowPlaces,
    ) -> NDArray[np.bool_]:
        """Which values of these rows go. sizes: by row and column. quotes: bytes besides the marker's; -1: it stays."""
        digits = np.searchsorted(_NUMBERS, sizes, side="right") + 1
        gains = np.where(quotes >= 0, np.maximum(sizes - (len(OMITTED) + 1 + digits + quotes), 0), 0)
        order = np.argsort(np.where(gains > 0, -sizes, 1), axis=1, kind="stable")
        gained = np.cumsum(np.take_along_axis(gains, order, axis=1), axis=1)
        wanted = sizes.sum(axis=1, keepdims=True) - self.row_bytes_max
        hopeless = np.flatnonzero(gained[:, -1:] < wanted)
        if hopeless.size:
            first = int(hopeless[0])
            raise LimitExceeded(
                f"{source}: {where.row(int(rows[first]))} has {int(sizes[first].sum())} bytes, and more than "
                f"row_bytes_max = {self.row_bytes_max} even without its largest values, since those of the key and of "
                f"types that have no marker stay; raise `row_bytes_max`"
            )
        needed = (gained < wanted).sum(axis=1, keepdims=True) + 1
        goes = np.zeros(sizes.shape, np.bool_)
        np.put_along_axis(goes, order, np.arange(sizes.shape[1]) < needed, axis=1)
        return goes


def _offsets(array: pa.Array) -> NDArray[np.int32]:
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _quotes(definition: TableDefinition, table: TableSchema, number: int) -> int:
    """The bytes that a marker has besides its text in this column; -1 if its values may not be omitted."""
    name = table.names[number]
    column = next(candidate for candidate in definition.columns if candidate.name == name)
    if name in table.key or address_type(column) is not None:
        return -1
    if column.type is FieldType.JSON:
        return 2
    return 0 if column.type in _OF_BYTES else -1


def _with_markers(array: pa.Array, rows: NDArray[np.int64], sizes: NDArray[np.int64], *, is_quoted: bool) -> pa.Array:
    chosen = np.zeros(len(array), np.bool_)
    chosen[rows] = True
    quote = '"' if is_quoted else ""
    markers = pa.array([f"{quote}{OMITTED} {size}{quote}" for size in sizes.tolist()], pa.string())
    return pc.replace_with_mask(array, pa.array(chosen), markers.cast(array.type))
