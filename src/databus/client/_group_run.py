"""A client's part of a group: each partition that it holds runs with a consumer and a thread of its own."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from databus.client._client_config import ClientConfig, SourceStatus
from databus.client._consumer import Consumer
from databus.client._dispatcher import OF_A_WINDOW, Call, ConsumerFailed
from databus.client._lane import Lane
from databus.client._member import Hold
from databus.client._membership import Membership
from databus.client._partition import Partition
from databus.client._partition_lane import PartitionLane
from databus.client._subscription import WantedSource
from databus.core import BUS_SEQ_MIN, Checkpoint, Fenced, InputError, SourceCheckpoint, wait_seeing_signals
from databus.link import Channel, FollowConfig, RelayClient
from databus.operate import logger_of

Factory = Callable[[Partition], Consumer]
_LOOK_S: Final = 0.5  # at callbacks that do not come back
_END_S_MAX: Final = 30.0
_logger: Final = logger_of("databus.client")


class PartitionPart:
    """What a client that runs one partition is given: its lanes, where it begins, and whether it may go on.

    It is the client's store of checkpoints too: the group keeps what it saves.
    """

    def __init__(self, membership: Membership, hold: Hold, consumer: Consumer, wanted: Sequence[WantedSource]) -> None:
        self.hold = hold
        self.consumer = consumer
        self.wanted = list(wanted)
        self.called_at: float | None = None
        """Since when a callback is under way."""
        self._membership = membership
        self._checkpoint = hold.done
        self._known = dict(hold.done.sources)  # until a first lane begins there

    def lane(
        self, relay: RelayClient, wanted: WantedSource, start: SourceCheckpoint, channel: Channel, config: FollowConfig
    ) -> Lane:
        """A lane of this partition."""
        return PartitionLane(
            relay,
            wanted.physical,
            start,
            channel,
            membership=self._membership,
            hold=self.hold,
            sources=wanted.sources,
            until=None,
            config=config,
            known=self._known.pop(wanted.physical, None),
        )

    def may_make(self, call: Call) -> bool:
        """Whether a call may be made: none that belongs to a window once the lease is over."""
        self.called_at = time.monotonic()
        return call.kind not in OF_A_WINDOW or self._membership.is_valid(self.hold)

    def has_failed(self, error: BaseException) -> bool:
        """Take note of what a callback raised. Whether the partition is another's: its target refused the fence."""
        if isinstance(error, Fenced):
            self._membership.dropped(self.hold)
        return isinstance(error, Fenced)

    # the store

    def open(self) -> Checkpoint:
        """Where it begins: where its target says that it stands, or the group."""
        stored = self.consumer.on_take(self.hold.partition, self.hold.fence)
        if stored is not None:
            self._checkpoint = Checkpoint({**self._checkpoint.sources, **stored.sources})
            self._membership.progressed(self.hold, self._checkpoint)
        return self._checkpoint

    def save(self, checkpoint: Checkpoint) -> None:
        """Have the group keep it with the next call, but for positions inside a transaction: who begins there lacks its
        first rows.
        """
        inside = {
            name: self._checkpoint.sources.get(name, position)
            for name, position in checkpoint.sources.items()
            if position.seq is not None and position.seq < BUS_SEQ_MIN
        }
        self._checkpoint = Checkpoint({**self._checkpoint.sources, **checkpoint.sources, **inside})
        self._membership.progressed(self.hold, self._checkpoint)

    def close(self) -> None:
        """It is the consumer's no more."""
        self._membership.closed(self.hold, self._checkpoint)


class PartitionClient(Protocol):
    """The client of one partition, as it is run here."""

    def run(self) -> None:
        """Until it is ended."""

    def end(self) -> None:
        """Have it end."""

    def pause(self, *, is_paused: bool) -> None:
        """Have it make no calls, or go on."""

    def status(self) -> dict[str, SourceStatus]:
        """What it does."""


class _Running:
    """One partition, while its thread lives. error: what it ended with."""

    def __init__(self, part: PartitionPart, client: PartitionClient, bell: threading.Condition) -> None:
        self.part, self.client = part, client
        self.error: BaseException | None = None
        self.is_ended = False
        self.is_asked_to_end = False
        self._bell = bell
        self.thread = threading.Thread(
            target=self._run, daemon=True, name=f"databus-partition-{int(part.hold.partition)}"
        )
        self.thread.start()

    def end(self) -> None:
        """Have it end."""
        self.is_asked_to_end = True
        self.client.end()

    def _run(self) -> None:
        try:
            self.client.run()
        except BaseException as error:  # noqa: BLE001 - it is raised by whoever runs the group
            self.error = error
        with self._bell:
            self.is_ended = True
            self._bell.notify_all()


