"""Whether a server is the one that a position belongs to, and still has what comes after it.

Each thing that can be wrong is a `Fault` of its own, since operators act differently: purged files, a reset or restored
server, another server, a replica that is behind us, a replica with transactions of its own.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from databus.core import DatabusError, FatalError, PositionPurged, ServiceUnavailable, SourceChanged
from databus.sources.mysql.binlog import (
    CHECKSUM_BYTES,
    FIRST_OFFSET,
    HEADER_BYTES,
    OFFSET_MAX,
    GtidSet,
    GtidState,
    LogPosition,
    Scheme,
)
from databus.sources.mysql.binlog._position import file_number
from databus.sources.mysql.server._errors import error_of, server_error, telling
from databus.sources.mysql.server._status import ServerFacts, ask, gtids_at


class Fault(StrEnum):
    """What keeps capture from going on at a position."""

    PURGED = "purged"
    RESET = "reset"
    FOREIGN = "foreign"
    BEHIND = "behind"
    DIVERGED = "diverged"
    ERRANT = "errant"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a server cannot go on from a position."""

    fault: Fault
    missing: str
    """The GTIDs or places that the server does not have, as text."""
    message: str

    @property
    def is_other_history(self) -> bool:
        """Whether the server's next transactions do not follow the captured ones, whatever their numbers."""
        return self.fault not in {Fault.PURGED, Fault.ERRANT}

    def error(self, physical: str) -> DatabusError:
        """What to raise if the configuration does not allow to go on."""
        text = f"{physical}: {self.message}"
        match self.fault:
            case Fault.BEHIND:
                return ServiceUnavailable(text)
            case Fault.PURGED:
                return PositionPurged(text)
            case _:
                return SourceChanged(text)


_MEND = (
    "Set `on_gap: resnapshot` to have the captured tables read again with a recorded gap, or `databus position set` to "
    "go on elsewhere"
)


def scheme_of(facts: ServerFacts) -> Scheme:
    """How this server's ordinals are made."""
    if facts.gtid != "on":
        return "file-offset"
    return "domains" if facts.is_mariadb else "gtid"


def trouble_with(
    facts: ServerFacts, position: LogPosition, scheme: Scheme, place: LogPosition | None = None
) -> Trouble | None:
    """What keeps this server from sending what comes after `position`; None if nothing does. place: see `placed`."""
    if not position.file and position.gtids is None:
        return Trouble(
            Fault.FOREIGN, str(position), f"the log's position, {position}, is none of MySQL's or MariaDB's. {_MEND}"
        )
    match scheme:
        case "gtid":
            return _with_set(facts, position)
        case "domains":
            return _with_domains(facts, position, place)
        case "file-offset":
            return _with_file(facts, position)


def _with_set(facts: ServerFacts, position: LogPosition) -> Trouble | None:
    have, executed = GtidSet.parse(position.gtids or ""), GtidSet.parse(facts.executed)
    lost = have.subtract(executed)
    if lost:
        return _not_there(facts, position, str(lost), shares=bool(have.intersect(executed)))
    missing = GtidSet.parse(facts.purged).subtract(have)
    if missing:
        return _purged(facts, str(missing))
    own = GtidSet({key: part for key, part in executed.subtract(have).parts.items() if key == facts.uuid})
    return _errant(facts, position, str(own)) if own else None


def _with_domains(facts: ServerFacts, position: LogPosition, place: LogPosition | None) -> Trouble | None:
    have, executed = GtidState.parse((place or position).gtids or ""), GtidState.parse(facts.executed)
    lost = executed.lacks(have)
    if lost:
        return _not_there(facts, position, str(lost), shares=bool(set(have.domains) & set(executed.domains)))
    missing = have.lacks(GtidState.parse(facts.purged))
    if missing and place is None:  # with a place, the oldest file may name domains that were deleted after it
        return _purged(facts, f"up to {missing}")
    diverged = GtidState({domain: gtid for domain, gtid in have.domains.items() if not _logged(facts, domain, gtid)})
    if diverged:
        return Trouble(
            Fault.DIVERGED,
            str(diverged),
            f"{facts.server} never logged {diverged}, which was captured, and has later transactions in its place: it "
            f"became primary without it. {_MEND}",
        )
    own = GtidState(
        {domain: gtid for domain, gtid in have.lacks(executed).domains.items() if gtid[0] == facts.server_id}
    )
    return _errant(facts, position, str(own)) if own else None


