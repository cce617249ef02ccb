"""The kernel of JSON: documents in MySQL's binary form into text, without recursion, every bound checked.

A document is a type and a value. A container has the number of its members, its own size, then (objects) where each
key is and its length, then each value's type and where it is, or itself if it is small; all places count from the
container's begin. `at` and `end` are addresses; `to` is where to write, or FULL, MALFORMED in its place.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, part, small
from databus.sources.mysql.rows import _json as js
from databus.sources.mysql.rows._memory import (
    HIGH_BITS,
    Words,
    address,
    load8,
    load16,
    load32,
    load64,
    lshr,
    store8,
    store32,
    store64,
    umulh,
)
from databus.sources.mysql.rows._number_kernels import decimal_size, decimal_text
from databus.sources.mysql.rows._program import FINE
from databus.sources.mysql.rows._utf8_kernels import utf8_valid

_POWER_MIN, _POWER_MAX = -292, 324
_SIGN: Final = -0x8000000000000000
_FRACTION: Final = (1 << 52) - 1
FULL = -1
MALFORMED = -2
TOO_MUCH = -3

ROOM = 128
"""The most bytes that a scalar which is no string, or the marks around a value, can take."""

FRAME = 5
_BASE, _END, _COUNT, _INDEX, _KIND = range(FRAME)

_TEXT_BYTES_MAX = (1 << 31) - 1
_DECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_BASE64_LINE = 57  # bytes that make 76 characters
_ONES = 0x0101010101010101


def _upper_bits(power: int) -> int:
    """The upper 128 bits of 10 ** power, rounded up where they are not all."""
    value: int = 10 ** abs(power)
    if power >= 0:
        shift = value.bit_length() - 128
        return -(-value >> shift) if shift > 0 else value << -shift
    return -((-1 << value.bit_length() + 127) // value)


def _table() -> NDArray[np.int64]:
    words: list[int] = []
    for power in range(_POWER_MIN, _POWER_MAX + 1):
        value = _upper_bits(power)
        words += [value >> 64, value & (1 << 64) - 1]
    return np.array(words, dtype=np.uint64).view(np.int64)


POWERS: Final = _table()
"""For the kernel: pairs of upper and lower words."""


@small
def _rounded_to_odd(upper: int, lower: int, factor: int) -> int:
    carried = umulh(lower, factor)
    low = upper * factor + carried
    high = umulh(upper, factor) + (1 if (low ^ _SIGN) < (carried ^ _SIGN) else 0)
    return high | (1 if low & ~1 else 0)


@small
def shortest(bits: int, powers: int) -> tuple[int, int]:
    """A positive finite double as digits and the power of ten that they are to be multiplied with."""
    fraction, exponent = bits & _FRACTION, lshr(bits, 52) & 0x7FF
    if exponent:
        c, q = fraction | _FRACTION + 1, exponent - 1075
        if -52 <= q <= 0 and c & ((1 << -q) - 1) == 0:
            return c >> -q, 0
    else:
        c, q = fraction, -1074
    is_odd = c & 1
    is_closer = 1 if fraction == 0 and exponent > 1 else 0
    k = (q * 1262611 - (524031 if is_closer else 0)) >> 22
    h = q + ((-k * 1741647) >> 19) + 1
    at = powers + 16 * (-k - _POWER_MIN)
    upper, lower = load64(at), load64(at + 8)
    low = _rounded_to_odd(upper, lower, (4 * c - 2 + is_closer) << h) + is_odd
    value = _rounded_to_odd(upper, lower, 4 * c << h)
    high = _rounded_to_odd(upper, lower, (4 * c + 2) << h) - is_odd
    s = value >> 2
    if s >= 10:
        tens = s // 10
        below, above = low <= 40 * tens, 40 * tens + 40 <= high
        if below != above:
            return tens + (1 if above else 0), k + 1
    below, above = low <= 4 * s, 4 * s + 4 <= high
    if below != above:
        return s + (1 if above else 0), k
    middle = 4 * s + 2
    return s + (1 if value > middle or (value == middle and s & 1) else 0), k


@small
def _put(to: int, character: int) -> int:
    store8(to, character)
    return to + 1


@small
def _put_number(to: int, value: int, digits: int) -> int:
    """A number that is not negative, with leading zeros to so many digits."""
    count, rest = 1, value
    while rest >= 10:
        rest //= 10
        count += 1
    count = max(count, digits)
    for i in range(count - 1, -1, -1):
        store8(to + i, 0x30 + value % 10)
        value //= 10
    return to + count


@small
def _put_integer(to: int, value: int, is_signed: bool) -> int:
    if value < 0 and is_signed:
        to = _put(to, 0x2D)
        if value == -0x8000000000000000:
            to, value = _put(to, 0x39), 223372036854775808
        else:
            value = -value
    elif value < 0:  # 64 bits without sign
        tens = (value >> 1 & 0x7FFF_FFFF_FFFF_FFFF) // 5
        return _put(_put_number(to, tens, 1), 0x30 + (value - tens * 10))
    return _put_number(to, value, 1)


@small
def _put_double(to: int, bits: int, is_old: int, powers: int) -> int:
    if bits < 0:
        to = _put(to, 0x2D)
        bits &= 0x7FFF_FFFF_FFFF_FFFF
    if bits >= 0x7FF0_0000_0000_0000:
        return MALFORMED
    if bits == 0:
        to = _put(to, 0x30)
        return to if is_old else _put(_put(to, 0x2E), 0x30)
    digits, power = shortest(bits, powers)
    while digits % 10 == 0:
        digits //= 10
        power += 1
    count, rest = 1, digits
    while rest >= 10:
        rest //= 10
        count += 1
    point = count + power
    if -14 <= point <= 15 or 15 < point < count:
        if point <= 0:
            to = _put(_put(to, 0x30), 0x2E)
            for _ in range(-point):
                to = _put(to, 0x30)
            return _put_number(to, digits, count)
        split = 1
        for _ in range(count - point):
            split *= 10
        to = _put_number(to, digits // split, 1)
        for _ in range(point - count):
            to = _put(to, 0x30)
        if is_old and point >= count:
            return to
        return _put_number(_put(to, 0x2E), digits % split, max(count - point, 1))
    split = 1
    for _ in range(count - 1):
        split *= 10
    to = _put(to, 0x30 + digits // split)
    if count > 1:
        to = _put_number(_put(to, 0x2E), digits % split, count - 1)
    to = _put(to, 0x65)
    if point < 1:
        return _put_number(_put(to, 0x2D), 1 - point, 1)
    return _put_number(to, point - 1, 1)


@small
def _is_plain(word: int) -> bool:
    """Whether none of eight bytes is a quote, a backslash, or below a blank; may say no of a byte that is above."""
    quotes, slashes = word ^ 0x2222222222222222, word ^ 0x5C5C5C5C5C5C5C5C
    hits = (quotes - _ONES) & ~quotes | (slashes - _ONES) & ~slashes | (word - 0x2020202020202020) & ~word
    return hits & HIGH_BITS == 0


@part
def _put_string(to: int, at: int, count: int, limit: int) -> int:
    """A quoted string; FULL where all of it escaped might not fit, MALFORMED where it is no UTF-8."""
    if to + 6 * count + ROOM > limit:
        return FULL
    to = _put(to, 0x22)
    end = at + count
    seen = 0
    start = at
    while at < end:
        if at + 8 <= end:
            word = load64(at)
            if _is_plain(word):
                store64(to, word)
                seen |= word
                at += 8
                to += 8
                continue
        byte = load8(at)
        seen |= byte
        at += 1
        if byte >= 0x20 and byte != 0x22 and byte != 0x5C:
            to = _put(to, byte)
            continue
        to = _put(to, 0x5C)
        if byte == 0x22 or byte == 0x5C:
            to = _put(to, byte)
        elif byte == 8:
            to = _put(to, 0x62)
        elif byte == 9:
            to = _put(to, 0x74)
        elif byte == 10:
            to = _put(to, 0x6E)
        elif byte == 12:
            to = _put(to, 0x66)
        elif byte == 13:
            to = _put(to, 0x72)
        else:
            to = _put_hex(to, byte)
    if seen & HIGH_BITS and not utf8_valid(start, count):
        return MALFORMED
    return _put(to, 0x22)


@small
def _put_hex(to: int, byte: int) -> int:
    to = _put(_put(_put(to, 0x75), 0x30), 0x30)
    to = _put(to, 0x30 + (byte >> 4))
    low = byte & 15
    return _put(to, low + (0x30 if low < 10 else 0x57))


@small
def _sized(at: int, end: int) -> tuple[int, int]:
    """Where a string begins after its length, and the length; -1 if it is not all there."""
    size = 0
    for i in range(5):
        if at + i >= end:
            break
        byte = load8(at + i)
        size |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            if size > end - at - i - 1:
                break
            return at + i + 1, size
    return -1, 0


@small
def _put_clock(to: int, hour: int, whole: int, fraction: int) -> int:
    to = _put(_put_number(to, hour, 2), 0x3A)
    to = _put(_put_number(to, whole >> 6 & 63, 2), 0x3A)
    to = _put(_put_number(to, whole & 63, 2), 0x2E)
    return _put_number(to, fraction, 6)


@small
def _put_moment(to: int, kind: int, packed: int) -> int:
    to = _put(to, 0x22)
    if packed < 0:
        if packed == -0x8000000000000000:
            return MALFORMED
        packed = -packed
        if kind == _TIME:
            to = _put(to, 0x2D)
    fraction, whole = packed & 0xFF_FFFF, packed >> 24
    if kind == _TIME:
        to = _put_clock(to, whole >> 12 & 1023, whole, fraction)
    else:
        month = whole >> 22
        to = _put(_put_number(to, month // 13, 4), 0x2D)
        to = _put(_put_number(to, month % 13, 2), 0x2D)
        to = _put_number(to, whole >> 17 & 31, 2)
        if kind != _DATE:
            to = _put_clock(_put(to, 0x20), whole >> 12 & 31, whole, fraction)
    return _put(to, 0x22)


@small
def _put_decimal(to: int, at: int, count: int) -> int:
    if count < 2:
        return MALFORMED
    precision, scale = load8(at), load8(at + 1)
    if precision < 1 or precision > js.DECIMAL_DIGITS_MAX or scale > precision:
        return MALFORMED
    leading, before = (precision - scale) % 9, (precision - scale) // 9
    after, last = scale // 9, scale % 9
    if decimal_size(leading, before, after, last) > count - 2:
        return MALFORMED
    to, wrong = decimal_text(at + 2, leading, before, after, last, to)
    if wrong != FINE:
        return MALFORMED
    return to


@small
def _base64(value: int) -> int:
    value &= 63
    if value < 26:
        return 0x41 + value
    if value < 52:
        return 0x47 + value
    if value < 62:
        return value - 4
    return 0x2B if value == 62 else 0x2F


@part
def _put_base64(to: int, kind: int, at: int, count: int, is_old: int, limit: int) -> int:
    if to + 2 * count + ROOM > limit:
        return FULL
    for character in (0x22, 0x62, 0x61, 0x73, 0x65, 0x36, 0x34, 0x3A, 0x74, 0x79, 0x70, 0x65):  # "base64:type
        to = _put(to, character)
    to = _put(_put_number(to, kind, 1), 0x3A)
    for i in range(0, count, 3):
        if i and i % _BASE64_LINE == 0:
            to = _put(to, 0x0A) if is_old else _put(_put(to, 0x5C), 0x6E)
        word = load8(at + i) << 16
        if i + 1 < count:
            word |= load8(at + i + 1) << 8
        if i + 2 < count:
            word |= load8(at + i + 2)
        to = _put(_put(to, _base64(word >> 18)), _base64(word >> 12))
        to = _put(to, _base64(word >> 6) if i + 1 < count else 0x3D)
        to = _put(to, _base64(word) if i + 2 < count else 0x3D)
    return _put(to, 0x22)


@small
def _put_opaque(to: int, at: int, end: int, is_old: int, limit: int) -> int:
    if at >= end:
        return MALFORMED
    kind = load8(at)
    data, count = _sized(at + 1, end)
    if data < 0:
        return MALFORMED
    if kind == _DECIMAL:
        return _put_decimal(to, data, count)
    if kind == _DATE or kind == _TIME or kind == _DATETIME or kind == _TIMESTAMP:
        if count < 8:
            return MALFORMED
        return _put_moment(to, kind, load64(data))
    return _put_base64(to, kind, data, count, is_old, limit)


@small
def _signed(value: int, bits: int) -> int:
    return value - ((value >> (bits - 1) & 1) << bits)


@small
def _put_literal(to: int, literal: int) -> int:
    if literal == 0:
        store32(to, 0x6C6C756E)  # null
        return to + 4
    if literal == 1:
        store32(to, 0x65757274)  # true
        return to + 4
    if literal == 2:
        store32(to, 0x736C6166)  # fals
        return _put(to + 4, 0x65)
    return MALFORMED


@part
def _put_scalar(to: int, kind: int, at: int, end: int, is_old: int, powers: int, limit: int) -> int:
    """A value that is no container; there is ROOM."""
    room = end - at
    if kind == js.STRING:
        data, count = _sized(at, end)
        if data < 0:
            return MALFORMED
        return _put_string(to, data, count, limit)
    if kind == js.INT16 or kind == js.UINT16:
        if room < 2:
            return MALFORMED
        value = load16(at)
        return _put_integer(to, _signed(value, 16) if kind == js.INT16 else value, True)
    if kind == js.LITERAL:
        if room < 1:
            return MALFORMED
        return _put_literal(to, load8(at))
    if kind == js.INT32 or kind == js.UINT32:
        if room < 4:
            return MALFORMED
        value = load32(at)
        return _put_integer(to, _signed(value, 32) if kind == js.INT32 else value, True)
    if kind == js.OPAQUE:
        return _put_opaque(to, at, end, is_old, limit)
    if room < 8:
        return MALFORMED
    if kind == js.DOUBLE:
        return _put_double(to, load64(at), is_old, powers)
    if kind == js.INT64 or kind == js.UINT64:
        return _put_integer(to, load64(at), kind == js.INT64)
    return MALFORMED


@small
def _number(at: int, is_large: int) -> int:
    return load32(at) if is_large else load16(at)


@small
def _push(frame: int, kind: int, at: int, end: int) -> bool:
    """Open a container; whether its head and the places of its members are inside it."""
    is_large = kind & 1
    width = 4 if is_large else 2
    if end - at < 2 * width:
        return False
    count, size = _number(at, is_large), _number(at + width, is_large)
    entry = (1 + width) + ((2 + width) if kind <= js.LARGE_OBJECT else 0)
    if size > end - at or 2 * width + count * entry > size:
        return False
    store64(frame + 8 * _BASE, at)
    store64(frame + 8 * _END, at + size)
    store64(frame + 8 * _COUNT, count)
    store64(frame + 8 * _INDEX, 0)
    store64(frame + 8 * _KIND, kind)
    return True


@small
def _put_key(to: int, frame: int, index: int, limit: int) -> int:
    base = load64(frame + 8 * _BASE)
    is_large = load64(frame + 8 * _KIND) & 1
    width = 4 if is_large else 2
    entry = base + 2 * width + index * (2 + width)
    key, count = base + _number(entry, is_large), load16(entry + width)
    if key + count > load64(frame + 8 * _END):
        return MALFORMED
    to = _put_string(to, key, count, limit)
    if to < 0:
        return to
    return _put(_put(to, 0x3A), 0x20)


@small
def _member(frame: int, index: int) -> tuple[int, int, int]:
    """A member's type, place and end; place -1 if it is not inside."""
    base, end = load64(frame + 8 * _BASE), load64(frame + 8 * _END)
    kind = load64(frame + 8 * _KIND)
    is_large = kind & 1
    width = 4 if is_large else 2
    keys = load64(frame + 8 * _COUNT) * (2 + width) if kind <= js.LARGE_OBJECT else 0
    entry = base + 2 * width + keys + index * (1 + width)
    inner = load8(entry)
    if (js.LITERAL <= inner <= js.UINT16) or (is_large and js.INT32 <= inner <= js.UINT32):
        return inner, entry + 1, entry + 1 + width
    place = base + _number(entry + 1, is_large)
    if place >= end:
        return inner, -1, end
    return inner, place, end


