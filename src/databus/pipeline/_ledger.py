"""How far an output's target has come, told by the target itself: a file beside its tables, replaced after each batch.

    {"v": 1, "pipeline": "shop", "output": "copy", "epoch": 3, "writer": "pid 17 on host",
     "streams": {"outputs/copy/shop@shop": {"of": "shop/*", "checkpoint": {"v": 1, "sources": {...}},
                                            "choice": [[[["shop/*"], []]]],
                                            "tables": {"shop/main.orders": [[17, 3], "8", "5feceb66ffc86f38"]},
                                            "incomplete": ["shop/main.stock"], "reached": [17, 3]}},
     "awaited": {}, "carried": {}, "earlier": [], "removing": [], "made_of": "0b9c1a52ce6f7d13"}

A stream is what one query brings into the output. A run begins where the ledger says; Spark's checkpoint is a cache of
that, which may be lost, older, or of another time. So neither a renamed filter nor a removed state makes a gap.
"""

import json
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from databus.core import ConfigError, CorruptData, DatabusError, LockHeld, MalformedRequest
from databus.disk import Location, WriteConflict
from databus.pipeline._editions import Edition, donors
from databus.pipeline._streams import Brings, Donor, Stream, joined, may_meet
from databus.tasks import Bucket, furthest

VERSION: Final = 1
_EARLIER_MAX: Final = 16
"""Editions. Who changes a file so often before its queries have begun has tables of the first ones read anew."""
Removed = TypeVar("Removed")


