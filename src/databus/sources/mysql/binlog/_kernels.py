"""The compiled parts: verify, walk and group events; take packets apart; write transaction ids. Imported late.

Kernels raise nothing. They return a status and leave in the state what Python needs to act or to name the error. Every
length read from the log is compared with what is there before anything behind it is read. Start with `scan`.
"""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.
# ruff: noqa: C901, PLR0911, PLR0912, PLR0915, PLR1714 - a kernel branches as the format does, and has no cheap `in`

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from databus.sources.mysql.binlog import _state as s

Function = TypeVar("Function", bound=Callable[..., Any])
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


def _kernel(signature: Any) -> Callable[[Function], Function]:
    """Compiled for this signature at import, or taken from the disk; runs without the interpreter's lock."""
    compiled: Callable[[Function], Any] = njit(signature, cache=True, nogil=True, error_model="numpy")
    return compiled


def _small(function: Function) -> Function:
    """A part of kernels, compiled into each that calls it."""
    compiled: Any = njit(error_model="numpy", forceinline=True)(function)  # a call would count references to its arrays
    return compiled


def _loader(bits: int, *, is_signed: bool = True) -> Callable[[Any, int], Any]:
    """An unaligned little-endian load of `bits` bits from `array`'s memory, `index` elements after its beginning.

    NumPy-style indexing would test for negative indexes at each byte; the callers have checked their bounds.
    """

    @intrinsic
    def load(_typing: Any, array: Any, _index: Any) -> Any:
        result = types.int64 if is_signed else types.uint64

        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            source = context.make_array(signature.args[0])(context, builder, args[0])
            place = builder.gep(source.data, [args[1]])
            place = builder.bitcast(place, ir.IntType(bits).as_pointer())
            value = builder.load(place, align=1)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return result(array, types.int64), codegen

    return load


