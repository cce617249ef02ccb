"""Lineage: which table comes to which output, by which filters, and which columns of it each column there is made of.

Nothing is recorded for it: it is read from the file, and from the definitions that the relay has, or, where none runs,
a SQLite file. What a user's function does, nobody can tell: that is unknown. Start with `table_lineages`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from databus.core import DatabusError, split_physical
from databus.filters import FrameFilter, patterns_of
from databus.flow import Lineage
from databus.pipeline.graph import Branch, Graph, Kind
from databus.plugins import NamesTargets
from databus.schema import TableSchema

if TYPE_CHECKING:
    from databus.link import RelayClient

UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class Column:
    """One column of a target. origins: the columns of the source that it is made of; None where nobody can tell."""

    name: str
    type: str
    origins: tuple[str, ...] | None


@dataclass(frozen=True)
class TableLineage:
    """How a table comes to an output.

    table: its full name, or a pattern where nobody knows the tables. target: a namespace, and the name there. columns:
    None where nobody knows them. reads: columns of the table on which the choice of rows depends, or values.
    """

    output: str
    table: str
    source: tuple[str, str]
    target: tuple[str, str]
    filters: tuple[str, ...]
    schema: TableSchema | None = None
    columns: tuple[Column, ...] | None = None
    reads: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        columns = [
            {"name": each.name, "type": each.type, "from": UNKNOWN if each.origins is None else each.origins}
            for each in self.columns or ()
        ]
        return {
            "output": self.output,
            "table": self.table,
            "source": dict(zip(("namespace", "name"), self.source, strict=True)),
            "target": dict(zip(("namespace", "name"), self.target, strict=True)),
            "filters": self.filters,
            "columns": UNKNOWN if self.columns is None else columns,
            "reads": self.reads,
        }


def table_lineages(graph: Graph, client: "RelayClient | None") -> list[TableLineage]:
    """Of all outputs and the tables that there are now. Without a relay, of what the file alone tells."""
    known = _known(graph, client)
    return [
        each
        for node in graph.config.nodes.values()
        if node.kind is Kind.OUTPUT
        for each in _into(graph, node.name, graph.branches(node.path), known)
    ]


def _known(graph: Graph, client: "RelayClient | None") -> Mapping[str, TableSchema]:
    """The tables that there are, by full names."""
    if client is not None:
        try:
            return {each.name: client.table_of(each.fingerprint) for each in client.sources()}
        except DatabusError:
            pass  # what the file tells is better than nothing
    config = graph.config
    here = {name: each.definitions_here(config.folder) or {} for name, each in config.sources.items()}
    return {f"{name}/{source}": table for name, tables in here.items() for source, table in tables.items()}


def _into(
    graph: Graph, output: str, branches: Sequence[Branch], known: Mapping[str, TableSchema]
) -> Iterator[TableLineage]:
    for name, table in sorted(known.items()):
        way = next((each for each in branches if each.takes(name)), None)
        if way is not None:
            yield _lineage(graph, output, way, name, table)
    for way in branches if not known else ():
        for pattern in patterns_of(way.selection) or ["*"]:
            table_of = way.table or pattern
            yield TableLineage(output, table_of, (UNKNOWN, table_of), (UNKNOWN, output), _filters(way))


def _filters(way: Branch) -> tuple[str, ...]:
    return tuple(step.node for step in (*way.over_tables, *way.steps))


def _lineage(graph: Graph, output: str, way: Branch, name: str, table: TableSchema) -> TableLineage:
    physical, source = split_physical(name)
    about = graph.about((*way.over_tables, *way.steps), name)
    ends = _dataset(graph, physical, source), _target(graph, output, physical, source)
    filters = tuple(step.node for step in about)
    try:
        given = FrameFilter.over(graph.inputs[way.input].filter, physical, table).cut_of(table).after
        found = Lineage.unchanged(given.names)
        for step in about:
            found = found.then(graph.filters[step.node].lineage([*found.columns], step.branch))
    except (DatabusError, KeyError, ValueError):  # a filter names what the table has not: running it says so
        return TableLineage(output, name, *ends, filters, table)
    types = {column.name: column.type for column in given.columns}
    columns = []
    for column in found.columns:
        origins = found.origins(column)
        is_same = found.columns[column] is not None and not found.is_opaque
        kind = types.get(found.columns[column] or "", UNKNOWN) if is_same else UNKNOWN
        columns.append(Column(column, kind, None if origins is None else tuple(sorted(origins))))
    reads = () if found.is_opaque else tuple(sorted(found.reads))
    return TableLineage(output, name, *ends, filters, table, tuple(columns), reads)


def _dataset(graph: Graph, physical: str, source: str) -> tuple[str, str]:
    """How OpenLineage names a table: by its server, as far as the file says it."""
    owner = graph.config.sources.get(physical)
    hosts, path = getattr(owner, "hosts", None), getattr(owner, "path", None)
    if hosts:
        return f"{owner.type if owner else ''}://{hosts[0]}", source
    if path is not None:
        return "file", f"{graph.config.folder / str(path)}/{source}"
    return f"databus://{physical}", source


def _target(graph: Graph, output: str, physical: str, source: str) -> tuple[str, str]:
    node = graph.config.nodes[f"outputs.{output}"]
    try:
        target = node.plugin(node.config, graph.config.context_of(output))
        if isinstance(target, NamesTargets):
            return target.target_of(physical, source)
    except DatabusError:
        pass  # there cannot be such a target; running it says so
    return f"databus://{graph.config.name}", f"{output}/{source}"
