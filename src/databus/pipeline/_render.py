"""The graph as text for Graphviz and for Mermaid, each edge with what it carries."""

from typing import Literal

from databus.pipeline._contract import Shape
from databus.pipeline._graph import Edge, Graph
from databus.pipeline._registry import Kind

_DOT_SHAPES = {Kind.INPUT: "cds", Kind.FILTER: "box", Kind.OUTPUT: "cylinder"}
_MERMAID_SHAPES = {Kind.INPUT: ("[/", "/]"), Kind.FILTER: ("[", "]"), Kind.OUTPUT: ("[(", ")]")}


def render(graph: Graph, form: Literal["dot", "mermaid"]) -> str:
    """The graph's text in one of the two languages."""
    return _dot(graph) if form == "dot" else _mermaid(graph)


def _label(graph: Graph, edge: Edge) -> str:
    words = "tables" if edge.shape is Shape.TABLES else "typed"
    if edge.shape is Shape.TYPED and edge.table is not None and graph.shape_out(edge.source) is Shape.TABLES:
        words = f"typed {edge.table}"
    return words if edge.branch is None else f"{edge.branch}: {words}"


def _physical_edges(graph: Graph) -> list[tuple[str, str]]:
    return [
        (name, path)
        for name in graph.config.sources
        for path, each in graph.inputs.items()
        if each.needs_relay and each.choice().may_select(f"{name}/*")
    ]


def _dot(graph: Graph) -> str:
    lines = [f'digraph "{graph.config.name}" {{', "  rankdir=LR;"]
    for name, source in graph.config.sources.items():
        lines.append(f'  "sources.{name}" [label="{name}\\n{source.type}", shape=folder];')
    for path, node in graph.config.nodes.items():
        lines.append(f'  "{path}" [label="{node.name}\\n{node.type}", shape={_DOT_SHAPES[node.kind]}];')
    lines += [f'  "sources.{name}" -> "{path}" [label="log"];' for name, path in _physical_edges(graph)]
    for edge in graph.edges:
        style = "bold" if edge.shape is Shape.TABLES else "solid"
        lines.append(f'  "{edge.source}" -> "{edge.target}" [label="{_label(graph, edge)}", style={style}];')
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid(graph: Graph) -> str:
    ids = {path: f"n{i}" for i, path in enumerate(graph.config.nodes)}
    source_ids = {name: f"s{i}" for i, name in enumerate(graph.config.sources)}
    lines = ["flowchart LR"]
    for name, source in graph.config.sources.items():
        lines.append(f'  {source_ids[name]}[("{name}<br>{source.type}")]')
    for path, node in graph.config.nodes.items():
        opening, closing = _MERMAID_SHAPES[node.kind]
        lines.append(f'  {ids[path]}{opening}"{node.name}<br>{node.type}"{closing}')
    lines += [f"  {source_ids[name]} -->|log| {ids[path]}" for name, path in _physical_edges(graph)]
    for edge in graph.edges:
        arrow = "==>" if edge.shape is Shape.TABLES else "-->"
        lines.append(f'  {ids[edge.source]} {arrow}|"{_label(graph, edge)}"| {ids[edge.target]}')
    return "\n".join(lines) + "\n"
