"""What a query is to bring into an output: the tables that the file says, but for those that the output refuses.

A refused table is treated like one that the output's input excludes, but that its place is forgotten: once it is
refused no longer, it begins like a new one, behind the rows that could not be taken.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from databus.filters import Selection, TableChoice
from databus.pipeline.engine._plan import Feed
from databus.pipeline.engine._way import WayOf
from databus.places import Choice

Refused = Mapping[str, str]
"""By full name of a table that an output refuses: why."""


def _unknown_way(table: str) -> str:
    del table
    return ""


@dataclass(frozen=True)
class Bringing:
    """What a query is to bring into an output."""

    of: str
    """Tables of a physical source (`shop/*`), or one table, as the file names it."""
    selections: tuple[Selection, ...] = ()
    """Which of them; without any all."""
    way_of: WayOf = _unknown_way
    """How it makes the rows of a table."""

    @property
    def choice(self) -> Choice:
        """The tables."""
        return self.selections or ((TableChoice((self.of,)),),)

    def without(self, refused: Collection[str]) -> Self:
        """The same but for these tables."""
        return replace(self, selections=without(self.selections, refused)) if refused else self


def feed_without(feed: Feed, refused: Collection[str]) -> Feed:
    """The same but for these tables."""
    return replace(feed, selections=without(feed.selections, refused)) if refused else feed


def feed_only(feed: Feed, names: Collection[str]) -> Feed:
    """The same with these tables alone."""
    only = TableChoice(tuple(sorted(names)))
    return replace(feed, selections=tuple((*each, only) for each in feed.selections))


def without(selections: tuple[Selection, ...], names: Collection[str]) -> tuple[Selection, ...]:
    """The same choice but for some tables, by full names."""
    left = TableChoice(exclude=tuple(sorted(names)))
    return tuple((*each, left) for each in selections)
