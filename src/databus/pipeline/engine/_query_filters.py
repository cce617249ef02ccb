"""The filters over whole tables of a query: made from its plan, and tried on the present tables."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

from databus.core import ServiceUnavailable, is_pattern
from databus.filters import matches, nearest, patterns_meet
from databus.flow import NamedFilter, TableFilters
from databus.pipeline.engine._handle import OutputHandle
from databus.pipeline.engine._plan import OutputFeed, QueryPlan
from databus.pipeline.engine._typed_steps import TypedSteps
from databus.pipeline.graph import Graph, Step
from databus.places import chosen_by
from databus.plugins import Input, OutputConfig, RunContext, TablesFilter
from databus.schema import TableSchema

_NAMED_MAX: Final = 10

Filters = Mapping[tuple[str, ...], TableFilters]
"""The filters of a way, by their paths."""


def filters_over(graph: Graph, plan: QueryPlan, context: RunContext) -> Filters:
    """The filters over whole tables of a query."""
    chains = {}
    for way in (way for feed in plan.feeds for way in feed.ways if way.filters):
        known = graph.inputs[way.input].definitions(context)
        chains[way.filters] = TableFilters(plan.physical or "", named(graph, way.filters), known.of, known.now)
    return chains


def named(graph: Graph, way: tuple[str, ...]) -> list[NamedFilter]:
    """Filters over whole tables by their paths."""
    filters = [(path, graph.filters[path]) for path in way]
    return [(path, node_filter.in_tasks) for path, node_filter in filters if isinstance(node_filter, TablesFilter)]


def check_tables(graph: Graph, plan: QueryPlan, filters: Filters, context: RunContext) -> None:
    """Raises `ServiceUnavailable` for a filter about a table that does not exist (yet): the right one would pass
    unfiltered; `UnknownColumn` or `ConfigError` for a present table that a filter does not fit.
    """
    physical = plan.physical or ""
    for path in plan.inputs:
        origin = graph.inputs[path]
        rules = origin.filter.within(physical).rules
        if not filters and origin.filter.is_nothing:
            continue
        known = origin.tables_of(context)
        _check_names(f"{path}.filters", [rule.tables for rule in rules], physical, known)
        origin.check_filter(context, physical, partial(chosen_by, plan.read_by(path)))
        for where, named_filter in dict(work for chain in filters.values() for work in chain.filters).items():
            _check_names(f"{where}.tables", named_filter.tables, physical, known)
        tables = origin.tables_now(context, physical) if filters else {}
        for feed in plan.feeds:
            for name, table in tables.items():
                way = feed.way(name)
                chain = filters.get(way.filters) if way is not None and way.input == path else None
                if chain is not None:
                    chain.over(table)


def check_output(
    graph: Graph,
    plan: QueryPlan,
    filters: Filters,
    context: RunContext,
    feed: OutputFeed,
    handle: OutputHandle,
    names: Collection[str],
) -> None:
    """Raises `InputError` or `FatalError` if an output would refuse a present table behind its filters."""
    for path in plan.inputs:
        tables = graph.inputs[path].tables_now(context, plan.physical or "")
        for name in sorted(tables.keys() & {*names}):
            way = feed.way(name)
            if way is not None and way.input == path and not way.is_typed:  # `TypedTables.check` tries typed ones
                handle.check_table(into_output(tables[name], filters.get(way.filters), handle.output.config))


def into_output(table: TableSchema, chain: TableFilters | None, config: OutputConfig) -> TableSchema:
    """A table behind the filters on its way to an output. Raises what they raise, and `ConfigError` for its key."""
    if chain is None or not chain.filters:
        return table
    chain.check_key(table, config.key_choice.of(table.source))
    return chain.result(table)


def typed_steps(graph: Graph, steps: Sequence[Step], origin: Input, context: RunContext, name: str) -> TypedSteps:
    """The filters of a typed branch over the table of this full name."""
    about = graph.about(steps, name)
    over = [work for _, work in named(graph, tuple(step.node for step in about))]
    asks = any(work.hides and work.missing == "skip" for work in over)
    return TypedSteps(graph, name, about, origin.past_definitions(context, name) if asks else ())


def check_named(graph: Graph, steps: Sequence[Step], origin: Input, context: RunContext, physical: str) -> None:
    """Raises `ServiceUnavailable` if a filter over whole tables on a typed way names a missing table."""
    over = named(graph, tuple(step.node for step in steps))
    known = origin.tables_of(context) if over else []
    for where, work in over if known else ():
        _check_names(f"{where}.tables", work.tables, physical, known)


def _check_names(where: str, patterns: Sequence[str], physical: str, known: Sequence[str]) -> None:
    for pattern in patterns:
        is_meant = not is_pattern(pattern) and patterns_meet(pattern, f"{physical}/*")
        if not is_meant or any(matches(name, [pattern]) for name in known):
            continue
        meant = nearest(pattern, known)
        hint = f'did you mean "{meant}"?' if meant else f"there are {', '.join(known[:_NAMED_MAX]) or 'none'}"
        raise ServiceUnavailable(  # a relay elsewhere may get it later
            f"{where}: no table called {pattern}, so this filter would not apply to the right one; {hint}. A "
            f"table that was created while the relay captures may become known with its first row"
        )