def placed(connection: "pymysql.Connection[Any]", facts: ServerFacts, position: LogPosition) -> LogPosition | None:
    """Where a MariaDB server has everything after `position`, whatever the numbers of its GTIDs say; None if only the
    numbers can say it. Without domains that the server has deleted since (FLUSH BINARY LOGS DELETE_DOMAIN_ID).

    A domain that is used again begins at 1 again, and only the place in the log shows which transactions are the new
    ones. The log has all of it after that place: the server deletes only domains that its files do not hold.
    """
    names = [log.name for log in facts.logs]
    if scheme_of(facts) != "domains" or facts.uuid != position.server_uuid or not position.offset or not names:
        return None
    have = GtidState.parse(position.gtids or "")
    with telling(facts.server, f"asking for the GTIDs from {position.file}:{position.offset} on"):
        if position.file not in names:
            if GtidState.parse(gtids_at(connection, names[0], FIRST_OFFSET) or "") != have:
                return None
            position = replace(position, file=names[0], offset=FIRST_OFFSET, began_s=0)  # no transaction was in between
        places = [(position.file, position.offset)]
        places += [(name, FIRST_OFFSET) for name in names[names.index(position.file) + 1 :]]
        kept = dict(have.domains)
        for file, offset in places:
            gtids = gtids_at(connection, file, offset)
            for domain in () if gtids is None else GtidState.parse(gtids).lacks(have).domains:
                kept.pop(domain, None)
    return replace(position, gtids=str(GtidState(kept)))


def is_by_file(facts: ServerFacts, position: LogPosition, place: LogPosition | None) -> bool:
    """Whether to ask for the log by file and offset, since GTIDs say less than `place`, the answer of `placed`."""
    if place is None:
        return False
    return place.gtids != position.gtids or bool(
        GtidState.parse(position.gtids or "").lacks(GtidState.parse(facts.purged))
    )


def _logged(facts: ServerFacts, domain: int, gtid: tuple[int, int]) -> bool:
    """Whether MariaDB's log had this transaction: it keeps the last number of each server in each domain."""
    for entry in facts.variables.get("gtid_binlog_state", "").split(","):
        numbers = entry.strip().split("-")
        if len(numbers) == 3 and (int(numbers[0]), int(numbers[1])) == (domain, gtid[0]):
            return int(numbers[2]) >= gtid[1]
    return False


def _with_file(facts: ServerFacts, position: LogPosition) -> Trouble | None:
    if facts.uuid != position.server_uuid:
        return Trouble(
            Fault.FOREIGN,
            f"{position.file} at {position.offset} of {position.server_uuid}",
            f"{facts.server} is {facts.uuid}, and the log was captured from {position.server_uuid}: a place in one "
            f"server's log means nothing on another. Capture the old server, or switch GTIDs on before the next "
            f"failover. {_MEND}",
        )
    place = f"{position.file} at {position.offset}"
    number = file_number(position.file)
    if not facts.has(position.file):
        if facts.logs and number < file_number(facts.logs[0].name):
            return _purged(facts, f"from {place} to {facts.logs[0].name}")
        return _reset(facts, place, f"its newest file is {facts.file}")
    size = _size(facts, position.file)
    return _reset(facts, place, f"that file ends at {size}") if position.offset > size else None


def _size(facts: ServerFacts, file: str) -> int:
    """The size of a file that the server has."""
    size = next(log.bytes for log in facts.logs if log.name == file)
    return max(size, facts.offset if file == facts.file else 0)


