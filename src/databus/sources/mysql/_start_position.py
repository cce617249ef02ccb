"""Starts: the place where a new log begins, and the tables as they are there."""

import re
from dataclasses import replace
from typing import Any, Final

import pymysql

from databus.core import ConfigError, SourceChanged, make_scn, time_us
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql._session_position import StreamPosition
from databus.sources.mysql.binlog import FIRST_OFFSET, GtidSet, GtidState, LogPosition, ordinal_of
from databus.sources.mysql.server import ServerFacts, gtids_at, scheme_of, server_facts, telling
from databus.sources.mysql.tables import Catalogue

_OFFSET_UNKNOWN: Final = 0  # MariaDB would say that other GTIDs stand at the begin of that file
_TRIES_MAX: Final = 20
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT")


def new_start(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, start: str, keeper: HistoryKeeper
) -> LogPosition:
    """Where the option `start` says. Fills the history as of there.

    Raises `ConfigError` for a place that this server does not have.
    """
    if start == "latest":
        return _latest(connection, facts, keeper)
    keeper.use(Catalogue(is_whole=False))
    if start == "earliest" or is_time(start):
        return _earliest(facts, start)
    if start.startswith("gtid:"):
        return _at_gtid(facts, start.removeprefix("gtid:").strip())
    file, _, offset = start.rpartition(":")
    return _at_file(connection, facts, file, int(offset))


def _latest(connection: "pymysql.Connection[Any]", facts: ServerFacts, keeper: HistoryKeeper) -> LogPosition:
    """The end of the log, at a moment in which no table's definition changed."""
    before = keeper.read_catalogue(connection)
    for _ in range(_TRIES_MAX):
        facts = server_facts(connection, facts.server)
        after = keeper.read_catalogue(connection)
        if after == before:
            keeper.use(after)
            return _end_of(connection, facts)
        before = after
    raise SourceChanged(
        f"{facts.server}: the tables' definitions changed {_TRIES_MAX} times while they were read; start when DDL rests"
    )


def _end_of(connection: "pymysql.Connection[Any]", facts: ServerFacts) -> LogPosition:
    """MySQL moves file and offset before it counts a transaction as executed, so only the file is certain."""
    match scheme_of(facts):
        case "gtid":
            return LogPosition(facts.file, FIRST_OFFSET, facts.executed, facts.uuid)
        case "domains":
            with telling(facts.server, "asking where the log stands"):
                return LogPosition(facts.file, facts.offset, gtids_at(connection, facts.file, facts.offset), facts.uuid)
        case "file-offset":
            return LogPosition(facts.file, facts.offset, None, facts.uuid)


def _earliest(facts: ServerFacts, start: str) -> LogPosition:
    """The begin of the oldest file; for a time, what came before it is passed over from there."""
    if start != "earliest":
        start_us(start)
    gtids = None if scheme_of(facts) == "file-offset" else facts.purged
    return LogPosition(facts.logs[0].name, FIRST_OFFSET, gtids, facts.uuid)


def _at_gtid(facts: ServerFacts, text: str) -> LogPosition:
    match scheme_of(facts):
        case "gtid":
            have, executed, purged = (GtidSet.parse(gtids) for gtids in (text, facts.executed, facts.purged))
            if not executed.contains(have):
                raise ConfigError(f"start: {facts.server} has not executed {have.subtract(executed)}")
            if not have.contains(purged):
                raise ConfigError(f"start: {facts.server} has purged {purged.subtract(have)}, which comes next")
            return LogPosition(facts.logs[0].name, FIRST_OFFSET, str(have), facts.uuid)
        case "domains":
            state = GtidState.parse(text)
            if lost := GtidState.parse(facts.executed).lacks(state):
                raise ConfigError(f"start: {facts.server} has not executed {lost}")
            if missing := state.lacks(GtidState.parse(facts.purged)):
                raise ConfigError(f"start: {facts.server} has purged what comes next, up to {missing}")
            return LogPosition(facts.logs[0].name, _OFFSET_UNKNOWN, str(state), facts.uuid)
        case "file-offset":
            raise ConfigError(f"start: {facts.server} runs without GTIDs that can be relied on; give FILE:POSITION")


def _at_file(connection: "pymysql.Connection[Any]", facts: ServerFacts, file: str, offset: int) -> LogPosition:
    size = next((log.bytes for log in facts.logs if log.name == file), None)
    if size is None:
        raise ConfigError(f"start: {facts.server} has no file {file}; it has {facts.logs[0].name} to {facts.file}")
    if not FIRST_OFFSET <= offset <= size:
        raise ConfigError(f"start: {file} on {facts.server} goes from {FIRST_OFFSET} to {size}, not to {offset}")
    gtids = None
    if scheme_of(facts) == "domains":
        with telling(facts.server, f"asking for the GTIDs at {file}:{offset}"):
            gtids = gtids_at(connection, file, offset)
    return LogPosition(file, offset, gtids, facts.uuid)


def without_domains(place: StreamPosition, position: LogPosition) -> StreamPosition:
    """The place without the GTID domains that MariaDB has deleted, as `position` says: ordinals fall without them."""
    timeline = place.timeline + 1
    scn = make_scn(timeline, ordinal_of(position, "domains"))
    return replace(place, scn=scn, seq=0, position={**place.position, **position.to_json()}, timeline=timeline)


def is_time(start: str) -> bool:
    """Whether the option `start` is a time."""
    return _TIME.match(start) is not None


def start_us(start: str) -> int:
    """The option `start`, where it is a time, as microseconds since 1970. Raises `ConfigError`."""
    try:
        return time_us(start)
    except ValueError as error:
        raise ConfigError(f"start: {error}") from error
