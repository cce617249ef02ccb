"""Up to where outputs have come, as their targets say: asked without taking them, while their pipeline runs or not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from databus.core import DatabusError
from databus.disk import Location
from databus.pipeline._config import PipelineConfig
from databus.pipeline._handle import ledger_path
from databus.pipeline._ledger import Ledger
from databus.pipeline._progress import OutputState
from databus.pipeline._registry import Kind
from databus.pipeline._streams import Stream
from databus.tasks import names_for_relay, patterns_of


@dataclass(frozen=True)
class OutputPositions:
    """ledger: the file that says them. streams: by name of the query. error: why it says nothing."""

    output: str
    ledger: Location
    streams: Mapping[str, Stream] = field(default_factory=dict)
    error: DatabusError | None = None


def positions_of(config: PipelineConfig) -> Iterator[OutputPositions]:
    """Of each output of a pipeline's file, by its ledger."""
    for node in config.nodes.values():
        if node.kind is Kind.OUTPUT:
            output = node.plugin(node.config, config.context_of(node.name))
            path = ledger_path(output, config.state)
            try:
                yield OutputPositions(node.name, path, Ledger.load(path, config.name, node.name).streams)
            except DatabusError as error:
                yield OutputPositions(node.name, path, error=error)


def with_positions(config: PipelineConfig, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a run said of its outputs, with the `positions` of their queries by physical source.

    A query that the target knows and the run does not, because it has not begun or is no longer in the file, is added.
    An output whose target does not say how far it has come has failed, whatever the run said.
    """
    found = dict(outputs)
    for each in positions_of(config):
        said = found.get(each.output) or _unknown()
        queries = {name: {**query, "positions": {}} for name, query in said["queries"].items()}
        for name, stream in each.streams.items():
            query = queries.get(name) or {"state": OutputState.ENDED, "since_us": 0, "error": "", "message": ""}
            positions = {physical: at.to_json() for physical, at in stream.checkpoint.sources.items()}
            queries[name] = {"tables": _tables(stream), **query, "positions": positions}
        found[each.output] = {**said, "queries": queries}
        if each.error is not None and said["state"] != OutputState.FAILED:
            told = {"state": OutputState.FAILED, "error": type(each.error).__name__, "message": str(each.error)}
            found[each.output] |= told
    return found


def _unknown() -> dict[str, Any]:
    """An output of which no run has said anything."""
    counts = dict.fromkeys(("rows", "batches", "retries", "last_batch_us"), 0)
    return {"state": OutputState.ENDED, "error": "", "message": "", **counts, "queries": {}}


def _tables(stream: Stream) -> list[str]:
    """What to ask a relay for; none for all."""
    if not stream.selections:
        return [stream.of]
    patterns = [pattern for selection in stream.selections for pattern in patterns_of(selection)]
    physical = stream.of.removesuffix("/*")
    return [] if stream.of in patterns else names_for_relay(patterns, physical)
