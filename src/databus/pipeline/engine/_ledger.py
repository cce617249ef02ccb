"""How far an output's target has come: a file beside its tables, replaced after each batch.

    {"v": 1, "pipeline": "shop", "output": "copy", "epoch": 3, "writer": "pid 17 on host",
     "positions": {"shop": {"at": {...}, "tables": [[[["shop/*"], []]]], "except": [], "seeds": {},
                            "ways": {"5feceb66ffc86f38": ["shop/main.orders"]},
                            "marks": {"shop/main.orders": [[17, 3], "8"]}}},
     "removing": [], "made_of": "0b9c1a52ce6f7d13", "renaming": null}

A position has the places of the tables of one physical source; see `databus.places`. A run begins where the ledger
says; Spark's checkpoint is only a cache of that, and may be lost or out of date.
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
    """The content of the file."""

    path: Location
    pipeline: str
    output: str
    epoch: int = 0
    """How often a process has taken the target."""
    writer: str = ""
    """The process that took it last."""
    positions: dict[str, Position] = field(default_factory=dict)
    """By physical source. Replaced, never changed, so that any thread may read it."""
    removing: frozenset[str] = frozenset()
    """Full names of tables that are being removed, to begin again."""
    made_of: str = ""
    """A hash of the output's options, by which it is recognised under another name."""
    renaming: tuple[str, str] | None = None
    """Pipeline and output of the ledger that this one is moved to, or from; see `databus rename`. Meanwhile the target
    is not written.
    """
    tag: str | None = None
    """Of the version of the file that the next write replaces; None if there is none."""

    @classmethod
    def load(cls, path: Location, pipeline: str, output: str) -> Self:
        """Read the file; without one, nothing has been written yet. Raises `CorruptData` if it is not a ledger,
        `ConfigError` if it belongs to another output or a newer version.
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
                raise ValueError(f"version {written}")  # noqa: TRY301 - the handler below names the file
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
        """Of the pipeline and the output."""
        return self.pipeline, self.output

    def take(self) -> None:
        """Become the target's only writer: the one before is refused from now on. Raises `ConfigError` during a
        renaming.
        """
        if self.renaming is not None:
            raise ConfigError(self.half_renamed)
        self._own()

    @property
    def half_renamed(self) -> str:
        """The message during a renaming."""
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
        """Raises `LockHeld` if another process has taken the target meanwhile, `CorruptData` if the file is gone."""
        value, tag = _read(self.path, self.output)
        if value is None:
            raise CorruptData(
                f"{self.path}: was removed while this output was written. Start the pipeline again: it begins at the "
                f"target's own places"
            )
        if (value.get("epoch"), value.get("writer")) != (self.epoch, self.writer):
            raise LockHeld(
                f"{self.path}: {value.get('writer')} has begun to write this output; two pipelines must not share a "
                f"target. Stop one of them, or give it another `path`"
            )
        self.tag = tag

    def put(self, physical: str, position: Position) -> None:
        """Write the places of a physical source's tables durably."""
        self._save({**self.positions, physical: position})

    def reserve(self, names: tuple[str, str]) -> None:
        """Mark it durably as being moved from or to the ledger of these names, so that no run takes it meanwhile."""
        self.renaming = names
        self._own()

    def come_from(self, other: "Ledger") -> None:
        """Take over the content of another one durably, and be free to be taken; also if both are the same file."""
        self.epoch, self.tag = max(self.epoch, other.epoch), other.tag if self.path == other.path else self.tag
        self.removing, self.made_of, self.renaming = other.removing, other.made_of, None
        self._save(other.positions)

    def written(self, choice: Choice) -> list[str]:
        """Full names of the tables of a choice that were written."""
        return [name for position in self.positions.values() for name in position.marks if chosen_by(choice, name)]

    def way_of(self, name: str) -> str:
        """The hash of what decided the rows of a table; empty if unknown."""
        position = self.positions.get(name.partition("/")[0], Position())
        return position.ways.get(name, "")

    def rebuild(self, tables: Collection[str], remove: Callable[[Collection[str]], Removed]) -> Removed:
        """Remove tables, by full names, so that they begin again with their query; returns the result of `remove`.

        The intention is written first, durably: if this process is killed in between, the next one finds it in
        `removing`. If `remove` refuses, it is taken back.
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
        """Write durably that nothing has been written."""
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
            self.check_epoch()  # raises if another process wrote it; it may be our own write, whose answer was lost
            self.tag = self.path.put(content, after=self.tag)
        self.positions = dict(positions)


def _names(value: Any) -> tuple[str, str] | None:
    """Raises `ValueError`, `TypeError`."""
    if value is None:
        return None
    pipeline, output = value
    return str(pipeline), str(output)


def _read(path: Location, output: str) -> tuple[Mapping[str, Any] | None, str | None]:
    """The content of the file and its tag; None without a file. Raises `CorruptData`, and `ConfigError` if there cannot
    be a file there.
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
        f"{path}: does not say how far this output has come ({error!r}). Restore it; or rebuild the output: "
        f"`databus rebuild FILE {output}` (FILE is the pipeline's file)"
    )
