"""The relay's HTTP server: one port, in an event loop that has a thread of its own.

Every request passes `RelayServer._answer`: who asks, whether they may, and which error becomes which answer. The
commands of a relay are in `databus.relay._commands`.
"""

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from typing import Final, Protocol

from aiohttp import web

from databus.core import (
    ConfigError,
    DatabusError,
    MalformedRequest,
    PositionPurged,
    RightMissing,
    ServiceUnavailable,
    TooManyRequests,
)
from databus.operate import logger_of
from databus.relay._admission import HTTP_LOGGER, error_response, hide_from_pages
from databus.relay._certificates import LOOK_S, RelayCertificates
from databus.relay._config import RelayConfig, is_loopback
from databus.relay._door import Door
from databus.relay._grant import Grant
from databus.relay._stats import Stats
from databus.relay._tls import Tls
from databus.relay._tokens import Keys, keep_renewing

NAME_LENGTH_MAX: Final = 100
_START_S_MAX: Final = 30.0
_STOP_S_MAX: Final = 10.0
_SHUTDOWN_S: Final = 1.0
_BACKLOG: Final = 1024  # connections that the kernel holds
_ACCEPTS_A_TURN_MAX: Final = 64  # and those taken from it before streams get their turn
_ANSWERED_ALWAYS: Final = frozenset({"admin", "metrics", "controlSources"})

_logger = logger_of("databus.relay")


class Answering(Protocol):
    """Who answers requests; a relay's `Commands`."""

    stats: Stats

    async def run(self, request: web.Request, client: str, grant: Grant) -> web.StreamResponse:
        """Answer one request of the holder of a grant. Raises a `DatabusError` to be made an answer."""
        ...

    def end(self) -> None:
        """Have what is open end. In the loop's thread."""


