"""Where a mirror keeps its rows: which of its files may hold a key, and what a file that is written is to hold.

Keys of integers alone are kept in order: a file holds a range, and its statistics say which. Rows that are near in time
are mostly near in key, so a few changed rows are in few files. Other keys are kept in buckets of their canonical bytes;
the name of a file says in which. The number of buckets n is a power of two, and bucket b of n is buckets b and b + n of
2n, so files of different n live together; a file without a mark is in the one bucket of 1, which is every bucket.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.flow import GROUP_ROWS_MAX, Int
from databus.schema import key_bytes, key_form, key_hashes

_MARK: Final = re.compile(r"(?:^|/)rows-b([0-9a-f]+)of([0-9a-f]+)k([0-9a-f]{8})-[^/]*$")
_VERSION: Final = 1  # of docs/key-bytes.md
_FILES_A_TARGET: Final = 4
_SMALL_A_TARGET: Final = 4
_PIECES_A_TARGET: Final = 8


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of the table."""

    name: str
    """Below the table's folder."""
    size_bytes: int
    rows: int
    bounds: tuple[tuple[int, int] | None, ...]
    """For each column of the key the least and the greatest value, if that is an integer and the file's statistics say
    that it holds no other, else None.
    """


def mark_of(file: LiveFile, of_key: str | None = None) -> str:
    """The mark in a file's name, for another that is to hold rows of the same bucket; empty where there is none.

    of_key: a `Layout.key_mark`; marks of other keys do not count then.
    """
    mark = _MARK.search(file.name)
    if mark is None or of_key not in (None, mark[3]):
        return ""
    return f"b{mark[1]}of{mark[2]}k{mark[3]}-"


def live_files(actions: pa.Table, key: Sequence[str]) -> list[LiveFile]:
    """The files of a table. actions: its add-actions, flattened, as deltalake's `get_add_actions` has them."""
    names = [unquote(path) for path in actions.column("path").to_pylist()]  # as `RemoveAction` takes them, too
    sizes = actions.column("size_bytes").to_pylist()
    counts = _said(actions, "num_records")
    bounds = [_bounds(actions, name) for name in key]
    return [
        LiveFile(name, size, rows or 0, tuple(bound[at] for bound in bounds))
        for at, (name, size, rows) in enumerate(zip(names, sizes, counts, strict=True))
    ]


def _said(actions: pa.Table, name: str) -> list[int | None]:
    if name not in actions.column_names:
        return [None] * actions.num_rows
    values: list[int | None] = actions.column(name).to_pylist()
    return values


def _bounds(actions: pa.Table, name: str) -> list[tuple[int, int] | None]:
    least, greatest, nulls = (_said(actions, f"{what}.{name}") for what in ("min", "max", "null_count"))
    return [
        (low, high) if isinstance(low, int) and isinstance(high, int) and not missing and missing is not None else None
        for low, high, missing in zip(least, greatest, nulls, strict=True)
    ]


