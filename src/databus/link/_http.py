"""HTTP to a relay: one connection a request, every wait bounded, errors as the classes of `databus.core`.

`Endpoint` knows the address and the token and which sockets are open, so that `close` from another thread ends whatever
waits on one of them. `Body` reads a response as it comes, straight into the caller's memory.
"""

import http.client
import os
import socket
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import urlencode, urlsplit

import databus.core
from databus.core import (
    AccessDenied,
    ConfigError,
    DatabusError,
    GroupRefused,
    InputError,
    LimitExceeded,
    MalformedRequest,
    OtherCoordinator,
    PositionForeign,
    PositionPurged,
    ServiceUnavailable,
    StreamCut,
    TooManyRequests,
    UnknownSource,
)
from databus.formats import answer_in_json
from databus.link._connection import Connection, Kept, Sockets, shut
from databus.link._tls import Access, alert_error, handshake_error

PORT: Final = 11115
TOKEN_VARIABLE: Final = "DATABUS_TOKEN"  # noqa: S105 - a name
NAME_LENGTH_MAX: Final = 100
JSON_BYTES_MAX: Final = 64 << 20
_CHUNKED_BYTES_MAX: Final = 64 << 10  # read at a time
_BY_STATUS: Final[dict[int, type[DatabusError]]] = {
    400: MalformedRequest,
    401: AccessDenied,
    404: UnknownSource,
    409: PositionForeign,
    410: PositionPurged,
    429: TooManyRequests,
}
_HOW_TO_START: Final = {
    "relay": "start it with `databus relay FILE`, or `databus run` if a pipeline starts its own",
    "bootstrap service": "start it with `databus bootstrap run FILE`",
}
_HOW_TO_GIVE: Final = (
    f"set the environment variable {TOKEN_VARIABLE}, or give `token_file` (at the command line --token-file) or `token`"
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a relay is and how it is asked. Files are read again for each request, so what they hold can be renewed."""

    host: str
    port: int
    prefix: str
    token: str | None
    """Without one or its file that of the environment variable DATABUS_TOKEN, if it is set."""
    access: Access
    is_tls: bool
    connect_ms_max: int
    read_ms_max: int
    client: str | None = None
    """A name for the relay's statistics."""
    kind: str = "relay"
    """What answers there, as errors call it."""

    @classmethod
    def of(
        cls,
        url: str,
        *,
        token: str | None,
        access: Access,
        connect_ms_max: int,
        read_ms_max: int,
        client: str | None = None,
    ) -> Self:
        """Parse `http://host:port`, `https://host:port`, `host:port` or `host`; anything else is a `ConfigError`."""
        parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
        try:
            port = parts.port or PORT
        except ValueError as error:
            raise ConfigError(f"relay {url!r}: {error}") from error
        is_known = parts.scheme in ("http", "https") and parts.hostname and not parts.query and not parts.username
        if not is_known or parts.hostname is None:
            raise ConfigError(
                f"relay {url!r}: expected http://host:port or https://host:port, such as http://127.0.0.1:{PORT}"
            )
        is_tls = parts.scheme == "https"
        if mistake := access.mistake(is_tls=is_tls):
            raise ConfigError(f"relay {url!r}: {mistake}")
        if token is not None and access.token_file is not None:
            raise ConfigError("a token and a token_file: give one of them")
        is_name = client is None or (client.isascii() and client.isprintable() and 0 < len(client) <= NAME_LENGTH_MAX)
        if not is_name:
            raise ConfigError(f"name {str(client)[:200]!r}: expected 1 to {NAME_LENGTH_MAX} printable ASCII characters")
        if token is None and access.token_file is None:
            token = os.environ.get(TOKEN_VARIABLE) or None
        if is_tls:
            access = access.with_environment()
        prefix = parts.path.rstrip("/")
        return cls(parts.hostname, port, prefix, token, access, is_tls, connect_ms_max, read_ms_max, client)

    def named_by(self, url: str, what: str, option: str, *, kind: str = "relay") -> "Endpoint":
        """The same token and files at another address, which this relay names as something, by an option of its own.

        Raises `ConfigError` if they would go there in the clear.
        """
        if self.is_tls and not url.startswith("https://"):
            raise ConfigError(
                f"{self.name}: it names {url[:200]} as {what}, without TLS, so that the token could be read on its "
                f"way; write an address that begins with https:// into {option}"
            )
        named = Endpoint.of(
            url,
            token=None if self.access.token_file is not None else self.token,
            access=self.access,
            connect_ms_max=self.connect_ms_max,
            read_ms_max=self.read_ms_max,
            client=self.client,
        )
        return replace(named, kind=kind)

    @property
    def name(self) -> str:
        """How errors call it."""
        return f"{self.kind} at {self.host}:{self.port}"

    def headers(self, accept: str, content: bytes | None = None, *, keeps: bool = False) -> dict[str, str]:
        """What each request carries. content: JSON that it sends. keeps: whether the connection stays open for another.

        Raises what `Access.token` does.
        """
        headers = {"Accept": accept, "Connection": "keep-alive" if keeps else "close"}
        if content is not None:
            headers["Content-Type"] = "application/json"
        if self.client is not None:
            headers["X-Dbus-Client"] = self.client
        token = self.token if self.access.token_file is None else self.access.token()
        if token is not None:
            if not token.isascii() or not token.isprintable() or not token:
                raise ConfigError(f"the token for the {self.name} is empty or not printable ASCII")
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def secured(self, sock: socket.socket) -> socket.socket:
        """The same connection after the TLS handshake. Raises what `handshake_error` says."""
        context = self.access.context()
        try:
            # An end that was not announced is an error: somebody may have cut the connection.
            return context.wrap_socket(sock, server_hostname=self.host, suppress_ragged_eofs=False)
        except OSError as error:
            raise handshake_error(self.name, self.host, self.access, error) from error


def _connected(endpoint: Endpoint) -> Connection:
    """A new connection to a relay. Raises `ServiceUnavailable`, and what `Endpoint.secured` does."""
    secured = endpoint.secured if endpoint.is_tls else None
    connection = Connection(endpoint.host, endpoint.port, endpoint.connect_ms_max, secured)
    try:
        connection.connect()
    except OSError as error:
        start = _HOW_TO_START.get(endpoint.kind, "is it running?")
        raise ServiceUnavailable(
            f"{endpoint.name} does not answer: {error.strerror or error}; {start}; is its address right?"
        ) from error
    connection.secure()
    return connection


class Body:
    """A response whose status was good. One thread reads; `close` may come from another."""

    def __init__(
        self,
        endpoint: Endpoint,
        sockets: Sockets,
        path: str,
        query: Mapping[str, Any],
        *,
        accept: str = "application/json",
        wait_ms: int = 0,
        method: str = "GET",
        content: bytes | None = None,
        expected: Container[int] = (http.HTTPStatus.OK,),
        kept: Kept | None = None,
    ) -> None:
        """Send the request and read the response's headers. wait_ms: how long the relay was asked to wait, at most.

        content: JSON to send. expected: the statuses that are answers; others are raised as errors. kept: where the
        connection is from, and where it goes after `json`.
        """
        self._where = f"{endpoint.name}{path}"
        self._sockets = sockets
        self._kept = kept
        self._is_closed = False
        connection = (None if kept is None else kept.take((endpoint.host, endpoint.port))) or _connected(endpoint)
        self._sock: socket.socket = connection.sock
        read_s_max = (endpoint.read_ms_max + wait_ms) / 1e3
        self._sock.settimeout(read_s_max)
        try:
            sockets.add(self._sock)
            target = f"{endpoint.prefix}{path}?{urlencode(query)}".rstrip("?")
            headers = endpoint.headers(accept, content, keeps=kept is not None)
            self._response = connection.ask(method, target, content, headers)
        except (http.client.BadStatusLine, http.client.LineTooLong) as error:
            self._release(connection)
            if isinstance(error, http.client.RemoteDisconnected):
                raise ServiceUnavailable(f"{self._where}: no answer: {error}") from error
            raise InputError(
                f"{endpoint.name}: what answers there is no relay, for it does not speak HTTP; is that the port of a "
                f"database? A relay listens on {PORT} unless its file says otherwise"
            ) from error
        except TimeoutError as error:
            self._release(connection)
            silent = ServiceUnavailable(
                f"{self._where}: connected, but no answer within {read_s_max:g} s; is that a {endpoint.kind}?"
            )
            silent.is_silent = True
            raise silent from error
        except (OSError, http.client.HTTPException) as error:
            self._release(connection)
            if (refused := alert_error(endpoint.name, endpoint.access, error)) is not None:
                raise refused from error
            raise ServiceUnavailable(f"{self._where}: no answer: {error or type(error).__name__}") from error
        except BaseException:
            self._release(connection)
            raise
        self._connection = connection
        self.headers = self._response.headers
        self._stream: Any = self._response.fp
        self._left: int | None = self._response.length
        self._holds_bytes = True  # the headers may have come with more behind them
        if self.status not in expected:
            self._raise()

    @property
    def status(self) -> int:
        """What it was answered with."""
        return self._response.status

    def _release(self, connection: Connection) -> None:
        self._sockets.discard(self._sock)
        connection.close()

    def _raise(self) -> None:
        status, name = self._response.status, self.headers.get("x-dbus-error", "")
        message = self.headers.get("x-dbus-error-message") or self._response.reason
        answer: Any = {}
        try:
            answer = answer_in_json(self.read_all())
            name, message = str(answer.get("error") or name), str(answer.get("message") or message)
        except (ValueError, AttributeError, DatabusError):
            name = name or ""  # not our JSON: the headers and the status must do
        finally:
            self.close()
        kind = getattr(databus.core, name, None)
        if not (isinstance(kind, type) and issubclass(kind, DatabusError)):
            kind = _BY_STATUS.get(status, ServiceUnavailable)
            message = f"{self._where}: status {status}: {message}; is it a relay that answers there?"
        if kind is AccessDenied:
            message = f"{self._where}: {message.partition(': send the header')[0]}; {_HOW_TO_GIVE}"
        raise _error_of(kind, message, answer)

    def read_into(self, space: memoryview) -> int:
        """Receive what is there, waiting for at least one byte; 0 at the end of the response.

        Raises `StreamCut` if the connection ended before the response did, `ServiceUnavailable` if nothing came in
        time.
        """
        try:
            if self._response.chunked:
                content = self._response.read1(min(len(space), _CHUNKED_BYTES_MAX))
                space[: len(content)] = content
                return len(content)
            if self._left == 0:
                return 0
            count = self._receive(space if self._left is None else space[: self._left])
        except TimeoutError as error:
            raise ServiceUnavailable(f"{self._where}: nothing came within {self._sock.gettimeout()} s") from error
        except http.client.HTTPException as error:
            raise StreamCut(f"{self._where}: the connection ended inside the response") from error
        except (OSError, ValueError) as error:
            raise StreamCut(f"{self._where}: the connection broke: {error}") from error
        if self._left is None:
            return count
        if count == 0:
            raise StreamCut(f"{self._where}: the connection ended inside the response")
        self._left -= count
        return count

    _is_handed_back = False

    def _receive(self, wanted: memoryview) -> int:
        """What the stream holds, else what the socket gives.

        A buffered stream's own `readinto1` waits for the socket although it holds bytes, where it is given more room
        than its buffer has: what came with the response's headers would wait for what comes next.
        """
        if self._holds_bytes:
            held = self._stream.peek(1)
            count = min(len(held), len(wanted))
            wanted[:count] = self._stream.read(count)
            self._holds_bytes = count < len(held)
            return count
        return int(self._stream.raw.readinto(wanted) or 0)

    def read_all(self, bytes_max: int = JSON_BYTES_MAX) -> bytes:
        """The whole response. Raises `LimitExceeded` beyond `bytes_max`."""
        out = bytearray()
        piece = memoryview(bytearray(64 << 10))
        while count := self.read_into(piece):
            out += piece[:count]
            if len(out) > bytes_max:
                raise LimitExceeded(f"{self._where}: a response of more than {bytes_max} bytes")
        return bytes(out)

    def json(self) -> Any:
        """The whole response as JSON; closes it."""
        try:
            value = answer_in_json(self.read_all())
        except ValueError as error:
            raise ServiceUnavailable(f"{self._where}: the answer is not JSON: {error}; is this a relay?") from error
        else:
            if self._kept is not None and not self._response.will_close and not self._is_closed:
                self._hand_back(self._kept)
            return value
        finally:
            self.close()

    def _hand_back(self, kept: Kept) -> None:
        """Have the next request use the connection: all of this answer has been read."""
        self._is_handed_back = True
        self._sockets.discard(self._sock)
        self._response.close()
        kept.put((self._connection.host, self._connection.port), self._connection)

    @property
    def is_closed(self) -> bool:
        """Whether `interrupt` or `close` was called."""
        return self._is_closed or self._sockets.is_closed

    def interrupt(self) -> None:
        """From any thread: whoever reads sees the end."""
        self._is_closed = True
        shut(self._sock)

    def close(self) -> None:
        """Let go of the connection; by the reading thread, when it has stopped reading. Callable twice."""
        self._is_closed = True
        if self._is_handed_back:
            return
        shut(self._sock)
        self._sockets.discard(self._sock)
        self._response.close()
        self._connection.close()


def _error_of(kind: type[DatabusError], message: str, answer: Any) -> DatabusError:
    """The relay's error as one here, with what else it says of a position or a group."""
    fields: Mapping[str, Any] = answer if isinstance(answer, dict) else {}
    physical, oldest, bootstrap = (fields.get(name) for name in ("physical", "oldest", "bootstrap"))
    physical = physical if isinstance(physical, str) else None
    if issubclass(kind, PositionPurged):
        bootstrap = bootstrap if isinstance(bootstrap, str) else None
        oldest = oldest if isinstance(oldest, int) else None
        return kind(message, physical=physical, oldest=oldest, bootstrap=bootstrap)
    if issubclass(kind, GroupRefused):
        return kind(message, details=answer if isinstance(answer, dict) else None)
    if issubclass(kind, OtherCoordinator):
        return kind(message, coordinator=answer.get("coordinator") if isinstance(answer, dict) else None)
    return kind(message, physical=physical) if issubclass(kind, PositionForeign) else kind(message)
