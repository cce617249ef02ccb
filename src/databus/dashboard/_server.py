"""The dashboard's HTTP server: pages, API, and who may ask. Start with `Dashboard`.

It holds no truth: kill it, and nothing else changes. Every request passes `Dashboard._answer`, which checks host and
origin, sign-in, right, and parameters.
"""

import asyncio
import errno
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from databus.core import AccessDenied, ConfigError, DatabusError, MalformedRequest, RightMissing, TooManyRequests
from databus.dashboard._alert_config import Alerting
from databus.dashboard._answers import ANONYMOUS, ANSWERS, Answers, ApiCall
from databus.dashboard._board import Board
from databus.dashboard._endpoint import PREFIX, ApiEndpoint
from databus.dashboard._endpoint_table import ENDPOINTS
from databus.dashboard._guard import PAGE_HEADERS, RequestGuard
from databus.dashboard._history import History
from databus.dashboard._parts import Part
from databus.dashboard._rights import Principals
from databus.dashboard._sessions import Sessions
from databus.dashboard._watcher import Hook, Push, Watcher
from databus.operate import logger_of
from databus.relay import HTTP_LOGGER, Door, error_response, hide_from_pages, is_loopback

PAGES: Final = Path(__file__).parent / "pages"
_REQUEST_BYTES_MAX: Final = 1 << 16
_REQUEST_S_MAX: Final = 10.0
"""For a request's body; and for a connection until its first request with a sign-in."""
_SILENT_MAX: Final = 200
"""Connections that have not had a request with a sign-in."""
_WRITE_S_MAX: Final = 30.0
"""How long a reader may take for an answer."""
_SHUTDOWN_S: Final = 1.0
"""How long its end waits for requests, and for looks at parts."""
_LOOK_S: Final = 2.0
"""How often the file of principals is looked at."""
_TYPES: Final = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".json": "application/json",
}

_logger = logger_of("databus.dashboard")


@dataclass(frozen=True)
class DashboardConfig:
    """What a dashboard is started with."""

    listen: tuple[str, int]
    """Host and port."""
    parts: Sequence[tuple[str, Part]]
    """What it shows, with names; see `part_of_file`."""
    folder: Path
    """Where its audit log is, the history of charts, and what people have said of alerts."""
    principals_file: Path | None = None
    """Who may sign in; None: only the owner, by a link."""
    public_url: str | None = None
    """Its address for people, if there is a proxy before it."""
    hook: Hook | None = None
    """The web hook that gets alerts."""
    alerting: Alerting = field(default_factory=Alerting)
    """The rules, and where else alerts go."""
    pushes: Sequence[Push] = ()
    """Where numbers are sent."""
    connections_max: int = 500
    """Of people and programs that have signed in; further requests get 429."""
    address_connections_max: int = 200
    """The same for one address. Behind a proxy all have the proxy's address."""
    takes_any_port: bool = False
    """Whether it takes another port if another program listens at its own."""


