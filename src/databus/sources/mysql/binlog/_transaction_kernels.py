"""Transactions: which there are, which were executed before, their ordinals, and their ids as text. Imported late.

As all kernels of the log, these raise nothing: they return a status and leave the error in the state.
"""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# ruff: noqa: PLR0911 - a kernel has no exceptions
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.

import numpy as np
from numba import types
from numpy.typing import NDArray

from databus.sources.mysql._compile import kernel, small
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._kernel_types import (
    I64,
    I64_2,
    I64_3,
    U8,
    U8_READ,
    Bytes,
    Cube,
    Grid,
    Words,
    copy_bytes,
)

# --- sets of transactions ---


@small
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


@small
def contains(intervals: Cube, count: Words, sid: int, number: int) -> bool:
    n = count[sid]
    if n == 0 or number > intervals[sid, n - 1, 1]:
        return False
    at = _place(intervals, count, sid, number)
    return intervals[sid, at, 0] <= number


@small
def add(intervals: Cube, count: Words, sid: int, number: int) -> None:
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


@small
def fail(state: Words, error: int) -> int:
    state[s.ERROR] = error
    return s.FAILED


@small
def open_tx(state: Words, event_s: int, tx_state: int) -> None:
    """A transaction begins with the event at hand; what its GTID says the caller puts into `state`."""
    state[s.TX_STATE] = tx_state
    state[s.TX_START] = state[s.OFFSET]
    state[s.TX_COMMIT_US] = event_s * 1000000
    state[s.TX_A] = -1
    state[s.TX_B] = 0
    state[s.TX_C] = 0
    state[s.TX_SKIP] = 0
    state[s.TX_ROW] = -1
    state[s.TX_ROWS_EVENTS] = 0
    state[s.TX_NUMBER] += 1
    state[s.TX_IS_XA] = 0
    state[s.TX_STANDALONE] = 0
    state[s.TX_ROWS_SEEN] = 0
    state[s.TX_GIVEN] = 0
    state[s.N_MARKS] = 0


@small
def number_tx(state: Words, anonymous: bool) -> int:
    """Give the open transaction its ordinal, or see that it precedes the start. Returns NEED_MORE if all is well."""
    if state[s.OFFSET] < state[s.SKIP_BELOW] and (state[s.SCHEME] == s.BY_FILE or anonymous):
        state[s.TX_SKIP] = 1
        return s.NEED_MORE
    if state[s.SCHEME] == s.BY_FILE:
        if state[s.OFFSET] > 0xFFFFFFFF:
            return fail(state, s.OFFSET_TOO_LARGE)
        state[s.TX_ORDINAL] = state[s.FILE_NUMBER] << 32 | state[s.OFFSET]
    elif anonymous:
        return fail(state, s.ANONYMOUS)
    if state[s.TX_ORDINAL] <= state[s.LAST_ORDINAL]:
        return fail(state, s.NOT_RISING)
    if state[s.TX_ORDINAL] >= s.ORDINAL_LIMIT:
        return fail(state, s.ORDINAL_TOO_LARGE)
    return s.NEED_MORE


@small
def begin_mysql(
    state: Words,
    intervals: Cube,
    counts: Words,
    start_intervals: Cube,
    start_counts: Words,
    sid: int,
    number: int,
    commit_us: int,
    event_s: int,
    anonymous: bool,
) -> int:
    """A GTID event of MySQL: `sid` is the index of its server's uuid; anonymous ones have none. For Python too."""
    open_tx(state, event_s, s.GROUP)
    if commit_us > 0:
        state[s.TX_COMMIT_US] = commit_us
    if anonymous:
        return number_tx(state, True)
    if number <= 0 or number == 0x7FFFFFFFFFFFFFFF:
        return fail(state, s.BAD_GTID)
    state[s.TX_A] = sid
    state[s.TX_B] = number
    if state[s.SCHEME] == s.BY_GTID:
        if state[s.SET_KNOWN] == 0:
            return fail(state, s.NO_SET)
        if contains(start_intervals, start_counts, sid, number):
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if state[s.OFFSET] < state[s.SKIP_BELOW] and state[s.START_HAS_GTIDS] == 0:
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if contains(intervals, counts, sid, number):
            return fail(state, s.REPEATED)
        state[s.TX_ORDINAL] = state[s.SET_SIZE] + 1
    return number_tx(state, False)


