"""A graph with a counter at each edge instead of its outputs: how many rows would pass, and how fast.

Only a state folder of its own is written; targets are not opened. Start with `dry`.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from databus.core import InputError
from databus.filters import patterns_meet
from databus.pipeline.graph import Edge, Graph, NodeKind, NodeSpec, holder_of, plugin_class

_COUNTER: Final = "mock"


def dry(graph: Graph, state: Path) -> Graph:
    """The same inputs and filters, and a counter for each edge. state: a folder for this run only.

    Inputs begin at the relay's oldest change, unless they say where. Raises `InputError` while the pipeline runs with
    its own relay, whose logs have one owner.
    """
    config = graph.config
    holder = holder_of(config.state) if config.embeds_relay else None
    if holder is not None:
        raise InputError(
            f"the pipeline {config.name} runs as {holder}, and its relay's logs have one owner: `databus status` shows "
            "what it does. Stop it, or have a dry run read a relay that runs by itself (`relay: {url: ...}`)"
        )
    nodes = {path: _begun(node) for path, node in config.nodes.items() if node.kind is not NodeKind.OUTPUT}
    counters = {edge_name(edge): _counter(graph, edge) for edge in graph.edges}
    nodes |= {node.path: node for node in counters.values()}
    sections = config.sections.model_copy(update={"outputs": {name: {"type": _COUNTER} for name in counters}})
    dry_graph, _ = Graph.of(replace(config, state=state, sections=sections, nodes=nodes))
    return dry_graph


def edge_name(edge: Edge) -> str:
    """The name of an edge's counter: where it begins and ends."""
    start = edge.source.partition(".")[2] + (f".{edge.branch}" if edge.branch else "")
    return f"{start}→{edge.target.partition('.')[2]}"


def _counter(graph: Graph, edge: Edge) -> NodeSpec:
    plugin = plugin_class(NodeKind.OUTPUT, _COUNTER)
    start = edge_name(edge).partition("→")[0]
    lane = getattr(graph.config.nodes[edge.target].config, "lane", None)  # counters share queries as outputs do
    options = {"type": _COUNTER, "from": [start], "lane": lane, "check": "none"}
    return NodeSpec(NodeKind.OUTPUT, edge_name(edge), _COUNTER, plugin, plugin.config_model.model_validate(options))


def _begun(node: NodeSpec) -> NodeSpec:
    """Begin at the oldest change unless the input says where: the default may ask for snapshots, a dry run must not."""
    if node.kind is not NodeKind.INPUT or "starting_version" not in type(node.config).model_fields:
        return node
    if node.config.starting_version is not None or node.config.starting_timestamp is not None:
        return node
    return replace(node, config=node.config.model_copy(update={"starting_version": "earliest"}))


@dataclass
class _EdgeCount:
    rows: int = 0
    batches: int = 0
    first_us: float = 0.0
    last_us: float = 0.0


class EdgeRates:
    """Counts, from events, the rows of each edge. graph: of the file, not the dry one."""

    def __init__(self, graph: Graph) -> None:
        self._tables = {edge_name(edge): edge.table for edge in graph.edges}
        self._counted = {name: _EdgeCount() for name in self._tables}
        self._lock = threading.Lock()

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event."""
        if event["event"] != "batch" or event["output"] not in self._counted:
            return
        with self._lock:
            counted = self._counted[event["output"]]
            rows = self._rows(event)
            counted.first_us = counted.first_us or event["at_us"] - event["batch_ms"] * 1e3
            counted.rows, counted.batches, counted.last_us = counted.rows + rows, counted.batches + 1, event["at_us"]

    def _rows(self, event: Mapping[str, Any]) -> int:
        """Only the edge's own table counts, if it carries a single one."""
        table = self._tables[event["output"]]
        if table is None or "tables" not in event:
            return int(event["rows"] or 0)
        counts: Mapping[str, int] = event["tables"]
        return sum(rows for name, rows in counts.items() if patterns_meet(table, f"{event['physical']}/{name}"))

    def to_json(self) -> list[dict[str, Any]]:
        """Each edge: from, to, rows, batches, rows_per_s (None without rows)."""
        with self._lock:
            return [_edge_json(name, counted) for name, counted in self._counted.items()]


def _edge_json(name: str, counted: _EdgeCount) -> dict[str, Any]:
    start, _, end = name.partition("→")
    seconds = (counted.last_us - counted.first_us) / 1e6
    rate = round(counted.rows / seconds) if counted.rows and seconds > 0 else None
    return {"from": start, "to": end, "rows": counted.rows, "batches": counted.batches, "rows_per_s": rate}
