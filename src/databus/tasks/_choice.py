"""Choosing tables by pattern: what an input asks for, what a route sends where, and whether two choices meet.

A table's full name is `physical/db.table`. A pattern without a slash is for the tables of every physical source, one
without a dot too for those of every database; `*` stands for any run of characters inside of one of the three parts.
"""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache


def full_pattern(pattern: str) -> str:
    """A pattern over full names.

    >>> full_pattern("orders"), full_pattern("main.orders"), full_pattern("shop/orders"), full_pattern("*")
    ('*/*.orders', '*/main.orders', 'shop/*.orders', '*/*')
    """
    physical, slash, table = pattern.partition("/") if "/" in pattern else ("*", "/", pattern)
    return f"{physical}{slash}{table if '.' in table or table == '*' else f'*.{table}'}"


def _parts(pattern: str) -> tuple[str, str, str]:
    physical, _, rest = full_pattern(pattern).partition("/")
    db, dot, table = rest.partition(".")
    return (physical, db, table) if dot else (physical, "*", "*")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a full name matches one of the patterns.

    >>> matches("shop/main.orders", ["customers", "main.ord*"])
    True
    """
    return any(_covers(pattern, name) for pattern in patterns)


def nearest(table: str, names: Iterable[str]) -> str | None:
    """The full name that a name was most likely to say, as far as it was written: with database and physical source,
    or without.

    >>> nearest("main.ordrs", ["shop/main.orders", "shop/main.lines"]), nearest("ordrs", ["shop/main.orders"])
    ('main.orders', 'orders')
    >>> nearest("shpo/orders", ["shop/main.orders"]), nearest("invoices", ["shop/main.orders"])
    ('shop/orders', None)
    """

    def as_written(name: str) -> str:
        physical, _, rest = name.partition("/")
        part = rest if "." in table else rest.rpartition(".")[2]
        return f"{physical}/{part}" if "/" in table else part

    return next(iter(difflib.get_close_matches(table, sorted(set(map(as_written, names))), 1)), None)


@lru_cache(maxsize=4096)
def _meet(one: str, other: str) -> bool:
    """Whether some text matches both globs of `*`."""
    if not one or not other:
        return not one.strip("*") and not other.strip("*")
    if one[0] == "*":
        return _meet(one[1:], other) or (other[0] != "*" and _meet(one, other[1:])) or _meet(one[1:], other[1:])
    if other[0] == "*":
        return _meet(other, one)
    return one[0] == other[0] and _meet(one[1:], other[1:])


def patterns_meet(one: str, other: str) -> bool:
    """Whether some table could match both patterns.

    >>> patterns_meet("shop/*", "main.orders"), patterns_meet("shop/a*", "shop/b*")
    (True, False)
    """
    return all(_meet(a, b) for a, b in zip(_parts(one), _parts(other), strict=True))


def _covers(wide: str, narrow: str) -> bool:
    return all(fnmatchcase(a, b) for a, b in zip(_parts(narrow), _parts(wide), strict=True))


def name_for_relay(pattern: str, physical: str) -> str:
    """A pattern that tables of this physical source may match, as one that a relay understands.

    What has no wildcard stays a name, so that the relay can say that it knows none such.

    >>> name_for_relay("main.orders", "shop"), name_for_relay("*/a*", "shop"), name_for_relay("orders", "shop")
    ('shop/main.orders', 'shop/*.a*', 'orders')
    """
    written = pattern.rpartition("/")[2]
    if "." not in written and "*" not in written:
        return written
    table = full_pattern(pattern).partition("/")[2]
    return f"{physical}/{table}"


@dataclass(frozen=True, slots=True)
class TableChoice:
    """Tables that match one of `include` and none of `exclude`."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def selects(self, name: str) -> bool:
        """Whether the table of this full name is chosen."""
        return matches(name, self.include) and not matches(name, self.exclude)

    def may_select(self, pattern: str) -> bool:
        """Whether a table of this pattern, or this very table, could be chosen."""
        if any(_covers(wide, pattern) for wide in self.exclude):
            return False
        return any(patterns_meet(pattern, mine) for mine in self.include)


Selection = tuple[TableChoice, ...]
"""Choices one after the other; a table has to pass them all."""


def selects(selection: Selection, name: str) -> bool:
    """Whether the table of this full name passes every choice."""
    return all(choice.selects(name) for choice in selection)


def may_select(selection: Selection, pattern: str) -> bool:
    """Whether a table of this pattern could pass every choice."""
    return all(choice.may_select(pattern) for choice in selection)


def selections_meet(one: Selection, other: Selection) -> bool:
    """Whether some table could pass both."""
    return any(may_select(other, pattern) and may_select(one, pattern) for pattern in patterns_of((*one, *other)))


def patterns_of(selection: Selection) -> tuple[str, ...]:
    """Patterns that every table of the selection matches, narrow enough to ask a relay with.

    >>> patterns_of((TableChoice(("shop/*",)), TableChoice(("shop/main.orders", "shop/main.o*"))))
    ('shop/main.orders', 'shop/main.o*')
    """
    kept: Sequence[str] = ("*",)
    for choice in selection:
        kept = _narrowed(kept, choice.include)
    return tuple(dict.fromkeys(kept))


def _narrowed(before: Sequence[str], after: Sequence[str]) -> Sequence[str]:
    found: list[str] = []
    for pattern in after:
        for wide in before:
            if _covers(wide, pattern):
                found.append(pattern)
            elif _covers(pattern, wide) or patterns_meet(pattern, wide):
                found.append(wide)
    return found or before
