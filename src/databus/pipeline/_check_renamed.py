"""Outputs that look like one which the file no longer has: under another name, an output begins from the beginning.

Where the target keeps the ledger, it refuses another output's rows, or knows them; see `ledger_path` for the others.
"""

from collections.abc import Iterator, Sequence

from databus.core import DatabusError
from databus.disk import located
from databus.pipeline._config import PipelineConfig, Problem
from databus.pipeline._graph import Graph
from databus.pipeline._handle import LEDGERS, options_hash
from databus.pipeline._ledger import Ledger
from databus.pipeline._output_contract import Output
from databus.pipeline._registry import Kind


def check_renamed(graph: Graph) -> Iterator[Problem]:
    """A warning for each. Of a graph without problems; nothing is written."""
    config = graph.config
    nodes = [node for node in config.nodes.values() if node.kind is Kind.OUTPUT]
    gone = _ledgers(config, {node.name for node in nodes})
    for node in nodes if gone else ():
        output = node.plugin(node.config, config.context_of(node.name))
        keeps_ledger = isinstance(output, Output) and output.ledger_folder() is not None
        alike = [each for each in gone if each.made_of == options_hash(output)]
        if alike and not keeps_ledger and not _ledger(config, node.name).streams:
            yield Problem(node.path, _told(alike), is_warning=True)


def _ledgers(config: PipelineConfig, names: set[str]) -> list[Ledger]:
    """Those of outputs that have begun, and that are not among these."""
    found = sorted((config.state / LEDGERS).glob("*.json"))
    ledgers = [_ledger(config, each.stem) for each in found if each.stem not in names]
    return [each for each in ledgers if each.streams]


def _ledger(config: PipelineConfig, output: str) -> Ledger:
    """An empty one where it cannot be read, which is told elsewhere."""
    path = located(config.state) / LEDGERS / f"{output}.json"
    try:
        return Ledger.load(path, config.name, output)
    except DatabusError:
        return Ledger(path, config.name, output)


def _told(gone: Sequence[Ledger]) -> str:
    names = " and ".join(each.output for each in gone)
    told = (
        f"is new, and has the options of {names}, which this file no longer has. If it is the same output under "
        f"another name: it begins as at a first start, and what {names} has written is written again. To go on where "
        f"{names} stands, give it that name back"
    )
    start = _start(gone)
    return told if start is None else f"{told}; or have its input say `starting_version: {start}`, where that stands"


def _start(gone: Sequence[Ledger]) -> int | None:
    """The SCN from which on nothing is left out; None where no one number says it."""
    streams = [stream for ledger in gone for stream in ledger.streams.values()]
    places = [(physical, at.scn) for stream in streams for physical, at in stream.checkpoint.sources.items()]
    if any(each.incomplete for each in streams) or len({physical for physical, _ in places}) != 1:
        return None
    return min(scn for _, scn in places)