class GroupRun:
    """Runs the partitions that a membership holds. One thread calls `run`; `end` comes from any."""

    def __init__(
        self,
        membership_of: Callable[[Sequence[WantedSource], threading.Condition], Membership],
        factory: Factory | Consumer,
        client_of: Callable[[PartitionPart], PartitionClient],
        config: ClientConfig,
    ) -> None:
        self._bell = threading.Condition()
        self._membership_of = membership_of
        self._factory = factory
        self._client_of = client_of
        self._config = config
        self._running: dict[int, _Running] = {}
        self._left: set[Hold] = set()  # of which `on_error` said that nobody reads them any more
        self._wants_end = self._is_paused = False
        self._error: BaseException | None = None

    def run(self, wanted: Sequence[WantedSource]) -> None:
        """Until `end`, or until one cannot go on. Raises what it could not go on for."""
        if self._wants_end:
            return
        membership = self._membership_of(wanted, self._bell)
        membership.start()
        try:
            while not self._wants_end and self._error is None:
                self._follow(membership, wanted)
                self._wait(membership)
        finally:
            self._end_all(membership)
            membership.leave()
        if self._error is not None:
            raise self._error

    def _follow(self, membership: Membership, wanted: Sequence[WantedSource]) -> None:
        membership.take_news()
        deliverable = membership.deliverable()
        self._error = self._error or membership.error
        for number, running in list(self._running.items()):
            if running.is_ended:
                self._note_end(number, running, membership)
            elif deliverable.get(number) is not running.part.hold:
                running.end()
            else:
                self._look_at_callback(running, membership)
        for number, hold in deliverable.items():
            if number not in self._running and hold not in self._left and self._error is None:
                self._start(membership, hold, wanted)

    def _start(self, membership: Membership, hold: Hold, wanted: Sequence[WantedSource]) -> None:
        if isinstance(self._factory, Consumer):
            if hold.partition.of > 1:
                raise InputError(
                    f"{membership.name} has {hold.partition.of} partitions, each with a thread of its own; give the "
                    f"client what makes a consumer for each, not one consumer: Client(relay, lambda partition: ...)"
                )
            consumer = self._factory
        else:
            consumer = self._factory(hold.partition)
        part = PartitionPart(membership, hold, consumer, wanted)
        membership.opened(hold, hold.done)
        running = self._running[hold.partition] = _Running(part, self._client_of(part), self._bell)
        if self._is_paused:
            running.client.pause(is_paused=True)

    def _note_end(self, number: int, running: _Running, membership: Membership) -> None:
        del self._running[number]
        hold = running.part.hold
        membership.closed(hold, hold.done)  # it has done so itself, unless it ended before it began
        if isinstance(running.error, Fenced):
            _logger.warning("a partition's target refuses its fence", partition=repr(hold.partition))
            membership.dropped(hold)
        elif running.error is not None:
            self._error = self._error or running.error
        elif not running.is_asked_to_end:
            self._left.add(hold)

    def _look_at_callback(self, running: _Running, membership: Membership) -> None:
        """A callback that does not come back keeps its partition from everybody, for this member's lease is renewed."""
        since, ms_max = running.part.called_at, self._config.callback_ms_max
        if since is None or (time.monotonic() - since) * 1e3 < ms_max:
            return
        partition = running.part.hold.partition
        membership.dropped(running.part.hold)
        running.end()  # else it would follow its relay for ever once the callback does come back
        del self._running[partition]
        self._error = self._error or ConsumerFailed(
            f"partition {partition!r}: a callback has not come back for callback_ms_max={ms_max} ms; the partition is "
            f"given back, and this client ends"
        )

    def _wait(self, membership: Membership) -> None:
        left_s = membership.lease_left_s() if self._running else None
        with self._bell:
            wait_seeing_signals(
                self._bell,
                lambda: (
                    self._wants_end
                    or membership.has_news
                    or any(running.is_ended for running in self._running.values())
                ),
                _LOOK_S if left_s is None else min(left_s + 0.001, _LOOK_S),
            )

    def _end_all(self, membership: Membership) -> None:
        for running in self._running.values():
            running.end()
        deadline = time.monotonic() + _END_S_MAX
        for number, running in list(self._running.items()):
            running.thread.join(max(deadline - time.monotonic(), 0.0))
            if running.thread.is_alive():
                membership.dropped(running.part.hold)
            else:
                self._note_end(number, running, membership)

    # from any thread

    def end(self) -> None:
        """Save, give back, leave."""
        with self._bell:
            self._wants_end = True
            self._bell.notify_all()

    def pause(self, *, is_paused: bool) -> None:
        """Have all make no calls, or go on."""
        self._is_paused = is_paused
        for running in list(self._running.values()):
            running.client.pause(is_paused=is_paused)

    @property
    def checkpoint(self) -> Checkpoint:
        """What the group keeps of the only partition that is held, or will with the next call."""
        checkpoints = [running.part.hold.done for running in list(self._running.values())]
        if len(checkpoints) != 1:
            raise InputError(f"{len(checkpoints)} partitions are held, and each has a checkpoint of its own")
        return checkpoints[0]

    def status(self) -> dict[str, SourceStatus]:
        """By physical source, with the partition before it where there are several: `3/8 shop`."""
        by_name: dict[str, SourceStatus] = {}
        for running in list(self._running.values()):
            partition = running.part.hold.partition
            for name, status in running.client.status().items():
                by_name[name if partition.of == 1 else f"{partition!r} {name}"] = status
        return by_name
