"""/groups: members' calls, and what operators see of groups and do to them.

The groups themselves are in `databus.relay.groups`. Where one begins, one place in every physical source that it
follows, is decided once, when it is made, and is durable before any member gets it.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from databus.core import (
    Checkpoint,
    MalformedRequest,
    OtherCoordinator,
    RightMissing,
    ServiceUnavailable,
    SourceCheckpoint,
    SystemClock,
    TooManyRequests,
    UnknownGroup,
    is_pattern,
    split_physical,
)
from databus.filters import FrameFilter, StreamFilter
from databus.log import Guard
from databus.relay._ask import Ask, json_answer
from databus.relay._catalog import Catalog, Selection
from databus.relay._config import PORT, RelayConfig
from databus.relay._grant import Right
from databus.relay._group_pages import Lags, group_page, groups_page, is_visible, visible_groups
from databus.relay._params import Start, StartName, time_of
from databus.relay._stream import open_filtered
from databus.relay.groups import (
    Clocks,
    Coordinator,
    GroupKeeper,
    GroupLimits,
    MemberCall,
    NameState,
    bring_in,
    check_name,
    delete,
    export,
    pause,
    report,
    reset,
    resize,
    unknown_group,
)

_HOURS: Final = 24

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs what reads the disk."""
Place = Callable[[], AbstractContextManager[None]]
"""One of the places for those who wait; raises `TooManyRequests`."""
Note = Callable[[str, Ask, Mapping[str, Any], str], None]
"""Writes to the audit log."""


