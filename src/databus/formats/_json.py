"""Values as JSON, exactly: what `curl` sees, what control bodies carry, what files hold.

Integers are exact JSON integers; decimals and non-finite numbers are strings; binary is base64; timestamps are ISO
with microseconds (with Z where they are UTC), dates ISO; text is text.
"""

import base64
import datetime as dt
import json
import math
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.schema import converted, forms_of


def answer_in_json(text: str | bytes) -> Any:
    """What another process answers in JSON. Raises `ValueError` for anything else: Python also reads NaN and 1e999, and
    would pass them on to browsers, which do not.

    >>> answer_in_json('{"rows": NaN}')
    Traceback (most recent call last):
    ValueError: NaN is no JSON
    """
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is no JSON")
    return value


def to_json_value(value: Any) -> Any:
    """One value, as Python holds it, as JSON holds it.

    >>> to_json_value(Decimal("1.50")), to_json_value(float("inf")), to_json_value(b"ab")
    ('1.50', 'Infinity', 'YWI=')
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else _name_of_non_finite(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dt.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return text if value.tzinfo is None else f"{text}Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _name_of_non_finite(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def from_json_value(value: Any, type_name: str) -> Any:
    """The value of a column of type `type_name` that `to_json_value` wrote. Raises `UnrepresentableValue` for anything
    else.

    >>> from_json_value("1.50", "decimal(4,2)")
    Decimal('1.50')
    """
    if value is None:
        return None
    arrow = forms_of(type_name).arrow
    try:
        return _parse(value, arrow)
    except (ValueError, TypeError, InvalidOperation) as error:
        raise UnrepresentableValue(f"{value!r} is not the JSON form of a {type_name}") from error


def scalar_of(value: Any, types: Sequence[str]) -> pa.Scalar:
    """The value of a column whose type has been each of `types` in turn, as Arrow: in JSON form of the first of them.

    Raises `UnrepresentableValue` if a type cannot hold it.
    """
    first = pa.array([from_json_value(value, types[0])], forms_of(types[0]).arrow)
    values = converted(pa.chunked_array([first]), [forms_of(name).arrow for name in types[1:]])
    if values is None:
        raise UnrepresentableValue(
            f"{value!r} of a {types[0]} is not exactly a value of {' and then '.join(types[1:])}"
        )
    return values[0]


def _parse(value: Any, arrow: pa.DataType) -> Any:
    if pa.types.is_decimal(arrow):
        return Decimal(value)
    if pa.types.is_floating(arrow):
        return float(value)
    if pa.types.is_binary(arrow):
        return base64.b64decode(value, validate=True)
    if pa.types.is_date(arrow):
        return dt.date.fromisoformat(value)
    if pa.types.is_timestamp(arrow):
        parsed = dt.datetime.fromisoformat(value)
        return parsed.astimezone(dt.UTC) if arrow.tz is not None else parsed
    if pa.types.is_boolean(arrow) and not isinstance(value, bool):
        raise ValueError(value)
    if pa.types.is_integer(arrow) and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(value)
    if pa.types.is_string(arrow) and not isinstance(value, str):
        raise ValueError(value)
    return value
