"""Events: verified, walked through and grouped. Imported late.

Kernels raise nothing. They return a status and leave in the state what Python needs to act or to name the error. Every
length read from the log is compared with what is there before anything behind it is read. Start with `scan`.
"""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.
# ruff: noqa: C901, PLR0911, PLR0912, PLR0915, PLR1714 - a kernel branches as the format does, and has no cheap `in`

from typing import Final

import numpy as np
from numba import types

from databus.sources.mysql._compile import kernel, small
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._crc_kernels import ALL_BITS, crc_of
from databus.sources.mysql.binlog._kernel_types import (
    I64,
    I64_2,
    I64_3,
    U8,
    U8_READ,
    U32_READ,
    Bytes,
    Cube,
    Grid,
    Table,
    Words,
    copy_bytes,
    i64,
    u8,
    u16,
    u32,
    u48,
    u56,
    u64,
)
from databus.sources.mysql.binlog._transaction_kernels import (
    append_tx,
    begin_mariadb,
    begin_mysql,
    fail,
    finish_tx,
    number_tx,
    open_tx,
)


@small
def find_table(state: Words, hashed: Words, tables: Grid, table_id: int) -> int:
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


@small
def _same_bytes(a: Bytes, at: int, b: Bytes, bt: int, length: int) -> bool:
    i = 0
    while i + 8 <= length:
        if u64(a, at + i) != u64(b, bt + i):
            return False
        i += 8
    while i < length:
        if u8(a, at + i) != u8(b, bt + i):
            return False
        i += 1
    return True


@small
def table_map(buf: Bytes, state: Words, hashed: Words, tables: Grid, pool: Bytes, pos: int, body_end: int) -> int:
    start = pos + 19 + state[s.TABLE_ID_BYTES]
    if start > body_end:
        return fail(state, s.SHORT_BODY)
    table_id = u48(buf, pos + 19) if state[s.TABLE_ID_BYTES] == 6 else u32(buf, pos + 19)
    entry = find_table(state, hashed, tables, table_id)
    if entry < 0 or tables[entry, s.TT_LENGTH] != body_end - start:
        return s.NEW_TABLE
    if not _same_bytes(buf, start, pool, tables[entry, s.TT_POOL], body_end - start):
        return s.NEW_TABLE
    tables[entry, s.TT_STAMP] = state[s.TX_NUMBER]
    return s.NEED_MORE


@small
def _all_set(buf: Bytes, at: int, columns: int) -> bool:
    """Whether the first `columns` bits are ones."""
    whole = columns >> 3
    for i in range(whole):
        if u8(buf, at + i) != 0xFF:
            return False
    rest = columns & 7
    mask = (1 << rest) - 1
    return rest == 0 or (u8(buf, at + whole) & mask) == mask


@small
def _packed(buf: Bytes, at: int, end: int) -> tuple[int, int]:
    """A length-encoded integer: its value and where it ends; -1 if it does not end before `end`."""
    if at >= end:
        return 0, -1
    first = u8(buf, at)
    if first < 251:
        return first, at + 1
    if first == 252 and at + 3 <= end:
        return u16(buf, at + 1), at + 3
    if first == 253 and at + 4 <= end:
        return u16(buf, at + 1) | u8(buf, at + 3) << 16, at + 4
    if first == 254 and at + 9 <= end:
        return i64(buf, at + 1), at + 9
    return 0, -1


