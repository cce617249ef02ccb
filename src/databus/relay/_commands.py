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

from databus.core import TooManyRequests
from databus.log import Log
from databus.relay import _control
from databus.relay._ask import Ask
from databus.relay._ask import json_answer as _json
from databus.relay._audit import Audit
from databus.relay._avro_registry import SchemaRegistry
from databus.relay._avro_registry_http import RegistryCommands
from databus.relay._catalog import Catalog, Selection
from databus.relay._command_table import table
from databus.relay._config import RelayConfig
from databus.relay._copying import chain_json
from databus.relay._feed import PublishFeed
from databus.relay._filters import Filters, filter_of, seen_by
from databus.relay._grant import Grant
from databus.relay._group_commands import GroupCommands
from databus.relay._help import help_text
from databus.relay._openapi import openapi
from databus.relay._params import StartName, checkpoint_of, start_of
from databus.relay._range import RangeAsk, RangeScan, find_range
from databus.relay._reload import RelayReloads
from databus.relay._routing import Router
from databus.relay._stats import Stats
from databus.relay._stream import StreamAsk, Streaming, open_cursor, open_filtered
from databus.relay._tail import Tail

T = TypeVar("T")

_READ_THREADS: Final = 4
_SMALL_THREADS: Final = 4


class RelayCommands:
    """Answers requests from a catalogue; `close` when no more will come."""

    def __init__(
        self, config: RelayConfig, catalog: Catalog, feeds: Mapping[str, PublishFeed], reloads: RelayReloads
    ) -> None:
        self.router = Router(table(config.serve, config.groups), config.serve.request_ms_max)
        self.stats = Stats(config.serve.clients_max)
        self.config = config
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
        ask = await self.router.ask(request, client, grant, self._catalog.within(grant))
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

    async def register(self, ask: Ask) -> web.Response:
        """GET /register."""
        given = ask.given
        behind = self._filters.behind(given, ask.grant)
        return _json(ask.catalog.definitions(given["physical"], given["sources"], given["fingerprint"], behind))

    async def registry(self, ask: Ask) -> web.Response:
        """/registry/...: see `databus.relay._avro_registry_http`."""
        return await self._registry.answer(ask.request, ask.path[1:])

    async def no_registry(self, ask: Ask) -> web.Response:
        """Whatever else is below /registry."""
        return self._registry.unknown(ask.path[1:])

    async def of_groups(self, ask: Ask) -> web.StreamResponse:
        """/groups/...: see `databus.relay._group_commands`."""
        return await self.groups.answer(ask)

    # Positions and changes

    async def stream(self, ask: Ask) -> web.StreamResponse:
        """GET /stream: see `databus.relay._stream`."""
        wanted = StreamAsk.of(ask.given, ask.request.headers.get("Accept", ""))
        log = ask.catalog.log_of(ask.catalog.choose(wanted.physical, wanted.sources, checkpoint_of(wanted.start)))
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

    async def position(self, ask: Ask) -> web.Response:
        """GET /position: the checkpoint that a start means, and what the log holds."""
        start = start_of(ask.given, StartName.LATEST)
        log = ask.catalog.log_of(ask.catalog.choose(ask.given["physical"], ask.given["sources"], checkpoint_of(start)))

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

    async def chain(self, ask: Ask) -> web.Response:
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

    async def range(self, ask: Ask) -> web.Response:
        """GET /range: how far some rows or bytes reach, and where to split them; see `databus.relay._range`."""
        wanted = RangeAsk.of(ask.given)
        log = ask.catalog.log_of(ask.catalog.choose(wanted.physical, wanted.sources, checkpoint_of(wanted.start)))
        selection = Selection(log.physical, wanted.sources, ask.grant)
        selection.check(log.schemas)
        with self._a_place(), self._filters.use(filter_of(ask.given, log, ask.grant), log) as frames:
            cursor = await self._in_reader(lambda: open_filtered(log, wanted.start, selection, frames))
            scan = RangeScan(log, cursor, wanted, selection, frames)
            reach = await find_range(scan, self._feeds[log.physical], wanted.wait_ms, self._in_reader)
            return _json({**reach.to_json(), "log": log.uuid})

    # What there is to see and to do

    async def page(self, ask: Ask) -> web.Response:
        """What is known without looking at a log."""
        return _json(_PAGES[ask.command.path](self, ask))

    async def look(self, ask: Ask) -> web.Response:
        """What a thread finds out."""
        return _json(await self._in_thread(lambda: _LOOKS[ask.command.path](ask)))

    async def act(self, ask: Ask) -> web.Response:
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

    async def reload(self, ask: Ask) -> web.Response:
        """POST /reload."""

        def act() -> Any:
            return self._reloads.reload(ask.client)

        return _json(await self._in_thread(lambda: self._audited("reload", ask, {"reason": ask.given["reason"]}, act)))

    def _audited(self, action: str, ask: Ask, asked: Mapping[str, Any], act: Callable[[], Any]) -> Any:
        """Do it, and write down who wanted it and what came of it."""
        result = "done"
        try:
            return act()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._note(action, ask, asked, result)

    def _note(self, action: str, ask: Ask, asked: Mapping[str, Any], result: str) -> None:
        self._audit.note(action, self._who(ask), asked, result)

    def _who(self, ask: Ask) -> dict[str, Any]:
        grant = ask.grant
        token = next((file.name for file, allowed in self.config.token_files.items() if allowed == grant), None)
        access = {"access": grant.name} if grant.name else {}
        return {"address": ask.peer, "client": ask.client, "token": token, **access}

    # These in the loop, so that a cold read for another never delays them

    async def live(self, _: Ask) -> web.Response:
        """GET /admin, /admin/live: GOOD, as long as it can be said."""
        return web.Response(text="GOOD\n")

    async def help(self, _: Ask) -> web.Response:
        """GET /help."""
        return web.Response(text=help_text(self.router.table))

    async def ready(self, ask: Ask) -> web.Response:
        """GET /admin/ready: GOOD or BAD."""
        is_ready, lines = _control.readiness(ask.catalog, ask.given["sources"])
        text = "\n".join(["GOOD" if is_ready else "BAD", *lines, ""])
        return web.Response(text=text, status=200 if is_ready else 503)

    async def metrics(self, ask: Ask) -> web.Response:
        """GET /metrics, for Prometheus."""
        from databus.relay._metrics import render_metrics  # late: it costs a relay's start, and may never be asked for

        groups = self.groups.keeper
        body, content_type = await self._in_thread(lambda: render_metrics(ask.catalog, self.stats, groups))
        return web.Response(body=body, headers={"Content-Type": content_type})


