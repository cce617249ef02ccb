"""How a column stands in a row image and in the arena: its row of the program, and the array that is made of it."""

from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import pyarrow as pa

from databus.core import SourceChanged
from databus.schema import forms_of
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._arrow_types import BLOBS, TEXTS, Policies, address_type, bits_of, bus_type

_DIGITS_OF_GROUP: Final = 9
_BYTES_OF_DIGITS: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_DECIMAL64_DIGITS: Final = 18
_DECIMAL128_DIGITS: Final = 38
_NO_LIMIT: Final = 1 << 40
_UNICODE: Final = frozenset({"utf8", "utf8mb3", "utf8mb4"})
_LIKE: Final = {
    FieldType.TIMESTAMP: FieldType.TIMESTAMP2,
    FieldType.DATETIME: FieldType.DATETIME2,
    FieldType.TIME: FieldType.TIME2,
    FieldType.NEWDATE: FieldType.DATE,
    FieldType.VAR_STRING: FieldType.VARCHAR,
    **dict.fromkeys(BLOBS, FieldType.BLOB),
}
_WITHOUT_META: Final = frozenset(
    {
        FieldType.TINY,
        FieldType.SHORT,
        FieldType.INT24,
        FieldType.LONG,
        FieldType.LONGLONG,
        FieldType.FLOAT,
        FieldType.DOUBLE,
        FieldType.YEAR,
        FieldType.DATE,
        FieldType.TIME,
        FieldType.DATETIME,
        FieldType.TIMESTAMP,
        FieldType.VARCHAR_COMPRESSED,
        FieldType.BLOB_COMPRESSED,
    }
)
_HIRES_DATETIME_BYTES: Final = (8, 6, 6, 7, 7, 7, 8)
_HIRES_TIME_BYTES: Final = (3, 4, 4, 5, 5, 5, 6)
_HIRES_FRACTION_BYTES: Final = (0, 1, 1, 2, 2, 3, 3)

Shape = Literal["skipped", "fixed", "bits", "text"]


@dataclass(frozen=True, slots=True)
class ColumnLayout:
    """Where a column stands in the image, and what its values become."""

    op: int
    shape: Shape
    """The shape of its part of the arena."""
    raw: pa.DataType
    """The Arrow type of what the kernel writes."""
    is_finished: bool = True
    """Whether `raw` is the column's own type already; else `finish` makes that of it."""
    width: int = 0
    length_bytes: int = 0
    limit: int = 0
    needs: tuple[int, ...] = ()
    slot: int = 0
    form: int = ops.SKIP
    """For a date or time that becomes text: the operation that would read it."""

    def fields(self, column: ColumnDefinition) -> list[int]:
        """The constant fields of the column's row in the program."""
        row = [0] * ops.FIELDS
        row[ops.OP], row[ops.WIDTH], row[ops.LENGTH_BYTES] = self.op, self.width, self.length_bytes
        row[ops.LIMIT], row[ops.SLOT] = self.limit, self.slot
        row[ops.IS_NULLABLE] = int(column.is_nullable)
        row[ops.IS_JSON] = int(column.type is FieldType.JSON)
        row[ops.A : ops.A + len(self.needs)] = self.needs
        return row


def check_type(table: str, column: ColumnDefinition, kind: int, meta: int) -> FieldType:
    """The type of the log's table map, if it is the definition's; raises `SourceChanged` naming the column if not.

    The two words for one type are the same; old and new forms of a time are too, and the log's is what is in it.
    """
    try:
        logged = FieldType(kind)
    except ValueError:
        logged = FieldType.NULL
    like = _LIKE.get(logged, logged)
    is_same = like is _LIKE.get(column.type, column.type)
    needs_meta = logged not in _WITHOUT_META and column.type not in _WITHOUT_META
    if is_same and (meta == column.meta or not needs_meta):
        return logged
    raise SourceChanged(
        f"{table}: the log has column {column.name!r} as type {_name_of(kind)} with meta {meta}, but "
        f"its definition at this position is {column.column_type} ({column.type.name} with meta {column.meta}); the "
        "history of the table's schema is not that of this log. Have the table snapshotted again, or set "
        "binlog_row_metadata=FULL on the server so that the log itself says it"
    )


def _name_of(kind: int) -> str:
    return FieldType(kind).name if kind in FieldType.__members__.values() else str(kind)


def lay_out(column: ColumnDefinition, logged: FieldType, *, excluded: bool, policies: Policies) -> ColumnLayout:
    """Lay out a column that the log has as `logged` (as `check_type` said)."""
    layout = _lay_out(column, logged, policies)
    if column.name in policies.texts:
        layout = _as_text(column, layout)
    if not excluded:
        return layout
    return ColumnLayout(
        ops.SKIP, "skipped", pa.null(), width=layout.width, length_bytes=layout.length_bytes, limit=layout.limit
    )


def _as_text(column: ColumnDefinition, natural: ColumnLayout) -> ColumnLayout:
    """For text: a date or time as the log's own bits, which keep invalid dates whole; digits; or the number."""
    if natural.op in _TIME_FORMS:
        op = ops.UNSIGNED if natural.op in _LITTLE_ENDIAN else ops.BITS
        return replace(natural, op=op, raw=pa.uint64(), is_finished=False, needs=(), slot=8, form=natural.op)
    if column.type is FieldType.NEWDECIMAL:
        return ColumnLayout(ops.DECIMAL_TEXT, "text", pa.string(), width=natural.width, needs=natural.needs)
    return replace(natural, is_finished=False)


_TIME_FORMS: Final = range(ops.DATE, ops.TIME_HIRES + 1)
_LITTLE_ENDIAN: Final = frozenset({ops.DATE, ops.DATETIME_OLD, ops.TIMESTAMP_OLD, ops.TIME_OLD})


