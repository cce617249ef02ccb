"""How far an output's target has come, told by the target itself: a file beside its tables, replaced after each batch.

    {"v": 1, "pipeline": "shop", "output": "copy", "epoch": 3, "writer": "pid 17 on host",
     "streams": {"outputs/copy/shop@shop": {"of": "shop/*", "checkpoint": {"v": 1, "sources": {...}},
                                            "choice": [[[["shop/*"], []]]],
                                            "tables": {"shop/main.orders": [[17, 3], "8", "5feceb66ffc86f38"]},
                                            "incomplete": ["shop/main.stock"], "reached": [17, 3]}},
     "left": [], "passed": [], "removing": []}

A stream is what one query brings into the output. A run begins where the ledger says; Spark's checkpoint is a cache of
that, which may be lost, older, or of another time. So neither a renamed filter nor a removed state makes a gap.
"""

import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from databus.core import (
    Checkpoint,
    ConfigError,
    CorruptData,
    DatabusError,
    LockHeld,
    MalformedRequest,
    Pair,
    SourceCheckpoint,
)
from databus.disk import Location, Overtaken
from databus.pipeline._output_contract import Place
from databus.tasks import (
    Selection,
    StreamBefore,
    Written,
    brings,
    brought_by_all,
    furthest,
    selections_json,
    selections_of,
)

VERSION: Final = 1
Brings = tuple[str, tuple[Selection, ...]]
"""What a stream is `of`, and its `selections`."""
_LEFT_MAX: Final = 64
Removed = TypeVar("Removed")


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
        """Whether a table of this full name was among those that it brings."""
        return brings(self.of, self.selections, name)

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

    def emptied(self, tables: Collection[str]) -> "Stream":
        """The same where the target has nothing of these tables any more, which are read again."""
        mine = self.tables.keys() & set(tables)
        read = self.reading(mine)
        return replace(read, tables={name: each for name, each in read.tables.items() if name not in mine})

    def without(self, tables: Collection[str]) -> "Stream":
        """The same without tables that another stream brings now."""
        left = {name: each for name, each in self.tables.items() if name not in tables}
        return replace(self, tables=left, incomplete=self.incomplete.difference(tables))

    def only(self, tables: Collection[str]) -> "Stream":
        """The same, where nothing is said of other tables."""
        kept = {name: each for name, each in self.tables.items() if name in tables}
        return replace(self, tables=kept, incomplete=self.incomplete.intersection(tables))

    @property
    def brought(self) -> Written:
        """What it has written, up to where it stands."""
        at = next(iter(self.checkpoint.sources.values()), SourceCheckpoint())
        return Written(self.of, self.selections, at)

    def as_before(self, name: str, *, is_branch: bool) -> tuple[StreamBefore, ...]:
        """By which its target knows what it brought: by its own name, and by those that it goes on from, which the
        target may have been told just before somebody was killed.
        """
        return (*self.before, StreamBefore(name, self.brought, is_branch=is_branch))

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


