"""What the tables' definitions say against the filters and outputs that they come to, by the same code as in a run.

Of databases whose definitions can be looked up without asking a server.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from databus.core import ConfigError, DatabusError, MalformedRequest, UnknownColumn
from databus.filters import FrameFilter, StreamFilter
from databus.flow import Always, TableFilters, matches, selects
from databus.pipeline.engine import check_keeps, into_output, named, no_column
from databus.pipeline.graph import Branch, Graph, Kind, Problem
from databus.plugins import ChecksTables, Output, Shape, TablesFilter
from databus.schema import Column, TableSchema

_TOLD_MAX: Final = 5

Tables = Mapping[str, TableSchema]
"""By full name."""


def check_definitions(graph: Graph, tables: Tables) -> Iterator[Problem]:
    """What would stop an output as soon as it meets one of these tables."""
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        output = node.plugin(node.config, graph.config.context_of(node.name))
        for branch in graph.branches(node.path):
            if graph.inputs[branch.input].needs_relay:
                yield from _few(_check_branch(graph, branch, output, tables))


def _few(problems: Iterator[Problem]) -> Iterator[Problem]:
    """Some of them, of each place: what is wrong with one table is often wrong with a thousand."""
    counts: dict[str, int] = {}
    for each in problems:
        counts[each.path] = counts.get(each.path, 0) + 1
        if counts[each.path] <= _TOLD_MAX:
            yield each
    for path, count in counts.items():
        if count > _TOLD_MAX:
            yield Problem(path, f"the same of {count - _TOLD_MAX} more tables")


def _check_branch(graph: Graph, branch: Branch, output: Output, tables: Tables) -> Iterator[Problem]:
    if any(graph.filters[step.node].problems() for step in (*branch.steps, *branch.over_tables)):
        return
    wanted = graph.inputs[branch.input].filter
    is_typed = branch.shape is not Shape.TABLES
    for name, whole in tables.items():
        if not (matches(name, [branch.table or ""]) if is_typed else selects(branch.selection, name)):
            continue
        try:
            over = FrameFilter.over(wanted, name.partition("/")[0], whole)
            over.check([whole.source], is_at_end=True)
            table = over.cut_of(whole).after
        except (MalformedRequest, UnknownColumn) as error:
            option, _, message = str(error).partition(": ")
            yield Problem(f"{branch.input}.{_option_of(wanted, name, option)}", message)
            continue
        try:
            made = _typed(graph, branch, name, table) if is_typed else _over_tables(graph, branch, name, table)
            if made is not None and isinstance(output, ChecksTables):
                output.check_table(made)
        except UnknownColumn:
            continue  # told with what may have been meant
        except DatabusError as error:
            where, _, message = str(error).partition(": ")
            yield Problem(where, message)


def _option_of(wanted: StreamFilter, name: str, option: str) -> str:
    """Where in an input's options the condition or the columns of a table stand."""
    rules, _ = wanted.about(name)
    mine = [rule.tables for rule in rules if getattr(rule, option, None) is not None]
    return option if mine[:1] in ([], ["*"]) else f"filters.{mine[0]}.{option}"


def _over_tables(graph: Graph, branch: Branch, name: str, table: TableSchema) -> TableSchema:
    chain = _chain(graph, [step.node for step in branch.over_tables], name, table)
    return into_output(table, chain, graph.config.nodes[branch.output].config)


def _chain(graph: Graph, paths: Sequence[str], name: str, table: TableSchema) -> TableFilters:
    now = Always(table)
    return TableFilters(name.partition("/")[0], named(graph, tuple(paths)), now, now)


def _typed(graph: Graph, branch: Branch, name: str, table: TableSchema) -> TableSchema | None:
    """What comes out, as far as names and key go; None where that cannot be told.

    Types are known up to the first of Spark's filters.
    """
    are_types_known = True
    for step in graph.about(branch.steps, name):
        each = graph.filters[step.node]
        is_over_tables = isinstance(each, TablesFilter)
        if is_over_tables and are_types_known:
            table = _chain(graph, [step.node], name, table).result(table)
            continue
        try:
            lineage = each.lineage(table.names, step.branch)
        except KeyError as error:
            is_named = is_over_tables or error.args[0] in {column for _, column in each.columns_read()}
            if not are_types_known and is_named:
                raise ConfigError(no_column(step.node, str(error.args[0]), table.names)) from None
            return None
        check_keeps(each, step, table)
        are_types_known = False
        columns = tuple(Column(column, "string") for column in lineage.columns)
        table = replace(table, columns=columns, key=lineage.key(table.key))
    return table
