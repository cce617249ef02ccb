"""The plan: the queries of a graph, each with its feeds and the folder of its checkpoint. Pure; no Spark.

An output has one query for each physical source that it reads, whatever the inputs and filters of its tables; outputs
of one lane that read the same inputs share it. An input that makes typed rows itself has a query of its own. The
checkpoint's folder is named after what the query reads and which outputs it feeds.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Self

from databus.core import split_physical
from databus.filters import Selection, TableChoice, patterns_of, selects
from databus.flow import KeyChoice, TableFilters, Ways
from databus.pipeline.graph import Branch, Graph, Step
from databus.places import Choice, identity
from databus.plugins import Output, Shape


@dataclass(frozen=True)
class Way:
    """A way by which tables come to an output."""

    input: str
    """The path of the input."""
    selection: Selection = (TableChoice(),)
    """The tables that take it."""
    steps: tuple[Step, ...] = ()
    """The filters."""
    shape: Shape = Shape.TABLES
    """Whether the filters work on whole tables, or on typed rows of one."""
    table: str | None = None
    """That table, as the file names it; None if the input has only one."""

    @property
    def is_typed(self) -> bool:
        """Whether its filters are Spark's."""
        return self.shape is Shape.TYPED

    @property
    def filters(self) -> tuple[str, ...]:
        """The paths of its filters over whole tables, which tasks apply."""
        return () if self.is_typed else tuple(step.node for step in self.steps)

    def within(self, choice: TableChoice) -> Self:
        """The same way, for tables that another choice selects too."""
        return replace(self, selection=(*self.selection, choice))

    def selects(self, name: str) -> bool:
        """Whether the table of this full name takes it."""
        return selects(self.selection, name)


@dataclass(frozen=True)
class OutputFeed:
    """An output of a query, and the ways of its tables: each table has one."""

    output: str
    ways: tuple[Way, ...] = ()

    @property
    def choice(self) -> Choice:
        """Its tables."""
        return tuple(way.selection for way in self.ways)

    def selects(self, name: str) -> bool:
        """Whether a table of this full name goes to the output."""
        return self.way(name) is not None

    def way(self, name: str) -> Way | None:
        """The way of the table of this full name, if any."""
        return next((way for way in self.ways if way.selects(name)), None)

    def filters_of(self, name: str) -> tuple[str, ...]:
        """The filters over whole tables of the table of this full name."""
        way = self.way(name)
        return () if way is None else way.filters

    @property
    def typed(self) -> tuple[Way, ...]:
        """The ways of typed rows."""
        return tuple(way for way in self.ways if way.is_typed)

    def of(self, *ways: Way) -> Self:
        """The same with only these ways."""
        return replace(self, ways=ways)

    def without(self, names: Collection[str]) -> Self:
        """The same without some whole tables, by full names."""
        others = TableChoice(exclude=tuple(sorted(names)))
        return self.of(*(way if way.is_typed else way.within(others) for way in self.ways)) if names else self

    def only(self, names: Collection[str]) -> Self:
        """The same with only these tables."""
        only = TableChoice(tuple(sorted(names)))
        return self.of(*(way.within(only) for way in self.ways))

    def in_tasks(self, filters: Mapping[tuple[str, ...], TableFilters], key: KeyChoice) -> Ways:
        """The same for tasks. filters: by their paths. key: of the output."""
        return Ways(tuple((way.selection, filters.get(way.filters)) for way in self.ways), key)


