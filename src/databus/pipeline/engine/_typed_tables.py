"""Tables behind typed filters (`sql`, `python`): a batch has a range of typed rows for each, beside the other tables.

A table's range ends where its schema changes; the rest is read with the new schema. If a table's filters fail, it stays
at its place and is tried again after a while; the others of the query continue; see `TypedTables.stays_behind`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from databus.core import (
    BUS_COLUMNS,
    CONTROL,
    Clock,
    DatabusError,
    SchemaChanged,
    SourceCheckpoint,
    SystemClock,
    UnknownSource,
)
from databus.flow import Lineage
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._plan import OutputFeed, Way
from databus.pipeline.engine._query_filters import check_named, typed_steps
from databus.pipeline.engine._typed_steps import TypedSteps
from databus.pipeline.graph import Graph
from databus.plugins import Input, RunContext, Shape, TableRanges
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Feeds = Sequence[tuple[OutputFeed, OutputHandle]]


class TypedTable:
    """One way of typed rows into outputs of a query. Used by the thread that has the query's turn."""

    def __init__(
        self,
        graph: Graph,
        way: Way,
        feeds: Feeds,
        origin: Input,
        context: RunContext,
        physical: str | None,
        spark: "SparkSession",
        clock: Clock,
    ) -> None:
        is_refilled = [handle.output.config.is_refilled for _, handle in feeds]
        self.way = way
        self.feeds: Feeds = [(feed.of(way), handle) for feed, handle in feeds]
        self.failure: DatabusError | None = None
        self.due_s: float | None = None
        """When it is tried again after a failure, by the clock; None for never."""
        self._graph = graph
        self._origin = origin
        self._context = replace(context, is_refilled=all(is_refilled))
        self._physical = physical
        self._spark = spark
        self._clock = clock
        self._opened: tuple[TableRanges, TypedSteps] | None = None
        self._made: tuple[TypedSteps, TableSchema] | None = None  # of an input that makes typed rows itself
        self._result: TableSchema | None = None  # its definition behind its filters
        self._next: tuple[DataFrame | None, SourceCheckpoint] = (None, SourceCheckpoint())
        self._next_after: tuple[SourceCheckpoint, SourceCheckpoint] | None = None  # the arguments that gave `_next`
        self.names: frozenset[str] = frozenset()
        """Its full name, once a relay knows it; several if the file's pattern is ambiguous."""

    @property
    def label(self) -> str:
        """Its name for people."""
        return next(iter(self.names), self.way.table or self.way.input.partition(".")[2])

    @property
    def is_due(self) -> bool:
        """Whether it has failed, and is to be tried again now."""
        return self.failure is not None and self.due_s is not None and self.due_s <= self._clock.monotonic_s()

    def fall_due(self, wait_s: float | None = 0.0) -> None:
        """Have it tried again after so long; None for never."""
        self.due_s = None if wait_s is None else self._clock.monotonic_s() + wait_s

    def look(self) -> None:
        """Find its name, and try its filters without rows. Raises `UnknownSource` if no relay knows it, and what the
        filters raise.
        """
        if self.way.shape is Shape.TYPED and self._origin.emits is Shape.TYPED:
            self._physical, table = self._origin.schema_of(self._context, None)
            self.names = frozenset([f"{self._physical}/{table.source}"])
            self._made = self._checked(None, table), table
        else:
            self._open()

    def find(self) -> bool:
        """Ask the relay for its name; returns whether it knows one. Several names are kept, and refused when they are
        read.
        """
        known = self._origin.tables_of(self._context, self._physical)
        self.names = frozenset(name for name in known if self.way.selects(name))
        return bool(self.names)

    def _open(self) -> tuple[TableRanges, TypedSteps]:
        """Its ranges, and its filters, which fit its present definition."""
        if self._opened is None:
            self.find()
            physical, table = self._origin.schema_of(self._context, self.way.table)
            name = f"{physical}/{table.source}"
            if physical != self._physical or name not in self.names:
                raise UnknownSource(f"{self.way.table} is not a table of {self._physical}")
            ranges = self._origin.table_ranges(self._spark, self._context, name)
            self._opened = ranges, self._checked(ranges, ranges.table)
        return self._opened

    def _checked(self, ranges: TableRanges | None, table: TableSchema) -> TypedSteps:
        """Its filters, tried on a table without rows, before anything is removed, or a snapshot asked for."""
        from databus.spark import typed_schema

        physical = self._physical or ""
        check_named(self._graph, self.way.steps, self._origin, self._context, physical)
        name = f"{physical}/{table.source}"
        steps = typed_steps(self._graph, self.way.steps, self._origin, self._context, name)
        rows = (
            self._spark.createDataFrame([], typed_schema(table, meta_full=True)) if ranges is None else ranges.empty()
        )
        names = [column for column in rows.columns if column not in (*BUS_COLUMNS, CONTROL)]
        _, self._result = steps.apply(rows, table)
        for _, handle in self.feeds:
            steps.check_key(handle.output.config.key_choice.of(table.source), names)
        return steps

    def check_on(self, handle: OutputHandle) -> None:
        """Raise what would keep it from being written to an output from its beginning."""
        if self.failure is not None:
            raise self.failure
        if self._result is not None:
            handle.check_table(self._result)

    def close(self) -> None:
        """Close its ranges; the next use opens them again."""
        opened, self._opened, self._next_after = self._opened, None, None
        if opened is not None:
            opened[0].close()

    @property
    def log(self) -> str:
        """The uuid of the log that its rows come from."""
        return self._open()[0].log

    def has_changes(self, start: SourceCheckpoint, to: SourceCheckpoint) -> bool:
        """Whether it may have changes between two places."""
        rows, place = self._next = self.after(start, to)
        self._next_after = start, to
        return rows is not None or start.pair < place.pair < to.pair

    def after(self, start: SourceCheckpoint, to: SourceCheckpoint) -> "tuple[DataFrame | None, SourceCheckpoint]":
        """See `TableRanges.after`; if its schema changes at `start`, with the new one."""
        if self._next_after == (start, to):
            return self._next
        try:
            return self._open()[0].after(start, to.pair)
        except SchemaChanged:
            self.close()
            return self._open()[0].after(start, to.pair)

    def was_read(self) -> tuple[int, int]:
        """See `TableRanges.was_read`."""
        return self._open()[0].was_read()

    @property
    def steps(self) -> str:
        """The names of its filters, which Spark may run as one."""
        return " + ".join(step.node for step in self.way.steps)

    def empty(self) -> "DataFrame":
        """Its columns, without rows."""
        return self._open()[0].empty()

    def made(self, rows: "DataFrame") -> "tuple[DataFrame, TableSchema]":
        """Its rows behind the filters, and their definition."""
        steps, table = self._steps_over()
        return steps.apply(rows, table)

    def lineage(self, names: Sequence[str]) -> Lineage:
        """The lineage of its columns through the filters."""
        return self._steps_over()[0].lineage(names)

    def _steps_over(self) -> tuple[TypedSteps, TableSchema]:
        """Its filters, and the definition that they get."""
        if self._made is not None:
            return self._made
        ranges, steps = self._open()
        return steps, ranges.table


