"""What the kernels are made with: words of memory by address.

A kernel takes arrays and turns them into addresses at once (`address`): Numba counts references to arrays wherever one
is passed on or sliced, which costs more than decoding a value. Everything is int64 in and out, so that no unsigned
number meets a signed one (Numba would make them floats); `lshr` and `umulh` are the operations for which the sign
matters. Nothing here checks a bound: the caller has, before.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from databus.sources.mysql._compile import small

Bytes = NDArray[np.uint8]
Words = NDArray[np.int64]

HIGH_BITS: Final = -0x7F7F7F7F7F7F7F80  # 0x8080808080808080: set in a word of ASCII never

_intrinsic: Any = intrinsic  # whose type says that none of the arguments is the compiler's
_struct: Any = cgutils.create_struct_proxy
_I64: Final = ir.IntType(64)


def _address(_typing: Any, array: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = _struct(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, _I64)

    return types.int64(array), generate


def _loads(bits: int, *, swaps: bool) -> Callable[[int], int]:
    word = ir.IntType(bits)

    def load(_typing: Any, _at: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], word.as_pointer()), align=1)
            if swaps:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, _I64)

        return types.int64(types.int64), generate

    load.__name__ = f"load{bits}{'be' if swaps else ''}"
    return _intrinsic(load)  # type: ignore[no-any-return]


def _stores(bits: int) -> Callable[[int, int], None]:
    word = ir.IntType(bits)

    def store(_typing: Any, _at: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = args[1] if bits == 64 else builder.trunc(args[1], word)
            builder.store(value, builder.inttoptr(args[0], word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), generate

    store.__name__ = f"store{bits}"
    return _intrinsic(store)  # type: ignore[no-any-return]


load8: Final = _loads(8, swaps=False)
load16: Final = _loads(16, swaps=False)
load32: Final = _loads(32, swaps=False)
load64: Final = _loads(64, swaps=False)
load16be: Final = _loads(16, swaps=True)
load32be: Final = _loads(32, swaps=True)
load64be: Final = _loads(64, swaps=True)
store8: Final = _stores(8)
store16: Final = _stores(16)
store32: Final = _stores(32)
store64: Final = _stores(64)


def _lshr(_typing: Any, _value: Any, _count: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.lshr(*args)

    return types.int64(types.int64, types.int64), generate


def _umulh(_typing: Any, _a: Any, _b: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)

    return types.int64(types.int64, types.int64), generate


address: Final[Callable[[NDArray[Any]], int]] = _intrinsic(_address)
"""Where an array's first item is. The caller keeps the array."""

lshr: Final[Callable[[int, int], int]] = _intrinsic(_lshr)
"""A value as 64 bits without sign, shifted right by 0..63."""

umulh: Final[Callable[[int, int], int]] = _intrinsic(_umulh)
"""The upper 64 bits of the product of two numbers without sign."""


def _copy32(_typing: Any, _to: Any, _at: Any) -> Any:
    words = ir.VectorType(_I64, 4).as_pointer()

    def generate(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = builder.load(builder.inttoptr(args[1], words), align=1)
        builder.store(value, builder.inttoptr(args[0], words), align=1)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64), generate


copy32: Final[Callable[[int, int], None]] = _intrinsic(_copy32)
"""Copy 32 bytes to the first address from the second."""


@small
def load24(at: int) -> int:
    """Three bytes."""
    return load16(at) | load8(at + 2) << 16


@small
def load24be(at: int) -> int:
    """Three bytes, the first the highest."""
    return load16be(at) << 8 | load8(at + 2)


@small
def big_endian(at: int, width: int) -> int:
    """An unsigned number of 1 to 8 bytes; of eight, as 64 bits without sign."""
    if width == 1:
        return load8(at)
    if width == 2:
        return load16be(at)
    if width == 4:
        return load32be(at)
    if width == 8:
        return load64be(at)
    value = 0
    for i in range(width):
        value = value << 8 | load8(at + i)
    return value


@small
def little_endian(at: int, width: int) -> int:
    """The same from the other end."""
    if width == 1:
        return load8(at)
    if width == 2:
        return load16(at)
    if width == 4:
        return load32(at)
    if width == 8:
        return load64(at)
    value = 0
    for i in range(width):
        value |= load8(at + i) << 8 * i
    return value


@small
def copy_roughly(start: int, count: int, limit: int, target: int) -> None:
    """Copy `count` bytes; up to 31 bytes after the copy may be overwritten. At and after `limit` nothing is read."""
    if start + ((count + 31) & ~31) <= limit:
        for at in range(0, count, 32):
            copy32(target + at, start + at)
    else:
        copy_bytes(start, count, limit, target)


@small
def copy_bytes(start: int, count: int, limit: int, target: int) -> None:
    """Copy `count` bytes; up to seven bytes after the copy may be overwritten.

    `target` has eight bytes of room behind the copy; at and after `limit` nothing is read.
    """
    end = start + count
    while start + 8 <= end:
        store64(target, load64(start))
        start += 8
        target += 8
    rest = end - start
    if rest > 0:
        if start + 8 <= limit:
            store64(target, load64(start))
        else:
            for i in range(rest):
                store8(target + i, load8(start + i))
