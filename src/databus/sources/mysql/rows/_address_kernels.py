"""The kernel of MariaDB's addresses. All arguments that say where something is are addresses of memory."""

from databus.sources.mysql._compile import kernel, small
from databus.sources.mysql.rows._memory import load8, load16be, load32, store8, store32

_UUID, _INET4 = 0, 1
_COLON, _DOT, _DASH = 0x3A, 0x2E, 0x2D


@small
def _hex_digit(to: int, digit: int) -> int:
    store8(to, digit + (0x30 if digit < 10 else 0x57))
    return to + 1


@small
def _uuid(at: int, to: int) -> int:
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            store8(to, _DASH)
            to += 1
        byte = load8(at + i)
        to = _hex_digit(_hex_digit(to, byte >> 4), byte & 15)
    return to


@small
def _inet4(at: int, to: int) -> int:
    for i in range(4):
        if i:
            store8(to, _DOT)
            to += 1
        byte = load8(at + i)
        if byte >= 100:
            to = _hex_digit(to, byte // 100)
        if byte >= 10:
            to = _hex_digit(to, byte // 10 % 10)
        to = _hex_digit(to, byte % 10)
    return to


@small
def _longest_gap(at: int) -> tuple[int, int]:
    """The first of the longest runs of words that are 0, and its end; 8 if there is none."""
    begin, end, run = 8, 8, 0
    for word in range(8):
        if load16be(at + 2 * word) == 0:
            run += 1
            if begin == 8 or run > end - begin:
                begin, end = word + 1 - run, word + 1
        else:
            run = 0
    return begin, end


@small
def _inet6(at: int, to: int) -> int:
    begin, end = _longest_gap(at)
    is_mapped = begin == 0 and end == 5 and load16be(at + 10) == 0xFFFF
    is_compatible = begin == 0 and end == 6
    words = 6 if is_mapped or is_compatible else 8
    word = 0
    while word < words:
        if word == begin:
            store8(to, _COLON)
            to += 1
            word = end
            if word >= words:
                store8(to, _COLON)
                to += 1
            continue
        if word:
            store8(to, _COLON)
            to += 1
        value = load16be(at + 2 * word)
        for shift in (12, 8, 4, 0):
            if value >> shift or shift == 0:
                to = _hex_digit(to, value >> shift & 15)
        word += 1
    if words == 6:
        if is_mapped:
            store8(to, _COLON)
            to += 1
        to = _inet4(at + 12, to)
    return to


@kernel("int64(int64, int64, int64, int64, int64, int64)")
def address_text(kind: int, rows: int, offsets: int, text: int, out_offsets: int, out: int) -> int:
    """Spell each row's address; a row without bytes (null) has no text. The bytes written.

    kind: 0 UUID, 1 INET4, 2 INET6, of 16, 4, 16 bytes. out: has room for 36, 15, 39 bytes a row.
    """
    to = out
    store32(out_offsets, 0)
    for row in range(rows):
        at = text + load32(offsets + 4 * row)
        if load32(offsets + 4 * row + 4) > load32(offsets + 4 * row):
            if kind == _UUID:
                to = _uuid(at, to)
            elif kind == _INET4:
                to = _inet4(at, to)
            else:
                to = _inet6(at, to)
        store32(out_offsets + 4 * row + 4, to - out)
    return to - out
