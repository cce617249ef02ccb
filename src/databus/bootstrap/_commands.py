"""Who answers the commands of the bootstrap service's HTTP interface: some of a relay's, with its words."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.request import Request, urlopen

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from databus.bootstrap._ask import AnswerRequest
from databus.bootstrap._config import BootstrapConfig
from databus.bootstrap._kept_stores import Look, PhysicalStores
from databus.bootstrap._metrics import metrics_text
from databus.bootstrap._parts import Outline, measured, outline_json
from databus.bootstrap._plan import EveryChange
from databus.bootstrap._render import answered, every_change
from databus.core import (
    SEQ_DONE,
    AccessDenied,
    AnswerTooLarge,
    Checkpoint,
    DatabusError,
    MalformedRequest,
    PositionForeign,
    ServiceUnavailable,
    SourceCheckpoint,
    TooManyRequests,
    UnknownSource,
    crash_point,
)
from databus.filters import FrameFilter, StreamFilter
from databus.operate import logger_of
from databus.relay import (
    FLAG,
    Ask,
    Catalog,
    Command,
    Grant,
    Parameter,
    Router,
    Selection,
    ServeConfig,
    StartName,
    Stats,
    Table,
    address_of,
    check_filter,
    choice,
    command_named,
    definition_json,
    help_text,
    json_answer,
    openapi,
    source_json,
    start_of,
    url_at,
)
from databus.schema import TableSchema
from databus.stores import HeadNote, LoggedControl, note_physicals
from databus.wire import is_answer, is_inside_answer

T = TypeVar("T")
_ANSWER_S_MAX: Final = 2.0
_SMALL_THREADS: Final = 4
_PIECE_BYTES: Final = 128 << 10  # so much is read in `write_ms_max` by a client that is slow, and not gone
_logger = logger_of("databus.bootstrap")


class ServiceCommands:
    """Answers requests from the stores; `close` when no more will come."""

    def __init__(self, config: BootstrapConfig) -> None:
        self.stats = Stats(config.options.serve.clients_max)
        self._config = config
        table = Table([_command(path, command, config.options.serve) for path, command in ANSWERS.items()])
        self._router = Router(table, config.options.serve.request_ms_max)
        self._stores: dict[str, PhysicalStores] = {}
        self._answers = ThreadPoolExecutor(config.options.answers_max, "bootstrap-answer")
        self._small = ThreadPoolExecutor(_SMALL_THREADS, "bootstrap-small")
        self._open = 0  # answers
        self._given = {"state": 0, "since": 0, "every": 0}
        self._is_ending = False

    def end(self) -> None:
        """Have answers end between two groups. In the loop's thread."""
        self._is_ending = True

    def close(self) -> None:
        """Let go of the threads."""
        for pool in (self._answers, self._small):
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, request: web.Request, client: str, grant: Grant) -> web.StreamResponse:
        """Answer one request. Raises a `DatabusError` to be made an answer."""
        ask = await self._router.ask(request, client, grant, Catalog({}, None, grant))
        try:
            return await ANSWERS[ask.command.path].answer(self, ask)
        except AccessDenied as error:  # of the store where the files are: it says nothing of who asks
            raise ServiceUnavailable(str(error)) from None

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._small, work)

    def _looks(self, grant: Grant) -> Iterator[Look]:
        """What is there of each physical source that the holder of a grant may see."""
        for physical in note_physicals(self._config.root):
            if grant.sees_physical(physical):
                yield self._physical(physical).look()

    def _physical(self, physical: str) -> PhysicalStores:
        return self._stores.setdefault(physical, PhysicalStores(self._config.root, physical))

    def _chosen(self, ask: Ask) -> Look:
        """The physical source that is meant. Raises `UnknownSource`, `MalformedRequest`."""
        there = [name for name in note_physicals(self._config.root) if ask.grant.sees_physical(name)]
        name = ask.given["physical"]
        if name is None:
            start = ask.given.get("from")
            named = [physical for physical in there if isinstance(start, Checkpoint) and physical in start.sources]
            named = named if len(named) == 1 else there
            if len(named) != 1:
                raise MalformedRequest(f"physical: say which physical source is meant; it may be {', '.join(there)}")
            name = named[0]
        if name not in there:
            if not there:
                raise ServiceUnavailable("the stores are being filled, and hold nothing yet; ask again")
            raise UnknownSource(f"no physical source called {name[:200]!r} is kept; there are {', '.join(there)}")
        return self._physical(name).look()

    # Sources and their definitions

    async def sources(self, ask: Ask) -> web.Response:
        """GET /sources."""

        def find() -> list[dict[str, Any]]:
            is_detailed = ask.given["v"] == 2
            return [
                source_json(look.schemas, replace(version, table=table), detailed=is_detailed)
                for look in self._looks(ask.grant)
                for version in look.schemas.current().values()
                if ask.grant.sees(look.schemas.physical, version.table.source)
                for table in _seen(look, version.table, ask.grant.filter)
            ]

        return json_answer(await self._in_thread(find))

    async def register(self, ask: Ask) -> web.Response:
        """GET /register."""
        return json_answer(await self._in_thread(lambda: [*self._definitions(ask)]))

    def _definitions(self, ask: Ask) -> Iterator[dict[str, Any]]:
        wanted, fingerprint = _filter_of(ask), ask.given["fingerprint"]
        for look in self._looks(ask.grant):
            if ask.given["physical"] not in (None, look.schemas.physical):
                continue
            ids = Selection(look.schemas.physical, ask.given["sources"], ask.grant).ids(look.schemas)
            newest = {version.table.fingerprint for version in look.schemas.current().values()}
            for version in look.schemas.all():
                if ids is not None and version.source_id not in ids:
                    continue
                is_current = version.table.fingerprint in newest
                behind = _seen(look, version.table, wanted)
                if fingerprint is not None:  # that of a row may be of before its reader asked for less
                    behind = (*_seen(look, version.table, ask.grant.filter), *behind)
                for table in dict.fromkeys(behind):
                    if fingerprint in (None, table.fingerprint):
                        yield definition_json(look.schemas, replace(version, table=table), is_current=is_current)

    # Positions and changes

    def _asked(self, ask: Ask, look: Look) -> AnswerRequest:
        physical, written = look.schemas.physical, ask.given["sources"]
        selection = Selection(physical, written, ask.grant)
        selection.check(look.schemas)
        wanted = _filter_of(ask)
        sources = frozenset(selection.tables(look.schemas))
        if not wanted.is_nothing:
            frames, there = FrameFilter(wanted, physical, look.schemas), ask.grant.visible(look.schemas)
            check_filter(frames, sorted(sources), there, is_at_end=True)
        return AnswerRequest(
            physical,
            sources,
            None if written is None else tuple(written),
            wanted.within(physical),
            every=ask.given["look_back"] is LookBackValue.ALL,
            first_images=ask.given["first_images"],
            by_table=ask.given["by_table"],
        )

    async def stream(self, ask: Ask) -> web.StreamResponse:
        """GET /stream: one answer, from its begin or from where it broke off."""
        limit = self._config.options.answers_max
        if self._open >= limit:
            raise TooManyRequests(f"{self._open} answers are being given, answers_max={limit}; ask again")
        self._open += 1
        try:
            look = await self._in_thread(lambda: self._chosen(ask))
            kind, log, parts = await self._in_thread(lambda: self._answer(ask, look))
            self._given[kind] += 1
            return await self._send(ask, {**_headers(look, log), "x-dbus-look-back": kind}, parts)
        finally:
            self._open -= 1

    def _answer(self, ask: Ask, look: Look) -> tuple[str, str, Iterator[bytes]]:
        """Its kind, the name of what it comes from, and its bytes, whole groups at a time."""
        outline, to = self._outline(ask, look), ask.given["to"]
        answer, now_us = outline.answer, time.time_ns() // 1000
        if isinstance(answer, EveryChange):
            parts = every_change(answer.start, answer.end, outline.ask, look.stores, now_us, to)
        else:
            parts = answered(answer, outline.ask, look.stores, now_us, to if _is_inside(ask, look) else None)
        return outline.kind, outline.log, parts

    def _outline(self, ask: Ask, look: Look, *, is_estimate: bool = False) -> Outline:
        """What is answered. Raises what `plan` does, and `AnswerTooLarge` for who would begin with it."""
        limit = self._config.options.answer_bytes_max
        outline = look.outline(_position_of(ask, look), self._asked(ask, look))
        if limit is not None and not is_estimate and not _is_inside(ask, look):
            size = measured(outline)
            if size.bytes > limit:
                raise AnswerTooLarge(
                    f"{look.schemas.physical}: this answer reads some {size.bytes} bytes, up to {size.rows} rows, "
                    f"and the service has answer_bytes_max={limit}; ask for less, or raise that"
                )
        return outline

    async def _send(self, ask: Ask, headers: Mapping[str, str], parts: Iterator[bytes]) -> web.StreamResponse:
        loop, write_s_max = asyncio.get_running_loop(), self._config.options.serve.write_ms_max / 1e3
        first = await loop.run_in_executor(self._answers, next, parts, None)  # whose error is an answer
        response = web.StreamResponse(headers=headers)
        response.enable_chunked_encoding()
        await response.prepare(ask.request)
        part = first
        try:
            while part is not None and not self._is_ending:
                crash_point("bootstrap.part.before")
                for at in range(0, len(part), _PIECE_BYTES):
                    async with asyncio.timeout(write_s_max):
                        await response.write(memoryview(part)[at : at + _PIECE_BYTES])
                crash_point("bootstrap.part.after")
                self.stats.total.sent_bytes += len(part)
                part = await loop.run_in_executor(self._answers, next, parts, None)
            if part is None:
                await response.write_eof()
                return response
        except TimeoutError:
            _logger.info("client gone", client=ask.client, message=f"read nothing for {write_s_max:.0f} s")
        except ConnectionError as error:
            _logger.info("client gone", client=ask.client, message=str(error))
        except Exception as error:  # noqa: BLE001 - a second response must not follow into what has been begun
            is_defect = not isinstance(error, DatabusError | OSError)
            facts = {"error": type(error).__name__, "message": str(error), "exc_info": is_defect}
            _logger.warning("answer cut off", client=ask.client, **facts)
        if ask.request.transport is not None:
            ask.request.transport.abort()  # so that what came is not taken for the whole
        return response

    async def position(self, ask: Ask) -> web.Response:
        """GET /position: where a start parameter stands, and what the stores hold."""

        def find() -> dict[str, Any]:
            look = self._chosen(ask)
            head = look.kept.head.position
            start = _position_of(ask, look) if ask.given["start"] is not StartName.LATEST else head
            low = look.kept.head.low
            oldest = SourceCheckpoint(scn=low[0], seq=None if low[1] in (0, SEQ_DONE) else low[1])
            return {
                "physical": look.schemas.physical,
                "uuid": head.uuid,
                "log": head.log or "",
                "position": (start or SourceCheckpoint(uuid=head.uuid)).to_json(),
                "oldest": oldest.to_json(),
                "published": head.to_json(),
                "published_us": head.ts_us,
            }

        return json_answer(await self._in_thread(find))

    async def range(self, ask: Ask) -> web.Response:
        """GET /range: what an answer would be made of."""

        def find() -> dict[str, Any]:
            look, given = self._chosen(ask), ask.given
            outline = self._outline(ask, look, is_estimate=given["estimate"])
            # who does not stand inside of an answer cannot mean a place in it: it comes whole
            to = given["to"] if isinstance(outline.answer, EveryChange) or _is_inside(ask, look) else None
            controls: list[dict[str, Any]] = []
            if given["stop_at_controls"] and isinstance(outline.answer, EveryChange):
                begin, below = outline.first_control()
                controls = [] if begin is None else [_control_json(begin, look, ask)]
                to = min((bound for bound in (to, below) if bound is not None), default=None)
            limits = {} if given["estimate"] else {name: given[name] for name in ("rows_max", "bytes_max")}
            return outline_json(outline, measured(outline, to=to, partitions=given["partitions"], **limits), controls)

        return json_answer(await self._in_thread(find))

    # What there is to see

    async def live(self, ask: Ask) -> web.Response:
        """GET /admin, /admin/live: GOOD, as long as it can be said."""
        del ask
        return web.Response(text="GOOD\n")

    async def ready(self, ask: Ask) -> web.Response:
        """GET /admin/ready: GOOD or BAD."""
        physicals = await self._in_thread(lambda: self._standing(ask.grant))
        lacks = sorted(name for name, standing in physicals.items() if not standing["states"])
        is_ready = bool(physicals) and not lacks
        text = "GOOD\n" if is_ready else f"BAD\nno state of {', '.join(lacks) or 'anything'} yet\n"
        return web.Response(text=text, status=200 if is_ready else 503)

    async def admin_status(self, ask: Ask) -> web.Response:
        """GET /admin/status."""
        physicals = await self._in_thread(lambda: self._standing(ask.grant))
        sent = {"sent_bytes": self.stats.total.sent_bytes}
        return json_answer({"open_answers": self._open, "answers": self._given, **sent, "physicals": physicals})

    def _standing(self, grant: Grant) -> dict[str, dict[str, Any]]:
        return {look.schemas.physical: standing_json(look, grant) for look in self._looks(grant)}

    async def metrics(self, ask: Ask) -> web.Response:
        """GET /metrics, for Prometheus."""
        physicals = await self._in_thread(lambda: self._standing(ask.grant))
        text = metrics_text(self._open, self._given, self.stats.total.sent_bytes, physicals)
        return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def help(self, ask: Ask) -> web.Response:
        """GET /help."""
        del ask
        return web.Response(text=help_text(self._router.table))

    async def openapi(self, ask: Ask) -> web.Response:
        """GET /openapi.json."""
        del ask
        return json_answer(openapi(self._router.table))


