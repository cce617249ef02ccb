"""Canonical key bytes: the bytes by which keys are the same or not, and from which buckets and partitions are made.

Equal keys have equal bytes, whatever Arrow type holds them: a key keeps its bytes when its column widens, or when an
output stores it in another type. The specification, with test vectors, is docs/key-bytes.md. `_key_hash` makes buckets.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import ConfigError
from databus.schema._types import DECIMAL_PRECISION_MAX

_INT64: Final = 8
_LARGE: Final = 17  # a byte for the scale, 16 for the number
_NULL_PART: Final = b"\xff\xff\xff\xff"
_LIMB_BITS: Final = np.uint64(32)
_LIMB: Final = np.uint64(0xFFFFFFFF)


def key_bytes(columns: Sequence[pa.Array | pa.ChunkedArray]) -> pa.LargeBinaryArray:
    """The canonical bytes of each row's key. columns: those of the key, in key order, of equal length.

    A key of one column that is null has no bytes: null. Raises `ConfigError` for a column of no known type.
    """
    if not columns:
        raise ConfigError("a key has at least one column")
    parts = [_bytes_of(_one_array(column)) for column in columns]
    if len(parts) == 1:
        return parts[0]
    framed: list[pa.Array | pa.Scalar] = []
    for part in parts:
        framed += [_lengths(part), pc.fill_null(part, b"")]
    return pc.binary_join_element_wise(*framed, pa.scalar(b"", pa.large_binary()))


def key_form(kind: pa.DataType) -> str:
    """How values of this type become bytes: `number`, `float`, `days`, `micros` or `octets`.

    Only within one form are bytes comparable. Raises `ConfigError` for a type that no column has.
    """
    for form, (belongs, _) in _FORMS.items():
        if belongs(kind):
            return form
    raise ConfigError(f"{kind}: columns of this type cannot be part of a key")


def _one_array(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()  # one array, or several where one cannot hold it
        if isinstance(values, pa.ChunkedArray):
            values = pa.concat_arrays(values.cast(_large(values.type)).chunks)
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def _large(kind: pa.DataType) -> pa.DataType:
    return pa.large_binary() if _is_octets(kind) else kind


def _bytes_of(values: pa.Array) -> pa.LargeBinaryArray:
    return _FORMS[key_form(values.type)][1](values)


def _number_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    if values.type == pa.uint64() or pa.types.is_decimal(values.type):
        return _decimal_bytes(values)
    if values.type == pa.bool_():
        values = values.cast(pa.int8())
    return _fixed(values.cast(pa.int64()))


def _float_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    numbers = _numbers(values.cast(pa.float64()), np.float64) + 0.0  # -0.0 becomes 0.0
    numbers[np.isnan(numbers)] = np.nan
    return _fixed(pa.array(numbers).view(pa.int64()), _validity(values))


def _day_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    return _fixed(values.cast(pa.int32()).cast(pa.int64()))


def _micro_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    return _fixed(values.cast(pa.timestamp("us", values.type.tz)).cast(pa.int64()))


def _octets(values: pa.Array) -> pa.LargeBinaryArray:
    return values.cast(pa.large_binary())


def _is_octets(kind: pa.DataType) -> bool:
    return kind in (
        pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()
    ) or pa.types.is_fixed_size_binary(kind)  # fmt: skip


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind))


_Belongs = Callable[[pa.DataType], bool]
_Writer = Callable[[pa.Array], pa.LargeBinaryArray]
_FORMS: Final[dict[str, tuple[_Belongs, _Writer]]] = {
    "number": (_is_number, _number_bytes),
    "float": (pa.types.is_floating, _float_bytes),
    "days": (pa.types.is_date32, _day_bytes),
    "micros": (pa.types.is_timestamp, _micro_bytes),
    "octets": (_is_octets, _octets),
}


def _validity(values: pa.Array) -> npt.NDArray[np.bool_] | None:
    return np.asarray(values.is_valid()) if values.null_count else None


def _numbers(values: pa.Array, kind: Any) -> npt.NDArray[Any]:
    """The values of a type of fixed width; whatever the buffer holds where one is null."""
    data = values.buffers()[1]
    if data is None:
        return np.zeros(0, kind)
    return np.frombuffer(data, kind)[values.offset : values.offset + len(values)]


def _fixed(values: pa.Array, valid: npt.NDArray[np.bool_] | None = None) -> pa.LargeBinaryArray:
    """int64 values as eight bytes each, big-endian."""
    if valid is None:
        valid = _validity(values)
    octets = _numbers(values, np.int64).astype(">i8")
    return _large_binary(np.arange(len(values) + 1, dtype=np.int64) * _INT64, octets, valid)


def _large_binary(
    offsets: npt.NDArray[np.int64], octets: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None
) -> pa.LargeBinaryArray:
    bitmap = None if valid is None else pa.array(valid).buffers()[1]
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(octets)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _lengths(part: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """The length of each element in four bytes, big-endian; `_NULL_PART` for null."""
    lengths = np.asarray(pc.fill_null(pc.binary_length(part), -1)).astype(">i4")
    offsets = np.arange(len(lengths) + 1, dtype=np.int64) * len(_NULL_PART)
    return _large_binary(offsets, lengths, None)


def _decimal_bytes(values: pa.Array) -> pa.LargeBinaryArray:
    """Exact numbers that may have a fraction, or be too large for int64."""
    scale = max(values.type.scale, 0) if pa.types.is_decimal(values.type) else 0
    wide = values.cast(pa.decimal128(DECIMAL_PRECISION_MAX, scale))
    valid = _validity(wide)
    halves = _numbers_wide(wide)
    low, high = halves[:, 0].copy(), halves[:, 1].copy()
    if valid is not None:
        low[~valid] = high[~valid] = 0
    scales = _strip_zeros(low, high, scale) if scale else np.zeros(len(low), np.int64)
    is_small = (scales == 0) & (high == (low.view(np.int64) >> 63).view(np.uint64))
    if is_small.all():
        return _fixed(pa.array(low.view(np.int64)), valid)
    offsets = np.zeros(len(low) + 1, np.int64)
    np.cumsum(np.where(is_small, _INT64, _LARGE), out=offsets[1:])
    octets = np.empty(offsets[-1], np.uint8)
    _scatter(octets, offsets[:-1][is_small], low[is_small])
    starts = offsets[:-1][~is_small]
    octets[starts] = scales[~is_small].astype(np.uint8)
    _scatter(octets, starts + 1, high[~is_small])
    _scatter(octets, starts + 9, low[~is_small])
    return _large_binary(offsets, octets, valid)


def _numbers_wide(values: pa.Array) -> npt.NDArray[np.uint64]:
    """The two halves of each decimal128, the lower first."""
    data = values.buffers()[1]
    halves = np.frombuffer(data, "<u8") if data is not None else np.zeros(0, np.uint64)
    return halves.reshape(-1, 2)[values.offset : values.offset + len(values)]


def _scatter(octets: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], values: npt.NDArray[np.uint64]) -> None:
    """Write each value at its start, in eight bytes, big-endian."""
    octets[starts[:, None] + np.arange(_INT64)] = values.astype(">u8").view(np.uint8).reshape(-1, _INT64)


def _strip_zeros(low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], scale: int) -> npt.NDArray[np.int64]:
    """Divide each 128-bit number by ten, in place, while that is exact and its scale above 0. Returns the scales."""
    scales = np.full(len(low), scale, np.int64)
    rows = np.arange(len(low))
    for _ in range(scale):
        a, b = low[rows], high[rows]
        is_negative = b >> np.uint64(63) == 1
        a, b = _negated(a, b, is_negative)
        a, b, rest = _tenth(a, b)
        exact = rest == 0
        rows = rows[exact]
        if not len(rows):
            break
        low[rows], high[rows] = _negated(a[exact], b[exact], is_negative[exact])
        scales[rows] -= 1
    return scales


def _negated(
    low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64], where: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """-x of the 128-bit numbers that are chosen."""
    carry = (low == 0).astype(np.uint64)
    return np.where(where, ~low + np.uint64(1), low), np.where(where, ~high + carry, high)


def _tenth(
    low: npt.NDArray[np.uint64], high: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """128-bit numbers divided by ten: both halves, and what remains."""
    ten = np.uint64(10)
    rest = high % ten
    high = high // ten
    upper = (rest << _LIMB_BITS) | (low >> _LIMB_BITS)
    lower = ((upper % ten) << _LIMB_BITS) | (low & _LIMB)
    return ((upper // ten) << _LIMB_BITS) | (lower // ten), high, lower % ten
