"""Values in the words of MySQL's own text, which Maxwell and Canal both write: times of day, points in time, members.

What a column is in MySQL stands in its `db_type`. A column of another database has none of these words, and its times
are written with six digits.
"""

import re
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import UnrepresentableValue
from databus.formats._column_text import time_texts
from databus.schema import Column

_TIMES: Final = re.compile(r"(?:datetime|timestamp|time)(?:\((\d)\))?(?![a-z])", re.IGNORECASE)
_DIGITS_MAX: Final = 6
_HOUR_US: Final = 3_600_000_000
_SECONDS_LENGTH: Final = len("2026-07-01 12:00:00")
_CLOCK_AT: Final = len("2026-07-01 12:")
_CLOCK: Final = r"^(?P<sign>-?)(?P<hours>\d+):(?P<rest>\d\d:\d\d(?:\.\d+)?)$"


def kind_of(column: Column) -> str:
    """The first word of the database's type, in lower case: `set` of `SET('a','b')`.

    >>> kind_of(Column("a", "string", db_type="SET('a','b')"))
    'set'
    """
    match = re.match(r"[a-z0-9_]*", column.db_type.lower())
    return match[0] if match else ""


def digits_of(column: Column) -> int:
    """The digits after the second that the database has for a column of times.

    >>> [digits_of(Column("a", "timestamp", db_type=kind)) for kind in ("datetime", "TIMESTAMP(3) NULL", "")]
    [0, 3, 6]
    """
    match = _TIMES.match(column.db_type)
    return _DIGITS_MAX if match is None else int(match[1] or 0)


def is_clock(column: Column) -> bool:
    """Whether it is MySQL's TIME: a length of time, in microseconds."""
    return column.type == "int64" and kind_of(column) == "time"


def moment_texts(name: str, column: Column, values: pa.Array) -> pa.LargeStringArray:
    """Points in time as `2026-07-01 12:00:00.000001`, with as many digits as the column has; in UTC."""
    text = time_texts(name, values.cast(pa.timestamp("us")))
    text = pc.replace_substring(text, "T", " ")
    return pc.utf8_slice_codeunits(text, 0, _length(_kept_digits(column, values)))


def iso_texts(name: str, column: Column, values: pa.Array) -> pa.LargeStringArray:
    """Points in time as `2026-07-01T12:00:00.000001Z`, with as many digits as the column has."""
    text = pc.replace_substring(moment_texts(name, column, values), " ", "T")
    return pc.binary_join_element_wise(text, pa.scalar("Z", text.type), pa.scalar("", text.type))


def clock_texts(column: Column, values: pa.Array) -> pa.LargeStringArray:
    """Lengths of time as `-838:59:59.000000`."""
    large = pa.large_string()
    size = pc.abs_checked(values)
    hours = pc.divide(size, _HOUR_US)
    rest = pc.subtract(size, pc.multiply(hours, _HOUR_US)).cast(pa.timestamp("us")).cast(large)
    digits = _kept_digits(column, values)
    return pc.binary_join_element_wise(
        pc.if_else(pc.less(values, 0), pa.scalar("-", large), pa.scalar("", large)),
        pc.utf8_lpad(hours.cast(large), 2, "0"),
        pa.scalar(":", large),
        pc.utf8_slice_codeunits(rest, _CLOCK_AT, _length(digits)),
        pa.scalar("", large),
    )


def clock_values(texts: pa.Array) -> pa.Int64Array:
    """What `clock_texts` wrote, with any digits. Raises `UnrepresentableValue` for anything else."""
    parts = pc.extract_regex(texts, _CLOCK)
    if parts.null_count != texts.null_count:
        wrong = texts.filter(pc.and_(parts.is_null(), texts.is_valid()))[0].as_py()
        raise UnrepresentableValue(f"{wrong!r} is not a length of time such as -838:59:59.000000")
    sign, hours, rest = (pc.struct_field(parts, name) for name in ("sign", "hours", "rest"))
    of_day = pc.binary_join_element_wise("1970-01-01 00:", rest, "").cast(pa.timestamp("us")).cast(pa.int64())
    size = pc.add(pc.multiply_checked(hours.cast(pa.int64()), _HOUR_US), of_day)
    return pc.if_else(pc.equal(sign, "-"), pc.negate(size), size)


def _kept_digits(column: Column, values: pa.Array) -> int:
    """The column's digits, or all of them where a value has more: nothing is cut off."""
    digits = digits_of(column)
    numbers = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return _DIGITS_MAX if np.any(numbers % 10 ** (_DIGITS_MAX - digits)) else digits


def _length(digits: int) -> int:
    return _SECONDS_LENGTH + (digits + 1 if digits else 0)
