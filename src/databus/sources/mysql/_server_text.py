"""Text in the server's character sets as Python's str, and back: for statements, members of ENUM and SET, defaults.

Exactly what the server's own conversion makes of it; rows go through kernels that use the same tables. A byte that is
no text stays in a str as Python's `surrogateescape` has it, U+DC80 to U+DCFF.
"""

import re
from functools import cache
from typing import Final

from databus.sources.mysql._charsets import UNKNOWN, UTF8MB3
from databus.sources.mysql._definition import BINARY
from databus.sources.mysql.rows import _code_points as tables

_REPLACEMENT: Final = "?"  # what servers put for a character that the other set lacks
_CODECS: Final = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_SUPPLEMENTARY: Final = frozenset({"utf8mb4", "utf16", "utf16le", "utf32", "gb18030", BINARY})
_REPLACED: Final = {("cp932", "\u6661"): "\u6659"}
"""The one character that servers bring into another set as another character."""
_BEYOND: Final = re.compile("[\U00010000-\U0010ffff]")
"""Characters that utf8mb3 does not have: of their four bytes, none is valid text there."""


def decoded(raw: bytes, charset: str) -> str:
    """Bytes of that character set as text; an invalid byte becomes a surrogate. `binary` is taken for UTF-8.

    >>> decoded(bytes([0xB0, 0xA1]), "euckr"), decoded(bytes([0xFD]), "cp866") == chr(0xB2)
    ('가', True)
    """
    if charset in _CODECS:
        return _of_units(raw, charset)
    if charset == BINARY or tables.UNICODE.get(charset) == tables.UTF8:
        text = raw.decode("utf-8", "surrogateescape")
        return _BEYOND.sub(_as_bytes, text) if charset == UTF8MB3 else text
    if charset != "swe7" and raw.isascii():
        return raw.decode("ascii")
    code_points = tables.tables_of(charset)
    if not code_points.double.size:
        return raw.decode("latin-1").translate(_singles(charset))
    return _of_several(raw, code_points)


def _as_bytes(match: re.Match[str]) -> str:
    return "".join(map(_escaped, match[0].encode()))


def encoded(text: str, charset: str) -> bytes:
    """Text as bytes of that character set. Raises `UnicodeEncodeError` for a character that it lacks, or has twice."""
    if charset in _CODECS:
        return text.encode(_CODECS[charset])
    if charset == BINARY or tables.UNICODE.get(charset) == tables.UTF8:
        return text.encode("utf-8", "surrogateescape")
    known = _sequences(charset)
    pieces = []
    for at, character in enumerate(text):
        piece = bytes([ord(character) - 0xDC00]) if "\udc80" <= character <= "\udcff" else known.get(character)
        if piece is None:
            raise UnicodeEncodeError(charset, text, at, at + 1, f"{charset} does not have it, or has it twice")
        pieces.append(piece)
    return b"".join(pieces)


def converted(text: str, charset: str) -> str:
    """Text as the server converts it to a character set: with a question mark for what that lacks."""
    if text.isascii() and charset != "swe7":
        return text
    return "".join(
        character if _has(charset, character) else _REPLACED.get((charset, character), _REPLACEMENT)
        for character in text
    )


def _has(charset: str, character: str) -> bool:
    if "\ud800" <= character <= "\udfff":
        return True  # bytes stay
    if character > "\uffff":
        return charset in _SUPPLEMENTARY
    return charset == BINARY or charset in tables.UNICODE or character in _characters(charset)


def _of_units(raw: bytes, charset: str) -> str:
    codec = _CODECS[charset]
    text = raw.decode(codec, "replace")
    if "\ufffd" in text and text.encode(codec) != raw:
        text = text.replace("\ufffd", UNKNOWN)
    if charset == "ucs2":
        text = "".join(character if character <= "\uffff" else UNKNOWN for character in text)
    return text


@cache
def _singles(charset: str) -> dict[int, str]:
    single = tables.tables_of(charset).single.tolist()
    return {byte: chr(point) if point < 0x110000 else _escaped(byte) for byte, point in enumerate(single)}


def _escaped(byte: int) -> str:
    return chr(0xDC00 + byte) if byte >= 0x80 else UNKNOWN


def _of_several(raw: bytes, code_points: tables.CodePointTables) -> str:
    pieces = []
    at = 0
    while at < len(raw):
        point, size = _point(raw, at, code_points)
        pieces.append(chr(point) if point < 0x110000 else _escaped(raw[at]))
        at += size
    return "".join(pieces)


def _point(raw: bytes, at: int, code_points: tables.CodePointTables) -> tuple[int, int]:
    """The code point at a place, `NO_CHARACTER` where there is none, and the bytes that it takes."""
    point = int(code_points.single[raw[at]])
    if point < 0x110000:
        return point, 1
    if point == tables.LEADS_TWO_OR_FOUR and raw[at + 1 : at + 2].isdigit():
        return _quadruple(raw[at : at + 4], code_points)
    width = 3 if point == tables.LEADS_THREE else 2
    if point == tables.NO_CHARACTER or at + width > len(raw):
        return tables.NO_CHARACTER, 1
    pair = raw[at + width - 2] << 8 | raw[at + width - 1]
    point = int((code_points.triple if width == 3 else code_points.double)[pair])
    return point, width if point < 0x110000 else 1


def _quadruple(raw: bytes, code_points: tables.CodePointTables) -> tuple[int, int]:
    if len(raw) < 4 or not 0x81 <= raw[2] <= 0xFE or not 0x30 <= raw[3] <= 0x39:
        return tables.NO_CHARACTER, 1
    number = (((raw[0] - 0x81) * 10 + raw[1] - 0x30) * 126 + raw[2] - 0x81) * 10 + raw[3] - 0x30
    if number < tables.GB18030_BMP:
        return int(code_points.quadruple[number]), 4
    point = number - tables.GB18030_ASTRAL + 0x10000
    return point if 0x10000 <= point < 0x110000 else tables.NO_CHARACTER, 4


@cache
def _sequences(charset: str) -> dict[str, bytes | None]:
    """The bytes of each character of a set made of tables; None where it has it twice."""
    sequences: dict[str, bytes | None] = {}

    def add(point: int, sequence: bytes) -> None:
        if point < 0x110000:
            sequences[chr(point)] = None if chr(point) in sequences else sequence

    own = tables.tables_of(charset)
    for byte, point in enumerate(own.single.tolist()):
        add(point, bytes([byte]))
    for pair, point in enumerate(own.double.tolist()):
        add(point, pair.to_bytes(2, "big"))
    for pair, point in enumerate(own.triple.tolist()):
        add(point, b"\x8f" + pair.to_bytes(2, "big"))
    for number, point in enumerate(own.quadruple.tolist()):
        rest, d = divmod(number, 10)
        rest, c = divmod(rest, 126)
        a, b = divmod(rest, 10)
        add(point, bytes([0x81 + a, 0x30 + b, 0x81 + c, 0x30 + d]))
    return sequences


@cache
def _characters(charset: str) -> frozenset[str]:
    return frozenset(_sequences(charset))
