"""The kernels of text: any character set into UTF-8, members of ENUM and SET, MariaDB's addresses.

Text stands as Arrow has it: int32 offsets and bytes. All arguments that say where something is are addresses.
"""

import numpy as np
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, small
from databus.sources.mysql.rows import _code_points as cs
from databus.sources.mysql.rows._memory import (
    address,
    copy_bytes,
    load8,
    load16,
    load16be,
    load32,
    load32be,
    load64,
    store8,
    store32,
)
from databus.sources.mysql.rows._utf8_kernels import put_utf8, utf8_end, utf8_length

Points = NDArray[np.uint32]

_TEXT_BYTES_MAX = (1 << 31) - 1
_REPLACEMENT = 0xFFFD
TOO_MUCH = -1
FINE = 0


@kernel("int64(int64, int64, int64)")
def first_invalid_utf8(rows: int, offsets: int, text: int) -> int:
    """The first row that is not UTF-8, or -1."""
    for row in range(rows):
        start, end = load32(offsets + 4 * row), load32(offsets + 4 * row + 4)
        if utf8_end(text + start, end - start) != text + end:
            return row
    return -1


@small
def _utf16(at: int, end: int, kind: int) -> tuple[int, int]:
    """The code point at `at` and the bytes it has; -1 if there is none."""
    if at + 2 > end:
        return -1, end - at
    unit = load16(at) if kind == cs.UTF16LE else load16be(at)
    if unit < 0xD800 or unit > 0xDFFF:
        return unit, 2
    if unit > 0xDBFF or at + 4 > end or kind == cs.UCS2:
        return -1, 2
    low = load16(at + 2) if kind == cs.UTF16LE else load16be(at + 2)
    if low < 0xDC00 or low > 0xDFFF:
        return -1, 2
    return 0x10000 + ((unit - 0xD800) << 10) + low - 0xDC00, 4


@small
def _utf8(at: int, end: int) -> tuple[int, int]:
    length = utf8_length(at, end)
    lead = load8(at)
    if length == 1:
        return lead, 1
    if length == 0:
        return -1, 1
    point = lead & (0x7F >> length)
    for i in range(1, length):
        point = point << 6 | (load8(at + i) & 0x3F)
    return point, length


@small
def _quadruple(at: int, end: int, quadruple: int) -> tuple[int, int]:
    """Four bytes of GB18030, of which the first is known."""
    if at + 4 > end:
        return -1, 1
    b, c, d = load8(at + 1) - 0x30, load8(at + 2) - 0x81, load8(at + 3) - 0x30
    if b < 0 or b > 9 or c < 0 or c > 125 or d < 0 or d > 9:
        return -1, 1
    number = (((load8(at) - 0x81) * 10 + b) * 126 + c) * 10 + d
    if number < cs.GB18030_BMP:
        point = load32(quadruple + 4 * number)
        if point == cs.NO_CHARACTER:
            return -1, 4
        return point, 4
    point = number - cs.GB18030_ASTRAL + 0x10000
    if point < 0x10000 or point > 0x10FFFF:
        return -1, 4
    return point, 4


@small
def _by_tables(at: int, end: int, single: int, double: int, triple: int, quadruple: int) -> tuple[int, int]:
    point = load32(single + 4 * load8(at))
    if point < 0x110000:
        return point, 1
    if point == cs.NO_CHARACTER or at + 2 > end:
        return -1, 1
    if point == cs.LEADS_TWO_OR_FOUR and 0x30 <= load8(at + 1) <= 0x39:
        return _quadruple(at, end, quadruple)
    if point == cs.LEADS_THREE:
        if at + 3 > end:
            return -1, 1
        point = load32(triple + 4 * load16be(at + 1))
        if point == cs.NO_CHARACTER:
            return -1, 1
        return point, 3
    point = load32(double + 4 * load16be(at))
    if point == cs.NO_CHARACTER:
        return -1, 1
    return point, 2


@kernel(
    "int64(int64, int64, int64, int64, uint32[::1], uint32[::1], uint32[::1], uint32[::1], boolean, int64, int64,"
    " int64[::1])"
)
def transcode(
    kind: int,
    rows: int,
    offsets: int,
    text: int,
    single: Points,
    double: Points,
    triple: Points,
    quadruple: Points,
    replaces: bool,
    out_offsets: int,
    out: int,
    invalid_row: NDArray[np.int64],
) -> int:
    """Text into UTF-8: the bytes written; TOO_MUCH if they are more than Arrow's offsets can say.

    kind: of the character set, whose tables are given. out: has room for three bytes for each of `text`, and four.
    invalid_row[0]: the first row with invalid bytes, unless U+FFFD replaces each of them; else -1.
    """
    single_, double_, triple_, quadruple_ = address(single), address(double), address(triple), address(quadruple)
    invalid_row[0] = -1
    to = out
    store32(out_offsets, 0)
    for row in range(rows):
        at, end = text + load32(offsets + 4 * row), text + load32(offsets + 4 * row + 4)
        while at < end:
            if kind == cs.TABLES:
                point, count = _by_tables(at, end, single_, double_, triple_, quadruple_)
            elif kind == cs.UTF8:
                point, count = _utf8(at, end)
            elif kind == cs.UTF32:
                point, count = -1, 4
                if at + 4 > end:
                    count = end - at
                else:
                    point = load32be(at)
                    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
                        point = -1
            else:
                point, count = _utf16(at, end, kind)
            if point < 0:
                if not replaces:
                    invalid_row[0] = row
                    return 0
                point = _REPLACEMENT
            to = put_utf8(to, point)
            at += count
        if to - out > _TEXT_BYTES_MAX:
            return TOO_MUCH
        store32(out_offsets + 4 * row + 4, to - out)
    return to - out


@kernel("int64(boolean, int64, int64, int64, int64, int64, int64, int64, boolean, int64[::1])")
def members(
    is_set: bool,
    rows: int,
    values: int,
    count: int,
    names_offsets: int,
    names: int,
    out_offsets: int,
    out: int,
    writes: bool,
    invalid_row: NDArray[np.int64],
) -> int:
    """Numbers of ENUM, or bits of SET, into names joined by commas: their bytes; written only if `writes`.

    count: of the names. 0 is the empty string. invalid_row[0]: the first row with an unknown number or bit, or -1.
    """
    invalid_row[0] = -1
    size = 0
    if writes:
        store32(out_offsets, 0)
    limit = names + load32(names_offsets + 4 * count)
    for row in range(rows):
        value = load64(values + 8 * row)
        if (is_set and count < 64 and value >> count != 0) or (not is_set and (value < 0 or value > count)):
            invalid_row[0] = row
            return 0
        begun = size
        first, last = (0, count) if is_set else (value - 1, value)
        for number in range(max(first, 0), last):
            if is_set and not value >> number & 1:
                continue
            start, end = load32(names_offsets + 4 * number), load32(names_offsets + 4 * number + 4)
            if is_set and size > begun:
                if writes:
                    store8(out + size, 0x2C)
                size += 1
            if writes:
                copy_bytes(names + start, end - start, limit, out + size)
            size += end - start
        if size > _TEXT_BYTES_MAX:
            return TOO_MUCH
        if writes:
            store32(out_offsets + 4 * row + 4, size)
    return size