def _fixed(op: int, arrow: Any, width: int, slot: int, *needs: int, is_finished: bool = True) -> ColumnLayout:
    return ColumnLayout(op, "fixed", arrow, is_finished, width=width, needs=needs, slot=slot)


def _lay_out(  # noqa: PLR0911 - one answer a type
    column: ColumnDefinition, logged: FieldType, policies: Policies
) -> ColumnLayout:
    arrow = forms_of(bus_type(column)).arrow
    copied = _COPIED.get(logged)
    if copied is not None:
        width, op = copied
        return _fixed(op, arrow, width, width)
    if logged is FieldType.INT24:
        return _fixed(ops.UINT24 if column.is_unsigned else ops.INT24, arrow, 3, 4)
    if logged is FieldType.YEAR:
        return _fixed(ops.YEAR, arrow, 1, 2)
    if logged is FieldType.BIT:
        bits = bits_of(column)
        if bits == 1:
            return ColumnLayout(ops.BIT, "bits", arrow, width=1)
        return _fixed(ops.BITS, arrow, (bits + 7) // 8, arrow.bit_width // 8)
    if logged in (FieldType.ENUM, FieldType.SET):
        return _fixed(ops.UNSIGNED, pa.uint64(), column.meta, 8, is_finished=False)
    if logged is FieldType.NEWDECIMAL:
        return _decimal(column, arrow)
    if logged in TEXTS or logged in (FieldType.JSON, FieldType.GEOMETRY, FieldType.VECTOR):
        return _text(column, logged, policies)
    return _time(column, logged, arrow, is_null=policies.zero_dates == "null")


_COPIED: Final = {
    FieldType.TINY: (1, ops.COPY8),
    FieldType.SHORT: (2, ops.COPY16),
    FieldType.LONG: (4, ops.COPY32),
    FieldType.FLOAT: (4, ops.COPY32),
    FieldType.LONGLONG: (8, ops.COPY64),
    FieldType.DOUBLE: (8, ops.COPY64),
}


def _decimal(column: ColumnDefinition, arrow: pa.DataType) -> ColumnLayout:
    precision, scale = column.meta >> 8, column.meta & 0xFF
    before, leading = divmod(precision - scale, _DIGITS_OF_GROUP)
    after, last = divmod(scale, _DIGITS_OF_GROUP)
    width = _BYTES_OF_DIGITS[leading] + 4 * (before + after) + _BYTES_OF_DIGITS[last]
    needs = (leading, before, after, last)
    if precision > _DECIMAL128_DIGITS:
        return ColumnLayout(ops.DECIMAL_TEXT, "text", arrow, width=width, needs=needs)
    return _fixed(ops.DECIMAL if precision <= _DECIMAL64_DIGITS else ops.DECIMAL_WIDE, arrow, width, 16, *needs)


def _text(column: ColumnDefinition, logged: FieldType, policies: Policies) -> ColumnLayout:
    length_bytes, limit = column.meta, _NO_LIMIT
    if logged in (FieldType.VARCHAR, FieldType.VAR_STRING, FieldType.STRING):
        length_bytes, limit = (1 if column.meta < 256 else 2), column.meta
    elif logged is FieldType.VARCHAR_COMPRESSED:
        length_bytes = 1 if column.meta < 256 else 2
    op, raw, is_finished, needs = ops.BYTES, pa.binary(), False, 0
    if logged is FieldType.STRING and (address_type(column) or column.charset in (None, BINARY)):
        op, is_finished, needs = ops.PADDED, address_type(column) is None, column.meta
    elif logged in (FieldType.VARCHAR_COMPRESSED, FieldType.BLOB_COMPRESSED, FieldType.JSON):
        pass
    elif column.charset in (None, BINARY) or logged is FieldType.GEOMETRY:
        is_finished = True
    elif policies.invalid_text == "error" and column.charset in _UNICODE:
        op, raw, is_finished = ops.UTF8, pa.string(), True
    elif policies.invalid_text == "error" and column.charset == "ascii":
        op, raw, is_finished = ops.ASCII, pa.string(), True
    return ColumnLayout(op, "text", raw, is_finished, length_bytes=length_bytes, limit=limit, needs=(needs,))


def _time(  # noqa: PLR0911 - one answer a type
    column: ColumnDefinition, logged: FieldType, arrow: pa.DataType, *, is_null: bool
) -> ColumnLayout:
    null = int(is_null)
    digits = column.meta  # of the definition: the map of an old form does not have it
    fraction = (digits + 1) // 2
    if logged in (FieldType.DATE, FieldType.NEWDATE):
        return _fixed(ops.DATE, arrow, 3, 4, 0, null)
    if logged is FieldType.DATETIME2:
        return _fixed(ops.DATETIME, arrow, 5 + fraction, 8, fraction, null)
    if logged is FieldType.TIMESTAMP2:
        return _fixed(ops.TIMESTAMP, arrow, 4 + fraction, 8, fraction, null)
    if logged is FieldType.TIME2:
        return _fixed(ops.TIME, arrow, 3 + fraction, 8, fraction)
    if logged is FieldType.DATETIME:
        op = ops.DATETIME_HIRES if digits else ops.DATETIME_OLD
        return _fixed(op, arrow, _HIRES_DATETIME_BYTES[digits], 8, digits, null)
    if logged is FieldType.TIMESTAMP:
        op = ops.TIMESTAMP_HIRES if digits else ops.TIMESTAMP_OLD
        return _fixed(op, arrow, 4 + _HIRES_FRACTION_BYTES[digits], 8, digits, null)
    op = ops.TIME_HIRES if digits else ops.TIME_OLD
    return _fixed(op, arrow, _HIRES_TIME_BYTES[digits], 8, digits)
