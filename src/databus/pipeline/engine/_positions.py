"""The places of outputs, read from their ledgers without taking them, whether their pipeline runs or not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from databus.core import DatabusError
from databus.disk import Location
from databus.filters import TableChoice, names_for_relay
from databus.operate import hide_in_text
from databus.pipeline.engine._handle import ledger_path
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.graph import PipelineConfig
from databus.pipeline.telling import OutputState
from databus.places import ASKED, GAP, Choice, Position, chosen_by, patterns_in


@dataclass(frozen=True)
class OutputPositions:
    """The positions in the ledger of an output."""

    output: str
    ledger: Location
    """Its file."""
    positions: Mapping[str, Position] = field(default_factory=dict)
    """By physical source."""
    error: DatabusError | None = None
    """Why it cannot be read."""


def positions_of(config: PipelineConfig) -> Iterator[OutputPositions]:
    """The positions of each output of a pipeline's file."""
    for name in config.outputs:
        path = ledger_path(config.output_of(name), config.state)
        try:
            yield OutputPositions(name, path, Ledger.load(path, config.name, name).positions)
        except DatabusError as error:
            yield OutputPositions(name, path, error=error)


def with_positions(config: PipelineConfig, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs of a run's status, with the `positions` of their queries by physical source; and with the tables that
    are `behind` these, by full names, such as those that cannot be written at the moment, with where they stand.

    A physical source that the ledger knows and no query of the run reads gets an entry of its own. An output whose
    ledger cannot be read counts as failed.
    """
    shown = dict(outputs)
    for known in positions_of(config):
        output = shown.get(known.output) or _unknown()
        unread = set(known.positions)
        queries: dict[str, Any] = {}
        for name, query in output["queries"].items():
            places_at = {
                physical: at for physical, position in known.positions.items() if (at := position.at) is not None
            }
            _, is_over_tables, of = name.rpartition("@")
            places = {
                physical: at.to_json() for physical, at in places_at.items() if not is_over_tables or physical == of
            }
            unread -= {*places}
            behind = {physical: _behind(known.positions[physical]) for physical in places}
            queries[name] = {**query, "positions": places, "behind": behind}
        for physical in sorted(unread):
            position = known.positions[physical]
            place = position.least(_ALL)
            if place is not None:
                state = {"state": OutputState.ENDED, "since_us": 0, "error": "", "message": ""}
                stands = {"positions": {physical: place.to_json()}, "behind": {}, "tables": _tables(physical, position)}
                queries[f"outputs/{known.output}/{physical}"] = {**stands, **state}
        shown[known.output] = {**output, "queries": queries}
        if known.error is not None and output["state"] != OutputState.FAILED:
            failed = {
                "state": OutputState.FAILED,
                "error": type(known.error).__name__,
                "message": hide_in_text(str(known.error)),
            }
            shown[known.output] |= failed
    return shown


_ALL: Choice = ((TableChoice(("*",)),),)
_BEHIND_MAX: Final = 20
"""Of so many tables the backlog is asked for: those that are furthest behind."""


def _behind(position: Position) -> dict[str, Any]:
    """Where chosen tables stand that are behind the others. Those that wait for a snapshot to begin lack none yet."""
    if position.at is None:
        return {}
    behind = {
        name: place
        for name, place in position.behind(position.at.pair).items()
        if chosen_by(position.tables, name) and position.seeds.get(name) not in (ASKED, GAP)
    }
    furthest = sorted(behind, key=lambda name: (behind[name].pair, name))[:_BEHIND_MAX]
    return {name: behind[name].to_json() for name in furthest}


def _unknown() -> dict[str, Any]:
    """An output that is in no status."""
    counts = dict.fromkeys(("rows", "batches", "retries", "last_batch_us"), 0)
    return {"state": OutputState.ENDED, "error": "", "message": "", **counts, "queries": {}}


def _tables(physical: str, position: Position) -> list[str]:
    """The tables to ask a relay for; none for all."""
    if position.at is None:
        return sorted(position.places)
    patterns = patterns_in(position.tables)
    return [] if f"{physical}/*" in patterns else names_for_relay(patterns, physical)
