"""HTTP requests to a target, one at a time: connections are kept, every wait is bounded, redirects are not followed.

A request has `request_ms_max` from its first byte to the last one of its answer, however slowly the target takes or
gives them.
"""

import email.utils
import http.client
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from databus.core import Backoff, Clock, ConfigError, ServiceUnavailable, SystemClock
from databus.link import Access, answer_of, body_of, has_unasked, shut_after, without_secrets

_ANSWER_BYTES_MAX: Final = 64 << 10
_DROPPED_BYTES_MAX: Final = 8 << 20  # read behind those; an answer that is longer counts by its status
_WAIT_MS: Final = (50, 5_000)
_LATER: Final = frozenset({408, 425, 429})
_TOO_LARGE: Final = 413
_CONNECTIONS_MAX: Final = 16
_SHOWN: Final = 200


@dataclass(frozen=True)
class Target:
    """How a target is asked; travels to tasks. What is secret is shown nowhere.

    headers: which each request has. retry_ms_max: for how long a request is tried again that found nobody, or a target
    that is busy. retry_after_ms_max: the longest wait that the target may ask for (`Retry-After`).
    """

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    access: Access = field(default_factory=Access)
    connect_ms_max: int = 5_000
    request_ms_max: int = 30_000
    retry_ms_max: int = 30_000
    retry_after_ms_max: int = 60_000

    def client(self) -> "Client":
        """The one client that this thread has for it."""
        return _client(self, threading.get_ident())


@lru_cache(maxsize=16)
def _client(target: Target, thread: int) -> "Client":
    del thread
    return Client(target)


class Answer(NamedTuple):
    """What a request was answered. retry_after_s: how long to wait, where the target says so."""

    status: int
    text: str = ""
    retry_after_s: float | None = None

    @property
    def is_taken(self) -> bool:
        """Whether the target has taken the request."""
        return 200 <= self.status < 300

    @property
    def is_later(self) -> bool:
        """Whether the same request may be taken later."""
        return self.status in _LATER or self.status >= 500

    def __str__(self) -> str:
        said = " ".join("".join(each if each.isprintable() else " " for each in self.text).split())[:_SHOWN]
        return f"status {self.status}" + (f": {said}" if said else "")


class Client:
    """Sends requests. One thread at a time."""

    def __init__(self, target: Target, clock: Clock | None = None) -> None:
        self._target = target
        self._clock = clock or SystemClock()
        self._connections: dict[tuple[str, str, int], _Connection] = {}

    def post(self, url: str, body: bytes, kind: str, headers: Callable[[], Mapping[str, str]]) -> Answer:
        """Send a body until the target has answered with something else than that it is busy.

        headers: asked for before each attempt; what it raises ends them. Raises `ServiceUnavailable` after
        `retry_ms_max`, having waited as long as the target has asked for.
        """
        backoff = Backoff(*_WAIT_MS, total_ms=self._target.retry_ms_max, clock=self._clock)
        connection, path = self._connection(url)
        while True:
            asked_ms = 0.0
            try:
                answer = connection.post(path, body, {**dict(self._target.headers), **headers(), "Content-Type": kind})
                if not answer.is_later:
                    return answer
                why, asked_ms = str(answer), (answer.retry_after_s or 0.0) * 1e3
            except _Gone as gone:
                why = str(gone)
            asked_ms = min(max(asked_ms, 0), self._target.retry_after_ms_max)
            self._clock.sleep_ms(asked_ms)
            if backoff.is_over:
                raise ServiceUnavailable(f"{connection.name} takes no requests: {why}. The batch is tried again")
            self._clock.sleep_ms(max(backoff.next_ms() - asked_ms, 0))

    def _connection(self, url: str) -> "tuple[_Connection, str]":
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        key = parts.scheme, host, port
        found = self._connections.pop(key, None) or _Connection(*key, self._target)
        self._connections[key] = found
        if len(self._connections) > _CONNECTIONS_MAX:
            self._connections.pop(next(iter(self._connections))).close()
        return found, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


class _Gone(Exception):
    """Nobody answered in time; it may be tried again."""


class _Connection:
    """One address and the connection to it. name: how errors call it; paths may be secrets."""

    def __init__(self, scheme: str, host: str, port: int, target: Target) -> None:
        self.name = f"{host}:{port}"
        self._address = host, port
        self._is_tls = scheme == "https"
        self._target = target
        self._open: http.client.HTTPConnection | None = None

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """One request. Raises `_Gone`."""
        is_kept = self._open is not None and self._open.sock is not None
        try:
            return self._post(path, body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise ConfigError(
                    f"{self.name}: its certificate is not trusted ({error.verify_message}); set `ca_file`"
                ) from error
            if is_kept and isinstance(error, http.client.RemoteDisconnected | ConnectionError):
                return self.post(path, body, headers)  # the target had closed what we kept
            if getattr(error, "reason", None) == "WRONG_VERSION_NUMBER":
                raise _Gone("it does not speak TLS; is the https:// of `url` right?") from error
            raise _Gone(f"no answer: {error or type(error).__name__}") from error

    def close(self) -> None:
        """Let go of the connection; the next request makes another."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        connection = self._open
        if connection is not None and (connection.sock is None or has_unasked(connection.sock)):
            self.close()
            connection = None
        if connection is None:
            connection = self._open = self._connect()
        with shut_after(connection.sock, self._target.request_ms_max / 1e3):
            return self._answer(answer_of(connection, "POST", path, body, headers), path)

    def _answer(self, response: http.client.HTTPResponse, path: str) -> Answer:
        text = body_of(response, _ANSWER_BYTES_MAX).decode(errors="replace")
        left = _DROPPED_BYTES_MAX
        while left > 0 and not response.isclosed():  # one that is cut off later has not been taken either
            left -= len(body_of(response, _ANSWER_BYTES_MAX))
        if not response.isclosed() or response.status == _TOO_LARGE:
            self.close()  # what is left of it would stand before the next answer, or what was not read before a request
        told = without_secrets(text, self._secrets(path))
        return Answer(response.status, told, _seconds(response.headers.get("Retry-After")))

    def _secrets(self, path: str) -> list[str]:
        """What a request has that errors are not to say, whole and in parts."""
        url = urlsplit(path)
        values = [value for _, value in self._target.headers]
        words = [word for value in values for word in value.split()[1:]]
        return [path, url.path, url.query, *(value for _, value in parse_qsl(url.query)), *values, *words]

    def _connect(self) -> http.client.HTTPConnection:
        target, (host, port) = self._target, self._address
        wait_s = target.connect_ms_max / 1e3
        made = (
            http.client.HTTPSConnection(host, port, timeout=wait_s, context=target.access.context())
            if self._is_tls
            else http.client.HTTPConnection(host, port, timeout=wait_s)
        )
        try:
            made.connect()
        except BaseException:
            made.close()
            raise
        made.sock.settimeout(target.request_ms_max / 1e3)
        return made


def _seconds(text: str | None) -> float | None:
    """What `Retry-After` says, which is seconds or a date; None for neither."""
    if text is None:
        return None
    if text.strip().isdecimal():
        return float(text.strip()[:9])
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