def _copying(_typing: Any, to: Any, _at: Any, source: Any, _start: Any, _count: Any) -> Any:
    """Copy bytes of one array behind a place of another; a slice assignment would take seconds to compile."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        places = [
            builder.gep(context.make_array(signature.args[i])(context, builder, args[i]).data, [args[i + 1]])
            for i in (0, 2)
        ]
        cgutils.raw_memcpy(builder, places[0], places[1], args[4], 1)  # type: ignore[no-untyped-call]
        return context.get_dummy_value()

    return types.void(to, types.int64, source, types.int64, types.int64), codegen


_copy: Callable[..., None] = intrinsic(_copying)
_u8: Callable[[Any, int], int] = _loader(8)
_u16: Callable[[Any, int], int] = _loader(16)
_u32: Callable[[Any, int], int] = _loader(32)
_i64: Callable[[Any, int], int] = _loader(64)
_u64: Callable[[Any, int], np.uint64] = _loader(64, is_signed=False)


@_small
def _u48(buf: Bytes, at: int) -> int:
    return _u32(buf, at) | _u16(buf, at + 4) << 32


@_small
def _u56(buf: Bytes, at: int) -> int:
    return _u48(buf, at) | _u8(buf, at + 6) << 48


_BYTE: Final = np.uint64(0xFF)
_ALL: Final = np.uint64(0xFFFFFFFF)


@_small
def _slice(table: Table, a: np.uint64, b: np.uint64) -> np.uint64:
    """CRC-32 of the sixteen bytes that `a` and `b` hold, by sixteen tables."""
    return (
        np.uint64(_u32(table, np.int64(a & _BYTE) + 3840))
        ^ np.uint64(_u32(table, np.int64((a >> np.uint64(8)) & _BYTE) + 3584))
        ^ np.uint64(_u32(table, np.int64((a >> np.uint64(16)) & _BYTE) + 3328))
        ^ np.uint64(_u32(table, np.int64((a >> np.uint64(24)) & _BYTE) + 3072))
        ^ np.uint64(_u32(table, np.int64((a >> np.uint64(32)) & _BYTE) + 2816))
        ^ np.uint64(_u32(table, np.int64((a >> np.uint64(40)) & _BYTE) + 2560))
        ^ np.uint64(_u32(table, np.int64((a >> np.uint64(48)) & _BYTE) + 2304))
        ^ np.uint64(_u32(table, np.int64(a >> np.uint64(56)) + 2048))
        ^ np.uint64(_u32(table, np.int64(b & _BYTE) + 1792))
        ^ np.uint64(_u32(table, np.int64((b >> np.uint64(8)) & _BYTE) + 1536))
        ^ np.uint64(_u32(table, np.int64((b >> np.uint64(16)) & _BYTE) + 1280))
        ^ np.uint64(_u32(table, np.int64((b >> np.uint64(24)) & _BYTE) + 1024))
        ^ np.uint64(_u32(table, np.int64((b >> np.uint64(32)) & _BYTE) + 768))
        ^ np.uint64(_u32(table, np.int64((b >> np.uint64(40)) & _BYTE) + 512))
        ^ np.uint64(_u32(table, np.int64((b >> np.uint64(48)) & _BYTE) + 256))
        ^ np.uint64(_u32(table, np.int64(b >> np.uint64(56))))
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
        memory = context.make_array(signature.args[0])(context, builder, args[0]).data

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

    pair_type: Any = types.UniTuple(types.uint64, 2)  # type: ignore[no-untyped-call]
    return pair_type(array, types.int64, types.int64, types.uint64), codegen


_fold: Callable[..., tuple[np.uint64, np.uint64]] = intrinsic(_folding)


def _crc_by_products(table: Table, buf: Bytes, start: int, end: int, seed: int) -> np.uint64:
    bulk = (end - start) & ~63
    a, b = _fold(buf, start, bulk, np.uint64(seed))
    return _crc_by_tables(table, buf, start + bulk, end, _slice(table, a, b))


@_small
def _crc_by_tables(table: Table, buf: Bytes, start: int, end: int, seed: int) -> np.uint64:
    c = np.uint64(seed)
    i = start
    while i + 16 <= end:
        c = _slice(table, _u64(buf, i) ^ c, _u64(buf, i + 8))
        i += 16
    while i < end:
        c = np.uint64(_u32(table, np.int64((c ^ np.uint64(_u8(buf, i))) & _BYTE))) ^ (c >> np.uint64(8))
        i += 1
    return c


def _has_products() -> bool:
    return "x86_64" in llvm.get_process_triple() and bool(llvm.get_host_cpu_features().get("pclmul"))


_crc_of_many = _small(_crc_by_products) if _has_products() else _crc_by_tables


@_small
def _crc(table: Table, buf: Bytes, start: int, end: int, seed: int) -> np.uint64:
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


@_kernel(types.uint32(U32_READ, U8_READ))
def crc32(table: Table, buf: Bytes) -> np.uint32:
    """For tests and measurements: what `scan` computes inside."""
    return np.uint32(_crc(table, buf, 0, buf.shape[0], 0xFFFFFFFF) ^ _ALL)


# --- sets of transactions ---


@_small
def _place(intervals: Cube, count: Words, sid: int, number: int) -> int:
    """The first interval of `sid` that ends at or after `number`; `count[sid]` if none does."""
    low, high = 0, count[sid]
    while low < high:
        middle = (low + high) >> 1
        if intervals[sid, middle, 1] < number:
            low = middle + 1
        else:
            high = middle
    return low


@_small
def _contains(intervals: Cube, count: Words, sid: int, number: int) -> bool:
    n = count[sid]
    if n == 0 or number > intervals[sid, n - 1, 1]:
        return False
    at = _place(intervals, count, sid, number)
    return intervals[sid, at, 0] <= number


@_small
def _add(intervals: Cube, count: Words, sid: int, number: int) -> None:
    """Add a number that is not in the set. The caller has seen to room for one more interval."""
    n = count[sid]
    at = n if n == 0 or number > intervals[sid, n - 1, 1] else _place(intervals, count, sid, number)
    joins_before = at > 0 and intervals[sid, at - 1, 1] == number - 1
    joins_after = at < n and intervals[sid, at, 0] == number + 1
    if joins_before and joins_after:
        intervals[sid, at - 1, 1] = intervals[sid, at, 1]
        for i in range(at, n - 1):
            intervals[sid, i, 0] = intervals[sid, i + 1, 0]
            intervals[sid, i, 1] = intervals[sid, i + 1, 1]
        count[sid] = n - 1
    elif joins_before:
        intervals[sid, at - 1, 1] = number
    elif joins_after:
        intervals[sid, at, 0] = number
    else:
        for i in range(n, at, -1):
            intervals[sid, i, 0] = intervals[sid, i - 1, 0]
            intervals[sid, i, 1] = intervals[sid, i - 1, 1]
        intervals[sid, at, 0] = number
        intervals[sid, at, 1] = number
        count[sid] = n + 1


# --- transactions ---


@_small
def _fail(state: Words, error: int) -> int:
    state[s.ERROR] = error
    return s.FAILED


@_small
def _open_tx(state: Words, when: int, tx_state: int) -> None:
    """A transaction begins with the event at hand; what its GTID says the caller puts into `state`."""
    state[s.TX_STATE] = tx_state
    state[s.TX_START] = state[s.OFFSET]
    state[s.TX_COMMIT_US] = when * 1000000
    state[s.TX_A] = -1
    state[s.TX_B] = 0
    state[s.TX_C] = 0
    state[s.TX_SKIP] = 0
    state[s.TX_ROW] = -1
    state[s.TX_ROWS_EVENTS] = 0
    state[s.TX_NUMBER] += 1
    state[s.TX_IS_XA] = 0
    state[s.TX_STANDALONE] = 0


@_small
def _number_tx(state: Words, anonymous: bool) -> int:
    """Give the open transaction its ordinal, or see that it precedes the start. Returns NEED_MORE if all is well."""
    if state[s.OFFSET] < state[s.SKIP_BELOW] and (state[s.SCHEME] == s.BY_FILE or anonymous):
        state[s.TX_SKIP] = 1
        return s.NEED_MORE
    if state[s.SCHEME] == s.BY_FILE:
        if state[s.OFFSET] > 0xFFFFFFFF:
            return _fail(state, s.OFFSET_TOO_LARGE)
        state[s.TX_ORDINAL] = state[s.FILE_NUMBER] << 32 | state[s.OFFSET]
    elif anonymous:
        return _fail(state, s.ANONYMOUS)
    if state[s.TX_ORDINAL] <= state[s.LAST_ORDINAL]:
        return _fail(state, s.NOT_RISING)
    if state[s.TX_ORDINAL] >= s.ORDINAL_LIMIT:
        return _fail(state, s.ORDINAL_TOO_LARGE)
    return s.NEED_MORE


@_small
def begin_mysql(
    state: Words,
    intervals: Cube,
    counts: Words,
    start_intervals: Cube,
    start_counts: Words,
    sid: int,
    number: int,
    commit_us: int,
    when: int,
    anonymous: bool,
) -> int:
    """A GTID event of MySQL: `sid` is the index of its server's uuid; anonymous ones have none. For Python too."""
    _open_tx(state, when, s.GROUP)
    if commit_us > 0:
        state[s.TX_COMMIT_US] = commit_us
    if anonymous:
        return _number_tx(state, True)
    if number <= 0 or number == 0x7FFFFFFFFFFFFFFF:
        return _fail(state, s.BAD_GTID)
    state[s.TX_A] = sid
    state[s.TX_B] = number
    if state[s.SCHEME] == s.BY_GTID:
        if state[s.SET_KNOWN] == 0:
            return _fail(state, s.NO_SET)
        if _contains(start_intervals, start_counts, sid, number):
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if state[s.OFFSET] < state[s.SKIP_BELOW] and state[s.START_HAS_GTIDS] == 0:
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if _contains(intervals, counts, sid, number):
            return _fail(state, s.REPEATED)
        state[s.TX_ORDINAL] = state[s.SET_SIZE] + 1
    return _number_tx(state, False)


