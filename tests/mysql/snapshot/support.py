"""What the tests of snapshots share: definitions from the catalogue, and which transaction wrote which row."""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.rows import describe
from databus.sources.mysql.snapshot import TableTask
from databus.sources.mysql.tables._catalogue import read_catalogue
from databus.sources.mysql.tables._lexer import ServerKind as Dialect
from databus.testing.servers import Server


def dialect(server: Server) -> Dialect:
    version = tuple(int(part) for part in server.version.split("-")[0].split(".")[:3])
    return Dialect(server.flavor, version)


def definition_of(server: Server, database: str, name: str) -> TableDefinition:
    connection = server.connect()
    try:
        with connection.cursor() as cursor:

            def query(sql: str) -> list[tuple[Any, ...]]:
                cursor.execute(sql)
                return list(cursor.fetchall())

            query("SET sql_mode = ''")
            found = read_catalogue(query, dialect(server), tables=[(database, name)])
    finally:
        connection.close()
    (definition,) = found.definitions()
    return definition


def task_of(server: Server, database: str, name: str, **more: Any) -> TableTask:
    definition = definition_of(server, database, name)
    return TableTask(definition, describe(definition), **more)


def log_position(server: Server) -> dict[str, Any]:
    file, offset = server.position()
    position: dict[str, Any] = {"file": file, "offset": offset}
    if server.flavor != "mariadb" and server.gtid:
        position["gtids"] = str(server.gtids()).replace("\n", "")
    return position


@dataclass(frozen=True)
class Logged:
    """A transaction that inserted one row into a table whose only column is a BIGINT."""

    value: int
    file: int
    end: int
    gno: int


_HEADER = struct.Struct("<IBIIIH")
_GTID, _XID, _WRITE_V1, _WRITE = 33, 16, 23, 30


def logged(paths: list[Path]) -> Iterator[Logged]:
    """Walks the binary logs (with checksums), slowly and obviously."""
    for path in paths:
        body, at = path.read_bytes(), 4
        gno = value = 0
        while at + 19 <= len(body):
            _, kind, _, size, end, _ = _HEADER.unpack_from(body, at)
            if kind == _GTID:
                gno = int.from_bytes(body[at + 19 + 17 : at + 19 + 25], "little")
            elif kind in (_WRITE_V1, _WRITE):
                value = int.from_bytes(body[at + size - 12 : at + size - 4], "little", signed=True)
            elif kind == _XID:
                yield Logged(value, int(path.suffix[1:]), end, gno)
            at += size


@contextmanager
def running(write: Callable[[int, threading.Event], None], numbers: Iterable[int]) -> Iterator[None]:
    """A thread for each number runs `write` until the event is set."""
    stop = threading.Event()
    threads = [threading.Thread(target=write, args=(number, stop)) for number in numbers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
