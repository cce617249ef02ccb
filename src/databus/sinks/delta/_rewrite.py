"""Copy-on-write of a mirror: a batch's last images go into files of their own, in the place of those that they change.

`rewrite` works on one part of a table (`_layout`) and commits nothing: it returns the files that it wrote and the names
of those whose place they take. The driver commits those of all parts at once. Until then no reader sees the new files,
so it may run twice, or be killed half-way.

A file whose rows do not change stays, unless it is one of many small ones of its bucket, or holds rows of many buckets
of a large table. New keys go into small files of big buckets, and are spread over smaller ones as they become more, so
that a few new keys do not cost a file in each bucket.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, RESERVED_COLUMNS, SEQ, ChangeType, CorruptData, UnsupportedFeature
from databus.disk import Location
from databus.flow import DataFile, Int, fitted_rows, pairs_of
from databus.sinks.delta._layout import KeysInFiles, Layout, LiveFile

if TYPE_CHECKING:
    import pyarrow.parquet as pq

# Packed columns: text of few values, kept as numbers into a list of these from one Parquet file to the next.
#
# To make each value of such a column again, and to look for it again when it is written, is most of what a rewrite
# would do. What is written has no value in its list that no row has any more.


_VALUE_BYTES_MAX: Final = 3  # a packed value takes about that, one that stands there by itself more
_PACKED: Final = pa.dictionary(pa.int32(), pa.string())


def packed_columns(metadata: "pq.FileMetaData", schema: pa.Schema) -> list[str]:
    """Columns of a file to read packed: those that are so small in it that their values cannot stand there one by one.

    Read so, a column of many values would cost more than otherwise.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    large = {chunk.path_in_schema for chunk in chunks if not _is_small(chunk)}
    names = {chunk.path_in_schema for chunk in chunks} - large
    return [field.name for field in schema if field.name in names and pa.types.is_string(field.type)]


def _is_small(chunk: "pq.ColumnChunkMetaData") -> bool:
    return bool(chunk.total_uncompressed_size <= _VALUE_BYTES_MAX * chunk.num_values)


