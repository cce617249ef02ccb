"""The end of a server's binary log, read from its data folder: statements and table maps, by a plain walk."""

import struct
from collections.abc import Callable, Iterator
from typing import Any

from databus.sources.mysql.binlog import Query, TableMap
from databus.sources.mysql.binlog._query_event import parse_query
from databus.sources.mysql.binlog._table_map import parse_table_map
from databus.sources.mysql.tables import ServerKind, TableHistory
from databus.testing.servers import Server as TestServer

_HEADER = struct.Struct("<IBIIIH")
_QUERY, _TABLE_MAP = 2, 19
_CHECKSUM = 4


class LogTail:
    """What a server has logged since the last call of `new`."""

    def __init__(self, server: TestServer) -> None:
        server.query("FLUSH BINARY LOGS")
        name = server.query("SHOW BINARY LOGS")[-1][0]
        self._path = server.data_folder / name
        self._at = 4
        self._is_mariadb = server.flavor == "mariadb"
        list(self.new())

    def new(self) -> Iterator[Query | TableMap]:
        raw = self._path.read_bytes()[self._at :]
        while len(raw) >= _HEADER.size:
            _, kind, _, size, _, _ = _HEADER.unpack_from(raw)
            if len(raw) < size:
                return
            body = raw[_HEADER.size : size - _CHECKSUM]
            if kind == _QUERY:
                yield parse_query(body)
            elif kind == _TABLE_MAP:
                yield parse_table_map(body[6:], is_mariadb=self._is_mariadb)
            raw, self._at = raw[size:], self._at + size


def server_of(server: TestServer) -> ServerKind:
    """What the history must know of a server."""
    text = server.query("SELECT VERSION()")[0][0]
    version = tuple(int(part) for part in text.split("-")[0].split("."))
    return ServerKind("mariadb" if "MariaDB" in text else "mysql", version)


def new_history(
    server: TestServer, captured: Callable[[str, str], bool] = lambda *_: True, **options: Any
) -> TableHistory:
    """A history as a session makes it."""
    explicit = server.query("SELECT @@GLOBAL.explicit_defaults_for_timestamp")[0][0]
    return TableHistory(server_of(server), captured, explicit_timestamps=bool(explicit), **options)
