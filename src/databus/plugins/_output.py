"""Contract of outputs: what all of them do, and what some can do besides.

An output lives in the driver. It is given batches with their rows (`write`), or Spark's tasks write the rows and the
output shows them (`part_writer`, `commit`). What it can do besides are the protocols below: whoever has their methods
can; nobody derives from them. What follows from options alone is asked of these, see `OutputConfig`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

from databus.core import Pair
from databus.disk import Location, Storage, locate
from databus.flow import ChangeBatch, DeadLetters, DirectWriter, Letter, Letters, PartWriter, StagedBatch, Tasks
from databus.places import Choice, Held, Noted, Position
from databus.plugins._config import OutputConfig
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_SHORT: Final = 6  # letters of a name of which one may be wrong


class Delivery(StrEnum):
    """What a target shows after a crash and a replay; each output declares one and is held to it."""

    EXACTLY_ONCE = "exactly_once"
    REPEATS_HARMLESS = "repeats_harmless"
    AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True, slots=True)
class OutputContext:
    """Where an output works: the pipeline's name, its own name, the folder that relative paths start from, and options
    of object stores.
    """

    pipeline: str
    output: str
    folder: Path
    storage: Storage = field(default_factory=Storage)

    def locate(self, path: str) -> Location:
        """What a path or a URI names. Raises `ConfigError` for a URI that names none."""
        return locate(path, self.folder, self.storage)


@dataclass(frozen=True, slots=True)
class Written:
    """What a target has got of a batch."""

    rows: Mapping[str, int] | None = None
    """How many rows of each source (`db.table`) are new in it; None where the output cannot tell, as if all were."""
    marks: Mapping[str, Noted] = field(default_factory=dict)
    """By the full names of tables: what `held` knows them by from now on, and how far it says that they are."""
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """The same: behind what the target has of them, by part of it; see `FindsOffsets`."""
    already: Mapping[str, int] = field(default_factory=dict)
    """How many rows of each source it had before. A row that it was given and that is in neither count is lost, as
    `databus audit` sees it.
    """


class Output:
    """Base of outputs. One thread calls it: `open`, then a batch at a time, then `close`.

    A batch is durable in the target when `write`, or `commit`, returns. It may come again, whole or with other
    boundaries: the pairs say what is new. An error stops this output's query and no other.
    """

    config_model: ClassVar[type[OutputConfig]]
    delivery: ClassVar[Delivery]

    def __init__(self, config: Any, context: OutputContext) -> None:
        self.config = config
        self.context = context

    def open(self) -> None:
        """Get ready.

        Raises `InputError` for a target that cannot be, `LockHeld` for one that another process writes.
        """

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held] | None:
        """What the target says of tables, by full names, when a query begins, and before the first batch of a table; of
        those that it has nothing of, nothing. None where it cannot tell.

        tables: with what it said after the last batch that wrote each, as the ledger has noted it. Raises `CorruptData`
        itself where what is missing is not brought back by a rebuild.
        """
        del tables
        return None

    def write(self, batch: ChangeBatch) -> Written | None:
        """Apply a batch; None stands for `Written()`.

        Raises `UnsupportedFeature` for a control that this output does not handle, naming the way out.
        """
        raise NotImplementedError

    def part_writer(self) -> PartWriter | DirectWriter | None:
        """What writes its rows in Spark's tasks: where nobody sees them until `commit`, or, a task for each bucket of
        keys, where they are seen at once. None for an output that is given them in the driver, by `write`.
        """
        return None

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written | None:
        """Show what tasks have written, and apply controls, in order. Of a batch that was written in buckets, all of
        them are in the target.

        tasks: runs jobs that have to do with rows. As with `write`, a batch may come again. Raises what `write` does;
        `Restage` where tasks have to write again.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything; callable twice."""


@runtime_checkable
class TakesFrames(Protocol):
    """An output that is given typed rows as Spark has them, in the place of `write`."""

    def write_frame(self, rows: "DataFrame", batch_id: int) -> int | None:
        """Write a micro-batch; it may come again with the same id. Returns how many rows it had, if it can tell."""


@runtime_checkable
class Discards(Protocol):
    """An output that can remove what tasks have written in vain."""

    def discard(self, batch: StagedBatch) -> None:
        """Remove what tasks have written of a batch, as far as no commit shows it."""


@runtime_checkable
class TakesOver(Protocol):
    """An output whose target has to be told that a new run begins, so that tasks of an earlier one are shut out."""

    def take_over(self, ledger: Mapping[str, Position], choice: Choice) -> None:
        """Shut out who wrote before; called behind `open`. ledger: what it says, by physical source. choice: the tables
        that are written.
        """


@runtime_checkable
class ChecksTables(Protocol):
    """An output that cannot take every table."""

    def check_table(self, table: TableSchema) -> None:
        """Raises `InputError` or `UnsupportedFeature` for a table of which it cannot take rows, whatever these are."""


@runtime_checkable
class FollowsOptions(Protocol):
    """An output that can give the options of now to what is in the target already."""

    def follow_options(self, name: str) -> None:
        """Have what the target holds of a table be as the options want it now, as far as that needs no row; called of
        every table when a query begins. Raises `InputError` where it cannot be.
        """


@runtime_checkable
class KeepsLedger(Protocol):
    """An output whose target has room for the file that says how far it has come; of others it is in the state."""

    def ledger_folder(self) -> Location | Path:
        """The folder of that file, in the target."""


@runtime_checkable
class Removes(Protocol):
    """An output whose tables can be made anew."""

    def tables(self) -> Collection[str]:
        """Full names of the tables that the target knows by itself to be in it."""

    def remove(self, tables: Collection[str]) -> Sequence[Location | Path]:
        """Remove what was written of these tables, by full names; returns the folders that are gone. Called while
        nothing runs.
        """


@runtime_checkable
class TakesName(Protocol):
    """An output whose target knows it by the names of its pipeline and of itself."""

    def take_name(self, before: OutputContext, tables: Collection[str]) -> int:
        """Have the target know as of this output what it knows as of the one of `before`; returns of how many tables,
        or parts of them, that was. Called while nothing runs, and again if it was broken off: where the target has
        transactions, in one. tables: those that the ledger knows, by full names.
        """


@runtime_checkable
class FindsKeys(Protocol):
    """An output that can say what its target has of one key, for who looks for one change."""

    def find(
        self, physical: str, source: str, key: Mapping[str, Any], about: Collection[Pair]
    ) -> Sequence[Pair] | None:
        """The pairs of the rows that the target has of a key; None where it cannot tell. key: Arrow's scalars by
        column, as the output is given them. about: the pairs that are asked for; a target that keeps every change may
        look for these alone.
        """


@runtime_checkable
class FindsOffsets(Protocol):
    """An output whose target is read by offsets, which the journal has of each batch: see `Written.offsets`."""

    def find_between(
        self, before: Mapping[str, int], after: Mapping[str, int], about: Collection[Pair]
    ) -> Sequence[Pair] | None:
        """Those of some pairs that the target has between two offsets of each part; None where it cannot tell."""


@runtime_checkable
class NamesTargets(Protocol):
    """An output whose targets have names that others know them by."""

    def target_of(self, physical: str, source: str) -> tuple[str, str]:
        """Of a table's: a namespace, such as `kafka://broker:9092`, and the name there. Raises `InputError`."""


