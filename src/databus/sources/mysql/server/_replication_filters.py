"""Replication filters against the captured tables: which of these a filter may hide. Pure, no I/O.

Servers have patterns of LIKE and lists of names, we have patterns of the shell and exclusions. All become sequences of
characters, `ANY` (one character) and `MANY` (any number of them) over `database.table`. Where it cannot be said for
certain that a filter hides nothing, it counts as one that does.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final

from databus.core import glob_of, split_database
from databus.sources._config import SourceConfig
from databus.sources.mysql._captured_tables import SYSTEM_DATABASES, TableSelection

ANY: Final = ""  # no character is the empty text, nor any text of two
MANY: Final = "**"
Pattern = tuple[str, ...]

_ALL: Final = "tables of `tables`"
_REWRITTEN: Final = re.compile(r"\(([^,()]+),([^()]+)\)|([^,>]+?)\s*->\s*([^,]+)")
_IGNORED: Final = ("replicate_ignore_db", "replicate_ignore_table", "replicate_wild_ignore_table")
_WANTED_TABLES: Final = ("replicate_do_table", "replicate_wild_do_table")


class Hidden:
    """What filters hide of the tables that a configuration captures."""

    def __init__(self, config: SourceConfig, selection: TableSelection, lower_case_table_names: int) -> None:
        self._fold = lower_case_table_names != 0
        self._selection = selection
        self._captured = [pattern for text in config.tables for pattern in self._ours(text)]
        self._excluded = [pattern for text in config.exclude for pattern in self._ours(text)]
        self._excluded += [(*name, ".", MANY) for name in SYSTEM_DATABASES]

    def by(self, filters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """The filters that may hide captured tables, and which, as text. filters: by lower-case name, as servers show
        them.
        """
        for name in _IGNORED:
            items = [text for text in names_of(filters.get(name, "")) if self._may_hide(name, text)]
            if items:
                yield name, f"what is captured of {', '.join(items)}"
        for group in (("replicate_do_db",), _WANTED_TABLES):
            named = [name for name in group if names_of(filters.get(name, ""))]
            kept = [self._theirs(name, text) for name in named for text in names_of(filters[name])]
            if named and not all(any(contains(pattern, captured) for pattern in kept) for captured in self._captured):
                yield named[0], f"all other {_ALL}"
        for pair in _REWRITTEN.findall(filters.get("replicate_rewrite_db", "")):
            databases = [name.strip() for name in pair if name]
            if any(self._selection.may_select_in(name) for name in databases):
                yield "replicate_rewrite_db", f"what is captured of {' and '.join(databases)} under its own name"
                break

    def _may_hide(self, name: str, text: str) -> bool:
        filter_pattern = self._theirs(name, text)
        if MANY not in filter_pattern and ANY not in filter_pattern:
            database, _, table = text.partition(".")  # as servers read it
            return self._selection.selects(database, table)
        for captured in self._captured:
            narrow = _narrowed(filter_pattern, captured)
            if overlaps(narrow, captured) and not any(contains(pattern, narrow) for pattern in self._excluded):
                return True
        return False

    def _theirs(self, name: str, text: str) -> Pattern:
        """A filter's item."""
        text = text.lower() if self._fold else text
        if name.endswith("_db"):
            return (*text, ".", MANY)
        return like(text) if "_wild_" in name else tuple(text)

    def _ours(self, text: str) -> list[Pattern]:
        """A pattern of `tables` or `exclude`, which names a table with or without its database."""
        database, table = map(glob_of, split_database(text.lower() if self._fold else text))
        symbols = shell(table)
        if database:
            return [(*shell(database), ".", *symbols)]
        return [(MANY, ".", *symbols), *([symbols] if MANY in symbols else [])]


def names_of(listed: str) -> list[str]:
    """The items of a list as servers show it."""
    return [name for name in (part.strip() for part in listed.split(",")) if name]


def like(text: str) -> Pattern:
    r"""A pattern of LIKE.

    >>> like(r"a.b\_%_")
    ('a', '.', 'b', '_', '**', '')
    """
    symbols = re.findall(r"\\.|.", text, re.DOTALL)
    return tuple({"%": MANY, "_": ANY}.get(symbol, symbol[-1]) for symbol in symbols)


def shell(text: str) -> Pattern:
    """A pattern of `fnmatch`; a set of characters counts as any character, unless it is one that stands for itself.

    >>> shell("a.b[cd]*?[*]")
    ('a', '.', 'b', '', '**', '', '*')
    """
    symbols = re.findall(r"\[!?\]?[^\]]*\]|.", text, re.DOTALL)
    signs = {"*": MANY, "?": ANY, "[*]": "*", "[?]": "?", "[[]": "["}
    return tuple(signs.get(symbol, symbol if len(symbol) == 1 else ANY) for symbol in symbols)


def overlaps(one: Pattern, other: Pattern) -> bool:
    """Whether there is a name that fits both.

    >>> overlaps(like("shop.%"), shell("*.orders")), overlaps(like("shop.a%"), shell("shop.b*"))
    (True, False)
    """

    @cache
    def fits(i: int, j: int) -> bool:
        if i < len(one) and one[i] == MANY:
            return fits(i + 1, j) or (j < len(other) and fits(i, j + 1))
        if j < len(other) and other[j] == MANY:
            return fits(i, j + 1) or (i < len(one) and fits(i + 1, j))
        if i == len(one) or j == len(other):
            return i == len(one) and j == len(other)
        return (ANY in (one[i], other[j]) or one[i] == other[j]) and fits(i + 1, j + 1)

    return fits(0, 0)


def contains(outer: Pattern, inner: Pattern) -> bool:
    """Whether every name that fits `inner` fits `outer`; False too where that is hard to say.

    >>> contains(like("shop.%"), shell("shop.o*")), contains(like("shop.a%"), shell("shop.*"))
    (True, False)
    """

    @cache
    def fits(i: int, j: int) -> bool:
        if i < len(outer) and outer[i] == MANY:
            return fits(i + 1, j) or (j < len(inner) and fits(i, j + 1))
        if i == len(outer) or j == len(inner):
            return i == len(outer) and j == len(inner)
        if inner[j] == MANY:
            return False
        return (outer[i] == ANY or outer[i] == inner[j]) and fits(i + 1, j + 1)

    return fits(0, 0)


def _narrowed(filter_pattern: Pattern, captured: Pattern) -> Pattern:
    """The filter's pattern within the one database of the captured pattern, if both are simple enough."""
    database, table = _halves(captured), _halves(filter_pattern)
    if database is None or table is None or not _is_plain(database[0]) or not overlaps(table[0], database[0]):
        return filter_pattern
    return (*database[0], ".", *table[1])


def _halves(pattern: Pattern) -> tuple[Pattern, Pattern] | None:
    """Before and behind the first dot."""
    if "." not in pattern:
        return None
    at = pattern.index(".")
    return pattern[:at], pattern[at + 1 :]


def _is_plain(symbols: Sequence[str] | Iterable[str]) -> bool:
    return all(len(symbol) == 1 for symbol in symbols)
