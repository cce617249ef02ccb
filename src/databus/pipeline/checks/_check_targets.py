"""What is wrong with targets on this machine's disks: folders that cannot be written, rows that were made otherwise."""

import os
from collections.abc import Iterator
from pathlib import Path

from databus.core import DatabusError
from databus.disk import LocalLocation
from databus.pipeline.engine import Ledger, ledger_path, plan_queries, way_of, why_stopped
from databus.pipeline.graph import Graph, Kind, NodeSpec, Problem
from databus.plugins import KeepsLedger, Output


def check_targets(graph: Graph) -> Iterator[Problem]:
    """Of a graph without problems. Nothing is written."""
    config = graph.config
    yield from _check_folder("state", config.state)
    if config.embeds_relay:
        yield from _check_folder("relay.folder", config.relay_folder)
    for node in config.nodes.values():
        if node.kind is not Kind.OUTPUT:
            continue
        output = node.plugin(node.config, config.context_of(node.name))
        folder = output.ledger_folder() if isinstance(output, KeepsLedger) else None
        wrong = [*_check_folder(f"{node.path}.path", folder)] if isinstance(folder, LocalLocation | Path) else []
        yield from wrong or _check_ways(graph, node, output)


def _check_folder(where: str, folder: LocalLocation | Path) -> Iterator[Problem]:
    """A folder that cannot be made, or not be written to."""
    path = Path(folder)
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir():
        yield Problem(where, f"{there} is a file, not a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        yield Problem(where, f"{there}: this user may not write there")


def _check_ways(graph: Graph, node: NodeSpec, output: Output) -> Iterator[Problem]:
    """A ledger that cannot be read, or that says that rows were made in another way."""
    config = graph.config
    path = ledger_path(output, config.state)
    if not isinstance(path, LocalLocation):
        return
    try:
        ledger = Ledger.load(path, config.name, node.name)
    except DatabusError as error:
        yield Problem(node.path, str(error))
        return
    changed: set[str] = set()
    for plan in plan_queries(graph, [*config.sources]):
        feed = plan.feed_of(node.path)
        if feed is not None:
            way = way_of(graph, feed, output)
            changed |= {name for name in ledger.written(feed.choice) if ledger.way_of(name) not in ("", way(name))}
    if changed and node.config.on_change == "stop":
        yield Problem(node.path, why_stopped(node.name, [*changed]))
