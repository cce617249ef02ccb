"""The filters of a typed branch, one after the other, over the rows of one table. Start with `TypedSteps.apply`.

Typed filters run in Spark. A filter over whole tables on the same way works on the rows that it gets: before the first
typed filter with the table's present columns, to which older rows were converted; after it with the columns that the
typed filters give. Spark's workers run it, on Arrow, by the same code as for whole tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from databus.core import ConfigError, DatabusError, InputError, UnknownColumn, UnsupportedFeature
from databus.flow import Always, FilterMapper, Lineage, TableFilters, is_meta, result_table
from databus.pipeline.graph import Graph, Step
from databus.plugins import Filter, TablesFilter
from databus.schema import TableSchema, column_named, spark_fields

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass
class TypedSteps:
    """The filters of a branch over the table of this full name."""

    graph: Graph
    name: str
    steps: Sequence[Step]
    """Only those that are about it."""
    definitions: Sequence[TableSchema] = ()
    """The table's present and past ones."""
    _tables: "list[tuple[int, TableFilters, TableSchema]]" = field(default_factory=list)  # by step, once applied

    def apply(self, rows: "DataFrame", table: TableSchema) -> "tuple[DataFrame, TableSchema]":
        """Typed rows of the table behind the filters, and their definition.

        Raises `UnknownColumn`, `ConfigError` and `InputError` for a filter that does not fit the rows it gets,
        `UnsupportedFeature` if a hidden column may have another name now.
        """
        from databus.spark import arrow_schema

        self._tables.clear()
        key: Sequence[str] = table.key
        for index, step in enumerate(self.steps):
            names = [name for name in rows.columns if not is_meta(name)]
            step_filter = self.graph.filters[step.node]
            try:
                if isinstance(step_filter, TablesFilter):
                    self._check_hidden(index, step_filter, names)
                    comes = _result(table, arrow_schema(rows.schema), key)
                    filters = self._filters(step, step_filter, comes)
                    self._tables.append((index, filters, comes))
                    rows = _over(filters, comes, rows)
                else:
                    check_keeps(step_filter, step, table)
                    rows = step_filter.apply(rows, step.branch)
            except DatabusError:
                raise
            except Exception as error:
                raise analysis_error(step.node, error) from error
            key = self._through(step, names).key(key)
        return rows, _result(table, arrow_schema(rows.schema), key)

    def _through(self, step: Step, names: Sequence[str]) -> Lineage:
        """The lineage of a filter's columns. Spark might find a column that is missing here in an earlier step."""
        try:
            return self.graph.filters[step.node].lineage(names, step.branch)
        except KeyError as error:
            raise UnknownColumn(no_column(step.node, str(error.args[0]), names)) from None

    def _filters(self, step: Step, tables_filter: TablesFilter, table: TableSchema) -> TableFilters:
        is_it = Always(table)
        return TableFilters(self.name.partition("/")[0], [(step.node, tables_filter.in_tasks)], is_it, is_it)

    def lineage(self, names: Sequence[str]) -> Lineage:
        """The lineage of the table's columns. Raises KeyError for an unknown column in a filter."""
        return self._lineage(names, len(self.steps))

    def _lineage(self, names: Sequence[str], count: int) -> Lineage:
        lineage = Lineage.unchanged(names)
        for step in self.steps[:count]:
            lineage = lineage.then(self.graph.filters[step.node].lineage([*lineage.columns], step.branch))
        return lineage

    def check_key(self, key: Sequence[str], names: Sequence[str]) -> None:
        """Raises `ConfigError` if a mask makes different values of an output's key equal. names: the table's columns.
        To be called after `apply`.
        """
        for index, filters, table in self._tables:
            before = self._lineage(names, index + 1)
            behind = Lineage.unchanged([*before.columns])
            for step in self.steps[index + 1 :]:
                behind = behind.then(self.graph.filters[step.node].lineage([*behind.columns], step.branch))
            came = [behind.columns.get(name) or behind.hashed.get(name) for name in key]
            filters.check_key(table, [name for name in came if name is not None])

    def _check_hidden(self, index: int, tables_filter: TablesFilter, names: Sequence[str]) -> None:
        """Raises `UnsupportedFeature` if a column that is to be hidden existed once and does not now."""
        work = tables_filter.in_tasks
        if not work.hides or work.missing == "stop":
            return
        lacking = [name for name in work.names if column_named(name, names) is None]
        for before in self.definitions if lacking else ():
            try:
                had = [*self._lineage(before.names, index).columns]
            except KeyError:
                continue
            gone = [name for name in lacking if column_named(name, had) is not None]
            added = [name for name in names if name not in had and column_named(name, work.names) is None]
            if gone and added:
                raise UnsupportedFeature(
                    f"{self.steps[index].node}: {self.name} had a column {', '.join(gone)}, which is hidden, and has "
                    f"it no more: it may have another name now, such as {', '.join(added)}. Say in the filter what to "
                    "hide now, by both names and with `missing: skip`, or remove the table from its `tables`"
                )


def check_keeps(step_filter: Filter, step: Step, table: TableSchema) -> None:
    """Raises `ConfigError` if rows that a typed filter drops would stay in a copy that has them."""
    if not table.first_images and step_filter.leaves_out_rows(step.branch):
        raise ConfigError(
            f"{step.node}: {table.source}: updates of this table may come without first images, and nothing would "
            "remove a row that this filter leaves out from a copy that has it. Choose rows by a filter `where`, which "
            "removes them; or say `first_images: true` in the source, if its messages have whole rows; a filter "
            "`python` that drops nothing says `keeps_rows: true`"
        )


def _result(table: TableSchema, arrow: "pa.Schema", key: Sequence[str]) -> TableSchema:
    """The definition of rows of a table behind filters."""
    return result_table(table.source, arrow, tuple(key), first_images=table.first_images)


def no_column(where: str, name: str, names: Sequence[str]) -> str:
    """The error for a filter that names a column that is not among these."""
    return f'{where}: no column "{name}" comes here; there are {", ".join(names)}'


def analysis_error(node: str, error: Exception) -> DatabusError:
    """Spark's error about a filter, as one of databus's."""
    from pyspark.errors import PySparkException

    condition = error.getCondition() if isinstance(error, PySparkException) else None
    kind = UnknownColumn if (condition or "").startswith("UNRESOLVED_COLUMN") else InputError
    return kind(f"{node}: Spark refuses it: {first_lines(str(error))}")


def first_lines(text: str, lines: int = 5) -> str:
    """The beginning of a text."""
    return "\n".join(text.splitlines()[:lines])


def _over(filters: TableFilters, table: TableSchema, rows: "DataFrame") -> "DataFrame":
    """Typed rows behind filters over whole tables, which Spark's workers run."""
    from pyspark.sql.types import StructField, StructType

    from databus.spark import arrow_schema

    result = filters.result(table)
    filters.known.clear()  # caches are not sent to workers
    fields = [StructField.fromJson(field_json) for field_json in spark_fields(result)]
    schema = StructType([*fields, *(spark_field for spark_field in rows.schema.fields if is_meta(spark_field.name))])
    return rows.mapInArrow(FilterMapper(filters, table, arrow_schema(schema)), schema)
