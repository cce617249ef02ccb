"""SQL as tokens, as the server's own lexer cuts it: quotes by sql_mode, comments, comments that are executed.

Any text ends in tokens or in `UnreadableStatement`, in time proportional to its length.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntFlag
from functools import cache
from typing import Final, NamedTuple

MARIADB: Final = "mariadb"
MYSQL: Final = "mysql"


class UnreadableStatement(Exception):
    """A statement, or a part of it, that databus does not understand; the message says which."""


class UnknownEffect(UnreadableStatement):
    """A statement whose effect depends on something that neither the log nor the configuration says."""


def words(text: str) -> tuple[str, ...]:
    """The words of a long list."""
    return tuple(text.split())


class SqlMode(IntFlag):
    """The bits of sql_mode, as statements in the log carry them, that change what DDL means."""

    REAL_AS_FLOAT = 0x1
    ANSI_QUOTES = 0x4
    ORACLE = 0x200
    MAXDB = 0x1000
    NO_AUTO_VALUE_ON_ZERO = 0x8_0000
    NO_BACKSLASH_ESCAPES = 0x10_0000
    STRICT_TRANS_TABLES = 0x20_0000
    STRICT_ALL_TABLES = 0x40_0000
    PAD_CHAR_TO_FULL_LENGTH = 0x8000_0000


@dataclass(frozen=True, slots=True)
class ServerKind:
    """What kind of server wrote the text."""

    flavor: str
    version: tuple[int, ...]
    """Such as (8, 0, 31)."""

    @property
    def is_mariadb(self) -> bool:
        """MariaDB rather than MySQL."""
        return self.flavor == MARIADB

    @property
    def number(self) -> int:
        """The version as executed comments have it, such as 80031 or 101106."""
        major, minor, patch = (*self.version, 0, 0, 0)[:3]
        return major * 10_000 + minor * 100 + patch

    def executes(self, version: int, *, only_mariadb: bool) -> bool:
        """Whether it runs what stands in a comment `/*!version ... */` (or `/*M!version ... */`)."""
        if not self.is_mariadb:
            return not only_mariadb and version <= self.number
        foreign = 50_700 <= version <= 99_999 and not only_mariadb
        return version <= self.number and not foreign


class Token(NamedTuple):
    """One token."""

    kind: str
    text: str
    """An identifier or a string without its quotes; anything else as it stands."""
    upper: str
    """A word in upper case; empty for everything else, so that a quoted name is never taken for a key word."""
    start: int
    end: int


_IDENTIFIER: Final = r"[0-9A-Za-z_$\u0080-\U0010FFFF]++"
_COMMON: Final = r"""
    (?P<blank>[ \t\n\v\f\r\0]++|--(?=[\x00-\x20]|\Z)[^\n]*+|\#[^\n]*+)
  | (?P<comment>/\*)
  | (?P<close>\*/)
  | (?P<hex>0x[0-9a-fA-F]++(?![0-9A-Za-z_$\u0080-\U0010FFFF])|[xX]'[0-9a-fA-F]*+')
  | (?P<bits>0b[01]++(?![0-9A-Za-z_$\u0080-\U0010FFFF])|[bB]'[01]*+')
  | (?P<number>(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?(?![0-9A-Za-z_$\u0080-\U0010FFFF]))
  | (?P<quoted>`(?:[^`]++|``)*+`)
"""
_WORD: Final = rf"| (?P<word>{_IDENTIFIER}) | (?P<other>.)"
_ESCAPED: Final = r"{0}(?:[^{0}\\]++|\\.|{0}{0})*+{0}"
_PLAIN: Final = r"{0}(?:[^{0}]++|{0}{0})*+{0}"


@cache
def _lexer(*, ansi_quotes: bool, escapes: bool) -> re.Pattern[str]:
    """Compiled when the first statement of its kind comes: all four would take a tenth of each process's start."""
    string = _ESCAPED if escapes else _PLAIN
    double = f"| (?P<ansi>{_PLAIN.format(chr(34))})" if ansi_quotes else f"| (?P<double>{string.format(chr(34))})"
    single = f"| (?P<string>[nN]?{string.format(chr(39))})"
    return re.compile(_COMMON + single + double + _WORD, re.VERBOSE | re.DOTALL)


_NAME: Final = re.compile(_IDENTIFIER)
_VERSION: Final = re.compile(r"[0-9]{5,6}")
_MARK: Final = re.compile(r"/\*|\*/")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES: Final = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a"}
_PATTERN: Final = ("%", "_")  # keep their backslash outside of patterns


def _without_quotes(text: str, *, escapes: bool) -> str:
    quote, inner = text[0], text[1:-1]
    if not escapes or "\\" not in inner:
        return inner.replace(quote * 2, quote) if quote in inner else inner
    pieces = _ESCAPE.split(inner)  # plain, escaped letter, plain ...
    for index, piece in enumerate(pieces):
        if index % 2:
            pieces[index] = f"\\{piece}" if piece in _PATTERN else _ESCAPES.get(piece, piece)
        else:
            pieces[index] = piece.replace(quote * 2, quote)
    return "".join(pieces)


def tokens_of(text: str, server: ServerKind, sql_mode: int = 0) -> Iterator[Token]:
    """The tokens of a statement, without comments and with executed comments opened. Raises `UnreadableStatement` on
    the way.

    >>> mysql = ServerKind("mysql", (8, 0, 31))
    >>> [t.text for t in tokens_of("`a``b` = 'c''d' /*!80000 e /* f */*/ /*!90000 g */", mysql)]
    ['a`b', '=', "c'd", 'e']
    """
    ansi, escapes = bool(sql_mode & SqlMode.ANSI_QUOTES), not sql_mode & SqlMode.NO_BACKSLASH_ESCAPES
    match = _lexer(ansi_quotes=ansi, escapes=escapes).match
    position, opened = 0, 0
    while (token_match := match(text, position)) is not None:
        kind, start, end = token_match.lastgroup, position, token_match.end()
        position = end
        if kind == "blank":
            continue
        if kind == "comment":
            position, opens = _comment(text, start, server)
            opened += opens
            continue
        if kind == "close" and opened:
            opened -= 1
            continue
        if kind == "word":
            word = token_match[0]
            yield Token("word", word, word.upper(), start, end)
        else:
            yield _token(str(kind), token_match[0], start, end, escapes=escapes)
        if kind in _NAMES and text.startswith(".", end) and (name := _NAME.match(text, end + 1)) is not None:
            yield Token("other", ".", "", end, end + 1)
            yield Token("word", name[0], name[0].upper(), end + 1, name.end())
            position = name.end()
    if opened:
        raise UnreadableStatement("a comment /*! is not closed")


_NAMES: Final = frozenset({"word", "quoted", "ansi"})
_QUOTES: Final = frozenset("'\"`")


def _token(kind: str, text: str, start: int, end: int, *, escapes: bool) -> Token:
    if kind in ("quoted", "ansi"):
        return Token("quoted", _without_quotes(text, escapes=False), "", start, end)
    if kind in ("string", "double"):
        return Token("string", _without_quotes(text.lstrip("nN"), escapes=escapes), "", start, end)
    if kind == "other" and text in _QUOTES:
        raise UnreadableStatement(f"what {text} opens at character {start} is not closed")
    return Token("other" if kind == "close" else kind, text, "", start, end)


def _comment(text: str, start: int, server: ServerKind) -> tuple[int, int]:
    """Where to go on after `/*`, and 1 if what follows is to be executed."""
    only_mariadb = text.startswith("M!", start + 2) and server.is_mariadb
    if not only_mariadb and not text.startswith("!", start + 2):
        end = text.find("*/", start + 2)
        if end < 0:
            raise UnreadableStatement(f"the comment at character {start} is not closed")
        return end + 2, 0
    inside = start + (4 if only_mariadb else 3)
    version = _VERSION.match(text, inside)
    if version is None:
        return inside, 1
    if server.executes(int(version[0]), only_mariadb=only_mariadb):
        return version.end(), 1
    depth = 1
    for mark in _MARK.finditer(text, inside):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end(), 0
    raise UnreadableStatement(f"the comment at character {start} is not closed")
