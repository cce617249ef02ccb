"""Parts of kernels: whether bytes are UTF-8, and code points as UTF-8."""

from typing import Final

from databus.sources.mysql._compile import part, small
from databus.sources.mysql.rows._memory import HIGH_BITS, load8, load64, lshr, store8

_EACH: Final = 0x0101010101010101  # a byte times this is a word of it


@small
def utf8_length(at: int, end: int) -> int:
    """The bytes of the character at `at`, or 0 if there is none that is whole and valid (Unicode, table 3-7)."""
    lead = load8(at)
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return 0
    if at + 1 >= end:
        return 0
    second = load8(at + 1)
    if lead < 0xE0:
        return 2 if second & 0xC0 == 0x80 else 0
    if at + 2 >= end or load8(at + 2) & 0xC0 != 0x80:
        return 0
    if lead < 0xF0:
        low = 0xA0 if lead == 0xE0 else 0x80
        high = 0x9F if lead == 0xED else 0xBF
        return 3 if low <= second <= high else 0
    if at + 3 >= end or load8(at + 3) & 0xC0 != 0x80:
        return 0
    low = 0x90 if lead == 0xF0 else 0x80
    high = 0x8F if lead == 0xF4 else 0xBF
    return 4 if low <= second <= high else 0


@part
def utf8_end(at: int, count: int) -> int:
    """Where the valid UTF-8 that begins at `at` ends, `at + count` if all of it is."""
    end = at + count
    while at < end:
        if at + 8 <= end and load64(at) & HIGH_BITS == 0:
            at += 8
            continue
        length = utf8_length(at, end)
        if length == 0:
            return at
        at += length
    return at


@small
def utf8_valid(at: int, count: int) -> bool:
    """Whether all of it is UTF-8."""
    return utf8_end(at, count) == at + count


@small
def _last_word(at: int, count: int) -> int:
    """The `count` < 8 bytes at `at` and zeros behind them; eight are read."""
    return load64(at) & ((1 << 8 * count) - 1)


@small
def has_high_bits(at: int, count: int) -> bool:
    """Whether there is a byte that is not ASCII; up to seven bytes more are read."""
    seen = 0
    for word in range(at, at + (count & ~7), 8):
        seen |= load64(word)
    seen |= _last_word(at + (count & ~7), count & 7)
    return seen & HIGH_BITS != 0


@small
def _has(word: int, byte: int, mask: int) -> bool:
    """Whether a byte of the word is this one, in the bits of `mask`."""
    difference = (word ^ byte * _EACH) & mask * _EACH
    return (difference - _EACH) & ~difference & HIGH_BITS != 0


@small
def _is_rare(word: int) -> bool:
    """Whether there is a lead byte after which not every continuation may follow: C0, C1, E0, ED and from F0 on."""
    return _has(word, 0xC0, 0xFE) or _has(word, 0xE0, 0xFF) or _has(word, 0xED, 0xFF) or _has(word, 0xF0, 0xF0)


@part
def utf8_surely(at: int, count: int) -> bool:
    """Whether all of it is UTF-8 for sure: a quick look at eight bytes at once, which knows of the most usual
    characters only. Up to seven bytes more are read.

    In each word the bits 7 say: of continuations (10......), and where lead bytes want some.
    """
    wanted, wrong, is_rare = 0, 0, False
    end = at + count
    while at < end:
        word = load64(at) if at + 8 <= end else _last_word(at, end - at)
        lead = word & (word << 1) & HIGH_BITS
        continuation = word & ~(word << 1) & HIGH_BITS
        lead3 = lead & (word << 2)
        wrong |= (wanted | lead << 8 | lead3 << 16) ^ continuation
        wanted = lshr(lead, 56) | lshr(lead3, 48)
        is_rare |= _is_rare(word)
        at += 8
    return wrong == 0 and wanted == 0 and not is_rare


@small
def put_utf8(to: int, point: int) -> int:
    """Write a code point; where it ends. `to` has room for four bytes."""
    if point < 0x80:
        store8(to, point)
        return to + 1
    if point < 0x800:
        store8(to, 0xC0 | point >> 6)
        store8(to + 1, 0x80 | (point & 0x3F))
        return to + 2
    if point < 0x10000:
        store8(to, 0xE0 | point >> 12)
        store8(to + 1, 0x80 | (point >> 6 & 0x3F))
        store8(to + 2, 0x80 | (point & 0x3F))
        return to + 3
    store8(to, 0xF0 | point >> 18)
    store8(to + 1, 0x80 | (point >> 12 & 0x3F))
    store8(to + 2, 0x80 | (point >> 6 & 0x3F))
    store8(to + 3, 0x80 | (point & 0x3F))
    return to + 4