def standing_json(look: Look, grant: Grant | None = None) -> dict[str, Any]:
    """How the stores of one physical source stand; to the holder of a grant, of the tables that it sees."""
    states, head = look.kept.states, look.kept.head
    newest = states[-1] if states else None
    physical, grant = look.schemas.physical, grant or Grant()
    tables = (
        {} if newest is None else {name: table for name, table in newest.tables.items() if grant.sees(physical, name)}
    )
    incomplete = [] if newest is None else [name for name in newest.incomplete if grant.sees(physical, name)]
    measured = {} if newest is None else newest.measured
    return {
        "log_scn": head.position.scn,
        "log_lag_ms": _lag_ms(head.position, head),
        "oldest_scn": head.low[0],
        "oldest_us": 0 if head.cut is None else head.cut.last_us,
        "states": len(states),
        "oldest_state_scn": states[0].position.scn if states else 0,
        "state_scn": 0 if newest is None else newest.position.scn,
        "state_lag_ms": 0 if newest is None else _lag_ms(newest.position, head),
        "merge_ms": measured.get("merge_ms", 0),
        "rows": sum(table.rows for table in tables.values()),
        "log_bytes": measured.get("log_bytes", 0),
        "state_bytes": measured.get("state_bytes", 0),
        "tables": sorted(tables),
        "incomplete": sorted(incomplete),
    }


