"""Columns that come as text: dates and times of day as the server shows them, invalid dates included.

The log's bits and the fields of a result become the same numbers (year, month, ... microsecond), and these become text,
a column at a time. So a row that was logged and a row that was read have the same text.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from databus.sources.mysql._definition import ColumnDefinition, FieldType
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._row_errors import not_this_table
from databus.sources.mysql.rows._text import RowPlaces, check_size, places_of, text_array

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

_TIMES: Final = frozenset({FieldType.TIME, FieldType.TIME2})
_DATES: Final = frozenset({FieldType.DATE, FieldType.NEWDATE})
_US: Final = 1_000_000
_HOURS_MAX: Final = 838
_MOMENT_MAX: Final = (9999, 12, 31, 23, 59, 59, _US - 1)
_RESULT_BYTES: Final = 12
_TEXT_BYTES_MAX: Final = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class _Fields:
    """The parts of each row's date or time, as numbers."""

    day: tuple[Ints, ...]
    """Year, month and day; empty for TIME, whose hours go up to 838 and whose rows may be negative."""
    clock: tuple[Ints, ...]
    is_negative: NDArray[np.bool_]
    is_wrong: NDArray[np.bool_]
    """Where the bytes do not have this form at all."""


def number_text(column: ColumnDefinition, numbers: pa.Array) -> pa.Array:
    """Numbers as their digits; a BIT as its number, a YEAR in four digits."""
    if pa.types.is_boolean(numbers.type):
        numbers = numbers.cast(pa.int8())
    text = numbers.cast(pa.string())
    return pc.utf8_lpad(text, 4, "0") if column.type is FieldType.YEAR else text


def logged_text(column: ColumnDefinition, form: int, raw: pa.Array, where: RowPlaces) -> pa.Array:
    """Dates and times of the log. form: the operation of `_program` that reads such bits. raw: the bits, as uint64.

    Raises `CorruptData` for bits that no server writes.
    """
    bits = np.frombuffer(raw.buffers()[1], np.uint64, len(raw))
    return _text(column, _LOGGED[form](bits, column.meta), raw, where)


