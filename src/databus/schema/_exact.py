"""Which Arrow types hold each value of another, and whether given values come through a change of type unchanged."""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_DIGITS: Final = {
    pa.int8(): 3,
    pa.int16(): 5,
    pa.int32(): 10,
    pa.int64(): 19,
    pa.uint8(): 3,
    pa.uint16(): 5,
    pa.uint32(): 10,
    pa.uint64(): 20,
}


def widens_to(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether each value of `old` is exactly a value of `new`.

    >>> widens_to(pa.int64(), pa.decimal128(20, 0)), widens_to(pa.int64(), pa.float64())
    (True, False)
    """
    if old == new:
        return True
    if old in _DIGITS and new in _DIGITS:
        if pa.types.is_signed_integer(old) != pa.types.is_signed_integer(new):
            return bool(pa.types.is_signed_integer(new) and old.bit_width < new.bit_width)
        return bool(old.bit_width <= new.bit_width)
    if pa.types.is_decimal(new):
        whole = new.precision - new.scale
        if pa.types.is_decimal(old):
            return bool(new.scale >= old.scale and whole >= old.precision - old.scale)
        return old in _DIGITS and whole >= _DIGITS[old]
    return bool(old == pa.float32() and new == pa.float64())


def converts_exactly(values: pa.ChunkedArray | pa.Array, new: pa.DataType) -> bool:
    """Whether these values, numbers to numbers, are the same in `new`; between other types, never."""
    old = values.type
    if widens_to(old, new):
        return True
    if not (_is_number(old) and _is_number(new)):
        return False
    try:
        converted = values.cast(new, safe=True)
        back = converted.cast(old, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    same = pc.fill_null(pc.equal(back, values), pc.is_null(values))
    return bool(pc.all(same).as_py() in (True, None))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def converted(values: pa.ChunkedArray, kinds: Sequence[pa.DataType]) -> pa.ChunkedArray | None:
    """The values through each of these types in turn; None if one of them cannot hold them all exactly."""
    for kind in kinds:
        if values.type == kind:
            continue
        if not converts_exactly(values, kind):
            return None
        values = values.cast(kind)
    return values