@dataclass
class Ledger:
    """path: the file. pipeline, output: whose it is. epoch: how often somebody has taken the target, and who did.
    now: the queries of the file as it was last written by. earlier: those of the editions before it, the oldest first,
    while queries of now have not begun that may go on from there, or where none of now brings the same. removing:
    tables, by full names, that are to be removed and read anew. made_of: a hash of the output's options, by which it is
    known under another name; empty in ledgers of old. tag: of the version of the file that this one is to replace; None
    if there is none. durable: what the file says of the queries of now; any thread may look at it.
    """

    path: Location
    pipeline: str
    output: str
    epoch: int = 0
    writer: str = ""
    now: Edition = field(default_factory=Edition)
    earlier: list[Edition] = field(default_factory=list)
    removing: frozenset[str] = frozenset()
    made_of: str = ""
    tag: str | None = None
    durable: Mapping[str, Stream] = field(default_factory=dict)

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
            names = str(value["pipeline"]), str(value["output"])
            epoch, writer = int(value["epoch"]), str(value["writer"])
            removing = frozenset(map(str, value.get("removing", [])))  # ledgers of old have none
            earlier, now = _editions_of(value)
            made_of = str(value.get("made_of", ""))
        except (ValueError, KeyError, TypeError, AttributeError, MalformedRequest) as error:
            raise _corrupt(path, output, error) from error
        if names != (pipeline, output):
            raise ConfigError(
                f"{path}: is of output {names[1]} of pipeline {names[0]}, whose names together are those of output "
                f"{output} of pipeline {pipeline}; give one of them another name, or this output another `path`"
            )
        return cls(path, pipeline, output, epoch, writer, now, earlier, removing, made_of, tag)

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

    @property
    def streams(self) -> dict[str, Stream]:
        """All that it says of queries, by name: of those of now, and of others while somebody may go on from them."""
        return {name: each for edition in (*self.earlier, self.now) for name, each in edition.streams.items()}

    def buckets(self) -> list[Bucket]:
        """One of each stream, for outputs whose targets have them."""
        return [
            Bucket(self.pipeline, self.output, name, 0, 1, at, each.reached, each.of, selections=each.selections)
            for name, each in self.streams.items()
            for at in each.checkpoint.sources.values()
        ]

    def _as_of(self, current: Mapping[str, Brings]) -> tuple[Edition, list[Edition]]:
        """The edition of the queries of now, and those before it. current: what all of them bring, by name."""
        if self.now.bringing == current:
            return self.now, self.earlier
        left, now = self.now.followed_by(current)
        return now, [*self.earlier, left][-_EARLIER_MAX:] if left.streams else self.earlier

    def has_begun(self, name: str, current: Mapping[str, Brings]) -> bool:
        """Whether a query of now has begun."""
        return name in self._as_of(current)[0].streams

    def found(self, name: str, of: str, current: Mapping[str, Brings]) -> Stream | None:
        """How far a stream has come; None if the target has nothing of it.

        One that has not begun goes on where that of its name stood in the last edition that had it; or, of whichever
        name, where the least of those stands that brought of the same, whatever they chose of it.
        """
        now, earlier = self._as_of(current)
        if name in now.streams:
            return now.streams[name]
        taken = _tables_of_others(now, of)
        found: list[Donor] = []
        for edition in reversed(earlier):
            same = {other: each for other, each in edition.streams.items() if each.of == of}
            mine = {name: same[name]} if name in same else same
            left = {other: each.only({*each.tables, *each.incomplete} - taken) for other, each in mine.items()}
            found += [Donor(other, each, is_part=len(mine) > 1) for other, each in left.items()]
            taken |= _tables_of_others(edition, of)
            if found and not any(of == awaited for awaited, _ in edition.awaited.values()):
                break
        return joined(found) if found and found[0].name != name else next((each.stream for each in found), None)

    def inherited(self, tables: Collection[str], current: Mapping[str, Brings]) -> Stream | None:
        """Where a stream that has not begun goes on with its tables, by full names, that others have brought so far, or
        it itself in an earlier edition; None if none has.

        That is where the least of them stands. Of these tables, those that nobody brought whole are incomplete.
        """
        _, earlier = self._as_of(current)
        found, not_whole = donors(earlier, tables)
        if not found:
            return None
        stream = joined(found)
        return replace(stream, of="", selections=(), incomplete=stream.incomplete | not_whole)

    def put(self, name: str, stream: Stream, current: Mapping[str, Brings]) -> None:
        """Note durably how far a stream has come. Once all queries of now have begun, what they have gone on from, or
        could have, is forgotten.
        """
        now, earlier = self._as_of({name: stream.brings, **current})
        if name not in now.streams:  # it may go on from one that brought more
            stream = stream.only({table for table in {*stream.tables, *stream.incomplete} if stream.had(table)})
        self.now = now.put(name, replace(stream, written=furthest(stream.written, stream.pair)))
        self.earlier = earlier if self.now.awaited else _left_alone(earlier, self.now)
        self._save()

    def needed(self, current: Mapping[str, Brings], but: str | None = None) -> set[str]:
        """The names of streams from which others than one go on, or may."""
        now, earlier = self._as_of(current)
        needed = {each.name for other, stream in now.streams.items() if other != but for each in stream.before}
        for name, stream in (each for edition in earlier for each in edition.streams.items()):
            if any(may_meet(stream.brings, awaited) for other, awaited in now.awaited.items() if other != but):
                needed |= {name, *(each.name for each in stream.before)}
        return needed

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
        self.now = self.now.emptied(self.removing)
        self.earlier = [each.emptied(self.removing) for each in self.earlier]
        self.removing = frozenset()
        self._save()
        return removed

    def forget(self) -> None:
        """Note durably that nothing has been written."""
        self.now, self.earlier = Edition(), []
        self._save()

    def _save(self) -> None:
        value: Mapping[str, Any] = {
            "v": VERSION,
            "pipeline": self.pipeline,
            "output": self.output,
            "epoch": self.epoch,
            "writer": self.writer,
            **self.now.to_json(),
            "earlier": [each.to_json() for each in self.earlier],
            "removing": sorted(self.removing),
            "made_of": self.made_of,
        }
        content = json.dumps(value, indent=1).encode()
        try:
            self.tag = self.path.put(content, after=self.tag)
        except WriteConflict:
            self.check_epoch()  # it is ours if we once heard of no answer to what was written all the same
            self.tag = self.path.put(content, after=self.tag)
        self.durable = self.now.streams


def _left_alone(earlier: Sequence[Edition], now: Edition) -> list[Edition]:
    left = (each.left_alone_by(now.bringing.values()) for each in earlier)
    return [each for each in left if each.streams]


def _tables_of_others(edition: Edition, of: str) -> set[str]:
    return {table for each in edition.streams.values() if each.of != of for table in each.tables}


def _editions_of(value: Mapping[str, Any]) -> tuple[list[Edition], Edition]:
    """The earlier ones, and that of now. Raises what `Stream` does."""
    now = Edition.from_json(value, "streams")
    if "earlier" in value:
        return [Edition.from_json(each, "earlier") for each in value["earlier"]], now
    left = value.get("left", [])  # as it was before there were editions, like `passed`
    left = left.items() if isinstance(left, dict) else left
    passed = {name: each for name, each in now.streams.items() if name in value.get("passed", [])}
    known = {name: each for name, each in now.streams.items() if name not in passed}
    earlier = [Edition({str(name): Stream.from_json(each, f"left.{name}")}) for name, each in left]
    return [*earlier, *([Edition(passed)] if passed else [])], Edition(known)


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
