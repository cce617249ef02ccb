"""How far an output's target has come, told by the target itself: a file beside its tables, replaced after each batch.

    {"v": 1, "pipeline": "shop", "output": "copy", "epoch": 3, "writer": "pid 17 on host",
     "positions": {"shop": {"at": {...}, "tables": [[[["shop/*"], []]]], "except": [], "seeds": {},
                            "ways": {"5feceb66ffc86f38": ["shop/main.orders"]},
                            "marks": {"shop/main.orders": [[17, 3], "8"]}}},
     "removing": [], "made_of": "0b9c1a52ce6f7d13", "renaming": null}

A position is where the tables of one physical source stand; see `databus.places`. A run begins where the ledger says;
Spark's checkpoint is a cache of that, which may be lost, older, or of another time.
"""

import json
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from uuid import uuid4

from databus.core import ConfigError, CorruptData, DatabusError, LockHeld, MalformedRequest
from databus.disk import Location, WriteConflict
from databus.places import Choice, Position, chosen_by

VERSION: Final = 1
Removed = TypeVar("Removed")


@dataclass
class Ledger:
    """What stands in the file."""

    path: Location
    pipeline: str
    output: str
    epoch: int = 0
    """How often somebody has taken the target."""
    writer: str = ""
    """Who took it last."""
    positions: dict[str, Position] = field(default_factory=dict)
    """By physical source. Replaced, never changed, so that any thread may look at it."""
    removing: frozenset[str] = frozenset()
    """Tables, by full names, that are to be removed, and then begin again."""
    made_of: str = ""
    """A hash of the output's options, by which it is known under another name."""
    renaming: tuple[str, str] | None = None
    """Pipeline and output of the ledger that this one is about to go to, or to come from; see `databus rename`. Nobody
    writes the target meanwhile.
    """
    tag: str | None = None
    """Of the version of the file that this one is to replace; None if there is none."""

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
            removing, made_of = frozenset(map(str, value["removing"])), str(value["made_of"])
            renaming = _names(value.get("renaming"))
            positions = {
                str(physical): Position.from_json(position, f"positions.{physical}")
                for physical, position in value["positions"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, MalformedRequest) as error:
            raise _corrupt(path, output, error) from error
        if names != (pipeline, output):
            raise ConfigError(
                f"{path}: is of output {names[1]} of pipeline {names[0]}, whose names together are those of output "
                f"{output} of pipeline {pipeline}; give one of them another name, or this output another `path`"
            )
        return cls(path, pipeline, output, epoch, writer, positions, removing, made_of, renaming, tag)

    @property
    def names(self) -> tuple[str, str]:
        """Of the pipeline and of the output."""
        return self.pipeline, self.output

    def take(self) -> None:
        """Become the target's only writer: whoever was it before is refused from now on. Raises `ConfigError` where it
        is being renamed.
        """
        if self.renaming is not None:
            raise ConfigError(self.half_renamed)
        self._own()

    @property
    def half_renamed(self) -> str:
        """What is said while it is being renamed."""
        pipeline, output = self.renaming or self.names
        return (
            f"{self.path}: a rename from or to output {output} of pipeline {pipeline} was broken off. Repeat the "
            f"`databus rename` that did it; until then nothing is written"
        )

    def _own(self) -> None:
        self.epoch += 1
        self.writer = f"process {os.getpid()} on {socket.gethostname()} ({uuid4().hex[:8]})"
        self._save(self.positions)
        self.path.check_conditions()

    def check_epoch(self) -> None:
        """Raises `LockHeld` if somebody else has taken the target since we did, `CorruptData` if the file is gone."""
        value, tag = _read(self.path, self.output)
        if value is None:
            raise CorruptData(
                f"{self.path}: was removed while this output was written. Start the pipeline again: it begins where "
                f"the target stands then"
            )
        if (value.get("epoch"), value.get("writer")) != (self.epoch, self.writer):
            raise LockHeld(
                f"{self.path}: {value.get('writer')} has begun to write this output; two pipelines must not share a "
                f"target. Stop one of them, or give it another `path`"
            )
        self.tag = tag

    def put(self, physical: str, position: Position) -> None:
        """Note durably where the tables of a physical source stand."""
        self._save({**self.positions, physical: position})

    def reserve(self, names: tuple[str, str]) -> None:
        """Take it for a move from or to the ledger of these names: durably, so that nobody else does before that is
        done.
        """
        self.renaming = names
        self._own()

    def come_from(self, other: "Ledger") -> None:
        """Say durably what another one says, and be free to be taken; also in the place of it, in its file."""
        self.epoch, self.tag = max(self.epoch, other.epoch), other.tag if self.path == other.path else self.tag
        self.removing, self.made_of, self.renaming = other.removing, other.made_of, None
        self._save(other.positions)

    def written(self, choice: Choice) -> list[str]:
        """Those of some tables of which something was written, by full names."""
        return [name for each in self.positions.values() for name in each.marks if chosen_by(choice, name)]

    def way_of(self, name: str) -> str:
        """By which way the rows of a table came; empty where nobody knows."""
        position = self.positions.get(name.partition("/")[0], Position())
        return position.ways.get(name, "")

    def make_anew(self, tables: Collection[str], remove: Callable[[Collection[str]], Removed]) -> Removed:
        """Have tables, by full names, removed, and begin again with their query; returns what `remove` does.

        That they are to be removed is noted first, durably: whoever is killed in between leaves it in `removing`, for
        the next to do. Where `remove` refuses, nothing is noted.
        """
        self.removing = frozenset(tables)
        self._save(self.positions)
        try:
            removed = remove(self.removing)
        except DatabusError:
            self.removing = frozenset()
            self._save(self.positions)
            raise
        gone, self.removing = self.removing, frozenset()
        emptied = {
            physical: position.without([name for name in gone if name.startswith(f"{physical}/")])
            for physical, position in self.positions.items()
        }
        self._save(emptied)
        return removed

    def forget(self) -> None:
        """Note durably that nothing has been written."""
        self._save({})

    def _save(self, positions: Mapping[str, Position]) -> None:
        value: Mapping[str, Any] = {
            "v": VERSION,
            "pipeline": self.pipeline,
            "output": self.output,
            "epoch": self.epoch,
            "writer": self.writer,
            "positions": {physical: position.to_json() for physical, position in positions.items()},
            "removing": sorted(self.removing),
            "made_of": self.made_of,
            "renaming": self.renaming,
        }
        content = json.dumps(value, indent=1).encode()
        try:
            self.tag = self.path.put(content, after=self.tag)
        except WriteConflict:
            self.check_epoch()  # it is ours if we once heard of no answer to what was written all the same
            self.tag = self.path.put(content, after=self.tag)
        self.positions = dict(positions)


def _names(value: Any) -> tuple[str, str] | None:
    """Raises `ValueError`, `TypeError`."""
    if value is None:
        return None
    pipeline, output = value
    return str(pipeline), str(output)


def _read(path: Location, output: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """What stands in the file, and its tag; None if there is none. Raises `CorruptData`; `ConfigError` where there can
    be none.
    """
    try:
        file = path.read()
        if file is None:
            return None, None
        value = json.loads(file.content)
    except (OSError, ValueError) as error:
        raise _corrupt(path, output, error) from error
    if not isinstance(value, dict):
        raise _corrupt(path, output, TypeError("not an object"))
    return value, file.tag


def _corrupt(path: Location, output: str, error: Exception) -> CorruptData:
    return CorruptData(
        f"{path}: does not say how far this output has come ({error!r}). Restore it; or have the output made "
        f"anew: `databus rebuild FILE {output}` (FILE is the pipeline's file)"
    )
