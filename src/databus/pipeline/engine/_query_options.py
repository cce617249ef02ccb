"""What outputs say of the query that writes to them; those of a lane share one, and say the same."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from databus.pipeline.graph import Kind, NodeSpec, PipelineConfig, Problem
from databus.plugins import Input, OutputConfig

_LIMITS: Final = ("max_rows_per_trigger", "max_bytes_per_trigger")
_OF_QUERY: Final = ("trigger_ms", *_LIMITS, "on_failure")

InputT = TypeVar("InputT", bound=Input)


def trigger_ms_of(outputs: Iterable[OutputConfig], default: int) -> int:
    """Least time between the starts of two micro-batches."""
    found: int | None = _said(outputs, "trigger_ms")
    return default if found is None else found


def on_failure_of(outputs: Iterable[OutputConfig]) -> Literal["stop", "retry", "halt"]:
    """What follows an error that does not pass by itself."""
    found: Literal["stop", "retry", "halt"] | None = _said(outputs, "on_failure")
    return found or "stop"


def limited(origin: InputT, outputs: Sequence[OutputConfig]) -> InputT:
    """The input with the limits that these outputs ask for; itself where they ask for none that it has."""
    said = {name: _said(outputs, name) for name in _LIMITS if name in type(origin.config).model_fields}
    asked = {name: value for name, value in said.items() if value is not None}
    return type(origin)(origin.config.model_copy(update=asked)) if asked else origin


def check_options(config: PipelineConfig, inputs_of: Mapping[str, Sequence[NodeSpec]]) -> Iterator[Problem]:
    """Outputs of a lane that say different things, and limits that an input does not know. inputs_of: by output."""
    outputs = [node for node in config.nodes.values() if node.kind is Kind.OUTPUT]
    for node in outputs:
        for other in outputs[: outputs.index(node)]:
            if node.config.lane is None or node.config.lane != other.config.lane:
                continue
            for name in _OF_QUERY:
                values = _said([other.config], name), _said([node.config], name)
                if None not in values and values[0] != values[1]:
                    yield Problem(
                        f"{node.path}.{name}",
                        f"{values[1]}, and {other.path} says {values[0]}; outputs of one lane share a query: say the "
                        "same, or take one out of the lane",
                    )
        for origin in inputs_of.get(node.path, []):
            for name in _LIMITS:
                if _said([node.config], name) is not None and name not in type(origin.config).model_fields:
                    yield Problem(
                        f"{node.path}.{name}", f"{origin.path} ({origin.type}) has no such limit; leave it out"
                    )


def _said(outputs: Iterable[OutputConfig], name: str) -> Any:
    return next((getattr(each, name) for each in outputs if name in each.model_fields_set), None)
