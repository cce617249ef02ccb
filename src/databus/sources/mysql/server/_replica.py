"""The replica as which databus asks a server for its log, and the place. Start with `open_dump`."""

import hashlib
from typing import Final

from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import LogPosition
from databus.sources.mysql.binlog._packets import EVENT_BYTES_MAX
from databus.sources.mysql.server._dump import Dump
from databus.sources.mysql.server._hosts import ConnectedServer
from databus.sources.mysql.server._resumable import place_to_ask, scheme_of

_ID_MIN: Final = 1 << 30  # ids that databus makes up are larger than those that people choose


def open_dump(
    config: MysqlConfig,
    server: ConnectedServer,
    position: LogPosition,
    server_id: int,
    *,
    is_listed: bool = True,
    by_file: bool = False,
) -> Dump:
    """The server's log from `position` on. is_listed: the server lists us among its replicas. by_file: ask by file
    and offset also where GTIDs rule.
    """
    by_gtid = scheme_of(server.facts) != "file-offset" and not by_file
    return Dump(
        server.connection,
        server.facts.server,
        position if by_gtid else place_to_ask(server.facts, position),
        is_mariadb=server.facts.is_mariadb,
        is_listed=is_listed and server.facts.lists_replicas_safely,
        by_gtid=by_gtid,
        server_id=server_id,
        heartbeat_ms=max(config.heartbeat_ms, server.facts.heartbeat_ms_min),
        buffer_bytes_max=config.buffer_bytes_max,
        event_bytes_max=max(config.event_bytes_max, EVENT_BYTES_MAX),  # the scanner, whose it is, knows the place
    )


def replica_id(config: MysqlConfig, physical: str, log_id: str) -> int:
    """Our id as a replica; if none is configured, one that stays the same for a log, and hardly is another's."""
    digest = hashlib.blake2b(f"{physical} {log_id.partition(' ')[0]}".encode(), digest_size=4).digest()
    return config.server_id or _ID_MIN | int.from_bytes(digest, "little") & (_ID_MIN - 1)


def second_replica_id(first_id: int, server_id: int) -> int:
    """An id for a second connection that reads the log: with the same one, the server would end the first."""
    return next(
        candidate for candidate in (first_id ^ 1, first_id ^ 2, first_id ^ 4) if candidate and candidate != server_id
    )
