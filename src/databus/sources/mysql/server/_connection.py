"""Connections to a server, by PyMySQL: authentication and TLS are its own; its errors become databus's.

Every session speaks utf8mb4 and UTC, commits by itself, and has an empty sql_mode, whatever the server's defaults are.
"""

import socket
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pymysql

from databus.core import ConfigError, DatabusError, ServiceUnavailable
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server._errors import telling

_INIT: Final = (
    # DEFAULT would be the server's own limits: one cuts results in silence, one refuses queries by an estimate.
    "SET time_zone = '+00:00', sql_select_limit = 18446744073709551615, sql_big_selects = 1"
    # A generated primary key stands in row images, whether the catalogue shows it or not. MariaDB passes this over.
    "/*!80030 , show_gipk_in_create_table_and_information_schema = ON */"
)
READ_MS_MAX: Final = 300_000
"""How long a query may stay silent, unless its caller says otherwise."""


class _TlsContext(ssl.SSLContext):
    """Checks the certificate against a name that may differ from the address that was dialled."""

    server_name: str | None = None

    def wrap_socket(self, sock: socket.socket, *, server_hostname: Any) -> ssl.SSLSocket:  # type: ignore[override]
        """What PyMySQL calls."""
        return super().wrap_socket(sock, server_hostname=self.server_name or server_hostname)


def tls_context(config: MysqlConfig) -> ssl.SSLContext | None:
    """What the configuration says about TLS; None where it is off. `tls_ca` without `tls` turns it on."""
    if config.tls == "off" and (config.tls_ca is None or "tls" in config.model_fields_set):
        return None
    context = _TlsContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.tls == "unverified":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.server_name = config.tls_server_name
    if config.tls_ca is None:
        context.load_default_certs()
        return context
    try:
        context.load_verify_locations(cafile=config.tls_ca)
    except (OSError, ssl.SSLError) as error:
        reason = "holds no certificate in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigError(f"tls_ca: {config.tls_ca}: {reason}") from error
    return context


def password_of(config: MysqlConfig) -> str:
    """The password, from its file if it is in one. Raises `ConfigError`."""
    if config.password_file is None:
        return config.password.get_secret_value()
    try:
        return Path(config.password_file).read_text().rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"password_file: {config.password_file}: {reason}") from error


def connect(
    config: MysqlConfig, address: str | None = None, *, read_ms_max: int = READ_MS_MAX, **driver_options: Any
) -> "pymysql.Connection[Any]":
    """A connection to `address` (one of `config.hosts`, `host:port`), or to the first of them that answers.

    read_ms_max: how long the server may stay silent after that before the connection counts as lost. driver_options:
    PyMySQL's own, which win. Raises `ServiceUnavailable` if waiting may help with one of the servers, else
    `InputError`.
    """
    options: dict[str, Any] = {
        "user": config.user,
        "password": password_of(config),
        "charset": "utf8mb4",
        "autocommit": True,
        "sql_mode": "",
        "init_command": _INIT,
        "program_name": "databus",
        "connect_timeout": config.connect_ms_max / 1e3,
        # Until the log-in is done, the server must answer as fast as the network.
        "read_timeout": config.connect_ms_max / 1e3,
        "write_timeout": config.connect_ms_max / 1e3,
        "max_allowed_packet": 1 << 30,
    }
    context = tls_context(config)
    options |= {"ssl_disabled": True} if context is None else {"ssl": context}
    failures: list[DatabusError] = []
    for host_port in config.hosts if address is None else [address]:
        host, _, port = host_port.rpartition(":")
        try:
            with telling(host_port, "connecting"):
                server = {"host": host.strip("[]"), "port": int(port)}
                connection = pymysql.connect(**{**options, **server, **driver_options})
        except DatabusError as error:
            failures.append(error)
            continue
        set_read_ms_max(connection, read_ms_max)
        return connection
    raise _all_of(failures)


def _all_of(failures: Sequence[DatabusError]) -> DatabusError:
    if len(failures) == 1:
        return failures[0]
    text = "; ".join(str(failure) for failure in failures)
    return next(
        (type(failure)(text) for failure in failures if isinstance(failure, ServiceUnavailable)),
        type(failures[0])(text),
    )


# PyMySQL has no public way to its socket, to the time-out of an open connection, or to close without a word.


def set_read_ms_max(connection: "pymysql.Connection[Any]", read_ms_max: int) -> None:
    """From now on the connection counts as lost when the server is silent for so long where it should answer."""
    inside: Any = connection
    inside._read_timeout = read_ms_max / 1e3  # noqa: SLF001 - no public way after the log-in


def socket_of(connection: "pymysql.Connection[Any]") -> socket.socket:
    """The socket below, TLS and all, for a stream that PyMySQL cannot read. Close `connection`, not it."""
    inside: Any = connection
    sock = inside._sock  # noqa: SLF001 - no public way to the socket
    if not isinstance(sock, socket.socket):
        raise ServiceUnavailable("the connection to the server is closed")
    return sock


def close_quietly(connection: "pymysql.Connection[Any] | None") -> None:
    """Close it, whatever state it is in, without COM_QUIT, which might wait."""
    inside: Any = connection
    if inside is not None:
        with suppress(pymysql.MySQLError, OSError):  # it was gone already
            inside._force_close()  # noqa: SLF001 - PyMySQL has no public way to close without a word