@small
def begin_mariadb(state: Words, domains: Grid, domain: int, server: int, number: int, flags: int, event_s: int) -> int:
    """A GTID event of MariaDB. flags: 1 for a statement of its own, 64 for what will be prepared."""
    standalone = flags & 1
    open_tx(state, event_s, s.GROUP if standalone else s.INSIDE)
    state[s.TX_STANDALONE] = standalone
    state[s.TX_IS_XA] = (flags >> 6) & 1
    state[s.TX_A] = domain
    state[s.TX_B] = number
    state[s.TX_C] = server
    if number <= 0 or number >= 0x4000000000000000:  # what is left can be added to an ordinal
        return fail(state, s.BAD_GTID)
    if state[s.SCHEME] == s.BY_DOMAINS:
        if state[s.SET_KNOWN] == 0:
            return fail(state, s.NO_SET)
        if number <= domains[domain, s.D_START_SEQ]:
            if state[s.SKIP_BELOW] >= 0 and state[s.OFFSET] >= state[s.SKIP_BELOW]:
                return fail(state, s.REPEATED)  # it stands behind the start, so it is another one of that number
            if number == domains[domain, s.D_START_SEQ] and server != domains[domain, s.D_START_SERVER]:
                return fail(state, s.DIVERGED)
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if state[s.OFFSET] < state[s.SKIP_BELOW] and state[s.START_HAS_GTIDS] == 0:
            state[s.TX_SKIP] = 1
            return s.NEED_MORE
        if number <= domains[domain, s.D_SEQ]:
            return fail(state, s.REPEATED)
        state[s.TX_ORDINAL] = state[s.SET_SIZE] - domains[domain, s.D_SEQ] + number
    return number_tx(state, False)


@small
def append_tx(state: Words, txs: Grid) -> None:
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


@small
def note_gtid(state: Words, intervals: Cube, counts: Words, domains: Grid) -> None:
    """Count the open transaction among the executed ones."""
    if state[s.TX_A] < 0 or state[s.SCHEME] == s.BY_FILE:
        return
    if state[s.FLAVOR] == s.MYSQL:
        if not contains(intervals, counts, state[s.TX_A], state[s.TX_B]):
            add(intervals, counts, state[s.TX_A], state[s.TX_B])
            state[s.SET_SIZE] += 1
    else:
        domain = state[s.TX_A]
        if state[s.TX_SKIP] == 0 or state[s.TX_B] > domains[domain, s.D_SEQ]:
            state[s.SET_SIZE] += state[s.TX_B] - domains[domain, s.D_SEQ]
            domains[domain, s.D_SEQ] = state[s.TX_B]
            domains[domain, s.D_SERVER] = state[s.TX_C]


@small
def finish_tx(state: Words, txs: Grid, intervals: Cube, counts: Words, domains: Grid, is_row: bool) -> None:
    """The open transaction is complete with the event at hand. Without `is_row` Python gives it out by itself."""
    note_gtid(state, intervals, counts, domains)
    state[s.COUNT_TX] += 1
    if state[s.TX_SKIP]:
        state[s.COUNT_TX_SKIPPED] += 1
    else:
        state[s.LAST_ORDINAL] = state[s.TX_ORDINAL]
        if is_row:
            if state[s.TX_ROW] < 0:
                append_tx(state, txs)
            txs[state[s.TX_ROW], s.T_END] = state[s.AFTER]
    state[s.TX_STATE] = s.OUTSIDE
    state[s.TX_ROW] = -1


# --- transaction ids ---


@small
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


@kernel(types.int64(I64_2, U8_READ, I64, types.int64, I64_2, types.Array(types.int32, 1, "C"), U8))
def write_txids(
    txs: Grid, prefixes: Bytes, prefix_ends: Words, flavor: int, domains: Grid, offsets: NDArray[np.int32], out: Bytes
) -> int:
    """The text of each transaction's id. Prefix 0 is that of anonymous ones, prefix k + 1 that of sid k."""
    at = 0
    for row in range(txs.shape[0]):
        offsets[row] = at
        index = txs[row, s.T_A]
        if index < 0 or flavor == s.MYSQL:
            start = prefix_ends[index] if index >= 0 else 0
            length = prefix_ends[index + 1] - start
            copy_bytes(out, at, prefixes, start, length)
            at = _digits(out, at + length, txs[row, s.T_START] if index < 0 else txs[row, s.T_B])
        else:
            at = _digits(out, at, domains[index, s.D_ID])
            out[at] = 45
            at = _digits(out, at + 1, txs[row, s.T_C])
            out[at] = 45
            at = _digits(out, at + 1, txs[row, s.T_B])
    offsets[txs.shape[0]] = at
    return at


@kernel(types.int64(I64, I64_3, I64, I64_3, I64, types.int64, types.int64, types.int64, types.int64))
def begin_tagged(
    state: Words,
    intervals: Cube,
    counts: Words,
    start_intervals: Cube,
    start_counts: Words,
    sid: int,
    number: int,
    commit_us: int,
    event_s: int,
) -> int:
    """`begin_mysql` for Python."""
    return begin_mysql(state, intervals, counts, start_intervals, start_counts, sid, number, commit_us, event_s, False)


@kernel(types.int64(I64, types.int64))
def begin_anonymous(state: Words, event_s: int) -> int:
    """A statement that no GTID event announced is a transaction of its own."""
    open_tx(state, event_s, s.GROUP)
    return number_tx(state, True)


@kernel(types.void(I64, I64_2, I64_3, I64, I64_2, types.boolean))
def finish(state: Words, txs: Grid, intervals: Cube, counts: Words, domains: Grid, is_row: bool) -> None:
    """`finish_tx` for Python."""
    finish_tx(state, txs, intervals, counts, domains, is_row)