class Dashboard:
    """Run it by `run`, until it is cancelled. on_link: called with each new address by which the owner signs in; only
    without a file of principals.
    """

    def __init__(self, config: DashboardConfig, on_link: Callable[[str], None] = lambda _: None) -> None:
        """Raises `ConfigError` for an invalid file of principals, or if there is none and strangers could ask."""
        host, _ = config.listen
        if config.principals_file is None and not (is_loopback(host) and config.public_url is None):
            raise ConfigError(
                f"{host} can be reached by others; say who may ask (--principals), or listen at 127.0.0.1"
            )
        self._config = config
        # Before it is read: a change during the reading is seen as one, and the file read again.
        self._principals_seen = None if config.principals_file is None else _seen(config.principals_file)
        self._principals = None if config.principals_file is None else Principals.in_file(config.principals_file)
        self._on_link = on_link
        self._pages = dict(_pages())
        self._history = History(config.folder)
        self.board = Board(config.parts, self._history)
        self._door = Door(_SILENT_MAX, _REQUEST_S_MAX)
        # Connections that have had a request with a sign-in, with their addresses.
        self._admitted: dict[asyncio.BaseTransport, str] = {}
        self.url = ""

    async def run(self, is_ready: Callable[[], None] = lambda: None) -> None:
        """Serve until cancelled. Raises `ConfigError` if the address cannot be had."""
        guard = RequestGuard(self._config.listen[0], self._config.public_url)
        runner = web.AppRunner(
            web.Application(client_max_size=_REQUEST_BYTES_MAX),
            access_log=None,
            logger=HTTP_LOGGER,
            handle_signals=False,
            shutdown_timeout=_SHUTDOWN_S,
            handler_cancellation=True,
        )
        sessions = Sessions(self._principals, lambda once: self._on_link(f"{self.url}/#once={once}"))
        config = self._config
        watcher = Watcher(self.board, config.folder, config.hook, config.alerting, config.pushes)
        answers = Answers(self.board, watcher, sessions, guard, self._config.folder)
        tasks: list[asyncio.Task[None]] = []
        listening: asyncio.Server | None = None
        try:
            self._route(runner.app, guard, answers)
            await runner.setup()
            listening = await self._bind(runner)
            # The port is in the name: browsers send cookies to all ports of a host.
            sessions.cookie += f"_{listening.sockets[0].getsockname()[1]}"
            sessions.begin()
            for watch in self.board.watches.values():
                watch.start()
            tasks = [asyncio.ensure_future(work) for work in (self._keep_principals(sessions), watcher.run())]
            is_ready()
            await asyncio.Event().wait()
        finally:
            for task in tasks:
                task.cancel()
            answers.end()
            if listening is not None:
                listening.close()
            await runner.cleanup()
            for watch in self.board.watches.values():
                watch.stop()
            ends_s = time.monotonic() + _SHUTDOWN_S  # for all of them together: many may wait for an answer
            for watch in self.board.watches.values():
                watch.wait(ends_s - time.monotonic())
            self._history.close()

    def _route(self, app: web.Application, guard: RequestGuard, answers: Answers) -> None:
        async def answer(endpoint: ApiEndpoint | None, request: web.Request) -> web.StreamResponse:
            return await self._answer(endpoint, request, guard, answers)

        for endpoint in ENDPOINTS:
            app.router.add_route(endpoint.method, f"{PREFIX}{endpoint.path}", partial(answer, endpoint))
        app.router.add_route("*", "/{rest:[\\s\\S]*}", partial(answer, None))
        app.on_response_prepare.append(hide_from_pages)
        app.on_response_prepare.append(_add_headers)

    async def _bind(self, runner: web.AppRunner) -> asyncio.Server:
        host, port = self._config.listen
        assert runner.server is not None  # noqa: S101 - it was set up
        try:
            factory = self._door.protocol_of(runner.server)
            listening = await asyncio.get_running_loop().create_server(factory, host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and self._config.takes_any_port and port:
                self._config = replace(self._config, listen=(host, 0))
                return await self._bind(runner)
            reason = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                reason = "another program listens there, perhaps another dashboard; choose another port by --listen"
            raise ConfigError(f"{host}:{port}: {reason}") from None
        host, port = listening.sockets[0].getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return listening

    async def _keep_principals(self, sessions: Sessions) -> None:
        """Read the file of principals again when it has changed. An invalid one changes nothing."""
        path = self._config.principals_file
        seen = self._principals_seen
        while path is not None:
            await asyncio.sleep(_LOOK_S)
            state = await asyncio.to_thread(_seen, path)
            if state == seen:
                continue
            seen = state
            try:
                sessions.take(await asyncio.to_thread(Principals.in_file, path))
                _logger.info("the principals have been read again", file=str(path))
            except ConfigError as error:
                _logger.warning("the file of principals is invalid; the earlier ones stay", message=str(error))

    async def _answer(
        self, endpoint: ApiEndpoint | None, request: web.Request, guard: RequestGuard, answers: Answers
    ) -> web.StreamResponse:
        try:
            guard.check_host(request.host)
            if endpoint is None:
                return await _send(request, self._page(request))
            call = await _call_of(endpoint, request, guard, answers.sessions)
            if call.principal is not ANONYMOUS:
                self._admit(request)
            return await _send(request, await ANSWERS[endpoint.key](answers, call))
        except DatabusError as error:
            return error_response(error)
        except web.HTTPException as error:
            return error_response(MalformedRequest(error.text or error.reason), error.status)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:  # a defect: the request gets an answer, the log the details
            _logger.exception("a request failed by a defect", path=request.path[:100])
            return error_response(DatabusError("a defect in the dashboard; its log has the details"))

    def _admit(self, request: web.Request) -> None:
        """Let the connection of a signed-in request stay. Raises `TooManyRequests`; then the connection ends.

        All others are at the door, which has a bound of its own: strangers cannot use up the connections of those who
        have signed in.
        """
        transport, config, address = request.transport, self._config, request.remote or ""
        if transport is None or transport in self._admitted:
            return
        self._admitted = {known: peer for known, peer in self._admitted.items() if not known.is_closing()}
        if len(self._admitted) >= config.connections_max:
            raise TooManyRequests(f"{config.connections_max} connections are open (--connections-max); ask again")
        if list(self._admitted.values()).count(address) >= config.address_connections_max:
            raise TooManyRequests(
                f"{config.address_connections_max} connections of {address} are open (--address-connections-max)"
            )
        self._admitted[transport] = address
        self._door.leave(transport)

    def _page(self, request: web.Request) -> web.Response:
        """A file of the pages. Any other path is not found."""
        page = self._pages.get(request.path if request.path != "/" else "/index.html")
        if page is None or request.path.startswith(f"{PREFIX}/"):
            raise web.HTTPNotFound(
                text=f"nothing at {request.path[:100]}; the API is described at {PREFIX}/openapi.json"
            )
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET"], text="a page can be read only")
        body, content_type, tag = page
        headers = {"ETag": tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=headers)


async def _send(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """Send an answer whole. A reader that takes too long loses the connection."""
    try:
        async with asyncio.timeout(_WRITE_S_MAX):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the answer was not read in time") from None
    return response


async def _call_of(endpoint: ApiEndpoint, request: web.Request, guard: RequestGuard, sessions: Sessions) -> ApiCall:
    """Read and check a request. Raises the error that it is answered with."""
    # Other schemes belong to a proxy before us, for which browsers send them to us as well.
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    is_program = scheme.lower() == "bearer"
    cookie = "" if is_program else request.cookies.get(sessions.cookie, "")
    if endpoint.changes:
        has_body = request.can_read_body or endpoint.has_body
        guard.check_change(request.headers, request.host, has_cookie=bool(cookie), has_body=has_body)
    else:
        guard.check_page(request.headers, request.host)
    call = ApiCall(request, endpoint, path=dict(request.match_info))
    principal = sessions.of_bearer(token) if is_program else sessions.of_cookie(cookie)
    if principal is not None:
        call.principal, call.cookie = principal, cookie
    if endpoint.right is not None:
        if principal is None:
            raise AccessDenied("sign in first: by the link that the dashboard printed, or with your token")
        if endpoint.right not in principal.rights:
            raise RightMissing(f"{endpoint.key}: needs the right `{endpoint.right}`, which {principal.name} lacks")
    call.given = endpoint.check(await _body_of(request) if endpoint.has_body else _query_of(request))
    return call


def _query_of(request: web.Request) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in request.query.items():
        if name in parameters:
            raise MalformedRequest(f"{name[:100]}: given twice")
        parameters[name] = value
    return parameters


async def _body_of(request: web.Request) -> Mapping[str, Any]:
    if request.query_string:
        raise MalformedRequest("parameters of what changes something stand in its body, not in the address")
    try:
        async with asyncio.timeout(_REQUEST_S_MAX):
            value = json.loads(await request.read() or b"{}")
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not come within {_REQUEST_S_MAX:.0f} s") from None
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedRequest("the body: expected a JSON object")
    return value


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(PAGE_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")


def _pages() -> list[tuple[str, tuple[bytes, str, str]]]:
    pages = []
    for path in sorted(PAGES.rglob("*")):
        if path.suffix in _TYPES:
            body = path.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            pages.append((f"/{path.relative_to(PAGES).as_posix()}", (body, _TYPES[path.suffix], tag)))
    return pages


def _seen(path: Path) -> tuple[int, ...] | None:
    with suppress(OSError):
        status = path.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns
    return None
