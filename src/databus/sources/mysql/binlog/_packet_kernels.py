"""Packets of a replication connection, taken apart: the events inside, one right after another. Imported late."""

# mypy: disable-error-code="arg-type, assignment, call-overload, no-any-return, operator, return-value"
# In a kernel an int and an element of an array are the same thing, in mypy's eyes they are not.
# ruff: noqa: PLR1714 - a kernel has no cheap `in`

from numba import types

from databus.sources.mysql._compile import kernel, small
from databus.sources.mysql.binlog import _kernel_state as s
from databus.sources.mysql.binlog._kernel_types import I64, U8, U8_READ, Bytes, Words, copy_bytes, u8, u32


@small
def _message_ends(out: Bytes, packet: Words) -> int:
    start, stop = packet[s.P_WHOLE], packet[s.P_OUT]
    if packet[s.P_STATUS] != 0:
        return s.SPLIT_OTHER
    if stop - start < 19 or u32(out, start + 9) != stop - start:
        return s.SPLIT_LENGTH
    kind = u8(out, start + 4)
    if kind == 33 or kind == 34 or kind == 42 or kind == 162:  # a GTID, of whichever server
        packet[s.P_BEGIN] = start
    packet[s.P_KIND] = kind
    packet[s.P_WHOLE] = stop
    packet[s.P_STATUS] = -1
    return s.SPLIT_MORE


@kernel(types.int64(U8_READ, U8, I64))
def split(data: Bytes, out: Bytes, packet: Words) -> int:
    """Copy the events inside the packets of `data` to `out`, which has room for all of it, one right after another."""
    i, end = 0, data.shape[0]
    status = s.SPLIT_MORE
    while i < end and status == s.SPLIT_MORE:
        if packet[s.P_LEFT] == 0:
            packet[s.P_HEAD] |= u8(data, i) << (8 * packet[s.P_HEAD_N])
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
            packet[s.P_STATUS] = u8(data, i)
            packet[s.P_LEFT] -= 1
            i += 1
        take = min(packet[s.P_LEFT], end - i)
        at = packet[s.P_OUT]
        copy_bytes(out, at, data, i, take)
        packet[s.P_OUT] = at + take
        packet[s.P_LEFT] -= take
        i += take
        if packet[s.P_LEFT] == 0 and not packet[s.P_CONTINUES]:
            status = _message_ends(out, packet)
    packet[s.P_READ] = i
    return status
