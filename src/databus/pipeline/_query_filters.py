"""The filters over whole tables of a query: made from its plan, and tried on the tables that there are now."""

from collections.abc import Mapping

from databus.core import UnknownSource
from databus.pipeline._contract import Input, RunContext, TablesFilter
from databus.pipeline._graph import Graph
from databus.pipeline._plan import QueryPlan
from databus.pipeline._table_filters import Named, TableFilters
from databus.schema import TableSchema

Filters = Mapping[tuple[str, ...], TableFilters]
"""By the paths of the filters on a table's way, those filters."""


def filters_over(graph: Graph, plan: QueryPlan, context: RunContext) -> Filters:
    """The filters of a query over tables."""
    origin = graph.inputs[plan.input]
    physical = plan.physical or ""

    def current_of(name: str) -> TableSchema | None:
        try:
            return origin.schema_of(context, name)[1]
        except UnknownSource:
            return None

    def table_of(fingerprint: int) -> TableSchema:
        return origin.table_of(context, fingerprint)

    ways = {way for feed in plan.feeds for way in feed.filters if way}
    return {way: TableFilters(physical, named(graph, way), table_of, current_of) for way in ways}


def named(graph: Graph, way: tuple[str, ...]) -> list[Named]:
    """Filters over whole tables by their paths."""
    found = [(path, graph.filters[path]) for path in way]
    return [(path, each) for path, each in found if isinstance(each, TablesFilter)]


def check_columns(plan: QueryPlan, filters: Filters, origin: Input, context: RunContext) -> None:
    """Raises `UnknownColumn` or `ConfigError` for a table of now that a filter does not fit."""
    if not filters:
        return
    tables = origin.tables_now(context, plan.physical or "")
    for feed in plan.feeds:
        for name, table in tables.items():
            chain = filters.get(feed.filters_of(name)) if feed.selects(name) else None
            if chain is not None:
                chain.over(table)
