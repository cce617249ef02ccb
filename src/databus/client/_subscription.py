"""Subscriptions: windows of any number of physical sources as an iterator.

    with windows("http://127.0.0.1:11115", sources=["shop/main.*"], start="latest") as following:
        for window in following:
            for row in window.rows(): ...
            store(window.checkpoint)  # in the transaction that keeps the rows, or after it

In an event loop the same with `async with` and `async for`. Both take what `_find` finds; only the waiting differs.
Between physical sources there is no order; inside each there is the order of commits.
"""

import asyncio
import difflib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Self

from databus.client._batches import Batcher, WindowBatch
from databus.client._bell import Batches, Bell
from databus.client._lane import Lane
from databus.client._window import Window
from databus.core import (
    Checkpoint,
    InputError,
    Pair,
    ServiceUnavailable,
    SourceCheckpoint,
    UnknownSource,
    import_pandas,
    is_pattern,
    name_fits,
    split_physical,
    wait_seeing_signals,
)
from databus.filters import Columns, StreamFilter
from databus.link import Channel, FollowConfig, RelayClient, SourceInfo, Start
from databus.operate import logger_of

ROWS_MAX: Final = 100_000
_TURN_WINDOWS_MAX: Final = 16  # that one physical source gives out while others wait

_logger = logger_of("databus.client")


@dataclass(frozen=True, slots=True)
class WantedSource:
    """What is followed of one physical source."""

    physical: str
    sources: tuple[str, ...] | None
    """Names and patterns as the relay takes them; None for all."""
    has_log: bool = True
    """The relay has a log of it by now."""

    def begins_at(self, start: Start) -> Start:
        """What `start` means here: where there was no log when it was asked for, all that comes is later."""
        return start if self.has_log or isinstance(start, SourceCheckpoint) else SourceCheckpoint()


def wanted_of(relay: RelayClient, sources: Sequence[str] | None) -> list[WantedSource]:
    """Which physical sources of a relay a list of names and patterns speaks of; see `select`."""
    physicals = relay.physicals()  # asked for first: the tables of a log that is there by then are known
    known = relay.sources()
    wanted = select(known, physicals, sources)
    by_pattern = [
        source.physical for source in wanted if source.sources is None or any(map(is_pattern, source.sources))
    ]
    relay.check_peers([source.physical for source in wanted], by_pattern)
    for source in wanted:
        for name in source.sources if source.has_log and source.sources is not None else ():
            if not any(of.physical == source.physical and name_fits(of.table, name) for of in known):
                _logger.warning("no table fits yet; rows come when there is one", physical=source.physical, tables=name)
    return wanted


