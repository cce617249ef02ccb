"""Tables behind typed filters (`sql`, `python`): of each, a batch has a range of typed rows, read beside the others.

A table's range ends where its schema changes; the rest is read in the new one. Where a table's filters fail it stays
where it stands, and is tried again after a while, while the others of the query go on; see `TypedTables.stays_behind`.
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
from databus.pipeline.engine._plan import Feed, Way
from databus.pipeline.engine._query_filters import check_named, typed_steps
from databus.pipeline.engine._typed_steps import TypedSteps
from databus.pipeline.graph import Graph
from databus.plugins import Input, RunContext, Shape, TableRanges
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Feeds = Sequence[tuple[Feed, OutputHandle]]


class TypedTable:
    """One way of typed rows into outputs of a query. Used by whoever has the query's turn."""

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
        """When it is tried again, by the clock, where it has failed; None for not at all."""
        self._graph = graph
        self._origin = origin
        self._context = replace(context, is_refilled=all(is_refilled))
        self._physical = physical
        self._spark = spark
        self._clock = clock
        self._ranges: TableRanges | None = None
        self._steps: TypedSteps | None = None
        self._table: TableSchema | None = None  # of an input with but one
        self._result: TableSchema | None = None  # what its filters make of its definition
        self._next: tuple[DataFrame | None, SourceCheckpoint] = (None, SourceCheckpoint())
        self._next_after: tuple[SourceCheckpoint, SourceCheckpoint] | None = None  # what that is the answer to
        self.names: frozenset[str] = frozenset()
        """Its full name, once a relay knows it; more than one where the file does not say which."""

    @property
    def label(self) -> str:
        """What to call it."""
        return next(iter(self.names), self.way.table or self.way.input.partition(".")[2])

    @property
    def is_due(self) -> bool:
        """Whether it has failed, and is to be tried again now."""
        return self.failure is not None and self.due_s is not None and self.due_s <= self._clock.monotonic_s()

    def fall_due(self, wait_s: float | None = 0.0) -> None:
        """Have it tried again after so long; None for not at all."""
        self.due_s = None if wait_s is None else self._clock.monotonic_s() + wait_s

    def look(self) -> None:
        """Find out what it is called, and try its filters on no rows. Raises `UnknownSource` where no relay knows it,
        and what the filters raise.
        """
        if self.way.shape is Shape.TYPED and self._origin.emits is Shape.TYPED:
            physical, table = self._origin.schema_of(self._context, None)
            self._physical, self._table = physical, table
            self.names = frozenset([f"{physical}/{table.source}"])
            self._check(None, table)
            return
        self._open()

    def find(self) -> bool:
        """Look what it is called, as the relay knows it now; whether it does. Several names are held together, and
        refused once they are read.
        """
        known = self._origin.tables_of(self._context, self._physical)
        self.names = frozenset(name for name in known if self.way.selects(name))
        return bool(self.names)

    def _open(self) -> TableRanges:
        if self._ranges is None:
            self.find()
            physical, table = self._origin.schema_of(self._context, self.way.table)
            name = f"{physical}/{table.source}"
            if physical != self._physical or name not in self.names:
                raise UnknownSource(f"{self.way.table} is none of the tables of {self._physical}")
            ranges = self._origin.table_ranges(self._spark, self._context, name)
            self._check(ranges, ranges.table)
            self._ranges = ranges
        return self._ranges

    def _check(self, ranges: TableRanges | None, table: TableSchema) -> None:
        """Try filters on a table without rows, before anything is removed, or asked for."""
        from databus.spark import typed_schema

        physical = self._physical or ""
        check_named(self._graph, self.way.steps, self._origin, self._context, physical)
        name = f"{physical}/{table.source}"
        self._steps = steps = typed_steps(self._graph, self.way.steps, self._origin, self._context, name)
        rows = (
            self._spark.createDataFrame([], typed_schema(table, meta_full=True)) if ranges is None else ranges.empty()
        )
        names = [column for column in rows.columns if column not in (*BUS_COLUMNS, CONTROL)]
        _, self._result = steps.apply(rows, table)
        for _, handle in self.feeds:
            steps.check_key(handle.output.config.key_choice.of(table.source), names)

    def check_on(self, handle: OutputHandle) -> None:
        """Raise what keeps it from being written to an output from its beginning."""
        if self.failure is not None:
            raise self.failure
        if self._result is not None:
            handle.check_table(self._result)

    def close(self) -> None:
        """Forget how it is read."""
        ranges, self._ranges, self._next_after = self._ranges, None, None
        if ranges is not None:
            ranges.close()

    @property
    def log(self) -> str:
        """The uuid of the log that its rows come from."""
        return self._open().log

    def has_changes(self, start: SourceCheckpoint, to: SourceCheckpoint) -> bool:
        """Whether something of it may lie between two places."""
        rows, place = self._next = self.after(start, to)
        self._next_after = start, to
        return rows is not None or start.pair < place.pair < to.pair

    def after(self, start: SourceCheckpoint, to: SourceCheckpoint) -> "tuple[DataFrame | None, SourceCheckpoint]":
        """See `TableRanges.after`; a change of its schema that comes next is followed."""
        if self._next_after == (start, to):
            return self._next
        try:
            return self._open().after(start, to.pair)
        except SchemaChanged:
            self.close()
            return self._open().after(start, to.pair)

    def was_read(self) -> tuple[int, int]:
        """See `TableRanges.was_read`."""
        return self._open().was_read()

    @property
    def steps(self) -> str:
        """Its filters, which Spark may do as one."""
        return " + ".join(step.node for step in self.way.steps)

    def empty(self) -> "DataFrame":
        """No row of it."""
        return self._open().empty()

    def made(self, rows: "DataFrame") -> "tuple[DataFrame, TableSchema]":
        """What the filters make of its rows, and the definition of that."""
        assert self._steps is not None  # noqa: S101 - the caller looked
        table = self._table or self._open().table
        return self._steps.apply(rows, table)

    def lineage(self, names: Sequence[str]) -> Lineage:
        """What the filters make of its columns."""
        assert self._steps is not None  # noqa: S101 - the caller looked
        return self._steps.lineage(names)