def place_to_ask(facts: ServerFacts, position: LogPosition, offset_max: int = OFFSET_MAX) -> LogPosition:
    """Where to ask this server by file and offset for what comes after `position`.

    The protocol names no place beyond 4 GiB. A file is that large by its last transaction alone, so all that follows in
    it is the event that names the next file; then that one is asked for.
    """
    names = [log.name for log in facts.logs]
    if position.offset <= offset_max or position.file not in names[:-1]:
        return position
    at = names.index(position.file)
    rotation_bytes = HEADER_BYTES + 8 + len(names[at + 1])
    if facts.logs[at].bytes - position.offset in (0, rotation_bytes, rotation_bytes + CHECKSUM_BYTES):
        return replace(position, file=names[at + 1], offset=FIRST_OFFSET)
    return position


_SIZE_MAX: Final = 1 << 32  # beyond, events do not say their own offset
_GTID_BYTES_MAX: Final = 1_024  # of its event
_ENCRYPTION_BYTES: Final = 512  # before the log in an encrypted file: they count in its size, not in places
_DENIED: Final = frozenset({ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR})


def hidden_reset(connection: "pymysql.Connection[Any]", facts: ServerFacts, position: LogPosition) -> Trouble | None:
    """Whether the server was reset and has grown beyond `position` since: then only the bytes at that place show it.

    File numbers only grow; after a transaction there is an event, or the end of the file; and MariaDB says
    which GTIDs come before a place.
    """
    base, _, _ = position.file.rpartition(".")
    if facts.uuid != position.server_uuid or facts.file.rpartition(".")[0] != base or not position.offset:
        return None
    place = f"{position.file} at {position.offset}"
    if not facts.has(position.file):
        is_ahead = file_number(position.file) > file_number(facts.file)
        return _reset(facts, place, f"its newest file is {facts.file}") if is_ahead else None
    size = _size(facts, position.file)
    if position.offset > size:
        return _reset(facts, place, f"that file ends at {size}")
    other = None if size > _SIZE_MAX else _what_else_is_there(connection, facts, position)
    return _reset(facts, place, other) if other else None


def _what_else_is_there(connection: "pymysql.Connection[Any]", facts: ServerFacts, position: LogPosition) -> str | None:
    """What shows that our place is not the end of our transaction on this server; None if it is."""
    file, offset = position.file, position.offset
    with telling(facts.server, f"asking what stands at {file}:{offset}"):
        # None is no answer: so it is also where any event before that place is larger than max_allowed_packet
        gtids = gtids_at(connection, file, offset) if facts.is_mariadb and position.gtids is not None else None
        if gtids is not None:
            domains = GtidState.parse(gtids).domains  # a domain may have been deleted, which is no reset
            expected = GtidState.parse(position.gtids or "").domains
            is_ours = all(domains.get(domain, gtid) == gtid for domain, gtid in expected.items())
            return None if is_ours else f"what precedes that place is {gtids or 'nothing'}, and was {position.gtids}"
        rows, error = _events_from(connection, file, offset, 2)
        if error and _is_announced(_events_from(connection, file, offset, 1)[0], offset):
            return None  # the second event is one that the server does not show, larger than max_allowed_packet
        is_event = _begins_with_an_event(rows, offset)
        if is_event and len(rows) == 1:
            is_event = _ends_the_file(connection, facts, file, int(rows[0]["End_log_pos"]))
    if error:
        return f"it cannot read what is there: {error}"
    return None if is_event else "no event begins there"


def _events_from(
    connection: "pymysql.Connection[Any]", file: str, offset: int, limit: int
) -> tuple[Sequence[Mapping[str, Any]], str]:
    """The events that the server lists from a place on, and its error if it cannot (servers say that in many ways).
    Both are empty if we may not ask. Raises errors of the network and of the configuration.
    """
    encoding, connection.encoding = connection.encoding, "latin-1"  # if the place is no event's, the text has any bytes
    try:
        return ask(connection, f"SHOW BINLOG EVENTS IN %s FROM {offset:d} LIMIT {limit:d}", file), ""
    except pymysql.MySQLError as error:
        if error_of(error)[0] in _DENIED:
            return (), ""
        if type(server_error(error, "", "")) is not FatalError:
            raise
        return (), error_of(error)[1]
    finally:
        connection.encoding = encoding


