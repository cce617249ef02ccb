"""Character sets by the names that definitions have, by collation, and by collation number as the log has it.

What text is in them, as Python's str and back, is in `_server_text`. A byte that is no text stays in a str as Python's
`surrogateescape` has it, U+DC80 to U+DCFF.
"""

from bisect import bisect_right
from typing import Final

from databus.sources.mysql._definition import BINARY

UTF8MB3: Final = "utf8mb3"
UNKNOWN: Final = "\udcff"
"""In a str: a byte that is not valid text, or that is unknown."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


BYTES_A_CHARACTER: Final = {
    **dict.fromkeys(
        _words(
            "armscii8 ascii binary cp1250 cp1251 cp1256 cp1257 cp850 cp852 cp866 dec8 geostd8 greek hebrew hp8 keybcs2 "
            "koi8r koi8u latin1 latin2 latin5 latin7 macce macroman swe7 tis620"
        ),
        1,
    ),
    **dict.fromkeys(_words("big5 cp932 euckr gb2312 gbk sjis ucs2"), 2),
    **dict.fromkeys(_words("eucjpms ujis utf8mb3"), 3),
    **dict.fromkeys(_words("gb18030 utf16 utf16le utf32 utf8mb4"), 4),
}
"""The most bytes that one character takes, by character set: all that the supported servers have."""

_FIRST_COLLATIONS: Final = _words(
    "big5 latin2 dec8 cp850 latin1 hp8 koi8r latin1 latin2 swe7 ascii ujis sjis cp1251 latin1 hebrew . tis620 euckr "
    "latin7 latin2 koi8u cp1251 gb2312 greek cp1250 latin2 gbk cp1257 latin5 latin1 armscii8 utf8mb3 cp1250 ucs2 cp866 "
    "keybcs2 macce macroman cp852 latin7 latin7 macce cp1250 utf8mb4 utf8mb4 latin1 latin1 latin1 cp1251 cp1251 cp1251 "
    "macroman utf16 utf16 utf16le cp1256 cp1257 cp1257 utf32 utf32 utf16le binary armscii8 ascii cp1250 cp1256 cp866 "
    "dec8 greek hebrew hp8 keybcs2 koi8r koi8u utf8mb3 latin2 latin5 latin7 cp850 cp852 swe7 utf8mb3 big5 euckr gb2312 "
    "gbk sjis tis620 ucs2 ujis geostd8 geostd8 latin1 cp932 cp932 eucjpms eucjpms cp1250 . utf16"
)
"""By collation number, from 1 on; a dot where the number belongs to none."""

_RANGES: Final = (
    (101, "utf16"),
    (128, "ucs2"),
    (160, "utf32"),
    (192, UTF8MB3),
    (224, "utf8mb4"),
    (248, "gb18030"),
    (251, "utf8mb4"),
    (576, UTF8MB3),
    (608, "utf8mb4"),
    (640, "ucs2"),
    (672, "utf16"),
    (736, "utf32"),
    (768, "."),
    (2048, UTF8MB3),
    (2304, "utf8mb4"),
    (2560, "ucs2"),
    (2816, "utf16"),
    (3072, "utf32"),
    (3328, "."),
)
_STARTS: Final = [start for start, _ in _RANGES]
_NOPAD: Final = 1024  # MariaDB: the collation of that number less this, without padding
_UCA_14: Final = 2048
_UCA_WITHOUT_CHARSET: Final = "uca1400"


def charset_of_number(number: int) -> str | None:
    """The character set of a collation number of MySQL or MariaDB; None for a number that neither has.

    >>> charset_of_number(255), charset_of_number(63), charset_of_number(1069), charset_of_number(0)
    ('utf8mb4', 'binary', 'utf8mb4', None)
    """
    if _NOPAD < number < _UCA_14:
        number -= _NOPAD
    if number <= 0:
        return None
    if number <= len(_FIRST_COLLATIONS):
        name = _FIRST_COLLATIONS[number - 1]
    else:
        name = _RANGES[max(bisect_right(_STARTS, number) - 1, 0)][1]
    return None if name == "." else name


def canonical_charset(name: str) -> str | None:
    """The one name of a character set: lower case, `utf8` as what it means. None if there is no such set."""
    lower = name.lower()
    lower = UTF8MB3 if lower == "utf8" else lower
    return lower if lower in BYTES_A_CHARACTER else None


def charset_of_collation(name: str) -> str | None:
    """The character set that a collation's name begins with; None for a name without one, such as `uca1400_ai_ci`.

    >>> charset_of_collation("utf8_bin"), charset_of_collation("binary"), charset_of_collation("uca1400_ai_ci")
    ('utf8mb3', 'binary', None)
    """
    lower = name.lower()
    return BINARY if lower == BINARY else canonical_charset(lower.partition("_")[0])


def goes_with_any_charset(collation: str) -> bool:
    """Whether the collation takes its character set from where it stands, as MariaDB's newest do."""
    return collation.lower().startswith(_UCA_WITHOUT_CHARSET)


def is_text(text: str) -> bool:
    """Whether all of it is text.

    >>> is_text("é"), is_text("a" + UNKNOWN)
    (True, False)
    """
    return not any("\ud800" <= character <= "\udfff" for character in text)


def shown(text: str) -> str:
    """The text with U+FFFD for bytes that are not valid text."""
    if is_text(text):
        return text
    return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