@dataclass
class TypedTables:
    """Those of a query."""

    tables: Sequence[TypedTable] = ()
    has_others: bool = False
    """Whether the query has whole tables, too."""
    failed: Callable[[TypedTable, Exception], float | None] = lambda _, __: None
    """Told that a table cannot be written: the seconds until it is tried again, None where it is not."""
    well: Callable[[TypedTable], None] = lambda _: None
    """Told that it was written after all."""
    clock: Clock = field(default_factory=SystemClock)
    stops: Callable[[], bool] = lambda: True
    """Whether the query ends with whatever fails now."""

    def __iter__(self) -> Iterator[TypedTable]:
        return iter(self.tables)

    def of(self, way: Way, name: str) -> TypedTable | None:
        """The table of this full name on its way."""
        return next((table for table in self.tables if table.way == way and name in table.names), None)

    def check(self, feed: Feed, handle: OutputHandle, names: Collection[str]) -> None:
        """Before what an output has of tables is removed: raise what keeps these, by full names, from being made anew.
        One that stays behind with what it has loses nothing.
        """
        for name in sorted(names):
            way = feed.way(name)
            typed = None if way is None else self.of(way, name)
            if typed is not None:
                typed.check_on(handle)

    def stays_behind(self, typed: TypedTable, error: Exception) -> bool:
        """Take note that a table could not be written: whether the others go on without it.

        They do not where there are none, where its outputs keep one order over all tables, or where a failure ends the
        pipeline.
        """
        typed.close()
        if self.stops() or not self.goes_on_without(typed):
            return False
        typed.fall_due(self.failed(typed, error))
        return True

    def goes_on_without(self, typed: TypedTable) -> bool:
        """Whether the others may go on where a table cannot be written."""
        others = [table for table in self.tables if table is not typed and not _is_final(table)]
        keeps_order = any(handle.catches_up_together for _, handle in typed.feeds)
        return bool(others or self.has_others) and not keeps_order

    def is_well(self, typed: TypedTable) -> None:
        """A table was written that could not be before."""
        if typed.failure is not None:
            typed.failure, typed.due_s = None, None
            self.well(typed)

    def try_again(self) -> None:
        """Have what has failed be tried at once."""
        for table in self.tables:
            if table.failure is not None:
                table.fall_due()

    @property
    def due_s(self) -> float | None:
        """In how many seconds the next one that has failed is to be tried again; None for none."""
        due = [table.due_s for table in self.tables if table.failure is not None and table.due_s is not None]
        return max(0.0, min(due) - self.clock.monotonic_s()) if due else None

    @property
    def errors(self) -> list[DatabusError]:
        """Of tables that are not tried again."""
        return [table.failure for table in self.tables if table.failure is not None and table.due_s is None]


def _is_final(typed: TypedTable) -> bool:
    return typed.failure is not None and typed.due_s is None