def _is_announced(rows: Sequence[Mapping[str, Any]], offset: int) -> bool:
    """Whether a transaction begins right there; bytes inside an event hardly look like that."""
    return any(
        int(row["Pos"]) == offset
        and str(row["Event_type"]).lower().endswith("gtid")
        and HEADER_BYTES < int(row["End_log_pos"]) - offset <= _GTID_BYTES_MAX
        for row in rows
    )


def _begins_with_an_event(rows: Sequence[Mapping[str, Any]], offset: int) -> bool:
    """Whether what a server lists from a place on is an event that stands there, or nothing at all.

    Asked for a place inside an event, servers answer with an error, or a later event, or take the bytes for one; but
    only what is an event says where it ends.
    """
    if not rows:
        return True
    ends = int(rows[0]["End_log_pos"])
    return int(rows[0]["Pos"]) == offset and (int(rows[1]["Pos"]) == ends if len(rows) > 1 else ends > offset)


def _ends_the_file(connection: "pymysql.Connection[Any]", facts: ServerFacts, file: str, ends: int) -> bool:
    """Whether the end that the only event listed names is that of the file, which may have grown since `facts`: some
    bytes inside an event give a length that happens to reach the end of the file, but no such end.
    """
    size_now = next(
        (int(row["File_size"]) for row in ask(connection, "SHOW BINARY LOGS") if str(row["Log_name"]) == file), 0
    )
    return _size(facts, file) - _ENCRYPTION_BYTES <= ends <= size_now


def in_another_file(facts: ServerFacts, position: LogPosition, began_s: int) -> Trouble:
    """The server's file of that name was begun at another time than the one that was captured."""
    captured_at, begun_at = (
        dt.datetime.fromtimestamp(moment, dt.UTC).isoformat(" ") for moment in (position.began_s, began_s)
    )
    place = f"{position.file} at {position.offset}"
    return _reset(
        facts, place, f"it began the file of that name at {begun_at}, and the one that was captured at {captured_at}"
    )


def _errant(facts: ServerFacts, position: LogPosition, own: str) -> Trouble | None:
    """The server executed `own` itself: a primary may do that, a replica may not."""
    if facts.uuid == position.server_uuid or facts.variables.get("read_only", "OFF").upper() != "ON":
        return None
    return Trouble(
        Fault.ERRANT,
        own,
        f"{facts.server} is a replica (read_only) with transactions of its own, {own}: they never happened on the "
        f"primary, and would be delivered as if they had. Remove them there (with GTIDs of MySQL, by an empty "
        f"transaction of that name on the primary for each), or take the server off `hosts`",
    )


def _purged(facts: ServerFacts, missing: str) -> Trouble:
    return Trouble(
        Fault.PURGED,
        missing,
        f"{facts.server} has purged what comes next: {missing}; its oldest file is "
        f"{facts.logs[0].name if facts.logs else 'none'}. {_MEND}",
    )


def _reset(facts: ServerFacts, missing: str, detail: str = "") -> Trouble:
    because = f" ({detail})" if detail else ""
    return Trouble(
        Fault.RESET,
        missing,
        f"{facts.server} does not have {missing} any more, which was captured from it{because}: it was reset (RESET "
        f"MASTER) or restored from a backup. {_MEND}",
    )


def _not_there(facts: ServerFacts, position: LogPosition, lost: str, *, shares: bool) -> Trouble:
    """The server never executed, or has forgotten, transactions that were captured."""
    if facts.uuid == position.server_uuid:
        return _reset(facts, lost)
    if not shares:
        return Trouble(
            Fault.FOREIGN,
            lost,
            f"{facts.server} ({facts.uuid}) has nothing of {lost}: it is not a copy of the server that was captured "
            f"({position.server_uuid}). Correct `hosts`. {_MEND}",
        )
    return Trouble(
        Fault.BEHIND,
        lost,
        f"{facts.server} is a replica that is behind us: it has not executed {lost} yet; capture waits, or goes on at "
        f"another of `hosts`. If it became primary without that, it never will: `databus position set` goes on there",
    )
