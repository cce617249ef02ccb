"""One Parquet file of a store: what its footer says, and its rows, a row group at a time."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import pyarrow as pa

from databus.core import (
    BUS_COLUMNS,
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    ChangeType,
    CorruptData,
    Pair,
    ServiceUnavailable,
    us_of,
)
from databus.disk import Location
from databus.stores._skipping import ColumnBounds, RowsWanted

_SEQ_MAX: Final = (1 << 63) - 1
_BATCH_BYTES: Final = 16 << 20
_DELETE: Final = ChangeType.DELETE.label
_FIRST_IMAGE: Final = ChangeType.UPDATE_PREIMAGE.label
assert _DELETE < ChangeType.INSERT.label < ChangeType.UPDATE_POSTIMAGE.label < _FIRST_IMAGE  # noqa: S101 - see `_group`
NO_BOUNDS: Final[tuple[Pair, Pair]] = ((0, -1), (_SEQ_MAX, _SEQ_MAX))
"""Of rows of which nothing is known: every pair is within."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A row group. first, last: no row of it is outside of these pairs."""

    rows: int
    first: Pair
    last: Pair
    has_controls: bool
    has_removals: bool
    """Whether there may be deletes, or first images of updates."""
    least_us: int = 0
    """Nothing in it was committed before; microseconds since 1970."""
    bytes: int = 0
    """Of its rows, before they are compressed."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What the footer of a file says; a file of a Delta table never changes."""

    path: Location
    rows: int
    groups: tuple[StoredGroup, ...]
    size: int = 0
    digest: str = ""
    """Of its length and its footer, which says where each column's bytes are: another file has another."""

    @property
    def last(self) -> Pair:
        """No row of it is above."""
        return max((group.last for group in self.groups), default=NO_BOUNDS[0])

    def read(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """A row group; of the columns that are named, those that there are. Raises `CorruptData` if it is gone."""
        with _opened(self.path, self.digest) as (file, _):
            names = file.schema_arrow.names
            wanted = None if columns is None else [name for name in columns if name in names]
            rows: pa.Table = file.read_row_group(group, columns=wanted, use_threads=False)
            return rows

    def batches(
        self, skip: int, rows_max: int, above: Pair | None, wanted: RowsWanted | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Its rows but the first `skip`, in their order, at most `rows_max` at a time and of wide ones fewer, each time
        with the number of the first. above: row groups without a row above this pair are left out, and those without a
        row that is wanted.
        """
        start = 0
        with _opened(self.path, self.digest) as (file, _):
            names = file.schema_arrow.names
            chosen = None if wanted is None or wanted.columns is None else _columns_of(names, wanted.columns)
            for number, group in enumerate(self.groups):
                at, start = start, start + group.rows
                if start <= skip or (above is not None and group.last <= above):
                    continue
                if wanted is not None and not wanted.may_hold(bounds_of(file, number, wanted.tested)):
                    continue
                rows = max(min(rows_max, group.rows * _BATCH_BYTES // max(group.bytes, 1)), 1)
                for batch in file.iter_batches(rows, row_groups=[number], columns=chosen, use_threads=False):
                    left = batch.slice(min(max(skip - at, 0), batch.num_rows))
                    if left.num_rows:
                        yield at + batch.num_rows - left.num_rows, left
                    at += batch.num_rows

    def held(self, wanted: RowsWanted) -> list[bool]:
        """Of each row group, whether a row that is wanted may be there."""
        with _opened(self.path, self.digest) as (file, _):
            numbers = range(len(self.groups))
            return [wanted.may_hold(bounds_of(file, number, wanted.tested)) for number in numbers]


def _columns_of(names: Sequence[str], wanted: Collection[str]) -> list[str]:
    return [name for name in names if name in BUS_COLUMNS or name.lower() in wanted]


def bounds_of(file: Any, group: int, names: Collection[str]) -> dict[str, ColumnBounds]:
    """What the footer of an opened file says of columns in a row group."""
    row_group, places = file.metadata.row_group(group), {name: at for at, name in enumerate(file.schema_arrow.names)}
    bounds: dict[str, ColumnBounds] = {}
    for name in names:
        said = row_group.column(places[name]).statistics if name in places else None
        if said is None:
            continue
        least, greatest = (said.min, said.max) if said.has_min_max else (None, None)
        bounds[name] = ColumnBounds(
            least, greatest, said.null_count if said.has_null_count else None, row_group.num_rows
        )
    return bounds


@contextmanager
def _opened(path: Location, digest: str = "") -> Iterator[tuple[Any, tuple[int, str]]]:
    """A Parquet file, with its size and digest. digest: of the one that is meant, if that is known. Raises
    `CorruptData` for what was not written so, also while it is read, and `ServiceUnavailable` where reading it another
    time may help.
    """
    import pyarrow.parquet as pq  # 60 ms, of whoever only looks at a configuration too

    try:
        with path.reading() as file:
            try:
                opened, known = pq.ParquetFile(file, page_checksum_verification=True), _digest(file)
                if digest and known[1] != digest:
                    raise CorruptData(f"{path}: is another file than was noted; put back the one that was there")
                yield opened, known
            except (pa.ArrowException, OSError) as error:
                raise _told(path, error) from error
    except (pa.ArrowException, OSError) as error:
        raise _told(path, error) from None


def _told(path: Location, error: Exception) -> CorruptData | ServiceUnavailable:
    if isinstance(error, FileNotFoundError):
        return CorruptData(
            f"{path}: is missing; a state or the log store names it. Put it back; without it, see docs/bootstrap.md, "
            '"When a file is missing"'
        )
    if isinstance(error, OSError) and error.errno is not None:  # the system's own, such as that of too many open files
        return ServiceUnavailable(f"{path}: cannot be read now: {error}")
    return CorruptData(f"{path}: is not the Parquet file that was written: {error}")


def file_of(path: Location, digest: str = "") -> StoredFile:
    """Read a file's footer. digest: as it was noted, if it was. Raises `CorruptData` if it is missing, no Parquet, or
    another.
    """
    with _opened(path, digest) as (file, known):
        metadata = file.metadata
        places = {name: at for at, name in enumerate(file.schema_arrow.names)}
        groups = tuple(_group(metadata.row_group(number), places) for number in range(metadata.num_row_groups))
        return StoredFile(path, metadata.num_rows, groups, *known)


def _digest(file: Any) -> tuple[int, str]:
    """Size, and digest, of a file that ends as Parquet files do: footer, its length in four bytes, four more."""
    size = int(file.size())
    file.seek(size - 8)
    length = int.from_bytes(file.read(8)[:4], "little")
    file.seek(size - 8 - length)
    return size, blake2b(file.read(length), key=str(size).encode(), digest_size=8).hexdigest()


def _group(group: Any, places: dict[str, int]) -> StoredGroup:
    def said(name: str) -> Any:
        return group.column(places[name]).statistics if name in places else None

    scns, seqs, controls = said(COMMIT_VERSION), said(SEQ), said(CONTROL)
    first, last = NO_BOUNDS
    if scns is not None and scns.has_min_max:
        first, last = (scns.min, -1), (scns.max, _SEQ_MAX)
        if scns.min == scns.max and seqs is not None and seqs.has_min_max:  # a part of one transaction
            first, last = (scns.min, seqs.min), (scns.max, seqs.max)
    is_known = controls is not None and controls.has_null_count
    has_controls = CONTROL in places and not (is_known and controls.null_count == group.num_rows)
    changes = said(CHANGE_TYPE)
    is_bounded = changes is not None and changes.has_min_max
    has_removals = not is_bounded or changes.min <= _DELETE or changes.max >= _FIRST_IMAGE
    times = said(COMMIT_TIMESTAMP)
    least_us = us_of(times.min) if times is not None and times.has_min_max else 0
    return StoredGroup(group.num_rows, first, last, has_controls, has_removals, least_us, group.total_byte_size)
