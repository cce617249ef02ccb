"""The relay's HTTP server: one port, in an event loop that has a thread of its own.

Every request passes `Server._answer`: who asks, whether they may, and which error becomes which answer. The commands
are in `databus.relay._commands`.
"""

import asyncio
import hmac
import json
import threading
import time
from typing import Any, Final

import structlog
from aiohttp import web

from databus.core import ConfigError, DatabusError, MalformedRequest, TooMany, Unauthorized, Unavailable
from databus.relay._commands import Commands
from databus.relay._config import RelayConfig, is_loopback

NAME_LENGTH_MAX: Final = 100
_START_S_MAX: Final = 30.0
_STOP_S_MAX: Final = 10.0
_SHUTDOWN_S: Final = 1.0
_BACKLOG: Final = 1024
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
        self.loop = asyncio.new_event_loop()
        self.port = 0

    def start(self, commands: Commands) -> None:
        """Bind and serve. Raises `ConfigError` if the address cannot be had, and what else went wrong."""
        self._commands = commands
        self._thread.start()
        if not self._bound.wait(_START_S_MAX):
            raise Unavailable(f"listen: {self._config.listen}: not bound within {_START_S_MAX:.0f} s; try again")
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
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            handle_signals=False,
            max_line_size=limit,
            max_field_size=limit,
            shutdown_timeout=_SHUTDOWN_S,
        )
        await self._runner.setup()
        try:
            host, port = self._config.address
            await web.TCPSite(self._runner, host, port, backlog=_BACKLOG).start()
            self.port = self._runner.addresses[0][1]
            self._bound.set()
            await self._ending.wait()
        finally:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert self._commands is not None  # noqa: S101 - bound after it was given
        began = time.monotonic()
        command = request.match_info["command"]
        client, is_error = "unknown", True
        try:
            self._admit(request)
            client = _client_of(request)
            response = await self._commands.run(command, request, client)
            is_error = False
            return response
        except DatabusError as error:
            return error_response(error)
        except web.HTTPException as error:
            return error_response(MalformedRequest(error.text or error.reason), error.status)
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
        connections = 0 if self._runner is None or self._runner.server is None else len(self._runner.server.connections)
        if connections > self._config.serve.connections_max:
            raise TooMany(f"{connections} connections, connections_max={self._config.serve.connections_max}; ask again")
        if self._token is not None:
            given = request.headers.get("Authorization", "").encode(errors="surrogateescape")
            if not hmac.compare_digest(given, self._token):
                raise Unauthorized("this relay wants a token: send the header `Authorization: Bearer TOKEN`")
            return
        if not is_loopback(_host_of(request.host)) or "Origin" in request.headers:
            raise Unauthorized(
                "this relay has no token, so it answers only programs that address it as localhost; "
                "set token_file to let others in"
            )


def _host_of(host: str) -> str:
    """The Host header without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host


def _client_of(request: web.Request) -> str:
    """What a client calls itself, else where it is."""
    name = request.headers.get("x-dbus-client") or request.query.get("client") or ""
    name = "".join(c for c in name[:NAME_LENGTH_MAX] if c.isprintable())
    if name:
        return name
    remote = request.remote or "unknown"
    return "localhost" if is_loopback(remote) else remote


def error_response(error: DatabusError, status: int | None = None) -> web.Response:
    """An error as an answer: its status, the seeds' headers, and a JSON body."""
    message = str(error)[:_MESSAGE_LENGTH_MAX]
    name = type(error).__name__
    value: dict[str, Any] = {"error": name, "message": message}
    return web.Response(
        status=status or error.http_status,
        body=json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace") + b"\n",
        content_type="application/json",
        headers={"x-dbus-error": name, "x-dbus-error-message": _header_text(message)},
    )


def _header_text(text: str) -> str:
    """Text that a header can carry: one line of printable ASCII."""
    line = " ".join(text.split())
    return "".join(c if " " <= c <= "~" else "?" for c in line)