def result_text(column: ColumnDefinition, raw: pa.Array, where: RowPlaces) -> pa.Array:
    """Dates and times of a result of the binary protocol. raw: their bytes, without the length before them.

    Raises `CorruptData` for bytes that no server sends.
    """
    raw, _, _ = places_of(raw)
    offsets = np.frombuffer(raw.buffers()[1], np.int32)[: len(raw) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    taken = np.minimum(lengths, _RESULT_BYTES)
    row = np.repeat(np.arange(len(raw)), taken)
    place = np.arange(len(row)) - np.repeat(np.cumsum(taken) - taken, taken)
    held = np.zeros((len(raw), _RESULT_BYTES), np.uint8)
    if len(row):
        held[row, place] = np.frombuffer(raw.buffers()[2], np.uint8)[offsets[row] + place]
    if column.type in _TIMES:
        clock = (_number(held, 1, 5) * 24 + _number(held, 5, 6), *(_number(held, *part) for part in _TIME_PARTS))
        is_wrong = ~np.isin(lengths, (0, 8, 12)) | (held[:, 0] > 1)
        return _text(column, _Fields((), clock, held[:, 0] == 1, is_wrong), raw, where)
    day = tuple(_number(held, *part) for part in _DAY_PARTS)
    clock = tuple(_number(held, *part) for part in _CLOCK_PARTS)
    return _text(column, _Fields(day, clock, _nowhere(held), ~np.isin(lengths, (0, 4, 7, 11))), raw, where)


_TIME_PARTS: Final = ((6, 7), (7, 8), (8, 12))
_DAY_PARTS: Final = ((0, 2), (2, 3), (3, 4))
_CLOCK_PARTS: Final = ((4, 5), (5, 6), (6, 7), (7, 11))


def _number(held: Bytes, first: int, end: int) -> Ints:
    """The little-endian number between two places of each row."""
    return held[:, first:end].astype(np.int64) @ np.array([256**place for place in range(end - first)], np.int64)


# From the log's bits to fields. digits: of the fraction.


def _split(bits: NDArray[np.uint64], digits: int) -> tuple[Ints, Ints]:
    """What stands before the fraction, and the fraction in microseconds, of forms since 5.6."""
    width = (digits + 1) // 2
    whole = (bits >> np.uint64(8 * width)).astype(np.int64)
    fraction = (bits & np.uint64((1 << 8 * width) - 1)).astype(np.int64)
    return whole, fraction * 100 ** (3 - width)


def _nowhere(rows: NDArray[Any]) -> NDArray[np.bool_]:
    return np.zeros(len(rows), np.bool_)


def _date(bits: NDArray[np.uint64], digits: int) -> _Fields:
    del digits
    value, zeros = bits.astype(np.int64), np.zeros(len(bits), np.int64)
    return _Fields((value >> 9, value >> 5 & 15, value & 31), (zeros,) * 4, _nowhere(bits), _nowhere(bits))


def _datetime(bits: NDArray[np.uint64], digits: int) -> _Fields:
    value, us = _split(bits, digits)
    month = value >> 22 & 0x1_FFFF
    clock = (value >> 12 & 31, value >> 6 & 63, value & 63, us)
    return _Fields((month // 13, month % 13, value >> 17 & 31), clock, _nowhere(bits), value & 0x80_0000_0000 == 0)


def _timestamp(bits: NDArray[np.uint64], digits: int) -> _Fields:
    return _moment(*_split(bits, digits))


def _time(bits: NDArray[np.uint64], digits: int) -> _Fields:
    width = (digits + 1) // 2
    value = bits.astype(np.int64) - (0x80_0000 << 8 * width)
    whole, us = _split(np.abs(value).astype(np.uint64), digits)
    return _Fields((), (whole >> 12, whole >> 6 & 63, whole & 63, us), value < 0, _nowhere(bits))


def _datetime_old(bits: NDArray[np.uint64], digits: int) -> _Fields:
    del digits
    value = bits.astype(np.int64)
    day, clock = value // 1_000_000, value % 1_000_000
    parts = (clock // 10_000, clock // 100 % 100, clock % 100, np.zeros(len(bits), np.int64))
    return _Fields((day // 10_000, day // 100 % 100, day % 100), parts, _nowhere(bits), value < 0)


def _timestamp_old(bits: NDArray[np.uint64], digits: int) -> _Fields:
    del digits
    return _moment(bits.astype(np.int64), np.zeros(len(bits), np.int64))


def _time_old(bits: NDArray[np.uint64], digits: int) -> _Fields:
    del digits
    value = bits.astype(np.int64)
    value = np.where(value >= 0x80_0000, value - 0x100_0000, value)
    size = np.abs(value)
    parts = (size // 10_000, size // 100 % 100, size % 100, np.zeros(len(bits), np.int64))
    return _Fields((), parts, value < 0, _nowhere(bits))


def _clock(us: Ints) -> tuple[Ints, ...]:
    seconds = us // _US
    return seconds // 3600, seconds // 60 % 60, seconds % 60, us % _US


def _datetime_hires(bits: NDArray[np.uint64], digits: int) -> _Fields:
    value = bits.astype(np.int64) * 10 ** (6 - digits)
    days, us = value // (86_400 * _US), value % (86_400 * _US)
    month = days >> 5
    return _Fields((month // 13, month % 13, days & 31), _clock(us), _nowhere(bits), value < 0)


def _timestamp_hires(bits: NDArray[np.uint64], digits: int) -> _Fields:
    width = (0, 1, 1, 2, 2, 3, 3)[digits]
    value = bits.astype(np.int64)
    return _moment(value >> 8 * width, (value & ((1 << 8 * width) - 1)) * 10 ** (6 - digits))


def _time_hires(bits: NDArray[np.uint64], digits: int) -> _Fields:
    value = bits.astype(np.int64) * 10 ** (6 - digits) - (_HOURS_MAX + 1) * 3600 * _US
    return _Fields((), _clock(np.abs(value)), value < 0, _nowhere(bits))


_LOGGED: Final = {
    ops.DATE: _date,
    ops.DATETIME: _datetime,
    ops.TIMESTAMP: _timestamp,
    ops.TIME: _time,
    ops.DATETIME_OLD: _datetime_old,
    ops.TIMESTAMP_OLD: _timestamp_old,
    ops.TIME_OLD: _time_old,
    ops.DATETIME_HIRES: _datetime_hires,
    ops.TIMESTAMP_HIRES: _timestamp_hires,
    ops.TIME_HIRES: _time_hires,
}


def _moment(seconds: Ints, us: Ints) -> _Fields:
    """Seconds since 1970 in UTC; zero stands for 0000-00-00 00:00:00."""
    at = seconds.astype("datetime64[s]")
    days, months = at.astype("datetime64[D]"), at.astype("datetime64[M]")
    is_zero = seconds == 0
    year = months.astype("datetime64[Y]").astype(np.int64) + 1970
    month = months.astype(np.int64) % 12 + 1
    day = (days - months.astype("datetime64[D]")).astype(np.int64) + 1
    parts = tuple(np.where(is_zero, 0, part) for part in (year, month, day))
    clock = (seconds // 3600 % 24, seconds // 60 % 60, seconds % 60, np.where(is_zero, 0, us))
    return _Fields(parts, clock, _nowhere(seconds), _nowhere(seconds))


# From fields to text.


def _text(column: ColumnDefinition, fields: _Fields, raw: pa.Array, where: RowPlaces) -> pa.Array:
    is_there = pc.is_valid(raw).to_numpy(zero_copy_only=False)
    _check(column, fields, is_there, where)
    parts = list(_day_text(fields.day)) if fields.day else list(_hours_text(fields))
    if column.type not in _DATES:
        hour, minute, second, us = fields.clock
        parts += [" ", (hour, 2)] if fields.day else []
        parts += [":", (minute, 2), ":", (second, 2)]
        parts += [".", (us // 10 ** (6 - column.meta), column.meta)] if column.meta else []
    written = np.concatenate([_written(part, len(raw)) for part in parts], axis=1)
    bytes_max = written.size  # before any sum of lengths could overflow
    check_size(bytes_max if bytes_max <= _TEXT_BYTES_MAX else -1, column, where)
    if fields.day and not raw.null_count:  # all of one length
        offsets = np.arange(len(raw) + 1, dtype=np.int32) * np.int32(written.shape[1])
        text = written.reshape(-1)
    else:
        written[~is_there] = 0
        kept = written != 0
        offsets = np.zeros(len(raw) + 1, np.int32)
        np.cumsum(np.count_nonzero(kept, axis=1), out=offsets[1:])
        text = written[kept]
    return text_array(raw, pa.string(), pa.py_buffer(offsets), pa.py_buffer(text), len(text))


_PAIRS: Final = np.frombuffer("".join(f"{number:02}" for number in range(100)).encode(), np.uint8).reshape(100, 2)
_Part = str | tuple[Ints, int] | Bytes
"""A sign for each row; a number in so many digits; or characters, where 0 is none."""


def _day_text(day: tuple[Ints, ...]) -> tuple[_Part, ...]:
    year, month, number = day
    return (year, 4), "-", (month, 2), "-", (number, 2)


def _hours_text(fields: _Fields) -> tuple[_Part, ...]:
    """The sign and two digits of hours, or three."""
    hours = fields.clock[0]
    first = np.where(hours > 99, hours // 100 + ord("0"), 0).astype(np.uint8)
    sign = np.where(fields.is_negative, ord("-"), 0).astype(np.uint8)
    return sign[:, None], first[:, None], (hours % 100, 2)


def _written(part: _Part, rows: int) -> Bytes:
    if isinstance(part, str):
        return np.full((rows, 1), ord(part), np.uint8)
    if isinstance(part, np.ndarray):
        return part
    numbers, digits = part
    pairs = [_PAIRS[numbers // 100**place % 100] for place in reversed(range((digits + 1) // 2))]
    return np.concatenate(pairs, axis=1)[:, digits % 2 :]


def _check(column: ColumnDefinition, fields: _Fields, is_there: NDArray[np.bool_], where: RowPlaces) -> None:
    limits = _MOMENT_MAX if fields.day else (_HOURS_MAX, *_MOMENT_MAX[4:])
    is_wrong = fields.is_wrong.copy()
    for part, limit in zip((*fields.day, *fields.clock), limits, strict=True):
        is_wrong |= (part < 0) | (part > limit)
    is_wrong &= is_there
    if is_wrong.any():
        what = f"bytes that are no {column.column_type.upper()}"
        raise not_this_table(where.table, column.name, where.row(int(is_wrong.argmax())), what)