@small
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
        return fail(state, s.SHORT_BODY)
    table_id = u48(buf, pos + 19) if state[s.TABLE_ID_BYTES] == 6 else u32(buf, pos + 19)
    entry = find_table(state, hashed, tables, table_id)
    if entry < 0 or tables[entry, s.TT_STAMP] != state[s.TX_NUMBER]:
        if table_id == s.DUMMY_TABLE_ID:
            return s.NEED_MORE
        return fail(state, s.NO_TABLE_MAP)
    if tables[entry, s.TT_SLOT] < 0:
        state[s.COUNT_SKIPPED] += state[s.SIZE]
        return s.NEED_MORE
    if is_v2:
        if p + 2 > body_end:
            return fail(state, s.SHORT_BODY)
        extra = u16(buf, p)
        p += extra
        if extra < 2 or p > body_end:
            return fail(state, s.SHORT_BODY)
    columns, p = _packed(buf, p, body_end)
    if p < 0:
        return fail(state, s.SHORT_BODY)
    if columns != tables[entry, s.TT_COLUMNS_N]:
        return fail(state, s.COLUMN_COUNT)
    bitmap = (columns + 7) >> 3
    bitmaps = 2 if kind == 2 or kind == 4 else 1
    if bitmap * bitmaps > body_end - p:
        return fail(state, s.SHORT_BODY)
    for i in range(bitmaps):
        if not _all_set(buf, p + i * bitmap, columns):
            return fail(state, s.ROW_IMAGE)
    p += bitmap * bitmaps
    inflated = -1
    if is_compressed:
        inflated, p = _compressed(buf, p, body_end)
        if p < 0 or inflated == 0:  # rows that would be passed over without a look at their bytes
            return fail(state, s.BAD_COMPRESSION)
        if inflated > state[s.EVENT_BYTES_MAX]:
            return fail(state, s.TOO_LARGE)
        if state[s.N_EVENTS] > 0 and state[s.INFLATE_BYTES] + inflated > state[s.INFLATE_BYTES_MAX]:
            return s.FULL
        state[s.INFLATE_BYTES] += inflated
    if p == body_end:
        return s.NEED_MORE
    if state[s.TX_ROW] < 0:
        append_tx(state, txs)
    row = state[s.N_EVENTS]
    events[row, s.EV_TX] = state[s.TX_ROW]
    events[row, s.EV_SLOT] = tables[entry, s.TT_SLOT]
    events[row, s.EV_KIND] = kind
    events[row, s.EV_START] = p
    events[row, s.EV_END] = body_end
    events[row, s.EV_BEGIN] = pos
    events[row, s.EV_OFFSET] = state[s.OFFSET]
    events[row, s.EV_INFLATED] = inflated
    events[row, s.EV_NUMBER] = state[s.TX_ROWS_SEEN]
    state[s.N_EVENTS] = row + 1
    state[s.TX_ROWS_EVENTS] += 1
    return s.NEED_MORE


@small
def _compressed(buf: Bytes, p: int, body_end: int) -> tuple[int, int]:
    """The head of something compressed by MariaDB: how many bytes it will be, and where the deflated bytes begin."""
    if p >= body_end:
        return 0, -1
    head = u8(buf, p)
    width = head & 7
    if head & 0xF8 != 0x80 or width < 1 or width > 4 or p + 1 + width > body_end:
        return 0, -1
    inflated = 0
    for i in range(width):
        inflated = inflated << 8 | u8(buf, p + 1 + i)
    return inflated, p + 1 + width


@small
def _is_text(buf: Bytes, at: int, end: int, low: int, high: int, length: int) -> bool:
    """Whether buf[at:end] is exactly the text of `length` bytes that `low` and `high` hold, little-endian."""
    if end - at != length:
        return False
    for i in range(length):
        expected = (low >> (8 * i)) & 0xFF if i < 7 else (high >> (8 * (i - 7))) & 0xFF
        if u8(buf, at + i) != expected:
            return False
    return True


_BEGIN: Final = int.from_bytes(b"BEGIN", "little")
_COMMIT: Final = int.from_bytes(b"COMMIT", "little")
_SAVEPOI: Final = int.from_bytes(b"SAVEPOI", "little")
_NT: Final = int.from_bytes(b"NT ", "little")
_SAVEPOINT_BYTES: Final = 10