class RelayServer:
    """Serves `commands`. `start` binds and returns; `stop` ends every stream and gives the port back."""

    def __init__(self, config: RelayConfig, who: str = "relay") -> None:
        """Read the files of tokens and certificates. Raises `ConfigError` that names the one that is wrong. who: what
        errors call it.
        """
        self._config = config
        self._who = who
        self._keys = Keys(config, who)
        self._thread = threading.Thread(target=self._run, name=f"{who}-http", daemon=True)
        self._bound = threading.Event()
        self._error: BaseException | None = None
        self._ending: asyncio.Event | None = None
        self._runner: web.AppRunner | None = None
        self._commands: Answering | None = None
        self._door = Door(config.serve.silent_max, config.serve.request_ms_max / 1e3)
        self._certificates = None if config.tls is None else RelayCertificates(config.tls)
        self._asking: dict[int, tuple[web.Request, Grant, asyncio.Task[None] | None]] = {}  # who, as whom, by what
        self._handshakes = 0  # connections at the door that are not the HTTP server's yet
        self.loop = asyncio.new_event_loop()
        self.port = 0

    def start(self, commands: Answering) -> None:
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
            if self._error.errno == errno.EADDRINUSE:  # asyncio's own words name the address once more, as a tuple
                reason = (
                    f"another program listens there, perhaps another {self._who}; stop it, or write another port here"
                )
            raise ConfigError(f"listen: {self._config.listen}: {reason}")

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
        app.router.add_route("*", r"/{command:[^/]*}{rest:[\s\S]*}", self._answer)  # a line feed may be in a path
        app.on_response_prepare.append(hide_from_pages)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=HTTP_LOGGER,
            handler_cancellation=True,
            handle_signals=False,
            max_line_size=limit,
            max_field_size=limit,
            shutdown_timeout=_SHUTDOWN_S,
            keepalive_timeout=self._config.serve.idle_ms_max / 1e3,
        )
        await self._runner.setup()
        listening: asyncio.Server | None = None
        read = [self._keys] if self._certificates is None else [self._keys, self._certificates]
        looking = [asyncio.ensure_future(task) for task in (keep_renewing(*read), self._keep_out())]
        try:
            listening = await self._listen(self._runner)
            self._bound.set()
            await self._ending.wait()
        finally:
            for task in looking:
                task.cancel()
            if listening is not None:
                listening.close()
            await self._runner.cleanup()

    async def _keep_out(self) -> None:
        """Cut off those who are being answered by a token that has gone: a stream may last for months."""
        seen = self._keys.renewals
        while True:
            await asyncio.sleep(LOOK_S)
            if seen == self._keys.renewals:
                continue
            seen = self._keys.renewals
            for request, grant, task in tuple(self._asking.values()):
                if task is not None and not self._keys.still_admits(request, grant):
                    _logger.info("cut off: its token has gone", access=grant.name, path=request.path[:100])
                    task.cancel()  # which resets the connection: what came does not look complete

    async def _listen(self, runner: web.AppRunner) -> asyncio.Server:
        assert runner.server is not None  # noqa: S101 - it was set up
        host, port = self._config.address
        factory = self._door.protocol_of(runner.server if self._certificates is None else self._tls_of(runner.server))
        listening = await self.loop.create_server(factory, host, port, backlog=_ACCEPTS_A_TURN_MAX)
        for listener in listening.sockets:
            with listener.dup() as same:  # asyncio takes one number for both
                same.listen(_BACKLOG)
        self.port = listening.sockets[0].getsockname()[1]
        return listening

    def _tls_of(self, server: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        certificates = self._certificates
        assert certificates is not None  # noqa: S101 - asked before

        def note(count: int) -> None:
            self._handshakes += count

        return lambda: Tls(certificates.context, server, note)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        assert self._commands is not None  # noqa: S101 - bound after it was given
        began = time.monotonic()
        command = request.match_info["command"]
        client, access, is_error = "unknown", "", True
        try:
            grant = self._keys.admit(request)
            access = grant.name
            self._asking[id(request)] = request, grant, asyncio.current_task()
            self._door.leave(request.transport)
            is_crowded = self._check_room(command)
            client = _client_of(request)
            response = await self._commands.run(request, client, grant)
            if is_crowded and not response.prepared:
                response.force_close()
            is_error = False
            return response
        except DatabusError as error:
            if isinstance(error, RightMissing):
                _logger.warning("refused", access=access, client=client, path=request.path[:100], message=str(error))
            if isinstance(error, PositionPurged) and self._config.bootstrap is not None:
                error.bootstrap = self._config.bootstrap.url
            return error_response(error)
        except web.HTTPException as error:
            return error_response(
                MalformedRequest(error.text or error.reason), error.status, error.headers.get("Allow")
            )
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            _logger.exception("request failed by a defect", path=request.path, client=client, access=access)
            return error_response(DatabusError(f"a defect in the {self._who}; its log has the details"))
        finally:
            self._asking.pop(id(request), None)
            now_us = time.time_ns() // 1000
            self._commands.stats.note(
                client, command, access, is_error=is_error, seconds=time.monotonic() - began, now_us=now_us
            )

    def _check_room(self, command: str) -> bool:
        """Whether there are more connections than there may be. Then raise, unless an operator asks."""
        connections = 0 if self._runner is None or self._runner.server is None else len(self._runner.server.connections)
        connections -= len(self._door) - self._handshakes
        if connections <= self._config.serve.connections_max:
            return False
        if command not in _ANSWERED_ALWAYS:
            raise TooManyRequests(
                f"{connections} connections, connections_max={self._config.serve.connections_max}; ask again"
            )
        return True


def _client_of(request: web.Request) -> str:
    """What a client calls itself, else where it is."""
    name = request.headers.get("x-dbus-client") or (request.query_string and request.query.get("client")) or ""
    name = "".join(c for c in name[:NAME_LENGTH_MAX] if c.isprintable())
    if name:
        return name
    remote = request.remote or "unknown"
    return "localhost" if is_loopback(remote) else remote
