"""Character sets of both servers as tables of code points, the same that the server's own conversion has.

Python's codecs have nearly all of it; where the servers differ, it is written here (found by converting every byte
sequence on MariaDB 10.11, MySQL 5.7 and 8.0, which agree with each other; the tests do it again). Bytes for which the
server has no character, or U+FFFD, are no text here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from databus.core import UnsupportedFeature

NO_CHARACTER: Final = 0xFFFF_FFFF
LEADS_TWO: Final = 0xFFFF_FFFE
LEADS_THREE: Final = 0xFFFF_FFFD
LEADS_TWO_OR_FOUR: Final = 0xFFFF_FFFC
"""In the table of single bytes, instead of a code point."""

GB18030_BMP: Final = 39_420
GB18030_ASTRAL: Final = 189_000
"""Four-byte sequences of GB18030, counted: those below the first are in the table, from the second on is U+10000."""

UTF8: Final = 1
UCS2: Final = 2
UTF16: Final = 3
UTF16LE: Final = 4
UTF32: Final = 5
TABLES: Final = 0
UNICODE: Final = {
    "utf8": UTF8,
    "utf8mb3": UTF8,
    "utf8mb4": UTF8,
    "ucs2": UCS2,
    "utf16": UTF16,
    "utf16le": UTF16LE,
    "utf32": UTF32,
}
"""The charsets that need no tables."""

_EMPTY: Final = np.zeros(0, dtype=np.uint32)
_CODECS: Final = {
    "ascii": "ascii",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "hp8": "hp_roman8",
    "koi8r": "koi8-r",
    "koi8u": "koi8-u",
    "latin1": "cp1252",
    "latin2": "iso8859-2",
    "latin5": "iso8859-9",
    "latin7": "iso8859-13",
    "macce": "mac_latin2",
    "macroman": "mac_roman",
    "tis620": "tis_620",
    "dec8": "latin-1",
    "swe7": "ascii",
    "geostd8": "cp1252",
    "armscii8": "latin-1",
    "keybcs2": "cp437",
    "big5": "big5",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "gb18030": "gb18030",
    "euckr": "cp949",
    "sjis": "shift_jis",
    "cp932": "cp932",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
}
_MULTIBYTE: Final = frozenset({"big5", "gb2312", "gbk", "gb18030", "euckr", "sjis", "cp932", "ujis", "eucjpms"})
_NONE: Final = "\ufffd"
_ARMENIAN: Final = (
    "\u2741\xa7\u0589)(\xbb\xab\u2014.\u055d,-\u055f\u2026\u055c\u055b\u055e"
    + "".join(chr(0x531 + i) + chr(0x561 + i) for i in range(38))
    + "\u2019'"
)
_KEYBCS2: Final = (
    "\u010c\xfc\xe9\u010f\xe4\u010e\u0164\u010d\u011b\u011a\u0139\xcd\u013e\u013a\xc4\xc1"
    "\xc9\u017e\u017d\xf4\xf6\xd3\u016f\xda\xfd\xd6\xdc\u0160\u013d\xdd\u0158\u0165"
    "\xe1\xed\xf3\xfa\u0148\u0147\u016e\xd4\u0161\u0159\u0155\u0154"
)
_GEORGIAN: Final = (
    "\u10d0\u10d1\u10d2\u10d3\u10d4\u10d5\u10d6\u10f1\u10d7\u10d8\u10d9\u10da\u10db\u10dc\u10f2\u10dd\u10de\u10df"
    "\u10e0\u10e1\u10e2\u10f3\u10e3\u10e4\u10e5\u10e6\u10e7\u10e8\u10e9\u10ea\u10eb\u10ec\u10ed\u10ee\u10f4\u10ef"
    "\u10f0\u10f5"
)
_OWN_BYTES: Final[dict[str, tuple[tuple[int, str], ...]]] = {
    "latin1": ((0x81, "\x81"), (0x8D, "\x8d"), (0x8F, "\x8f\x90"), (0x9D, "\x9d")),
    "cp1256": ((0x8A, _NONE), (0x8F, _NONE), (0x98, _NONE), (0x9A, _NONE), (0x9F, _NONE), (0xAA, _NONE),
               (0xC0, _NONE), (0xFF, _NONE)),
    "cp866": ((0xFC, "\u207f\xb2"),),
    "greek": ((0xA1, "\u02bd\u02bc"), (0xA4, _NONE * 2), (0xAA, _NONE)),
    "hebrew": ((0xAF, "\u203e"),),
    "koi8u": ((0x95, "\u2022"),),
    "cp932": ((0x80, _NONE), (0xA0, _NONE), (0xFD, _NONE * 3)),
    "swe7": ((0x40, "\xc9"), (0x5B, "\xc4\xd6\xc5\xdc"), (0x60, "\xe9"), (0x7B, "\xe4\xf6\xe5\xfc" + _NONE)),
    "dec8": ((0xA4, _NONE), (0xA6, _NONE), (0xA8, "\xa4"), (0xAC, _NONE * 4), (0xB4, _NONE), (0xB8, _NONE),
             (0xBE, _NONE), (0xD0, _NONE), (0xD7, "\u0152"), (0xDD, "\u0178" + _NONE), (0xF0, _NONE),
             (0xF7, "\u0153"), (0xFD, "\xff" + _NONE * 2)),
    "armscii8": ((0xA1, _ARMENIAN),),
    "keybcs2": ((0x80, _KEYBCS2),),
    "geostd8": ((0x83, _NONE), (0x88, _NONE), (0x8A, _NONE), (0x8C, _NONE), (0x8E, _NONE), (0x98, _NONE * 3),
                (0x9C, _NONE), (0x9E, _NONE * 2), (0xC0, _GEORGIAN + _NONE * 23 + "\u2116" + _NONE * 2)),
}  # fmt: skip
"""Where the server's characters of single bytes are others than the codec's: from a byte on, these."""

_OWN_PAIRS: Final[dict[str, tuple[tuple[bytes, str], ...]]] = {
    "big5": ((b"\xa1\x5a", _NONE), (b"\xa1\xc3", _NONE), (b"\xa1\xc5", _NONE), (b"\xa1\xfe", _NONE),
             (b"\xa2\x40", _NONE), (b"\xa2\xcc", _NONE), (b"\xa2\xce", _NONE),
             (b"\xf9\xd6", "\u7881\u92b9\u88cf\u58bb\u6052\u7ca7\u5afa")),
    "sjis": ((b"\x81\x5f", "\\"),),
    "ujis": ((b"\xa1\xc0", "\\"),),
    "gb18030": ((b"\xa8\xbc", "\u1e3f"),),
}  # fmt: skip
"""The same for pairs of bytes, counted up in the second."""

_IBM_FIRST: Final = (0xF3, 0xF3)  # where eucjpms has the characters of IBM that no JIS has, behind 0x8F


@dataclass(frozen=True, slots=True, eq=False)
class CodePointTables:
    """Code points of one byte, of two (lead << 8 | trail), of three (after 0x8F), of four (GB18030, counted)."""

    single: NDArray[np.uint32]
    double: NDArray[np.uint32]
    triple: NDArray[np.uint32]
    quadruple: NDArray[np.uint32]


NO_TABLES: Final = CodePointTables(_EMPTY, _EMPTY, _EMPTY, _EMPTY)


@cache
def tables_of(charset: str) -> CodePointTables:
    """The tables of a character set. Raises `UnsupportedFeature` for one that neither server has."""
    codec = _CODECS.get(charset)
    if codec is None:
        raise UnsupportedFeature(f"the character set {charset!r} is unknown; leave out the columns that have it")
    single = np.array([_point(bytes([byte]), codec) for byte in range(256)], dtype=np.uint32)
    for first, characters in _OWN_BYTES.get(charset, ()):
        _put(single, first, characters)
    if charset not in _MULTIBYTE:
        return CodePointTables(single, _EMPTY, _EMPTY, _EMPTY)
    double = np.full(1 << 16, NO_CHARACTER, dtype=np.uint32)
    for pair in _pairs(0):
        double[pair[0] << 8 | pair[1]] = _eucjpms(pair) if charset == "eucjpms" else _point(pair, codec)
    for pair, characters in _OWN_PAIRS.get(charset, ()):
        _put(double, pair[0] << 8 | pair[1], characters)
    triple = _EMPTY
    if codec == "euc_jp":
        _put_own_use(double, 0xE000)
        triple = _triples(charset, codec)
    is_gb18030 = charset == "gb18030"
    leads = (double.reshape(256, 256) != NO_CHARACTER).any(axis=1)
    leads[0x81:0xFF] |= is_gb18030
    single[leads] = LEADS_TWO_OR_FOUR if is_gb18030 else LEADS_TWO
    single[0x8F] = LEADS_THREE if triple.size else single[0x8F]
    return CodePointTables(single, double, triple, _quadruples() if is_gb18030 else _EMPTY)


def _put(table: NDArray[np.uint32], first: int, characters: str) -> None:
    for offset, character in enumerate(characters):
        table[first + offset] = NO_CHARACTER if character == _NONE else ord(character)


def _pairs(first_trail: int) -> Iterator[bytes]:
    return (bytes([lead, trail]) for lead in range(0x80, 0x100) for trail in range(first_trail, 0x100))


def _point(sequence: bytes, codec: str) -> int:
    try:
        text = sequence.decode(codec)
    except UnicodeDecodeError:
        return NO_CHARACTER
    return ord(text) if len(text) == 1 else NO_CHARACTER


def _put_own_use(table: NDArray[np.uint32], first: int) -> None:
    """Ten rows of 94 characters for private use."""
    for row in range(10):
        start = (0xF5 + row) << 8 | 0xA1
        table[start : start + 94] = np.arange(first + row * 94, first + (row + 1) * 94)


def _triples(charset: str, codec: str) -> NDArray[np.uint32]:
    triple = np.full(1 << 16, NO_CHARACTER, dtype=np.uint32)
    for pair in _pairs(0xA1):
        triple[pair[0] << 8 | pair[1]] = _point(b"\x8f" + pair, codec)
    _put_own_use(triple, 0xE3AC)
    if charset == "eucjpms":
        triple[0xA2B7], triple[0xA2C3] = 0xFF5E, 0xFFE4
        lead, trail = _IBM_FIRST
        for point in _of_ibm():
            triple[lead << 8 | trail] = point
            lead, trail = (lead, trail + 1) if trail < 0xFE else (lead + 1, 0xA1)
    return triple


def _of_ibm() -> list[int]:
    """The characters that IBM added to Shift JIS and that no JIS has (but the numero sign), in their order there."""
    added = (_point(bytes([lead, trail]), "cp932") for lead in (0xFA, 0xFB, 0xFC) for trail in range(0x40, 0xFD))
    return [p for p in added if p != NO_CHARACTER and p not in (0xFFE2, 0xFFE4) and (p == 0x2116 or not _is_in_jis(p))]


def _is_in_jis(point: int) -> bool:
    try:
        return bool(chr(point).encode("euc_jp"))
    except UnicodeEncodeError:
        return False


def _eucjpms(pair: bytes) -> int:
    """A pair of eucjpms is Microsoft's character at that row and cell; half-width kana stand behind 0x8E."""
    row, cell = pair[0] - 0xA1, pair[1] - 0xA1
    if pair[0] == 0x8E:
        return _point(pair, "euc_jp")
    if not (0 <= row < 94 and 0 <= cell < 94):
        return NO_CHARACTER
    lead = 0x81 + (row >> 1) + (0x40 if row >= 62 else 0)
    trail = cell + 0x9F if row & 1 else cell + 0x40 + (1 if cell >= 63 else 0)
    return _point(bytes([lead, trail]), "cp932")


def _quadruples() -> NDArray[np.uint32]:
    table = np.full(GB18030_BMP, NO_CHARACTER, dtype=np.uint32)
    for number in range(GB18030_BMP):
        rest, d = divmod(number, 10)
        rest, c = divmod(rest, 126)
        a, b = divmod(rest, 10)
        table[number] = _point(bytes([0x81 + a, 0x30 + b, 0x81 + c, 0x30 + d]), "gb18030")
    table[((0 * 10 + 5) * 126 + (0xF4 - 0x81)) * 10 + 7] = 0xE7C7
    return table
