"""Avro's binary encoding to columns: one value of all messages at a time, with every bound checked."""

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.formats._buffers import bytes_of, spread
from databus.formats._twos_complement import decimals_from

_GROUP_BITS: Final = 7
_GROUPS_MAX: Final = 10
_UINT64_DIGITS: Final = 20

Wanted = npt.NDArray[np.bool_]


class AvroCursor:
    """Where the next value of each message begins. values: the messages, none of them null; numbers: what each is
    called in an error.

    wanted, of every method: for which messages to read a value; the others stay where they are, and have null.
    Raises `UnrepresentableValue` for a message that ends too soon, or holds what the type does not.
    """

    def __init__(self, values: pa.LargeBinaryArray, numbers: npt.NDArray[np.int64]) -> None:
        self._held = np.frombuffer(bytes_of(values), np.uint8)
        offsets = np.append(0, np.cumsum(pa.compute.binary_length(values).to_numpy())).astype(np.int64)
        self._at, self._ends, self._numbers = offsets[:-1].copy(), offsets[1:], numbers

    def everywhere(self) -> Wanted:
        """All messages."""
        return np.ones(len(self._at), np.bool_)

    def longs(self, wanted: Wanted) -> npt.NDArray[np.int64]:
        """Integers; 0 where none is wanted."""
        bits = np.zeros(len(self._at), np.uint64)
        active = np.flatnonzero(wanted)
        for group in range(_GROUPS_MAX):
            if not len(active):
                break
            self._check(active, 1)
            octet = self._held[self._at[active]]
            bits[active] |= (octet & 0x7F).astype(np.uint64) << np.uint64(_GROUP_BITS * group)
            self._at[active] += 1
            active = active[octet >= 0x80]
        self._refuse(active, "an integer of more than ten bytes")
        return (bits >> np.uint64(1)).view(np.int64) ^ -(bits & np.uint64(1)).view(np.int64)

    def present(self, wanted: Wanted, null_branch: int = 0) -> Wanted:
        """Which messages have a value of `["null", type]`, or of `[type, "null"]`."""
        branch = self.longs(wanted)
        self._refuse(np.flatnonzero(branch >> 1 != 0), "a branch that the union does not have")
        has_value: Wanted = wanted & (branch != null_branch)
        return has_value

    def octets(self, wanted: Wanted) -> pa.LargeBinaryArray:
        """Bytes behind their length."""
        lengths = self.longs(wanted)
        self._refuse(np.flatnonzero((lengths < 0) | (lengths > self._ends - self._at)), "a length beyond its end")
        held = self._held[spread(self._at, lengths)]
        self._at += lengths
        offsets = np.append(0, np.cumsum(lengths))
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(lengths), [_bits(wanted), pa.py_buffer(offsets), pa.py_buffer(held)]
        )

    def column(self, kind: pa.DataType, wanted: Wanted) -> pa.Array:
        """The values of a column of this Arrow type, as `_avro_writing.encoded` writes them."""
        try:
            return self._column(kind, wanted)
        except pa.ArrowInvalid as error:
            first, last = self._numbers[[0, -1]]
            raise UnrepresentableValue(f"one of the messages {first} to {last} holds no {kind}: {error}") from error

    def _column(self, kind: pa.DataType, wanted: Wanted) -> pa.Array:
        if pa.types.is_uint64(kind):
            return decimals_from(self.octets(wanted), pa.decimal128(_UINT64_DIGITS, 0)).cast(kind)
        if pa.types.is_decimal(kind):
            return decimals_from(self.octets(wanted), kind)
        if pa.types.is_binary(kind) or pa.types.is_string(kind):
            return self.octets(wanted).cast(kind)
        if pa.types.is_floating(kind):
            return self._fixed("<f4" if kind.bit_width == 32 else "<f8", wanted).cast(kind)
        if pa.types.is_boolean(kind):
            octets = self._fixed("u1", wanted)
            self._refuse(np.flatnonzero(octets.fill_null(0).to_numpy() > 1), "a boolean that is none")
            return octets.cast(kind)
        numbers = pa.array(self.longs(wanted), mask=~wanted)
        return numbers.cast(pa.int32()).cast(kind) if pa.types.is_date(kind) else numbers.cast(kind)

    def finish(self) -> None:
        """Raises `UnrepresentableValue` where something follows the last value."""
        self._refuse(np.flatnonzero(self._at != self._ends), "bytes after its last value: another schema wrote it")

    def _fixed(self, kind: str, wanted: Wanted) -> pa.Array:
        size = np.dtype(kind).itemsize
        chosen = np.flatnonzero(wanted)
        self._check(chosen, size)
        held = self._held[(self._at[chosen, None] + np.arange(size)).reshape(-1)]
        numbers: npt.NDArray[Any] = np.zeros(len(wanted), kind)
        numbers[chosen] = np.ascontiguousarray(held).view(kind)
        self._at[chosen] += size
        return pa.array(numbers, mask=~wanted)

    def _check(self, active: npt.NDArray[np.int64], size: int) -> None:
        self._refuse(active[self._ends[active] - self._at[active] < size], "no more bytes where a value is to be")

    def _refuse(self, wrong: npt.NDArray[np.int64], what: str) -> None:
        if len(wrong):
            raise UnrepresentableValue(f"message {self._numbers[wrong[0]]} is not of this Avro schema: it has {what}")


def _bits(wanted: Wanted) -> pa.Buffer | None:
    return None if wanted.all() else pa.array(wanted).buffers()[1]
