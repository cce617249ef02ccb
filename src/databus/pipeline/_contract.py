"""Contracts of the plugins: inputs, filters, outputs. The built-in ones and users' own, by entry points, are alike.

An edge of the graph carries either *tables* (any number of tables, as frames) or *typed* rows of one table. An output
runs in the driver, where it is given a `ChangeBatch` at a time, or in Spark, where it is given the micro-batch.

Modules of plugins import pyspark only inside functions: `validate` loads them and starts no Spark.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from databus.core import Checkpoint, ConfigError, InputError, Pair, SourceCheckpoint
from databus.disk import Location, Storage, locate
from databus.schema import TableSchema
from databus.tasks import (
    ChangeBatch,
    Decode,
    Definitions,
    KeyChoice,
    Lineage,
    PartWriter,
    StagedBatch,
    TableChoice,
    TableFilter,
    Tasks,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from databus.link import Access, RelayClient


class Shape(StrEnum):
    """What an edge of the graph carries."""

    TABLES = "tables"
    TYPED = "typed"


class Delivery(StrEnum):
    """What a target shows after a crash and a replay; each output declares one and is held to it."""

    EXACTLY_ONCE = "exactly_once"
    REPEATS_HARMLESS = "repeats_harmless"
    AT_LEAST_ONCE = "at_least_once"


class NodeConfig(BaseModel):
    """What every node of the graph has."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    type: str = Field(description="Kind of node.")


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1)]
"""One or more names; one may stand without brackets."""


class InputConfig(NodeConfig):
    """What every input has."""


class FilterConfig(NodeConfig):
    """What every filter has."""

    from_: Names = Field(
        alias="from",
        description="Names of the inputs and filters before it; `name.branch` for one branch of a route.",
        examples=["shop", ["shop", "split.large"]],
    )


class TablesFilterConfig(FilterConfig):
    """What every filter over whole tables has."""

    tables: Names = Field(
        default_factory=lambda: ["*"],
        description="Tables that it is about, as `physical/db.table`, `db.table` or `table`; `*` stands for any run of "
        "characters. Others pass as they are.",
        examples=[["*"], ["main.orders", "main.*_archive"]],
    )
    missing: Literal["stop", "skip"] = Field(
        "stop",
        description="What happens to a table that has not all the columns that are named here: the output stops and "
        "says so, or what is not there is left alone (of `where`: all rows of the table pass).",
    )


class OutputConfig(NodeConfig):
    """What every output has."""

    from_: Names = Field(
        alias="from",
        description="Names of the inputs and filters before it; `name.branch` for one branch of a route.",
        examples=["shop", ["shop", "split.large"]],
    )
    lane: str | None = Field(None, description="Outputs of the same lane share one query, and wait for each other.")
    on_change: Literal["stop", "continue", "rebuild"] = Field(
        "stop",
        description="What to do with a table whose rows were written before its filters, or what else decides its rows "
        "here, were changed: `stop`; `continue`, which keeps them and has only later changes go the new way; or "
        "`rebuild`, which removes them and has the table read anew. A snapshot goes to all outputs of the source: if a "
        "table is read anew for one, a history beside it has those rows again, marked `_snapshot`, and a mirror that "
        "continues holds only rows of the new way then.",
    )


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
class RunContext:
    """What inputs and filters work with at run time.

    relay: the relay's URL, where there is one. access: the files with which it is asked. folder: where relative paths
    start. is_refilled: whether snapshots replace all that the outputs hold; see `Output.is_refilled`.
    """

    pipeline: str
    node: str
    folder: Path
    relay: str | None = None
    access: "Access | None" = None
    is_refilled: bool = False

    @property
    def relay_url(self) -> str:
        """The relay's URL. Raises `ConfigError` where there is none."""
        if self.relay is None:
            raise ConfigError(f"inputs.{self.node}: there is no relay to read")
        return self.relay

    def relay_client(self) -> "RelayClient":
        """A client of the relay. Raises `ConfigError` where there is none."""
        from databus.link import RelayClient

        return RelayClient(self.relay_url, access=self.access)


@dataclass(frozen=True, slots=True)
class Place:
    """What a target holds of a table: all up to `pair`. mark: whatever lets the output tell that at a glance later."""

    pair: Pair
    mark: str = ""


