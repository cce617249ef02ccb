"""Up to where outputs have come, as their targets say: asked without taking them, while their pipeline runs or not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from databus.core import DatabusError
from databus.disk import Location
from databus.filters import TableChoice, names_for_relay
from databus.pipeline.engine._handle import ledger_path
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.graph import Kind, PipelineConfig
from databus.pipeline.telling import OutputState
from databus.places import Choice, Position, patterns_in


@dataclass(frozen=True)
class OutputPositions:
    """What the ledger of an output says."""

    output: str
    ledger: Location
    """The file."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By physical source."""
    error: DatabusError | None = None
    """Why it says nothing."""


def positions_of(config: PipelineConfig) -> Iterator[OutputPositions]:
    """Of each output of a pipeline's file, by its ledger."""
    for node in config.nodes.values():
        if node.kind is Kind.OUTPUT:
            output = node.plugin(node.config, config.context_of(node.name))
            path = ledger_path(output, config.state)
            try:
                yield OutputPositions(node.name, path, Ledger.load(path, config.name, node.name).positions)
            except DatabusError as error:
                yield OutputPositions(node.name, path, error=error)


def with_positions(config: PipelineConfig, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a run said of its outputs, with the `positions` of their queries by physical source.

    Of a physical source that the target knows and no query of the run reads, a line of its own is added. An output
    whose target does not say how far it has come has failed, whatever the run said.
    """
    shown = dict(outputs)
    for each in positions_of(config):
        output = shown.get(each.output) or _unknown()
        left = set(each.positions)
        queries: dict[str, Any] = {}
        for name, query in output["queries"].items():
            mine = {physical: at for physical, position in each.positions.items() if (at := position.at) is not None}
            _, is_over_tables, of = name.rpartition("@")
            places = {physical: at.to_json() for physical, at in mine.items() if not is_over_tables or physical == of}
            left -= {*places}
            queries[name] = {**query, "positions": places}
        for physical in sorted(left):
            position = each.positions[physical]
            place = position.least(_ALL)
            if place is not None:
                state = {"state": OutputState.ENDED, "since_us": 0, "error": "", "message": ""}
                stands = {"positions": {physical: place.to_json()}, "tables": _tables(physical, position)}
                queries[f"outputs/{each.output}/{physical}"] = {**stands, **state}
        shown[each.output] = {**output, "queries": queries}
        if each.error is not None and output["state"] != OutputState.FAILED:
            failed = {"state": OutputState.FAILED, "error": type(each.error).__name__, "message": str(each.error)}
            shown[each.output] |= failed
    return shown


_ALL: Choice = ((TableChoice(("*",)),),)


def _unknown() -> dict[str, Any]:
    """An output of which no run has said anything."""
    counts = dict.fromkeys(("rows", "batches", "retries", "last_batch_us"), 0)
    return {"state": OutputState.ENDED, "error": "", "message": "", **counts, "queries": {}}


def _tables(physical: str, position: Position) -> list[str]:
    """What to ask a relay for; none for all."""
    if position.at is None:
        return sorted(position.places)
    patterns = patterns_in(position.tables)
    return [] if f"{physical}/*" in patterns else names_for_relay(patterns, physical)
