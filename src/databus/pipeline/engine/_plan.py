"""The plan: which queries a graph becomes, each with its feeds and the folder of its checkpoint. Pure; no Spark.

An output has one query for the tables of each physical source that it reads, and one for each typed branch; outputs of
one lane share them. The checkpoint's folder is named after what the query reads and whom it feeds, so that it stays the
same when other parts of the file change.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from databus.flow import KeyChoice, Selection, TableFilters, Ways, patterns_of, selects
from databus.pipeline.graph import Branch, Graph, Kind, Step
from databus.plugins import Shape


@dataclass(frozen=True)
class Feed:
    """An output of a query.

    selections: of tables, any of which lets a table through; empty for typed rows. filters: for each selection, the
    paths of the filters over whole tables on the way.
    """

    output: str
    selections: tuple[Selection, ...] = ()
    filters: tuple[tuple[str, ...], ...] = ()

    def selects(self, name: str) -> bool:
        """Whether a table of this full name goes to the output."""
        return not self.selections or any(selects(each, name) for each in self.selections)

    def ways(self, filters: Mapping[tuple[str, ...], TableFilters], key: KeyChoice) -> Ways:
        """The same as tasks need it. filters: by their paths. key: of the output."""
        behind = (filters.get(paths) for paths in self.filters or ((),) * len(self.selections))
        return Ways(tuple(zip(self.selections, behind, strict=True)), key)

    def filters_of(self, name: str) -> tuple[str, ...]:
        """The filters that the table of this full name goes through."""
        ways = zip(self.selections, self.filters, strict=False)
        return next((filters for selection, filters in ways if selects(selection, name)), ())


@dataclass(frozen=True)
class QueryPlan:
    """One streaming query.

    name: unique in the pipeline, `copy/shop@shop`; also the folder of its checkpoint below the pipeline's state.
    physical, patterns: what is read as tables. table, steps: what is read typed, and the filters on the way.
    """

    name: str
    shape: Shape
    input: str
    feeds: tuple[Feed, ...]
    physical: str | None = None
    patterns: tuple[str, ...] = ()
    table: str | None = None
    steps: tuple[Step, ...] = ()

    @property
    def of(self) -> str:
        """What it brings, whatever the filters on its way are called: tables of a physical source, or one table."""
        return f"{self.physical}/*" if self.shape is Shape.TABLES else self.table or "*"


def plan_queries(graph: Graph, physicals: Sequence[str]) -> list[QueryPlan]:
    """The queries of a graph without problems, in a stable order. physicals: all that the relay captures."""
    grouped: dict[tuple[str, ...], list[Branch]] = {}
    for node in graph.config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        owner = node.name if node.config.lane is None else f"lane-{node.config.lane}"
        kind = "outputs" if node.config.lane is None else "lanes"
        for branch in graph.branches(node.path):
            for physical in _physicals(branch, physicals):
                grouped.setdefault((kind, owner, _label(branch, physical), physical), []).append(branch)
    return [
        _query(f"{kind}/{owner}/{label}", physical, found) for (kind, owner, label, physical), found in grouped.items()
    ]


def _physicals(branch: Branch, physicals: Iterable[str]) -> list[str]:
    if branch.shape is Shape.TYPED:
        return [""]
    return [name for name in physicals if all(choice.may_select(f"{name}/*") for choice in branch.selection)]


def _label(branch: Branch, physical: str) -> str:
    """What a query reads, as the name of a folder."""
    start = branch.input.partition(".")[2]
    if branch.shape is Shape.TABLES:
        return f"{start}@{physical}"
    steps = [step.node.partition(".")[2] + (f".{step.branch}" if step.branch else "") for step in branch.steps]
    return "+".join([start, *steps])


def _query(name: str, physical: str, branches: Sequence[Branch]) -> QueryPlan:
    first = branches[0]
    if first.shape is Shape.TYPED:
        feeds = tuple(Feed(output) for output in dict.fromkeys(branch.output for branch in branches))
        return QueryPlan(name, Shape.TYPED, first.input, feeds, table=first.table, steps=first.steps)
    by_output: dict[str, list[Branch]] = {}
    for branch in branches:
        by_output.setdefault(branch.output, []).append(branch)
    return QueryPlan(
        name,
        Shape.TABLES,
        first.input,
        tuple(_feed(output, ways) for output, ways in by_output.items()),
        physical=physical,
        patterns=tuple(dict.fromkeys(pattern for branch in branches for pattern in patterns_of(branch.selection))),
    )


def _feed(output: str, ways: Sequence[Branch]) -> Feed:
    filters = tuple(tuple(step.node for step in branch.over_tables) for branch in ways)
    return Feed(output, tuple(branch.selection for branch in ways), filters if any(filters) else ())
