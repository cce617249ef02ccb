"""Subscriptions: windows of any number of physical sources as an iterator.

    with windows("http://127.0.0.1:11115", sources=["shop/main.*"], start="latest") as following:
        for window in following:
            for row in window.rows(): ...
            store(following.checkpoint)

Between physical sources there is no order; inside each there is the order of commits.
"""

import difflib
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Self

from databus.client._batches import Batcher, WindowBatch
from databus.client._follow import Channel, FollowConfig, Reader
from databus.client._lane import Lane
from databus.client._relay import RelayClient, SourceInfo, Start
from databus.client._window import Window
from databus.core import Checkpoint, Pair, Unavailable, UnknownSource

ROWS_MAX: int = 100_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is followed of one physical source. sources: names and patterns as the relay takes them; None for all."""

    physical: str
    sources: tuple[str, ...] | None


def select(known: Sequence[SourceInfo], sources: Sequence[str] | None) -> list[Wanted]:
    """Which physical sources a list of names and patterns speaks of.

    `shop/main.orders` and `shop/*` name theirs; `orders`, `main.orders` and patterns without a slash stand for every
    physical source that has such a table. Raises `UnknownSource` for a name that nothing answers to, `Unavailable`
    while the relay has no sources at all.
    """
    physicals = list(dict.fromkeys(each.physical for each in known))
    if not physicals:
        raise Unavailable("the relay serves no source yet; it has none, or could not connect to any so far")
    if sources is None:
        return [Wanted(physical, None) for physical in physicals]
    chosen: dict[str, list[str]] = {}
    for name in sources:
        physical, slash, table = name.rpartition("/")
        if slash:
            found = [each for each in physicals if fnmatchcase(each, physical)]
            is_exact = "*" not in table and found
            if is_exact and not any(each.physical in found and _is(each, table) for each in known):
                found = []
        else:
            found = list(dict.fromkeys(each.physical for each in known if _is(each, table)))
        if not found:
            near = difflib.get_close_matches(name, [each.name for each in known], 3, 0.4)
            hint = f"; did you mean {', '.join(near)}?" if near else f"; there are {len(known)}, see /sources"
            raise UnknownSource(f'no source called "{name}"{hint}')
        for each in found:
            chosen.setdefault(each, []).append(table)
    return [Wanted(physical, tuple(tables)) for physical, tables in chosen.items()]


def _is(source: SourceInfo, pattern: str) -> bool:
    return fnmatchcase(source.table, pattern) or fnmatchcase(source.table.rpartition(".")[2], pattern)


class Subscription:
    """An iterator over windows; `batches` joins many. `close` ends it, from any thread too.

    Each physical source has a reader of its own that reconnects by itself. An error that somebody must decide about
    (`PositionPurged`...) is raised by the iterator when all that came before it has been taken.
    """

    def __init__(
        self,
        relay: RelayClient,
        wanted: Sequence[Wanted],
        starts: Mapping[str, Start],
        *,
        until: Mapping[str, Pair] | None = None,
        config: FollowConfig | None = None,
    ) -> None:
        config = config or FollowConfig()
        until = until or {}
        self._bell = threading.Condition()
        self._is_closed = False
        self._relay = relay
        self._lanes: deque[Lane] = deque()
        self._current: Lane | None = None
        self._is_inside = False  # of a transaction of the current lane
        self._given: Window | WindowBatch | None = None
        for each in wanted:
            self._lanes.append(
                Lane(
                    relay,
                    each.physical,
                    starts[each.physical],
                    Channel(self._bell, config.buffer_bytes_max),
                    sources=each.sources,
                    until=until.get(each.physical),
                    config=config,
                )
            )
        self._forget = weakref.finalize(self, _cancel, [lane.reader for lane in self._lanes])

    @property
    def checkpoint(self) -> Checkpoint:
        """Everything up to the window before the one last given out; a window is done when the next is asked for.

        While the loop's body runs, `window.checkpoint` is where that window will have brought its physical source.
        """
        lanes = sorted(self._lanes, key=lambda lane: lane.physical)
        positions = {lane.physical: lane.start if lane.done is None else lane.done.position for lane in lanes}
        return Checkpoint({name: position for name, position in positions.items() if position is not None})

    def __iter__(self) -> Iterator[Window]:
        return self

    def __next__(self) -> Window:
        self._finish_given()
        window = self._next_window()
        if window is None:
            raise StopIteration
        self._given = window
        return window

    def batches(self, rows_max: int = ROWS_MAX) -> Iterator[WindowBatch]:
        """What has arrived, joined: at least one window, and about `rows_max` rows at most, of one physical source."""
        while True:
            self._finish_given()
            window = self._next_window()
            if window is None:
                return
            batcher = Batcher(rows_max)
            batch: WindowBatch | None = None
            while window is not None:
                batch = batcher.add(window)
                if batch is not None:
                    self._put_back(window)
                    break
                if batcher.is_full:
                    break
                window = self._waiting_window()
            batch = batch or batcher.take()
            if batch is not None:
                self._given = batch
                yield batch

    def _finish_given(self) -> None:
        if self._given is not None and self._current is not None:
            self._current.done, self._given = self._given, None

    def _put_back(self, window: Window) -> None:
        if self._current is not None:
            self._current.windows.appendleft(window)

    def _next_window(self) -> Window | None:
        """The next window, waiting for it; None when there will be none."""
        while not self._is_closed:
            if (window := self._waiting_window()) is not None:
                return window
            if not self._is_inside:
                self._current = None
                for lane in list(self._lanes):
                    self._lanes.rotate(-1)
                    self._current = lane
                    if (window := self._waiting_window()) is not None:
                        return window
                self._current = None
                if all(map(self._is_over, self._lanes)):
                    return None
            self._wait()
        return None

    def _wait(self) -> None:
        with self._bell:
            while not self._is_closed and not self._has_work():
                self._bell.wait()

    def _has_work(self) -> bool:
        if self._is_inside and self._current is not None:
            return self._current.has_work
        return any(lane.has_work and not self._is_over(lane) for lane in self._lanes)

    def _is_over(self, lane: Lane) -> bool:
        return lane.is_ended and lane.error is None and not lane.windows

    def _waiting_window(self) -> Window | None:
        """The next window of the current lane, if it has come."""
        lane = self._current
        if lane is None:
            return None
        while not self._is_closed:
            if lane.windows:
                window = lane.windows.popleft()
                self._is_inside = window.continues
                if not window.is_empty or window.is_part:
                    return window
                lane.done = window
                continue
            if lane.is_ended:
                self._is_inside = False
                error, lane.error = lane.error, None
                if error is not None:
                    raise error
                return None
            if not lane.advance():
                return None
        return None

    def close(self) -> None:
        """End the iteration and the readers. Callable twice, from any thread."""
        with self._bell:
            self._is_closed = True
            self._bell.notify_all()
        self._forget()
        for lane in list(self._lanes):
            lane.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _cancel(readers: Sequence[Reader]) -> None:
    """For a subscription that is dropped without `close`: its threads must not stay."""
    for reader in readers:
        reader.cancel()


def windows(
    relay: RelayClient | str,
    *,
    sources: Sequence[str] | None = None,
    start: Start = "beginning",
    checkpoint: Checkpoint | None = None,
    follow: bool = True,
    token: str | None = None,
    config: FollowConfig | None = None,
) -> Subscription:
    """Follow a relay's sources, window by window.

    sources: names and patterns; None for all there are. checkpoint: where to go on, for the physical sources in it;
    the others begin at `start`. follow: stay on for ever; else end at what is published now.
    """
    client = RelayClient(relay, token=token) if isinstance(relay, str) else relay
    wanted = select(client.sources(), sources)
    known = checkpoint.sources if checkpoint is not None else {}
    starts: dict[str, Start] = {each.physical: known.get(each.physical, start) for each in wanted}
    until = None
    if not follow:
        until = {each.physical: client.head(each.physical).published.pair for each in wanted}
    return Subscription(client, wanted, starts, until=until, config=config)
