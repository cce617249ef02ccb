"""Parts of kernels: the shortest decimal digits of a double, by Raffaello Giulietti's Schubfach."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from databus.sources.mysql._compile import small
from databus.sources.mysql.rows._memory import load64, lshr, umulh

_POWER_MIN, _POWER_MAX = -292, 324
_SIGN: Final = -0x8000000000000000
_FRACTION: Final = (1 << 52) - 1


def _upper_bits(power: int) -> int:
    """The upper 128 bits of 10 ** power, rounded up where they are not all."""
    value: int = 10 ** abs(power)
    if power >= 0:
        shift = value.bit_length() - 128
        return -(-value >> shift) if shift > 0 else value << -shift
    return -((-1 << value.bit_length() + 127) // value)


def _table() -> NDArray[np.int64]:
    words: list[int] = []
    for power in range(_POWER_MIN, _POWER_MAX + 1):
        value = _upper_bits(power)
        words += [value >> 64, value & (1 << 64) - 1]
    return np.array(words, dtype=np.uint64).view(np.int64)


POWERS: Final = _table()
"""For the kernel: pairs of upper and lower words."""


@small
def _rounded_to_odd(upper: int, lower: int, factor: int) -> int:
    carried = umulh(lower, factor)
    low = upper * factor + carried
    high = umulh(upper, factor) + (1 if (low ^ _SIGN) < (carried ^ _SIGN) else 0)
    return high | (1 if low & ~1 else 0)


@small
def shortest(bits: int, powers: int) -> tuple[int, int]:
    """A positive finite double as digits and the power of ten that they are to be multiplied with."""
    fraction, exponent = bits & _FRACTION, lshr(bits, 52) & 0x7FF
    if exponent:
        c, q = fraction | _FRACTION + 1, exponent - 1075
        if -52 <= q <= 0 and c & ((1 << -q) - 1) == 0:
            return c >> -q, 0
    else:
        c, q = fraction, -1074
    is_odd = c & 1
    is_closer = 1 if fraction == 0 and exponent > 1 else 0
    k = (q * 1262611 - (524031 if is_closer else 0)) >> 22
    h = q + ((-k * 1741647) >> 19) + 1
    at = powers + 16 * (-k - _POWER_MIN)
    upper, lower = load64(at), load64(at + 8)
    low = _rounded_to_odd(upper, lower, (4 * c - 2 + is_closer) << h) + is_odd
    value = _rounded_to_odd(upper, lower, 4 * c << h)
    high = _rounded_to_odd(upper, lower, (4 * c + 2) << h) - is_odd
    s = value >> 2
    if s >= 10:
        tens = s // 10
        below, above = low <= 40 * tens, 40 * tens + 40 <= high
        if below != above:
            return tens + (1 if above else 0), k + 1
    below, above = low <= 4 * s, 4 * s + 4 <= high
    if below != above:
        return s + (1 if above else 0), k
    middle = 4 * s + 2
    return s + (1 if value > middle or (value == middle and s & 1) else 0), k
