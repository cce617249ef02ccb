"""Outputs that look like one which the file no longer has, and pipelines that look like one which no file
describes any more: under another name, both begin from the beginning, unless `databus rename` was run.

Where the target keeps the ledger, it refuses another output's rows, or knows them; see `ledger_path` for the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from databus.core import DatabusError
from databus.disk import LocalLocation, located
from databus.pipeline.engine import LEDGERS, Ledger, ledger_path, options_hash
from databus.pipeline.graph import Graph, Kind, PipelineConfig, Problem, is_held, pipelines_in, state_folder
from databus.plugins import KeepsLedger, Output


def check_renamed(graph: Graph) -> Iterator[Problem]:
    """A warning for each; and an error for what is being renamed. Of a graph without problems; nothing is written."""
    config = graph.config
    made = dict(_outputs(config))
    yield from _half_renamed(config, made)
    outputs = {name: output for name, output in made.items() if not isinstance(output, KeepsLedger)}
    mine = _ledgers(config.state, config.name)
    if not mine:
        yield from _pipelines_alike(config, {name: options_hash(output) for name, output in outputs.items()})
    has_begun = {each.output for each in mine}
    gone = [each for each in mine if each.output not in config.sections.outputs]
    for name, output in outputs.items():
        alike = [each for each in gone if each.made_of == options_hash(output)]
        if alike and name not in has_begun:
            yield Problem(f"{Kind.OUTPUT}.{name}", _told(name, alike), is_warning=True)


def _outputs(config: PipelineConfig) -> Iterator[tuple[str, Output]]:
    """All of them, by name."""
    for node in config.nodes.values():
        if node.kind is Kind.OUTPUT:
            yield node.name, node.plugin(node.config, config.context_of(node.name))


def _half_renamed(config: PipelineConfig, outputs: Mapping[str, Output]) -> Iterator[Problem]:
    """Those on this machine; a ledger in a store is looked at by who takes it."""
    for name, output in outputs.items():
        path = ledger_path(output, config.state)
        if isinstance(path, LocalLocation):
            with suppress(DatabusError):  # what cannot be read is told elsewhere
                ledger = Ledger.load(path, config.name, name)
                if ledger.renaming is not None:
                    yield Problem(f"{Kind.OUTPUT}.{name}", ledger.half_renamed)


def _pipelines_alike(config: PipelineConfig, made_of: Mapping[str, str]) -> Iterator[Problem]:
    """Of the same folder. made_of: hashes of options, by outputs."""
    if config.state != state_folder(config.folder, config.name):
        return  # whose it is stands in it
    for state in sorted(config.state.parent.glob("*")):
        ledgers = _ledgers(state, state.name)
        alike = sorted(each.output for each in ledgers if made_of.get(each.output) == each.made_of)
        if alike and not is_held(state) and state.name not in pipelines_in(config.folder):
            names = " and ".join(f"outputs.{each}" for each in alike)
            yield Problem(
                "name",
                f"pipeline {config.name} is new, and has the same {names} as {state.name}, which no file here "
                f"describes any more (its state is {state}). If it is that one under another name: it begins as at a "
                f"first start, and what {state.name} has written is written again. To go on where that stands: "
                f"`databus rename FILE pipeline {state.name} {config.name}` (FILE is this one), or `name: "
                f"{state.name}`",
                is_warning=True,
            )


def _ledgers(state: Path, pipeline: str) -> list[Ledger]:
    """Those of outputs that have begun; without those that cannot be read, which is told elsewhere."""
    found = []
    for path in sorted((state / LEDGERS).glob("*.json")):
        with suppress(DatabusError):
            found.append(Ledger.load(located(path), pipeline, path.stem))
    return [each for each in found if each.positions]


def _told(name: str, gone: Sequence[Ledger]) -> str:
    names = " and ".join(each.output for each in gone)
    told = (
        f"is new, and has the options of {names}, which this file no longer has. If it is the same output under "
        f"another name: it begins as at a first start, and what {names} has written is written again. To go on where "
        f"{names} stands: `databus rename FILE output {gone[0].output} {name}` (FILE is the pipeline's file), or give "
        f"it that name back"
    )
    start = _start(gone)
    return told if start is None else f"{told}; or have its input say `starting_version: {start}`, where that stands"


def _start(gone: Sequence[Ledger]) -> int | None:
    """The SCN from which on nothing is left out; None where no one number says it."""
    positions = [(physical, each) for ledger in gone for physical, each in ledger.positions.items()]
    places = [place.scn for _, each in positions for place in (each.at, *each.places.values()) if place is not None]
    is_one = len({physical for physical, _ in positions}) == 1
    return min(places) if is_one and places and not any(each.seeds for _, each in positions) else None
