"""Hosts: which of the configured servers capture follows, whether it can go on there, and its log from there on."""

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import pymysql

from databus.core import ConfigError, DatabusError, ServiceUnavailable, TransientError
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import FIRST_OFFSET, HEADER_BYTES, OFFSET_MAX, LogPosition
from databus.sources.mysql.binlog._event_types import EventType
from databus.sources.mysql.binlog._packets import EVENT_BYTES_MAX
from databus.sources.mysql.server._check_replication import of_replication
from databus.sources.mysql.server._connection import READ_MS_MAX, close_quietly, connect
from databus.sources.mysql.server._dump import Dump
from databus.sources.mysql.server._errors import telling
from databus.sources.mysql.server._resumable import (
    Fault,
    Trouble,
    hidden_reset,
    in_another_file,
    place_to_ask,
    placed,
    scheme_of,
    trouble_with,
)
from databus.sources.mysql.server._status import ServerFacts, identity_of, refuse, server_facts

_MADE_UP_ID_MIN: Final = 1 << 30  # ids that databus makes up are larger than those that people choose
_ANSWER_S_MAX: Final = 60.0  # for the first event of a file
_ID_MIN: Final = 1 << 31  # of connections that ask for one file: apart from the ids of captures
_BUFFER_BYTES: Final = 1 << 20
T = TypeVar("T")

_READ_MS_MAX: Final = 5_000  # of questions beside capture


@dataclass(frozen=True, slots=True)
class ConnectedServer:
    """A connection to a server, and what it said of itself."""

    connection: "pymysql.Connection[Any]"
    facts: ServerFacts


class ServerMismatch(ServiceUnavailable):
    """A connection to an address reaches another server than an earlier one did."""


def connect_again(
    config: MysqlConfig, facts: ServerFacts, *, read_ms_max: int = READ_MS_MAX
) -> "pymysql.Connection[Any]":
    """Another connection to the very server that `facts` are of.

    Raises `ServerMismatch` where another one answers: what it holds and where its log ends says nothing about the log
    that is read.
    """
    connection = connect(config, facts.server, read_ms_max=read_ms_max)
    try:
        with telling(facts.server, "asking who it is"):
            identity = identity_of(connection, facts.flavor)
    except BaseException:
        close_quietly(connection)
        raise
    if identity == facts.identity:
        return connection
    close_quietly(connection)
    other = ", ".join(
        f"{name} {value} instead of {facts.identity[name]}"
        for name, value in identity.items()
        if value != facts.identity.get(name)
    )
    raise ServerMismatch(
        f"{facts.server}: this connection reaches another server than the one whose log is read "
        f"({other or f'it is not of {facts.flavor}'}): something spreads connections over several servers, such as a "
        f"proxy, a virtual address or a name in DNS that moves, or the server was started again. Let each of `hosts` "
        f"name one server; capture tries again"
    )


def asked_again(
    ask: "Callable[[pymysql.Connection[Any], str], T]", facts: ServerFacts, *, config: MysqlConfig
) -> Callable[[], T]:
    """What asks the very server that `facts` are of, on a connection of its own each time, and does not wait long.

    ask: gets the connection and the server's name.
    """

    def answer() -> T:
        connection = connect_again(config, facts, read_ms_max=_READ_MS_MAX)
        try:
            return ask(connection, facts.server)
        finally:
            close_quietly(connection)

    return answer


