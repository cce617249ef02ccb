"""Contracts of the plugins. The built-in ones and users' own, by entry points, are alike.

An edge of the graph carries either *tables* (any number of tables, as frames) or *typed* rows of one table. Inputs and
filters stand here, outputs in `_output_contract.py`, the options that all of them have in `_node_config.py`.

Modules of plugins import pyspark only inside functions: `validate` loads them and starts no Spark.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from databus.core import Checkpoint, ConfigError, Pair, SourceCheckpoint
from databus.filters import StreamFilter, TableChoice
from databus.flow import Decode, Definitions, Lineage, TableFilter
from databus.places import Choice
from databus.plugins._config import FilterConfig, InputConfig
from databus.schema import TableSchema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from databus.link import Access, RelayClient

StepT = TypeVar("StepT", bound=TableFilter)


class Shape(StrEnum):
    """What an edge of the graph carries."""

    TABLES = "tables"
    TYPED = "typed"


@dataclass(frozen=True, slots=True)
class RunContext:
    """What inputs and filters work with at run time."""

    pipeline: str
    node: str
    folder: Path
    """Where relative paths start."""
    relay: str | None = None
    """The relay's URL, where there is one."""
    access: "Access | None" = None
    """The files with which it is asked."""
    is_refilled: bool = False
    """Whether snapshots replace all that the outputs hold; see `OutputConfig.is_refilled`."""
    chooses_rows: bool = False
    """Whether filters stand before them, or they know rows by another key than the table's."""
    every_change: bool = False
    """Whether every change is needed of what a bootstrap service has, as from the relay: where tables are read in
    several ways, since an answer is of those that are asked for together."""

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


class TableRanges(Protocol):
    """Typed rows of one table, with everything that the bus adds, in the schema that it had when this was made."""

    @property
    def name(self) -> str:
        """The table, by its full name."""

    @property
    def log(self) -> str:
        """The uuid of the log that its rows come from."""

    @property
    def table(self) -> TableSchema:
        """The schema."""

    def after(self, start: SourceCheckpoint, to: Pair) -> "tuple[DataFrame | None, SourceCheckpoint]":
        """The rows and controls after a place, within the limits of a batch and not above `to`, and where they end: the
        place itself where nothing is left up to there. They end before a change of the schema that came later; raises
        `SchemaChanged` if they begin with one.
        """

    def was_read(self) -> tuple[int, int]:
        """How many rows tasks have read of what `after` gave last, without controls, and how many us that took."""

    def empty(self) -> "DataFrame":
        """No row, to try filters on."""

    def close(self) -> None:
        """Let go of everything."""


