"""The relay's HTTP server: one port, in an event loop that has a thread of its own.

Every request passes `Server._answer`: who asks, whether they may, and which error becomes which answer. The commands
are in `databus.relay._commands`.
"""

import asyncio
import hmac
import json
import threading
import time
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web

from databus.core import AccessDenied, ConfigError, DatabusError, MalformedRequest, ServiceUnavailable, TooManyRequests
from databus.relay._commands import Commands
from databus.relay._config import RelayConfig, is_loopback
from databus.relay._door import Door

NAME_LENGTH_MAX: Final = 100
_START_S_MAX: Final = 30.0
_STOP_S_MAX: Final = 10.0
_SHUTDOWN_S: Final = 1.0
_BACKLOG: Final = 1024  # connections that the kernel holds
_ACCEPTS_A_TURN_MAX: Final = 64  # and those taken from it before streams get their turn
_ANSWERED_ALWAYS: Final = frozenset({"admin", "metrics", "controlSources"})
_FOR_NO_PAGE: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
"""What tells browsers to show nothing of the relay to another origin's pages, by whatever tag they ask."""
_MESSAGE_LENGTH_MAX: Final = 2_000

_logger = structlog.get_logger("databus.relay")


class Server:
    """Serves `commands`. `start` binds and returns; `stop` ends every stream and gives the port back."""

    def __init__(self, config: RelayConfig, token: str | None) -> None:
        self._config = config
        self._token = None if token is None else f"Bearer {token}".encode()
        self._thread = threading.Thread(target=self._run, name="relay-http", daemon=True)
        self._bound = threading.Event()
        self._error: BaseException | None = None
        self._ending: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None
        self._commands: Commands | None = None
        self._door = Door(config.serve)
        self.loop = asyncio.new_event_loop()
        self.port = 0

    def start(self, commands: Commands) -> None:
        """Bind and serve. Raises `ConfigError` if the address cannot be had, and what else went wrong."""
        self._commands = commands
        self._thread.start()
        if not self._bound.wait(_START_S_MAX):
            raise ServiceUnavailable(f"listen: {self._config.listen}: not bound within {_START_S_MAX:.0f} s; try again")
        if self._error is not None:
            self._thread.join(_STOP_S_MAX)
            if not isinstance(self._error, OSError):
                raise self._error
            reason = self._error.strerror or str(self._error)
            raise ConfigError(f"listen: {self._config.listen}: {reason}; is a relay running there already?")

    def stop(self) -> None:
        """End all streams and close the port. Callable twice, and after a failed start."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end)
            self._thread.join(_STOP_S_MAX)
        elif not self.loop.is_closed():
            self.loop.close()

    def _end(self) -> None:
        if self._ending is not None and self._commands is not None:
            self._commands.end()
            self._ending.set()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except BaseException as error:
            if self._bound.is_set():
                raise
            self._error = error
        finally:
            self._bound.set()
            self.loop.close()

    async def _main(self) -> None:
        self._ending = asyncio.Event()
        limit = self._config.serve.request_bytes_max
        app = web.Application(client_max_size=limit)
        app.router.add_route("*", "/{command:[^/]*}{rest:.*}", self._answer)
        app.on_response_prepare.append(_hide_from_pages)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            handle_signals=False,
            max_line_size=limit,
            max_field_size=limit,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=self._config.serve.idle_ms_max / 1e3,
        )
        await self._runner.setup()
        listening: asyncio.Server | None = None
        try:
            listening = await self._listen(self._runner)
            self._bound.set()
            await self._ending.wait()
        finally:
            if listening is not None:
                listening.close()
            await self._runner.cleanup()

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None  # noqa: S101 - it was set up
        host, port = self._config.address
        factory = self._door.protocol_of(runner.server)
        listening = await self.loop.create_server(factory, host, port, backlog=_ACCEPTS_A_TURN_MAX)
        for each in listening.sockets:
            with each.dup() as same:  # asyncio takes one number for both
                same.listen(_BACKLOG)
        self.port = listening.sockets[0].getsockname()[1]
        return listening

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert self._commands is not None  # noqa: S101 - bound after it was given
        began = time.monotonic()
        command = request.match_info["command"]
        client, is_error = "unknown", True
        self._door.leave(request.transport)
        try:
            self._admit(request)
            is_crowded = self._check_room(command)
            client = _client_of(request)
            response = await self._commands.run(command, request, client)
            if is_crowded and not response.prepared:
                response.force_close()
            is_error = False
            return response
        except DatabusError as error:
            return error_response(error)
        except web.HTTPException as error:
            return error_response(
                MalformedRequest(error.text or error.reason), error.status, error.headers.get("Allow")
            )
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            _logger.exception("request failed by a defect", path=request.path, client=client)
            return error_response(DatabusError("a defect in the relay; its log has the details"))
        finally:
            now_us = time.time_ns() // 1000
            self._commands.stats.note(
                client, command, is_error=is_error, seconds=time.monotonic() - began, now_us=now_us
            )

    def _admit(self, request: web.Request) -> None:
        """Raise unless whoever asks may. Without a token only this machine may, and no web page that it shows."""
        if self._token is not None:
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, self._token):
                said = "the token is not this relay's" if given else "this relay wants a token"
                raise AccessDenied(f"{said}: send the header `Authorization: Bearer TOKEN`")
            return
        if not is_loopback(_host_of(request.host)):
            raise AccessDenied(
                f"this relay has no token, so it answers only who addresses it as localhost, not as "
                f"{request.host[:100]!r}; set token_file to let others in"
            )
        if _is_of_a_page(request):
            raise AccessDenied(
                "this relay has no token, so it does not answer web pages (the request has an Origin, or a "
                "Sec-Fetch-Site of another site); set token_file to let others in"
            )

    def _check_room(self, command: str) -> bool:
        """Whether there are more connections than there may be. Then raise, unless an operator asks."""
        connections = 0 if self._runner is None or self._runner.server is None else len(self._runner.server.connections)
        connections -= len(self._door)
        if connections <= self._config.serve.connections_max:
            return False
        if command not in _ANSWERED_ALWAYS:
            raise TooManyRequests(
                f"{connections} connections, connections_max={self._config.serve.connections_max}; ask again"
            )
        return True


def _is_of_a_page(request: web.Request) -> bool:
    """Whether a browser asks because a page of another origin had it do so; the relay itself has no pages.

    `none` is what a person typed into the address bar: they may look.
    """
    site = request.headers.get("Sec-Fetch-Site", "none")
    return "Origin" in request.headers or site not in ("none", "same-origin")


async def _hide_from_pages(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_FOR_NO_PAGE)


def _host_of(host: str) -> str:
    """The Host header without its port; empty where it is none."""
    if host.startswith("["):
        address, _, behind = host[1:].partition("]")
        return address if not behind or (behind[0] == ":" and behind[1:].isdigit()) else ""
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _client_of(request: web.Request) -> str:
    """What a client calls itself, else where it is."""
    name = request.headers.get("x-dbus-client") or request.query.get("client") or ""
    name = "".join(c for c in name[:NAME_LENGTH_MAX] if c.isprintable())
    if name:
        return name
    remote = request.remote or "unknown"
    return "localhost" if is_loopback(remote) else remote


def error_response(error: DatabusError, status: int | None = None, allow: str | None = None) -> web.Response:
    """An error as an answer: its status, the seeds' headers, and a JSON body. Who may not ask, or not now, is let go.

    allow: the methods that there are instead.
    """
    message = str(error)[:_MESSAGE_LENGTH_MAX]
    name = type(error).__name__
    value: dict[str, Any] = {"error": name, "message": message}
    headers = {"x-dbus-error": name, "x-dbus-error-message": _header_text(message)}
    response = web.Response(
        status=status or error.http_status,
        body=json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n",
        content_type="application/json",
        headers=headers if allow is None else {**headers, "Allow": allow},
    )
    if isinstance(error, AccessDenied | TooManyRequests) or response.status == HTTPStatus.REQUEST_TIMEOUT:
        response.force_close()
    return response


def _header_text(text: str) -> str:
    """Text that a header can carry: one line of printable ASCII."""
    line = " ".join(text.split())
    return "".join(c if " " <= c <= "~" else "?" for c in line)
