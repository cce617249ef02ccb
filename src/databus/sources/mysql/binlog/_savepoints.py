"""Savepoints of the open transaction, as a server keeps them: where ROLLBACK TO goes back to."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final

from databus.core import LimitExceeded

SAVEPOINTS_MAX: Final = 1 << 16

# utf8_general_ci is older than today's Unicode: where it knows capitals and accents, and which of today's it does not.
_BLOCKS: Final = frozenset((0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x1E, 0x1F, 0x21, 0x24, 0xFF))
_FROM: Final = "\u00df\u03f2\u0439\u1f71\u1f73\u1f75\u1f77\u1f79\u1f7b\u1f7d"
_TO: Final = "S\u03a3\u0419\u1fbb\u1fc9\u1fcb\u1fdb\u1ff9\u1feb\u1ffb"
_OTHERS: Final = dict(zip(_FROM, _TO, strict=True))
_UNKNOWN: Final = (
    "180 19A 19E 23C 23F-240 242 247 249 24B 24D 24F-252 25C 261 265-266 26A-26C 271 27D 282 287 289 28C "
    "29D-29E 340-341 343-344 371 373-374 377 37B-37E 385 387 3D7 3D9 3F3 3F5 3F8 3FB 419 48B 4C6 4CA "
    "4CE-4CF 4F7 4FB 4FD 4FF 501 503 505 507 509 50B 50D 50F 511 513 515 517 519 51B 51D 51F 521 523 525 "
    "527 529 52B 52D 52F 1EFB 1EFD 1EFF 1FBB 1FC1 1FC9 1FCB 1FCD-1FCF 1FD3 1FDB 1FDD-1FDF 1FE3 1FEB "
    "1FED-1FEF 1FF9 1FFB 1FFD 2126 212A-212B 214E 2184 219A-219B 21AE 21CD-21CF"
)


def _characters(ranges: str) -> frozenset[str]:
    ends = (pair.partition("-") for pair in ranges.split())
    return frozenset(chr(code) for low, _, high in ends for code in range(int(low, 16), int(high or low, 16) + 1))


_OWN: Final = _characters(_UNKNOWN)

_NAME: Final = re.compile(rb"(?:`((?:[^`]|``)*)`|\"((?:[^\"]|\"\")*)\"|([^\s;/#]+))")


class Savepoints:
    """By name, in the order in which they were set, each with how many rows events were before it."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}

    def clear(self) -> None:
        """Another transaction begins."""
        self._rows.clear()

    def set(self, name: bytes, rows: int) -> None:
        """A savepoint replaces the one of the same name. name: as it was written. Raises `LimitExceeded`."""
        key = key_of(name)
        self._rows.pop(key, None)
        if len(self._rows) >= SAVEPOINTS_MAX:
            raise LimitExceeded(f"one transaction sets more than {SAVEPOINTS_MAX} savepoints of different names")
        self._rows[key] = rows

    def roll_back(self, name: bytes) -> int | None:
        """How many rows events stay; those that were set later are gone, this one is not. None: there is none."""
        key = next((candidate for candidate in _keys_of(name) if candidate in self._rows), None)
        if key is None:
            return None
        while next(reversed(self._rows)) != key:
            self._rows.popitem()
        return self._rows[key]


def key_of(name: bytes) -> str:
    """What two names have in common that servers take for the same. Raises `ValueError` if it is none.

    Servers compare them by utf8_general_ci: without case and accents, character by character.

    >>> key_of(b"`a``B`") == key_of('"\u00c0`b"'.encode()), key_of(b"`a`") == key_of(b"b")
    (True, False)
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no savepoint's name")
    quoted, double, bare = match.groups()
    raw = quoted.replace(b"``", b"`") if quoted is not None else bare
    return _key(double.replace(b'""', b'"') if raw is None else raw)


def _keys_of(name: bytes) -> Iterator[str]:
    """What a name may mean behind ROLLBACK TO: MySQL 5.7 does not double the quotes in it there."""
    if _NAME.fullmatch(name):
        yield key_of(name)
    if len(name) > 1 and name[:1] == name[-1:] == b"`":
        yield _key(name[1:-1])


def _key(name: bytes) -> str:
    return "".join(map(_weight, name.decode("utf-8", "surrogateescape")))


def _weight(character: str) -> str:
    if character in _OWN or ord(character) >> 8 not in _BLOCKS:
        return character
    base = _OTHERS.get(character) or unicodedata.normalize("NFD", character)[0]
    upper = base.upper()
    return upper if len(upper) == 1 else base