@runtime_checkable
class KeepsLetters(Protocol):
    """An output that keeps rows which its target refuses."""

    @property
    def letters(self) -> DeadLetters:
        """Where they are."""

    def replay(self, letters: Letters) -> Sequence[Letter]:
        """Write letters once more; returns those that are refused again. The pipeline may run meanwhile."""


ABILITIES: Final = (
    TakesFrames,
    Discards,
    TakesOver,
    ChecksTables,
    FollowsOptions,
    KeepsLedger,
    Removes,
    TakesName,
    FindsKeys,
    KeepsLetters,
)
"""What some outputs can do besides."""


def misspelt(kind: type[Output]) -> Iterator[tuple[str, str]]:
    """Public names of a class of outputs that are nearly one of the contract, each with that one: an ability with a
    misspelt name would never be called, without any error.
    """
    wanted = [name for face in (Output, *ABILITIES) for name in (*vars(face), *face.__annotations__) if name[0] != "_"]
    own = {name for base in kind.__mro__ if base not in (Output, object) for name in vars(base)}
    for name in sorted(own.difference(wanted)):
        near = () if name.startswith("_") else (other for other in wanted if _is_nearly(name, other))
        yield from ((name, other) for other in near)


def _is_nearly(name: str, other: str) -> bool:
    """Whether two names differ by a letter, or, if they are long, by two, without capitals and underscores."""
    one, two = (word.lower().replace("_", "") for word in (name, other))
    before = list(range(len(two) + 1))
    for number, letter in enumerate(one, 1):
        now = [number]
        for place, other_letter in enumerate(two):
            now.append(min(before[place + 1] + 1, now[place] + 1, before[place] + (letter != other_letter)))
        before = now
    return before[-1] <= 1 + (len(two) > _SHORT)