_PAGES: Final[Mapping[str, Callable[[RelayCommands, Ask], Any]]] = {
    "/sources": lambda _, ask: ask.catalog.sources(seen_by(ask.grant), detailed=ask.given["v"] == 2),
    "/physicalSources": lambda _, ask: ask.catalog.physical_sources(
        ask.catalog.sources(seen_by(ask.grant), detailed=True)
    ),
    "/physicalBuffers": lambda _, ask: {log.physical: [log.physical] for log in ask.catalog.logs()},
    "/relayStats/outbound/http/clients": lambda commands, ask: commands.stats.names(ask.grant),
    "/relayStats/outbound/http/client/{name}": lambda commands, ask: _control.client_stats(
        commands.stats, ask.path[-1], ask.grant
    ),
    "/relayStats/outbound/http/total": lambda commands, ask: _control.serving_stats(commands.stats, ask.grant),
    "/containerStats/inbound/events/total": lambda _, ask: _control.captured_total(ask.catalog),
    "/containerStats/inbound/events/psources": lambda _, ask: sorted(ask.catalog.captures),
    "/containerStats/inbound/events/psource/{physical}": lambda _, ask: _control.captured(
        ask.catalog.physical(ask.path[-1])
    ),
    "/containerStats/outbound/total": lambda commands, _: {
        "numBytes": commands.stats.total.sent_bytes,
        "openStreams": len(commands.stats.streams),
    },
    "/containerStats/outbound/clients": lambda commands, ask: commands.stats.names(ask.grant),
    "/config": lambda commands, _: commands.config.shown(),
    "/openapi.json": lambda commands, _: openapi(commands.router.table),
}
_LOOKS: Final[Mapping[str, Callable[[Ask], Any]]] = {
    "/bufferInfo/inbound/{physical}": lambda ask: _control.buffer_info(
        ask.catalog.log_of(ask.catalog.physical(ask.path[-1]))
    ),
    "/controlSources/status": lambda ask: _control.states(ask.catalog, ask.given["sources"], looks=ask.given["look"]),
    "/admin/status": lambda ask: _control.admin_status(ask.catalog),
}

ANSWERS: Final[Mapping[str, Callable[[RelayCommands, Ask], Awaitable[web.StreamResponse]]]] = {
    **dict.fromkeys(_PAGES, RelayCommands.page),
    **dict.fromkeys(_LOOKS, RelayCommands.look),
    "/register": RelayCommands.register,
    "/stream": RelayCommands.stream,
    "/position": RelayCommands.position,
    "/range": RelayCommands.range,
    "/chain": RelayCommands.chain,
    "/metrics": RelayCommands.metrics,
    "/controlSources/pause": RelayCommands.act,
    "/controlSources/unpause": RelayCommands.act,
    "/controlSources/snapshot": RelayCommands.act,
    "/controlSources/cancelSnapshot": RelayCommands.act,
    "/reload": RelayCommands.reload,
    "/admin": RelayCommands.live,
    "/admin/live": RelayCommands.live,
    "/admin/ready": RelayCommands.ready,
    "/help": RelayCommands.help,
    **dict.fromkeys((command.path for command in table() if command.checks_itself), RelayCommands.registry),
    "/registry/{*rest}": RelayCommands.no_registry,
    **dict.fromkeys((command.path for command in table() if command.parts[0] == "groups"), RelayCommands.of_groups),
}
"""Who answers the commands of the table, by their path."""
