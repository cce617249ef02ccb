"""A lane: one physical source on its way from its reader to the consumer, cut into windows."""

from collections import deque

from databus.client._batches import Batcher, WindowBatch
from databus.client._splitter import Splitter
from databus.client._window import Window
from databus.core import DatabusError, Pair, SourceCheckpoint
from databus.link import Arrived, Channel, Connected, Ended, FollowConfig, Reader, RelayClient, Start, Started
from databus.wire import FrameGroup


class Lane:
    """Takes a reader's events and holds the windows that they hold. One thread uses it.

    start: where it begins, once that is known. done: the last window that the consumer has done. is_ended: nothing
    comes behind `windows`. error: what it ended with. is_restarted: the transaction of which parts were given out
    begins anew, from another log; whoever cares resets it.
    """

    def __init__(
        self,
        relay: RelayClient,
        physical: str,
        start: Start,
        channel: Channel,
        *,
        sources: tuple[str, ...] | None,
        until: Pair | None,
        config: FollowConfig,
    ) -> None:
        self.physical = physical
        self.reader = Reader(relay, physical, start, channel, sources=sources, until=until, config=config)
        self.windows: deque[Window] = deque()
        # known at once where it is given: whoever leaves before it has begun must not lose it
        self.start: SourceCheckpoint | None = start if isinstance(start, SourceCheckpoint) else None
        self.done: Window | None = None
        self.is_ended = False
        self.is_restarted = False
        self.error: BaseException | None = None
        self._relay = relay
        self._until = until
        self._splitter: Splitter | None = None

    @property
    def position(self) -> SourceCheckpoint | None:
        """Up to where the consumer has done it; None before it is known where it starts."""
        return self.start if self.done is None else self.done.position

    @property
    def is_begun(self) -> bool:
        """Whether it is known where it starts, or it has ended before that."""
        return self.start is not None or self.is_ended

    @property
    def is_over(self) -> bool:
        """Whether nothing comes any more, no error either."""
        return self.is_ended and self.error is None and not self.windows

    @property
    def has_work(self) -> bool:
        """Whether there is something to do here: windows, or events that were not taken in, or an end to be told."""
        return bool(self.windows) or self.is_ended or len(self.reader.channel) > 0

    def take_in(self) -> bool:
        """Take in what has come, up to the next window or the end; whether there is a window or an error."""
        while not self.windows and not self.is_ended:
            if not self.advance():
                return False
        return bool(self.windows) or self.error is not None

    def advance(self) -> bool:
        """Take one event in; whether there was one."""
        event = self.reader.channel.take()
        match event:
            case None:
                return False
            case Started(position):
                self.start = position
                self._splitter = Splitter(self.physical, position, self._relay.table_of, self._until)
            case Connected(uuid, log, unread, look_back):
                if self._splitter is not None and self._splitter.connected(uuid, log, unread, look_back):
                    self.is_restarted = True
            case Arrived(groups):
                self._split(groups)
            case Ended(error):
                self.is_ended = True
                self.error = error
        return True

    def joined(self, rows_max: int) -> WindowBatch:
        """The windows that wait, of which there is one at least, up to about so many rows."""
        batcher = Batcher(rows_max)
        while self.windows and not batcher.is_full:
            window = self.windows.popleft()
            batch = batcher.add(window)
            if batch is not None:
                self.windows.appendleft(window)
                return batch
        batch = batcher.take()
        assert batch is not None  # noqa: S101 - there was a window
        return batch

    def _split(self, groups: list[FrameGroup]) -> None:
        assert self._splitter is not None  # noqa: S101 - a reader begins with `Started`
        try:
            for group in groups:
                self.windows.extend(self._splitter.split(group))
        except DatabusError as error:  # what came is not what a relay sends; what came before it counts
            self.is_ended = True
            self.error = error
            self.reader.cancel()