@dataclass(frozen=True)
class QueryPlan:
    """One streaming query."""

    name: str
    """Unique in the pipeline, `outputs/copy/shop@shop`; also its checkpoint's folder below the pipeline's state."""
    shape: Shape
    """Of what its inputs give."""
    inputs: tuple[str, ...]
    feeds: tuple[OutputFeed, ...]
    physical: str | None = None
    """The source that it reads; None if the input makes typed rows, and names their source."""

    @property
    def choice(self) -> Choice:
        """The tables that some output gets."""
        return tuple(dict.fromkeys(selection for feed in self.feeds for selection in feed.choice))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns that together match all of them."""
        return tuple(dict.fromkeys(pattern for selection in self.choice for pattern in patterns_of(selection)))

    def read_by(self, path: str) -> Choice:
        """The tables that are read by an input."""
        ways = (way for feed in self.feeds for way in feed.ways if way.input == path)
        return tuple(dict.fromkeys(way.selection for way in ways))

    def feed_of(self, output: str) -> OutputFeed | None:
        """The feed of an output, by its path."""
        return next((feed for feed in self.feeds if feed.output == output), None)


def plan_queries(graph: Graph, physicals: Sequence[str]) -> list[QueryPlan]:
    """The queries of a graph without problems, in a stable order. physicals: all that the relay captures."""
    grouped: dict[tuple[str, str, tuple[str, ...]], list[OutputFeed]] = {}
    for node in graph.config.outputs.values():
        owner = f"outputs/{node.name}" if node.config.lane is None else f"lanes/lane-{node.config.lane}"
        for physical, branches in _by_physical(graph.branches(node.path), physicals).items():
            inputs = tuple(dict.fromkeys(branch.input for branch in branches))
            feed = OutputFeed(node.path, tuple(dict.fromkeys(map(_way, branches))))
            grouped.setdefault((owner, physical, inputs), []).append(feed)
    return [_query(graph, *key, tuple(feeds)) for key, feeds in grouped.items()]


def _by_physical(branches: Iterable[Branch], physicals: Sequence[str]) -> dict[str, list[Branch]]:
    """The branches of an output by physical source; those of inputs that make typed rows by the path of the input."""
    branches_of: dict[str, list[Branch]] = {}
    for branch in branches:
        for physical in _physicals(branch, physicals):
            branches_of.setdefault(physical, []).append(branch)
    return branches_of


def _physicals(branch: Branch, physicals: Sequence[str]) -> list[str]:
    if branch.shape is Shape.TYPED and branch.table is None:
        return [branch.input]
    selection = _way(branch).selection
    return [name for name in physicals if all(choice.may_select(f"{name}/*") for choice in selection)]


def _way(branch: Branch) -> Way:
    if branch.shape is Shape.TABLES:
        return Way(branch.input, branch.selection, branch.over_tables)
    chosen = () if branch.table is None else (TableChoice((branch.table,)),)
    return Way(branch.input, (*branch.selection, *chosen), branch.steps, Shape.TYPED, branch.table)


def _query(
    graph: Graph, owner: str, physical: str, inputs: tuple[str, ...], feeds: tuple[OutputFeed, ...]
) -> QueryPlan:
    names = "+".join(path.partition(".")[2] for path in inputs)
    if physical in inputs:
        return QueryPlan(f"{owner}/{names}", graph.inputs[physical].emits, inputs, feeds)
    return QueryPlan(f"{owner}/{names}@{physical}", Shape.TABLES, inputs, feeds, physical)


# The way hash: of all that decides a table's rows in an output. Another hash means other rows.
#
# Names and limits are not in it: a filter may be renamed, a table added or removed.


_VERSION: Final = 1  # of the form that is hashed

WayOf = Callable[[str], str]
"""Gives the hash of the table of this full name."""


def way_of(graph: Graph, feed: OutputFeed, output: Output) -> WayOf:
    """The way hashes of the tables of an output in a query."""

    @cache  # each batch asks for it
    def way_hash(name: str) -> str:
        way = feed.way(name)
        if way is None:
            return ""
        forms = [graph.filters[step.node].form(step.branch) for step in graph.about(way.steps, name)]
        kept = output.config.form_of(name.partition("/")[2])
        input_form = graph.inputs[way.input].filter.form(name)
        form = {"v": _VERSION, "filters": forms, "output": kept, **({"input": input_form} if input_form else {})}
        return identity(json.dumps(form, sort_keys=True))

    return way_hash


def why_stopped(output: str, tables: Sequence[str]) -> str:
    """The error for tables whose way hash has changed, in an output with `on_change: stop`."""
    names = " ".join(sorted({split_physical(table)[1] for table in tables}))
    return (
        f"what decides the rows of {', '.join(sorted(tables))} (filters on the way, or this output's options) was "
        f"changed after rows were written. Choose what happens to those rows: `databus rebuild FILE {output} {names}` "
        f"writes them again, once the pipeline has stopped; `on_change: rebuild` in this output does so at each such "
        f"change, and `on_change: continue` keeps them"
    )
