"""KeyTracker: the rule by which a chunk that was read finds its place in the log. Pure.

A chunk is read at some moment between its low watermark and its high one, and placed at a transaction boundary that
contains the high one. Rows that were changed between the low watermark and that boundary have images in the log that
say more than the chunk: by their keys they are dropped from it. Equality is that of exact values: the chain of a row's
images begins with the very value that the chunk has read, so no collation is needed.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Keys = Sequence[pa.Array]
"""The key's columns of some rows, in the key's order; no columns for a table without a key."""

_ROW_BYTES: Final = 16


class KeyTracker:
    """The keys of logged images of the tables that are being read, by SCN, as far as an open chunk needs them.

    keys_max, bytes_max: how many are held of one table. Beyond that the oldest are forgotten, and a chunk that needs
    them is read again.
    """

    def __init__(self, keys_max: int, bytes_max: int) -> None:
        self._keys_max = keys_max
        self._bytes_max = bytes_max
        self._tables: dict[str, _Table] = {}

    def add(self, source: str, scns: Ints, keys: Keys) -> None:
        """Images were logged, before and after ones alike; `scns` rise or stay."""
        if len(scns):
            table = self._tables.setdefault(source, _Table())
            table.add(scns, keys)
            table.shrink(self._keys_max, self._bytes_max)

    def control(self, source: str, scn: int) -> None:
        """A truncate, drop or schema control was logged: chunks read before it are worth nothing."""
        table = self._tables.setdefault(source, _Table())
        table.forget(scn)
        table.control = max(table.control, scn)

    def forget(self, source: str, upto: int) -> None:
        """No open chunk of the table, and none that will be opened, needs what was logged at or below this SCN."""
        table = self._tables.get(source)
        if table is not None:
            table.forget(upto)

    def drop(self, source: str) -> None:
        """The table is not being read any more."""
        self._tables.pop(source, None)

    def held(self, source: str) -> int:
        """How many keys of it are held."""
        table = self._tables.get(source)
        return 0 if table is None else table.count

    def has_control(self, source: str, after: int) -> bool:
        """Whether a control of the table was logged above this SCN."""
        table = self._tables.get(source)
        return table is not None and table.control > after

    def is_lost(self, source: str, after: int) -> bool:
        """Whether keys above this SCN had to be forgotten."""
        table = self._tables.get(source)
        return table is not None and table.lost > after

    def has_images(self, source: str, after: int) -> bool:
        """Whether an image of the table was logged above this SCN."""
        table = self._tables.get(source)
        return self.is_lost(source, after) or (table is not None and bool(table.above(after)))

    def place(self, source: str, after: int, keys: Keys, rows: int) -> npt.NDArray[np.bool_] | None:
        """Which of a chunk's rows stay if it is placed now; None if it must be read again.

        after: the SCN up to which everything logged is in the chunk for certain.
        """
        if self.has_control(source, after) or (rows and self.is_lost(source, after)):
            return None
        table = self._tables.get(source)
        logged = [] if table is None else table.above(after)
        if not rows or not logged:
            return np.ones(rows, np.bool_)
        if not keys:
            return None  # without a key, the changed rows cannot be singled out
        return ~is_among(keys, [pa.chunked_array(parts) for parts in zip(*logged, strict=True)])


class _Table:
    """One table's images, in order of SCN, as they came."""

    def __init__(self) -> None:
        self._parts: list[tuple[Ints, list[pa.Array], int]] = []
        self.count = 0
        self.bytes = 0
        self.control = -1
        self.lost = -1

    def add(self, scns: Ints, keys: Keys) -> None:
        every = np.arange(len(scns))
        kept = [key.take(pa.array(every)) for key in keys]  # a copy: the log's arrays share large buffers
        size = sum(key.nbytes for key in kept) + _ROW_BYTES * len(scns)
        self._parts.append((scns, kept, size))
        self.count += len(scns)
        self.bytes += size

    def shrink(self, keys_max: int, bytes_max: int) -> None:
        while self._parts and (self.count > keys_max or self.bytes > bytes_max):
            self.lost = max(self.lost, int(self._parts[0][0][-1]))
            self._remove_first()

    def forget(self, upto: int) -> None:
        while self._parts and int(self._parts[0][0][-1]) <= upto:
            self._remove_first()

    def above(self, scn: int) -> list[list[pa.Array]]:
        parts = []
        for scns, keys, _ in self._parts:
            at = int(np.searchsorted(scns, scn, side="right"))
            if at < len(scns):
                parts.append([key.slice(at) for key in keys])
        return parts

    def _remove_first(self) -> None:
        scns, _, size = self._parts.pop(0)
        self.count -= len(scns)
        self.bytes -= size


def is_among(keys: Keys, others: Sequence[pa.ChunkedArray]) -> npt.NDArray[np.bool_]:
    """Which of the rows `keys` occur among `others`, by exact equality of all columns."""
    if len(keys) == 1:
        matches = pc.is_in(keys[0], value_set=others[0].combine_chunks())
        return np.asarray(matches.to_numpy(zero_copy_only=False), np.bool_)
    rows = len(keys[0])
    codes = np.zeros(rows + len(others[0]), np.int64)
    for key, other in zip(keys, others, strict=True):
        both = pa.chunked_array([key, *other.chunks]).combine_chunks()
        numbers = both.dictionary_encode().indices.to_numpy().astype(np.int64)
        _, codes = np.unique(codes * (int(numbers.max(initial=0)) + 1) + numbers, return_inverse=True)
    return np.asarray(np.isin(codes[:rows], codes[rows:]), np.bool_)