class GroupCommands:
    """Answers /groups. `open` before the loop asks, `start` and `end` in it, `close` after it."""

    def __init__(self, config: RelayConfig, in_thread: InThread, place: Place, note: Note) -> None:
        groups = config.groups
        limits = GroupLimits(groups.lease_ms, groups.names_max, groups.unused_days_max * _HOURS)
        self.keeper = GroupKeeper(config.folder, limits, SystemClock())
        self._config = groups
        self._in_thread, self._place, self._note = in_thread, place, note
        self._is_coordinator = groups.coordinator is None or groups.coordinates

    async def answer(self, ask: Ask) -> web.Response:
        """Answer a command of /groups."""
        await self._find_out(ask)
        try:
            return await self._answer(ask)
        except UnknownGroup:  # the nearest is one of those that are there for whoever asks
            raise unknown_group(
                ask.path[1], (group.name for group in visible_groups(self.keeper.machine, ask.grant))
            ) from None

    async def _answer(self, ask: Ask) -> web.Response:
        match ask.path[1:], ask.command.body:
            case [], _:
                return await self.groups(ask)
            case [_], None:
                return await self.group(ask)
            case [_], _:
                return await self.call(ask)
            case [_, "export"], _:
                return await self.export(ask)
            case [_, "report"], _:
                return await self.report(ask)
        return await self.act(ask)

    def guard_of(self, physical: str) -> Guard | None:
        """What the log of a physical source keeps for groups beyond its retention; any thread."""
        places = [
            partition.checkpoint.sources[physical].pair
            for group in list(self.keeper.seen.groups.values())
            if group.guard
            for partition in list(group.partitions.values())
            if physical in partition.checkpoint.sources
        ]
        if not places:
            return None
        return Guard(min(places), self._config.guard_bytes_max, partial(self.keeper.end_guards, physical))

    # Who coordinates

    async def _find_out(self, ask: Ask) -> None:
        """Find whether this relay is the one that coordinates, unless that is known. In a thread: names may be slow.

        Raises `ServiceUnavailable` where the name cannot be looked up now: nothing is concluded from that.
        """
        if self._is_coordinator is None:
            name = None if ask.request.transport is None else ask.request.transport.get_extra_info("sockname")
            port = name[1] if isinstance(name, tuple) else 0
            self._is_coordinator = await self._in_thread(partial(_is_here, self._config.coordinator or "", port))

    def _machine(self, ask: Ask) -> Coordinator:
        """The coordinator. Raises `OtherCoordinator`, or what is wrong with its files."""
        if not self._is_coordinator:
            raise OtherCoordinator(
                f"groups are coordinated by {self._config.coordinator}; ask there. If that is this relay, set "
                "groups.coordinates: true",
                coordinator=self._config.coordinator,
            )
        machine = self.keeper.machine
        group = machine.groups.get(ask.path[1])
        if group is not None and not is_visible(group, ask.grant):
            raise RightMissing(f"{ask.path[1]}: the name is in use under another access; take another one")
        listed = machine.names.get(ask.path[1])
        is_lost = group is None and listed is not None and listed.state is not NameState.DELETED
        if is_lost and ask.grant.is_limited and ask.command.right is Right.CONTROL:
            raise RightMissing(f"{ask.path[1]}: its state is lost, and so is whose it was; ask who sees all tables")
        return machine

    # Members

    async def call(self, ask: Ask) -> web.Response:
        """POST /groups/NAME."""
        machine, name, call = self._machine(ask), check_name(ask.path[1]), MemberCall.of(ask.body)
        start: Checkpoint | None = None
        if machine.needs_start(name, call):
            listed = machine.names.get(name)
            begin = call.start if listed is None or listed.start is None else listed.start
            start = await self._in_thread(partial(find_start, ask.catalog, call.sources, begin, call.filters))
        with ExitStack() as waiting:

            def may_wait() -> bool:
                """Where no place is left it is answered at once, and calls again: a save must not fail for that."""
                try:
                    waiting.enter_context(self._place())
                except TooManyRequests:
                    return False
                return True

            answer = await self.keeper.handle(name, call, start, ask.grant.name, may_wait)
        return json_answer(answer.to_json())

    async def report(self, ask: Ask) -> web.Response:
        """POST /groups/NAME/report. Not audited: it comes each second, and says only what the caller does itself."""
        machine, body, name = self._machine(ask), ask.body, ask.path[1]
        sources = None if body.sources is None else tuple(sorted(set(body.sources)))
        checkpoint = Checkpoint.from_json(body.checkpoint, "checkpoint")
        report(machine, name, sources, checkpoint, self.keeper.now(), ask.grant.name, guard=body.guard)
        self.keeper.changed(name)
        await self.keeper.durable()
        return json_answer({})

    # Operators

    async def groups(self, ask: Ask) -> web.Response:
        """GET /groups."""
        coordinates = bool(self._is_coordinator)
        page: dict[str, Any] = {
            "coordinator": self._config.coordinator,
            "is_coordinator": coordinates,
            "lease_ms": self._config.lease_ms,
        }
        if coordinates and ask.given["names"]:
            machine, lags = self.keeper.machine, Lags(ask.catalog.captures)
            page["lost"] = [] if ask.grant.is_limited else machine.lost()
            page["groups"] = await self._in_thread(partial(groups_page, machine, ask.grant, lags, self.keeper.now()))
        return json_answer(page)

    async def group(self, ask: Ask) -> web.Response:
        """GET /groups/NAME."""
        group, lags = self._machine(ask).group(ask.path[1]), Lags(ask.catalog.captures)
        return json_answer(await self._in_thread(partial(group_page, group, lags, self.keeper.now())))

    async def export(self, ask: Ask) -> web.Response:
        """GET /groups/NAME/export."""
        machine = self._machine(ask)
        await self.keeper.durable()
        return json_answer(export(machine, ask.path[1]))

    async def act(self, ask: Ask) -> web.Response:
        """POST /groups/NAME/{reset,resize,pause,resume,delete,import}."""
        machine, name, verb = self._machine(ask), check_name(ask.path[1]), ask.path[2]
        asked = {
            "group": name,
            **{parameter: value for parameter, value in ask.given.items() if parameter not in ("client", "from")},
        }
        if ask.given.get("from") is not None:
            asked["from"] = ask.given["from"].to_json()
        result = "done"
        try:
            place = await self._place_of(machine, name, ask) if verb == "reset" else None
            _act(machine, name, ask, place, self.keeper.now())
            self.keeper.changed(name)
            await self.keeper.durable()
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
            raise
        finally:
            await self._in_thread(partial(self._note, f"groups.{verb}", ask, asked, result))
        group = machine.groups.get(name)
        if group is None:
            return json_answer({"name": name, "state": machine.names[name].state})
        lags = Lags(ask.catalog.captures)
        return json_answer(await self._in_thread(partial(group_page, group, lags, self.keeper.now())))

    async def _place_of(self, machine: Coordinator, name: str, ask: Ask) -> Checkpoint | None:
        """The place that a reset means; None where its group is not there and will find it when it is made."""
        group = machine.groups.get(name)
        if group is None:
            return None
        sources, to = group.sources, reset_place(ask)
        start: Checkpoint = await self._in_thread(partial(find_start, ask.catalog, sources, to))
        return start


def reset_place(ask: Ask) -> Any:
    """Where a reset goes, as a call would say it. Raises `MalformedRequest`."""
    place = ask.given["from"]
    if (place is None) == (ask.given["to"] is None):
        raise MalformedRequest("to, from: one of them says where the group is to stand")
    return typed_place(ask.given["to"]) if place is None else place.to_json()


