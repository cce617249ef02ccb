"""What the kernels of the log are made with: types, unaligned loads from an array, copies of bytes."""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from databus.sources.mysql._compile import small

Bytes = NDArray[np.uint8]
Table = NDArray[np.uint32]
Words = NDArray[np.int64]  # one dimension
Grid = NDArray[np.int64]  # two
Cube = NDArray[np.int64]  # three

U8 = types.Array(types.uint8, 1, "C")
U8_READ = types.Array(types.uint8, 1, "C", readonly=True)
U32_READ = types.Array(types.uint32, 1, "C", readonly=True)
I64 = types.Array(types.int64, 1, "C")
I64_2 = types.Array(types.int64, 2, "C")
I64_3 = types.Array(types.int64, 3, "C")


def check_bounds(context: Any, builder: Any, array: Any, at: Any, count: Any) -> None:
    """In a checked build, see to it that `count` items from index `at` on are inside the array. Else it costs nothing.

    array: its structure. For intrinsics that go through its memory by themselves.
    """
    if context.enable_boundscheck:
        beyond = builder.add(array.nitems, ir.Constant(array.nitems.type, 1))
        for index in (at, count, builder.add(at, count)):
            cgutils.do_boundscheck(context, builder, index, beyond)  # type: ignore[no-untyped-call]  # Numba has no types


def _loader(bits: int, *, is_signed: bool = True) -> Callable[[Any, int], Any]:
    """An unaligned little-endian load of `bits` bits from `array`'s memory, `index` elements after its beginning.

    NumPy-style indexing would test for negative indexes at each byte; the callers have checked their bounds.
    """

    @intrinsic
    def load(_typing: Any, array: Any, _index: Any) -> Any:
        result = types.int64 if is_signed else types.uint64

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = context.make_array(signature.args[0])(context, builder, args[0])
            count = -(-bits // signature.args[0].dtype.bitwidth)
            check_bounds(context, builder, source, args[1], ir.Constant(args[1].type, count))
            place = builder.gep(source.data, [args[1]])
            place = builder.bitcast(place, ir.IntType(bits).as_pointer())
            value = builder.load(place, align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return result(array, types.int64), codegen

    return load


def _copying(_typing: Any, to: Any, _at: Any, source: Any, _start: Any, _count: Any) -> Any:
    """Copy bytes of one array behind a place of another; a slice assignment would take seconds to compile."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = []
        for i in (0, 2):
            array = context.make_array(signature.args[i])(context, builder, args[i])
            check_bounds(context, builder, array, args[i + 1], args[4])
            places.append(builder.gep(array.data, [args[i + 1]]))
        cgutils.raw_memcpy(builder, places[0], places[1], args[4], 1)  # type: ignore[no-untyped-call]  # Numba has no types
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), codegen


copy_bytes: Callable[..., None] = intrinsic(_copying)
u8: Callable[[Any, int], int] = _loader(8)
u16: Callable[[Any, int], int] = _loader(16)
u32: Callable[[Any, int], int] = _loader(32)
i64: Callable[[Any, int], int] = _loader(64)
u64: Callable[[Any, int], np.uint64] = _loader(64, is_signed=False)


@small
def u48(buf: Bytes, at: int) -> int:
    return u32(buf, at) | u16(buf, at + 4) << 32


@small
def u56(buf: Bytes, at: int) -> int:
    return u48(buf, at) | u8(buf, at + 6) << 48