def packed_schema(schema: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """A schema, with those columns packed that are so in rows."""
    return pa.schema([field.with_type(_PACKED) if _is_packed(rows, field.name) else field for field in schema])


def _is_packed(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and pa.types.is_dictionary(schema.field(name).type)


def concat_packed(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of tables of the same columns; a column that is packed in one of them is so in all."""
    if all(table.schema.equals(tables[0].schema) for table in tables[1:]):
        return pa.concat_tables(tables).unify_dictionaries()
    names = {name for table in tables for name in table.column_names if _is_packed(table.schema, name)}
    return pa.concat_tables([_with_packed(table, names) for table in tables]).unify_dictionaries()


def _with_packed(rows: pa.Table, names: set[str]) -> pa.Table:
    for index, name in enumerate(rows.column_names):
        if name in names and not _is_packed(rows.schema, name):
            rows = rows.set_column(index, name, rows.column(name).dictionary_encode().cast(_PACKED))
    return rows


def without_unused(rows: pa.Table) -> pa.Table:
    """Rows whose packed columns have only values in their lists that some row has."""
    for index, name in enumerate(rows.column_names):
        if _is_packed(rows.schema, name):
            rows = rows.set_column(index, name, _tight(rows.column(name).unify_dictionaries().combine_chunks()))
    return rows


def _tight(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used = np.sort(pc.unique(column.indices.drop_null()).to_numpy())
    if len(used) == len(column.dictionary):
        return column
    places = np.zeros(len(column.dictionary), np.int32)
    places[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(pa.array(places).take(column.indices), column.dictionary.take(pa.array(used)))


Write = Callable[[pa.Table, str], DataFile]
"""Writes rows into a new file with a mark in its name."""

_PUTS: Final = (ChangeType.INSERT.label, ChangeType.UPDATE_POSTIMAGE.label)
_SMALL_FILES_MAX: Final = 8  # of one bucket
_TARGETS_A_BUCKET_MAX: Final = 2  # before that, to spread them costs more than it spares
GROUP_BYTES_MAX: Final = 128 << 20
SPLIT_BYTES_MAX: Final = 64 << 20  # a merge, so that foreign files delay none of them much


class Rewritten(NamedTuple):
    """What to commit."""

    added: list[DataFile]
    removed: list[str]
    changed: int
    """How many images changed something; where it is 0, files were at most re-arranged."""


@dataclass(frozen=True)
class Images:
    """The last images of some keys."""

    rows: pa.Table
    """In the table's columns."""
    puts: npt.NDArray[np.bool_]
    """Whether each puts its row, or removes it."""
    keys: pa.Array


def last_images(rows: pa.Table, layout: Layout) -> Images:
    """The last image of each key. rows: changes in any order, with `_change_type` as text. Null equals null in a key.

    Raises `UnsupportedFeature` if they have other columns than the table, and Arrow's errors if a value does not fit
    its type exactly.
    """
    differ = (set(rows.column_names) ^ set(layout.schema.names)) - {*RESERVED_COLUMNS}
    if differ:
        raise UnsupportedFeature(
            f"rows and their table differ in {', '.join(sorted(differ))}: the change of the schema between them has "
            f"not been applied to the table"
        )
    scns, seqs = pairs_of(rows)
    order = np.lexsort((seqs, scns))
    fitted = fitted_rows(rows, layout.schema)
    keys = layout.keys_of(fitted)
    codes = keys.dictionary_encode(null_encoding="encode").indices.to_numpy()
    last = np.empty(codes.max() + 1 if len(codes) else 0, np.int64)
    last[codes[order]] = order  # of several numbers for one place the last one stays
    last.sort()
    puts = np.asarray(pc.is_in(rows.column(CHANGE_TYPE).cast(pa.string()), pa.array(_PUTS)))
    if len(last) == rows.num_rows:
        return Images(fitted, puts, keys)
    chosen = pa.array(last)
    return Images(fitted.take(chosen), puts[last], keys.take(chosen))


def rewrite(
    files: Sequence[LiveFile],
    images: Images,
    layout: Layout,
    table: Location,
    write: Write,
    *,
    group_bytes_max: int = GROUP_BYTES_MAX,
    split_bytes_max: int = SPLIT_BYTES_MAX,
) -> Rewritten:
    """Apply images to a part of a table.

    files: all of the part's. table: its folder. An older image never replaces a younger row; equal pairs change
    nothing. split_bytes_max: how much of files in too big buckets is spread though no image asks for it.

    Holds the images, `group_bytes_max` of rows and one row group, a few times over, whatever the size of the table.
    """
    arranged = _to_arrange(files, layout, split_bytes_max)
    with ThreadPoolExecutor(1) as beside:  # one file is encoded while the next is read
        work = _Rewrite(files, images, layout, table, write, group_bytes_max, beside)
        for bucket, held in _by_bucket(files, layout):
            for file in held:
                work.take(file, bucket, always=file.name in arranged)
            if bucket != (1, 0):
                work.flush(bucket)
        work.take_new()
        work.flush((1, 0))
        return Rewritten([future.result() for future in work.added], work.removed, work.changed)


def bytes_to_read(files: Sequence[LiveFile], images: Images, layout: Layout) -> int:
    """Size of the files in which `rewrite` looks for keys."""
    in_files = KeysInFiles(layout, images.rows, layout.hashes_of(images.keys))
    return sum(file.size_bytes for file in files if len(in_files.numbers_for(file)))


def _by_bucket(files: Sequence[LiveFile], layout: Layout) -> list[tuple[tuple[int, int], list[LiveFile]]]:
    """Files by bucket, the biggest bucket last, in the order of what they hold."""
    buckets: dict[tuple[int, int], list[LiveFile]] = {(1, 0): []}
    for file in sorted(files, key=lambda other: (other.bounds[0] or (0, 0), other.name)):
        buckets.setdefault(layout.bucket_of(file), []).append(file)
    return sorted(buckets.items(), reverse=True)


def _to_arrange(files: Sequence[LiveFile], layout: Layout, split_bytes_max: int) -> frozenset[str]:
    """Names of files that are written again though their rows do not change."""
    names: set[str] = set()
    for (buckets, _), held in _by_bucket(files, layout):
        small = [file for file in held if file.size_bytes < layout.small_bytes]
        if len(small) > _SMALL_FILES_MAX:
            names.update(file.name for file in small)
        if layout.is_ordered:
            continue
        large = [file for file in held if layout.buckets_for(file.size_bytes, buckets) > buckets]
        size = sum(file.size_bytes for file in large)
        if buckets < layout.buckets_min or size >= _TARGETS_A_BUCKET_MAX * layout.target_bytes:
            portion, split_bytes_max = _portion(large, split_bytes_max)
            names.update(portion)
    return frozenset(names)


def _portion(files: Iterable[LiveFile], bytes_max: int) -> tuple[list[str], int]:
    """Names of files of about so many bytes together, and how many bytes are left of these."""
    names = []
    for file in files:
        if bytes_max > 0:
            bytes_max -= file.size_bytes
            names.append(file.name)
    return names, bytes_max


@dataclass
class _Rewrite:
    """One rewrite under way. group: rows that are to be written, all of one bucket."""

    files: Sequence[LiveFile]
    images: Images
    layout: Layout
    table: Location
    write: Write
    group_bytes_max: int
    beside: ThreadPoolExecutor
    added: list[Future[DataFile]] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: int = 0

    def __post_init__(self) -> None:
        self._hashes = self.layout.hashes_of(self.images.keys)
        self._in_files = KeysInFiles(self.layout, self.images.rows, self._hashes)
        self._scns, self._seqs = pairs_of(self.images.rows)
        self._is_found = np.zeros(len(self.images.keys), np.bool_)
        self._packs = pa.schema([field for field in self.layout.schema if field.name not in self.layout.key])
        self._group: list[pa.Table] = []
        self._group_file_bytes = 0  # that its rows had
        self._group_until: int | None = None  # greatest first column of the key, where files hold ranges
        rows = sum(file.rows for file in self.files)
        self._row_bytes = sum(file.size_bytes for file in self.files) / rows if rows else math.inf

    def take(self, file: LiveFile, bucket: tuple[int, int], *, always: bool) -> None:
        """Look for the images' keys in a file; if one changes its row, or `always`, take its rows into the group."""
        numbers = self._in_files.numbers_for(file)
        if not len(numbers) and not always:
            return
        with opened_file(self.table, file.name, packs=self._packs) as parquet:
            groups = range(parquet.num_row_groups)
            places = [self._found(parquet, group, numbers) for group in groups]
            is_changed = sum(int(np.count_nonzero(place >= 0)) for place in places)
            if not is_changed and not always:
                return
            self._part_ranges(file)
            self.changed += is_changed
            self.removed.append(file.name)
            for group in groups:
                rows = parquet.read_row_group(group)
                rows = fitted_rows(rows, packed_schema(self.layout.schema, rows.schema))
                self._add(self._replaced(rows, places[group]), bucket)

    def _part_ranges(self, file: LiveFile) -> None:
        """Write the group if it would take a hole between two ranges into one: files between them would overlap it."""
        bounds, small = file.bounds[0], self.layout.small_bytes
        until = self._group_until
        is_apart = bounds is not None and until is not None and bounds[0] > until
        if self.layout.is_ordered and is_apart and max(self._group_file_bytes, file.size_bytes) >= small:
            self.flush((1, 0))
        self._group_file_bytes += file.size_bytes
        if bounds is not None:
            self._group_until = max(bounds[1], self._group_until if self._group_until is not None else bounds[1])

    def _found(self, parquet: "pq.ParquetFile", group: int, numbers: Int) -> Int:
        """For each row of a row group the number of the image that changes it, or -1."""
        wanted = [*self.layout.key, COMMIT_VERSION, SEQ]
        if not len(numbers):
            return np.full(parquet.metadata.row_group(group).num_rows, -1, np.int64)
        schema = pa.schema([self.layout.schema.field(name) for name in wanted])
        rows = fitted_rows(parquet.read_row_group(group, columns=wanted), schema)
        keys = self.images.keys if len(numbers) == len(self.images.keys) else self.images.keys.take(pa.array(numbers))
        places = pc.index_in(self.layout.keys_of(rows), keys)
        (at,) = np.nonzero(np.asarray(places.is_valid()))
        image = np.asarray(pc.drop_null(places)).astype(np.int64)
        image = image if keys is self.images.keys else numbers[image]
        self._is_found[image] = True
        scns, seqs = pairs_of(rows)
        is_younger = (self._scns[image] > scns[at]) | ((self._scns[image] == scns[at]) & (self._seqs[image] > seqs[at]))
        changes = np.full(rows.num_rows, -1, np.int64)
        changes[at[is_younger]] = image[is_younger]
        return changes

    def _replaced(self, rows: pa.Table, changes: Int) -> pa.Table:
        (at,) = np.nonzero(changes >= 0)
        if not len(at):
            return rows
        image = changes[at]
        is_put = self.images.puts[image]
        puts = self.images.rows.take(pa.array(image[is_put]))
        chosen = np.arange(rows.num_rows)
        chosen[at[is_put]] = rows.num_rows + np.arange(puts.num_rows)
        stays = np.ones(rows.num_rows, np.bool_)
        stays[at[~is_put]] = False
        return concat_packed([rows, puts]).combine_chunks().take(pa.array(chosen[stays]))

    def take_new(self) -> None:
        """Take the images of keys that no file has."""
        (new,) = np.nonzero(self.images.puts & ~self._is_found)
        if len(new):
            self.changed += len(new)
            if self.layout.is_ordered and self._group_file_bytes >= self.layout.small_bytes:
                self.flush((1, 0))
            self._add(self.images.rows.take(pa.array(new)), (1, 0))

    def _add(self, rows: pa.Table, bucket: tuple[int, int]) -> None:
        self._group.append(rows)
        if sum(rows.nbytes for rows in self._group) >= self.group_bytes_max:
            self.flush(bucket)

    def flush(self, bucket: tuple[int, int]) -> None:
        """Write the group."""
        rows = concat_packed(self._group or [self.layout.schema.empty_table()])
        self._group, self._group_file_bytes, self._group_until = [], 0, None
        if rows.num_rows == 0:
            return
        row_bytes = max(min(self._row_bytes, rows.nbytes / rows.num_rows), 1.0)
        for mark, arranged in self._arranged(rows, bucket, row_bytes):
            part = _in_key_order(arranged, self.layout.key) if self.layout.sorts else arranged
            rows_max = max(int(self.layout.file_bytes_max / row_bytes), 1)
            for start in range(0, part.num_rows, rows_max):
                if self.added:
                    self.added[-1].result()  # no more than one file waits
                self.added.append(self.beside.submit(self._write, part.slice(start, rows_max), mark))

    def _write(self, rows: pa.Table, mark: str) -> DataFile:
        return self.write(without_unused(rows), mark)

    def _arranged(self, rows: pa.Table, bucket: tuple[int, int], row_bytes: float) -> Iterable[tuple[str, pa.Table]]:
        """The rows of files, and their marks."""
        size = int(rows.num_rows * row_bytes)
        if self.layout.is_ordered:
            yield from (("", part) for part in self._in_order(rows, size))
            return
        buckets = self.layout.buckets_for(size, bucket[0])
        if buckets == bucket[0]:
            yield self.layout.mark(*bucket), rows
            return
        mine = self.layout.hashes_of(self.layout.keys_of(rows)) % buckets
        order = np.argsort(mine, kind="stable")
        rows = rows.combine_chunks().take(pa.array(order))
        numbers, starts = np.unique(mine[order], return_index=True)
        ends = [*starts[1:].tolist(), rows.num_rows]
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True):
            yield self.layout.mark(buckets, number), rows.slice(start, end - start)

    def _in_order(self, rows: pa.Table, size: int) -> Iterator[pa.Table]:
        rows = _in_key_order(rows, self.layout.key)
        files = max(round(size / self.layout.target_bytes), 1)
        share = -(-rows.num_rows // files)
        for start in range(0, rows.num_rows, share):
            yield rows.slice(start, share)


@contextmanager
def opened_file(table: Location, name: str, *, packs: pa.Schema | None = None) -> "Iterator[pq.ParquetFile]":
    """A file of a table. packs: columns that may be read packed. Raises `CorruptData` if it is not there, or none."""
    import pyarrow.parquet as pq  # 60 ms of whoever starts a pipeline

    try:
        with (table / name).reading() as file:
            metadata = pq.read_metadata(file)
            packed = [] if packs is None else packed_columns(metadata, packs)
            # Spark's older form of times is nanoseconds to Arrow, into which not every year fits
            yield pq.ParquetFile(file, metadata=metadata, read_dictionary=packed, coerce_int96_timestamp_unit="us")
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise CorruptData(
            f"{table}: could not read {name}, which is part of the table: {error}. Nothing was committed. Restore the "
            f"folder; or rebuild the table with `databus rebuild`"
        ) from error


def _in_key_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    if _is_sorted(rows, key):
        return rows
    rows = rows.combine_chunks()
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in key]))


def _is_sorted(rows: pa.Table, key: Sequence[str]) -> bool:
    """Whether rows are in the order of a key of one column; of several, it is not looked at."""
    if len(key) > 1 or rows.column(key[0]).null_count or not pa.types.is_integer(rows.schema.field(key[0]).type):
        return False
    values = rows.column(key[0]).to_numpy()
    return bool((values[1:] >= values[:-1]).all())
