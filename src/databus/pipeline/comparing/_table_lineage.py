"""Lineage: which table comes to which output, by which filters, and from which of its columns each target column comes.

Nothing is recorded for it: it is computed from the file and the definitions of the relay, or, without a relay, of a
SQLite file. What a user's function does is unknown. Start with `table_lineages`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from databus.core import DatabusError, split_physical
from databus.filters import FrameFilter, patterns_of
from databus.flow import Lineage
from databus.pipeline.graph import Branch, Graph
from databus.plugins import NamesTargets
from databus.schema import TableSchema

if TYPE_CHECKING:
    from databus.link import RelayClient

UNKNOWN: Final = "unknown"


@dataclass(frozen=True)
class TargetColumn:
    """One column of a target."""

    name: str
    type: str
    origins: tuple[str, ...] | None
    """The columns of the source that it is made of; None if unknown."""


@dataclass(frozen=True)
class TableLineage:
    """How a table comes to an output."""

    output: str
    table: str
    """Its full name, or a pattern if the tables are unknown."""
    source: tuple[str, str]
    """Namespace and name, as of `target`."""
    target: tuple[str, str]
    filters: tuple[str, ...]
    schema: TableSchema | None = None
    columns: tuple[TargetColumn, ...] | None = None
    """None if unknown."""
    reads: tuple[str, ...] = ()
    """Columns of the table on which the choice of rows, or values, depend."""

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        columns = [
            {"name": column.name, "type": column.type, "from": UNKNOWN if column.origins is None else column.origins}
            for column in self.columns or ()
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
    """The lineages of all outputs and present tables; without a relay, as far as the file has them."""
    tables = _known(graph, client)
    return [
        lineage
        for name, node in graph.config.outputs.items()
        for lineage in _into(graph, name, graph.branches(node.path), tables)
    ]


def _known(graph: Graph, client: "RelayClient | None") -> Mapping[str, TableSchema]:
    """The present tables, by full name."""
    if client is not None:
        try:
            return client.tables()
        except DatabusError:
            pass  # the file knows at least some
    config = graph.config
    here = {name: owner.definitions_here(config.folder) or {} for name, owner in config.sources.items()}
    return {f"{name}/{source}": table for name, tables in here.items() for source, table in tables.items()}


def _into(
    graph: Graph, output: str, branches: Sequence[Branch], tables: Mapping[str, TableSchema]
) -> Iterator[TableLineage]:
    names = _names_targets(graph, output)
    for name, table in sorted(tables.items()):
        way = next((branch for branch in branches if branch.takes(name)), None)
        if way is not None:
            yield _lineage(graph, output, way, name, table, _target(graph, output, names, name))
    for way in branches if not tables else ():
        for pattern in patterns_of(way.selection) or ["*"]:
            table_of = way.table or pattern
            yield TableLineage(output, table_of, (UNKNOWN, table_of), (UNKNOWN, output), _filters(way))


def _filters(way: Branch) -> tuple[str, ...]:
    return tuple(step.node for step in (*way.over_tables, *way.steps))


def _lineage(
    graph: Graph, output: str, way: Branch, name: str, table: TableSchema, target: tuple[str, str]
) -> TableLineage:
    physical, source = split_physical(name)
    about = graph.about((*way.over_tables, *way.steps), name)
    ends = _dataset(graph, physical, source), target
    filters = tuple(step.node for step in about)
    try:
        cut_table = FrameFilter.over(graph.inputs[way.input].filter, physical, table).cut_of(table).after
        lineage = Lineage.unchanged(cut_table.names)
        for step in about:
            lineage = lineage.then(graph.filters[step.node].lineage([*lineage.columns], step.branch))
    except (DatabusError, KeyError, ValueError):  # a filter names an unknown column; a run reports that
        return TableLineage(output, name, *ends, filters, table)
    types = {column.name: column.type for column in cut_table.columns}
    columns = []
    for column in lineage.columns:
        origins = lineage.origins(column)
        is_same = lineage.columns[column] is not None and not lineage.is_opaque
        kind = types.get(lineage.columns[column] or "", UNKNOWN) if is_same else UNKNOWN
        columns.append(TargetColumn(column, kind, None if origins is None else tuple(sorted(origins))))
    reads = () if lineage.is_opaque else tuple(sorted(lineage.reads))
    return TableLineage(output, name, *ends, filters, table, tuple(columns), reads)


def _dataset(graph: Graph, physical: str, source: str) -> tuple[str, str]:
    """A table's name in OpenLineage: by its server, if the file has it."""
    owner = graph.config.sources.get(physical)
    hosts, path = getattr(owner, "hosts", None), getattr(owner, "path", None)
    if hosts:
        return f"{owner.type if owner else ''}://{hosts[0]}", source
    if path is not None:
        return "file", f"{graph.config.folder / str(path)}/{source}"
    return f"databus://{physical}", source


def _names_targets(graph: Graph, output: str) -> NamesTargets | None:
    node = graph.config.nodes[f"outputs.{output}"]
    try:
        target = node.plugin(node.config, graph.config.context_of(output))
    except DatabusError:
        return None  # such a target cannot be made; a run reports that
    return target if isinstance(target, NamesTargets) else None


def _target(graph: Graph, output: str, names: NamesTargets | None, name: str) -> tuple[str, str]:
    physical, source = split_physical(name)
    with suppress(DatabusError):  # as above, of this table
        if names is not None:
            return names.target_of(physical, source)
    return f"databus://{graph.config.name}", f"{output}/{source}"
