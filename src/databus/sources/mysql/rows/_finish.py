"""What is still to be done when a column's raw values are in Arrow: names of members, text into UTF-8, JSON.

The log and result sets of a snapshot meet here, so that both give the same arrays.
"""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from databus.sources.mysql._charsets import is_text, shown
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.rows._addresses import address_text
from databus.sources.mysql.rows._arrow_types import Policies, address_type
from databus.sources.mysql.rows._json import json_text
from databus.sources.mysql.rows._row_errors import not_this_table, unknown_member
from databus.sources.mysql.rows._text import TEXT_SLACK, RowPlaces, check_size, text_array, to_text
from databus.sources.mysql.rows._time_text import logged_text, number_text


def finish(
    column: ColumnDefinition,
    raw: pa.Array,
    policies: Policies,
    where: RowPlaces,
    differences: NDArray[np.int64],
    form: int,
) -> pa.Array:
    """The column's array of what the kernel wrote for the log's images.

    differences: rows of a JSON column that are differences from the row before. form: see `ColumnLayout`.
    """
    kind = column.type
    if column.name in policies.texts:
        return logged_text(column, form, raw, where) if form else number_text(column, raw)
    if kind in (FieldType.ENUM, FieldType.SET):
        return _members(column, raw, policies, where)
    if kind is FieldType.JSON:
        return json_text(column, raw, where, differences, is_old=policies.json_form == "5.7")
    address = address_type(column)
    if address:
        return address_text(address, raw)
    if kind in (FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED):
        raw = _inflated(column, raw, where)
        if column.charset in (None, BINARY):
            return raw
    return to_text(column, raw, policies, where)


def _members(column: ColumnDefinition, raw: pa.Array, policies: Policies, where: RowPlaces) -> pa.Array:
    from databus.sources.mysql.rows import _text_kernels as kernels

    rows = len(raw)
    if not rows:
        return pa.array([], pa.string())
    if policies.invalid_text == "error":
        _check_known(column, raw, where)
    names = pa.array(["", *map(shown, column.members), " " * TEXT_SLACK], pa.string())  # so that there is always text
    invalid_row = np.zeros(1, dtype=np.int64)
    offsets = pa.allocate_buffer(4 * (rows + 1))
    size, out = 0, pa.allocate_buffer(TEXT_SLACK)
    for writes in (False, True):
        size = kernels.members(
            column.type is FieldType.SET, rows, raw.buffers()[1].address, len(column.members),
            names.buffers()[1].address + 4, names.buffers()[2].address,
            offsets.address, out.address, writes, invalid_row,
        )  # fmt: skip
        if invalid_row[0] >= 0:
            number = raw[int(invalid_row[0])].as_py()
            what = f"{number}, which is none of its {len(column.members)} members"
            raise not_this_table(where.table, column.name, where.row(int(invalid_row[0])), what)
        check_size(size, column, where)
        if not writes:
            out = pa.allocate_buffer(size + TEXT_SLACK)
    return text_array(raw, pa.string(), offsets, out, size)


def _check_known(column: ColumnDefinition, raw: pa.Array, where: RowPlaces) -> None:
    """Refuse rows with a member that is not valid text, or that is unknown."""
    for number, member in enumerate(column.members):
        if is_text(member):
            continue
        values = pc.fill_null(raw, 0).to_numpy()
        has = (values >> np.uint64(number)) & np.uint64(1) if column.type is FieldType.SET else values == number + 1
        if has.any():
            raise unknown_member(where.table, column.name, column.charset, where.row(int(has.argmax())), number + 1)


def _inflated(column: ColumnDefinition, raw: pa.Array, where: RowPlaces) -> pa.Array:
    """MariaDB's COMPRESSED columns. Makes one object for each value; zlib takes longer than that."""
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
