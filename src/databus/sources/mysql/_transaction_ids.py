"""Ids of transactions as they stand in rows and commits, and whether a position contains one. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

from databus.core import DatabusError
from databus.sources.mysql.binlog import GtidSet, GtidState, LogPosition, file_number

_MARIADB: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
_MYSQL: Final = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[a-z_][a-z0-9_]*)?):(\d+)")
_ANONYMOUS: Final = re.compile(r"(.*\.\d+):(\d+)")


def contains(scheme: str, position: Mapping[str, Any], txid: str) -> bool | None:
    """Whether the transaction `txid` is before `position`; None if the two do not show it.

    scheme: how this source's SCNs are made. By GTIDs only where that is by GTIDs: elsewhere their numbers may go back.
    """
    place = LogPosition.from_json(position)
    try:
        if scheme == "file-offset":
            return _by_offset(place, txid)
        return None if place.gtids is None else _by_gtids(scheme, place.gtids, txid)
    except DatabusError:
        return None  # no form that this version knows


def _by_offset(place: LogPosition, txid: str) -> bool | None:
    named = _ANONYMOUS.fullmatch(txid)
    if named is None or not place.file:
        return None
    return (file_number(named[1]), int(named[2])) < (file_number(place.file), place.offset)


def _by_gtids(scheme: str, gtids: str, txid: str) -> bool | None:
    if scheme == "gtid" and (match := _MYSQL.fullmatch(txid)):
        return GtidSet.parse(gtids).has(match[1], int(match[2]))
    if scheme == "domains" and (match := _MARIADB.fullmatch(txid)):
        domain, server, number = map(int, match.groups())
        last_server, last = GtidState.parse(gtids).domains.get(domain, (0, 0))
        return number < last or (number, server) == (last, last_server)
    return None
