"""When a server began a file of its log: a server that was reset gives new files the names of old ones."""

import secrets
import time
from dataclasses import replace
from typing import Any, Final

import pymysql

from databus.core import ServiceUnavailable
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import FIRST_OFFSET, HEADER_BYTES, OFFSET_MAX, LogPosition
from databus.sources.mysql.binlog._event_types import EventType
from databus.sources.mysql.server._connection import close_quietly
from databus.sources.mysql.server._dump import Dump
from databus.sources.mysql.server._status import ServerFacts

_ANSWER_S_MAX: Final = 60.0
_ID_MIN: Final = 1 << 31
_BUFFER_BYTES: Final = 1 << 20


def file_began_s(
    config: MysqlConfig, facts: ServerFacts, connection: "pymysql.Connection[Any]", position: LogPosition
) -> int:
    """When the server began the file of `position`, as it says itself; the connection is used up.

    Raises `ServiceUnavailable` if the server does not answer, and what keeps it from sending that file.
    """
    at = position if position.offset <= OFFSET_MAX else replace(position, offset=FIRST_OFFSET)
    try:
        dump = Dump(
            connection,
            facts.server,
            at,
            is_mariadb=facts.is_mariadb,
            is_listed=False,
            by_gtid=False,
            server_id=_ID_MIN | secrets.randbits(30),  # the server ends one replica for another of the same id
            heartbeat_ms=max(config.heartbeat_ms, facts.heartbeat_ms_min),
            buffer_bytes_max=_BUFFER_BYTES,
        )
    except BaseException:
        close_quietly(connection)
        raise
    try:
        deadline = time.monotonic() + _ANSWER_S_MAX
        while (left_s := deadline - time.monotonic()) > 0:
            block = dump.take(left_s)
            began_s = None if block is None else _written_s(block.tobytes())
            if began_s is not None:
                return began_s
    finally:
        dump.close()
    raise ServiceUnavailable(f"{facts.server}: it sent nothing of {position.file} within {_ANSWER_S_MAX:.0f} s")


def _written_s(events: bytes) -> int | None:
    """The time of the FORMAT_DESCRIPTION among whole events."""
    at = 0
    while at + HEADER_BYTES <= len(events):
        if events[at + 4] == EventType.FORMAT_DESCRIPTION:
            return int.from_bytes(events[at : at + 4], "little")
        at += max(int.from_bytes(events[at + 9 : at + 13], "little"), HEADER_BYTES)
    return None
