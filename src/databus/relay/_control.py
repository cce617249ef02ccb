"""What operators see and do: states, statistics, pausing, snapshots. Plain functions that return JSON."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from databus.core import (
    UNREAD_TABLES,
    MalformedRequest,
    RightMissing,
    StateDiffers,
    UnsupportedFeature,
    canonical_name,
    is_pattern,
    split_physical,
)
from databus.disk import free_ratio
from databus.log import Log
from databus.relay._capture import Capture
from databus.relay._capture_state import State, remedy_of
from databus.relay._catalog import Catalog, unknown
from databus.relay._grant import Grant
from databus.relay._stats import Stats

_STATE_WORDS: Final = {
    State.INITIALIZING: "initializing",
    State.RUNNING: "running",
    State.PAUSED: "paused",
    State.ERROR_RETRY: "retrying",
    State.SUSPENDED_ON_ERROR: "suspended",
    State.SHUTDOWN: "shutdown",
}
_ACT_S_MAX: Final = 2.0
"""How long an answer waits for the state that was asked for; a source that connects may take longer."""
_LOOK_S_MAX: Final = 1.0
_WORST_FIRST: Final = (
    State.SUSPENDED_ON_ERROR,
    State.ERROR_RETRY,
    State.INITIALIZING,
    State.SHUTDOWN,
    State.PAUSED,
    State.RUNNING,
)


def _capture_json(capture: Capture, catalog: Catalog) -> dict[str, Any]:
    """One physical source's state, without what names tables out of reach. Messages may, so a limited reader gets none,
    and no path of the relay's machine.
    """
    status, lag, counters = capture.status, capture.lag, capture.counters
    file, grant, of = catalog.file, catalog.grant, capture.physical
    return {
        "name": capture.physical,
        "status": _STATE_WORDS[status.state],
        "state": status.state.name,
        "error": status.error or None,
        "missingTables": list(capture.missing_tables.reasons(capture.log)) if grant.sees_messages else [],
        "message": status.message if grant.sees_messages else "",
        "remedy": remedy_of(status, capture.config),
        "file": str(file) if file is not None and grant.sees_messages else None,
        "pausePending": capture.is_pause_pending,
        "sinceMs": status.since_us // 1000,
        "SCN": None if capture.log is None else capture.log.head().published.scn,
        "peerable": None if capture.log is None else capture.log.identity.is_peerable,
        "choice": None if grant.is_limited else capture.config.choice,
        "lagMs": lag.behind_ms,
        "lagChanges": lag.changes,
        "lagBytes": lag.bytes,
        "retentionLeftMs": lag.retention_left_ms,
        "valuesOmitted": {table: n for table, n in lag.values_omitted.items() if grant.sees(of, table)},
        "statementsUnknown": lag.statements_unknown,
        "snapshots": [table for table in capture.reading if table == UNREAD_TABLES or grant.sees(of, table)],
        "snapshotProgress": [part for part in capture.progress if grant.sees(of, part["table"])],
        "snapshotRows": counters.snapshot_rows,
        "rows": counters.rows,
        "bytes": counters.bytes,
        "type": capture.config.type,
        "project": capture.config.project,
        "restarts": counters.restarts,
        "diskFree": None if capture.log is None else free_ratio(capture.log.folder),
    }


def admin_status(catalog: Catalog) -> dict[str, Any]:
    """The relay's state: the worst of its sources'."""
    captures = list(catalog.captures.values())
    states = {capture.physical: capture.status for capture in captures}
    is_in = [state for state in _WORST_FIRST if any(status.state is state for status in states.values())]
    worst = is_in[0] if is_in else State.RUNNING
    messages = [f"{name}: {status.message}" for name, status in states.items() if status.message]
    messages = messages if catalog.grant.sees_messages else []
    return {
        "status": worst.name,
        "code": worst.value,
        "message": "; ".join(messages),
        "sources": [_capture_json(capture, catalog) for capture in captures],
    }


def readiness(catalog: Catalog, sources: Sequence[str] | None) -> tuple[bool, list[str]]:
    """Whether these physical sources are captured, paused ones included; without names, whether any log can be served.

    With a line for each that says what it is doing.
    """
    captures = catalog.physicals(sources)
    lines = [" ".join(f"{capture.physical}: {catalog.describe(capture)}".split()) for capture in captures]
    if sources is None:
        return any(capture.log is not None for capture in captures), lines
    return all(capture.status.state in (State.RUNNING, State.PAUSED) for capture in captures), lines


def states(catalog: Catalog, sources: Sequence[str] | None, *, looks: bool = False) -> list[dict[str, Any]]:
    """The states of physical sources.

    looks: have their lag measured first; each then says by `lagIsNew` whether it was.
    """
    captures = catalog.physicals(sources)
    if not looks:
        return [_capture_json(capture, catalog) for capture in captures]
    deadline = time.monotonic() + _LOOK_S_MAX
    return [
        {"lagIsNew": capture.look(max(deadline - time.monotonic(), 0.0)), **_capture_json(capture, catalog)}
        for capture in captures
    ]


def check_seen(catalog: Catalog, sources: Sequence[str] | None, seen: str | None) -> None:
    """Raise `StateDiffers` unless these sources are in the state in which the caller has seen them."""
    if seen is None:
        return
    for capture in catalog.physicals(sources):
        now = _STATE_WORDS[capture.status.state]
        if now != seen:
            raise StateDiffers.between(f"source {capture.physical}", seen, now)


def pause(catalog: Catalog, sources: Sequence[str] | None, *, pauses: bool) -> list[dict[str, Any]]:
    """Have physical sources pause, or go on; answers with their states after that."""
    captures = catalog.physicals(sources)
    wished = State.PAUSED if pauses else State.RUNNING
    before = [(capture, capture.pause() if pauses else capture.unpause()) for capture in captures]
    deadline = time.monotonic() + _ACT_S_MAX
    for capture, status in before:
        if status.state is not wished:
            capture.wait_until_changed(status, max(deadline - time.monotonic(), 0.0))
    return [_capture_json(capture, catalog) for capture in captures]


def read_again(
    catalog: Catalog, sources: Sequence[str] | None, tables: Sequence[str] | None, where: str | None
) -> list[dict[str, Any]]:
    """Have tables read by a snapshot; answers with the states after that."""
    if where is not None and catalog.grant.is_limited:  # by what comes then, one could tell hidden columns
        raise RightMissing("where: is for those only whose access is not limited by tables or columns")
    return _with_tables(catalog, sources, tables, lambda capture, names: capture.snapshot(names, where), "where")


def read_no_further(
    catalog: Catalog, sources: Sequence[str] | None, tables: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Have the reading of tables end where it is; answers with the states after that."""
    return _with_tables(catalog, sources, tables, lambda capture, names: capture.cancel_snapshot(names), "tables")