def _act(machine: Coordinator, name: str, ask: Ask, place: Checkpoint | None, now: Clocks) -> None:
    match ask.path[2]:
        case "reset":
            reset(machine, name, reset_place(ask), place, now)
        case "resize":
            resize(machine, name, ask.given["to"])
        case "delete":
            delete(machine, name, now, force=ask.given["force"])
        case "import":
            given = ask.body.model_copy(update={"access": ask.grant.name}) if ask.grant.is_limited else ask.body
            bring_in(machine, name, given, now)
        case verb:
            pause(machine, name, paused=verb == "pause")


def _is_here(url: str, port: int) -> bool:
    """Whether an address is this machine's, and its port this relay's. Raises `ServiceUnavailable` if that is
    unknown now.
    """
    parts = urlsplit(url)
    if (parts.port or PORT) != port or parts.hostname is None:
        return False
    try:
        addresses = socket.getaddrinfo(parts.hostname, 0, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ServiceUnavailable(
            f"groups.coordinator: {parts.hostname} cannot be looked up, so that this relay cannot tell whether it is "
            f"the one that coordinates ({error}); ask again, or set groups.coordinates"
        ) from error
    return any(_can_bind(family, address) for family, _, _, _, address in addresses)


def _can_bind(family: int, address: Any) -> bool:
    """Whether an address is one of this machine: only such a one can be bound."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def parsed_start(value: Any) -> Start:
    """What a call or an operator says: a word, `{"time"}`, `{"scn"}`, a checkpoint. Raises `MalformedRequest`."""
    if isinstance(value, dict):
        if "v" in value or "sources" in value:
            return Checkpoint.from_json(value, "start")
        if set(value) == {"time"}:
            return time_of("start.time", str(value["time"]))
        if "scn" in value:
            return SourceCheckpoint.from_json(value, "start")
    if value in list(StartName):
        return StartName(value)
    raise MalformedRequest(
        f'start: {str(value)[:100]!r} is none of {", ".join(StartName)}, {{"time": ...}}, {{"scn": ...}}, a checkpoint'
    )


def typed_place(text: str) -> Any:
    """What an operator types behind `--to`, as a call would say it."""
    if text in list(StartName):
        return text
    return {"scn": text} if text.isascii() and text.isdigit() else {"time": text}


def _named(catalog: Catalog, sources: Sequence[str] | None) -> dict[str, list[str]]:
    """The physical sources that a group follows, with its names there; also those that this relay does not capture.

    Raises `UnknownSource`, `MalformedRequest` where it is not clear which one a name means.
    """
    by_physical: dict[str, list[str]] = {}
    for name in sources or ():
        owner, _ = split_physical(name)
        fitting = [physical for physical in catalog.captures if owner and fnmatchcase(physical, owner)]
        if owner and not fitting and not is_pattern(owner):
            fitting = [owner]
        for physical in fitting or [catalog.choose(None, [name]).physical]:
            by_physical.setdefault(physical, []).append(name)
    return by_physical or {catalog.choose(None, None).physical: []}


def find_start(
    catalog: Catalog, sources: Sequence[str] | None, value: Any, filters: Mapping[str, Any] | None = None
) -> Checkpoint:
    """The place; reads the disk. Raises what a stream from there would, behind these filters."""
    start = parsed_start(value)
    named = _named(catalog, sources)
    for physical, names in named.items():
        if physical in catalog.captures:
            Selection(physical, names, catalog.grant).check(catalog.log_of(catalog.captures[physical]).schemas)
    if isinstance(start, SourceCheckpoint) and len(named) > 1:
        raise MalformedRequest(f"start.scn: the group follows {', '.join(named)}; an SCN is of one physical source")
    return Checkpoint({physical: _place(catalog, physical, names, start, filters) for physical, names in named.items()})


def _place(
    catalog: Catalog, physical: str, names: Sequence[str], start: Start, filters: Mapping[str, Any] | None
) -> SourceCheckpoint:
    given = start.sources.get(physical) if isinstance(start, Checkpoint) else None
    if isinstance(start, Checkpoint) and given is None:
        raise MalformedRequest(
            f"start: the checkpoint does not say where to begin in {physical}; it holds {', '.join(start.sources)}"
        )
    if physical not in catalog.captures:
        if given is not None:
            return given
        raise MalformedRequest(
            f"start: the coordinator does not capture {physical}, so it cannot find a place there; ask the relay that "
            "does (/position) and give `start` as a checkpoint"
        )
    log = catalog.log_of(catalog.physical(physical))
    frames = None
    if filters:  # a name must not come to be whose filters no stream would take: with others the next try would differ
        wanted = StreamFilter.parse(*(filters.get(option) for option in ("where", "columns", "filters")))
        frames = FrameFilter(wanted.within(physical).behind(catalog.grant.filter), physical, log.schemas)
    cursor = open_filtered(log, start, Selection(physical, names or None, catalog.grant), frames)
    return cursor.position if given is None else given
