"""Columns in Avro's binary encoding (Avro 1.12, "Binary encoding"), a whole column at a time."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.formats._twos_complement import twos_complement

_UINT64_DIGITS: Final = 20
_GROUP_BITS: Final = 7
_GROUPS_MAX: Final = 10
_OCTETS: Final = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
_NULL, _VALUE = b"\x00", b"\x02"  # the branches of ["null", type]


def joined_bytes(*pieces: "bytes | pa.LargeBinaryArray") -> pa.LargeBinaryArray:
    """Constants and columns, one after the other; at least one is a column."""
    binary = pa.large_binary()
    parts = [pa.scalar(piece, binary) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", binary))


def longs(numbers: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Integers in zigzag, seven bits a byte, the lowest first."""
    rest = (numbers.astype(np.int64) << 1 ^ numbers.astype(np.int64) >> 63).view(np.uint64)
    counts = np.ones(len(rest), np.int64)
    for group in range(1, _GROUPS_MAX):
        longer = rest >= np.uint64(1) << np.uint64(_GROUP_BITS * group)
        if not longer.any():
            break
        counts += longer
    width = int(counts.max(initial=1))
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(_GROUP_BITS)
    groups = (rest[:, None] >> shifts & np.uint64(0x7F)).astype(np.uint8)
    places = np.arange(width)
    groups[places < counts[:, None] - 1] |= 0x80
    return _binary(groups[places < counts[:, None]], np.append(0, np.cumsum(counts)))


def octets(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Bytes or UTF-8 behind their length; null stays null."""
    return joined_bytes(longs(pc.binary_length(values).fill_null(0).to_numpy()), values)


def nullable(values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Encoded values as those of `["null", type]`."""
    return pc.coalesce(joined_bytes(_VALUE, values), pa.scalar(_NULL, pa.large_binary()))


def constant(text: str) -> bytes:
    """A string that is the same in all messages."""
    octets = text.encode()
    content: bytes = longs(np.array([len(octets)]))[0].as_py() + octets
    return content


def encoded(values: pa.Array) -> pa.LargeBinaryArray:  # noqa: PLR0911 - one for each kind
    """A column's values as its Avro type (`forms_of`) has them; null stays null."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return encoded(values.dictionary).take(values.indices)
    if pa.types.is_uint64(kind):
        return octets(twos_complement(values.cast(pa.decimal128(_UINT64_DIGITS, 0))))
    if pa.types.is_decimal(kind):
        return octets(twos_complement(values))
    if any(holds(kind) for holds in _OCTETS):
        return octets(values.cast(pa.large_binary()))
    if pa.types.is_boolean(kind):
        return _with_nulls(_fixed(values.cast(pa.uint8()), np.uint8), values)
    if pa.types.is_floating(kind):
        return _with_nulls(_fixed(values, "<f4" if kind.bit_width == 32 else "<f8"), values)
    numbers = values.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date(kind) else values.cast(pa.int64())
    return _with_nulls(longs(numbers.fill_null(0).to_numpy(zero_copy_only=False)), values)


def _fixed(values: pa.Array, kind: Any) -> pa.LargeBinaryArray:
    held = np.ascontiguousarray(values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind))
    return _binary(held.view(np.uint8), np.arange(len(held) + 1) * held.itemsize)


def _binary(held: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(np.ascontiguousarray(held))]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _with_nulls(cells: pa.LargeBinaryArray, values: pa.Array) -> pa.LargeBinaryArray:
    if not values.null_count:
        return cells
    return pc.if_else(values.is_valid(), cells, pa.scalar(None, pa.large_binary()))