@small
def _query(
    buf: Bytes,
    state: Words,
    txs: Grid,
    intervals: Cube,
    counts: Words,
    domains: Grid,
    marks: Grid,
    names: Bytes,
    pos: int,
    body_end: int,
    event_s: int,
) -> int:
    """A statement: the few that only group events are handled here, the others are Python's."""
    p = pos + 19
    if p + 13 > body_end:
        return fail(state, s.SHORT_BODY)
    p += 13 + u16(buf, p + 11) + u8(buf, p + 8) + 1
    if p > body_end:
        return fail(state, s.SHORT_BODY)
    if _is_text(buf, p, body_end, _BEGIN, 0, 5):
        if state[s.TX_STATE] == s.INSIDE:
            return fail(state, s.INSIDE_TX)
        if state[s.TX_STATE] == s.OUTSIDE:
            open_tx(state, event_s, s.INSIDE)
            status = number_tx(state, True)
            if status != s.NEED_MORE:
                return status
        state[s.TX_STATE] = s.INSIDE
        return s.NEED_MORE
    if state[s.TX_STATE] != s.INSIDE:
        return s.ASK
    if _is_text(buf, p, body_end, _COMMIT, 0, 6):
        finish_tx(state, txs, intervals, counts, domains, True)
        return s.NEED_MORE
    if body_end - p > _SAVEPOINT_BYTES and _is_text(buf, p, p + 10, _SAVEPOI, _NT, 10) and state[s.TX_IS_XA] == 0:
        length = body_end - p - _SAVEPOINT_BYTES
        mark = state[s.N_MARKS]
        if state[s.TX_SKIP] == 0:
            if mark >= marks.shape[0] or length > s.NAME_BYTES_MAX:
                return s.ASK
            marks[mark, s.M_ROWS] = state[s.TX_ROWS_SEEN]
            marks[mark, s.M_BYTES] = length
            copy_bytes(names, mark * s.NAME_BYTES_MAX, buf, p + _SAVEPOINT_BYTES, length)
            state[s.N_MARKS] = mark + 1
        return s.NEED_MORE
    return s.ASK


@small
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
    event_s: int,
    anonymous: bool,
) -> int:
    p = pos + 19
    if p + 25 > body_end:
        return fail(state, s.SHORT_BODY)
    commit_us = 0
    if p + 49 <= body_end:  # MySQL 8: when it was committed here and, if that is not the same, where it came from
        commit_us = u56(buf, p + 42)
        if commit_us >> 55:
            if p + 56 > body_end:
                return fail(state, s.SHORT_BODY)
            commit_us = u56(buf, p + 49)
    sid = -1
    if not anonymous:
        low, high = i64(buf, p + 1), i64(buf, p + 9)
        for i in range(state[s.N_SIDS]):
            if sids[i, 0] == low and sids[i, 1] == high and sids[i, 2] == 0:
                sid = i
                break
        if sid < 0:
            return s.NEW_SID
        if counts[sid] + 1 >= intervals.shape[1]:
            return s.GROW_SET
    return begin_mysql(
        state, intervals, counts, start_intervals, start_counts, sid, i64(buf, p + 17), commit_us, event_s, anonymous
    )


@small
def _mariadb_gtid(buf: Bytes, state: Words, domains: Grid, pos: int, body_end: int, event_s: int) -> int:
    p = pos + 19
    if p + 13 > body_end:
        return fail(state, s.SHORT_BODY)
    domain_id = u32(buf, p + 8)
    flags = u8(buf, p + 12)
    for i in range(state[s.N_DOMAINS]):
        if domains[i, s.D_ID] == domain_id:
            return begin_mariadb(state, domains, i, u32(buf, pos + 5), i64(buf, p), flags, event_s)
    return s.NEW_DOMAIN


