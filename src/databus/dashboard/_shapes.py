"""The fields of answers of pipelines and relays that the dashboard relies on, checked where an answer comes in.

A part that answers anything else, such as one of another version, is shown as one that does not answer. Otherwise its
answer would break the status of all parts, and their alerts.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from databus.core import ServiceUnavailable

_Texts = dict[str, str]
_Counts = dict[str, float]


class _Shape(BaseModel):
    """Further fields may have any value: they are shown, and nothing is computed from them."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


class _FlowShape(_Shape):
    rows: float | None = None
    bytes: float | None = None
    dropped: _Counts = Field(default_factory=dict)
    ms: _Counts = Field(default_factory=dict)


class _VisibleShape(_Shape):
    buckets: _Counts = Field(default_factory=dict)
    sum_s: float | None = None
    count: float | None = None


class _OutputShape(_Shape):
    state: str
    error: str | None = None
    message: str | None = None
    rows: float | None = None
    batches: float | None = None
    retries: float | None = None
    journal_breaks: float | None = None
    refused: _Texts | None = None
    tables: list[str] | None = None
    tables_more: int | None = None
    flow: _FlowShape | None = None
    visible: _VisibleShape | None = None


class _SourceShape(_Shape):
    project: str | None = None
    state: str | None = None
    error: str | None = None
    message: str | None = None
    rows: float | None = None
    bytes: float | None = None
    lagMs: float | None = None  # noqa: N815 - as relays say it
    lagBytes: float | None = None  # noqa: N815
    retentionLeftMs: float | None = None  # noqa: N815
    diskFree: float | None = None  # noqa: N815


class _StatusShape(_Shape):
    project: str | None = None
    state: str | None = None
    relay: str | None = None
    relay_error: str | None = None
    failure: str | None = None
    disk_free: float | None = None
    outputs: dict[str, _OutputShape] = Field(default_factory=dict)
    sources: dict[str, _SourceShape] = Field(default_factory=dict)


class _NodeShape(_Shape):
    id: str
    kind: str
    name: str
    type: str


class _EdgeShape(_Shape):
    start: str = Field(alias="from")
    to: str


class _GraphShape(_Shape):
    nodes: list[_NodeShape] = Field(default_factory=list)
    edges: list[_EdgeShape] = Field(default_factory=list)


class _BacklogShape(_Shape):
    physical: str
    rows: int | None
    is_least: bool
    lag_s: float | None
    held: bool | None


class _MeasuredOutputShape(_Shape):
    backlog: list[_BacklogShape] = Field(default_factory=list)
    dead_letters: int | None = None


class _MeasuredShape(_Shape):
    outputs: dict[str, _MeasuredOutputShape] = Field(default_factory=dict)


_SHAPES: Final[Mapping[str, type[_Shape]]] = {
    "status": _StatusShape,
    "graph": _GraphShape,
    "backlog": _MeasuredShape,
}


def checked(verb: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer itself. Raises `ServiceUnavailable` if it has not the shape of one.

    >>> checked("status", {"outputs": {"copy": {"state": "running", "more": 1}}})
    {'outputs': {'copy': {'state': 'running', 'more': 1}}}
    """
    try:
        _SHAPES[verb].model_validate(answer)
    except ValidationError as error:
        where = ".".join(str(step)[:100] for step in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise ServiceUnavailable(f"what it answers is not what this version knows: {verb}: {where}") from None
    return answer
