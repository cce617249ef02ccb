"""The commands of the relay's HTTP interface, each a function of its parameters; `COMMANDS` lists them.

What reads the disk runs in a few threads, so that one consumer's cold read does not delay another's live stream.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from aiohttp import web

from databus.core import Checkpoint, MalformedRequest, TooManyRequests
from databus.log import Log
from databus.relay import _control
from databus.relay._audit import Audit
from databus.relay._avro_registry import SchemaRegistry
from databus.relay._avro_registry_http import RegistryCommands
from databus.relay._catalog import Catalog, Selection
from databus.relay._config import RelayConfig
from databus.relay._feed import Feed
from databus.relay._params import START_NAMES, StartName, check_names, fingerprint, flag, integer, names, start_of
from databus.relay._range import RANGE_NAMES, RangeAsk, RangeScan, find_range
from databus.relay._stats import Stats
from databus.relay._stream import StreamAsk, Streaming, open_cursor
from databus.relay._tail import Tail

T = TypeVar("T")

_READ_THREADS: Final = 4
_SMALL_THREADS: Final = 4
_EVERYWHERE: Final = frozenset({"client"})


class Commands:
    """Answers requests from a catalogue; `close` when no more will come."""

    def __init__(self, config: RelayConfig, catalog: Catalog, feeds: Mapping[str, Feed]) -> None:
        self.stats = Stats(config.serve.clients_max)
        self._config = config
        self._limits = config.serve
        self._catalog = catalog
        self._feeds = feeds
        self._readers = ThreadPoolExecutor(_READ_THREADS, "relay-read")
        self._small = ThreadPoolExecutor(_SMALL_THREADS, "relay-small")
        self._tails: dict[str, Tail] = {}
        self._waiting = 0  # streams and long polls
        self._audit = Audit(config.folder)
        registry = SchemaRegistry(config.folder, config.registry.compatibility)
        self._registry = RegistryCommands(registry, config.serve.request_ms_max, self._in_thread)

    def end(self) -> None:
        """Have streams and long polls end: those that follow between two groups. In the loop's thread."""
        for feed in self._feeds.values():
            feed.end()

    def close(self) -> None:
        """Let go of the threads."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._small.shutdown(wait=False, cancel_futures=True)

    async def run(self, command: str, request: web.Request, client: str) -> web.StreamResponse:
        """Answer one request. Raises a `DatabusError` to be made an answer."""
        found = COMMANDS.get(command)
        if found is None:
            raise web.HTTPNotFound(
                text=f"no command /{command[:100]}; there are {', '.join(f'/{c}' for c in COMMANDS)}"
            )
        if request.method not in ("GET", "POST", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET", "POST"], text=f"{request.method}: GET or POST")
        try:
            async with asyncio.timeout(self._limits.request_ms_max / 1e3):
                query = await _query_of(request)
        except TimeoutError:
            limit = f"request_ms_max={self._limits.request_ms_max}"
            raise web.HTTPRequestTimeout(text=f"the form did not come within {limit}; ask again") from None
        path = [part for part in request.match_info["rest"].split("/") if part]
        return await found(self, _Ask(request, path, query, client))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._small, work)

    async def _in_reader(self, work: Callable[[], T]) -> T:
        """In one of the threads that scan; each piece of work there is short, so that all get their turn."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work)

    @contextmanager
    def _a_place(self) -> Iterator[None]:
        """One of the places for those who wait or stream."""
        if self._waiting >= self._limits.streams_max:
            raise TooManyRequests(
                f"{self._waiting} streams and long polls are open, streams_max={self._limits.streams_max}"
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    # Sources and their definitions

    async def sources(self, ask: "_Ask") -> web.Response:
        """GET /sources?v=1|2."""
        ask.check(frozenset({"v"}))
        version = integer(ask.query, "v", 1, least=1, most=2)
        return _json(self._catalog.sources(detailed=version == 2))

    async def register(self, ask: "_Ask") -> web.Response:
        """GET /register?sources=|fingerprint=."""
        ask.check(frozenset({"physical", "sources", "fingerprint", "protocolVersion"}))
        return _json(
            self._catalog.definitions(
                ask.query.get("physical"), names(ask.query, "sources"), fingerprint(ask.query, "fingerprint")
            )
        )

    async def registry(self, ask: "_Ask") -> web.Response:
        """/registry/...: see `databus.relay._avro_registry_http`."""
        return await self._registry.answer(ask.request)

    # Positions and changes

    async def stream(self, ask: "_Ask") -> web.StreamResponse:
        """GET /stream: see `databus.relay._stream`."""
        wanted = StreamAsk.parse(ask.query, ask.request.headers.get("Accept", ""), self._limits.wait_ms_max)
        capture = self._catalog.choose(wanted.physical, wanted.sources, wanted.checkpoint)
        log = self._catalog.log_of(capture)
        with self._a_place():
            streaming = Streaming(
                ask.request,
                wanted,
                log=log,
                feed=self._feeds[log.physical],
                tail=self._tail_of(log),
                reader=self._readers,
                stats=self.stats,
                client=ask.client,
                now_us=time.time_ns() // 1000,
                write_ms_max=self._limits.write_ms_max,
            )
            return await streaming.serve()

    def _tail_of(self, log: Log) -> Tail:
        """Where those stand who have been sent all of a log; in the loop's thread."""
        tail = self._tails.get(log.physical)
        if tail is None or tail.log is not log:
            tail = self._tails[log.physical] = Tail(
                log, self._feeds[log.physical], self._small, self._limits.tail_bytes_max
            )
        return tail

    async def position(self, ask: "_Ask") -> web.Response:
        """GET /position: the checkpoint that a start means, and what the log holds."""
        ask.check(START_NAMES | {"physical", "sources"})
        start = start_of(ask.query, StartName.LATEST)
        checkpoint = start if isinstance(start, Checkpoint) else None
        capture = self._catalog.choose(ask.query.get("physical"), names(ask.query, "sources"), checkpoint)
        log = self._catalog.log_of(capture)

        def find() -> dict[str, Any]:
            position = open_cursor(log, start).position
            head = log.head()
            return {
                "physical": log.physical,
                "uuid": log.identity.uuid,
                "log": log.uuid,
                "position": position.to_json(),
                "oldest": head.oldest.to_json(),
                "published": head.published.to_json(),
                "published_us": head.published.ts_us,
            }

        return _json(await self._in_reader(find))

    async def range(self, ask: "_Ask") -> web.Response:
        """GET /range: how far some rows or bytes reach, and where to split them; see `databus.relay._range`."""
        ask.check(RANGE_NAMES)
        wanted = RangeAsk.parse(ask.query, self._limits.wait_ms_max)
        capture = self._catalog.choose(wanted.physical, wanted.sources, wanted.checkpoint)
        log = self._catalog.log_of(capture)
        selection = Selection(log.physical, wanted.sources)
        selection.check(log.schemas)
        with self._a_place():
            cursor = await self._in_reader(lambda: open_cursor(log, wanted.start))
            scan = RangeScan(log, cursor, wanted, selection)
            found = await find_range(scan, self._feeds[log.physical], wanted.wait_ms, self._in_reader)
            return _json({**found.to_json(), "log": log.uuid})

    # What there is to see and to do

    async def buffer_info(self, ask: "_Ask") -> web.Response:
        """GET /bufferInfo/inbound/<physical>."""
        ask.check()
        if len(ask.path) < 2 or ask.path[0] != "inbound":
            raise MalformedRequest("/bufferInfo: write /bufferInfo/inbound/<physical source>")
        log = self._catalog.log_of(self._catalog.physical(ask.path[1]))
        return _json(await self._in_thread(lambda: _control.buffer_info(log)))

    async def relay_stats(self, ask: "_Ask") -> web.Response:
        """GET /relayStats/outbound/http/{clients,client/<name>,total}."""
        ask.check()
        return _json(_control.relay_stats(self.stats, ask.path))

    async def container_stats(self, ask: "_Ask") -> web.Response:
        """GET /containerStats/{inbound,outbound}/..."""
        ask.check()
        return _json(_control.container_stats(self._catalog, self.stats, ask.path))

    async def control_sources(self, ask: "_Ask") -> web.Response:
        """GET /controlSources/status; POST /controlSources/{pause,unpause,snapshot}."""
        ask.check(frozenset({"sources", "tables", "where", "look"}))
        looks = flag(ask.query, "look")
        wanted, tables, where = names(ask.query, "sources"), names(ask.query, "tables"), ask.query.get("where")
        verb = "/".join(ask.path)

        def act() -> Any:
            return _control.control(self._catalog, ask.path, wanted, tables, where, looks=looks and verb == "status")

        if verb not in _control.ACTIONS:
            return _json(await self._in_thread(act))
        if ask.request.method != "POST":
            text = f"/controlSources/{verb} changes something: send it as POST (curl -X POST)"
            raise web.HTTPMethodNotAllowed(ask.request.method, ["POST"], text=text)
        asked = {"sources": wanted, "tables": tables, "where": where}
        return _json(await self._in_thread(lambda: self._audited(verb, ask, asked, act)))

    def _audited(self, action: str, ask: "_Ask", asked: Mapping[str, Any], act: Callable[[], Any]) -> Any:
        """Do it, and write down who wanted it and what came of it."""
        result = "done"
        try:
            return act()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._audit.note(action, self._who(ask), asked, result)

    def _who(self, ask: "_Ask") -> dict[str, Any]:
        token = self._config.token_file
        return {"address": ask.peer, "client": ask.client, "token": None if token is None else token.name}

    async def config(self, ask: "_Ask") -> web.Response:
        """GET /config: without secrets."""
        ask.check()
        return _json(self._config.shown())

    async def admin(self, ask: "_Ask") -> web.Response:
        """GET /admin, /admin/live: GOOD, as long as it can be said; /admin/ready: GOOD or BAD; /admin/status: why.

        The first two in the loop, so that nobody's cold read delays them.
        """
        match ask.path:
            case [] | ["live"]:
                ask.check()
                return web.Response(text="GOOD\n")
            case ["ready"]:
                ask.check(frozenset({"sources"}))
                is_ready, lines = _control.readiness(self._catalog, names(ask.query, "sources"))
                text = "\n".join(["GOOD" if is_ready else "BAD", *lines, ""])
                return web.Response(text=text, status=200 if is_ready else 503)
            case ["status"]:
                ask.check()
                return _json(await self._in_thread(lambda: _control.admin_status(self._catalog)))
        raise MalformedRequest("/admin: there are /admin, /admin/live, /admin/ready and /admin/status")

    async def help(self, ask: "_Ask") -> web.Response:
        """GET /help."""
        ask.check()
        return web.Response(text=HELP)

    async def metrics(self, ask: "_Ask") -> web.Response:
        """GET /metrics, for Prometheus."""
        from databus.relay._metrics import render_metrics  # late: it costs a relay's start, and may never be asked for

        ask.check()
        body, content_type = await self._in_thread(lambda: render_metrics(self._catalog, self.stats))
        return web.Response(body=body, headers={"Content-Type": content_type})


class _Ask:
    """One request: its path behind the command, its parameters, and who asks."""

    def __init__(self, request: web.Request, path: list[str], query: Mapping[str, str], client: str) -> None:
        self.request = request
        self.path = path
        self.query = query
        self.client = client
        peer = None if request.transport is None else request.transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "unknown"

    def check(self, allowed: frozenset[str] = frozenset()) -> None:
        """Refuse parameters that the command does not have."""
        check_names(self.query, allowed | _EVERYWHERE)


async def _query_of(request: web.Request) -> dict[str, str]:
    """The parameters in the address, and those in the body of a form, which may be longer."""
    pairs = list(request.query.items())
    if request.method == "POST" and request.content_type == "application/x-www-form-urlencoded":
        pairs += [(name, str(value)) for name, value in (await request.post()).items()]
    query: dict[str, str] = {}
    for name, value in pairs:
        if name in query:
            raise MalformedRequest(f"{name[:100]}: given twice")
        query[name] = value
    return query


def _json(value: Any) -> web.Response:
    return web.Response(
        body=json.dumps(value, ensure_ascii=False).encode() + b"\n", content_type="application/json", charset="utf-8"
    )


HELP: Final = """\
databus relay

/sources             names and ids of the sources; ?v=2 with versions and keys
/register            definitions: ?sources=names or ids, or ?fingerprint=
/registry            schemas of Avro messages, as a Confluent-compatible registry: schema.registry.url=URL/registry
/stream              changes of one physical source, in commit order
/position            the checkpoint that a start means, and what the log holds
/range               how far ?rows_max= or ?bytes_max= reach; ?partitions= splits it
/bufferInfo/inbound/NAME                                  what a log holds
/relayStats/outbound/http/{clients,client/NAME,total}     who asks, and how much
/containerStats/{inbound/events,outbound}/...             what came in and went out
/controlSources/status                                    ?sources=; &look=1 measures the lag first
/controlSources/{pause,unpause,snapshot}                  by POST; ?sources=; snapshot: &tables= &where=
/admin/live          GOOD as long as the relay answers; /admin too
/admin/ready         503 while no log can be served; ?sources= unless these are captured
/config  /admin/status  /metrics

/stream, /position and /range take
  physical=   one physical source; may be left out where it is clear
  sources=    comma list of names (shop/main.orders, main.orders, orders), patterns (main.*) or ids; default all
  and at most one place to start:
    from=CHECKPOINT | scn=N (after it) | time=ISO or microseconds | start=beginning|earliest|latest | checkPoint=JSON
/stream takes
  to=SCN[:SEQ]          ends after the group that reaches it
  follow=1              stays open and sends what comes
  wait_ms=N             otherwise: how long to wait for the first change
  max_bytes=N, size=N   whole groups up to so many bytes, one at least
  output=frames|json    or by the Accept header
  big_integers=number|string  JSON: integers beyond 2^53 as strings, for readers that hold numbers as doubles
/range takes to= too, and
  rows_max=N, bytes_max=N   whole groups that fit, one at least
  partitions=N              where to split that for several readers
  stop_at_controls=1        ends before a change of a table's schema and the like
  wait_ms=N                 how long to wait for rows or controls
Frames start at the beginning, JSON too, but with follow=1 at the end.
A long checkpoint may be sent as a form: curl URL --data-urlencode 'from=...'
"""

COMMANDS: Final[Mapping[str, Callable[[Commands, _Ask], Awaitable[web.StreamResponse]]]] = {
    "sources": Commands.sources,
    "register": Commands.register,
    "registry": Commands.registry,
    "stream": Commands.stream,
    "position": Commands.position,
    "range": Commands.range,
    "bufferInfo": Commands.buffer_info,
    "relayStats": Commands.relay_stats,
    "containerStats": Commands.container_stats,
    "controlSources": Commands.control_sources,
    "config": Commands.config,
    "admin": Commands.admin,
    "metrics": Commands.metrics,
    "help": Commands.help,
}
