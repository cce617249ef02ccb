"""Parquet files for tables of files, such as Delta's: written in a task, not visible until they are committed."""

import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import ServiceUnavailable
from databus.disk import Location, located

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_TEXT_CHARS_MAX: Final = 32  # as Delta's own writers cut bounds
_INDEXED_COLUMNS_MAX: Final = 32  # as of Delta's own writers
_LAST: Final = "\U0010ffff"
_COUNT: Final = '{{"numRecords": {}}}'
_SUFFIX: Final = ".parquet"
_PASSING_SUFFIX: Final = ".arrow"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of rows."""

    name: str
    """Below the table's folder."""
    size_bytes: int
    rows: int
    stats: str
    """As Delta's add-actions have them, in JSON."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """From what `to_json` gave."""
        return cls(**value)


def is_data_file(name: str) -> bool:
    """Whether a file of that name, in a table's folder, may be one that a task wrote.

    >>> is_data_file("rows-4f1c.parquet"), is_data_file("part-00001-4f1c.snappy.parquet")
    (True, False)
    """
    return name.startswith("rows-") and name.endswith((_SUFFIX, _PASSING_SUFFIX)) and "/" not in name


def is_passing_file(name: str) -> bool:
    """Whether a file of that name is one that `write_passing_file` wrote."""
    return name.endswith(_PASSING_SUFFIX)


def write_passing_file(folder: Location | Path, rows: pa.Table) -> DataFile:
    """Write rows into a new file that other tasks read, and that is never part of a table: quick to write and to read.

    It need not outlive the machine's power. Raises what `Location.writing` does.
    """
    name = f"rows-{uuid.uuid4().hex}{_PASSING_SUFFIX}"
    with (located(folder) / name).writing(durable=False) as file:
        with pa.ipc.new_stream(file, rows.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
            writer.write_table(rows)
        size = file.tell()
    return DataFile(name, size, rows.num_rows, "")


def read_passing_file(folder: Location, name: str) -> pa.Table:
    """What `write_passing_file` has written. Raises `ServiceUnavailable` if it is gone: it can be written again."""
    try:
        with (folder / name).reading() as file:
            return pa.ipc.open_stream(file).read_all()
    except FileNotFoundError:
        raise ServiceUnavailable(f"{folder / name}: is gone before it was read; its rows are written again") from None


GROUP_ROWS_MAX: Final = 1 << 20
"""Rows of a row group, by default."""


def write_data_file(
    folder: Location | Path,
    rows: pa.Table,
    *,
    mark: str = "",
    codec: str = "snappy",
    group_rows_max: int = GROUP_ROWS_MAX,
) -> DataFile:
    """Write rows into a new file of a folder, which is made if need be; it is on the disk when this returns.

    mark: becomes part of the name. Raises what `Location.writing` does.
    """
    return write_data_pieces(folder, rows.schema, [rows], mark=mark, codec=codec, group_rows_max=group_rows_max)


def write_marked_file(
    folder: Location | Path, rows: pa.Table, mark: str, group_rows_max: int = GROUP_ROWS_MAX
) -> DataFile:
    """The same, of rows with a mark."""
    return write_data_file(folder, rows, mark=mark, group_rows_max=group_rows_max)


def write_data_pieces(
    folder: Location | Path,
    schema: pa.Schema,
    pieces: Iterable[pa.Table],
    *,
    mark: str = "",
    codec: str = "snappy",
    group_rows_max: int = GROUP_ROWS_MAX,
) -> DataFile:
    """The same, of rows that come piece by piece, each a row group or more. Holds the file in memory, not its rows."""
    import pyarrow.parquet as pq  # 60 ms of whoever starts a pipeline

    name = f"rows-{mark}{uuid.uuid4().hex}{_SUFFIX}"
    written: list[pq.FileMetaData] = []
    with_nan: set[str] = set()
    made = pa.BufferOutputStream()  # where a disk that is full is no error of Parquet's, which would hide it
    how = {"compression": codec, "store_schema": False, "write_page_checksum": True}
    with pq.ParquetWriter(made, schema, metadata_collector=written, **how) as writer:
        for rows in pieces:
            writer.write_table(rows, row_group_size=group_rows_max)
            with_nan.update(name for name in schema.names[:_INDEXED_COLUMNS_MAX] if _has_nan(rows.column(name)))
    content = made.getvalue()
    with (located(folder) / name).writing() as file:
        file.write(content)
    return DataFile(name, content.size, written[0].num_rows, _stats_of(written[0], schema, with_nan))


def _has_nan(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py() is True


def _stats_of(metadata: "pq.FileMetaData", schema: pa.Schema, with_nan: Collection[str]) -> str:
    """Least and greatest values and counts of nulls, of the first columns, from what Parquet says of its row groups,
    which leaves out NaN: with_nan has the columns that hold one.

    Of all of these columns or of none: a reader (deltalake 1.6.6) that finds no bounds of one column beside those of
    others takes them for null, which no value is within, and leaves the file out.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    least: list[str] = []
    greatest: list[str] = []
    nulls: dict[str, int] = {}
    for index, field in enumerate(schema.names[:_INDEXED_COLUMNS_MAX]):
        kind = schema.field(index).type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            continue  # readers look for none
        statistics = [group.column(index).statistics for group in groups]
        if any(statistic is None or not statistic.has_null_count for statistic in statistics):
            return _COUNT.format(metadata.num_rows)
        nulls[field] = sum(statistic.null_count for statistic in statistics)
        if nulls[field] == metadata.num_rows:
            continue
        bounds = None if field in with_nan else _bounds([statistic for statistic in statistics if statistic.num_values])
        if bounds is None:
            return _COUNT.format(metadata.num_rows)
        name = _json(field)
        least.append(f"{name}: {bounds[0]}")
        greatest.append(f"{name}: {bounds[1]}")
    bounded = f'"minValues": {{{", ".join(least)}}}, "maxValues": {{{", ".join(greatest)}}}'
    return f'{{"numRecords": {metadata.num_rows}, {bounded}, "nullCount": {_json(nulls)}}}'


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # surrogates are not read as what they stand for


def _bounds(said: Sequence[Any]) -> tuple[str, str] | None:
    """Bounds of a column as JSON; None where its words for them would not be exact."""
    if not all(statistics.has_min_max for statistics in said):
        return None
    try:
        low, high = min(statistics.min for statistics in said), max(statistics.max for statistics in said)
        return _words(low, is_high=False), _words(high, is_high=True)
    except (ValueError, OverflowError):  # days that Python has no words for, or a number that is none
        return None


def _words(value: Any, *, is_high: bool) -> str:
    """A bound as JSON. Raises ValueError for one that has no exact words there."""
    if isinstance(value, str):
        start, rest = value[:_TEXT_CHARS_MAX], value[_TEXT_CHARS_MAX:]
        if is_high and rest > _LAST:
            raise ValueError("is above every text so short")
        return _json(start + _LAST if is_high and rest else start)
    if isinstance(value, Decimal):
        return f"{value:f}"
    return _day_or_time(value) if isinstance(value, dt.date) else _json(value)


def _day_or_time(value: dt.date) -> str:
    if not isinstance(value, dt.datetime):
        return _json(value.isoformat())
    return _json(value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if value.tzinfo else ""))