def _with_tables(
    catalog: Catalog,
    sources: Sequence[str] | None,
    tables: Sequence[str] | None,
    do: Callable[[Capture, Sequence[str]], None],
    refused: str,
) -> list[dict[str, Any]]:
    """Do something with tables: full names, or `db.table` where one physical source is meant. refused: the parameter
    that a source is to blame for which cannot do it.
    """
    captures = catalog.physicals(sources)
    if tables is None:
        raise MalformedRequest("tables: name those to read: /controlSources/snapshot?tables=main.orders")
    wanted: dict[str, list[str]] = {}
    for table in tables:
        owner, name = split_physical(table)
        name = canonical_name(name)
        if owner:
            if sources is not None and owner not in sources:  # its state was not looked at, nor may be theirs who ask
                raise MalformedRequest(f"tables: {table[:100]!r} is of another source than {', '.join(sources)[:200]}")
            wanted.setdefault(catalog.physical(owner).physical, []).append(name)
        elif len(captures) == 1:
            wanted.setdefault(captures[0].physical, []).append(name)
        else:
            raise MalformedRequest(
                f"tables: {table[:100]!r} does not say of which physical source; write NAME/{table[:100]}"
            )
    for physical, names in wanted.items():
        for name in names:
            if catalog.grant.is_limited and (is_pattern(name) or not catalog.grant.sees(physical, name)):
                raise unknown(name, catalog.all_names())
        try:
            do(catalog.physical(physical), names)
        except UnsupportedFeature as error:
            raise MalformedRequest(f"{refused}: {error}") from error
    return [_capture_json(capture, catalog) for capture in captures]


def buffer_info(log: Log) -> dict[str, Any]:
    """/bufferInfo: what a log holds; the original's four names first."""
    head = log.head()
    return {
        "minScn": head.oldest.scn,
        "maxScn": head.published.scn,
        "timestampFirstEvent": head.oldest.ts_us // 1000,
        "timestampLatestEvent": head.published.ts_us // 1000,
        "log": log.uuid,
        "uuid": log.identity.uuid,
        "oldest": head.oldest.to_json(),
        "published": head.published.to_json(),
        "bytes": head.bytes,
        "segments": head.segments,
        "unsyncedBytes": head.unsynced_bytes,
        "isInsideTransaction": head.is_inside_transaction,
        "retentionBytesMax": log.config.retention_bytes_max,
        "retentionMsMax": log.config.retention_ms_max,
    }


def serving_stats(stats: Stats, grant: Grant) -> dict[str, Any]:
    """/relayStats: all clients together."""
    return {**stats.total.to_json(), "numClients": len(stats.names(grant)), "numStreams": len(stats.streams)}


def client_stats(stats: Stats, name: str, grant: Grant) -> dict[str, Any]:
    """/relayStats: one client."""
    client = stats.known(name, grant)
    if client is None:
        raise unknown(name, stats.names(grant), "client")
    streams = [
        stream.to_json()
        for stream in stats.streams
        if stream.client == name and (not grant.is_limited or stream.access == grant.name)
    ]
    return {"name": name, **client.to_json(), "streams": streams}


def captured_total(catalog: Catalog) -> dict[str, int]:
    """/containerStats: what came in, of all physical sources."""
    counts = [_inbound(capture) for capture in catalog.captures.values()]
    return {name: sum(one[name] for one in counts) for name in (counts[0] if counts else ())}


def captured(capture: Capture) -> dict[str, Any]:
    """/containerStats: what came in, of one."""
    return {"name": capture.physical, **_inbound(capture)}


def _inbound(capture: Capture) -> dict[str, int]:
    counters = capture.counters
    return {
        "numDataEvents": counters.rows,
        "sizeDataEvents": counters.bytes,
        "numSysEvents": counters.controls,
        "numGroups": counters.groups,
        "numSnapshotEvents": counters.snapshot_rows,
        "numErrors": counters.errors,
        "numRestarts": counters.restarts,
    }
