"""By which queries the tables of an output came, while its file was changed again and again.

The queries of a file do not begin together, and the file may change before all of them have begun. So a query that
begins asks, table by table, who was the last to bring it: the queries of the last edition of the file; where one of
them had not begun, also those that it would have gone on from.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from databus.pipeline._streams import Brings, Donor, Stream, may_meet
from databus.tasks import brings, selections_json, selections_of


@dataclass(frozen=True)
class Edition:
    """The queries of an output at one time, by name. streams: of those that have begun. awaited: what the others were
    to bring. carried: what those bring that have gone on unchanged into the next edition, which has their streams.
    """

    streams: Mapping[str, Stream] = field(default_factory=dict)
    awaited: Mapping[str, Brings] = field(default_factory=dict)
    carried: Mapping[str, Brings] = field(default_factory=dict)

    @property
    def bringing(self) -> dict[str, Brings]:
        """What all of them bring."""
        return {**self.awaited, **self.carried, **{name: each.brings for name, each in self.streams.items()}}

    def put(self, name: str, stream: Stream) -> "Edition":
        """The same where one of them has come to here."""
        awaited = {other: each for other, each in self.awaited.items() if other != name}
        return replace(self, streams={**self.streams, name: stream}, awaited=awaited)

    def followed_by(self, bringing: Mapping[str, Brings]) -> "tuple[Edition, Edition]":
        """What is left of it once queries are to bring this, and the edition of these, of which none has begun."""
        kept = {name: each for name, each in self.streams.items() if bringing.get(name) == each.brings}
        left = {name: each for name, each in self.streams.items() if name not in kept}
        carried = {name: each.brings for name, each in kept.items()}
        awaited = {name: each for name, each in bringing.items() if name not in kept}
        return Edition(left, self.awaited, {**self.carried, **carried}), Edition(kept, awaited)

    def emptied(self, tables: Collection[str]) -> "Edition":
        """The same where the target has nothing of these tables any more, which are read again."""
        return replace(self, streams={name: each.emptied(tables) for name, each in self.streams.items()})

    def left_alone_by(self, others: Collection[Brings]) -> "Edition":
        """What is left of it once others have begun: what none of them brings, nor anything of the same. So it is where
        a relay did not name a physical source when the pipeline started, or the file was without an input for a while.
        """
        kept = {
            name: each
            for name, each in self.streams.items()
            if not any(each.of == other[0] or may_meet(each.brings, other) for other in others)
        }
        return replace(self, streams=kept)

    def alike(self, name: str) -> set[str]:
        """The streams that bring the same as this one, as branches of a route do."""
        return {other for other, each in self.bringing.items() if each == self.bringing[name]}

    def has_beside(self, name: str, tables: Collection[str]) -> bool:
        """Whether streams that are not alike have rows of these tables, or of others that it has written."""
        others = [each for each in self.bringing.values() if each != self.bringing[name]]
        return any(brings(*each, table) for each in others for table in {*tables, *self.streams[name].tables})

    def awaits(self, table: str) -> bool:
        """Whether somebody who was to bring it had not begun."""
        return any(brings(*each, table) for each in self.awaited.values())

    def to_json(self) -> dict[str, Any]:
        """As it stands in a ledger."""
        return {
            "streams": {name: each.to_json() for name, each in self.streams.items()},
            "awaited": _brings_json(self.awaited),
            "carried": _brings_json(self.carried),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Read what `to_json` made. Raises what `Stream` does."""
        streams = {name: Stream.from_json(each, f"{where}.{name}") for name, each in value["streams"].items()}
        return cls(streams, _brings_of(value.get("awaited", {})), _brings_of(value.get("carried", {})))


def _brings_json(bringing: Mapping[str, Brings]) -> dict[str, Any]:
    return {name: {"of": of, "choice": selections_json(selections)} for name, (of, selections) in bringing.items()}


def _brings_of(value: Mapping[str, Any]) -> dict[str, Brings]:
    return {name: (str(each["of"]), selections_of(each["choice"])) for name, each in value.items()}


def donors(editions: Sequence[Edition], tables: Iterable[str]) -> tuple[list[Donor], frozenset[str]]:
    """The streams by which tables came last, each with these tables alone, and the tables that are not whole: of which
    somebody who was to bring rows never began, or that nobody brought.

    editions: the oldest first. tables: by full names.
    """
    holders = {table: _holders(editions, table) for table in tables}
    held: dict[_Holder, set[str]] = {}
    for table, (names, _) in holders.items():
        for each in names:
            held.setdefault(each, set()).add(table)
    found = []
    for (index, name), mine in sorted(held.items()):
        stream, alike = editions[index].streams[name], editions[index].alike(name)
        is_all = len(alike) == 1 and not editions[index].has_beside(name, mine)
        is_branch = len(alike) > 1 and all(
            holders[table] == ({(index, each) for each in alike}, True) for table in mine
        )
        found.append(Donor(name, stream.only(mine), is_branch, not is_all and not is_branch))
    return found, frozenset(table for table, (_, is_whole) in holders.items() if not is_whole)


_Holder = tuple[int, str]
"""The number of an edition, and the name of a stream."""


def _holders(editions: Sequence[Edition], table: str) -> tuple[set[_Holder], bool]:
    """By which streams a table came last, and whether that is all of it."""
    found: set[_Holder] = set()
    is_awaited = False
    for index in reversed(range(len(editions))):
        mine = {(index, name) for name, each in editions[index].streams.items() if each.had(table)}
        found |= mine
        awaits = editions[index].awaits(table)
        if mine and not awaits:
            return found, True
        is_awaited = is_awaited or awaits
    return found, bool(found) and not is_awaited