def select(
    known: Sequence[SourceInfo], physicals: Mapping[str, bool], sources: Sequence[str] | None
) -> list[WantedSource]:
    """Which physical sources a list of names and patterns speaks of. known: the tables that are served by now.
    physicals: all that are to be captured, and whether there is a log of each by now.

    Without a list it is all of them: one whose database the relay could not reach so far will be served later.
    `shop/main.orders` and `shop/*` name theirs; `orders`, `main.orders` and patterns without a slash stand for every
    physical source that has such a table by now. Raises `UnknownSource` for a name that nothing answers to,
    `ServiceUnavailable` while the relay has no sources at all, or no log of one that is named.
    """
    if isinstance(sources, str):  # which is a sequence of names too, of one letter each
        raise InputError(f'`sources` is a list of names and patterns: sources=["{sources}"], not sources="{sources}"')
    if not known:
        raise ServiceUnavailable("the relay serves no source yet; it has none, or could not connect to any so far")
    has_log = {**physicals, **{source.physical: True for source in known}}
    if sources is None:
        return [WantedSource(physical, None, is_there) for physical, is_there in has_log.items()]
    chosen: dict[str, list[str]] = {}
    for name in sources:
        physical, table = split_physical(name)
        if physical:
            owners = [owner for owner in has_log if fnmatchcase(owner, physical)]
            is_exact = not is_pattern(table) and owners
            if is_exact and not any(source.physical in owners and name_fits(source.table, table) for source in known):
                if not all(has_log[owner] for owner in owners):
                    raise ServiceUnavailable(f"the relay has no log yet of {physical}, so it cannot tell of {name}")
                owners = []
        else:
            owners = list(dict.fromkeys(source.physical for source in known if name_fits(source.table, table)))
        if not owners:
            near = difflib.get_close_matches(name, [source.name for source in known], 3, 0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else "; `databus sources` lists all that there are"
            raise UnknownSource(f'no source called "{name}"{hint}')
        for owner in owners:
            chosen.setdefault(owner, []).append(table)
    return [WantedSource(physical, tuple(tables), has_log[physical]) for physical, tables in chosen.items()]


class Subscription:
    """An iterator over windows, for `for` and `async for`; `batches` joins many. `close` ends it, from any thread too.

    Each physical source has a reader of its own that reconnects by itself. They take turns: one that is busy never
    keeps another waiting for more than a few windows, or one transaction. An error that somebody must decide about
    (`PositionPurged`...) is raised by the iterator when all that came before it has been taken.

    At a first start nothing comes until the relay has said of each where it begins: a checkpoint that was stored
    without one of them would begin that one at a later `latest`, which is a gap.

    carried: positions of a checkpoint whose physical sources are not followed here; they stay in the checkpoint.
    """

    def __init__(
        self,
        relay: RelayClient,
        wanted: Sequence[WantedSource],
        starts: Mapping[str, Start],
        *,
        until: Mapping[str, Pair] | None = None,
        carried: Mapping[str, SourceCheckpoint] | None = None,
        config: FollowConfig | None = None,
    ) -> None:
        config = config or FollowConfig()
        until = until or {}
        self._bell = Bell()
        self._is_closed = False
        self._carried = dict(carried or {})
        self._lanes: deque[Lane] = deque()  # whose turn it is stands first
        self._turn_windows = 0  # given out by the first lane in this turn
        self._knows_starts = False
        self._inside: Lane | None = None  # of which a transaction has been given out in part
        self._given: tuple[Lane, Window] | None = None  # the last window given out, or an empty one behind it
        self._others: Mapping[str, SourceCheckpoint] | None = None  # where all lanes but the first stand
        for source in wanted:
            self._lanes.append(
                Lane(
                    relay,
                    source.physical,
                    starts[source.physical],
                    Channel(self._bell, config.buffer_bytes_max),
                    sources=source.sources,
                    until=until.get(source.physical),
                    config=config,
                )
            )
        self._forget = weakref.finalize(self, _cancel, self._lanes)
        import_pandas()  # while the first answers are on their way

    @property
    def checkpoint(self) -> Checkpoint:
        """Everything up to the window before the one last given out; a window is done when the next is asked for.

        While the loop's body runs, `window.checkpoint` is where that window will have brought the whole. Any thread may
        ask.
        """
        positions = {
            lane.physical: lane.position for lane in sorted(self._lanes.copy(), key=lambda lane: lane.physical)
        }
        known = {name: position for name, position in positions.items() if position is not None}
        return Checkpoint({**self._carried, **known})

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        self._finish_given()
        following = self._next_to_give()
        if following is None:
            raise StopIteration
        return self._give_window(*following)

    def __aiter__(self) -> AsyncIterator[Window]:
        return self

    async def __anext__(self) -> Window:
        following = await self._next_to_give_async()
        if following is None:
            raise StopAsyncIteration
        return self._give_window(*following)

    def batches(self, rows_max: int = ROWS_MAX) -> Batches:
        """What has arrived, joined: at least one window, and about `rows_max` rows at most, of one physical source. For
        `for` and `async for`.
        """

        def take() -> WindowBatch | None:
            self._finish_given()
            following = self._next_to_give()
            return None if following is None else self._give_batch(*following, rows_max)

        async def take_async() -> WindowBatch | None:
            following = await self._next_to_give_async()
            return None if following is None else self._give_batch(*following, rows_max)

        return Batches(take, take_async)

    def _give_window(self, lane: Lane, window: Window) -> Window:
        self._give(lane, window, window)
        self._turn_windows += 1
        return window

    def _give_batch(self, lane: Lane, window: Window, rows_max: int) -> WindowBatch:
        batch, last = _join(lane, window, rows_max)
        self._give(lane, batch, last)
        self._turn_windows = _TURN_WINDOWS_MAX  # a batch is a turn
        return batch

    def _give(self, lane: Lane, given: Window | WindowBatch, last: Window) -> None:
        """Note what is given out. last: up to where its lane has come once that is done."""
        if self._others is None:
            others = {other.physical: other.position for other in self._lanes if other is not lane}
            known = {name: position for name, position in others.items() if position is not None}
            self._others = {**self._carried, **known}
        given.stand_beside(self._others)
        self._inside = lane if given.continues else None
        self._given = lane, last

    def _finish_given(self) -> None:
        if self._given is not None:
            lane, window = self._given
            lane.done, self._given = window, None

    def _next_to_give(self) -> tuple[Lane, Window] | None:
        """The next window that is worth giving out, and its lane, waiting for it; None when there will be none."""
        while (following := self._find()) is None and not self._is_finished():
            self._wait()
        return following

    async def _next_to_give_async(self) -> tuple[Lane, Window] | None:
        """The same in an event loop. Whoever is cancelled here has taken nothing."""
        self._finish_given()
        await self._bell.give_way()
        while (following := self._find()) is None and not self._is_finished():
            await self._bell.wait_async(lambda: self._is_closed or self._has_work(), self._wait_s_max())
        return following

    def _is_finished(self) -> bool:
        """Whether there will be no more windows."""
        return self._is_closed or all(lane.is_over for lane in self._lanes)

    def _find(self) -> tuple[Lane, Window] | None:
        """The next window that is worth giving out, and its lane; None while there is none. Never waits."""
        while not self._is_closed and (lane := self._next_lane()) is not None:
            if not lane.windows:
                self._inside = None if self._inside is lane else self._inside
                error, lane.error = lane.error, None
                if error is not None:
                    raise error
                continue
            window = lane.windows.popleft()
            if not window.is_passed_over:
                return lane, window
            self._pass_over(lane, window)
        return None

    def _pass_over(self, lane: Lane, window: Window) -> None:
        """Nothing in a window is for the consumer, who has done it therefore."""
        lane.done = window

    def _next_lane(self) -> Lane | None:
        """The lane whose turn it is, which has a window or an error; None while nobody has."""
        if self._inside is not None and not self._inside.is_over:
            return self._inside if self._inside.take_in() else None
        if not self._knows_starts and not self._learn_starts():
            return None
        if self._turn_windows < _TURN_WINDOWS_MAX and self._lanes and self._lanes[0].take_in():
            return self._lanes[0]
        self._turn_windows, self._others = 0, None
        for _ in range(len(self._lanes)):
            self._lanes.rotate(-1)
            if self._lanes[0].take_in():
                return self._lanes[0]
        return None

    def _learn_starts(self) -> bool:
        """Whether all know where they start. Before that nothing is given out: a checkpoint that lacked one of them
        would begin it at a later `latest`, and nobody would notice.
        """
        for lane in self._lanes:
            while not lane.is_begun and lane.advance():
                pass
        self._knows_starts = all(lane.is_begun for lane in self._lanes)
        return self._knows_starts

    def _wait(self) -> None:
        with self._bell:
            wait_seeing_signals(self._bell, lambda: self._is_closed or self._has_work(), self._wait_s_max())

    def _wait_s_max(self) -> float | None:
        """After how long to look again, though nothing has come."""
        return None

    def _has_work(self) -> bool:
        if not self._knows_starts:
            return any(lane.has_work and not lane.is_begun for lane in self._lanes)
        if self._inside is not None:
            return self._inside.has_work
        return any(lane.has_work and not lane.is_over for lane in self._lanes)

    def close(self) -> None:
        """End the iteration and the readers. Callable twice, from any thread."""
        self._end()
        for lane in list(self._lanes):
            lane.reader.close()

    def _end(self) -> None:
        """The same without waiting for the readers' threads."""
        with self._bell:
            self._is_closed = True
            self._bell.notify_all()
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()  # at once, also where what follows is cancelled
        await asyncio.to_thread(self.close)


class LateSubscription(Subscription):
    """One that was made in an event loop, which must not wait for a relay: it asks it when it is entered, in a thread,
    or when the first window is asked for.

    ask: the relay's answers, as the arguments of a `Subscription`.
    """

    def __init__(self, ask: Callable[[], dict[str, Any]]) -> None:
        self._ask = ask
        self._is_open = self._is_closed = False

    def _open(self, asked: dict[str, Any] | None = None) -> None:
        if self._is_open:
            return
        if self._is_closed:
            raise ServiceUnavailable("this subscription was closed before it had begun")
        super().__init__(**(asked or self._ask()))
        self._is_open = True

    async def _open_async(self) -> None:
        if not self._is_open:
            self._open(await asyncio.to_thread(self._ask))

    async def __aenter__(self) -> Self:
        await self._open_async()
        return self

    async def _next_to_give_async(self) -> tuple[Lane, Window] | None:
        await self._open_async()
        return await super()._next_to_give_async()

    def __enter__(self) -> Self:
        self._open()
        return self

    @property
    def checkpoint(self) -> Checkpoint:
        self._open()
        return super().checkpoint

    def _finish_given(self) -> None:
        self._open()
        super()._finish_given()

    def close(self) -> None:
        if self._is_open:
            super().close()
        self._is_closed = True


def _join(lane: Lane, window: Window, rows_max: int) -> tuple[WindowBatch, Window]:
    """A window and those of its lane that have arrived behind it; and the last one that is done with them.

    An error behind them stays in the lane, for whoever asks next.
    """
    batcher = Batcher(rows_max)
    batch, last = batcher.add(window), window
    while batch is None and not batcher.is_full and lane.take_in() and lane.windows:
        window = lane.windows.popleft()
        if not window.is_passed_over and (batch := batcher.add(window)) is not None:
            lane.windows.appendleft(window)
        else:
            last = window
    batch = batch or batcher.take()
    assert batch is not None  # noqa: S101 - there was a window
    return batch, last


def _cancel(lanes: Iterable[Lane]) -> None:
    """For a subscription that is dropped without `close`: its threads must not stay."""
    for lane in list(lanes):
        lane.reader.cancel()


def filtered(
    client: RelayClient, where: str | None, columns: Columns | None, filters: Mapping[str, Mapping[str, Any]] | None
) -> RelayClient:
    """The client behind a filter; itself where there is none. Raises `MalformedRequest`."""
    wanted = StreamFilter.parse(where, columns, filters)
    return client if wanted.is_nothing else client.filtered(wanted)
