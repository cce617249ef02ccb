"""Outputs and pipelines that look renamed: they have the options of one that is gone from the files.

Under another name they begin as at a first start, unless `databus rename` is run. Not for targets that keep the ledger
(see `ledger_path`): these recognise another output's rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from databus.core import DatabusError
from databus.disk import LocalLocation, located
from databus.pipeline.engine import LEDGERS, Ledger, ledger_path, options_hash
from databus.pipeline.graph import Graph, NodeKind, PipelineConfig, Problem, is_held, pipelines_in, state_folder
from databus.plugins import KeepsLedger, Output


def check_renamed(graph: Graph) -> Iterator[Problem]:
    """A warning for each, and an error for a renaming that was broken off. graph: without problems."""
    config = graph.config
    all_outputs = {name: config.output_of(name) for name in config.outputs}
    yield from _half_renamed(config, all_outputs)
    outputs = {name: output for name, output in all_outputs.items() if not isinstance(output, KeepsLedger)}
    ledgers = _ledgers(config.state, config.name)
    if not ledgers:
        yield from _pipelines_alike(config, {name: options_hash(output) for name, output in outputs.items()})
    has_begun = {ledger.output for ledger in ledgers}
    gone = [ledger for ledger in ledgers if ledger.output not in config.sections.outputs]
    for name, output in outputs.items():
        alike = [ledger for ledger in gone if ledger.made_of == options_hash(output)]
        if alike and name not in has_begun:
            yield Problem(f"{NodeKind.OUTPUT}.{name}", _warning(name, alike), is_warning=True)


def _half_renamed(config: PipelineConfig, outputs: Mapping[str, Output]) -> Iterator[Problem]:
    """Renamings that were broken off, in ledgers on this machine; a ledger in a store is checked when it is taken."""
    for name, output in outputs.items():
        path = ledger_path(output, config.state)
        if isinstance(path, LocalLocation):
            with suppress(DatabusError):  # another check reports what cannot be read
                ledger = Ledger.load(path, config.name, name)
                if ledger.renaming is not None:
                    yield Problem(f"{NodeKind.OUTPUT}.{name}", ledger.half_renamed)


def _pipelines_alike(config: PipelineConfig, made_of: Mapping[str, str]) -> Iterator[Problem]:
    """Pipelines of the same folder that are gone. made_of: hashes of options, by output."""
    if config.state != state_folder(config.folder, config.name):
        return  # a state folder of the user's choice has no name in its path
    for state in sorted(config.state.parent.glob("*")):
        ledgers = _ledgers(state, state.name)
        alike = sorted(ledger.output for ledger in ledgers if made_of.get(ledger.output) == ledger.made_of)
        if alike and not is_held(state) and state.name not in pipelines_in(config.folder):
            names = " and ".join(f"outputs.{output}" for output in alike)
            yield Problem(
                "name",
                f"pipeline {config.name} is new, and has the same {names} as {state.name}, which no file here "
                f"describes now (its state is {state}). If it is that one under another name: it begins as at a first "
                f"start, and what {state.name} has written is written again. To continue at its places: "
                f"`databus rename FILE pipeline {state.name} {config.name}` (FILE is this one), or `name: "
                f"{state.name}`",
                is_warning=True,
            )


def _ledgers(state: Path, pipeline: str) -> list[Ledger]:
    """The readable ledgers of outputs that have begun."""
    ledgers = []
    for path in sorted((state / LEDGERS).glob("*.json")):
        with suppress(DatabusError):
            ledgers.append(Ledger.load(located(path), pipeline, path.stem))
    return [ledger for ledger in ledgers if ledger.positions]


def _warning(name: str, gone: Sequence[Ledger]) -> str:
    names = " and ".join(ledger.output for ledger in gone)
    message = (
        f"is new, and has the options of {names}, which this file no longer has. If it is the same output under "
        f"another name: it begins as at a first start, and what {names} has written is written again. To continue at "
        f"its places: `databus rename FILE output {gone[0].output} {name}` (FILE is the pipeline's file), or give "
        f"it that name back"
    )
    start = _start(gone)
    return message if start is None else f"{message}; or have its input say `starting_version: {start}`, its place"


def _start(gone: Sequence[Ledger]) -> int | None:
    """The SCN after which all changes are still missing; None if there is no single one."""
    positions = [(physical, position) for ledger in gone for physical, position in ledger.positions.items()]
    places = [
        place.scn
        for _, position in positions
        for place in (position.at, *position.places.values())
        if place is not None
    ]
    is_one = len({physical for physical, _ in positions}) == 1
    return min(places) if is_one and places and not any(position.seeds for _, position in positions) else None