class Input(ABC):
    """Base of inputs. What comes out of it are streaming DataFrames: of typed rows with `meta=full`, or, for tables, of
    whatever it knows itself how to make change batches of.
    """

    config_model: ClassVar[type[InputConfig]]
    emits: ClassVar[Shape]
    needs_relay: ClassVar[bool] = False
    resumes: ClassVar[bool] = False
    """Whether `tables` and `typed` begin after a given position."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def choice(self) -> TableChoice:
        """The tables that come out of it, by pattern."""
        return TableChoice()

    def tables(
        self,
        spark: "SparkSession",
        context: RunContext,
        physical: str,
        patterns: Sequence[str],
        after: Checkpoint | None = None,
    ) -> "tuple[DataFrame, Decode]":
        """The tables of a physical source that match one of `patterns`, as a stream, and what decodes a micro-batch of
        it in the driver; of inputs that emit tables. after: where it begins if Spark has no checkpoint of it.
        """
        raise NotImplementedError

    @abstractmethod
    def typed(
        self, spark: "SparkSession", context: RunContext, table: str | None, after: Checkpoint | None = None
    ) -> "DataFrame":
        """Rows of one table; an input that emits typed rows has but one, and is given None. after: see `tables`."""

    @abstractmethod
    def schema_of(self, context: RunContext, table: str | None) -> tuple[str, TableSchema]:
        """The physical source of that table, and its definition now. Raises `UnknownSource` or `ServiceUnavailable`."""

    def log_of(self, context: RunContext, physical: str) -> str:
        """The uuid of the log that its rows come from."""
        del context
        return physical

    def beginning(self, context: RunContext, physical: str) -> Checkpoint | None:
        """Where a stream begins that has never run, where its options name a place that moves; None where they mean the
        same whenever they are read.
        """
        del context, physical
        return None

    def check_position(self, context: RunContext, physical: str, checkpoint: Checkpoint) -> None:  # noqa: B027 - see open
        """Raises `PositionForeign` or `PositionPurged` for a checkpoint that its streams cannot go on from."""

    @property
    def starting_version(self) -> int:
        """The first SCN that its options ask for, where they name a place that does not move."""
        return 0

    @property
    def wants_all(self) -> bool:
        """Whether its options ask for everything, so that what `beginning` leaves out has to be read anew."""
        return False

    def tables_of(self, context: RunContext, physical: str | None = None) -> list[str]:
        """Full names of the tables that a physical source, or all of them together, have now."""
        del context, physical
        return []

    def tables_now(self, context: RunContext, physical: str) -> Mapping[str, TableSchema]:
        """Those tables with their definitions, by full name."""
        return {name: self.schema_of(context, name)[1] for name in self.tables_of(context, physical)}

    def past_definitions(self, context: RunContext, name: str) -> Sequence[TableSchema]:
        """Those that a table, by its full name, has and had, as far as that is known."""
        del context, name
        return ()

    def definitions(self, context: RunContext) -> Definitions:
        """What tells tasks of tables' definitions; of inputs that emit tables."""
        raise NotImplementedError

    def read_anew(self, context: RunContext, physical: str, tables: Sequence[str]) -> None:
        """Have these tables, by full names, read while changes go on: their snapshots come in the stream.

        Raises `InputError` where that cannot be.
        """
        raise NotImplementedError

    def position_of(self, offset: Mapping[str, Any], physical: str, log: str) -> SourceCheckpoint:
        """An offset of its stream as a position in the log of that uuid."""
        position = Checkpoint.from_json(dict(offset), "offset").sources.get(physical, SourceCheckpoint())
        return replace(position, log=log)


class Filter(ABC):
    """Base of filters. One between typed edges overrides `apply`; one between tables edges overrides `choose`."""

    config_model: ClassVar[type[FilterConfig]]

    def __init__(self, config: Any, folder: Path) -> None:
        self.config = config
        self.folder = folder

    @property
    def takes(self) -> Shape:
        """What it takes and gives. TYPED also accepts a tables edge, of which it takes the table it names."""
        return Shape.TYPED

    @property
    def table(self) -> str | None:
        """The table that it names; a typed filter after a tables edge has to name one."""
        return None

    @property
    def branches(self) -> tuple[str, ...]:
        """Names of what comes out of it, read as `filter.branch`; none if there is but one."""
        return ()

    def columns_read(self) -> list[tuple[str, str]]:
        """The columns of its rows that its options name, as (option, column), as far as that can be told."""
        return []

    def lineage(self, names: Sequence[str], branch: str | None) -> Lineage:
        """What becomes of a table's columns. One that does not say may do anything to any of them.

        Raises KeyError for a column that it names and the table has not.
        """
        del branch
        return Lineage({name: name for name in names}, is_opaque=True)

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """What decides the rows and columns that come out, as JSON, without names of tables, nodes and branches."""
        del branch
        no_matter = {"from_", "table", "tables", "missing"}
        given = self.config.model_dump(mode="json", exclude=no_matter, exclude_defaults=True)
        return {"type": self.config.type, **given}

    def problems(self) -> list[tuple[str, str]]:
        """What is wrong with its options beyond their model, as (path below the filter, message). Starts no Spark."""
        return []

    def choose(self, branch: str | None) -> TableChoice:
        """Which tables go on, or into that branch."""
        raise NotImplementedError(branch)

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """The typed rows that go on, or into that branch; the bus's columns and the rows of controls always go on."""
        raise NotImplementedError(branch)


