"""The plan: which queries a graph becomes, each with its feeds and the folder of its checkpoint. Pure; no Spark.

An output has one query for each physical source that it reads, whatever inputs and filters its tables come by; outputs
of one lane that read the same inputs share it. Rows of an input that makes typed rows itself have a query of their own.
The checkpoint's folder is named after what the query reads and whom it feeds.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Self

from databus.core import split_physical
from databus.filters import Selection, TableChoice, patterns_of, selects
from databus.flow import KeyChoice, TableFilters, Ways
from databus.pipeline.graph import Branch, Graph, Kind, Step
from databus.places import Choice, identity
from databus.plugins import Output, Shape


@dataclass(frozen=True)
class Way:
    """A way by which tables come to an output."""

    input: str
    """The path of the input."""
    selection: Selection = (TableChoice(),)
    """The tables."""
    steps: tuple[Step, ...] = ()
    """The filters."""
    shape: Shape = Shape.TABLES
    """Whether they work on whole tables, or on typed rows of one."""
    table: str | None = None
    """That one, as the file names it; None where the input has but one."""

    @property
    def is_typed(self) -> bool:
        """Whether its filters are Spark's."""
        return self.shape is Shape.TYPED

    @property
    def filters(self) -> tuple[str, ...]:
        """The paths of filters over whole tables, which tasks apply."""
        return () if self.is_typed else tuple(step.node for step in self.steps)

    def within(self, choice: TableChoice) -> Self:
        """The same with tables that are chosen besides."""
        return replace(self, selection=(*self.selection, choice))

    def selects(self, name: str) -> bool:
        """Whether the table of this full name comes by it."""
        return selects(self.selection, name)


@dataclass(frozen=True)
class Feed:
    """An output of a query, and how tables come to it: each by one way."""

    output: str
    ways: tuple[Way, ...] = ()

    @property
    def choice(self) -> Choice:
        """The tables."""
        return tuple(way.selection for way in self.ways)

    def selects(self, name: str) -> bool:
        """Whether a table of this full name goes to the output."""
        return self.way(name) is not None

    def way(self, name: str) -> Way | None:
        """By which way the table of this full name comes, if any."""
        return next((way for way in self.ways if way.selects(name)), None)

    def filters_of(self, name: str) -> tuple[str, ...]:
        """The filters over whole tables that the table of this full name goes through."""
        way = self.way(name)
        return () if way is None else way.filters

    @property
    def typed(self) -> tuple[Way, ...]:
        """The ways of typed rows."""
        return tuple(way for way in self.ways if way.is_typed)

    def of(self, *ways: Way) -> Self:
        """The same with these ways alone."""
        return replace(self, ways=ways)

    def without(self, names: Collection[str]) -> Self:
        """The same but for some tables, by full names, that come as whole tables."""
        left = TableChoice(exclude=tuple(sorted(names)))
        return self.of(*(way if way.is_typed else way.within(left) for way in self.ways)) if names else self

    def only(self, names: Collection[str]) -> Self:
        """The same with these tables alone."""
        only = TableChoice(tuple(sorted(names)))
        return self.of(*(way.within(only) for way in self.ways))

    def in_tasks(self, filters: Mapping[tuple[str, ...], TableFilters], key: KeyChoice) -> Ways:
        """The same as tasks need it. filters: by their paths. key: of the output."""
        return Ways(tuple((way.selection, filters.get(way.filters)) for way in self.ways), key)


@dataclass(frozen=True)
class QueryPlan:
    """One streaming query."""

    name: str
    """Unique in the pipeline, `outputs/copy/shop@shop`; also its checkpoint's folder below the pipeline's state."""
    shape: Shape
    """What its inputs give."""
    inputs: tuple[str, ...]
    feeds: tuple[Feed, ...]
    physical: str | None = None
    """What is read; None where the input makes typed rows, and says so itself."""

    @property
    def choice(self) -> Choice:
        """All tables that some output gets."""
        return tuple(dict.fromkeys(selection for feed in self.feeds for selection in feed.choice))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns that all of them match."""
        return tuple(dict.fromkeys(pattern for selection in self.choice for pattern in patterns_of(selection)))

    def read_by(self, path: str) -> Choice:
        """The tables that an input is read for."""
        ways = (way for feed in self.feeds for way in feed.ways if way.input == path)
        return tuple(dict.fromkeys(way.selection for way in ways))

    def feed_of(self, output: str) -> Feed | None:
        """That of an output, by its path."""
        return next((feed for feed in self.feeds if feed.output == output), None)


def plan_queries(graph: Graph, physicals: Sequence[str]) -> list[QueryPlan]:
    """The queries of a graph without problems, in a stable order. physicals: all that the relay captures."""
    grouped: dict[tuple[str, str, tuple[str, ...]], list[Feed]] = {}
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        owner = f"outputs/{node.name}" if node.config.lane is None else f"lanes/lane-{node.config.lane}"
        for physical, branches in _by_physical(graph.branches(node.path), physicals).items():
            inputs = tuple(dict.fromkeys(branch.input for branch in branches))
            feed = Feed(node.path, tuple(dict.fromkeys(map(_way, branches))))
            grouped.setdefault((owner, physical, inputs), []).append(feed)
    return [_query(graph, *key, tuple(feeds)) for key, feeds in grouped.items()]


def _by_physical(branches: Iterable[Branch], physicals: Sequence[str]) -> dict[str, list[Branch]]:
    """The branches of an output that one query reads; those of inputs that make typed rows by the path of the input."""
    found: dict[str, list[Branch]] = {}
    for branch in branches:
        for physical in _physicals(branch, physicals):
            found.setdefault(physical, []).append(branch)
    return found


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


def _query(graph: Graph, owner: str, physical: str, inputs: tuple[str, ...], feeds: tuple[Feed, ...]) -> QueryPlan:
    names = "+".join(path.partition(".")[2] for path in inputs)
    if physical in inputs:
        return QueryPlan(f"{owner}/{names}", graph.inputs[physical].emits, inputs, feeds)
    return QueryPlan(f"{owner}/{names}@{physical}", Shape.TABLES, inputs, feeds, physical)


# What becomes of a table's rows on their way into an output, as a hash: with another, they would be other rows.
#
# What only names things, or bounds them, is not in it: a filter may be renamed, a table chosen or left out.


_VERSION: Final = 1  # of the form that is hashed

WayOf = Callable[[str], str]
"""By the full name of a table: the hash."""


def way_of(graph: Graph, feed: Feed, output: Output) -> WayOf:
    """How tables come into an output by a query."""

    @cache  # it is asked for with each batch
    def found(name: str) -> str:
        way = feed.way(name)
        if way is None:
            return ""
        forms = [graph.filters[step.node].form(step.branch) for step in graph.about(way.steps, name)]
        kept = output.config.form_of(name.partition("/")[2])
        given = graph.inputs[way.input].filter.form(name)
        form = {"v": _VERSION, "filters": forms, "output": kept, **({"input": given} if given else {})}
        return identity(json.dumps(form, sort_keys=True))

    return found


def why_stopped(output: str, tables: Sequence[str]) -> str:
    """Why an output that does not say what to do does not go on with such tables."""
    names = " ".join(sorted({split_physical(table)[1] for table in tables}))
    return (
        f"what decides the rows of {', '.join(sorted(tables))} (filters on the way, or this output's options) was "
        f"changed after rows were written. Choose what happens to those rows: `databus rebuild FILE {output} {names}` "
        f"writes them again, once the pipeline has stopped; `on_change: rebuild` in this output does so at each such "
        f"change, and `on_change: continue` keeps them"
    )
