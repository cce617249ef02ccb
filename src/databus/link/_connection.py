"""One HTTP connection: whole answers, every wait bounded, TLS; to a relay, and kept between requests to whatever else.

Redirects are not followed, and no proxy is asked. `Connection` sends a request and has its answer; `KeptConnection`
makes one when it is needed, and another where the one before has ended.
"""

import contextlib
import html
import http.client
import os
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from email.message import Message
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from databus.core import ConfigError, ServiceUnavailable
from databus.link._tls import Access

TOO_LARGE: Final = 413
_SECRET_CHARS_MIN: Final = 4


class Sockets:
    """The sockets that are open now. `close` shuts them all, from any thread, and lets no new one in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.is_closed = False

    def add(self, sock: socket.socket) -> None:
        """Keep it. Raises `ServiceUnavailable` after `close`."""
        with self._lock:
            if self.is_closed:
                raise ServiceUnavailable("this relay client has been closed")
            self._open.add(sock)

    def discard(self, sock: socket.socket) -> None:
        """Forget it."""
        with self._lock:
            self._open.discard(sock)

    def close(self) -> None:
        """Shut every socket: whoever reads from one sees its end."""
        with self._lock:
            self.is_closed = True
            for sock in self._open:
                shut(sock)


def shut(sock: socket.socket) -> None:
    """End both directions; whoever blocks on it wakes up."""
    with contextlib.suppress(OSError):  # it was not connected any more
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # one with TLS would take what comes for clear text from then on


class _WholeLines:
    """The lines of an answer's headers, all of them: `http.client` takes the connection's end for theirs."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._is_begun = False

    def readline(self, bytes_max: int) -> bytes:
        line: bytes = self._stream.readline(bytes_max)
        if not line.endswith(b"\n") and len(line) < bytes_max and (line or self._is_begun):
            raise http.client.IncompleteRead(line)
        self._is_begun = True
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _FinalResponse(http.client.HTTPResponse):
    """An answer, behind what the other side says while it works (102, 103), which is none yet; with all its headers."""

    def begin(self) -> None:
        stream = self.fp
        self.fp = _WholeLines(stream)  # type: ignore[assignment]  # reads lines: all that `begin` asks for
        try:
            super().begin()
            while 101 < self.status < 200:
                self.headers = None  # type: ignore[assignment]  # by which `begin` knows that it has read none
                super().begin()
        finally:
            self.fp = stream if self.fp is not None else self.fp  # None: there is no body


class Connection(http.client.HTTPConnection):
    """A connection to one address. secured: what makes TLS of a socket; None without TLS."""

    response_class = _FinalResponse
    auto_open = 0  # by itself it would connect without TLS

    def __init__(
        self, host: str, port: int, connect_ms_max: int, secured: Callable[[socket.socket], socket.socket] | None
    ) -> None:
        super().__init__(host, port, timeout=connect_ms_max / 1e3)
        self._secured = secured

    def secure(self) -> None:
        """Do the TLS handshake, if there is to be one, on a connection that is made. Closes it where that fails."""
        try:
            self.sock = self.sock if self._secured is None else self._secured(self.sock)
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except BaseException:
            self.close()
            raise

    def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Send a request and return its answer, which may come before all of the request was taken: who finds a request
        too large says so, and hangs up.
        """
        try:
            self.request(method, path, body, dict(headers))
        except TimeoutError:
            raise
        except OSError as error:
            try:
                return self.getresponse()
            except (OSError, http.client.HTTPException):
                raise error from None
        return self.getresponse()


class Kept:
    """One connection, kept between a thread's requests to one address. A request that goes wrong ends it, and is not
    sent again: the next makes another connection. `close` may come from another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[tuple[str, int], int, Connection] | None = None
        self._is_closed = False

    def take(self, address: tuple[str, int]) -> Connection | None:
        """The connection to this address, if there is one that nobody has ended."""
        with self._lock:
            held, self._held = self._held, None
        if held is None:
            return None
        there, pid, connection = held
        # that of a parent is used by the parent
        if there == address and pid == os.getpid() and connection.sock is not None and not has_unasked(connection.sock):
            return connection
        connection.close()
        return None

    def put(self, address: tuple[str, int], connection: Connection) -> None:
        """Keep a connection whose last answer has been read to its end."""
        with self._lock:
            if not self._is_closed:
                self._held = address, os.getpid(), connection
                return
        connection.close()

    def close(self) -> None:
        """Let go of it, and keep none any more. Callable twice."""
        with self._lock:
            self._is_closed = True
            held, self._held = self._held, None
        if held is not None:
            held[2].close()


class NoAnswer(Exception):
    """Nobody answered in time; it may be tried again."""


class Received(NamedTuple):
    """What a request was answered."""

    status: int
    headers: Message
    content: bytes
    is_whole: bool
    """Whether `content` is all of it."""


