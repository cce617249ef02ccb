"""Tables: which of those that the log has named an event is of. Imported late."""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.

from databus.sources.mysql._compile import small
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._kernel_types import Bytes, Grid, Words, u8, u32, u48, u64
from databus.sources.mysql.binlog._transaction_kernels import fail


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
