"""What a query is to bring into an output: the tables that the file says, but for those that the output refuses.

A refused table is treated like one that the output's input excludes. Nothing of it is written, and the ledger says so;
once it is refused no longer, it joins by a snapshot, like a table whose `exclude` was removed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Self

from databus.pipeline._plan import Feed
from databus.pipeline._way import WayOf
from databus.tasks import Selection, TableChoice

Refused = Mapping[str, str]
"""By full name of a table that an output refuses: why."""


def _unknown_way(table: str) -> str:
    del table
    return ""


@dataclass(frozen=True)
class Bringing:
    """What a query is to bring into an output: see `Stream`. way_of: how it makes the rows of a table."""

    of: str
    selections: tuple[Selection, ...] = ()
    way_of: WayOf = _unknown_way

    def without(self, refused: Collection[str]) -> Self:
        """The same but for these tables."""
        return replace(self, selections=_without(self.selections, refused)) if refused else self


def feed_without(feed: Feed, refused: Collection[str]) -> Feed:
    """The same but for these tables."""
    return replace(feed, selections=_without(feed.selections, refused)) if refused else feed


def _without(selections: tuple[Selection, ...], refused: Collection[str]) -> tuple[Selection, ...]:
    left = TableChoice(exclude=tuple(sorted(refused)))
    return tuple((*each, left) for each in selections)
