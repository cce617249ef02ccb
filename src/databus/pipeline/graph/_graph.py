"""The graph: nodes, edges, and the branches by which rows reach each output. Pure; no Spark.

An edge carries *tables* (frames of any number of tables) or *typed* rows of one table. An input decides what it emits;
a filter that names a table turns an edge of tables into typed rows of that table, by having that table read typed from
the start. So a branch is a way from an input to an output. Start with `Graph.of`, then `Graph.branches`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Final

from databus.filters import Selection, matches, may_select, selects
from databus.formats import hint_for
from databus.pipeline.graph._config import NodeSpec, PipelineConfig, Problem
from databus.pipeline.graph._registry import NodeKind
from databus.plugins import Filter, Input, Shape, TablesFilter

BRANCHES_MAX: Final = 1_000


@dataclass(frozen=True)
class Edge:
    """From a node, or one branch of it, to another. Nodes by path (`inputs.shop`)."""

    source: str
    branch: str | None
    target: str
    index: int
    """Its place in `from`."""
    shape: Shape
    table: str | None = None

    @property
    def place(self) -> str:
        """Its place in the file."""
        return f"{self.target}.from[{self.index}]"


@dataclass(frozen=True)
class Step:
    """A filter on the way, and the branch of it that is taken."""

    node: str
    branch: str | None


@dataclass(frozen=True)
class Branch:
    """A way from an input to an output."""

    input: str
    output: str
    shape: Shape
    edge: Edge
    """The last edge, into the output."""
    selection: Selection = ()
    """The choices of tables on the way, all of which a table has to pass."""
    table: str | None = None
    """The table of typed rows; None for tables, and for an input that has only one."""
    steps: tuple[Step, ...] = ()
    """The filters on a way of typed rows, from the input on."""
    over_tables: tuple[Step, ...] = ()
    """The filters over whole tables on a way of tables."""

    @property
    def edge_name(self) -> str:
        """The name in `from`."""
        name = self.edge.source.partition(".")[2]
        return name if self.edge.branch is None else f"{name}.{self.edge.branch}"

    def takes(self, name: str) -> bool:
        """Whether the table of this full name takes this way."""
        if self.table is not None and not matches(name, [self.table]):
            return False
        return (self.shape is Shape.TYPED and self.table is None) or selects(self.selection, name)


@dataclass
class Graph:
    """A pipeline's nodes and edges. `inputs` and `filters` are made from their options, by path."""

    config: PipelineConfig
    inputs: Mapping[str, Input]
    filters: Mapping[str, Filter]
    edges: list[Edge] = field(default_factory=list)
    _shapes: dict[str, Shape] = field(default_factory=dict)  # what filters over whole tables give, by path

    @classmethod
    def of(cls, config: PipelineConfig) -> "tuple[Graph, list[Problem]]":
        """Join the nodes; returns the problems of their `from` too."""
        nodes = config.nodes.values()
        graph = cls(
            config,
            {node.path: node.plugin(node.config) for node in nodes if node.kind is NodeKind.INPUT},
            {node.path: node.plugin(node.config, config.folder) for node in nodes if node.kind is NodeKind.FILTER},
        )
        problems = [problem for node in nodes for problem in graph._join(node)]
        return graph, problems

    @cached_property
    def referable(self) -> dict[str, str]:
        """The node's path by each name that may be in a `from`."""
        named: dict[str, str] = {}
        for node in self.config.nodes.values():
            if node.kind is NodeKind.OUTPUT:
                continue
            branches = self.filters[node.path].branches if node.kind is NodeKind.FILTER else ()
            named.update({f"{node.name}.{branch}": node.path for branch in branches} or {node.name: node.path})
        return named

    def _join(self, node: NodeSpec) -> Iterator[Problem]:
        seen: set[str] = set()
        for index, name in enumerate(node.sources):
            place = f"{node.path}.from[{index}]"
            if name in seen:
                yield Problem(place, f'"{name}" appears twice')
                continue
            seen.add(name)
            path = self.referable.get(name)
            if path is None:
                message = self._unknown(name)
                if message:
                    yield Problem(place, message)
                continue
            branch = name.partition(".")[2] or None
            self.edges.append(Edge(path, branch, node.path, index, self._shape_into(path, node), self._table_of(node)))

    def _table_of(self, node: NodeSpec) -> str | None:
        return self.filters[node.path].table if node.kind is NodeKind.FILTER else None

    def _shape_into(self, source: str, node: NodeSpec) -> Shape:
        """What the edge from `source` into `node` carries: typed rows if either side is about one table."""
        if self.shape_out(source) is Shape.TYPED:
            return Shape.TYPED
        if node.kind is NodeKind.FILTER and self.filters[node.path].takes is Shape.TYPED:
            return Shape.TYPED
        return Shape.TABLES

    def shape_out(self, path: str) -> Shape:
        """What a node gives. A filter over whole tables gives what it gets, which may be typed rows of one table."""
        if path in self.inputs:
            return self.inputs[path].emits
        node_filter = self.filters[path]
        if not isinstance(node_filter, TablesFilter):
            return node_filter.takes
        if path not in self._shapes:
            self._shapes[path] = Shape.TABLES  # ends the recursion in a cycle, which `cycle` reports
            before = (self.referable.get(name) for name in self.config.nodes[path].sources)
            shapes = [self.shape_out(source) for source in before if source is not None]
            self._shapes[path] = Shape.TYPED if Shape.TYPED in shapes else Shape.TABLES
        return self._shapes[path]

    def _unknown(self, name: str) -> str | None:
        base, _, branch = name.partition(".")
        for path in (f"inputs.{base}", f"filters.{base}"):
            broken = base in self._section(path) and path not in self.config.nodes
            if broken:
                return None  # its own errors are reported
        known = self.filters.get(f"filters.{base}")
        if known is not None and known.branches:
            there = ", ".join(f'"{base}.{branch}"' for branch in known.branches)
            what = f'"{base}" has no branch "{branch}"' if branch else f'"{base}" is a route; name one of its branches'
            return f"{what}: {there}"
        if known is not None or f"inputs.{base}" in self.inputs:
            return f'"{base}" has no branches; write "{base}"'
        if f"outputs.{base}" in self.config.nodes:
            return f'"{name}" is an output; nothing can read from it'
        return f'no input or filter called "{name}"; {hint_for(name, self.referable)}'

    def _section(self, path: str) -> Mapping[str, Any]:
        section: Mapping[str, Any] = getattr(self.config.sections, path.partition(".")[0])
        return section

    def into(self, path: str) -> list[Edge]:
        """The edges into a node."""
        return [edge for edge in self.edges if edge.target == path]

    def cycle(self) -> list[str]:
        """The nodes of one cycle, the first one again at the end; empty if there is none."""
        done: set[str] = set()
        for start in self.filters:
            way: list[str] = []
            stack: list[tuple[str, bool]] = [(start, True)]
            while stack:
                path, enters = stack.pop()
                if not enters:
                    done.add(way.pop())
                elif path in way:
                    return [*way[way.index(path) :], path]
                elif path not in done:
                    way.append(path)
                    stack.append((path, False))
                    stack += [(edge.source, True) for edge in self.into(path)]
        return []

    def reaching(self) -> set[str]:
        """The nodes from which something reaches an output."""
        outputs = {path for path, node in self.config.nodes.items() if node.kind is NodeKind.OUTPUT}
        waiting = list(outputs)
        while waiting:
            for edge in self.into(waiting.pop()):
                if edge.source not in outputs:
                    outputs.add(edge.source)
                    waiting.append(edge.source)
        return outputs

    def branches(self, output: str) -> list[Branch]:
        """Every way into an output, `BRANCHES_MAX` + 1 at most; of a graph without cycles."""
        branches: list[Branch] = []
        for edge in self.into(output):
            for way in self._ways(edge.source, edge.branch):
                branches.append(self._branch(output, edge, way))
                if len(branches) > BRANCHES_MAX:
                    return branches
        return branches

    def branches_behind(self, name: str) -> list[Branch] | None:
        """Every way through a filter, or a branch of one, by its name in a `from`; None if there is no such filter."""
        path = self.referable.get(name)
        if path is None or path not in self.filters:
            return None
        branch = name.partition(".")[2] or None
        edge = Edge(path, branch, "", 0, self.shape_out(path))
        return [self._branch("", edge, way) for way in islice(self._ways(path, branch), BRANCHES_MAX)]

    def _ways(self, path: str, branch: str | None) -> Iterator[tuple[str, tuple[tuple[str, str | None], ...]]]:
        if path in self.inputs:
            yield path, ()
            return
        for edge in self.into(path):
            for start, before in self._ways(edge.source, edge.branch):
                yield start, (*before, (path, branch))

    def _branch(self, output: str, edge: Edge, way: tuple[str, tuple[tuple[str, str | None], ...]]) -> Branch:
        start, passed = way
        selection: Selection = (self.inputs[start].choice(),)
        steps: list[Step] = []
        over_tables: list[Step] = []
        table: str | None = None
        for path, branch in passed:
            node_filter = self.filters[path]
            if node_filter.takes is Shape.TABLES:
                selection = (*selection, node_filter.choose(branch))
                if isinstance(node_filter, TablesFilter):
                    (steps if edge.shape is Shape.TYPED else over_tables).append(Step(path, branch))
                continue
            table = table or node_filter.table
            steps.append(Step(path, branch))
        return Branch(start, output, edge.shape, edge, selection, table, tuple(steps), tuple(over_tables))

    def about(self, steps: Sequence[Step], name: str) -> tuple[Step, ...]:
        """The steps that change the table of this full name; typed filters take whatever comes."""
        filters = ((step, self.filters[step.node]) for step in steps)
        return tuple(
            step
            for step, node_filter in filters
            if not isinstance(node_filter, TablesFilter) or node_filter.in_tasks.is_about(name)
        )


def physicals_of(graph: Graph, branch: Branch) -> list[str] | None:
    """The physical sources of which a branch may carry tables; None if only the relay knows."""
    if not graph.inputs[branch.input].needs_relay:
        return []
    if not graph.config.sources:
        return None
    return [name for name in graph.config.sources if may_select(branch.selection, f"{name}/*")]
