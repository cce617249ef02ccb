"""A partition in the consumer's hands: a lane for each physical source, which stops where keys are dealt anew."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from databus.client._lane import Lane
from databus.client._member import Hold
from databus.client._membership import Membership
from databus.client._window import ControlEvent, Window, WindowView
from databus.core import Barrier, Checkpoint, ControlKind, DatabusError, Pair, SourceCheckpoint
from databus.filters import StreamPartition
from databus.link import Channel, FollowConfig, RelayClient
from databus.schema import TableSchema, frame_schema, key_form


def moves_keys(control: ControlEvent, table_of: Callable[[int], TableSchema]) -> bool:
    """Whether behind the control rows of its table may be of other partitions. table_of: a table by its fingerprint."""
    previous = control.body.get("previous")
    if control.kind is not ControlKind.SCHEMA or previous is None:
        return False
    try:
        before = table_of(int(previous, 16) if isinstance(previous, str) else int(previous))
    except DatabusError:
        return True  # it cannot be told: the others are waited for once too often
    renamed = dict(control.body.get("renamed") or {})
    key = tuple(renamed.get(name, name) for name in before.key)
    return key != tuple(control.table.key) or _forms(before) != _forms(control.table)


def _forms(table: TableSchema) -> list[str]:
    schema = frame_schema(table)
    return [key_form(schema.field(name).type) for name in table.key]


class PartitionLane(Lane):
    """A lane of one partition. settled: up to where the consumer has done whole transactions.

    known: up to where the group knows that. Where the consumer's own target is further, what lies between is read and
    not given out: whoever held the partition before may have come to a control there of which the others do not know.
    """

    def __init__(
        self,
        relay: RelayClient,
        physical: str,
        start: SourceCheckpoint,
        channel: Channel,
        *,
        membership: Membership,
        hold: Hold,
        sources: tuple[str, ...] | None,
        until: Pair | None,
        config: FollowConfig,
        known: SourceCheckpoint | None = None,
    ) -> None:
        self.hold = hold
        self.settled = start
        self._passed: Pair = (-1, -1)  # up to where nothing is given out
        if known is not None and known.pair < start.pair and known.uuid in ("", start.uuid):
            self._passed, start = start.pair, known
        self._membership = membership
        self._behind: deque[Window] = deque()  # what came behind a control that the others have not saved yet
        self._barrier = next((barrier for barrier in hold.waits if barrier.physical == physical), None)
        if hold.partition.of > 1:
            keys = StreamPartition(int(hold.partition), hold.partition.of)
            relay = relay.filtered(replace(relay.filters, partition=keys))
        super().__init__(relay, physical, start, channel, sources=sources, until=until, config=config)

    @property
    def has_work(self) -> bool:
        """See `Lane.has_work`; at a barrier only once it may go on."""
        if self.windows or self._is_blocked:
            return bool(self.windows)
        return bool(self._behind) or super().has_work

    @property
    def is_over(self) -> bool:
        """See `Lane.is_over`."""
        return super().is_over and not self._behind

    @property
    def _is_blocked(self) -> bool:
        return self._barrier is not None and self.hold.barriers.get(self.physical) == self._barrier

    def take_in(self) -> bool:
        """See `Lane.take_in`."""
        if self.windows:
            return True
        if self._is_blocked:
            return False
        self._barrier = None
        behind, self._behind = self._behind, deque()
        self._queue(behind)
        return bool(self.windows) or (not self._behind and super().take_in())

    def advance(self) -> bool:
        """See `Lane.advance`."""
        if not super().advance():
            return False
        arrived, self.windows = self.windows, deque()
        self._queue(arrived)
        return bool(self.windows) or not (self._behind or self._is_blocked)

    def _queue(self, arrived: deque[Window]) -> None:
        while arrived:
            control, is_shared = arrived[0].control, self.hold.partition.of > 1
            is_barrier = is_shared and control is not None and moves_keys(control, self._relay.table_of)
            if is_barrier and self.windows:
                break
            window = arrived.popleft()
            if window.position.pair > self._passed:
                self.windows.append(window)
            if is_barrier and control is not None:
                self._barrier = Barrier(self.physical, control.pair)
                self._membership.comes_to(self.hold, self._barrier)
                break
        self._behind.extend(arrived)

    def settle(self) -> bool:
        """Note what the consumer has done. Whether it came to a barrier with it."""
        if self.done is not None and not self.done.continues:
            self.settled = self.done.position
        return self._barrier is not None and not self.windows

    def lose(self, last: Window | None) -> None:
        """Give out nothing more. last: the last part of a transaction that goes on no more, which is to be said."""
        self.reader.cancel()
        self._behind.clear()
        self.windows = deque() if last is None else deque([Interruption(last, self.settled)])
        self.is_ended, self.error, self._barrier = True, None, None


class OpenPartition:
    """A partition that is in the consumer's hands, and its lanes. begin: where it began."""

    def __init__(self, hold: Hold, begin: Checkpoint, lanes: list[PartitionLane]) -> None:
        self.hold = hold
        self.lanes = lanes
        self._begin = begin

    def positions(self, but: Lane | None = None) -> Mapping[str, SourceCheckpoint]:
        """Up to where whole transactions are done, by physical source. but: without the one of this lane."""
        positions = dict(self._begin.sources)
        positions.update({lane.physical: lane.settled for lane in self.lanes})
        if but is not None:
            del positions[but.physical]
        return positions

    @property
    def checkpoint(self) -> Checkpoint:
        """Up to where it is done. Never inside a transaction: whoever begins there would lose its first parts."""
        return Checkpoint(self.positions())


class Interruption(Window):
    """An empty window that says that the transaction of which parts were given out goes on no more."""

    __slots__ = ("_settled",)

    def __init__(self, last: Window, settled: SourceCheckpoint) -> None:
        view: Any = last._view  # noqa: SLF001 - its own class
        own = WindowView(view.group, view.physical, view.uuid, view.log, view._table_of)  # noqa: SLF001 - as above
        own.starts = own.stops = [[0] for _ in own.frames]
        super().__init__(own, 0, last.scn << 1)
        self.is_empty = self.is_part = self.restarts = True
        self._settled = settled

    @property
    def position(self) -> SourceCheckpoint:
        """Before the transaction."""
        return self._settled