@dataclass
class Ledger:
    """path: the file. pipeline, output: whose it is. epoch: how often somebody has taken the target, and who did.
    streams: by name of the query. removing: tables, by full names, that are to be removed and read anew. left: streams,
    with their names, as they were before they were given other tables, while queries of now have not begun that may go
    on from there.
    passed: names of streams of other times from which another has gone on: their names say nothing any more.
    tag: of the version of the file that this one is to replace; None if there is none.
    """

    path: Location
    pipeline: str
    output: str
    epoch: int = 0
    writer: str = ""
    streams: dict[str, Stream] = field(default_factory=dict)
    removing: frozenset[str] = frozenset()
    left: list[tuple[str, Stream]] = field(default_factory=list)
    passed: frozenset[str] = frozenset()
    tag: str | None = None

    @classmethod
    def load(cls, path: Location, pipeline: str, output: str) -> Self:
        """Read the file; without one, nothing has been written yet. Raises `CorruptData` if it is none,
        `ConfigError` if it is another output's, or of a newer version.
        """
        value, tag = _read(path, output)
        if value is None:
            return cls(path, pipeline, output)
        written = value.get("v")
        if isinstance(written, int) and written > VERSION:
            raise ConfigError(
                f"{path}: is of version {written}, and this databus reads version {VERSION}: run the one that wrote "
                f"it, or a newer one"
            )
        try:
            if written != VERSION:
                raise ValueError(f"version {written}")  # noqa: TRY301 - told like all that is wrong with it
            streams = {str(name): Stream.from_json(each, f"streams.{name}") for name, each in value["streams"].items()}
            names = str(value["pipeline"]), str(value["output"])
            epoch, writer = int(value["epoch"]), str(value["writer"])
            removing = frozenset(map(str, value.get("removing", [])))  # ledgers of old have none, nor `left`
            passed = frozenset(map(str, value.get("passed", [])))
            found = value.get("left", [])
            found = found.items() if isinstance(found, dict) else found  # of old
            left = [(str(name), Stream.from_json(each, f"left.{name}")) for name, each in found]
        except (ValueError, KeyError, TypeError, AttributeError, MalformedRequest) as error:
            raise _corrupt(path, output, error) from error
        if names != (pipeline, output):
            raise ConfigError(
                f"{path}: is of output {names[1]} of pipeline {names[0]}, whose names together are those of output "
                f"{output} of pipeline {pipeline}; give one of them another name, or this output another `path`"
            )
        return cls(path, pipeline, output, epoch, writer, streams, removing, left, passed, tag)

    def take(self) -> None:
        """Become the target's only writer: whoever was it before is refused from now on."""
        self.epoch += 1
        self.writer = f"process {os.getpid()} on {socket.gethostname()} ({uuid4().hex[:8]})"
        self._save()
        self.path.check_conditions()

    def check_epoch(self) -> None:
        """Raises `LockHeld` if somebody else has taken the target since we did, `CorruptData` if the file is gone."""
        found, tag = _read(self.path, self.output)
        if found is None:
            raise CorruptData(
                f"{self.path}: was removed while this output was written. Start the pipeline again: it begins where "
                f"the target stands then"
            )
        if (found.get("epoch"), found.get("writer")) != (self.epoch, self.writer):
            raise LockHeld(
                f"{self.path}: {found.get('writer')} has begun to write this output; two pipelines must not share a "
                f"target. Stop one of them, or give it another `path`"
            )
        self.tag = tag

    def found(self, name: str, of: str, current: Collection[str]) -> Stream | None:
        """How far a stream has come; None if the target has nothing of it.

        One that is not known by its name is known by what it is of: it goes on where the least of those stands that
        are no longer `current`.
        """
        known = self.streams.get(name)
        if known is not None and known.of == of and name not in self.passed:
            return known
        before = [(other, each) for other, each in self.streams.items() if other not in current and each.of == of]
        return _joined(before, self._branches) if before else None

    def inherited(
        self, name: str, tables: Collection[str], mine: Stream | None, current: Mapping[str, Brings]
    ) -> Stream | None:
        """Where a stream goes on with tables that are new to it, and that others have brought so far; None if none has.

        That is where the least of them stands, the stream itself among them. Of these tables, those that none has
        brought are incomplete. mine: the stream as it is known; None where it brought something else by this name.
        current: see `put`; one that brings what it brought has other rows of a table, as branches of a route have.
        """
        past = (each for each in self.streams.items() if current.get(each[0]) != each[1].brings)
        found = (*self.left, *(each for each in past if each[0] != name or mine is None))
        donors = [(other, each) for other, each in found if any(map(each.had, tables))]
        if not donors:
            return None
        incomplete = {table for table in tables if not any(each.had(table) for _, each in donors)}
        donors = [(other, each.only(tables)) for other, each in donors]
        joined = _joined(donors if mine is None else [(name, mine), *donors], self._branches)
        return replace(joined, of="", selections=(), incomplete=joined.incomplete | incomplete)

    @property
    def _branches(self) -> frozenset[str]:
        """Streams beside which another one brings the same, and may have other rows of it. Those that brought the same
        one after the other look alike until all queries of now have begun.
        """
        counts = Counter(each.brings for each in self.streams.values())
        return frozenset(name for name, each in self.streams.items() if counts[each.brings] > 1)

    def put(self, name: str, stream: Stream, current: Mapping[str, Brings]) -> None:
        """Note durably how far a stream has come. current: what all streams of now bring, by name.

        Those of other times are forgotten when none of now may need them any more: `_forget_others`.
        """
        mine, waits = self.streams.get(name), any(self._waits(each, current) for each in current if each != name)
        if mine is not None and mine.brings != stream.brings:
            self._leave(name, mine)
        for other, each in [*self.streams.items()]:
            if other != name and each.of != stream.of and each.tables.keys() & stream.tables.keys():
                self.streams[other] = left = each.without(stream.tables)
                is_needed = other in current or (waits and stream.before)  # which others may go on from, too
                if not left.tables and not is_needed:
                    del self.streams[other]
        self.streams[name] = replace(stream, written=furthest(stream.written, stream.pair))
        self.passed -= {name}
        if not waits:
            self._forget_others(name, current)
        self._save()

    def _waits(self, name: str, current: Mapping[str, Brings]) -> bool:
        """Whether a stream of now has not begun to bring what it is to bring."""
        known = self.streams.get(name)
        return known is None or known.brings != current[name]

    def _leave(self, name: str, stream: Stream) -> None:
        """Remember where a stream stood that is given other tables."""
        others = [each for each in self.left if (each[0], each[1].brings) != (name, stream.brings)]
        self.left = [*others, (name, stream)][-_LEFT_MAX:]

    def _forget_others(self, name: str, current: Collection[str]) -> None:
        """All queries of now have begun: what is of other times says nothing to them any more, as far as one of them
        brings the same, or has gone on from it and told its target so.
        """
        self.left.clear()
        of = self.streams[name].of
        are_told = not any(self.streams[other].before for other in current if other in self.streams)
        gone = self.passed if are_told else frozenset()
        self.streams = {
            other: each
            for other, each in self.streams.items()
            if other in current or other == name or (each.of != of and other not in gone)
        }
        self.passed -= gone

    def go_past(self, names: Collection[str]) -> None:
        """Note that others have gone on from streams of other times; durable with the next `put`."""
        self.passed |= frozenset(names)

    def make_anew(self, tables: Collection[str], remove: Callable[[Collection[str]], Removed]) -> Removed:
        """Have tables, by full names, removed, and read anew when their streams next begin; returns what `remove` does.

        That they are to be removed is noted first, durably: whoever is killed in between leaves it in `removing`, for
        the next to do. Where `remove` refuses, nothing is noted.
        """
        self.removing = frozenset(tables)
        self._save()
        try:
            removed = remove(self.removing)
        except DatabusError:
            self.removing = frozenset()
            self._save()
            raise
        self.streams = {name: each.emptied(self.removing) for name, each in self.streams.items()}
        self.left.clear()
        self.removing = frozenset()
        self._save()
        return removed

    def forget(self) -> None:
        """Note durably that nothing has been written."""
        self.streams.clear()
        self.left.clear()
        self.passed = frozenset()
        self._save()

    def _save(self) -> None:
        value: Mapping[str, Any] = {
            "v": VERSION,
            "pipeline": self.pipeline,
            "output": self.output,
            "epoch": self.epoch,
            "writer": self.writer,
            "streams": {name: each.to_json() for name, each in self.streams.items()},
            "left": [[name, each.to_json()] for name, each in self.left],
            "passed": sorted(self.passed),
            "removing": sorted(self.removing),
        }
        content = json.dumps(value, indent=1).encode()
        try:
            self.tag = self.path.put(content, after=self.tag)
        except Overtaken:
            self.check_epoch()  # it is ours if we once heard of no answer to what was written all the same
            self.tag = self.path.put(content, after=self.tag)


