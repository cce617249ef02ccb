"""Hosts: which of the configured servers capture follows, and whether it can go on there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pymysql

from databus.core import ConfigError, DatabusError, ServiceUnavailable, TransientError
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import LogPosition
from databus.sources.mysql.server._check_finding import refuse
from databus.sources.mysql.server._check_replication import of_replication
from databus.sources.mysql.server._connection import READ_MS_MAX, close_quietly, connect
from databus.sources.mysql.server._errors import telling
from databus.sources.mysql.server._file_begin import file_began_s
from databus.sources.mysql.server._resumable import (
    Fault,
    Trouble,
    hidden_reset,
    in_another_file,
    placed,
    scheme_of,
    trouble_with,
)
from databus.sources.mysql.server._status import ServerFacts, identity_of, server_facts

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