@dataclass
class TypedTables:
    """The tables behind typed filters of a query."""

    tables: Sequence[TypedTable] = ()
    has_others: bool = False
    """Whether the query has whole tables too."""
    failed: Callable[[TypedTable, Exception], float | None] = lambda _, __: None
    """Called when a table cannot be written; returns the seconds until it is tried again, None for never."""
    well: Callable[[TypedTable], None] = lambda _: None
    """Called when it could be written after all."""
    clock: Clock = field(default_factory=SystemClock)
    stops: Callable[[], bool] = lambda: True
    """Whether any failure now ends the query."""

    def __iter__(self) -> Iterator[TypedTable]:
        return iter(self.tables)

    def of(self, way: Way, name: str) -> TypedTable | None:
        """The table of this full name on its way."""
        return next((table for table in self.tables if table.way == way and name in table.names), None)

    def check(self, feed: OutputFeed, handle: OutputHandle, names: Collection[str]) -> None:
        """Before an output's rows of tables, by full names, are removed: raise what would keep them from being written
        again.
        """
        for name in sorted(names):
            way = feed.way(name)
            typed = None if way is None else self.of(way, name)
            if typed is not None:
                typed.check_on(handle)

    def stays_behind(self, typed: TypedTable, error: Exception) -> bool:
        """A table could not be written; returns whether the others continue without it.

        They do not if there are none, if its outputs keep one order over all tables, or if a failure ends the pipeline.
        """
        typed.close()
        if self.stops() or not self.goes_on_without(typed):
            return False
        typed.fall_due(self.failed(typed, error))
        return True

    def goes_on_without(self, typed: TypedTable) -> bool:
        """Whether the others may continue if a table cannot be written."""
        others = [table for table in self.tables if table is not typed and not _is_final(table)]
        keeps_order = any(handle.catches_up_together for _, handle in typed.feeds)
        return bool(others or self.has_others) and not keeps_order

    def is_well(self, typed: TypedTable) -> None:
        """A table that could not be written before was written."""
        if typed.failure is not None:
            typed.failure, typed.due_s = None, None
            self.well(typed)

    def try_again(self) -> None:
        """Try failed tables at once."""
        for table in self.tables:
            if table.failure is not None:
                table.fall_due()

    @property
    def due_s(self) -> float | None:
        """In how many seconds the next failed table is tried again; None if there is none."""
        due = [table.due_s for table in self.tables if table.failure is not None and table.due_s is not None]
        return max(0.0, min(due) - self.clock.monotonic_s()) if due else None

    @property
    def errors(self) -> list[DatabusError]:
        """The errors of tables that are not tried again."""
        return [table.failure for table in self.tables if table.failure is not None and table.due_s is None]


def _is_final(typed: TypedTable) -> bool:
    return typed.failure is not None and typed.due_s is None
