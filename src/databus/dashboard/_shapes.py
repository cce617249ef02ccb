"""The fields of answers of pipelines and relays that the dashboard relies on, checked where an answer comes in.

A part that answers anything else, such as one of another version, is shown as one that does not answer. Otherwise its
answer would break the status of all parts, and their alerts; or the page that shows it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from databus.core import DatabusError, ServiceUnavailable

_Texts = dict[str, str]
_Counts = dict[str, float]
_Pair = Sequence[int]


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


class _BacklogOfSource(_Shape):
    physical: str
    lag_s: float | None
    rows: float | None
    held: bool | None
    is_least: bool


class _BacklogOfOutput(_Shape):
    backlog: Sequence[_BacklogOfSource] = ()
    dead_letters: float | None = None


class _BacklogShape(_Shape):
    outputs: Mapping[str, _BacklogOfOutput] = Field(default_factory=dict)


class _EventShape(_Shape):
    event: str | None = None
    at_us: float | None = None
    output: str | None = None
    outputs: Sequence[str] | None = None
    source: str | None = None
    message: str | None = None
    problem: str | None = None
    kind: str | None = None
    ddl: str | None = None
    reason: str | None = None
    rows: float | None = None
    batches: float | None = None
    tables: Mapping[str, float] | None = None


class _JournalShape(_Shape):
    events: Sequence[_EventShape] = ()


class _EntryShape(_Shape):
    at: str
    action: str
    who: Mapping[str, Any]
    asked: Mapping[str, Any]
    result: str


class _AuditShape(_Shape):
    entries: Sequence[_EntryShape] = ()


class _LetterCountShape(_Shape):
    output: str
    table: str
    count: float


class _LetterShape(_Shape):
    table: str
    pair: _Pair
    at_us: float | None
    reason: str
    row: str


class _LettersShape(_Shape):
    counts: Sequence[_LetterCountShape] = ()
    letters: Sequence[_LetterShape] = ()


class _DifferenceShape(_Shape):
    where: str


class _ConfigShape(_Shape):
    file: str = ""
    config: Mapping[str, Any] = Field(default_factory=dict)
    changes: Sequence[_DifferenceShape] = ()
    problem: str = ""
    hash: str = ""


class _FateShape(_Shape):
    verdict: str
    why: str
    at_us: float | None
    batch: Sequence[_Pair] | None


class _ChangeShape(_Shape):
    pair: _Pair
    kind: str
    commit_us: float | None
    outputs: Mapping[str, _FateShape]


class _TraceShape(_Shape):
    changes: Sequence[_ChangeShape]
    command: str


class _ChainShape(_Shape):
    output: str
    physical: str
    start: _Pair
    end: _Pair
    batches: float
    rows: float
    written: Mapping[str, float]
    log_rows: float | None
    why_unknown: str
    is_whole: bool
    breaks: Sequence[Sequence[Any]]


class _ChainsShape(_Shape):
    chains: Sequence[_ChainShape] = ()


class _ColumnShape(_Shape):
    name: str
    origins: str | Sequence[str] = Field(alias="from")


class _TableLineageShape(_Shape):
    output: str
    table: str
    target: Mapping[str, str]
    filters: Sequence[str]
    columns: str | Sequence[_ColumnShape]


class _LineageShape(_Shape):
    tables: Sequence[_TableLineageShape] = ()


_SHAPES: Final[Mapping[str, type[_Shape]]] = {
    "status": _StatusShape,
    "graph": _GraphShape,
    "backlog": _BacklogShape,
    "journal": _JournalShape,
    "audit": _AuditShape,
    "letters": _LettersShape,
    "config": _ConfigShape,
    "trace": _TraceShape,
    "batches": _ChainsShape,
    "lineage": _LineageShape,
}
"""By the verb that is asked."""


def checked(verb: str, answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer itself. Raises `ServiceUnavailable` if it has not the shape of one.

    >>> checked("status", {"outputs": {"copy": {"state": "running", "more": 1}}})
    {'outputs': {'copy': {'state': 'running', 'more': 1}}}
    """
    try:
        _SHAPES[verb].model_validate(answer)
    except ValidationError as error:
        where = ".".join(str(step)[:100] for step in error.errors(include_url=False, include_input=False)[0]["loc"])
        raise _unknown(f"{verb}: {where}") from None
    return answer


@contextmanager
def understood(verb: str) -> Iterator[None]:
    """For what takes an answer apart: raises `ServiceUnavailable` if that fails because it has another form."""
    try:
        yield
    except DatabusError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _unknown(f"{verb}: {type(error).__name__}: {error}") from error


def _unknown(what: str) -> ServiceUnavailable:
    return ServiceUnavailable(f"what it answers is not what this version knows: {what}")
