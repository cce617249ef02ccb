"""The coordinator of a group: which relay it is, and calls to it. See `docs/http.md`, `POST /groups/NAME`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import databus.core
from databus.core import (
    ConfigError,
    DatabusError,
    FatalError,
    OtherCoordinator,
    ServiceUnavailable,
    StreamCut,
    TransientError,
)
from databus.link._connection import Kept, Sockets
from databus.link._http import Body, Endpoint
from databus.link._relay import RelayClient

_ANSWERS: Final = (HTTPStatus.OK, HTTPStatus.CONFLICT, HTTPStatus.MISDIRECTED_REQUEST)
_HOPS_MAX: Final = 3  # a relay that names another, which names another


class Groups:
    """The groups of a relay. Each call raises `OtherCoordinator` where another one coordinates."""

    def __init__(self, relay: RelayClient) -> None:
        self._relay = relay

    def page(self) -> Mapping[str, Any]:
        """All of them with how far they are behind, and the names whose state is lost."""
        page: Mapping[str, Any] = self._relay._get("/groups", {})  # noqa: SLF001 - the same package
        if not page["is_coordinator"]:
            raise OtherCoordinator(
                f"groups are coordinated by {page['coordinator']}; ask there (--relay)", coordinator=page["coordinator"]
            )
        return page

    def group(self, name: str, part: str = "") -> Mapping[str, Any]:
        """One group; or a part of what is said of it, such as `export`. Raises `UnknownGroup`, `GroupStateLost`."""
        page: Mapping[str, Any] = self._relay._get(_path(name, part), {})  # noqa: SLF001 - the same package
        return page

    def act(
        self, name: str, verb: str, query: Mapping[str, Any] | None = None, content: bytes | None = None
    ) -> Mapping[str, Any]:
        """Have one reset, resized, paused, resumed, deleted or imported; how it is then. Raises `GroupBusy` too."""
        page: Mapping[str, Any] = self._relay._post(_path(name, verb), query or {}, content)  # noqa: SLF001 - as above
        return page


def _path(name: str, part: str) -> str:
    path = f"/groups/{quote(name, safe='')}"
    return f"{path}/{part}" if part else path


@dataclass(frozen=True, slots=True)
class GroupAnswer:
    """What the coordinator said."""

    error: str
    """The name of what it refused with; empty where it did what was asked."""
    content: Mapping[str, Any]

    def to_error(self) -> DatabusError:
        """What was refused, as an error to raise."""
        kind = getattr(databus.core, self.error, FatalError)
        message = str(self.content.get("message") or self.error)
        return kind(message) if isinstance(kind, type) and issubclass(kind, DatabusError) else FatalError(message)


class CoordinatorClient:
    """Calls a group's coordinator. One thread calls; `interrupt` may come from another.

    relay: of one address, that relay is asked, and where it says. Several have to name the same coordinator.
    """

    def __init__(self, relay: RelayClient) -> None:
        self._endpoints: Sequence[Endpoint] = relay._peers.endpoints  # noqa: SLF001 - the same package
        self._endpoint: Endpoint | None = self._endpoints[0] if len(self._endpoints) == 1 else None
        self._sockets = Sockets()
        self._kept = Kept()  # members call each second
        self._is_closed = False

    def call(self, name: str, body: Mapping[str, Any], *, limit_ms: int, part: str = "") -> GroupAnswer:
        """One call. limit_ms: how long to wait for its answer, beyond what the call lets it wait. part: `/report` for
        a report, which nobody has to be a member for.

        Raises `ServiceUnavailable` without an answer, and what other errors the relay answers with.
        """
        endpoint = self._endpoint = self._endpoint or self._named_one(limit_ms)
        path = f"/groups/{quote(name, safe='')}"  # unquoted, a name such as "a/delete" would be another command
        for _ in range(_HOPS_MAX):
            answer, status = self._ask(endpoint, "POST", f"{path}{part}", body, limit_ms)
            if status != HTTPStatus.MISDIRECTED_REQUEST:
                self._endpoint = endpoint
                return GroupAnswer("" if status == HTTPStatus.OK else str(answer.get("error")), answer)
            endpoint = _at(endpoint, str(answer["coordinator"]))
        raise ConfigError(f"{endpoint.name}: the relays name each other as the coordinator of groups; see `groups`")

    def _named_one(self, limit_ms: int) -> Endpoint:
        """The coordinator that all relays which answer name. Which one answers must not decide who coordinates."""
        named: dict[str, str | None] = {}
        last: TransientError | None = None
        for endpoint in self._endpoints:
            try:
                answer, _ = self._ask(endpoint, "GET", "/groups?names=0", None, limit_ms)
            except TransientError as error:
                last = error
                continue
            named[endpoint.name] = answer.get("coordinator")
        if not named:
            raise ServiceUnavailable(f"no relay answers: {last}") from last
        urls = set(named.values())
        url = urls.pop()
        if urls or url is None:
            names = ", ".join(f"{name} names {coordinator or 'none'}" for name, coordinator in named.items())
            raise ConfigError(
                f"a name with several relays needs one coordinator, and {names}; give all of them the same "
                f"`groups: {{coordinator: URL}}`"
            )
        return _at(self._endpoints[0], url)

    def _ask(
        self, endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None, limit_ms: int
    ) -> tuple[Mapping[str, Any], int]:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        wait_ms = 0 if body is None else int(body.get("wait_ms", 0))
        bounded = replace(
            endpoint,
            connect_ms_max=min(endpoint.connect_ms_max, limit_ms),
            read_ms_max=min(endpoint.read_ms_max, limit_ms),
        )
        sockets = self._sockets
        try:
            answer = Body(
                bounded,
                sockets,
                path,
                {},
                wait_ms=wait_ms,
                method=method,
                content=content,
                expected=_ANSWERS,
                kept=self._kept,
            )
            return answer.json(), answer.status
        except StreamCut as error:
            raise ServiceUnavailable(str(error)) from error

    def interrupt(self) -> None:
        """End the call that waits; the next one is not affected."""
        sockets = self._sockets
        if not self._is_closed:
            self._sockets = Sockets()
        sockets.close()

    def close(self) -> None:
        """End the call that waits, and make no other. Callable twice."""
        self._is_closed = True
        self._sockets.close()
        self._kept.close()


def _at(endpoint: Endpoint, url: str) -> Endpoint:
    """The same token and files at another address. Raises `ConfigError` if they would go there in the clear."""
    return endpoint.named_by(url, "the coordinator of groups", "groups.coordinator")
