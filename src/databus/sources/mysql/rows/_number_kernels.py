"""Parts of kernels: numbers, decimals, dates and times of a row image, as values of Arrow.

Bounds are the caller's; every function says by its result whether the bytes are a value at all.
"""

from typing import Final

import numpy as np

from databus.sources.mysql._compile import small
from databus.sources.mysql.rows._memory import (
    big_endian,
    load8,
    load16be,
    load24,
    load24be,
    load32be,
    load64,
    load64be,
    lshr,
    store8,
)
from databus.sources.mysql.rows._program import FINE, NOT_A_DECIMAL

NONE: Final = -0x8000000000000000
"""The result for an invalid date or time."""

_US: Final = 1_000_000
_DAY_US: Final = 86_400 * _US
_HOURS_MAX: Final = 838
_BEYOND_29: Final = sum(
    days << 2 * month for month, days in enumerate((0, 2, 0, 2, 1, 2, 1, 2, 2, 1, 2, 1, 2))
)  # how many more days than 29 a month has, in two bits each


@small
def days_of(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 in the Gregorian calendar, from year 0 on; NONE for an invalid date."""
    if not (1 <= month <= 12 and 1 <= day <= 29 + (_BEYOND_29 >> 2 * month & 3) and 0 <= year <= 9999):
        return NONE
    if month == 2 and day == 29 and (year % 4 != 0 or (year % 100 == 0 and year % 400 != 0)):
        return NONE
    y = (year + 400 - (1 if month <= 2 else 0)) & 0x3FFF  # a year begins in March, and 400 years make it positive,
    century = y * 5243 >> 19  # which lets the compiler divide by multiplying; this is y // 100
    of_year = (153 * ((month + (-3 if month > 2 else 9)) & 15) + 2) // 5 + day - 1
    return y * 365 + (y >> 2) - century + (century >> 2) + of_year - 719_468 - 146_097


@small
def _clock_us(hour: int, minute: int, second: int, fraction: int) -> int:
    if minute > 59 or second > 59 or fraction >= _US:
        return NONE
    return ((hour * 60 + minute) * 60 + second) * _US + fraction


@small
def _moment(days: int, hour: int, clock_us: int) -> int:
    if days == NONE or clock_us == NONE or hour > 23:
        return NONE
    return days * _DAY_US + clock_us


@small
def _fraction(at: int, width: int) -> int:
    if width == 0:
        return 0
    if width == 1:
        return load8(at)
    if width == 2:
        return load16be(at)
    return load24be(at)


@small
def _fraction_us(fraction: int, width: int) -> int:
    """Of hundredths, ten-thousandths or millionths, by the bytes that they are stored in."""
    if width == 1:
        return fraction * 10_000
    if width == 2:
        return fraction * 100
    return fraction


@small
def date(at: int) -> int:
    """DATE: three bytes, year << 9 | month << 5 | day."""
    value = load24(at)
    return days_of(value >> 9, value >> 5 & 15, value & 31)


@small
def datetime(at: int, fraction: int) -> int:
    """DATETIME of 5.6 and later: five bytes packed in bits, then the fraction."""
    value = load32be(at) << 8 | load8(at + 4)
    if value & 0x80_0000_0000 == 0:
        return NONE
    month = value >> 22 & 0x1_FFFF
    hour = value >> 12 & 31
    us = _fraction_us(_fraction(at + 5, fraction), fraction)
    days = days_of(month // 13, month % 13, value >> 17 & 31)
    return _moment(days, hour, _clock_us(hour, value >> 6 & 63, value & 63, us))


@small
def timestamp(at: int, fraction: int) -> int:
    """TIMESTAMP of 5.6 and later; NONE for zero, which stands for 0000-00-00."""
    seconds = load32be(at)
    us = _fraction_us(_fraction(at + 4, fraction), fraction)
    return NONE if seconds == 0 or us >= _US else seconds * _US + us


@small
def time(at: int, fraction: int) -> int:
    """TIME of 5.6 and later: three bytes and the fraction, together a number with an offset."""
    shift = 8 * fraction
    value = ((load24be(at) - 0x80_0000) << shift) + _fraction(at + 3, fraction)
    size = -value if value < 0 else value
    whole = size >> shift
    part = _fraction_us(size & ((1 << shift) - 1), fraction)
    hour = whole >> 12
    us = _clock_us(hour, whole >> 6 & 63, whole & 63, part)
    if us == NONE or hour > _HOURS_MAX:
        return NONE
    return -us if value < 0 else us


@small
def datetime_old(at: int) -> int:
    """DATETIME before 5.6: a number whose decimal digits are YYYYMMDDhhmmss."""
    value = load64(at)
    if value < 0:
        return NONE
    day, clock = value // 1_000_000, value % 1_000_000
    hour = clock // 10_000
    us = _clock_us(hour, clock // 100 % 100, clock % 100, 0)
    return _moment(days_of(day // 10_000, day // 100 % 100, day % 100), hour, us)


@small
def time_old(at: int) -> int:
    """TIME before 5.6: a number whose decimal digits are hhmmss."""
    value = load24(at)
    if value >= 0x80_0000:
        value -= 0x100_0000
    size = -value if value < 0 else value
    hour = size // 10_000
    us = _clock_us(hour, size // 100 % 100, size % 100, 0)
    if us == NONE or hour > _HOURS_MAX:
        return NONE
    return -us if value < 0 else us


@small
def _unit_us(digits: int) -> int:
    unit = 1
    for _ in range(6 - digits):
        unit *= 10
    return unit


@small
def datetime_hires(at: int, width: int, digits: int) -> int:
    """MariaDB's DATETIME(1..6) without mysql56_temporal_format: months of 32 days, as a count of its smallest unit."""
    value = big_endian(at, width) * _unit_us(digits)
    if value < 0:
        return NONE
    us, value = value % _US, value // _US
    second, value = value % 60, value // 60
    minute, value = value % 60, value // 60
    hour, value = value % 24, value // 24
    month = value >> 5
    return _moment(days_of(month // 13, month % 13, value & 31), hour, _clock_us(hour, minute, second, us))


@small
def timestamp_hires(at: int, width: int, digits: int) -> int:
    """MariaDB's TIMESTAMP(1..6) without mysql56_temporal_format."""
    seconds = load32be(at)
    us = big_endian(at + 4, width - 4) * _unit_us(digits)
    return NONE if seconds == 0 or us >= _US else seconds * _US + us


@small
def time_hires(at: int, width: int, digits: int) -> int:
    """MariaDB's TIME(1..6) without mysql56_temporal_format: a count of its smallest unit, zero at 839 hours."""
    zero_us = (_HOURS_MAX + 1) * 3600 * _US
    us = big_endian(at, width) * _unit_us(digits) - zero_us
    return us if -zero_us < us < zero_us else NONE


_TEN_TO: Final = np.array([10**digits for digits in range(10)], dtype=np.int64)
_BYTES_OF: Final = np.array([0, 1, 1, 2, 2, 3, 3, 4, 4, 4], dtype=np.int64)
_LOW32: Final = 0xFFFF_FFFF


@small
def _digits_of(group: int, leading: int, before: int, after: int, last: int) -> int:
    if group == 0:
        return leading
    return 9 if group <= before + after else last


@small
def _group(at: int, digits: int, start: int, flip: int) -> int:
    """A group of up to nine digits, or -1. The very first bit is the sign, turned; a negative number has all turned."""
    width = _BYTES_OF[digits]
    word = load32be(at) if width == 4 else big_endian(at, width)
    if at == start:
        word ^= 0x80 << 8 * (width - 1)
    word ^= flip & ((1 << 8 * width) - 1)
    return word if word < _TEN_TO[digits] else -1


@small
def decimal_size(leading: int, before: int, after: int, last: int) -> int:
    """The bytes of a DECIMAL: groups of nine digits take four."""
    return int(_BYTES_OF[leading] + 4 * (before + after) + _BYTES_OF[last])


@small
def decimal(start: int, leading: int, before: int, after: int, last: int) -> tuple[int, int]:
    """A DECIMAL of up to 18 digits as its unscaled number, and FINE or what is wrong."""
    flip = 0 if load8(start) & 0x80 else -1
    value = 0
    at = start
    for group in range(before + after + 2):
        digits = _digits_of(group, leading, before, after, last)
        if digits:
            word = _group(at, digits, start, flip)
            if word < 0:
                return 0, NOT_A_DECIMAL
            value = value * _TEN_TO[digits] + word
            at += _BYTES_OF[digits]
    return (-value if flip else value), FINE


@small
def decimal_short(at: int, leading: int, before: int, after: int, last: int, size: int) -> tuple[int, int]:
    """The same for one of `size` bytes, at most eight, where eight may be read."""
    sign = 1 << (8 * size - 1)
    word = lshr(load64be(at), 64 - 8 * size) ^ sign
    is_negative = word & sign != 0
    if is_negative:
        word ^= -1 if size == 8 else (1 << 8 * size) - 1
    left = 8 * size
    value = 0
    is_wrong = False
    if leading:
        left -= 8 * _BYTES_OF[leading]
        value = lshr(word, left)
        is_wrong = value >= _TEN_TO[leading]
    for _ in range(before + after):
        left -= 32
        group = lshr(word, left) & _LOW32
        is_wrong |= group >= _TEN_TO[9]
        value = value * _TEN_TO[9] + group
    if last:
        group = word & ((1 << left) - 1)
        is_wrong |= group >= _TEN_TO[last]
        value = value * _TEN_TO[last] + group
    if is_wrong:
        return 0, NOT_A_DECIMAL
    return (-value if is_negative else value), FINE


@small
def decimal_wide(start: int, leading: int, before: int, after: int, last: int) -> tuple[int, int, int]:
    """A DECIMAL of up to 38 digits as the lower and upper 64 bits of its unscaled number, and FINE or what is wrong."""
    flip = 0 if load8(start) & 0x80 else -1
    low, high = 0, 0
    at = start
    for group in range(before + after + 2):
        digits = _digits_of(group, leading, before, after, last)
        if digits:
            word = _group(at, digits, start, flip)
            if word < 0:
                return 0, 0, NOT_A_DECIMAL
            times = _TEN_TO[digits]
            lower = (low & _LOW32) * times + word
            upper = lshr(low, 32) * times + lshr(lower, 32)
            low = (lower & _LOW32) | upper << 32
            high = high * times + lshr(upper, 32)
            at += _BYTES_OF[digits]
    if flip:
        low, high = -low, -high - (1 if low != 0 else 0)
    return low, high, FINE


@small
def decimal_text(start: int, leading: int, before: int, after: int, last: int, to: int) -> tuple[int, int]:
    """Write a DECIMAL's digits, all after the point; where they end, and FINE or what is wrong.

    `to` has room for the sign, the point, a zero and each digit.
    """
    flip = 0 if load8(start) & 0x80 else -1
    if flip:
        store8(to, 0x2D)
        to += 1
    has_begun = False
    at = start
    for group in range(before + after + 2):
        if group == before + 1 and not has_begun:
            store8(to, 0x30)
            to += 1
            has_begun = True
        if group == before + 1 and after + last > 0:
            store8(to, 0x2E)
            to += 1
        digits = _digits_of(group, leading, before, after, last)
        if digits:
            word = _group(at, digits, start, flip)
            if word < 0:
                return to, NOT_A_DECIMAL
            for place in range(digits - 1, -1, -1):
                digit = word // _TEN_TO[place] % 10
                has_begun |= digit != 0
                if has_begun:
                    store8(to, 0x30 + digit)
                    to += 1
            at += _BYTES_OF[digits]
    return to, FINE
