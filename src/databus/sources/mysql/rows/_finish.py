"""What is still to be done when a column's raw values are in Arrow: names of members, text into UTF-8, JSON.

The log and result sets of a snapshot meet here, so that both give the same arrays.
"""

import zlib
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from databus.core import LimitExceeded
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.rows import _charsets as charsets
from databus.sources.mysql.rows._errors import not_text, not_this_table
from databus.sources.mysql.rows._types import Policies, address_type

_SLACK: Final = 64


class Rows(Protocol):
    """Where rows come from: the table's name, and the place of a row for messages."""

    @property
    def table(self) -> str:
        """The table."""
        ...

    def row(self, number: int) -> str:
        """The place of a row."""
        ...


def finish(
    column: ColumnDefinition, raw: pa.Array, policies: Policies, where: Rows, differences: NDArray[np.int64]
) -> pa.Array:
    """The column's array of what the kernel wrote for the log's images.

    differences: rows of a JSON column that are differences from the row before.
    """
    kind = column.type
    if kind in (FieldType.ENUM, FieldType.SET):
        return _members(column, raw, where)
    if kind is FieldType.JSON:
        from databus.sources.mysql.rows._json import json_text

        return json_text(column, raw, where, differences, is_old=policies.json_form == "5.7")
    address = address_type(column)
    if address:
        from databus.sources.mysql.rows._addresses import address_text

        return address_text(address, raw)
    if kind in (FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED):
        raw = _inflated(column, raw, where)
        if column.charset in (None, BINARY):
            return raw
    return to_text(column, raw, policies, where)


def places_of(raw: pa.Array) -> tuple[pa.Array, int, int]:
    """A binary or string array without an offset, and the addresses of its offsets and bytes."""
    if raw.offset:
        raw = pa.concat_arrays([raw, pa.array([], raw.type)])
    _, offsets, text = raw.buffers()
    return raw, offsets.address, text.address if text else 0


def text_array(raw: pa.Array, kind: pa.DataType, offsets: pa.Buffer, text: pa.Buffer, size: int) -> pa.Array:
    """Text with the nulls of `raw`."""
    valid = raw.buffers()[0] if raw.null_count else None
    return pa.Array.from_buffers(kind, len(raw), [valid, offsets, text.slice(0, size)], null_count=raw.null_count)


def to_text(column: ColumnDefinition, raw: pa.Array, policies: Policies, where: Rows) -> pa.Array:
    """Bytes in the column's character set as text. Raises `Unrepresentable` for bytes that are none, by the policy."""
    from databus.sources.mysql.rows import _text_kernels as kernels

    if not len(raw):
        return pa.array([], pa.string())
    raw, offsets, text = places_of(raw)
    charset = column.charset or ""
    kind = charsets.UNICODE.get(charset, charsets.TABLES)
    if kind == charsets.UTF8:
        invalid = kernels.first_invalid_utf8(len(raw), offsets, text)
        if invalid < 0:
            return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers(), null_count=raw.null_count)
        if policies.invalid_text == "error":
            raise not_text(where.table, column.name, charset, where.row(invalid))
    tables = charsets.tables_of(charset) if kind == charsets.TABLES else charsets.NO_TABLES
    out_offsets = pa.allocate_buffer(4 * (len(raw) + 1))
    out = pa.allocate_buffer(3 * _text_bytes(raw) + _SLACK)
    found = np.zeros(1, dtype=np.int64)
    size = kernels.transcode(
        kind, len(raw), offsets, text, tables.single, tables.double, tables.triple, tables.quadruple,
        policies.invalid_text == "replace", out_offsets.address, out.address, found,
    )  # fmt: skip
    if found[0] >= 0:
        raise not_text(where.table, column.name, charset, where.row(int(found[0])))
    check_size(size, column, where)
    return text_array(raw, pa.string(), out_offsets, out, size)


def _text_bytes(raw: pa.Array) -> int:
    return int(np.frombuffer(raw.buffers()[1], dtype=np.int32)[len(raw)])


def check_size(size: int, column: ColumnDefinition, where: Rows) -> None:
    """Refuse text that a kernel found to be more than Arrow's offsets can say."""
    if size < 0:
        raise LimitExceeded(
            f"{where.table}: column {column.name!r} has more than 2 GiB of text at {where.row(0)}; lower "
            "binlog_row_event_max_size on the server, or chunk_rows of the snapshot"
        )


def _members(column: ColumnDefinition, raw: pa.Array, where: Rows) -> pa.Array:
    from databus.sources.mysql.rows import _text_kernels as kernels

    rows = len(raw)
    if not rows:
        return pa.array([], pa.string())
    names = pa.array(["", *column.members, " " * _SLACK], pa.string())  # so that there is always text
    found = np.zeros(1, dtype=np.int64)
    offsets = pa.allocate_buffer(4 * (rows + 1))
    size, out = 0, pa.allocate_buffer(_SLACK)
    for writes in (False, True):
        size = kernels.members(
            column.type is FieldType.SET, rows, raw.buffers()[1].address, len(column.members),
            names.buffers()[1].address + 4, names.buffers()[2].address,
            offsets.address, out.address, writes, found,
        )  # fmt: skip
        if found[0] >= 0:
            number = raw[int(found[0])].as_py()
            what = f"{number}, which is none of its {len(column.members)} members"
            raise not_this_table(where.table, column.name, where.row(int(found[0])), what)
        check_size(size, column, where)
        if not writes:
            out = pa.allocate_buffer(size + _SLACK)
    return text_array(raw, pa.string(), offsets, out, size)


def _inflated(column: ColumnDefinition, raw: pa.Array, where: Rows) -> pa.Array:
    """MariaDB's COMPRESSED columns; an object a value, but zlib takes longer than that."""
    values = raw.to_pylist()
    for row, value in enumerate(values):
        if not value:
            continue
        plain = _inflate(value)
        if plain is None:
            raise not_this_table(where.table, column.name, where.row(row), "bytes that are no compressed value")
        values[row] = plain
    return pa.array(values, pa.binary())


def _inflate(value: bytes) -> bytes | None:
    """A byte 0 and plain bytes; or 0x80, plus 8 without zlib's header, plus the bytes of the length, which follows."""
    if value[0] == 0:
        return value[1:]
    width = value[0] & 7
    if value[0] >> 4 != 8 or not width or len(value) < 1 + width:
        return None
    size = int.from_bytes(value[1 : 1 + width], "big")
    bits = -zlib.MAX_WBITS if value[0] & 8 else zlib.MAX_WBITS
    try:
        plain = zlib.decompressobj(bits).decompress(value[1 + width :], size + 1)
    except zlib.error:
        return None
    return plain if len(plain) == size else None