class TablesFilter(Filter):
    """Base of filters over whole tables: of each table by itself, on Arrow. Between tables edges it judges rows as they
    were written; between typed ones, rows of the one table as they come to it.
    """

    @property
    @abstractmethod
    def in_tasks(self) -> TableFilter:
        """What it does, without the options' model: it travels to tasks, which know nothing of pipelines."""

    @property
    def about(self) -> dict[str, Any]:
        """The options that all of them have, as `TableFilter` takes them."""
        return {"tables": tuple(self.config.tables), "missing": self.config.missing}

    @property
    def takes(self) -> Shape:
        """Tables."""
        return Shape.TABLES

    def lineage(self, names: Sequence[str], branch: str | None) -> Lineage:
        """See `Filter.lineage`: of typed rows."""
        del branch
        return self.in_tasks.lineage(names)

    def option_of(self, name: str) -> str:
        """The option that names a column, for messages."""
        given = self.config.model_dump(include={"columns", "exclude", "hash", "redact", "truncate"})
        return next((option for option, value in given.items() if name in (value or ())), "where")

    def choose(self, branch: str | None) -> TableChoice:
        """All tables go on."""
        del branch
        return TableChoice()


class Output(ABC):
    """Base of outputs that run in the driver. One thread calls it: open, then write for each batch, then close.

    `write` returns when the batch is durable in the target. A batch may come again, whole or with other boundaries:
    the pairs say what is new. An error stops this output's query and no other.

    written: the rows that the last `write` has written of each source, without those that the target had already;
    None where the output does not tell, as if it had written all.
    """

    written: Mapping[str, int] | None = None

    config_model: ClassVar[type[OutputConfig]]
    delivery: ClassVar[Delivery]
    runs: ClassVar[Literal["driver", "spark"]] = "driver"
    takes_stores: ClassVar[bool] = False
    """Whether its `path` may be a URI in an object store."""
    incomplete: Collection[str] = frozenset()
    """Full names of tables whose older rows come with a snapshot that has not ended; set before each `write`."""

    def __init__(self, config: Any, context: OutputContext) -> None:
        self.config = config
        self.context = context

    @property
    def is_refilled(self) -> bool:
        """Whether a snapshot of a table replaces all that it holds of it, so that rows from before may be left out."""
        return False

    def ledger_folder(self) -> Location | Path | None:
        """The folder, in the target, of the file that says how far it has come; None for a target that keeps nothing,
        whose file is among the pipeline's state.
        """
        return None

    def form(self, source: str) -> Mapping[str, Any]:
        """What of its options decides the rows and columns that it keeps of a source (`db.table`), as JSON."""
        del source
        return {}

    @property
    def key(self) -> KeyChoice:
        """The columns by which its options have it tell rows apart; none by default."""
        return KeyChoice()

    def check_table(self, table: TableSchema) -> None:
        """Raises `InputError` or `UnsupportedFeature` for a table of which it cannot take rows, whatever these are."""
        del table

    def is_from(self, name: str, log: str) -> bool:
        """Whether what the target holds of a table came from the log of this uuid; True where the output cannot tell.

        Asked where the ledger does not know the table, and `place` does.
        """
        del name, log
        return True

    def place(self, name: str) -> Place | None:
        """What the target holds of a table, by its full name; None if it has no such table, or the output cannot tell.

        Asked before a table's first batch, and after each.
        """
        del name
        return None

    def holds(self, name: str, place: Place) -> bool:
        """Whether the target still holds what it once told of a table: asked of every table when a query begins."""
        del name, place
        return True

    def tables(self) -> Collection[str]:
        """Full names of the tables that the target knows by itself to be in it."""
        return ()

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
    def write(self, batch: ChangeBatch) -> None:
        """Apply a batch.

        Raises `UnsupportedFeature` for a control that this output does not handle, naming the way out.
        """

    def part_writer(self) -> PartWriter | None:
        """What writes its rows in Spark's tasks; None for an output that is given them in the driver, by `write`.

        What it has written is shown by `commit`.
        """
        return None

    def commit(self, batch: StagedBatch, tasks: Tasks) -> None:
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
