"""A walk over the headers of a log file's events, for what its GTIDs are and how it ends. Imported late."""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.
# ruff: noqa: PLR1714 - a kernel has no cheap `in`

from typing import Final

from numba import types

from databus.sources.mysql._compile import kernel
from databus.sources.mysql.binlog._kernel_types import I64, U8_READ, Bytes, Words, u8, u32

W_AT: Final = 0  # where the next event begins in the data; beyond its end where the last event is larger
W_FOUND: Final = 1  # how many GTIDs there are
W_ANONYMOUS: Final = 2  # transactions without one
W_LAST_KIND: Final = 3  # of the last whole event
W_LAST_BYTES: Final = 4
W_SIZE: Final = 5

WALK_MORE: Final = 0
WALK_BROKEN: Final = 1  # a size that no event has


@kernel(types.int64(U8_READ, I64, I64))
def walk_events(data: Bytes, offsets: Words, walk: Words) -> int:
    """Note where the GTID events of `data` begin, as many as fit into `offsets`. Large events need not be whole."""
    at, end = walk[W_AT], data.shape[0]
    while at + 19 <= end and walk[W_FOUND] < offsets.shape[0]:
        size = u32(data, at + 9)
        if size < 19:
            walk[W_AT] = at
            return WALK_BROKEN
        kind = u8(data, at + 4)
        if kind == 33 or kind == 42 or kind == 162:
            if at + size > end:
                break
            offsets[walk[W_FOUND]] = at
            walk[W_FOUND] += 1
        elif kind == 34:
            walk[W_ANONYMOUS] += 1
        elif (kind == 3 or kind == 4) and at + size > end:  # the caller reads what stands in it
            break
        walk[W_LAST_KIND] = kind
        walk[W_LAST_BYTES] = size
        at += size
    walk[W_AT] = at
    return WALK_MORE