@part
def _put_document(start: int, at: int, end: int, is_old: int, powers: int, frames: int, limit: int) -> int:
    """A document's text from `start` on; where it ends, FULL, or MALFORMED."""
    to = start
    text_max = js.EXPANSION_MAX * (end - at) + 64
    if at == end:
        return _put_literal(to, 0)
    kind, at = load8(at), at + 1
    depth = 0
    while True:
        if to + ROOM > limit:
            return FULL
        if to - start > text_max:
            return MALFORMED
        frame = frames + 8 * FRAME * depth
        if kind <= js.LARGE_ARRAY:
            if depth >= js.DEPTH_MAX or not _push(frame, kind, at, end):
                return MALFORMED
            to = _put(to, 0x7B if kind <= js.LARGE_OBJECT else 0x5B)
            depth += 1
        else:
            to = _put_scalar(to, kind, at, end, is_old, powers, limit)
            if to < 0:
                return to
        while depth:  # to the next member
            frame = frames + 8 * FRAME * (depth - 1)
            index, is_object = load64(frame + 8 * _INDEX), load64(frame + 8 * _KIND) <= js.LARGE_OBJECT
            if to + ROOM > limit:
                return FULL
            if index < load64(frame + 8 * _COUNT):
                if index:
                    to = _put(_put(to, 0x2C), 0x20)
                if is_object:
                    to = _put_key(to, frame, index, limit)
                    if to < 0:
                        return to
                store64(frame + 8 * _INDEX, index + 1)
                kind, at, end = _member(frame, index)
                if at < 0:
                    return MALFORMED
                break
            to = _put(to, 0x7D if is_object else 0x5D)
            depth -= 1
        if depth == 0:
            return to


