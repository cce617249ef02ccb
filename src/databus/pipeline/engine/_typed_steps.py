"""The filters of a typed branch, one behind the other, over the rows of one table. Start with `TypedSteps.apply`.

Typed filters are Spark's. A filter over whole tables on the same way works on the rows as they come to it: before the
first typed filter in the columns that the table has now, into which older rows have been made; behind it in those that
the typed filters give. Spark's workers run it, on Arrow, by the same code as between tables.
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
    """Of a branch over the table of this full name."""

    graph: Graph
    name: str
    steps: Sequence[Step]
    """Without the filters that are not about it."""
    definitions: Sequence[TableSchema] = ()
    """Those that the table has and had."""
    _tables: "list[tuple[int, TableFilters, TableSchema]]" = field(default_factory=list)  # by step, once applied

    def apply(self, rows: "DataFrame", table: TableSchema) -> "tuple[DataFrame, TableSchema]":
        """What the filters make of typed rows of the table, and the definition of that.

        Raises `UnknownColumn`, `ConfigError` and `InputError` for a filter that does not fit what comes to it,
        `UnsupportedFeature` where a column that is hidden may go on under another name.
        """
        from databus.spark import arrow_schema

        self._tables.clear()
        key: Sequence[str] = table.key
        for index, step in enumerate(self.steps):
            names = [name for name in rows.columns if not is_meta(name)]
            each = self.graph.filters[step.node]
            try:
                if isinstance(each, TablesFilter):
                    self._check_hidden(index, each, names)
                    comes = _result(table, arrow_schema(rows.schema), key)
                    filters = self._filters(step, each, comes)
                    self._tables.append((index, filters, comes))
                    rows = _over(filters, comes, rows)
                else:
                    check_keeps(each, step, table)
                    rows = each.apply(rows, step.branch)
            except DatabusError:
                raise
            except Exception as error:
                raise analysis_error(step.node, error) from error
            key = self._through(step, names).key(key)
        return rows, _result(table, arrow_schema(rows.schema), key)

    def _through(self, step: Step, names: Sequence[str]) -> Lineage:
        """What a filter makes of columns. Spark would look for those that are not there before the filter before it."""
        try:
            return self.graph.filters[step.node].lineage(names, step.branch)
        except KeyError as error:
            raise UnknownColumn(no_column(step.node, str(error.args[0]), names)) from None

    def _filters(self, step: Step, each: TablesFilter, table: TableSchema) -> TableFilters:
        is_it = Always(table)
        return TableFilters(self.name.partition("/")[0], [(step.node, each.in_tasks)], is_it, is_it)

    def lineage(self, names: Sequence[str]) -> Lineage:
        """What the filters make of the table's columns. Raises KeyError for one that they name and it has not."""
        return self._lineage(names, len(self.steps))

    def _lineage(self, names: Sequence[str], count: int) -> Lineage:
        lineage = Lineage.unchanged(names)
        for step in self.steps[:count]:
            lineage = lineage.then(self.graph.filters[step.node].lineage([*lineage.columns], step.branch))
        return lineage

    def check_key(self, key: Sequence[str], names: Sequence[str]) -> None:
        """Raises `ConfigError` where columns of what comes out, by which an output tells rows apart, are masked so that
        values which differ become one. names: the table's. Once applied.
        """
        for index, filters, table in self._tables:
            before = self._lineage(names, index + 1)
            behind = Lineage.unchanged([*before.columns])
            for step in self.steps[index + 1 :]:
                behind = behind.then(self.graph.filters[step.node].lineage([*behind.columns], step.branch))
            came = [behind.columns.get(name) or behind.hashed.get(name) for name in key]
            filters.check_key(table, [name for name in came if name is not None])

    def _check_hidden(self, index: int, each: TablesFilter, names: Sequence[str]) -> None:
        """Raises `UnsupportedFeature` where a column that is to be hidden was there once and is not now."""
        work = each.in_tasks
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
                    f"it no more: it may go on under another name, such as {', '.join(added)}. Say in the filter what "
                    "to hide now, by both names and with `missing: skip`, or leave the table out of its `tables`"
                )


def check_keeps(each: Filter, step: Step, table: TableSchema) -> None:
    """Raises `ConfigError` where rows that a filter of Spark's leaves out would stay in a copy that has them."""
    if not table.first_images and each.leaves_out_rows(step.branch):
        raise ConfigError(
            f"{step.node}: {table.source}: updates of this table may come without first images, and nothing would "
            "remove a row that this filter leaves out from a copy that has it. Choose rows by a filter `where`, which "
            "removes them; or say `first_images: true` in the source, if its messages have whole rows; a filter "
            "`python` that leaves nothing out says `keeps_rows: true`"
        )


def _result(table: TableSchema, made: "pa.Schema", key: Sequence[str]) -> TableSchema:
    """The definition of what filters have made of rows of a table."""
    return result_table(table.source, made, tuple(key), first_images=table.first_images)


def no_column(where: str, name: str, names: Sequence[str]) -> str:
    """What is wrong where a filter names a column that is not among these."""
    return f'{where}: no column "{name}" comes here; there are {", ".join(names)}'


def analysis_error(node: str, error: Exception) -> DatabusError:
    """What Spark said of a filter, as one of our errors."""
    from pyspark.errors import PySparkException

    condition = error.getCondition() if isinstance(error, PySparkException) else None
    kind = UnknownColumn if (condition or "").startswith("UNRESOLVED_COLUMN") else InputError
    return kind(f"{node}: Spark refuses it: {first_lines(str(error))}")


def first_lines(text: str, lines: int = 5) -> str:
    """The beginning of a text."""
    return "\n".join(text.splitlines()[:lines])


def _over(filters: TableFilters, table: TableSchema, rows: "DataFrame") -> "DataFrame":
    """What filters over whole tables make of typed rows, in Spark's workers."""
    from pyspark.sql.types import StructField, StructType

    from databus.spark import arrow_schema

    result = filters.result(table)
    filters.known.clear()  # what is worked out does not travel
    fields = [StructField.fromJson(each) for each in spark_fields(result)]
    schema = StructType([*fields, *(each for each in rows.schema.fields if is_meta(each.name))])
    return rows.mapInArrow(FilterMapper(filters, table, arrow_schema(schema)), schema)
