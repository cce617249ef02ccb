"""Text columns: where Arrow has their bytes, and bytes in a character set of the server made UTF-8."""

from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from databus.core import LimitExceeded
from databus.sources.mysql._definition import ColumnDefinition
from databus.sources.mysql.rows import _code_points as charsets
from databus.sources.mysql.rows._arrow_types import Policies
from databus.sources.mysql.rows._row_errors import not_text

TEXT_SLACK: Final = 64
"""Bytes of room behind a text that kernels copy by words."""


class RowPlaces(Protocol):
    """Where rows come from: the table's name, and the place of a row for messages."""

    @property
    def table(self) -> str:
        """The table."""
        ...

    def row(self, number: int) -> str:
        """The place of a row."""
        ...


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


def to_text(column: ColumnDefinition, raw: pa.Array, policies: Policies, where: RowPlaces) -> pa.Array:
    """Bytes in the column's character set as text.

    Raises `UnrepresentableValue` for bytes that are none, by the policy.
    """
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
    out = pa.allocate_buffer(3 * _text_bytes(raw) + TEXT_SLACK)
    invalid_row = np.zeros(1, dtype=np.int64)
    size = kernels.transcode(
        kind, len(raw), offsets, text, tables.single, tables.double, tables.triple, tables.quadruple,
        policies.invalid_text == "replace", out_offsets.address, out.address, invalid_row,
    )  # fmt: skip
    if invalid_row[0] >= 0:
        raise not_text(where.table, column.name, charset, where.row(int(invalid_row[0])))
    check_size(size, column, where)
    return text_array(raw, pa.string(), out_offsets, out, size)


def _text_bytes(raw: pa.Array) -> int:
    return int(np.frombuffer(raw.buffers()[1], dtype=np.int32)[len(raw)])


def check_size(size: int, column: ColumnDefinition, where: RowPlaces) -> None:
    """Refuse text of more bytes than Arrow's offsets can count."""
    if size < 0:
        raise LimitExceeded(
            f"{where.table}: column {column.name!r} has more than 2 GiB of text at {where.row(0)}; lower "
            "binlog_row_event_max_size on the server, or chunk_rows of the snapshot"
        )