@kernel("int64(int64, int64, int64, int64, int64, int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def json_text(
    rows: int,
    is_old: int,
    valid: int,
    offsets: int,
    data: int,
    powers: Words,
    stack: Words,
    out_offsets: int,
    out: int,
    room: int,
    state: NDArray[np.int64],
) -> int:
    """Text of documents from row state[0] on, at state[1]: 0 at the end, FULL to be called again with more room,
    MALFORMED or TOO_MUCH at row state[0].

    is_old: whether as MySQL 5.7 prints it. valid: where the bits are that say which rows are not null, or 0.
    powers: POWERS. stack: FRAME words for each level of DEPTH_MAX. room: bytes at `out`.
    """
    powers_, frames = address(powers), address(stack)
    limit = out + room
    to = out + state[1]
    if state[0] == 0:
        store32(out_offsets, 0)
    for row in range(state[0], rows):
        if valid == 0 or load8(valid + (row >> 3)) >> (row & 7) & 1:
            at, end = data + load32(offsets + 4 * row), data + load32(offsets + 4 * row + 4)
            if to + ROOM > limit:
                return FULL
            after = _put_document(to, at, end, is_old, powers_, frames, limit)
            if after < 0:
                return after
            to = after
        if to - out > _TEXT_BYTES_MAX:
            return TOO_MUCH
        store32(out_offsets + 4 * row + 4, to - out)
        state[0], state[1] = row + 1, to - out
    return 0
