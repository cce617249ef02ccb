"""Subscriptions by name: windows of the partitions that a member of a group holds. Start with `GroupSubscription`."""

import asyncio
import datetime as dt
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from databus.client._batches import WindowBatch
from databus.client._lane import Lane
from databus.client._member import Hold
from databus.client._membership import Membership
from databus.client._partition import Partition
from databus.client._partition_lane import OpenPartition, PartitionLane
from databus.client._subscription import Subscription, WantedSource
from databus.client._window import Window
from databus.core import Checkpoint, Fenced, InputError, Pair, SourceCheckpoint, us_of
from databus.filters import StreamFilter
from databus.link import Channel, FollowConfig, RelayClient, Start
from databus.operate import logger_of

OnTake = Callable[[Partition, int], Checkpoint | None]
"""Called when a partition is taken, with its fence: where its target stands, or None for the group's own checkpoint.
Raises `Fenced` if the target knows a higher fence."""
_CLOSING_MS_MAX: Final = 5_000
_logger: Final = logger_of("databus.client")


class GroupSubscription(Subscription):
    """An iterator over the windows of the partitions that this member of a group holds.

    The group keeps a checkpoint for each partition, saved each second and when a partition is given back. A window is
    done when the next is asked for; `close`, which the end of `with` calls, saves, gives all back and leaves the group.
    Partitions come and go between transactions; where one is lost inside a transaction, the next window is empty and
    says `restarts`. Parts of one transaction follow each other, with no window of another partition in between.
    """

    def __init__(
        self,
        relay: RelayClient,
        name: str,
        terms: Mapping[str, Any],
        ask: Callable[[], tuple[list[WantedSource], Mapping[str, Pair]]],
        *,
        on_take: OnTake | None = None,
        config: FollowConfig | None = None,
    ) -> None:
        """ask: the relay, for what is followed and up to where; by another thread, and again while it does not answer.
        terms: see `group_terms`.
        """
        super().__init__(relay, (), {}, config=config)
        self._relay = relay
        self._wanted: list[WantedSource] = []
        self._until: Mapping[str, Pair] = {}
        self._config = config or FollowConfig()
        self._on_take = on_take
        self._open: dict[int, OpenPartition] = {}
        self._last: Window | None = None  # what was given out last
        self._thread: threading.Thread | None = None  # which asks for windows
        self._is_asking = False
        self._asked: list[tuple[list[WantedSource], Mapping[str, Pair]]] = []
        asked = self._asked  # and not this object, which the thread would keep alive

        def prepare() -> Mapping[str, Any]:
            asked.append(ask())
            return terms_in(terms, [source.physical for source in asked[-1][0]])

        self._membership = Membership(relay, name, prepare, self._bell)
        self._cancel = weakref.finalize(self, self._membership.cancel)

    # what is given out

    @property
    def checkpoint(self) -> Checkpoint:
        """Where the partition stands, if it is the only one; `window.checkpoint` is of each window's own."""
        if len(self._open) != 1:
            raise InputError(f"{len(self._open)} partitions are held, and each has a checkpoint: see window.checkpoint")
        (partition,) = self._open.values()
        return partition.checkpoint

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions that are held and may be delivered now."""
        return tuple(hold.partition for hold in self._membership.deliverable().values())

    def drop(self, window: Window | WindowBatch) -> None:
        """Give a window's partition back, without saving: its target has refused the window's fence.

        Roll back what the window's transaction did before. If the partition comes back, it has a higher fence.
        """
        partition = self._open.get(window.partition if window.partition is not None else -1)
        if partition is None or partition.hold.fence != window.fence:
            return
        if self._given is not None and self._given[0] in partition.lanes:
            self._given = None  # it is not done
        self._membership.dropped(partition.hold)

    def _give(self, lane: Lane, given: Window | WindowBatch, last: Window) -> None:
        assert isinstance(lane, PartitionLane)  # noqa: S101 - it has no others
        partition = self._open.get(lane.hold.partition)
        given.stand_beside({} if partition is None or lane not in partition.lanes else partition.positions(lane))
        given.belong_to(lane.hold.partition, lane.hold.fence)
        self._inside = lane if given.continues else None
        self._given, self._last = (lane, last), last

    def _finish_given(self) -> None:
        given = self._given
        super()._finish_given()
        if given is not None and isinstance(lane := given[0], PartitionLane):
            self._settle(lane)

    def _pass_over(self, lane: Lane, window: Window) -> None:
        super()._pass_over(lane, window)
        assert isinstance(lane, PartitionLane)  # noqa: S101 - it has no others
        self._settle(lane)  # else who gets nothing for long would lose the place to the log's retention

    def _settle(self, lane: PartitionLane) -> None:
        partition = self._open.get(lane.hold.partition)
        if lane.settle() and partition is not None and lane in partition.lanes:
            self._membership.progressed(lane.hold, partition.checkpoint)  # the others wait for it

    # what comes and goes

    def _find(self) -> tuple[Lane, Window] | None:
        if not self._is_closed:
            self._membership.start()  # whoever asks for nothing holds nothing
            self._look_around()
        return super()._find()

    def _look_around(self) -> None:
        """Open what may be delivered, and close what may be no more."""
        self._membership.take_news()
        deliverable = self._membership.deliverable()
        for number, partition in list(self._open.items()):
            if deliverable.get(number) is not partition.hold:
                self._close_partition(number, partition)
        for lane in [lane for lane in self._lanes if lane.is_over and lane is not self._inside]:
            if not any(lane in partition.lanes for partition in self._open.values()):
                self._lanes.remove(lane)  # it had to say that its transaction goes on no more
        if self._inside is not None:
            return
        if self._membership.error is not None:
            raise self._membership.error
        for number, hold in deliverable.items():
            if number not in self._open:
                self._open_partition(hold)

    def _close_all(self) -> None:
        for number, partition in list(self._open.items()):
            self._close_partition(number, partition)

    def _close_partition(self, number: int, partition: OpenPartition) -> None:
        """Deliver no more of it; a transaction of which parts were given out is taken back."""
        del self._open[number]
        for lane in partition.lanes:
            lane.lose(self._last if self._inside is lane else None)
            if self._inside is not lane:
                self._lanes.remove(lane)
        self._membership.closed(partition.hold, partition.checkpoint)

    def _open_partition(self, hold: Hold) -> None:
        begin = known = hold.done
        if self._on_take is not None:
            try:
                stored = self._on_take(hold.partition, hold.fence)
            except Fenced as error:
                _logger.warning(
                    "a partition's target refuses its fence", partition=repr(hold.partition), error=str(error)
                )
                self._membership.dropped(hold)
                return
            begin = begin if stored is None else Checkpoint({**begin.sources, **stored.sources})
        if not self._membership.may_deliver(hold):
            return  # `on_take` took long
        self._wanted, self._until = self._asked[-1]
        lanes: list[PartitionLane] = []
        partition = OpenPartition(hold, begin, lanes)
        self._membership.opened(hold, begin, lambda: partition.checkpoint)
        lanes.extend(self._lane(wanted, hold, begin, known) for wanted in self._wanted)
        self._lanes.extend(lanes)
        self._open[hold.partition] = partition

    def _lane(self, wanted: WantedSource, hold: Hold, begin: Checkpoint, known: Checkpoint) -> PartitionLane:
        return PartitionLane(
            self._relay,
            wanted.physical,
            begin.sources.get(wanted.physical, SourceCheckpoint()),
            Channel(self._bell, self._config.buffer_bytes_max),
            membership=self._membership,
            hold=hold,
            sources=wanted.sources,
            until=self._until.get(wanted.physical),
            config=self._config,
            known=known.sources.get(wanted.physical),
        )

    def _is_finished(self) -> bool:
        has_come_to_end = bool(self._until) and bool(self._open) and super()._is_finished()
        return self._is_closed or has_come_to_end

    # waiting

    def _has_work(self) -> bool:
        return self._membership.has_news or super()._has_work()

    def _wait_s_max(self) -> float | None:
        return self._membership.lease_left_s() if self._open else None

    # the end

    def close(self) -> None:
        """Save what is done, give back what is held, and leave the group. Callable twice, from any thread: where
        another one is in the loop's body, that one leaves when it asks for the next window.
        """
        self._end()
        if self._thread in (None, threading.current_thread()):
            self._leave()
        elif self._is_asking:
            self._membership.join(_CLOSING_MS_MAX / 1e3)

    def _leave(self) -> None:
        self._given = None
        self._close_all()
        self._inside = None
        self._membership.leave()
        self._cancel.detach()
        super().close()

    def _next_to_give(self) -> tuple[Lane, Window] | None:
        self._thread, self._is_asking = threading.current_thread(), True
        try:
            following = super()._next_to_give()
            if following is None:
                self._leave()
            return following
        finally:
            self._is_asking = False

    async def _next_to_give_async(self) -> tuple[Lane, Window] | None:
        following = await super()._next_to_give_async()
        if following is None:
            await asyncio.to_thread(self._leave)
        return following


def group_terms(
    sources: Sequence[str] | None,
    filters: StreamFilter,
    start: Start,
    checkpoint: Checkpoint | None,
    partitions: int,
    *,
    guard: bool,
) -> dict[str, Any]:
    """What a group agrees on, as each call says it. start, checkpoint: where it begins; its first call decides."""
    begin: Any = start
    if start == "state":
        raise InputError("start: `state` is for who keeps his checkpoints himself, and not for a group")
    if checkpoint is not None:
        begin = checkpoint.to_json()
    elif isinstance(start, SourceCheckpoint):
        begin = start
    elif isinstance(start, dt.datetime):
        try:
            begin = {"time": max(us_of(start), 0)}
        except ValueError as error:
            raise InputError(f"start: {error}") from None
    return {
        "sources": None if sources is None else list(sources),
        "filters": filters.query(),
        "partitions": partitions,
        "start": begin,
        "guard": guard,
    }


def terms_in(terms: Mapping[str, Any], physicals: Iterable[str]) -> dict[str, Any]:
    """The same, once it is known which physical sources are followed: a position to start at is of each of them."""
    start = terms["start"]
    if isinstance(start, SourceCheckpoint):
        start = Checkpoint(dict.fromkeys(physicals, start)).to_json()
    return {**terms, "start": start}