def _lag_ms(position: SourceCheckpoint, head: HeadNote) -> int | None:
    """Between the commits up to which a store and the relay have come; 0 where these are one, None before the first."""
    scn, us = head.published
    if scn <= position.scn:
        return 0
    return max(us - position.ts_us, 0) // 1000 if position.ts_us else None


def status_of(config: BootstrapConfig) -> dict[str, dict[str, Any]]:
    """By physical source, how the stores stand."""
    looks = (PhysicalStores(config.root, name).look() for name in note_physicals(config.root))
    return {look.schemas.physical: standing_json(look) for look in looks}


def answers_of(config: BootstrapConfig) -> dict[str, Any] | None:
    """What the server of this file says of its answers; None where none answers."""
    address, token_file = url_at(config.server, address_of(config.options.listen)[1]), config.options.token_file
    request = Request(f"{address}/admin/status")  # noqa: S310 - our own address
    if token_file is not None:
        request.add_header("Authorization", f"Bearer {(config.folder / token_file).read_text().strip()}")
    try:
        with urlopen(request, timeout=_ANSWER_S_MAX) as answer:  # noqa: S310 - as above
            status: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return None
    return status


def _command(path: str, answering: "ServiceCommand", serve: ServeConfig) -> Command:
    command = command_named(path, serve)
    return replace(command, parameters=(*command.parameters, *answering.parameters))


