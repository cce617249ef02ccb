"""Kernels for result sets of the binary protocol: packets of rows become columns, without a Python object per row.

`walk_rows` goes through the packets that a buffer holds whole, writes every value of fixed size into the arena and
notes where the others lie; `gather` then copies those of one column behind each other. Every length is checked against
its packet before it is followed. Layout: MySQL's client/server protocol, "Binary Protocol Resultset".
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from databus.sources.mysql._compile import kernel, part, small
from databus.sources.mysql.rows._memory import (
    Bytes,
    Words,
    address,
    big_endian,
    copy_bytes,
    load8,
    load16,
    load32,
    load64,
    store8,
    store16,
    store32,
    store64,
)
from databus.sources.mysql.rows._number_kernels import NONE, days_of
from databus.sources.mysql.snapshot._result_codes import (
    BAD_LENGTH,
    BYTES,
    CODE,
    COLUMN,
    COPY16,
    COPY32,
    COPY64,
    CUT_SHORT,
    DATE,
    DECIMAL,
    END,
    ENDED,
    ERROR,
    FIELDS,
    FINE,
    FIRST_NONE,
    LARGE,
    LAST_FROM,
    LAST_TO,
    NO_DATE,
    NOT_A_DATE,
    NOT_A_DECIMAL,
    NOT_A_ROW,
    NOT_A_TIME,
    NULLS,
    OP,
    OUT,
    OUT_OF_ORDER,
    ROWS,
    SCALE,
    SEQUENCE,
    TIME,
    TIMESTAMP,
    VALID,
    VAR,
)

_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _US
_HOURS_MAX: Final = 838
_PACKET_MAX: Final = 0xFFFFFF
_DIGITS_MAX: Final = 38
_WORD: Final = 0xFFFFFFFF


@small
def _moment_us(at: int, length: int) -> int:
    """A DATE, DATETIME or TIMESTAMP as microseconds; NONE for an invalid date."""
    if length == 0:
        return NONE
    days = days_of(load16(at), load8(at + 2), load8(at + 3))
    if days == NONE:
        return NONE
    us = 0
    if length >= 7:
        hour, minute, second = load8(at + 4), load8(at + 5), load8(at + 6)
        if hour > 23 or minute > 59 or second > 59:
            return NONE
        us = ((hour * 60 + minute) * 60 + second) * _US
    if length == 11:
        fraction = load32(at + 7)
        if fraction >= _US:
            return NONE
        us += fraction
    return days * _DAY_US + us


@small
def _time_us(at: int, length: int) -> int:
    """A TIME as microseconds; NONE for one that no TIME column holds."""
    if length == 0:
        return 0
    sign = load8(at)
    hour = load32(at + 1) * 24 + load8(at + 5)
    minute, second = load8(at + 6), load8(at + 7)
    fraction = load32(at + 8) if length == 12 else 0
    if sign > 1 or hour > _HOURS_MAX or minute > 59 or second > 59 or fraction >= _US:
        return NONE
    us = ((hour * 60 + minute) * 60 + second) * _US + fraction
    return -us if sign == 1 else us


@part
def _decimal(at: int, end: int, scale: int) -> tuple[int, int, int]:  # noqa: C901 - one number, digit by digit
    """A decimal number in digits, as the low and high half of its unscaled value, with FINE or what is wrong."""
    negative = at < end and load8(at) == 0x2D
    if negative:
        at += 1
    low, high, digits, fraction = 0, 0, 0, -1
    upper, middle = 0, 0  # of more than 18 digits: low is below 2**32 then, and so is each of these
    while at < end:
        byte = load8(at)
        at += 1
        if byte == 0x2E and fraction < 0:
            fraction = 0
            continue
        digit = byte - 0x30
        if digit < 0 or digit > 9:
            return 0, 0, NOT_A_DECIMAL
        if fraction >= 0:
            fraction += 1
        if digits > 0 or digit > 0:
            digits += 1
        if digits == 19:
            middle, low = low >> 32, low & _WORD
        low = low * 10 + digit
        if digits > 18:
            middle = middle * 10 + (low >> 32)
            upper = upper * 10 + (middle >> 32)
            high = high * 10 + (upper >> 32)
            low, middle, upper = low & _WORD, middle & _WORD, upper & _WORD
    if max(fraction, 0) != scale or digits > _DIGITS_MAX:
        return 0, 0, NOT_A_DECIMAL
    low, high = low | middle << 32, upper | high << 32
    if negative:
        low = -low
        high = -high if low == 0 else ~high
    return low, high, FINE


@small
def _fixed(op: int, out: int, row: int, at: int) -> int:
    """Write a value that has the same fixed size on either side; the place behind it."""
    if op == COPY32:
        store32(out + 4 * row, load32(at))
        return at + 4
    if op == COPY64:
        store64(out + 8 * row, load64(at))
        return at + 8
    if op == COPY16:
        store16(out + 2 * row, load16(at))
        return at + 2
    store8(out + row, load8(at))
    return at + 1


@small
def _length(at: int, end: int) -> tuple[int, int]:
    """A length-encoded number: it, and the place behind it; -1 for one that does not fit."""
    if at >= end:
        return -1, at
    first = load8(at)
    if first < 251:
        return first, at + 1
    if first == 252 and at + 3 <= end:
        return load16(at + 1), at + 3
    if first == 253 and at + 4 <= end:
        return load16(at + 1) | load8(at + 3) << 16, at + 4
    if first == 254 and at + 9 <= end:
        return load64(at + 1), at + 9
    return -1, at


@small
def _set_bit(bits: int, row: int) -> None:
    store8(bits + (row >> 3), load8(bits + (row >> 3)) | 1 << (row & 7))


@small
def _bits(at: int, length: int, width: int, out: int, row: int) -> int:
    """Write a BIT; FINE or what is wrong."""
    if length > 8 or length == 0:
        return BAD_LENGTH
    value = big_endian(at, length)
    if width == 0:  # a single bit
        if value > 1 or value < 0:
            return BAD_LENGTH
        if value == 1:
            _set_bit(out, row)
    elif width == 1:
        store8(out + row, value)
    elif width == 2:
        store16(out + 2 * row, value)
    elif width == 4:
        store32(out + 4 * row, value)
    else:
        store64(out + 8 * row, value)
    return FINE


@part
def _measured(op: int, scale: int, out: int, row: int, at: int, length: int) -> int:  # noqa: PLR0911 - a table of cases
    """Write a value of known length that becomes one of fixed size; FINE, NO_DATE, or an error."""
    if op == DECIMAL:
        low, high, code = _decimal(at, at + length, scale)
        if code != FINE:
            return code
        store64(out + 16 * row, low)
        store64(out + 16 * row + 8, high)
        return FINE
    if op in (TIMESTAMP, DATE):
        if length not in (0, 4, 7, 11):
            return NOT_A_DATE
        us = _moment_us(at, length)
        if us == NONE:
            return NO_DATE
        if op == DATE:
            store32(out + 4 * row, us // _DAY_US)
        else:
            store64(out + 8 * row, us)
        return FINE
    if op == TIME:
        if length not in (0, 8, 12):
            return NOT_A_TIME
        us = _time_us(at, length)
        if us == NONE:
            return NOT_A_TIME
        store64(out + 8 * row, us)
        return FINE
    return _bits(at, length, scale, out, row)


@part
def _row(  # noqa: C901, PLR0912 - the loop that all the time goes to; calls would cost
    base: int,
    program: int,
    columns: int,
    row: int,
    at: int,
    end: int,
    arena: int,
    starts: int,
    lengths: int,
    stride: int,
    status: int,
) -> int:
    """One row's payload between `at` and `end`; FINE or what is wrong, with the column in the status.

    base: what `starts` are counted from. stride: bytes between two columns of `starts` and `lengths`.
    """
    nulls = at + 1
    at = nulls + (columns + 9) // 8
    if at > end or load8(nulls - 1) != 0:
        return NOT_A_ROW
    for c in range(columns):
        fields = program + 8 * FIELDS * c
        op = load64(fields + 8 * OP)
        if load8(nulls + ((c + 2) >> 3)) >> ((c + 2) & 7) & 1:
            store64(fields + 8 * NULLS, load64(fields + 8 * NULLS) + 1)
            if op == BYTES:
                store64(lengths + stride * load64(fields + 8 * VAR), 0)
            continue
        code = FINE
        if op <= COPY64:
            if at + (1 << op) > end:
                code = CUT_SHORT
            else:
                at = _fixed(op, arena + load64(fields + 8 * OUT), row, at)
        else:
            length, at = _length(at, end)
            if length < 0 or length > end - at:
                code = CUT_SHORT
            elif op == BYTES:
                var = load64(fields + 8 * VAR)
                store64(starts + stride * var, at - base)
                store64(lengths + stride * var, length)
                at += length
            else:
                code = _measured(op, load64(fields + 8 * SCALE), arena + load64(fields + 8 * OUT), row, at, length)
                at += length
        if code == FINE:
            _set_bit(arena + load64(fields + 8 * VALID), row)
        elif code == NO_DATE:
            store64(fields + 8 * NULLS, load64(fields + 8 * NULLS) + 1)
            if load64(fields + 8 * FIRST_NONE) < 0:
                store64(fields + 8 * FIRST_NONE, row)
        else:
            store64(status + 8 * COLUMN, c)
            return code
    return FINE if at == end else NOT_A_ROW


@kernel(
    "int64(uint8[::1], int64, int64, int64, int64[:, ::1], int64, int64, uint8[::1], int64[:, ::1], int64[:, ::1],"
    " int64[::1])"
)
def walk_rows(  # noqa: C901 - one packet's fate after another
    buffer: Bytes,
    at: int,
    end: int,
    payload: int,
    program: Words,
    row: int,
    rows_max: int,
    arena: Bytes,
    starts: Words,
    lengths: Words,
    status: Words,
) -> int:
    """Decode the packets of rows that lie whole between `at` and `end`, at most as many as `starts` has room for.

    payload: if not 0, the buffer holds at `at` not packets but the payload of one, of so many bytes. row: how many rows
    the arena holds already, of `rows_max`. Returns the place up to which the buffer is done with; see `status`.
    """
    status[CODE] = FINE
    status[END] = 0
    base, first, stride = address(buffer), row, 8 * starts.shape[1]
    program_at, columns, arena_at = address(program), program.shape[0], address(arena)
    starts_at, lengths_at, status_at = address(starts), address(lengths), address(status)
    room = min(starts.shape[1], rows_max - row)
    sequence = status[SEQUENCE]
    while row - first < room:
        begin, stop = at, at + payload
        if payload == 0:
            if at + 4 > end:
                break
            size = load16(base + at) | load8(base + at + 2) << 16
            begin, stop = at + 4, at + 4 + size
            if load8(base + at + 3) != sequence:
                status[CODE] = OUT_OF_ORDER
                break
            if size == _PACKET_MAX:
                status[CODE] = LARGE
                break
            if stop > end:
                break
            kind = load8(base + begin) if size > 0 else 0
            if kind == 0xFF:
                status[CODE] = ERROR
                break
            if kind == 0xFE and size < 9:
                status[END] = ENDED
                at = stop
                break
        if stop > end:
            break
        slot = 8 * (row - first)
        code = _row(
            base,
            program_at,
            columns,
            row,
            base + begin,
            base + stop,
            arena_at,
            starts_at + slot,
            lengths_at + slot,
            stride,
            status_at,
        )
        if code != FINE:
            status[CODE] = code
            break
        status[LAST_FROM] = begin
        status[LAST_TO] = stop
        row += 1
        at = stop
        if payload:
            break
        sequence = (sequence + 1) & 255
    status[SEQUENCE] = sequence
    status[ROWS] = row - first
    return at


@kernel("int64(uint8[::1], int64[::1], int64[::1], int64, uint8[::1], int64, int32[::1], int64)")
def gather(
    buffer: Bytes,
    starts: Words,
    lengths: Words,
    count: int,
    data: Bytes,
    at: int,
    offsets: npt.NDArray[np.int32],
    row: int,
) -> int:
    """Copy `count` values behind each other into `data` from `at` on, and note where each ends; the place behind them.

    `data` has room for them and eight bytes more; `walk_rows` has checked where they lie.
    """
    base, target, limit = address(buffer), address(data), address(buffer) + buffer.size
    for i in range(count):
        length = lengths[i]
        if length > 0:
            copy_bytes(base + starts[i], length, limit, target + at)
            at += length
        offsets[row + i + 1] = at
    return at
