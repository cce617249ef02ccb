"""Where a group begins: its words, times and checkpoints as one place in every physical source that it follows.

The coordinator decides it once, when the group is made, and it is durable before anybody is told.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from databus.core import Checkpoint, MalformedRequest, SourceCheckpoint, is_pattern, split_physical
from databus.filters import FrameFilter, StreamFilter
from databus.log import Log
from databus.relay._catalog import Catalog, Selection
from databus.relay._filters import check_filter
from databus.relay._params import Start, StartName, time_of
from databus.relay._stream import open_cursor


def said_start(value: Any) -> Start:
    """What a call or an operator says: a word, `{"time"}`, `{"scn"}`, a checkpoint. Raises `MalformedRequest`."""
    if isinstance(value, dict):
        if "v" in value or "sources" in value:
            return Checkpoint.from_json(value, "start")
        if set(value) == {"time"}:
            return time_of("start.time", str(value["time"]))
        if "scn" in value:
            return SourceCheckpoint.from_json(value, "start")
    if value in list(StartName):
        return StartName(value)
    raise MalformedRequest(
        f'start: {str(value)[:100]!r} is none of {", ".join(StartName)}, {{"time": ...}}, {{"scn": ...}}, a checkpoint'
    )


def said_place(text: str) -> Any:
    """What an operator types behind `--to`, as a call would say it."""
    if text in list(StartName):
        return text
    return {"scn": text} if text.isascii() and text.isdigit() else {"time": text}


def _named(catalog: Catalog, sources: Sequence[str] | None) -> dict[str, list[str]]:
    """The physical sources that a group follows, with its names there; also those that this relay does not capture.

    Raises `UnknownSource`, `MalformedRequest` where it is not clear which one a name means.
    """
    found: dict[str, list[str]] = {}
    for name in sources or ():
        owner, _ = split_physical(name)
        fitting = [each for each in catalog.captures if owner and fnmatchcase(each, owner)]
        if owner and not fitting and not is_pattern(owner):
            fitting = [owner]
        for physical in fitting or [catalog.choose(None, [name]).physical]:
            found.setdefault(physical, []).append(name)
    return found or {catalog.choose(None, None).physical: []}


def find_start(
    catalog: Catalog, sources: Sequence[str] | None, value: Any, filters: Mapping[str, Any] | None = None
) -> Checkpoint:
    """The place; reads the disk. Raises what a stream from there would, behind these filters."""
    start = said_start(value)
    named = _named(catalog, sources)
    for physical, names in named.items():
        if physical in catalog.captures:
            Selection(physical, names, catalog.grant).check(catalog.log_of(catalog.captures[physical]).schemas)
    if isinstance(start, SourceCheckpoint) and len(named) > 1:
        raise MalformedRequest(f"start.scn: the group follows {', '.join(named)}; an SCN is of one physical source")
    return Checkpoint({physical: _place(catalog, physical, names, start, filters) for physical, names in named.items()})


def _place(
    catalog: Catalog, physical: str, names: Sequence[str], start: Start, filters: Mapping[str, Any] | None
) -> SourceCheckpoint:
    given = start.sources.get(physical) if isinstance(start, Checkpoint) else None
    if isinstance(start, Checkpoint) and given is None:
        raise MalformedRequest(
            f"start: the checkpoint does not say where to begin in {physical}; it holds {', '.join(start.sources)}"
        )
    if physical not in catalog.captures:
        if given is not None:
            return given
        raise MalformedRequest(
            f"start: the coordinator does not capture {physical}, so it cannot find a place there; ask the relay that "
            "does (/position) and give `start` as a checkpoint"
        )
    log = catalog.log_of(catalog.physical(physical))
    cursor = open_cursor(log, start)
    if filters:
        _check_filters(Selection(physical, names or None, catalog.grant), log, filters, is_at_end=cursor.is_at_end)
    return cursor.position if given is None else given


def _check_filters(selection: Selection, log: Log, filters: Mapping[str, Any], *, is_at_end: bool) -> None:
    """A name whose filters no stream would take must not come to be: the next try, with others, would differ."""
    wanted = StreamFilter.parse(*(filters.get(each) for each in ("where", "columns", "filters")))
    frames = FrameFilter(wanted.within(log.physical).behind(selection.grant.filter), log.physical, log.schemas)
    check_filter(frames, selection.tables(log.schemas), selection.grant.visible(log.schemas), is_at_end=is_at_end)