class Hosts:
    """The servers of `hosts`, at most one of which is held."""

    def __init__(self, physical: str, config: MysqlConfig) -> None:
        self._physical = physical
        self._config = config
        self._held: ConnectedServer | None = None

    def connected(self) -> ConnectedServer:
        """The server at hand, or the first that answers. Raises what keeps all of them from it."""
        if self._held is None:
            errors: list[DatabusError] = []
            for address in self._config.hosts:
                try:
                    self._held = self._connect(address)
                    break
                except DatabusError as error:
                    errors.append(error)
            if self._held is None:
                if len(errors) > 1 and any(isinstance(error, TransientError) for error in errors):
                    raise ServiceUnavailable("; ".join(map(str, errors)))
                raise errors[0]
        return self._held

    def settle(self, position: LogPosition) -> Trouble | None:
        """Hold the first server that can go on from `position`.

        If none can and the policy is to read the tables again, holds one of them, and returns what is wrong with it.
        """
        held, self._held = self._held, None
        unfit: list[tuple[ConnectedServer, Trouble]] = []
        errors: list[DatabusError] = []
        for address in self._config.hosts:
            try:
                server = held if held is not None and held.facts.server == address else self._connect(address)
                trouble = self._trouble_with(server, position)
            except DatabusError as error:
                errors.append(error)
                continue
            if trouble is None:
                self._held = server
                break
            unfit.append((server, trouble))
        if self._held is not None:
            taken: ConnectedServer | None = self._held
            trouble = None
        else:
            taken, trouble = self._least_trouble(unfit, errors)
        for server, _ in unfit:
            if server is not taken:
                close_quietly(server.connection)
        self._held = taken
        return trouble

    def trouble_at(self, position: LogPosition) -> Trouble | None:
        """What keeps the server at hand from going on at `position`."""
        return self._trouble_with(self.connected(), position)

    def hand_over(self) -> None:
        """Forget the held server: the caller owns its connection now."""
        self._held = None

    def close(self) -> None:
        """Let go of the server at hand."""
        held, self._held = self._held, None
        if held is not None:
            close_quietly(held.connection)

    def _connect(self, address: str) -> ConnectedServer:
        connection = connect(self._config, address)
        try:
            return ConnectedServer(connection, self._fit(connection, address))
        except BaseException:
            close_quietly(connection)
            raise

    def _fit(self, connection: "pymysql.Connection[Any]", address: str) -> ServerFacts:
        """What a server says of itself. Raises `InputError` for one whose log cannot have all that is captured."""
        facts = server_facts(connection, address)
        if not facts.logs_changes:
            raise ConfigError(f"{address}: the server keeps no binary log; set log-bin in its option file")
        with telling(address, "asking what it passes on"):
            refuse(of_replication(connection, facts, self._config))
        return facts

    def _least_trouble(
        self, unfit: Sequence[tuple[ConnectedServer, Trouble]], errors: Sequence[DatabusError]
    ) -> tuple[ConnectedServer, Trouble]:
        """None of the servers can go on. Raises, unless the policy is to read the tables again."""
        reasons = [trouble.error(self._physical) for _, trouble in unfit]
        if any(isinstance(error, TransientError) for error in (*errors, *reasons)):
            # A server that is away or behind may have what is needed.
            raise ServiceUnavailable("; ".join(str(error) for error in (*reasons, *errors)))
        lost = [candidate for candidate in unfit if candidate[1].fault is not Fault.ERRANT]
        if not lost or (self._config.on_gap == "stop" and self._config.snapshot != "when_needed"):
            raise (*reasons, *errors)[0]
        return lost[0]

    def _trouble_with(self, server: ConnectedServer, position: LogPosition) -> Trouble | None:
        """What keeps a server from going on at `position`. Ask once only: a server that was reset and is busy may
        have grown beyond `position` by the second time, and look like the server that it was.
        """
        try:
            place = placed(server.connection, server.facts, position)
            trouble = trouble_with(server.facts, position, scheme_of(server.facts), place)
            trouble = trouble or hidden_reset(server.connection, server.facts, position)
            return trouble or self._in_another_file(server.facts, position)
        except BaseException:
            close_quietly(server.connection)
            raise

    def _in_another_file(self, facts: ServerFacts, position: LogPosition) -> Trouble | None:
        """Whether the file of `position` is not the one that was captured: after a reset, an event may well
        begin where one did before.
        """
        if not position.began_s or facts.uuid != position.server_uuid or not facts.has(position.file):
            return None
        began_s = file_began_s(self._config, facts, connect_again(self._config, facts), position)
        return in_another_file(facts, position, began_s) if began_s != position.began_s else None


def file_began_s(
    config: MysqlConfig, facts: ServerFacts, connection: "pymysql.Connection[Any]", position: LogPosition
) -> int:
    """When the server began the file of `position`, as it says itself; the connection is used up.

    A server that was reset gives new files the names of old ones.

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
    return config.server_id or _MADE_UP_ID_MIN | int.from_bytes(digest, "little") & (_MADE_UP_ID_MIN - 1)


def second_replica_id(first_id: int, server_id: int) -> int:
    """An id for a second connection that reads the log: with the same one, the server would end the first."""
    return next(
        candidate for candidate in (first_id ^ 1, first_id ^ 2, first_id ^ 4) if candidate and candidate != server_id
    )