class Input(ABC):
    """Base of inputs. What comes out of it are streaming DataFrames: of typed rows with `meta=full`, or, for tables, of
    whatever it knows itself how to make change batches of.
    """

    config_model: ClassVar[type[InputConfig]]
    emits: ClassVar[Shape]
    needs_relay: ClassVar[bool] = False
    resumes: ClassVar[bool] = False
    """Whether `tables` begins after a given position."""

    def __init__(self, config: Any) -> None:
        self.config = config

    def choice(self) -> TableChoice:
        """The tables that come out of it, by pattern."""
        return TableChoice()

    @property
    def filter(self) -> StreamFilter:
        """What comes of these tables: which rows and columns."""
        return StreamFilter()

    @property
    def stops_on_filter_change(self) -> bool:
        """Whether outputs stop where a change of a schema changes what `filter` reads, and rows from before were judged
        by other values; else the table is read again.
        """
        return False

    def tables(
        self,
        spark: "SparkSession",
        context: RunContext,
        physical: str,
        patterns: Sequence[str],
        after: Checkpoint | None = None,
        may_lack: Collection[str] = (),
    ) -> "tuple[DataFrame, Decode]":
        """The tables of a physical source that match one of `patterns`, as a stream, and what decodes a micro-batch of
        it in the driver; of inputs that emit tables. after: where it begins if Spark has no checkpoint of it. may_lack:
        patterns that may be names of tables that there are not.
        """
        raise NotImplementedError

    def ranges(
        self,
        spark: "SparkSession",
        context: RunContext,
        physical: str,
        tables: Sequence[str],
        after: SourceCheckpoint,
        to: Pair,
    ) -> "tuple[pa.Table, SourceCheckpoint, Decode]":
        """What some tables, by full names, have after a place, within the limits of a batch and not above `to`: rows as
        those of `tables`, where they end (the place itself where nothing is left), and what decodes them. Of inputs
        that emit tables and resume.
        """
        raise NotImplementedError

    def table_ranges(self, spark: "SparkSession", context: RunContext, name: str) -> TableRanges:
        """Typed rows of the table of this full name, for filters that take these; of inputs that emit tables and
        resume. Raises `UnknownSource`.
        """
        raise NotImplementedError

    def united(self, parts: "Sequence[tuple[Input, Choice]]") -> "Input | None":
        """One that reads, with the stream of a single query, what inputs of this kind give of tables each; None where
        this kind cannot.
        """
        del parts
        return None

    def typed(self, spark: "SparkSession", context: RunContext) -> "DataFrame":
        """The rows of the one table that an input has which emits typed rows, as a stream."""
        raise NotImplementedError

    @abstractmethod
    def schema_of(self, context: RunContext, table: str | None) -> tuple[str, TableSchema]:
        """The physical source of that table, and its definition now. Raises `UnknownSource` or `ServiceUnavailable`."""

    def log_of(self, context: RunContext, physical: str) -> str:
        """The uuid of the log that its rows come from."""
        del context
        return physical

    def uuid_of(self, context: RunContext, physical: str) -> str:
        """The identity of the physical source; empty where it is not known."""
        del context, physical
        return ""

    def beginning(self, context: RunContext, physical: str) -> Checkpoint | None:
        """Where a stream begins that has never run, where its options name a place that moves; None where they mean the
        same whenever they are read.
        """
        del context, physical
        return None

    def check_position(self, context: RunContext, physical: str, checkpoint: Checkpoint) -> None:  # noqa: B027 - see open
        """Raises `PositionForeign` or `PositionPurged` for a checkpoint that its streams cannot go on from."""

    def looks_back(self, context: RunContext, physical: str, tables: Collection[str], place: SourceCheckpoint) -> bool:
        """Whether what followed a place has left the log that its streams come from, and they get what became of these
        tables, by full names, from elsewhere. Raises `ServiceUnavailable` where they will.
        """
        del context, physical, tables, place
        return False

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
        """Those tables with their definitions, by full name; none that `filter` does not fit."""
        return {name: self.schema_of(context, name)[1] for name in self.tables_of(context, physical)}

    def check_filter(self, context: RunContext, physical: str, selects: Callable[[str], bool]) -> None:  # noqa: B027 - see open
        """Raises `UnknownColumn` or `MalformedRequest` where `filter` does not fit one of these tables as it is now."""

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

    def leaves_out_rows(self, branch: str | None) -> bool:
        """Whether a row may not go on, or not into that branch. One that does not say may leave out any."""
        del branch
        return True

    def form(self, branch: str | None) -> Mapping[str, Any]:
        """What decides the rows and columns that come out, as JSON, without names of tables, nodes and branches."""
        del branch
        no_matter = {"from_", "table", "tables", "missing"}
        given = self.config.model_dump(mode="json", exclude=no_matter, exclude_defaults=True)
        return {"type": self.config.type, **given}

    def problems(self) -> list[tuple[str, str]]:
        """What is wrong with its options beyond their model, as (path below the filter, message). Starts no Spark."""
        return []

    def doubts(self) -> list[tuple[str, str]]:
        """What is probably wrong with its options, in the same form; asked where there are no problems."""
        return []

    def choose(self, branch: str | None) -> TableChoice:
        """Which tables go on, or into that branch."""
        raise NotImplementedError(branch)

    def apply(self, rows: "DataFrame", branch: str | None) -> "DataFrame":
        """The typed rows that go on, or into that branch; the bus's columns and the rows of controls always go on.

        rows: a part of one batch, never a stream, if its input emits tables; so no state of Spark's lasts longer.
        """
        raise NotImplementedError(branch)


class TablesFilter(Filter):
    """Base of filters over whole tables: of each table by itself, on Arrow. Between tables edges it judges rows as they
    were written; between typed ones, rows of the one table as they come to it.
    """

    @property
    @abstractmethod
    def in_tasks(self) -> TableFilter:
        """What it does, without the options' model: it travels to tasks, which know nothing of pipelines."""

    def _of_options(self, kind: type[StepT], **own: Any) -> StepT:
        """That, of the options of the same names, but for those that are given."""
        names = (option.name for option in fields(kind) if option.name not in own)
        for name in names:
            value = getattr(self.config, name)
            own[name] = tuple(value) if isinstance(value, list) else value
        return kind(**own)

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
        given = self.config.model_dump(include={"columns", "exclude", "hash", "redact", "truncate", "by", "ignore"})
        return next((option for option, value in given.items() if name in (value or ())), "where")

    def choose(self, branch: str | None) -> TableChoice:
        """All tables go on."""
        del branch
        return TableChoice()