@dataclass(frozen=True)
class Layout:
    """How the rows of one table are spread over its files; the same for a merge's driver and its tasks."""

    schema: pa.Schema
    """The table's columns as the files have them."""
    key: tuple[str, ...]
    table_bytes: int
    """Size of all of its files."""
    file_bytes_max: int
    buckets_min: int = 1
    """A power of two; no bigger buckets are written, so that so many tasks can share the table."""
    group_rows_max: int = GROUP_ROWS_MAX
    """Of a row group; where that is fewer than usual, rows are in the order of their keys inside of every file."""

    @property
    def sorts(self) -> bool:
        """Whether rows are in the order of their keys inside of files that hold buckets, too."""
        return self.group_rows_max < GROUP_ROWS_MAX

    @cached_property
    def is_ordered(self) -> bool:
        """Whether files hold ranges of keys, rather than buckets."""
        return all(pa.types.is_integer(self.schema.field(name).type) for name in self.key)

    @property
    def target_bytes(self) -> int:
        """Size of files that are aimed at. A changed row costs a file, so it is less than the greatest size."""
        return max(self.file_bytes_max // _FILES_A_TARGET, 1)

    @property
    def small_bytes(self) -> int:
        """Size of files of which only a few are left in a bucket."""
        return max(self.target_bytes // _SMALL_A_TARGET, 1)

    @property
    def piece_bytes(self) -> int:
        """Size under which no bucket is divided."""
        return max(self.target_bytes // _PIECES_A_TARGET, 1)

    @property
    def buckets(self) -> int:
        """The number of buckets that suits the table's size."""
        return self._suits(self.table_bytes)

    def _suits(self, table_bytes: int) -> int:
        return max(_power_of_two(-(-table_bytes // self.target_bytes), up=True), self.buckets_min)

    def buckets_for(self, size_bytes: int, buckets: int) -> int:
        """Into how many buckets rows are written that are of one bucket of `buckets`, and will be of this size."""
        if self.is_ordered:
            return 1
        suits = self._suits(max(self.table_bytes, size_bytes * buckets))
        pieces = _power_of_two(size_bytes // self.piece_bytes, up=False)
        return max(min(suits, pieces * buckets), buckets, self.buckets_min)

    @cached_property
    def key_mark(self) -> str:
        """Stands for the key's columns and how they become bytes: of another key, a bucket means nothing."""
        form = [_VERSION, [(name, key_form(self.schema.field(name).type)) for name in self.key]]
        return hashlib.blake2b(json.dumps(form).encode(), digest_size=4).hexdigest()

    def mark(self, buckets: int, bucket: int) -> str:
        """The mark of a file that holds rows of one bucket."""
        return "" if buckets == 1 else f"b{bucket:x}of{buckets:x}k{self.key_mark}-"

    def bucket_of(self, file: LiveFile) -> tuple[int, int]:
        """(number of buckets, bucket) in which a file is; (1, 0) if its name has no mark of this key."""
        mark = _MARK.search(file.name)
        if mark is None or mark[3] != self.key_mark or self.is_ordered:
            return 1, 0
        bucket, buckets = int(mark[1], 16), int(mark[2], 16)
        return (buckets, bucket) if buckets & (buckets - 1) == 0 and bucket < buckets else (1, 0)

    def keys_of(self, rows: pa.Table) -> pa.Array:
        """The keys of rows, in a form that can be compared: int64, or canonical bytes."""
        columns = [rows.column(name) for name in self.key]
        if self.is_ordered and len(columns) == 1:
            return columns[0].cast(pa.int64()).combine_chunks()
        return key_bytes(columns)

    def hashes_of(self, keys: pa.Array) -> Int:
        """The hash of each key, of which a bucket is the remainder; all 0 where files hold ranges."""
        if self.is_ordered:
            return np.zeros(len(keys), np.int64)
        return (key_hashes(keys) & np.uint32(0x7FFFFFFF)).astype(np.int64)


def _power_of_two(number: int, *, up: bool) -> int:
    if number <= 1:
        return 1
    return int(1 << (number - 1).bit_length()) if up else int(1 << (number.bit_length() - 1))


class KeysInFiles:
    """Which of some keys may be in a file."""

    def __init__(self, layout: Layout, rows: pa.Table, hashes: Int) -> None:
        self._layout = layout
        self._hashes = hashes
        self._by_buckets: dict[int, tuple[Int, Int]] = {}
        self._by_column = [self._ordered(rows.column(name)) for name in layout.key]

    @staticmethod
    def _ordered(values: pa.ChunkedArray) -> tuple[Int, Int] | None:
        if not pa.types.is_integer(values.type) or values.null_count:
            return None
        numbers = values.cast(pa.int64()).to_numpy()
        order = np.argsort(numbers, kind="stable")
        return order, numbers[order]

    def numbers_for(self, file: LiveFile) -> Int:
        """The numbers of the keys that the file may hold, or of more than these; none if it cannot hold any."""
        buckets, bucket = self._layout.bucket_of(file)
        numbers = self._in_bucket(buckets, bucket)
        for ordered, bounds in zip(self._by_column, file.bounds, strict=True):
            if ordered is None or bounds is None:
                continue
            order, values = ordered
            first, last = np.searchsorted(values, bounds[0], "left"), np.searchsorted(values, bounds[1], "right")
            if last - first < len(numbers):
                numbers = order[first:last]
        return numbers

    def _in_bucket(self, buckets: int, bucket: int) -> Int:
        if buckets not in self._by_buckets:
            mine = self._hashes % buckets
            order = np.argsort(mine, kind="stable")
            self._by_buckets[buckets] = order, np.searchsorted(mine[order], np.arange(buckets + 1))
        order, starts = self._by_buckets[buckets]
        return order[starts[bucket] : starts[bucket + 1]]


@dataclass(frozen=True)
class TableParts:
    """A table divided, so that each key and each file belongs to one part, and a task can rewrite it alone."""

    layout: Layout
    files: tuple[tuple[LiveFile, ...], ...]
    """Of each part."""
    bounds: tuple[int, ...] = ()
    """The least first column of the second and later parts, where files hold ranges."""
    owners: tuple[int, ...] = (0,)
    """The part of each bucket, where they hold buckets."""

    def alone(self, number: int) -> "TableParts":
        """With the files of one part alone, for whoever rewrites that."""
        return replace(self, files=tuple(file if at == number else () for at, file in enumerate(self.files)))

    def part_of(self, rows: pa.Table) -> Int:
        """The part of each row, by its key."""
        if len(self.files) == 1:
            return np.zeros(rows.num_rows, np.int64)
        if self.layout.is_ordered:
            first = pc.fill_null(rows.column(self.layout.key[0]).cast(pa.int64()), np.iinfo(np.int64).min).to_numpy()
            numbers: Int = np.searchsorted(np.array(self.bounds, np.int64), first, "right").astype(np.int64)
            return numbers
        hashes = self.layout.hashes_of(self.layout.keys_of(rows))
        return np.array(self.owners, np.int64)[hashes % len(self.owners)]


def divided(files: Sequence[LiveFile], layout: Layout, parts_max: int) -> TableParts:
    """Divide a table into as many parts as its files allow, at most `parts_max`."""
    if layout.is_ordered:
        return _by_range(files, layout, parts_max)
    count = _power_of_two(parts_max, up=False)
    placed = [(*layout.bucket_of(file), file) for file in files]
    roots = list(range(count))
    for buckets, bucket, _ in sorted(placed, key=lambda place: -place[0]):  # the biggest bucket has the last word
        if buckets < count:
            roots[bucket::buckets] = [bucket] * (count // buckets)
    numbers = {root: number for number, root in enumerate(sorted(set(roots)))}
    owners = tuple(numbers[root] for root in roots)
    shares: list[list[LiveFile]] = [[] for _ in numbers]
    for _, bucket, file in placed:
        shares[owners[bucket % count]].append(file)
    return TableParts(layout, tuple(map(tuple, shares)), owners=owners)


def _by_range(files: Sequence[LiveFile], layout: Layout, parts_max: int) -> TableParts:
    known = [(file.bounds[0], file) for file in files if file.bounds[0] is not None]
    if len(known) < len(files) or not files:
        return TableParts(layout, (tuple(files),))
    share = sum(file.size_bytes for file in files) / parts_max
    parts: list[list[LiveFile]] = [[]]
    bounds: list[int] = []
    greatest = None
    for (low, high), file in sorted(known, key=lambda entry: (entry[0], entry[1].name)):
        if greatest is not None and low > greatest and _size(parts[-1]) >= share and len(parts) < parts_max:
            parts.append([])
            bounds.append(low)
        parts[-1].append(file)
        greatest = high if greatest is None else max(greatest, high)
    return TableParts(layout, tuple(map(tuple, parts)), bounds=tuple(bounds))


def _size(files: Iterable[LiveFile]) -> int:
    return sum(file.size_bytes for file in files)
