"""Snapshot: a table's rows in chunks, each read exactly at a cut.

The reader's transaction is opened while the relay holds the write lock of a cut: it sees what the changes up to that
cut make, no more and no less. So the low and the high watermark of a chunk, and the boundary where it is placed, are
one and the same, nothing has to be dropped, and "the last pair wins" is right.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from databus.core import name_parts
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._decode import decode_columns, fetch
from databus.sources.sqlite._store import Cut, TableVersion
from databus.sources.sqlite._tables import IndexPart, TableShape, quoted, read_shape
from databus.sources.sqlite._types import exact_sql, size_sql
from databus.wire import OpenSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """Rows of a table as they are at a cut."""

    version: TableVersion
    generation: int
    cut: Cut
    arrays: tuple[pa.Array, ...]
    rows: int
    last_key: tuple[Any, ...] | None
    """Key of the last row, in the columns of `order`."""
    order: tuple[str, ...]
    is_last: bool
    """Whether no rows follow."""


def read_chunk(
    reader: sqlite3.Connection, config: SqliteConfig, version: TableVersion, opened: OpenSnapshot, cut: Cut
) -> SnapshotChunk | None:
    """The next rows after `last_key`, in the transaction that `reader` has open; at least one if there is any.

    Keys are the rowid, or the SQL literals of a WITHOUT ROWID table's primary key. None if the table has another order
    than when the last key was read, so that it must be read from its beginning. Raises `UnrepresentableValue`.
    """
    shape = read_shape(reader, name_parts(version.source)[1])
    order, generation, last_key = _order(shape), opened.generation, opened.last_key
    if last_key is not None and opened.order != order:
        return None
    tail, parameters = _tail(shape, last_key)
    limit = _rows_that_fit(reader, config, version, tail, parameters)
    columns = [exact_sql(k, quoted(n)) for n, k in zip(version.table.names, version.kinds, strict=True)]
    sql = f"SELECT {', '.join([quoted(shape.identity.parts[0].text), *columns])} {tail} LIMIT ?"
    rows = fetch(reader, version, sql, (*parameters, limit), 1)
    if not rows:
        return SnapshotChunk(version, generation, cut, (), 0, None, order, is_last=True)
    transposed = list(zip(*rows, strict=True))
    place = f"among rows {rows[0][0]} to {rows[-1][0]}"
    arrays = tuple(decode_columns(version, transposed[1:], place))
    key = (rows[-1][0],) if shape.has_rowid else _literals(reader, shape, tail, parameters, len(rows) - 1)
    return SnapshotChunk(version, generation, cut, arrays, len(rows), key, order, is_last=len(rows) < limit)


def _order(shape: TableShape) -> tuple[str, ...]:
    """What decides the order of the rows: each part of the key, its type and its collation."""
    if shape.has_rowid:
        return ("rowid",)
    declared = {column.name: column.declared for column in shape.columns}
    return tuple(f"{_collated(part)} {declared.get(part.text, '')}" for part in shape.identity.parts)


def _collated(part: IndexPart) -> str:
    return f"{quoted(part.text)} COLLATE {quoted(part.collation)}"


def _tail(shape: TableShape, last_key: Sequence[Any] | None) -> tuple[str, tuple[Any, ...]]:
    """FROM, WHERE and ORDER BY for the rows after a key."""
    parts = shape.identity.parts
    order = ", ".join(_collated(part) for part in parts)
    where = ""
    parameters: tuple[Any, ...] = ()
    if last_key is not None and shape.has_rowid:
        where, parameters = f" WHERE {quoted(parts[0].text)} > ?", tuple(last_key)
    elif last_key is not None:
        where = f" WHERE ({order}) > ({', '.join(last_key)})"
    if shape.has_rowid:
        order = quoted(parts[0].text)
    return f"FROM {quoted(shape.name)}{where} ORDER BY {order}", parameters


def _rows_that_fit(
    reader: sqlite3.Connection, config: SqliteConfig, version: TableVersion, tail: str, parameters: Sequence[Any]
) -> int:
    names = version.table.names
    varying = size_sql(version.kinds, map(quoted, names))
    if varying == "0":
        return config.chunk_rows_max
    sizes = reader.execute(f"SELECT {varying} {tail} LIMIT ?", (*parameters, config.chunk_rows_max)).fetchall()
    bytes_until = np.cumsum(np.array(sizes, np.int64).reshape(-1) + 8 * len(names))
    fit = int(np.searchsorted(bytes_until, config.chunk_bytes_max, side="right"))
    return config.chunk_rows_max if fit == len(sizes) else max(fit, 1)


def _literals(
    reader: sqlite3.Connection, shape: TableShape, tail: str, parameters: Sequence[Any], offset: int
) -> tuple[str, ...]:
    keys = ", ".join(exact_sql("any", quoted(part.text)) for part in shape.identity.parts)
    row = reader.execute(f"SELECT {keys} {tail} LIMIT 1 OFFSET ?", (*parameters, offset)).fetchone()
    return tuple(row)