class KeptConnection:
    """One address, and the connection to it while there is one. Used by one thread at a time."""

    def __init__(
        self, host: str, port: int, *, is_tls: bool, access: Access, connect_ms_max: int, request_ms_max: int
    ) -> None:
        """request_ms_max: of a request from its first byte to the last one of its answer, however slowly the other side
        takes or gives them.
        """
        self.name = f"{host}:{port}"
        """How errors call it: paths may be secrets."""
        self._address = host, port
        self._access = access if is_tls else None
        self._connect_ms_max, self._request_ms_max = connect_ms_max, request_ms_max
        self._open: Connection | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        headers: Mapping[str, str],
        *,
        bytes_max: int,
        dropped_bytes_max: int = 0,
    ) -> Received:
        """One request. Raises `NoAnswer`, and `ConfigError` for a certificate that nobody trusts.

        bytes_max: of the answer. dropped_bytes_max: how much more is read, and dropped, so that an answer which is cut
        off later counts as none.
        """
        is_kept = self._open is not None and self._open.sock is not None
        try:
            connection = self._connected()
            with shut_after(connection.sock, self._request_ms_max / 1e3):
                return self._received(connection.ask(method, path, body, headers), bytes_max, dropped_bytes_max)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ConfigError(
                    f"{self.name}: its certificate is not trusted ({error.verify_message}); set `ca_file`"
                ) from error
            if is_kept and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                # The other side had closed what we kept; a new connection says whether it is there.
                return self.ask(method, path, body, headers, bytes_max=bytes_max, dropped_bytes_max=dropped_bytes_max)
            if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
                raise NoAnswer("it does not speak TLS; is the https:// of `url` right?") from error
            raise NoAnswer(f"no answer: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Let go of the connection; the next request makes another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _connected(self) -> Connection:
        if self._open is not None and (self._open.sock is None or has_unasked(self._open.sock)):
            self.close()
        if self._open is None:
            made = Connection(*self._address, self._connect_ms_max, None if self._access is None else self._secured)
            made.connect()
            made.secure()
            made.sock.settimeout(self._request_ms_max / 1e3)
            self._open = made
        return self._open

    def _secured(self, sock: socket.socket) -> socket.socket:
        assert self._access is not None  # noqa: S101 - asked for with TLS alone
        return self._access.context().wrap_socket(sock, server_hostname=self._address[0])

    def _received(self, response: http.client.HTTPResponse, bytes_max: int, dropped_bytes_max: int) -> Received:
        content = body_of(response, bytes_max)
        is_whole = response.isclosed()
        while dropped_bytes_max > 0 and not response.isclosed():
            dropped_bytes_max -= len(body_of(response, bytes_max))
        if not response.isclosed() or response.status == TOO_LARGE:
            self.close()  # what is left of it would stand before the next answer, or what was not read before a request
        return Received(response.status, response.headers, content, is_whole)


def body_of(response: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """The next bytes of an answer's body, up to `bytes_max`. Raises `IncompleteRead` where it ends before the length
    that was announced, which `http.client` does not notice when it is asked for a number of bytes.
    """
    content = response.read(bytes_max)
    if len(content) < bytes_max and response.length:
        raise http.client.IncompleteRead(content, response.length)
    return content


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """What an answer says, for errors: many repeat the address or the headers that they were sent, in HTML and in JSON
    too. What is shorter than four characters is no secret.
    """
    ways: Sequence[Callable[[str], str]] = (str, unquote, html.escape, lambda secret: secret.replace("/", r"\/"))
    spelled = {way(secret) for secret in secrets for way in ways}
    for spelling in sorted(spelled, key=len, reverse=True):
        text = text.replace(spelling, "***") if len(spelling) >= _SECRET_CHARS_MIN else text
    return text


def has_unasked(sock: socket.socket) -> bool:
    """Whether a kept connection has something to read before anything is asked: its end, or what would be taken for the
    answer to the next request, such as a proxy's 408 before it hangs up.
    """
    look = select.poll()
    look.register(sock, select.POLLIN)
    return bool(look.poll(0))


@contextlib.contextmanager
def shut_after(sock: socket.socket, limit_s: float) -> Iterator[None]:
    """Bound a request from its first byte to the last one of its answer, however slowly the other side takes or gives
    them: a timeout of the socket's bounds the wait for one byte. Raises `TimeoutError`.
    """
    is_over = threading.Event()

    def end() -> None:
        is_over.set()
        shut(sock)

    clock = threading.Timer(limit_s, end)
    clock.daemon = True
    clock.start()
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if is_over.is_set():
            raise TimeoutError(f"no whole answer within {limit_s:g} s") from error
        raise
    finally:
        clock.cancel()
    if is_over.is_set():  # what was read may end where it was cut
        raise TimeoutError(f"no whole answer within {limit_s:g} s")
