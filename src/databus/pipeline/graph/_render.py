"""The graph as a tree, or as text for Graphviz and Mermaid; each edge says what it carries."""

from collections.abc import Iterator
from typing import Literal

from databus.pipeline.graph._graph import Edge, Graph
from databus.pipeline.graph._registry import NodeKind
from databus.plugins import Shape

_DOT_SHAPES = {NodeKind.INPUT: "cds", NodeKind.FILTER: "box", NodeKind.OUTPUT: "cylinder"}
_MERMAID_SHAPES = {NodeKind.INPUT: ("[/", "/]"), NodeKind.FILTER: ("[", "]"), NodeKind.OUTPUT: ("[(", ")]")}


def render(graph: Graph, form: Literal["tree", "dot", "mermaid"]) -> str:
    """The graph as a tree, or in one of the two languages."""
    return {"tree": _tree, "dot": _dot, "mermaid": _mermaid}[form](graph)


def _tree(graph: Graph) -> str:
    """From sources to outputs. A node with several edges into it is expanded only at the first."""
    nodes = graph.config.nodes
    below: dict[str, list[tuple[str, str]]] = {path: [] for path in nodes}
    roots = {
        name: [(path, "") for source, path in physical_edges(graph) if source == name] for name in graph.config.sources
    }
    for edge in graph.edges:
        below[edge.source].append((edge.target, edge_label(graph, edge)))
    shown: set[str] = set()

    def lines(children: list[tuple[str, str]], indent: str) -> Iterator[str]:
        for number, (path, label) in enumerate(children, 1):
            is_last, again = number == len(children), path in shown and bool(below[path])
            words = [
                nodes[path].kind.word,
                f"{nodes[path].name} ({nodes[path].type})",
                *([f"[{label}]"] if label else []),
            ]
            yield f"{indent}{'└─' if is_last else '├─'} {' '.join(words)}{', see above' if again else ''}"
            shown.add(path)
            if not again:
                yield from lines(below[path], indent + ("   " if is_last else "│  "))

    out = []
    for name, children in roots.items():
        out += [f"source {name} ({graph.config.sources[name].type})", *lines(children, "")]
    captured = {path for children in roots.values() for path, _ in children}
    for path in [input_path for input_path in graph.inputs if input_path not in captured]:
        out += [f"input {nodes[path].name} ({nodes[path].type})", *lines(below[path], "")]
    return "\n".join(out) + "\n"


def edge_label(graph: Graph, edge: Edge) -> str:
    """What an edge carries, in words."""
    words = "tables" if edge.shape is Shape.TABLES else "typed"
    if edge.shape is Shape.TYPED and edge.table is not None and graph.shape_out(edge.source) is Shape.TABLES:
        words = f"typed {edge.table}"
    return words if edge.branch is None else f"{edge.branch}: {words}"


def physical_edges(graph: Graph) -> list[tuple[str, str]]:
    """From each physical source of the file to the inputs that may read it, by path."""
    return [
        (name, path)
        for name in graph.config.sources
        for path, input_node in graph.inputs.items()
        if input_node.needs_relay and input_node.choice().may_select(f"{name}/*")
    ]


def _dot(graph: Graph) -> str:
    lines = [f'digraph "{graph.config.name}" {{', "  rankdir=LR;"]
    for name, source in graph.config.sources.items():
        lines.append(f'  "sources.{name}" [label="{name}\\n{source.type}", shape=folder];')
    for path, node in graph.config.nodes.items():
        lines.append(f'  "{path}" [label="{node.name}\\n{node.type}", shape={_DOT_SHAPES[node.kind]}];')
    lines += [f'  "sources.{name}" -> "{path}" [label="log"];' for name, path in physical_edges(graph)]
    for edge in graph.edges:
        style = "bold" if edge.shape is Shape.TABLES else "solid"
        lines.append(f'  "{edge.source}" -> "{edge.target}" [label="{edge_label(graph, edge)}", style={style}];')
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
    lines += [f"  {source_ids[name]} -->|log| {ids[path]}" for name, path in physical_edges(graph)]
    for edge in graph.edges:
        arrow = "==>" if edge.shape is Shape.TABLES else "-->"
        lines.append(f'  {ids[edge.source]} {arrow}|"{edge_label(graph, edge)}"| {ids[edge.target]}')
    return "\n".join(lines) + "\n"