@_small
def _begin_mariadb(
    state: Words, domains: Grid, domain: int, server: int, number: int, standalone: int, when: int
) -> int:
    _open_tx(state, when, s.GROUP if standalone else s.INSIDE)
    state[s.TX_STANDALONE] = standalone
    state[s.TX_A] = domain
    state[s.TX_B] = number
    state[s.TX_C] = server
    if number <= 0 or number >= 0x4000000000000000:  # what is left can be added to an ordinal
        return _fail(state, s.BAD_GTID)
    if state[s.SCHEME] == s.BY_DOMAINS:
        if state[s.SET_KNOWN] == 0:
            return _fail(state, s.NO_SET)
        if number <= domains[domain, s.D_START_SEQ]:
            if number == domains[domain, s.D_START_SEQ] and server != domains[domain, s.D_START_SERVER]:
                return _fail(state, s.DIVERGED)
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if state[s.OFFSET] < state[s.SKIP_BELOW] and state[s.START_HAS_GTIDS] == 0:
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if number <= domains[domain, s.D_SEQ]:
            return _fail(state, s.REPEATED)
        state[s.TX_ORDINAL] = state[s.SET_SIZE] - domains[domain, s.D_SEQ] + number
    return _number_tx(state, False)


@_small
def _append_tx(state: Words, txs: Grid) -> None:
    row = state[s.N_TX]
    txs[row, s.T_ORDINAL] = state[s.TX_ORDINAL]
    txs[row, s.T_COMMIT_US] = state[s.TX_COMMIT_US]
    txs[row, s.T_END] = -1
    txs[row, s.T_START] = state[s.TX_START]
    txs[row, s.T_A] = state[s.TX_A]
    txs[row, s.T_B] = state[s.TX_B]
    txs[row, s.T_C] = state[s.TX_C]
    state[s.TX_ROW] = row
    state[s.N_TX] = row + 1


@_small
def _note_gtid(state: Words, intervals: Cube, counts: Words, domains: Grid) -> None:
    """Count the open transaction among the executed ones."""
    if state[s.TX_A] < 0 or state[s.SCHEME] == s.BY_FILE:
        return
    if state[s.FLAVOR] == s.MYSQL:
        if not _contains(intervals, counts, state[s.TX_A], state[s.TX_B]):
            _add(intervals, counts, state[s.TX_A], state[s.TX_B])
            state[s.SET_SIZE] += 1
    else:
        domain = state[s.TX_A]
        if state[s.TX_SKIP] == 0 or state[s.TX_B] > domains[domain, s.D_SEQ]:
            state[s.SET_SIZE] += state[s.TX_B] - domains[domain, s.D_SEQ]
            domains[domain, s.D_SEQ] = state[s.TX_B]
            domains[domain, s.D_SERVER] = state[s.TX_C]