def _filter_of(ask: Ask) -> StreamFilter:
    given = ask.given
    wanted = StreamFilter.parse(given["where"], given["columns"], given["filters"], given.get("partition"))
    return wanted.behind(ask.grant.filter)


def _control_json(control: LoggedControl, look: Look, ask: Ask) -> dict[str, Any]:
    """As a relay's /range names a control."""
    table = next(iter(_seen(look, control.table, _filter_of(ask))), control.table)
    scn, seq = control.pair
    known = {"id": look.schemas.ids()[control.source], "fingerprint": f"{table.fingerprint:016x}"}
    return {"kind": control.kind.value, **known, "scn": scn, "seq": seq}


def _seen(look: Look, table: TableSchema, wanted: StreamFilter) -> Collection[TableSchema]:
    """What becomes of a definition behind a filter."""
    if wanted.is_nothing:
        return (table,)
    return FrameFilter(wanted, look.schemas.physical, look.schemas).after(table)


def _position_of(ask: Ask, look: Look) -> SourceCheckpoint | None:
    """Where the consumer stands; None if it has nothing. Raises `PositionForeign` for another database."""
    start, physical = start_of(ask.given, StartName.BEGINNING), look.schemas.physical
    if isinstance(start, Checkpoint):
        if physical not in start.sources:
            raise MalformedRequest(f"from.sources: the checkpoint holds no {physical!r}")
        start = start.sources[physical]
    if start is StartName.BEGINNING:
        return None
    if not isinstance(start, SourceCheckpoint):
        raise MalformedRequest("a bootstrap service answers positions, and `start=beginning`; a time is a relay's")
    uuid = look.kept.head.position.uuid
    if start.uuid and uuid and start.uuid != uuid:
        raise PositionForeign(
            f"{physical}: the position is of database {start.uuid}, and the stores are of {uuid}", physical=physical
        )
    return None if start.pair <= (0, SEQ_DONE) and not is_answer(start.log) else start


