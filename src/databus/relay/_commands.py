"""Who answers the commands of the relay's HTTP interface; `ANSWERS` lists them. What they take stands in the table.

What reads the disk runs in a few threads, so that one consumer's cold read does not delay another's live stream.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from aiohttp import web

from databus.core import Checkpoint, TooManyRequests
from databus.log import Log
from databus.relay import _control
from databus.relay._ask import Ask
from databus.relay._ask import json_answer as _json
from databus.relay._audit import Audit
from databus.relay._avro_registry import SchemaRegistry
from databus.relay._avro_registry_http import RegistryCommands
from databus.relay._catalog import Catalog, Selection
from databus.relay._command_pages import help_text
from databus.relay._command_table import table
from databus.relay._config import RelayConfig
from databus.relay._copying import chain_json
from databus.relay._feed import Feed
from databus.relay._filters import Filters, check_filter, filter_of, seen_by
from databus.relay._grant import Grant
from databus.relay._group_commands import GroupCommands
from databus.relay._openapi import openapi
from databus.relay._params import StartName, start_of
from databus.relay._range import RangeAsk, RangeScan, find_range
from databus.relay._reload import Reloads
from databus.relay._routing import Router
from databus.relay._stats import Stats
from databus.relay._stream import StreamAsk, Streaming, open_cursor
from databus.relay._tail import Tail

T = TypeVar("T")

_READ_THREADS: Final = 4
_SMALL_THREADS: Final = 4


class Commands:
    """Answers requests from a catalogue; `close` when no more will come."""

    def __init__(self, config: RelayConfig, catalog: Catalog, feeds: Mapping[str, Feed], reloads: Reloads) -> None:
        self._router = Router(table(config.serve, config.groups), config.serve.request_ms_max)
        self.stats = Stats(config.serve.clients_max)
        self._config = config
        self._limits = config.serve
        self._catalog = catalog
        self._feeds = feeds
        self._reloads = reloads
        self._readers = ThreadPoolExecutor(_READ_THREADS, "relay-read")
        self._small = ThreadPoolExecutor(_SMALL_THREADS, "relay-small")
        self._tails: dict[str, Tail] = {}
        self._filters = Filters()
        self._waiting = 0  # streams and long polls
        self._audit = Audit(config.folder)
        registry = SchemaRegistry(config.folder, config.registry.compatibility)
        self._registry = RegistryCommands(registry, config.serve.request_ms_max, self._in_thread)
        self.groups = GroupCommands(config, self._in_reader, self._a_place, self._note)

    def end(self) -> None:
        """Have streams and long polls end: those that follow between two groups. In the loop's thread."""
        self.groups.keeper.end()
        for feed in tuple(self._feeds.values()):
            feed.end()

    def close(self) -> None:
        """Let go of the threads."""
        self.groups.keeper.close()
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._small.shutdown(wait=False, cancel_futures=True)

    async def run(self, request: web.Request, client: str, grant: Grant) -> web.StreamResponse:
        """Answer one request of the holder of a grant. Raises a `DatabusError` to be made an answer."""
        ask = await self._router.ask(request, client, grant, self._catalog.within(grant))
        return await ANSWERS[ask.command.path](self, ask)

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

    async def sources(self, ask: "Ask") -> web.Response:
        """GET /sources."""
        return _json(ask.catalog.sources(seen_by(ask.grant), detailed=ask.given["v"] == 2))

    async def register(self, ask: "Ask") -> web.Response:
        """GET /register."""
        given = ask.given
        behind = self._filters.behind(given, ask.grant)
        return _json(ask.catalog.definitions(given["physical"], given["sources"], given["fingerprint"], behind))

    async def registry(self, ask: "Ask") -> web.Response:
        """/registry/...: see `databus.relay._avro_registry_http`."""
        return await self._registry.answer(ask.request, ask.path[1:])

    async def no_registry(self, ask: "Ask") -> web.Response:
        """Whatever else is below /registry."""
        return self._registry.unknown(ask.path[1:])

    async def of_groups(self, ask: "Ask") -> web.StreamResponse:
        """/groups/...: see `databus.relay._group_commands`."""
        return await self.groups.answer(ask)

    # Positions and changes

    async def stream(self, ask: "Ask") -> web.StreamResponse:
        """GET /stream: see `databus.relay._stream`."""
        wanted = StreamAsk.of(ask.given, ask.request.headers.get("Accept", ""))
        capture = ask.catalog.choose(wanted.physical, wanted.sources, wanted.checkpoint)
        log = ask.catalog.log_of(capture)
        with self._a_place(), self._filters.use(filter_of(ask.given, log, ask.grant), log) as frames:
            streaming = Streaming(
                ask.request,
                wanted,
                log=log,
                feed=self._feeds[log.physical],
                tail=self._tail_of(log),
                frames=frames,
                reader=self._readers,
                stats=self.stats,
                client=ask.client,
                grant=ask.grant,
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

    async def position(self, ask: "Ask") -> web.Response:
        """GET /position: the checkpoint that a start means, and what the log holds."""
        start = start_of(ask.given, StartName.LATEST)
        checkpoint = start if isinstance(start, Checkpoint) else None
        capture = ask.catalog.choose(ask.given["physical"], ask.given["sources"], checkpoint)
        log = ask.catalog.log_of(capture)

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

    async def chain(self, ask: "Ask") -> web.Response:
        """GET /chain: what another relay has to know that keeps a copy of a log."""
        capture, start = ask.catalog.choose(ask.given["physical"], None), ask.given["start"]
        known = -1 if ask.given["definitions"] is None else ask.given["definitions"]

        def find() -> dict[str, Any]:
            return chain_json(
                capture.physical,
                capture.copy.hops(),
                capture.log,
                start=str(start),
                known=known,
                state=capture.describe(),
                lag_ms=capture.lag.behind_ms,
            )

        return _json(await self._in_thread(find))

    async def range(self, ask: "Ask") -> web.Response:
        """GET /range: how far some rows or bytes reach, and where to split them; see `databus.relay._range`."""
        wanted = RangeAsk.of(ask.given)
        capture = ask.catalog.choose(wanted.physical, wanted.sources, wanted.checkpoint)
        log = ask.catalog.log_of(capture)
        selection = Selection(log.physical, wanted.sources, ask.grant)
        selection.check(log.schemas)
        with self._a_place(), self._filters.use(filter_of(ask.given, log, ask.grant), log) as frames:
            cursor = await self._in_reader(lambda: open_cursor(log, wanted.start))
            if frames is not None:
                tables, is_at_end = selection.tables(log.schemas), cursor.is_at_end
                there = ask.grant.visible(log.schemas)
                await self._in_reader(lambda: check_filter(frames, tables, there, is_at_end=is_at_end))
            scan = RangeScan(log, cursor, wanted, selection, frames)
            found = await find_range(scan, self._feeds[log.physical], wanted.wait_ms, self._in_reader)
            return _json({**found.to_json(), "log": log.uuid})

    # What there is to see and to do

    async def buffer_info(self, ask: "Ask") -> web.Response:
        """GET /bufferInfo/inbound/<physical>."""
        log = ask.catalog.log_of(ask.catalog.physical(ask.path[-1]))
        return _json(await self._in_thread(lambda: _control.buffer_info(log)))

    async def physical_sources(self, ask: "Ask") -> web.Response:
        """GET /physicalSources."""
        return _json(ask.catalog.physical_sources(ask.catalog.sources(seen_by(ask.grant), detailed=True)))

    async def physical_buffers(self, ask: "Ask") -> web.Response:
        """GET /physicalBuffers."""
        return _json({log.physical: [log.physical] for log in ask.catalog.logs()})

    async def clients(self, ask: "Ask") -> web.Response:
        """GET /relayStats/outbound/http/clients, /containerStats/outbound/clients."""
        return _json(self.stats.names(ask.grant))

    async def client_stats(self, ask: "Ask") -> web.Response:
        """GET /relayStats/outbound/http/client/<name>."""
        return _json(_control.client_stats(self.stats, ask.path[-1], ask.grant))

    async def serving_stats(self, ask: "Ask") -> web.Response:
        """GET /relayStats/outbound/http/total."""
        return _json(_control.serving_stats(self.stats, ask.grant))

    async def captured_total(self, ask: "Ask") -> web.Response:
        """GET /containerStats/inbound/events/total."""
        return _json(_control.captured_total(ask.catalog))

    async def physical_names(self, ask: "Ask") -> web.Response:
        """GET /containerStats/inbound/events/psources."""
        return _json(sorted(ask.catalog.captures))

    async def captured(self, ask: "Ask") -> web.Response:
        """GET /containerStats/inbound/events/psource/<physical>."""
        return _json(_control.captured(ask.catalog.physical(ask.path[-1])))

    async def sent(self, ask: "Ask") -> web.Response:
        """GET /containerStats/outbound/total."""
        del ask
        return _json({"numBytes": self.stats.total.sent_bytes, "openStreams": len(self.stats.streams)})

    async def status(self, ask: "Ask") -> web.Response:
        """GET /controlSources/status."""
        sources, looks = ask.given["sources"], ask.given["look"]
        return _json(await self._in_thread(lambda: _control.states(ask.catalog, sources, looks=looks)))

    async def act(self, ask: "Ask") -> web.Response:
        """POST /controlSources/{pause,unpause,snapshot,cancelSnapshot}."""
        verb, given = ask.path[-1], ask.given
        asked = {name: given.get(name) for name in ("sources", "tables", "where", "reason")}

        def act() -> Any:
            _control.check_seen(ask.catalog, given["sources"], given["if_seen"])
            if verb == "snapshot":
                return _control.read_again(ask.catalog, given["sources"], given["tables"], given["where"])
            if verb == "cancelSnapshot":
                return _control.read_no_further(ask.catalog, given["sources"], given["tables"])
            return _control.pause(ask.catalog, given["sources"], pauses=verb == "pause")

        return _json(await self._in_thread(lambda: self._audited(verb, ask, asked, act)))

    async def reload(self, ask: "Ask") -> web.Response:
        """POST /reload."""

        def act() -> Any:
            return self._reloads.reload(ask.client)

        return _json(await self._in_thread(lambda: self._audited("reload", ask, {"reason": ask.given["reason"]}, act)))

    def _audited(self, action: str, ask: "Ask", asked: Mapping[str, Any], act: Callable[[], Any]) -> Any:
        """Do it, and write down who wanted it and what came of it."""
        result = "done"
        try:
            return act()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._audit.note(action, self._who(ask), asked, result)

    def _note(self, action: str, ask: Ask, asked: Mapping[str, Any], result: str) -> None:
        self._audit.note(action, self._who(ask), asked, result)

    def _who(self, ask: "Ask") -> dict[str, Any]:
        grant = ask.grant
        token = next((file.name for file, each in self._config.token_files.items() if each == grant), None)
        access = {"access": grant.name} if grant.name else {}
        return {"address": ask.peer, "client": ask.client, "token": token, **access}

    async def config(self, ask: "Ask") -> web.Response:
        """GET /config: without secrets."""
        del ask
        return _json(self._config.shown())

    # These three in the loop, so that nobody's cold read delays them.

    async def live(self, ask: "Ask") -> web.Response:
        """GET /admin, /admin/live: GOOD, as long as it can be said."""
        del ask
        return web.Response(text="GOOD\n")

    async def ready(self, ask: "Ask") -> web.Response:
        """GET /admin/ready: GOOD or BAD."""
        is_ready, lines = _control.readiness(ask.catalog, ask.given["sources"])
        text = "\n".join(["GOOD" if is_ready else "BAD", *lines, ""])
        return web.Response(text=text, status=200 if is_ready else 503)

    async def admin_status(self, ask: "Ask") -> web.Response:
        """GET /admin/status: why."""
        return _json(await self._in_thread(lambda: _control.admin_status(ask.catalog)))

    async def help(self, ask: "Ask") -> web.Response:
        """GET /help."""
        del ask
        return web.Response(text=help_text(self._router.table))

    async def openapi(self, ask: "Ask") -> web.Response:
        """GET /openapi.json."""
        del ask
        return _json(openapi(self._router.table))

    async def metrics(self, ask: "Ask") -> web.Response:
        """GET /metrics, for Prometheus."""
        from databus.relay._metrics import render_metrics  # late: it costs a relay's start, and may never be asked for

        groups = self.groups.keeper
        body, content_type = await self._in_thread(lambda: render_metrics(ask.catalog, self.stats, groups))
        return web.Response(body=body, headers={"Content-Type": content_type})


ANSWERS: Final[Mapping[str, Callable[[Commands, Ask], Awaitable[web.StreamResponse]]]] = {
    "/sources": Commands.sources,
    "/register": Commands.register,
    "/stream": Commands.stream,
    "/position": Commands.position,
    "/range": Commands.range,
    "/chain": Commands.chain,
    "/bufferInfo/inbound/{physical}": Commands.buffer_info,
    "/physicalSources": Commands.physical_sources,
    "/physicalBuffers": Commands.physical_buffers,
    "/relayStats/outbound/http/clients": Commands.clients,
    "/relayStats/outbound/http/client/{name}": Commands.client_stats,
    "/relayStats/outbound/http/total": Commands.serving_stats,
    "/containerStats/inbound/events/total": Commands.captured_total,
    "/containerStats/inbound/events/psources": Commands.physical_names,
    "/containerStats/inbound/events/psource/{physical}": Commands.captured,
    "/containerStats/outbound/total": Commands.sent,
    "/containerStats/outbound/clients": Commands.clients,
    "/metrics": Commands.metrics,
    "/controlSources/status": Commands.status,
    "/controlSources/pause": Commands.act,
    "/controlSources/unpause": Commands.act,
    "/controlSources/snapshot": Commands.act,
    "/controlSources/cancelSnapshot": Commands.act,
    "/reload": Commands.reload,
    "/config": Commands.config,
    "/admin": Commands.live,
    "/admin/live": Commands.live,
    "/admin/ready": Commands.ready,
    "/admin/status": Commands.admin_status,
    "/help": Commands.help,
    "/openapi.json": Commands.openapi,
    **dict.fromkeys((each.path for each in table() if each.checks_itself), Commands.registry),
    "/registry/{*rest}": Commands.no_registry,
    **dict.fromkeys((each.path for each in table() if each.parts[0] == "groups"), Commands.of_groups),
}
"""Who answers the commands of the table, by their path."""