def _joined(streams: Sequence[tuple[str, Stream]], branches: Collection[str]) -> Stream:
    """One that goes on from all of these, where the least of them stands. branches: see `Ledger._branches`."""
    ordered = sorted((each for _, each in streams), key=lambda each: each.pair)
    least = ordered[0]
    is_one = all(each.selections for each in ordered)
    before: list[StreamBefore] = []
    for name, stream in streams:
        told = stream.as_before(name, is_branch=name in branches)
        before += [each for each in told if each not in before]
    reached = [stream.reached for stream in ordered if stream.reached is not None]
    beside = [stream for name, stream in streams if name in branches]
    ahead = [each for name, stream in streams if name not in branches for each in stream.written]
    ahead += [each.written for each in before if each.written is not None and not each.is_branch]
    for brought in dict.fromkeys(each.brings for each in beside):
        parts = [each for each in beside if each.brings == brought]
        ahead += brought_by_all([(each.brought.at, (each.brought, *each.written)) for each in parts])
    return Stream(
        least.of,
        least.checkpoint,
        tuple(dict.fromkeys(each for stream in ordered for each in stream.selections)) if is_one else (),
        {name: entry for stream in reversed(ordered) for name, entry in stream.tables.items()},
        frozenset(name for stream in ordered for name in stream.incomplete),
        tuple(sorted(before, key=lambda each: each.name)),
        furthest(ahead, least.pair),
        min(reached) if len(reached) == len(ordered) else None,
    )


def _read(path: Location, output: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """What stands in the file, and its tag; None if there is none. Raises `CorruptData`; `ConfigError` where there can
    be none.
    """
    try:
        found = path.read()
        if found is None:
            return None, None
        value = json.loads(found.content)
    except (OSError, ValueError) as error:
        raise _corrupt(path, output, error) from error
    if not isinstance(value, dict):
        raise _corrupt(path, output, TypeError("not an object"))
    return value, found.tag


def _corrupt(path: Location, output: str, error: Exception) -> CorruptData:
    return CorruptData(
        f"{path}: does not say how far this output has come ({error!r}). Restore it; or have the output made "
        f"anew: `databus rebuild FILE {output}` (FILE is the pipeline's file)"
    )