def _is_inside(ask: Ask, look: Look) -> bool:
    position = _position_of(ask, look)
    return position is not None and is_inside_answer(position)


def _headers(look: Look, log: str) -> dict[str, str]:
    head = look.kept.head.position
    seq = "" if head.seq is None else f":{head.seq}"
    return {
        "Content-Type": "application/vnd.databus.frames",
        "Cache-Control": "no-store",
        "x-dbus-physical": look.schemas.physical,
        "x-dbus-uuid": head.uuid,
        "x-dbus-log": log,
        "x-dbus-published": f"{head.scn}{seq}",
    }


class LookBackValue(StrEnum):
    """Values of `look_back`."""

    ALL = "all"


_HOW: Final = (
    Parameter(
        "look_back",
        "`all` gives every change, in the place of what became of them",
        choice(LookBackValue),
        default=None,
    ),
    Parameter(
        "first_images",
        "1 gives each row that was changed as removed, for who knows rows by another key than the table's, or chooses "
        "among them",
        FLAG,
        default=False,
    ),
    Parameter(
        "by_table",
        "1 says that who asks knows of each table where it stands; a position inside an answer is then good for other "
        "tables, too",
        FLAG,
        default=False,
    ),
)


@dataclass(frozen=True, slots=True)
class ServiceCommand:
    """Who answers a command. parameters: that a relay's does not have."""

    answer: Callable[[ServiceCommands, Ask], Awaitable[web.StreamResponse]]
    parameters: tuple[Parameter, ...] = ()


ANSWERS: Final[Mapping[str, ServiceCommand]] = {
    "/sources": ServiceCommand(ServiceCommands.sources),
    "/register": ServiceCommand(ServiceCommands.register),
    "/stream": ServiceCommand(ServiceCommands.stream, _HOW),
    "/position": ServiceCommand(ServiceCommands.position),
    "/range": ServiceCommand(
        ServiceCommands.range,
        (*_HOW, Parameter("estimate", "1 measures all of the answer, whatever the limits", FLAG, default=False)),
    ),
    "/metrics": ServiceCommand(ServiceCommands.metrics),
    "/admin": ServiceCommand(ServiceCommands.live),
    "/admin/live": ServiceCommand(ServiceCommands.live),
    "/admin/ready": ServiceCommand(ServiceCommands.ready),
    "/admin/status": ServiceCommand(ServiceCommands.admin_status),
    "/help": ServiceCommand(ServiceCommands.help),
    "/openapi.json": ServiceCommand(ServiceCommands.openapi),
}
"""The commands, by their path."""