@_small
def finish_tx(state: Words, txs: Grid, intervals: Cube, counts: Words, domains: Grid, is_row: bool) -> None:
    """The open transaction is complete with the event at hand. Without `is_row` Python gives it out by itself."""
    _note_gtid(state, intervals, counts, domains)
    state[s.COUNT_TX] += 1
    if state[s.TX_SKIP]:
        state[s.COUNT_TX_SKIPPED] += 1
    else:
        state[s.LAST_ORDINAL] = state[s.TX_ORDINAL]
        if is_row:
            if state[s.TX_ROW] < 0:
                _append_tx(state, txs)
            txs[state[s.TX_ROW], s.T_END] = state[s.AFTER]
    state[s.TX_STATE] = s.OUTSIDE
    state[s.TX_ROW] = -1


# --- events ---


@_small
def _find_table(state: Words, hashed: Words, tables: Grid, table_id: int) -> int:
    """The entry of a table id, or -1."""
    last = state[s.LAST_TABLE]
    if last >= 0 and tables[last, s.TT_ID] == table_id:
        return last
    mask = hashed.shape[0] - 1
    at = (table_id * 0x9E3779B1 >> 7) & mask
    while hashed[at] != 0:
        entry = hashed[at] - 1
        if tables[entry, s.TT_ID] == table_id:
            state[s.LAST_TABLE] = entry
            return entry
        at = (at + 1) & mask
    return -1


@_small
def _same_bytes(a: Bytes, at: int, b: Bytes, bt: int, length: int) -> bool:
    i = 0
    while i + 8 <= length:
        if _u64(a, at + i) != _u64(b, bt + i):
            return False
        i += 8
    while i < length:
        if _u8(a, at + i) != _u8(b, bt + i):
            return False
        i += 1
    return True


@_small
def _table_map(buf: Bytes, state: Words, hashed: Words, tables: Grid, pool: Bytes, pos: int, body_end: int) -> int:
    start = pos + 19 + state[s.TABLE_ID_BYTES]
    if start > body_end:
        return _fail(state, s.SHORT_BODY)
    table_id = _u48(buf, pos + 19) if state[s.TABLE_ID_BYTES] == 6 else _u32(buf, pos + 19)
    entry = _find_table(state, hashed, tables, table_id)
    if entry < 0 or tables[entry, s.TT_LENGTH] != body_end - start:
        return s.NEW_TABLE
    if not _same_bytes(buf, start, pool, tables[entry, s.TT_POOL], body_end - start):
        return s.NEW_TABLE
    tables[entry, s.TT_STAMP] = state[s.TX_NUMBER]
    return s.NEED_MORE


@_small
def _all_set(buf: Bytes, at: int, columns: int) -> bool:
    """Whether the first `columns` bits are ones."""
    whole = columns >> 3
    for i in range(whole):
        if _u8(buf, at + i) != 0xFF:
            return False
    rest = columns & 7
    mask = (1 << rest) - 1
    return rest == 0 or (_u8(buf, at + whole) & mask) == mask


