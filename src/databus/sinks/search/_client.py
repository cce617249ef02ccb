"""HTTP to a cluster of OpenSearch or Elasticsearch: its nodes are asked in turn while they are busy or away.

Whatever is sent may be sent again: documents carry versions, and all else is said once or twice to the same effect.
"""

import base64
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from databus.core import (
    AccessDenied,
    Backoff,
    Clock,
    ConfigError,
    DiskFull,
    FatalError,
    InputError,
    ServiceUnavailable,
    SystemClock,
)
from databus.link import Access, KeptConnection, NoAnswer, without_secrets

_ANSWER_BYTES_MAX: Final = 256 << 20
_WAIT_MS: Final = (50, 5_000)
_BUSY: Final = frozenset({429, 502, 503, 504})
_OF_SERVER: Final = frozenset({"_index", "succeeded"})
"""Members of answers without an error: about a document, about a scroll."""
_PORT: Final = 9200


@dataclass(frozen=True)
class SearchCluster:
    """Where a cluster is and how it is asked; travels to tasks. What is secret is shown nowhere."""

    urls: tuple[str, ...]
    """Of its nodes, each tried in turn."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    api_key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    """Of the authority that its certificates come from."""
    connect_ms_max: int = 5_000
    request_ms_max: int = 30_000
    retry_ms_max: int = 30_000
    """For how long a request is tried again that got no answer, or a busy node."""

    def client(self) -> "SearchClient":
        """The one client that this thread has for it: several outputs of a pipeline may ask one cluster at a time."""
        return _client(self, threading.get_ident())

    def headers(self) -> dict[str, str]:
        """What each request says of who we are."""
        if self.api_key is not None:
            return {"Authorization": f"ApiKey {self.api_key}"}
        if self.user is None:
            return {}
        token = base64.b64encode(f"{self.user}:{self.password or ''}".encode()).decode()
        return {"Authorization": f"Basic {token}"}


@lru_cache(maxsize=16)
def _client(cluster: SearchCluster, thread: int) -> "SearchClient":
    del thread
    return SearchClient(cluster)


class SearchAnswer(NamedTuple):
    """What a request was answered."""

    status: int
    content: bytes

    def json(self) -> Any:
        """The content. Raises `ValueError` where it is no JSON, cut off or empty."""
        return json.loads(self.content)

    @property
    def is_of_server(self) -> bool:
        """Whether a search server says this itself. That there is no such index is not a proxy's to say, and proxies
        answer 404 for as long as they know of no server behind them.
        """
        try:
            answer = self.json()
        except ValueError:
            return False
        if not isinstance(answer, dict):
            return False
        error = answer.get("error")
        return "type" in error if isinstance(error, dict) else not answer.keys().isdisjoint(_OF_SERVER)


class SearchClient:
    """Asks a cluster. One thread at a time."""

    def __init__(self, cluster: SearchCluster, clock: Clock | None = None) -> None:
        self.cluster = cluster
        self._clock = clock or SystemClock()
        self._nodes = [_SearchNode(url, cluster) for url in cluster.urls]
        self._at = 0

    @property
    def name(self) -> str:
        """How errors call it."""
        return self._nodes[self._at].name

    def backoff(self) -> Backoff:
        """How long something that it does not take is tried again."""
        return Backoff(*_WAIT_MS, total_ms=self.cluster.retry_ms_max, clock=self._clock)

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, may: tuple[int, ...] = ()) -> Any:
        """Send JSON and return the answer's; None for a status of `may`, which are no errors.

        Raises `ServiceUnavailable` if no node answers for `retry_ms_max`, or another server does, and what `error_of`
        says.
        """
        content = None if body is None else json.dumps(body).encode()
        answer = self.send(method, path, content, "application/json")
        if answer.status in may and answer.is_of_server:
            return None
        if answer.status >= 300:
            raise self.error_of(answer, f"{method} {path}")
        try:
            value = answer.json()
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self.error_of(answer, f"{method} {path}")
        return value

    def send(self, method: str, path: str, content: bytes | None, kind: str) -> SearchAnswer:
        """Send a body and return the answer, whatever its status, unless all nodes are gone or busy for too long."""
        backoff = self.backoff()
        while True:
            why: str
            try:
                answer = self._nodes[self._at].send(method, path, content, kind)
                if answer.status not in _BUSY:
                    return answer
                why = f"status {answer.status}: {reason_of(answer)}"
            except NoAnswer as gone:
                why = str(gone)
            if backoff.is_over:
                raise ServiceUnavailable(f"{self.name} does not take {method} {path.partition('?')[0]}: {why}")
            self._at = (self._at + 1) % len(self._nodes)
            backoff.sleep()

    def error_of(self, answer: SearchAnswer, what: str) -> Exception:
        """What a status that is none of success means."""
        message = f"{self.name}: {what.partition('?')[0]}: status {answer.status}: {reason_of(answer)}"
        if answer.status in (401, 403) and "cluster_block" not in message:
            return AccessDenied(f"{message}. Look at `user`, `password`, `api_key` and at what they may do")
        if "cluster_block" in message or "disk" in message:
            return DiskFull(f"{message}. It is tried again")
        if "index_closed" in message:
            return ServiceUnavailable(f"{message}. It is tried again, until the index is open")
        if answer.status < 300 or (answer.status == 404 and not answer.is_of_server):
            return ServiceUnavailable(f"{message}. This is no answer of a search server: perhaps of a proxy before it")
        if answer.status >= 500:
            return ServiceUnavailable(message)
        return InputError(message) if answer.status in (400, 404, 405, 413) else FatalError(message)


def reason_of(answer: SearchAnswer) -> str:
    """What an answer says is wrong, in a line."""
    try:
        error = answer.json()["error"]
        return error if isinstance(error, str) else f"{error['type']}: {error['reason']}"[:1000]
    except (ValueError, KeyError, TypeError):
        return answer.content[:200].decode(errors="replace") or "no reason given"


class SearchAnswerTooLarge(ServiceUnavailable):
    """More bytes than an answer may have, of which nothing is known; fewer documents may be asked for."""


class _SearchNode:
    """One address and the connection to it."""

    def __init__(self, url: str, cluster: SearchCluster) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigError(
                f"url {url!r}: expected http://host:port or https://host:port, without a name or password"
            )
        self._prefix = parts.path.rstrip("/")
        self._headers = cluster.headers()
        self._connection = KeptConnection(
            parts.hostname,
            parts.port or _PORT,
            is_tls=parts.scheme == "https",
            access=Access.of(ca_file=cluster.ca_file),
            connect_ms_max=cluster.connect_ms_max,
            request_ms_max=cluster.request_ms_max,
        )
        self.name = self._connection.name

    def send(self, method: str, path: str, content: bytes | None, kind: str) -> SearchAnswer:
        """One request. Raises as `KeptConnection.ask`, and `SearchAnswerTooLarge`."""
        headers = {**self._headers, "Accept": "application/json"}
        if content is not None:
            headers["Content-Type"] = kind
        received = self._connection.ask(method, f"{self._prefix}{path}", content, headers, bytes_max=_ANSWER_BYTES_MAX)
        if not received.is_whole:
            raise SearchAnswerTooLarge(f"{self.name}: an answer of more than {_ANSWER_BYTES_MAX} bytes")
        is_good = received.status < 300
        return SearchAnswer(received.status, received.content if is_good else self._without_secrets(received.content))

    def _without_secrets(self, content: bytes) -> bytes:
        """What an error says, for logs: gateways repeat the header that they do not understand."""
        values = self._headers.values()
        words = [word for value in values for word in value.split()[1:]]
        return without_secrets(content.decode(errors="replace"), [*values, *words]).encode()