@small
def _look(buf: Bytes, end: int, state: Words, crc: Table) -> int:
    """Check the event at POS as far as all kinds are alike, and note where it ends. NEED_MORE: it is not all here."""
    pos = state[s.POS]
    size = u32(buf, pos + 9)
    kind = u8(buf, pos + 4)
    state[s.SIZE] = size
    state[s.AFTER] = state[s.OFFSET]
    check = state[s.HAS_CHECKSUM] if not state[s.IS_INNER] else 0
    if size < 19 + 4 * check:
        return fail(state, s.BAD_SIZE)
    if size > state[s.EVENT_BYTES_MAX]:
        return fail(state, s.TOO_LARGE)
    if size > end - pos:
        return s.NEED_MORE
    if kind == 15 or kind == 4:
        state[s.BODY_END] = pos + size  # these two say themselves, or hide, whether they have a checksum
        check = 0
    else:
        state[s.BODY_END] = pos + size - 4 * check
    if check:
        c = crc_of(crc, buf, pos, pos + size - 4, 0xFFFFFFFF) ^ ALL_BITS
        if np.int64(c) != u32(buf, pos + size - 4):
            return fail(state, s.BAD_CHECKSUM)
    if state[s.IS_INNER]:
        return s.ASK
    flags = u16(buf, pos + 17)
    log_pos = u32(buf, pos + 13)
    if flags & 0x20 or kind == 27 or kind == 41 or (log_pos == 0 and (kind == 15 or kind == 4)):
        return s.ASK
    after = state[s.OFFSET] + size
    if log_pos != 0:
        ahead = (log_pos - after) & 0xFFFFFFFF
        if ahead != 0:
            if state[s.IS_FILE] or ahead >= 0x80000000:
                return fail(state, s.BAD_POSITION)
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
    I64_2,  # marks: savepoints
    U8,  # names: those of the savepoints, one after the other
)


@kernel(_SIGNATURE)
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
    marks: Grid,
    names: Bytes,
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
        kind = u8(buf, pos + 4)
        status = s.NEED_MORE
        if kind == 19:
            if state[s.TX_STATE] == s.OUTSIDE:
                return fail(state, s.OUTSIDE_TX)
            if state[s.TX_IS_XA] and (state[s.TX_SKIP] == 0 or state[s.HOLDS_SKIPPED]):
                return s.ASK
            if state[s.TX_SKIP] == 0:
                status = table_map(buf, state, hashed, tables, pool, pos, body_end)
        elif (23 <= kind <= 25) or (30 <= kind <= 32) or kind == 39 or (166 <= kind <= 171):
            if state[s.TX_STATE] == s.OUTSIDE:
                return fail(state, s.OUTSIDE_TX)
            if state[s.TX_IS_XA] and (state[s.TX_SKIP] == 0 or state[s.HOLDS_SKIPPED]):
                return s.ASK
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
                if status == s.NEED_MORE:
                    state[s.TX_ROWS_SEEN] += 1
            else:
                state[s.COUNT_SKIPPED] += size
        elif kind == 2:
            status = _query(buf, state, txs, intervals, counts, domains, marks, names, pos, body_end, u32(buf, pos))
        elif kind == 16:
            if state[s.TX_STATE] != s.INSIDE:
                return fail(state, s.OUTSIDE_TX)
            finish_tx(state, txs, intervals, counts, domains, True)
        elif kind == 33 or kind == 34 or kind == 162:
            if state[s.TX_STATE] != s.OUTSIDE:
                return fail(state, s.INSIDE_TX)
            if (kind == 162) != (state[s.FLAVOR] == s.MARIADB):
                return fail(state, s.OTHER_FLAVOR)  # its number would be an index into the wrong array
            event_s = u32(buf, pos)
            if kind == 162:
                status = _mariadb_gtid(buf, state, domains, pos, body_end, event_s)
            else:
                status = _gtid(
                    buf,
                    state,
                    sids,
                    intervals,
                    counts,
                    start_intervals,
                    start_counts,
                    pos,
                    body_end,
                    event_s,
                    kind == 34,
                )
        elif kind == s.MARK_TYPE and state[s.IS_INNER]:
            if size != 27:
                return fail(state, s.BAD_SIZE)
            state[s.OFFSET] = i64(buf, pos + 19)
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


@kernel(types.int64(U8_READ, types.int64, I64, U32_READ))
def look(buf: Bytes, end: int, state: Words, crc: Table) -> int:
    """Check the event at POS without walking on: ASK if it is here and sound, else what `scan` would answer."""
    if end - state[s.POS] < 19:
        return s.NEED_MORE
    return _look(buf, end, state, crc)
