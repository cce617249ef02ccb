"""CRC-32 of events: by carry-less products where the processor has them, else by tables. Imported late."""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from databus.sources.mysql._compile import kernel, small
from databus.sources.mysql.binlog._kernel_types import U8_READ, U32_READ, Bytes, Table, check_bounds, u8, u32, u64

_BYTE: Final = np.uint64(0xFF)
ALL_BITS: Final = np.uint64(0xFFFFFFFF)


@small
def _slice(table: Table, a: np.uint64, b: np.uint64) -> np.uint64:
    """CRC-32 of the sixteen bytes that `a` and `b` hold, by sixteen tables."""
    return (
        np.uint64(u32(table, np.int64(a & _BYTE) + 3840))
        ^ np.uint64(u32(table, np.int64((a >> np.uint64(8)) & _BYTE) + 3584))
        ^ np.uint64(u32(table, np.int64((a >> np.uint64(16)) & _BYTE) + 3328))
        ^ np.uint64(u32(table, np.int64((a >> np.uint64(24)) & _BYTE) + 3072))
        ^ np.uint64(u32(table, np.int64((a >> np.uint64(32)) & _BYTE) + 2816))
        ^ np.uint64(u32(table, np.int64((a >> np.uint64(40)) & _BYTE) + 2560))
        ^ np.uint64(u32(table, np.int64((a >> np.uint64(48)) & _BYTE) + 2304))
        ^ np.uint64(u32(table, np.int64(a >> np.uint64(56)) + 2048))
        ^ np.uint64(u32(table, np.int64(b & _BYTE) + 1792))
        ^ np.uint64(u32(table, np.int64((b >> np.uint64(8)) & _BYTE) + 1536))
        ^ np.uint64(u32(table, np.int64((b >> np.uint64(16)) & _BYTE) + 1280))
        ^ np.uint64(u32(table, np.int64((b >> np.uint64(24)) & _BYTE) + 1024))
        ^ np.uint64(u32(table, np.int64((b >> np.uint64(32)) & _BYTE) + 768))
        ^ np.uint64(u32(table, np.int64((b >> np.uint64(40)) & _BYTE) + 512))
        ^ np.uint64(u32(table, np.int64((b >> np.uint64(48)) & _BYTE) + 256))
        ^ np.uint64(u32(table, np.int64(b >> np.uint64(56))))
    )


def _folding(_typing: Any, array: Any, _start: Any, _count: Any, _seed: Any) -> Any:
    """Fold `_count` bytes (a multiple of 64, not 0) into sixteen that have the same CRC-32, by carry-less products.

    After V. Gopal and others, "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction": four lanes of
    sixteen bytes are carried over 64 bytes at a time, then joined.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        i64, pair = ir.IntType(64), ir.VectorType(ir.IntType(64), 2)
        product = builder.module.globals.get("llvm.x86.pclmulqdq") or ir.Function(
            builder.module, ir.FunctionType(pair, [pair, pair, ir.IntType(8)]), "llvm.x86.pclmulqdq"
        )
        array = context.make_array(signature.args[0])(context, builder, args[0])
        check_bounds(context, builder, array, args[1], args[2])
        memory = array.data

        def load(at: Any, lane: int) -> Any:
            place = builder.gep(memory, [builder.add(at, ir.Constant(i64, 16 * lane))])
            return builder.load(builder.bitcast(place, pair.as_pointer()), align=1)

        def carry(lane: Any, by: Any, onto: Any) -> Any:
            low = builder.call(product, [lane, by, ir.Constant(ir.IntType(8), 0x00)])
            high = builder.call(product, [lane, by, ir.Constant(ir.IntType(8), 0x11)])
            return builder.xor(builder.xor(low, high), onto)

        over_64 = ir.Constant(pair, [0x0154442BD4, 0x01C6E41596])
        over_16 = ir.Constant(pair, [0x01751997D0, 0x00CCAA009E])
        end = builder.add(args[1], args[2])
        lanes = [load(args[1], lane) for lane in range(4)]
        zero = ir.Constant(pair, [0, 0])
        lanes[0] = builder.xor(lanes[0], builder.insert_element(zero, args[3], ir.Constant(ir.IntType(32), 0)))
        second = builder.add(args[1], ir.Constant(i64, 64))
        entry = builder.block
        head, body, done = (builder.append_basic_block(f"fold.{name}") for name in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        at = builder.phi(i64)
        at.add_incoming(second, entry)
        carried = [builder.phi(pair) for _ in range(4)]
        for phi, lane in zip(carried, lanes, strict=True):
            phi.add_incoming(lane, entry)
        builder.cbranch(builder.icmp_signed("<", at, end), body, done)
        builder.position_at_end(body)
        for number, phi in enumerate(carried):
            phi.add_incoming(carry(phi, over_64, load(at, number)), body)
        at.add_incoming(builder.add(at, ir.Constant(i64, 64)), body)
        builder.branch(head)
        builder.position_at_end(done)
        joined = carried[0]
        for phi in carried[1:]:
            joined = carry(joined, over_16, phi)
        words = [builder.extract_element(joined, ir.Constant(ir.IntType(32), i)) for i in range(2)]
        return context.make_tuple(builder, signature.return_type, words)

    pair_type: Any = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]  # Numba has no types
    return pair_type(array, types.int64, types.int64, types.uint64), codegen


_fold: Callable[..., tuple[np.uint64, np.uint64]] = intrinsic(_folding)


def _crc_by_products(table: Table, buf: Bytes, start: int, end: int, seed: int) -> np.uint64:
    bulk = (end - start) & ~63
    a, b = _fold(buf, start, bulk, np.uint64(seed))
    return _crc_by_tables(table, buf, start + bulk, end, _slice(table, a, b))


@small
def _crc_by_tables(table: Table, buf: Bytes, start: int, end: int, seed: int) -> np.uint64:
    c = np.uint64(seed)
    i = start
    while i + 16 <= end:
        c = _slice(table, u64(buf, i) ^ c, u64(buf, i + 8))
        i += 16
    while i < end:
        c = np.uint64(u32(table, np.int64((c ^ np.uint64(u8(buf, i))) & _BYTE))) ^ (c >> np.uint64(8))
        i += 1
    return c


def _has_products() -> bool:
    return "x86_64" in llvm.get_process_triple() and bool(llvm.get_host_cpu_features().get("pclmul"))


_crc_of_many = small(_crc_by_products) if _has_products() else _crc_by_tables


@small
def crc_of(table: Table, buf: Bytes, start: int, end: int, seed: int) -> np.uint64:
    """CRC-32 (IEEE) of buf[start:end] from a register that is not inverted."""
    if end - start < 128:  # below, the products cost more to set up than they save
        return _crc_by_tables(table, buf, start, end, seed)
    return _crc_of_many(table, buf, start, end, seed)


def make_crc_table() -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The sixteen tables of slicing, one after another."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(0xEDB88320), first >> 1).astype(np.uint32)
    tables = [first]
    for _ in range(15):
        last = tables[-1]
        tables.append(((last >> 8) ^ first[last & 0xFF]).astype(np.uint32))
    table = np.concatenate(tables)
    table.flags.writeable = False
    return table


@kernel(types.uint32(U32_READ, U8_READ))
def crc32(table: Table, buf: Bytes) -> np.uint32:
    """For tests and measurements: what `scan` computes inside."""
    return np.uint32(crc_of(table, buf, 0, buf.shape[0], 0xFFFFFFFF) ^ ALL_BITS)
