"""Parts of kernels: one column of some rows, from the places of its values into the arena.

Bounds are the caller's. `fields` is a column's row of the program, `places` has a word for each row: the address of
its value, of the length before it where the size varies, or 0 for a null. Everything is an address of memory.
"""

from typing import Final

from databus.sources.mysql._compile import part, small
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._memory import (
    big_endian,
    copy_roughly,
    little_endian,
    load8,
    load16,
    load24,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)
from databus.sources.mysql.rows._number_kernels import (
    NONE,
    date,
    datetime,
    datetime_hires,
    datetime_old,
    decimal,
    decimal_short,
    decimal_text,
    decimal_wide,
    time,
    time_hires,
    time_old,
    timestamp,
    timestamp_hires,
)
from databus.sources.mysql.rows._utf8_kernels import has_high_bits, utf8_surely, utf8_valid

STRIDE: Final = 8 * ops.FIELDS


@small
def field(fields: int, number: int) -> int:
    """A word of a column's row of the program."""
    return load64(fields + 8 * number)


@small
def prepare(columns: int, program: int, images: int) -> None:
    """All values valid, all bits off, text from 0."""
    bits = (images + 7) // 8
    for column in range(columns):
        fields = program + STRIDE * column
        op, valid, out = field(fields, ops.OP), field(fields, ops.VALID), field(fields, ops.OUT)
        if op == ops.SKIP:
            continue
        for i in range(bits):
            store8(valid + i, 0xFF)
        if op == ops.BIT:
            for i in range(bits):
                store8(out + i, 0)
        elif field(fields, ops.SLOT) == 0:
            store32(out, 0)


@small
def _note_null(fields: int, row: int) -> None:
    store64(fields + 8 * ops.NULLS, field(fields, ops.NULLS) + 1)
    bits = field(fields, ops.VALID) + (row >> 3)
    store8(bits, load8(bits) & ~(1 << (row & 7)))


@small
def _set_null(fields: int, row: int) -> None:
    """A null of fixed size; what stands under it is zero, so that the same rows are the same bytes."""
    _note_null(fields, row)
    slot = field(fields, ops.SLOT)
    at = field(fields, ops.OUT) + slot * row
    if slot == 8:
        store64(at, 0)
    elif slot == 4:
        store32(at, 0)
    else:
        for i in range(slot):
            store8(at + i, 0)


@small
def _copy_numbers(fields: int, places: int, row: int, rows: int) -> None:
    out, slot = field(fields, ops.OUT), field(fields, ops.SLOT)
    for i in range(rows):
        at = load64(places + 8 * i)
        if at == 0:
            _set_null(fields, row + i)
        elif slot == 8:
            store64(out + 8 * (row + i), load64(at))
        elif slot == 4:
            store32(out + 4 * (row + i), load32(at))
        elif slot == 2:
            store16(out + 2 * (row + i), load16(at))
        else:
            store8(out + row + i, load8(at))


@small
def _write_decimals(op: int, fields: int, places: int, row: int, rows: int, limit: int) -> tuple[int, int]:
    leading, before = field(fields, ops.A), field(fields, ops.B)
    after, last = field(fields, ops.C), field(fields, ops.D)
    out, size = field(fields, ops.OUT) + 16 * row, field(fields, ops.WIDTH)
    for i in range(rows):
        at = load64(places + 8 * i)
        if at == 0:
            _set_null(fields, row + i)
            continue
        if op == ops.DECIMAL_WIDE:
            low, high, wrong = decimal_wide(at, leading, before, after, last)
        else:
            if size <= 8 and at + 8 <= limit:
                low, wrong = decimal_short(at, leading, before, after, last, size)
            else:
                low, wrong = decimal(at, leading, before, after, last)
            high = low >> 63
        if wrong:
            return wrong, i
        store64(out + 16 * i, low)
        store64(out + 16 * i + 8, high)
    return ops.FINE, 0


@small
def _write_others(op: int, fields: int, places: int, row: int, rows: int) -> None:
    """Numbers and bits in a form that is not Arrow's."""
    out, slot, width = field(fields, ops.OUT), field(fields, ops.SLOT), field(fields, ops.WIDTH)
    for i in range(rows):
        at, number = load64(places + 8 * i), row + i
        if at == 0:
            _set_null(fields, number)
        elif op == ops.INT24:
            value = load24(at)
            store32(out + 4 * number, value - ((value & 0x80_0000) << 1))
        elif op == ops.UINT24:
            store32(out + 4 * number, load24(at))
        elif op == ops.YEAR:
            year = load8(at)
            store16(out + 2 * number, year + 1900 if year else 0)
        elif op == ops.BIT:
            bits = out + (number >> 3)
            store8(bits, load8(bits) | (load8(at) & 1) << (number & 7))
        elif op == ops.UNSIGNED:
            store64(out + 8 * number, little_endian(at, width))
        else:
            value = big_endian(at, width)
            for byte in range(slot):
                store8(out + slot * number + byte, value >> 8 * byte)


