"""Columns as JSON, a whole column at a time: each value's text as `json.dumps` writes its `to_json_value`, to the byte.

What Arrow writes otherwise than Python (a float with an exponent, a decimal such as 1E-8, base64) is written by Python,
value by value, where it occurs.
"""

import json
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import UnrepresentableValue
from databus.formats._base64 import base64_texts
from databus.formats._buffers import bytes_of
from databus.formats._json import to_json_value

SAFE_INTEGER_MAX: Final = (1 << 53) - 1
_TEXT: Final = pa.large_string()  # a row may be long, and many of them are one array
_DATE_LENGTH: Final = len("2026-07-01")
_TIME_LENGTH: Final = len("2026-07-01T12:00:00.000000")
_CONTROLS_END: Final = 0x20
_MARKS: Final = (ord("\\"), ord('"'))  # in this order: escaping anything brings backslashes
_PLAIN_FLOATS: Final = (1e-4, 1e16)  # where Python writes no exponent


@cache
def _word(text: str) -> pa.Scalar:
    """A constant of this module; made when it is used, since making the first one has Arrow import pandas."""
    return pa.scalar(text, _TEXT)


def texts_of(name: str, column: pa.Array, *, big_in_string: bool) -> pa.Array:
    """The values of a column as JSON; none of them is null. name: of the column, for an error.

    big_in_string: integers that a double cannot hold as strings. Raises `UnrepresentableValue` for a time outside the
    years 0 to 9999.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        words = texts_of(name, column.dictionary, big_in_string=big_in_string)
        return pc.coalesce(words.take(column.indices), _word("null"))
    if pa.types.is_null(kind):
        return pa.repeat(_word("null"), len(column))
    if pa.types.is_integer(kind):
        text = _integers(column, big_in_string=big_in_string)
    elif pa.types.is_boolean(kind):
        text = column.cast(_TEXT)
    elif pa.types.is_string(kind):
        text = quoted(escaped(column.cast(_TEXT)))
    elif pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        text = quoted(time_texts(name, column))
    elif pa.types.is_float64(kind) or pa.types.is_float32(kind):
        text = _floats(column.cast(pa.float64()))
    elif pa.types.is_decimal128(kind) or pa.types.is_decimal256(kind):
        text = quoted(decimal_texts(column))
    elif pa.types.is_binary(kind):
        text = quoted(base64_texts(column))
    else:
        text = _by_value(column, lambda value: json.dumps(to_json_value(value), ensure_ascii=False, allow_nan=False))
    return pc.coalesce(text, _word("null"))


def time_texts(name: str, column: pa.Array) -> pa.Array:
    """Dates, or times, as text, all of one length: that of a year with four digits."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz == "UTC":  # Arrow looks the zone up for each value
        return pc.binary_join_element_wise(
            time_texts(name, column.cast(pa.timestamp(kind.unit))), _word("Z"), _word("")
        )
    text = column.cast(_TEXT)
    length = _DATE_LENGTH
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(text, " ", "T")
        length = _TIME_LENGTH + (kind.tz is not None)
    lengths = pc.min_max(pc.utf8_length(text)).as_py()
    if any(extreme not in (None, length) for extreme in lengths.values()):
        raise UnrepresentableValue(f"{name}: holds a time outside the years 0 to 9999, for which there is no text")
    return text


def escaped(column: pa.LargeStringArray) -> pa.LargeStringArray:
    """Text as it stands between the quotes of a JSON string."""
    held = np.frombuffer(bytes_of(column), np.uint8)
    is_control = held < _CONTROLS_END
    controls = np.unique(held[is_control]).tolist() if is_control.any() else []
    for code in (*(code for code in _MARKS if (held == code).any()), *controls):  # the backslash first
        column = pc.replace_substring(column, chr(code), json.dumps(chr(code))[1:-1])
    return column


def quoted(column: pa.Array) -> pa.Array:
    """Text between quotes, as it stands."""
    return pc.binary_join_element_wise(_word('"'), column, _word('"'), _word(""))


def _integers(column: pa.Array, *, big_in_string: bool) -> pa.Array:
    text = column.cast(_TEXT)
    if not big_in_string or column.type.bit_width < 64:
        return text
    low, high = pc.min_max(column).as_py().values()
    if low is None or -SAFE_INTEGER_MAX <= low <= high <= SAFE_INTEGER_MAX:
        return text
    is_big = pc.greater(column, pa.scalar(SAFE_INTEGER_MAX, column.type))
    if pa.types.is_signed_integer(column.type):
        is_big = pc.or_(is_big, pc.less(column, pa.scalar(-SAFE_INTEGER_MAX, column.type)))
    return pc.if_else(is_big, quoted(text), text)


def _floats(column: pa.Array) -> pa.Array:
    values = np.abs(column.fill_null(0.0).to_numpy(zero_copy_only=False))
    low, high = _PLAIN_FLOATS
    text = column.cast(_TEXT)
    text = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, _word(".0"), _word("")))
    is_plain = (((values >= low) & (values < high)) | (values == 0.0)) & ~_holds(text, "e")
    return _mended(column, text, ~is_plain, lambda value: json.dumps(to_json_value(value)))


def decimal_texts(column: pa.Array) -> pa.Array:
    """Decimals with all their digits and no exponent."""
    text = column.cast(pa.string()).cast(_TEXT)
    return _mended(column, text, _holds(text, "E"), _decimal_text)


def _holds(text: pa.Array, piece: str) -> npt.NDArray[np.bool_]:
    flags: npt.NDArray[np.bool_] = pc.match_substring(text, piece).fill_null(False).to_numpy(zero_copy_only=False)
    return flags


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _mended(column: pa.Array, text: pa.Array, is_other: npt.NDArray[np.bool_], write: Callable[[Any], str]) -> pa.Array:
    """`text` with that of Python where Arrow's is another."""
    if not is_other.any():
        return text
    mask = pa.array(is_other)
    return pc.replace_with_mask(text, mask, _by_value(column.filter(mask), write))


def _by_value(column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    return pa.array([None if value is None else write(value) for value in column.to_pylist()], _TEXT)
