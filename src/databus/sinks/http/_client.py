"""HTTP requests to a target, one at a time, sent again while it is busy or away; redirects are not followed."""

import email.utils
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from databus.core import Backoff, Clock, ServiceUnavailable, SystemClock
from databus.link import Access, KeptConnection, NoAnswer, without_secrets

_ANSWER_BYTES_MAX: Final = 64 << 10
_DROPPED_BYTES_MAX: Final = 8 << 20  # read behind those; an answer that is longer counts by its status
_WAIT_MS: Final = (50, 5_000)
_LATER: Final = frozenset({408, 425, 429})
_CONNECTIONS_MAX: Final = 16  # of the targets that a worker process has been used for
_SHOWN: Final = 200


@dataclass(frozen=True)
class HttpTarget:
    """How a target is asked; travels to tasks. What is secret is shown nowhere."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Which each request has."""
    access: Access = field(default_factory=Access)
    connect_ms_max: int = 5_000
    request_ms_max: int = 30_000
    retry_ms_max: int = 30_000
    """For how long a request is tried again that got no answer, or found the target busy."""
    retry_after_ms_max: int = 60_000
    """The longest wait that the target may ask for (`Retry-After`)."""

    def client(self) -> "TargetClient":
        """The one client that this thread has for it."""
        return _client(self, threading.get_ident())


@lru_cache(maxsize=16)
def _client(target: HttpTarget, thread: int) -> "TargetClient":
    del thread
    return TargetClient(target)


class TargetAnswer(NamedTuple):
    """What a request was answered."""

    status: int
    text: str = ""
    retry_after_s: float | None = None
    """How long to wait, where the target says so."""

    @property
    def is_taken(self) -> bool:
        """Whether the target has taken the request."""
        return 200 <= self.status < 300

    @property
    def is_later(self) -> bool:
        """Whether the same request may be taken later."""
        return self.status in _LATER or self.status >= 500

    def __str__(self) -> str:
        shown = " ".join("".join(char if char.isprintable() else " " for char in self.text).split())[:_SHOWN]
        return f"status {self.status}" + (f": {shown}" if shown else "")


class TargetClient:
    """Sends requests. One thread at a time."""

    def __init__(self, target: HttpTarget, clock: Clock | None = None) -> None:
        self._target = target
        self._clock = clock or SystemClock()
        self._connections: dict[tuple[str, str, int], KeptConnection] = {}

    def post(self, url: str, body: bytes, kind: str, headers: Callable[[], Mapping[str, str]]) -> TargetAnswer:
        """Send a body until the target has answered with something else than that it is busy.

        headers: asked for before each attempt; what it raises ends them. Raises `ServiceUnavailable` after
        `retry_ms_max`, having waited as long as the target has asked for.
        """
        backoff = Backoff(*_WAIT_MS, total_ms=self._target.retry_ms_max, clock=self._clock)
        connection, path = self._connection(url)
        while True:
            asked_ms = 0.0
            try:
                answer = self._answer(connection, path, body, {**headers(), "Content-Type": kind})
                if not answer.is_later:
                    return answer
                why, asked_ms = str(answer), (answer.retry_after_s or 0.0) * 1e3
            except NoAnswer as gone:
                why = str(gone)
            asked_ms = min(max(asked_ms, 0), self._target.retry_after_ms_max)
            self._clock.sleep_ms(asked_ms)
            if backoff.is_over:
                raise ServiceUnavailable(f"{connection.name} takes no requests: {why}. The batch is tried again")
            self._clock.sleep_ms(max(backoff.next_ms() - asked_ms, 0))

    def _answer(self, connection: KeptConnection, path: str, body: bytes, headers: Mapping[str, str]) -> TargetAnswer:
        received = connection.ask(
            "POST",
            path,
            body,
            {**dict(self._target.headers), **headers},
            bytes_max=_ANSWER_BYTES_MAX,
            dropped_bytes_max=_DROPPED_BYTES_MAX,
        )
        text = without_secrets(received.content.decode(errors="replace"), _secrets(self._target, path))
        return TargetAnswer(received.status, text, _seconds(received.headers.get("Retry-After")))

    def _connection(self, url: str) -> tuple[KeptConnection, str]:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        key = parts.scheme, host, port
        target = self._target
        connection = self._connections.pop(key, None) or KeptConnection(
            host,
            port,
            is_tls=parts.scheme == "https",
            access=target.access,
            connect_ms_max=target.connect_ms_max,
            request_ms_max=target.request_ms_max,
        )
        self._connections[key] = connection
        if len(self._connections) > _CONNECTIONS_MAX:
            self._connections.pop(next(iter(self._connections))).close()
        return connection, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def _secrets(target: HttpTarget, path: str) -> list[str]:
    """What a request has that errors are not to say, whole and in parts."""
    url = urlsplit(path)
    values = [value for _, value in target.headers]
    words = [word for value in values for word in value.split()[1:]]
    return [path, url.path, url.query, *(value for _, value in parse_qsl(url.query)), *values, *words]


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