@small
def _moment(op: int, at: int, digits: int, width: int) -> int:
    if op == ops.DATE:
        return date(at)
    if op == ops.DATETIME:
        return datetime(at, digits)
    if op == ops.TIMESTAMP:
        return timestamp(at, digits)
    if op == ops.TIME:
        return time(at, digits)
    if op == ops.DATETIME_OLD:
        return datetime_old(at)
    if op == ops.TIMESTAMP_OLD:
        seconds = load32(at)
        return seconds * 1_000_000 if seconds else NONE
    if op == ops.TIME_OLD:
        return time_old(at)
    if op == ops.DATETIME_HIRES:
        return datetime_hires(at, width, digits)
    if op == ops.TIMESTAMP_HIRES:
        return timestamp_hires(at, width, digits)
    return time_hires(at, width, digits)


@small
def _write_times(op: int, fields: int, places: int, row: int, rows: int) -> tuple[int, int]:
    out, digits, width = field(fields, ops.OUT), field(fields, ops.A), field(fields, ops.WIDTH)
    for i in range(rows):
        at = load64(places + 8 * i)
        value = _moment(op, at, digits, width) if at else NONE
        if value == NONE:
            if at != 0 and (op == ops.TIME or op == ops.TIME_OLD or op == ops.TIME_HIRES):
                return ops.NOT_A_TIME, i
            if at != 0 and not field(fields, ops.B):
                return ops.NOT_A_DATE, i
            _set_null(fields, row + i)
        elif op == ops.DATE:
            store32(out + 4 * (row + i), value)
        else:
            store64(out + 8 * (row + i), value)
    return ops.FINE, 0


@small
def _write_texts(op: int, fields: int, places: int, row: int, rows: int, limit: int) -> tuple[int, int]:
    offsets, text, begin = field(fields, ops.OUT) + 4 * row, field(fields, ops.TEXT), field(fields, ops.AT)
    width, padded = field(fields, ops.LENGTH_BYTES), field(fields, ops.A)
    end = begin
    for i in range(rows):
        at = load64(places + 8 * i)
        if at == 0:
            _note_null(fields, row + i)
        else:
            count = little_endian(at, width)
            copy_roughly(at + width, count, limit, text + end)
            if op == ops.PADDED:
                for byte in range(count, padded):
                    store8(text + end + byte, 0)
                count = padded
            end += count
        store32(offsets + 4 * i + 4, end)
    store64(fields + 8 * ops.AT, end)
    if (op == ops.UTF8 or op == ops.ASCII) and has_high_bits(text + begin, end - begin):
        wrong = _first_invalid(op, offsets, text, rows)
        if wrong < rows:
            return ops.NOT_TEXT, wrong
    return ops.FINE, 0


@part
def _first_invalid(op: int, offsets: int, text: int, rows: int) -> int:
    """The first of these texts that is not valid in its character set, or `rows`.

    Checks all of them as one text first: if that is UTF-8 and no text begins inside a character, each one is valid.
    """
    begin, end = load32(offsets), load32(offsets + 4 * rows)
    if op == ops.UTF8 and utf8_surely(text + begin, end - begin):
        inside = 0
        for i in range(rows):
            at = load32(offsets + 4 * i)
            inside |= at < end and load8(text + at) & 0xC0 == 0x80
        if not inside:
            return rows
    for i in range(rows):
        at, after = load32(offsets + 4 * i), load32(offsets + 4 * i + 4)
        if not (utf8_valid(text + at, after - at) if op == ops.UTF8 else not has_high_bits(text + at, after - at)):
            return i
    return rows


@small
def _write_decimal_texts(fields: int, places: int, row: int, rows: int) -> tuple[int, int]:
    offsets, text, end = field(fields, ops.OUT) + 4 * row, field(fields, ops.TEXT), field(fields, ops.AT)
    leading, before = field(fields, ops.A), field(fields, ops.B)
    after, last = field(fields, ops.C), field(fields, ops.D)
    for i in range(rows):
        at = load64(places + 8 * i)
        if at == 0:
            _note_null(fields, row + i)
        else:
            to, wrong = decimal_text(at, leading, before, after, last, text + end)
            if wrong:
                return wrong, i
            end = to - text
        store32(offsets + 4 * i + 4, end)
    store64(fields + 8 * ops.AT, end)
    return ops.FINE, 0


@part
def write_column(fields: int, places: int, row: int, rows: int, limit: int) -> tuple[int, int]:
    """Write `rows` values from row `row` on. Returns FINE, or what is wrong, and the number of the value at fault.

    limit: where the log's bytes end; nothing is read at and after it.
    """
    op = field(fields, ops.OP)
    if op == ops.SKIP:
        return ops.FINE, 0
    if op <= ops.COPY64:
        _copy_numbers(fields, places, row, rows)
        return ops.FINE, 0
    if op == ops.DECIMAL or op == ops.DECIMAL_WIDE:
        return _write_decimals(op, fields, places, row, rows, limit)
    if op < ops.DATE:
        _write_others(op, fields, places, row, rows)
        return ops.FINE, 0
    if op < ops.BYTES:
        return _write_times(op, fields, places, row, rows)
    if op == ops.DECIMAL_TEXT:
        return _write_decimal_texts(fields, places, row, rows)
    return _write_texts(op, fields, places, row, rows, limit)
