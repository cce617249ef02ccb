"""Contract of outputs. One runs in the driver, where it is given a `ChangeBatch` at a time, has Spark's tasks write its
rows and commits what they have written, or runs in Spark, where it is given the micro-batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from databus.core import InputError
from databus.disk import Location, Storage, locate
from databus.flow import ChangeBatch, DeadLetters, DirectWriter, Letter, Letters, PartWriter, StagedBatch, Tasks
from databus.places import Choice, Held, Noted, Position
from databus.plugins._config import OutputConfig
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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


class Output(ABC):
    """Base of outputs that run in the driver. One thread calls it: open, then write for each batch, then close.

    `write` returns when the batch is durable in the target. A batch may come again, whole or with other boundaries:
    the pairs say what is new. An error stops this output's query and no other.
    """

    config_model: ClassVar[type[OutputConfig]]
    delivery: ClassVar[Delivery]
    runs: ClassVar[Literal["driver", "spark"]] = "driver"

    def __init__(self, config: Any, context: OutputContext) -> None:
        self.config = config
        self.context = context

    def ledger_folder(self) -> Location | Path | None:
        """The folder, in the target, of the file that says how far it has come; None for a target that keeps nothing,
        whose file is among the pipeline's state.
        """
        return None

    def check_table(self, table: TableSchema) -> None:
        """Raises `InputError` or `UnsupportedFeature` for a table of which it cannot take rows, whatever these are."""
        del table

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held]:
        """What the target says of tables, by full names, when a query begins, and before the first batch of a table; of
        those that it has nothing of, nothing. An output that cannot tell does not override this.

        tables: with what it said after the last batch that wrote each, as the ledger has noted it. Raises `CorruptData`
        itself where what is missing is not brought back by a rebuild.
        """
        del tables
        return {}

    @property
    def tells(self) -> bool:
        """Whether it can tell what its target holds."""
        return type(self).held is not Output.held

    def follow_options(self, name: str) -> None:
        """Have what the target holds of a table be as the options want it now, as far as that needs no row; called of
        every table when a query begins. Raises `InputError` where it cannot be.
        """
        del name

    def tables(self) -> Collection[str]:
        """Full names of the tables that the target knows by itself to be in it."""
        return ()

    @property
    def can_be_made_anew(self) -> bool:
        """Whether it can `remove` what was written."""
        return type(self).remove is not Output.remove

    def remove(self, tables: Collection[str]) -> Sequence[Location | Path]:
        """Remove what was written of these tables, by full names, so that they can be made anew; returns the folders
        that are gone. Called while nothing runs. Raises `InputError` for an output that keeps nothing.
        """
        del tables
        raise InputError(
            f"outputs.{self.context.output}: {type(self).__name__} has no `remove`, so what it wrote cannot be made "
            f"anew. Give the output another name and an empty target, or say `on_change: continue`"
        )

    def open(self) -> None:  # noqa: B027 - most outputs have nothing to open
        """Get ready.

        Raises `InputError` for a target that cannot be, `LockHeld` for one that another process writes.
        """

    @abstractmethod
    def write(self, batch: ChangeBatch) -> Written | None:
        """Apply a batch.

        Raises `UnsupportedFeature` for a control that this output does not handle, naming the way out.
        """

    def part_writer(self) -> PartWriter | None:
        """What writes its rows in Spark's tasks; None for an output that is given them in the driver, by `write`.

        What it has written is shown by `commit`.
        """
        return None

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written | None:
        """Show what tasks have written, and apply controls, in order; durable in the target when this returns.

        tasks: runs jobs that have to do with rows. As with `write`, a batch may come again. Raises what `write` does;
        `Restage` where tasks have to write again.
        """
        raise NotImplementedError

    def discard(self, batch: StagedBatch) -> None:
        """Remove what tasks have written of a batch, as far as no commit shows it."""
        del batch

    def close(self) -> None:  # noqa: B027 - see open
        """Let go of everything; callable twice."""


class DirectOutput(Output):
    """Base of outputs whose rows tasks write where they are seen at once, a task for each bucket of keys.

    What a batch brings is in the target when all of its buckets are. `commit` is told then; most have nothing to do.
    """

    in_ledger: Mapping[str, Position] = MappingProxyType({})
    """What the ledger says, by physical source; set before `open`."""
    choice: Choice = ()
    """The tables that are written; set before `open`."""

    @property
    def letters(self) -> DeadLetters | None:
        """Where rows are kept that its target refuses; None for an output that keeps none."""
        return None

    def replay(self, letters: Letters) -> Sequence[Letter]:
        """Write letters once more; returns those that are refused again. The pipeline may run meanwhile."""
        raise NotImplementedError

    @abstractmethod
    def direct_writer(self) -> DirectWriter:
        """What writes a bucket in a task."""

    def write(self, batch: ChangeBatch) -> Written | None:
        """Not called: tasks write."""
        raise NotImplementedError

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written | None:
        """See `Output.commit`: the batch is in the target."""
        del batch, tasks
        return None


class SparkOutput(ABC):
    """Base of outputs that run in Spark: they are given the micro-batch as a DataFrame.

    rows: how many have been written since the start; an output that can tell adds them here.
    """

    rows: int = 0

    config_model: ClassVar[type[OutputConfig]]
    delivery: ClassVar[Delivery]
    runs: ClassVar[Literal["driver", "spark"]] = "spark"

    def __init__(self, config: Any, context: OutputContext) -> None:
        self.config = config
        self.context = context

    @abstractmethod
    def write(self, batch: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch of typed rows; it may come again with the same id."""
