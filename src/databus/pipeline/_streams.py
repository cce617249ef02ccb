"""What one query brings into an output, and where a query stands that goes on from several others."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from databus.core import Checkpoint, ControlKind, Pair, SourceCheckpoint
from databus.pipeline._output_contract import Place
from databus.tasks import (
    Batch,
    Selection,
    StreamBefore,
    TableControl,
    Written,
    brings,
    brought_by_all,
    furthest,
    patterns_meet,
    patterns_of,
    selections_json,
    selections_of,
)

Brings = tuple[str, tuple[Selection, ...]]
"""What a stream is `of`, and its `selections`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Of a table: what the target says of it, and the way by which its rows came; see `databus.pipeline._way`.

    place: None if nothing of it is in the target yet, or nobody can tell.
    """

    place: Place | None
    way: str = ""

    def to_json(self) -> list[Any]:
        """As it stands in the file."""
        return [None, "", self.way] if self.place is None else [self.place.pair, self.place.mark, self.way]

    @classmethod
    def from_json(cls, value: Sequence[Any]) -> Self:
        """Read what `to_json` made. Raises `ValueError`, `TypeError`."""
        pair, mark, way = value
        return cls(None if pair is None else Place((int(pair[0]), int(pair[1])), str(mark)), str(way))


@dataclass(frozen=True, slots=True)
class Stream:
    """of: what it is of, whatever the filters on its way are called: `physical/*`, or a table. checkpoint: all up to it
    is in the target. selections: which tables, when it was last advanced; empty for one table. By full names, tables:
    those of which something was written; incomplete: those that lack their older
    rows until the end of a snapshot, which has to be asked for (again) unless the checkpoint says that it has begun.
    before: the streams that it goes on from, until the target was told so. written: what these brought beyond the
    checkpoint, until that has passed it. reached: the end of the last batch that was written, where the target has to
    be by all means; later ones had no rows. None where none was, or not by all streams that it goes on from.
    """

    of: str
    checkpoint: Checkpoint
    selections: tuple[Selection, ...] = ()
    tables: Mapping[str, Entry] = field(default_factory=dict)
    incomplete: frozenset[str] = frozenset()
    before: tuple[StreamBefore, ...] = ()
    written: tuple[Written, ...] = ()
    reached: Pair | None = None

    @property
    def pair(self) -> Pair:
        """For comparing; a stream is of one physical source."""
        return min((each.pair for each in self.checkpoint.sources.values()), default=(0, 0))

    @property
    def brings(self) -> Brings:
        """What it brought when it was last advanced."""
        return self.of, self.selections

    def had(self, name: str) -> bool:
        """Whether a table of this full name was among those that it brings: of its own physical source, which a table
        over which it is need not name.
        """
        sources = self.checkpoint.sources
        return brings(self.of, self.selections, name) and (not sources or name.partition("/")[0] in sources)

    def unread(self) -> frozenset[str]:
        """The incomplete tables whose snapshots have not begun: a relay that dies may have forgotten who asked."""
        begun = {f"{physical}/{source}" for physical, at in self.checkpoint.sources.items() for source in at.snapshots}
        return self.incomplete - begun

    def reading(self, tables: Collection[str]) -> "Stream":
        """The same with more incomplete tables, for which a snapshot that has begun already does not count. Nor does
        what they hold, of which later changes may be missing, unless they are incomplete as it is.
        """
        sources = {
            physical: replace(
                at,
                snapshots={name: each for name, each in at.snapshots.items() if f"{physical}/{name}" not in tables},
            )
            for physical, at in self.checkpoint.sources.items()
        }
        new = set(tables).difference(self.incomplete)
        known = {name: each for name, each in self.tables.items() if name not in new}
        return replace(self, checkpoint=Checkpoint(sources), tables=known, incomplete=self.incomplete.union(tables))

    def after(self, batch: Batch) -> "Stream":
        """The same with a batch that was written."""
        ended = {
            f"{batch.physical}/{item.table.source}"
            for item in batch.items
            if isinstance(item, TableControl)
            and item.kind is ControlKind.SNAPSHOT_END
            and (item.body.get("complete", False) or item.body.get("as_configured", False))
            and batch.has_begin_of(item)
        }
        checkpoint = self.checkpoint.advanced(batch.physical, batch.end)
        return replace(self, checkpoint=checkpoint, incomplete=self.incomplete - ended)

    def emptied(self, tables: Collection[str]) -> "Stream":
        """The same where the target has nothing of these tables any more, which are read again."""
        mine = self.tables.keys() & set(tables)
        read = self.reading(mine)
        return replace(read, tables={name: each for name, each in read.tables.items() if name not in mine})

    def only(self, tables: Collection[str]) -> "Stream":
        """The same, where nothing is said of other tables."""
        kept = {name: each for name, each in self.tables.items() if name in tables}
        return replace(self, tables=kept, incomplete=self.incomplete.intersection(tables))

    @property
    def brought(self) -> Written:
        """What it has written, up to where it stands."""
        at = next(iter(self.checkpoint.sources.values()), SourceCheckpoint())
        return Written(self.of, self.selections, at)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the file."""
        return {
            "of": self.of,
            "checkpoint": self.checkpoint.to_json(),
            "choice": selections_json(self.selections),
            "tables": {name: each.to_json() for name, each in sorted(self.tables.items())},
            "incomplete": sorted(self.incomplete),
            "before": [each.to_json() for each in self.before],
            "written": [each.to_json() for each in self.written],
            "reached": self.reached,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> Self:
        """Read what `to_json` made. Raises `MalformedRequest`, `ValueError`, `KeyError`, `TypeError`."""
        found = cls(
            str(value["of"]),
            Checkpoint.from_json(value["checkpoint"], where),
            selections_of(value["choice"]),
            {str(name): Entry.from_json(each) for name, each in value["tables"].items()},
            frozenset(map(str, value["incomplete"])),
            tuple(StreamBefore.from_json(each, where) for each in value.get("before", ())),  # ledgers of old have none
            tuple(Written.from_json(each, where) for each in value.get("written", ())),
        )
        reached = value["reached"] if "reached" in value else found._last_place()  # of old
        return found if reached is None else replace(found, reached=(int(reached[0]), int(reached[1])))

    def _last_place(self) -> Pair | None:
        """That of the table that was written last, as far as the stream has come."""
        places = [entry.place.pair for entry in self.tables.values() if entry.place is not None]
        return min(max(places), self.pair) if places else None


def may_meet(one: Brings, other: Brings) -> bool:
    """Whether some table could be among what both bring."""
    return patterns_meet(one[0], other[0]) and any(
        patterns_meet(mine, theirs) for mine in _patterns_of(one) for theirs in _patterns_of(other)
    )


def _patterns_of(brought: Brings) -> list[str]:
    of, selections = brought
    return [pattern for selection in selections for pattern in patterns_of(selection)] or [of]


@dataclass(frozen=True, slots=True)
class Donor:
    """A stream from which another one goes on. is_branch: whether others of these donors have the other rows of the
    same tables, as branches of a route have. is_part: whether others had rows of the same tables, and not all of them
    are among these; how far it came then says nothing of a table.
    """

    name: str
    stream: Stream
    is_branch: bool = False
    is_part: bool = False

    @property
    def before(self) -> tuple[StreamBefore, ...]:
        """By which its target knows what it brought: by its own name, and by those that it goes on from, which the
        target may have been told just before somebody was killed.
        """
        return (*self.stream.before, StreamBefore(self.name, self.stream.brought, self.is_branch, self.is_part))


def joined(donors: Sequence[Donor]) -> Stream:
    """One that goes on from all of these, where the least of them stands."""
    ordered = sorted((each.stream for each in donors), key=lambda each: each.pair)
    least = ordered[0]
    is_one = all(each.selections for each in ordered)
    before: list[StreamBefore] = []
    for donor in donors:
        before += [each for each in donor.before if each not in before]
    reached = [stream.reached for stream in ordered if stream.reached is not None]
    return Stream(
        least.of,
        least.checkpoint,
        tuple(dict.fromkeys(each for stream in ordered for each in stream.selections)) if is_one else (),
        {name: entry for stream in reversed(ordered) for name, entry in stream.tables.items()},
        frozenset(name for stream in ordered for name in stream.incomplete),
        tuple(sorted(before, key=lambda each: each.name)),
        furthest(_ahead(donors, before), least.pair),
        min(reached) if len(reached) == len(ordered) else None,
    )


def _ahead(donors: Sequence[Donor], before: Sequence[StreamBefore]) -> list[Written]:
    """Up to where all rows of some tables are in the target, as far as these streams can tell."""
    whole = [each.stream for each in donors if not each.is_branch and not each.is_part]
    found = [said for stream in whole for said in stream.written]
    found += [each.written for each in before if each.written is not None and each.is_whole]
    branches = [each.stream for each in donors if each.is_branch]
    for brought in dict.fromkeys(each.brings for each in branches):
        beside = [each for each in branches if each.brings == brought]
        found += brought_by_all([(each.brought.at, (each.brought, *each.written)) for each in beside])
    return found
