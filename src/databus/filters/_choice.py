"""Choosing tables by pattern: what an input asks for, what a route sends where, and whether two choices meet.

A table's full name is `physical/db.table`. A pattern without a slash is for the tables of every physical source, one
without a dot too for those of every database; `*` stands for any run of characters inside of one of the three parts.
What stands between backquotes stands for itself; see `databus.core.source_name`.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from databus.core import glob_of, is_pattern, name_parts, plain_name, short_name, split_database, split_physical

_ANY: Final = ""  # no character is the empty text, nor any text of two
_MANY: Final = "**"


def full_pattern(pattern: str) -> str:
    """A pattern over full names.

    >>> full_pattern("orders"), full_pattern("main.orders"), full_pattern("shop/orders"), full_pattern("*")
    ('*/*.orders', '*/main.orders', 'shop/*.orders', '*/*')
    """
    physical, table = split_physical(pattern)
    return f"{physical or '*'}/{table if split_database(table)[0] or table == '*' else f'*.{table}'}"


@lru_cache(maxsize=4096)
def _parts(pattern: str) -> tuple[str, str, str]:
    physical, rest = split_physical(full_pattern(pattern))
    db, table = split_database(rest)
    return (physical, db or "*", table)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a full name matches one of the patterns.

    >>> matches("shop/main.orders", ["customers", "main.ord*"])
    True
    """
    physical, source = split_physical(name)
    parts = physical, *name_parts(source)
    return any(all(map(fnmatchcase, parts, map(glob_of, _parts(pattern)))) for pattern in patterns)


def nearest(table: str, names: Iterable[str]) -> str | None:
    """The full name that a name was most likely to say, as far as it was written: with database and physical source,
    or without.

    >>> nearest("main.ordrs", ["shop/main.orders", "shop/main.lines"]), nearest("ordrs", ["shop/main.orders"])
    ('main.orders', 'orders')
    >>> nearest("shpo/orders", ["shop/main.orders"]), nearest("invoices", ["shop/main.orders"])
    ('shop/orders', None)
    """

    def as_written(name: str) -> str:
        physical, rest = split_physical(name)
        part = rest if split_database(wanted)[0] else short_name(rest)
        return f"{physical}/{part}" if owner else part

    owner, wanted = split_physical(table)

    return next(iter(difflib.get_close_matches(table, sorted(set(map(as_written, names))), 1)), None)


def _signs(part: str) -> tuple[str, ...]:
    """The characters of a part of a pattern, with `_MANY` and `_ANY`; a set of characters counts as any."""
    pieces = re.findall(r"\[!?\]?[^\]]*\]|.", glob_of(part), re.DOTALL)
    signs = {"*": _MANY, "?": _ANY, "[*]": "*", "[?]": "?", "[[]": "["}
    return tuple(signs.get(piece, piece if len(piece) == 1 else _ANY) for piece in pieces)


@lru_cache(maxsize=4096)
def _meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether some text matches both."""
    if not one or not other:
        return not {*one, *other} - {_MANY}
    if one[0] == _MANY:
        return _meet(one[1:], other) or (other[0] != _MANY and _meet(one, other[1:])) or _meet(one[1:], other[1:])
    if other[0] == _MANY:
        return _meet(other, one)
    return (_ANY in (one[0], other[0]) or one[0] == other[0]) and _meet(one[1:], other[1:])


def patterns_meet(one: str, other: str) -> bool:
    """Whether some table could match both patterns.

    >>> patterns_meet("shop/*", "main.orders"), patterns_meet("shop/a*", "shop/b*")
    (True, False)
    """
    return all(_meet(_signs(a), _signs(b)) for a, b in zip(_parts(one), _parts(other), strict=True))


def _covers(wide: str, narrow: str) -> bool:
    """Whether every table of one pattern is of another; False too where that is hard to say."""
    texts = (glob_of(part) if is_pattern(part) else plain_name(part) for part in _parts(narrow))
    return all(map(fnmatchcase, texts, map(glob_of, _parts(wide))))


def names_for_relay(
    patterns: Iterable[str], physical: str, known: Sequence[str] = (), may_lack: Collection[str] = ()
) -> list[str]:
    """The patterns that tables of this physical source may match, as a relay understands them.

    What has no wildcard stays a name, so that the relay can say that it knows none such; but of a table that another
    physical source has and this one does not, or that may be lacking, a pattern is made, which may match nothing.
    known: full names.

    >>> names_for_relay(["main.orders", "*/a*", "orders", "crm/main.people"], "shop")
    ['shop/main.orders', 'shop/*.a*', 'orders']
    >>> names_for_relay(["orders", "people"], "shop", ["crm/main.people"])
    ['orders', '[s]hop/people']
    """
    names = []
    for pattern in patterns:
        if not patterns_meet(pattern, f"{physical}/*"):
            continue
        _, written = split_physical(pattern)
        owners = {split_physical(name)[0] for name in known if matches(name, [pattern])}
        if is_pattern(written) or split_database(written)[0]:
            written = f"{physical}/{split_physical(full_pattern(pattern))[1]}"
        is_others = owners and physical not in owners
        names.append(name_if_there(written, physical) if is_others or pattern in may_lack else written)
    return list(dict.fromkeys(names))


def name_if_there(name: str, physical: str) -> str:
    """A name for a relay as a pattern that means no other table, and that the relay therefore does not insist on.

    >>> name_if_there("orders", "shop"), name_if_there("shop/main.orders", "shop")
    ('[s]hop/orders', '[s]hop/main.orders')
    """
    return f"[{physical[0]}]{physical[1:]}/{split_physical(name)[1]}"


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
        return any(patterns_meet(pattern, own) for own in self.include)


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
    narrowed: list[str] = []
    for pattern in after:
        for wide in before:
            if _covers(wide, pattern):
                narrowed.append(pattern)
            elif _covers(pattern, wide) or patterns_meet(pattern, wide):
                narrowed.append(wide)
    return narrowed or before