@_small
def _packed(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """A length-encoded integer: its value and where it ends; -1 if it does not end before `end`."""
    if at >= end:
        return 0, -1
    first = _u8(buf, at)
    if first < 251:
        return first, at + 1
    if first == 252 and at + 3 <= end:
        return _u16(buf, at + 1), at + 3
    if first == 253 and at + 4 <= end:
        return _u16(buf, at + 1) | _u8(buf, at + 3) << 16, at + 4
    if first == 254 and at + 9 <= end:
        return _i64(buf, at + 1), at + 9
    return 0, -1


@_small
def _rows(
    buf: Bytes,
    state: Words,
    hashed: Words,
    tables: Grid,
    events: Grid,
    txs: Grid,
    pos: int,
    body_end: int,
    kind: int,
    is_v2: bool,
    is_compressed: bool,
) -> int:
    """A rows event inside a transaction that is not skipped."""
    p = pos + 19 + state[s.TABLE_ID_BYTES] + 2
    if p > body_end:
        return _fail(state, s.SHORT_BODY)
    table_id = _u48(buf, pos + 19) if state[s.TABLE_ID_BYTES] == 6 else _u32(buf, pos + 19)
    entry = _find_table(state, hashed, tables, table_id)
    if entry < 0 or tables[entry, s.TT_STAMP] != state[s.TX_NUMBER]:
        if table_id == s.DUMMY_TABLE_ID:
            return s.NEED_MORE
        return _fail(state, s.NO_TABLE_MAP)
    if tables[entry, s.TT_SLOT] < 0:
        state[s.COUNT_SKIPPED] += state[s.SIZE]
        return s.NEED_MORE
    if is_v2:
        if p + 2 > body_end:
            return _fail(state, s.SHORT_BODY)
        extra = _u16(buf, p)
        p += extra
        if extra < 2 or p > body_end:
            return _fail(state, s.SHORT_BODY)
    columns, p = _packed(buf, p, body_end)
    if p < 0:
        return _fail(state, s.SHORT_BODY)
    if columns != tables[entry, s.TT_COLUMNS_N]:
        return _fail(state, s.COLUMN_COUNT)
    bitmap = (columns + 7) >> 3
    bitmaps = 2 if kind == 2 or kind == 4 else 1
    if bitmap * bitmaps > body_end - p:
        return _fail(state, s.SHORT_BODY)
    for i in range(bitmaps):
        if not _all_set(buf, p + i * bitmap, columns):
            return _fail(state, s.ROW_IMAGE)
    p += bitmap * bitmaps
    inflated = -1
    if is_compressed:
        inflated, p = _compressed(buf, p, body_end)
        if p < 0 or inflated == 0:  # rows that would be passed over without a look at their bytes
            return _fail(state, s.BAD_COMPRESSION)
        if inflated > state[s.EVENT_BYTES_MAX]:
            return _fail(state, s.TOO_LARGE)
        if state[s.N_EVENTS] > 0 and state[s.INFLATE_BYTES] + inflated > state[s.INFLATE_BYTES_MAX]:
            return s.FULL
        state[s.INFLATE_BYTES] += inflated
    if p == body_end:
        return s.NEED_MORE
    if state[s.TX_ROW] < 0:
        _append_tx(state, txs)
    row = state[s.N_EVENTS]
    events[row, s.EV_TX] = state[s.TX_ROW]
    events[row, s.EV_SLOT] = tables[entry, s.TT_SLOT]
    events[row, s.EV_KIND] = kind
    events[row, s.EV_START] = p
    events[row, s.EV_END] = body_end
    events[row, s.EV_BEGIN] = pos
    events[row, s.EV_OFFSET] = state[s.OFFSET]
    events[row, s.EV_INFLATED] = inflated
    state[s.N_EVENTS] = row + 1
    state[s.TX_ROWS_EVENTS] += 1
    return s.NEED_MORE


@_small
def _compressed(buf: Bytes, p: int, body_end: int) -> tuple[int, int]:
    """The head of something compressed by MariaDB: how many bytes it will be, and where the deflated bytes begin."""
    if p >= body_end:
        return 0, -1
    head = _u8(buf, p)
    width = head & 7
    if head & 0xF8 != 0x80 or width < 1 or width > 4 or p + 1 + width > body_end:
        return 0, -1
    inflated = 0
    for i in range(width):
        inflated = inflated << 8 | _u8(buf, p + 1 + i)
    return inflated, p + 1 + width


@_small
def _is_text(buf: Bytes, at: int, end: int, low: int, high: int, length: int) -> bool:
    """Whether buf[at:end] is exactly the text of `length` bytes that `low` and `high` hold, little-endian."""
    if end - at != length:
        return False
    for i in range(length):
        expected = (low >> (8 * i)) & 0xFF if i < 7 else (high >> (8 * (i - 7))) & 0xFF
        if _u8(buf, at + i) != expected:
            return False
    return True


_BEGIN: Final = int.from_bytes(b"BEGIN", "little")
_COMMIT: Final = int.from_bytes(b"COMMIT", "little")
_ROLLBAC: Final = int.from_bytes(b"ROLLBAC", "little")
_SAVEPOI: Final = int.from_bytes(b"SAVEPOI", "little")
_K: Final = ord("K")
_NT: Final = int.from_bytes(b"NT ", "little")
_K_TO: Final = int.from_bytes(b"K TO ", "little")


@_small
def _query(
    buf: Bytes,
    state: Words,
    txs: Grid,
    intervals: Cube,
    counts: Words,
    domains: Grid,
    pos: int,
    body_end: int,
    when: int,
) -> int:
    """A statement: the few that only group events are handled here, the others are Python's."""
    p = pos + 19
    if p + 13 > body_end:
        return _fail(state, s.SHORT_BODY)
    p += 13 + _u16(buf, p + 11) + _u8(buf, p + 8) + 1
    if p > body_end:
        return _fail(state, s.SHORT_BODY)
    if _is_text(buf, p, body_end, _BEGIN, 0, 5):
        if state[s.TX_STATE] == s.INSIDE:
            return _fail(state, s.INSIDE_TX)
        if state[s.TX_STATE] == s.OUTSIDE:
            _open_tx(state, when, s.INSIDE)
            status = _number_tx(state, True)
            if status != s.NEED_MORE:
                return status
        state[s.TX_STATE] = s.INSIDE
        return s.NEED_MORE
    if state[s.TX_STATE] != s.INSIDE:
        return s.ASK
    if _is_text(buf, p, body_end, _COMMIT, 0, 6) or _is_text(buf, p, body_end, _ROLLBAC, _K, 8):
        finish_tx(state, txs, intervals, counts, domains, True)
        return s.NEED_MORE
    if body_end - p >= 12 and (
        _is_text(buf, p, p + 10, _SAVEPOI, _NT, 10) or _is_text(buf, p, p + 12, _ROLLBAC, _K_TO, 12)
    ):
        return s.NEED_MORE
    return s.ASK


@_small
def _gtid(
    buf: Bytes,
    state: Words,
    sids: Grid,
    intervals: Cube,
    counts: Words,
    start_intervals: Cube,
    start_counts: Words,
    pos: int,
    body_end: int,
    when: int,
    anonymous: bool,
) -> int:
    p = pos + 19
    if p + 25 > body_end:
        return _fail(state, s.SHORT_BODY)
    commit_us = 0
    if p + 49 <= body_end:  # MySQL 8: when it was committed here and, if that is not the same, where it came from
        commit_us = _u56(buf, p + 42)
        if commit_us >> 55:
            if p + 56 > body_end:
                return _fail(state, s.SHORT_BODY)
            commit_us = _u56(buf, p + 49)
    sid = -1
    if not anonymous:
        low, high = _i64(buf, p + 1), _i64(buf, p + 9)
        for i in range(state[s.N_SIDS]):
            if sids[i, 0] == low and sids[i, 1] == high and sids[i, 2] == 0:
                sid = i
                break
        if sid < 0:
            return s.NEW_SID
        if counts[sid] + 1 >= intervals.shape[1]:
            return s.GROW_SET
    return begin_mysql(
        state, intervals, counts, start_intervals, start_counts, sid, _i64(buf, p + 17), commit_us, when, anonymous
    )


@_small
def _mariadb_gtid(buf: Bytes, state: Words, domains: Grid, pos: int, body_end: int, when: int) -> int:
    p = pos + 19
    if p + 13 > body_end:
        return _fail(state, s.SHORT_BODY)
    domain_id = _u32(buf, p + 8)
    flags = _u8(buf, p + 12)
    for i in range(state[s.N_DOMAINS]):
        if domains[i, s.D_ID] == domain_id:
            return _begin_mariadb(state, domains, i, _u32(buf, pos + 5), _i64(buf, p), flags & 1, when)
    return s.NEW_DOMAIN


@_small
def _look(buf: Bytes, end: int, state: Words, crc: Table) -> int:
    """Check the event at POS as far as all kinds are alike, and note where it ends. NEED_MORE: it is not all here."""
    pos = state[s.POS]
    size = _u32(buf, pos + 9)
    kind = _u8(buf, pos + 4)
    state[s.SIZE] = size
    state[s.AFTER] = state[s.OFFSET]
    check = state[s.HAS_CHECKSUM] if not state[s.IS_INNER] else 0
    if size < 19 + 4 * check:
        return _fail(state, s.BAD_SIZE)
    if size > state[s.EVENT_BYTES_MAX]:
        return _fail(state, s.TOO_LARGE)
    if size > end - pos:
        return s.NEED_MORE
    if kind == 15 or kind == 4:
        state[s.BODY_END] = pos + size  # these two say themselves, or hide, whether they have a checksum
        check = 0
    else:
        state[s.BODY_END] = pos + size - 4 * check
    if check:
        c = _crc(crc, buf, pos, pos + size - 4, 0xFFFFFFFF) ^ _ALL
        if np.int64(c) != _u32(buf, pos + size - 4):
            return _fail(state, s.BAD_CHECKSUM)
    if state[s.IS_INNER]:
        return s.ASK
    flags = _u16(buf, pos + 17)
    log_pos = _u32(buf, pos + 13)
    if flags & 0x20 or kind == 27 or kind == 41 or (log_pos == 0 and (kind == 15 or kind == 4)):
        return s.ASK
    after = state[s.OFFSET] + size
    if log_pos != 0:
        ahead = (log_pos - after) & 0xFFFFFFFF
        if ahead != 0:
            if state[s.IS_FILE] or ahead >= 0x80000000:
                return _fail(state, s.BAD_POSITION)
            # The server left events out (for this replica's abilities, or by its GTID set): believe the end it gives.
            after += ahead
            state[s.OFFSET] += ahead
    state[s.AFTER] = after
    return s.ASK


_SIGNATURE = types.int64(
    U8_READ,  # buf
    types.int64,  # end
    I64,  # state
    I64,  # kinds: how many of each kind
    U32_READ,  # crc
    I64_2,  # events
    I64_2,  # txs
    I64,  # hashed: table ids, hashed: entry + 1, or 0
    I64_2,  # tables
    U8,  # pool: the bytes of the table maps
    I64_2,  # sids: uuids as two integers, and the index of a tag
    I64_3,  # intervals: executed intervals, both ends included
    I64,  # counts: how many of each sid
    I64_3,  # start_intervals: those of the start
    I64,  # start_counts
    I64_2,  # domains
)


@_kernel(_SIGNATURE)
def scan(
    buf: Bytes,
    end: int,
    state: Words,
    kinds: Words,
    crc: Table,
    events: Grid,
    txs: Grid,
    hashed: Words,
    tables: Grid,
    pool: Bytes,
    sids: Grid,
    intervals: Cube,
    counts: Words,
    start_intervals: Cube,
    start_counts: Words,
    domains: Grid,
) -> int:
    """Walk events from state[POS] on until something stops it; says what.

    What it meets is grouped into transactions (`txs`) with their captured rows events (`events`). An event that stops
    it is not consumed: POS stands at its header, and AFTER, SIZE and BODY_END describe it, once it has been checked.
    """
    while True:
        pos = state[s.POS]
        if end - pos < 19:
            return s.NEED_MORE
        if state[s.N_TX] + 1 >= txs.shape[0] or state[s.N_EVENTS] >= events.shape[0]:
            return s.FULL
        status = _look(buf, end, state, crc)
        if status != s.ASK:
            return status
        size = state[s.SIZE]
        body_end = state[s.BODY_END]
        kind = _u8(buf, pos + 4)
        status = s.NEED_MORE
        if kind == 19:
            if state[s.TX_STATE] == s.OUTSIDE:
                return _fail(state, s.OUTSIDE_TX)
            if state[s.TX_SKIP] == 0:
                status = _table_map(buf, state, hashed, tables, pool, pos, body_end)
        elif (23 <= kind <= 25) or (30 <= kind <= 32) or kind == 39 or (166 <= kind <= 171):
            if state[s.TX_STATE] == s.OUTSIDE:
                return _fail(state, s.OUTSIDE_TX)
            if state[s.TX_SKIP] == 0:
                what = 4
                if kind <= 25:
                    what = kind - 22
                elif kind <= 32:
                    what = kind - 29
                elif kind >= 169:
                    what = kind - 168
                elif kind >= 166:
                    what = kind - 165
                is_v2 = (kind >= 30 and kind <= 39) or kind >= 169
                status = _rows(buf, state, hashed, tables, events, txs, pos, body_end, what, is_v2, kind >= 166)
            else:
                state[s.COUNT_SKIPPED] += size
        elif kind == 2:
            status = _query(buf, state, txs, intervals, counts, domains, pos, body_end, _u32(buf, pos))
        elif kind == 16:
            if state[s.TX_STATE] != s.INSIDE:
                return _fail(state, s.OUTSIDE_TX)
            finish_tx(state, txs, intervals, counts, domains, True)
        elif kind == 33 or kind == 34 or kind == 162:
            if state[s.TX_STATE] != s.OUTSIDE:
                return _fail(state, s.INSIDE_TX)
            when = _u32(buf, pos)
            if kind == 162:
                status = _mariadb_gtid(buf, state, domains, pos, body_end, when)
            else:
                status = _gtid(
                    buf, state, sids, intervals, counts, start_intervals, start_counts, pos, body_end, when, kind == 34
                )
        elif kind == s.MARK_TYPE and state[s.IS_INNER]:
            if size != 27:
                return _fail(state, s.BAD_SIZE)
            state[s.OFFSET] = _i64(buf, pos + 19)
            state[s.AFTER] = state[s.OFFSET]
        elif (
            kind == 29 or kind == 160 or kind == 28 or kind == 5 or kind == 13 or kind == 14 or kind == 161
            or kind == 36 or kind == 37 or kind == 9 or kind == 11 or kind == 17 or kind == 3
        ):  # fmt: skip
            pass  # comments, variables of statements, checkpoints: nothing that a row would need
        else:
            return s.ASK
        if status != s.NEED_MORE:
            return status
        if kind != s.MARK_TYPE:
            kinds[kind] += 1
            if not state[s.IS_INNER]:
                state[s.COUNT_BYTES] += size
        state[s.POS] = pos + size
        state[s.OFFSET] = state[s.AFTER]


# --- packets ---


@_small
def _message_ends(out: Bytes, packet: Words) -> int:
    start, stop = packet[s.P_WHOLE], packet[s.P_OUT]
    if packet[s.P_STATUS] != 0:
        return s.SPLIT_OTHER
    if stop - start < 19 or _u32(out, start + 9) != stop - start:
        return s.SPLIT_LENGTH
    packet[s.P_WHOLE] = stop
    packet[s.P_STATUS] = -1
    return s.SPLIT_MORE


@_kernel(types.int64(U8_READ, U8, I64))
def split(data: Bytes, out: Bytes, packet: Words) -> int:
    """Copy the events inside the packets of `data` to `out`, which has room for all of it, one right after another."""
    i, end = 0, data.shape[0]
    status = s.SPLIT_MORE
    while i < end and status == s.SPLIT_MORE:
        if packet[s.P_LEFT] == 0:
            packet[s.P_HEAD] |= _u8(data, i) << (8 * packet[s.P_HEAD_N])
            packet[s.P_HEAD_N] += 1
            i += 1
            if packet[s.P_HEAD_N] < 4:
                continue
            if packet[s.P_HEAD] >> 24 != packet[s.P_SEQUENCE]:
                status = s.SPLIT_SEQUENCE
            packet[s.P_SEQUENCE] = (packet[s.P_SEQUENCE] + 1) & 0xFF
            packet[s.P_LEFT] = packet[s.P_HEAD] & 0xFFFFFF
            packet[s.P_CONTINUES] = packet[s.P_LEFT] == 0xFFFFFF
            packet[s.P_HEAD] = 0
            packet[s.P_HEAD_N] = 0
            if packet[s.P_LEFT] == 0 and status == s.SPLIT_MORE:
                status = _message_ends(out, packet)
            continue
        if packet[s.P_STATUS] < 0:
            packet[s.P_STATUS] = _u8(data, i)
            packet[s.P_LEFT] -= 1
            i += 1
        take = min(packet[s.P_LEFT], end - i)
        at = packet[s.P_OUT]
        _copy(out, at, data, i, take)
        packet[s.P_OUT] = at + take
        packet[s.P_LEFT] -= take
        i += take
        if packet[s.P_LEFT] == 0 and not packet[s.P_CONTINUES]:
            status = _message_ends(out, packet)
    packet[s.P_READ] = i
    return status


# --- transaction ids ---


@_small
def _digits(out: Bytes, at: int, value: int) -> int:
    width, rest = 1, value
    while rest >= 10:
        rest //= 10
        width += 1
    rest = value
    for i in range(width - 1, -1, -1):
        out[at + i] = 48 + rest % 10
        rest //= 10
    return at + width


@_kernel(types.int64(I64_2, U8_READ, I64, types.int64, I64_2, types.Array(types.int32, 1, "C"), U8))
def write_txids(
    txs: Grid, prefixes: Bytes, prefix_ends: Words, flavor: int, domains: Grid, offsets: NDArray[np.int32], out: Bytes
) -> int:
    """The text of each transaction's id. Prefix 0 is that of anonymous ones, prefix k + 1 that of sid k."""
    at = 0
    for row in range(txs.shape[0]):
        offsets[row] = at
        which = txs[row, s.T_A]
        if which < 0 or flavor == s.MYSQL:
            start = prefix_ends[which] if which >= 0 else 0
            length = prefix_ends[which + 1] - start
            _copy(out, at, prefixes, start, length)
            at = _digits(out, at + length, txs[row, s.T_START] if which < 0 else txs[row, s.T_B])
        else:
            at = _digits(out, at, domains[which, s.D_ID])
            out[at] = 45
            at = _digits(out, at + 1, txs[row, s.T_C])
            out[at] = 45
            at = _digits(out, at + 1, txs[row, s.T_B])
    offsets[txs.shape[0]] = at
    return at


@_kernel(types.int64(I64, I64_3, I64, I64_3, I64, types.int64, types.int64, types.int64, types.int64))
def begin_tagged(
    state: Words,
    intervals: Cube,
    counts: Words,
    start_intervals: Cube,
    start_counts: Words,
    sid: int,
    number: int,
    commit_us: int,
    when: int,
) -> int:
    """`begin_mysql` for Python."""
    return begin_mysql(state, intervals, counts, start_intervals, start_counts, sid, number, commit_us, when, False)


@_kernel(types.int64(U8_READ, types.int64, I64, U32_READ))
def look(buf: Bytes, end: int, state: Words, crc: Table) -> int:
    """Check the event at POS without walking on: ASK if it is here and sound, else what `scan` would answer."""
    if end - state[s.POS] < 19:
        return s.NEED_MORE
    return _look(buf, end, state, crc)


@_kernel(types.int64(I64, types.int64))
def begin_anonymous(state: Words, when: int) -> int:
    """A statement that no GTID event announced is a transaction of its own."""
    _open_tx(state, when, s.GROUP)
    return _number_tx(state, True)


@_kernel(types.void(I64, I64_2, I64_3, I64, I64_2, types.boolean))
def finish(state: Words, txs: Grid, intervals: Cube, counts: Words, domains: Grid, is_row: bool) -> None:
    """`finish_tx` for Python."""
    finish_tx(state, txs, intervals, counts, domains, is_row)
