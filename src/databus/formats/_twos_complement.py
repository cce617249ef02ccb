"""Exact numbers as bytes, big-endian, two's complement, as few as hold them: Java's `BigInteger.toByteArray`.

Connect's and Avro's decimals are written so; the scale stands in the schema.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import UnrepresentableValue
from databus.formats._buffers import bytes_without_nulls, places_of, spread, validity_of

_WIDTH: Final = 16


def twos_complement(values: pa.Decimal128Array) -> pa.LargeBinaryArray:
    """The unscaled value of each decimal, without leading bytes that say nothing; null stays null."""
    count = len(values)
    raw = np.frombuffer(values.buffers()[1], np.uint8)[values.offset * _WIDTH : (values.offset + count) * _WIDTH]
    digits = raw.reshape(count, _WIDTH)[:, ::-1]
    fill = np.where(digits[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    firsts = np.argmax(np.column_stack([digits != fill, np.ones(count, bool)]), axis=1)
    firsts = np.minimum(firsts, _WIDTH - 1)
    has_sign = (digits[np.arange(count), firsts] >= 0x80) == (fill[:, 0] == 0xFF)
    firsts = np.where(has_sign, firsts, firsts - 1)
    lengths = np.where(values.is_valid().to_numpy(zero_copy_only=False), _WIDTH - firsts, 0)
    is_kept = np.arange(_WIDTH) >= (_WIDTH - lengths)[:, None]
    held = np.ascontiguousarray(digits)[is_kept]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        count,
        [validity_of(values), pa.py_buffer(np.append(0, np.cumsum(lengths))), pa.py_buffer(held)],
        values.null_count,
    )


def decimals_from(values: pa.LargeBinaryArray, kind: pa.Decimal128Type) -> pa.Decimal128Array:
    """What `twos_complement` wrote, with any leading bytes of the sign up to 16 in all.

    Raises `UnrepresentableValue` for a number that the type does not hold.
    """
    lengths = pc.binary_length(values).fill_null(0).to_numpy().astype(np.int64)
    if (lengths > _WIDTH).any() or (lengths[values.is_valid().to_numpy(zero_copy_only=False)] == 0).any():
        raise UnrepresentableValue(f"a number of {lengths.max()} bytes is not a {kind}")
    starts, _ = places_of(lengths)
    held = np.frombuffer(bytes_without_nulls(values), np.uint8)
    digits = np.zeros((len(values), _WIDTH), np.uint8)
    if len(held):
        is_there = lengths > 0
        digits[is_there] = np.where(held[starts[is_there]] >= 0x80, np.uint8(0xFF), np.uint8(0))[:, None]
        digits.reshape(-1)[spread((np.arange(len(values)) + 1) * _WIDTH - lengths, lengths)] = held
    widest = pa.decimal128(38, kind.scale)
    buffers = [validity_of(values), pa.py_buffer(np.ascontiguousarray(digits[:, ::-1]))]
    numbers = pa.Array.from_buffers(widest, len(values), buffers, values.null_count)
    try:
        numbers.validate(full=True)
        return numbers.cast(kind)
    except pa.ArrowInvalid as error:
        raise UnrepresentableValue(f"a number is not a {kind}: {error}") from error
