"""A lane: one physical source on its way from its reader to the consumer, cut into windows."""

from collections import deque

from databus.client._follow import Arrived, Channel, Connected, Ended, FollowConfig, Reader, Started
from databus.client._relay import RelayClient, Start
from databus.client._window import Splitter, Window
from databus.core import Pair, SourceCheckpoint


class Lane:
    """Takes a reader's events and holds the windows that they hold. One thread uses it.

    start: where it begins, once that is known. error: what its reader ended with. is_ended: nothing more comes.
    is_restarted: the transaction of which parts were given out begins anew, from another log; whoever cares resets it.
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
        self.start: SourceCheckpoint | None = None
        self.is_ended = False
        self.is_restarted = False
        self.error: BaseException | None = None
        self._relay = relay
        self._until = until
        self._splitter: Splitter | None = None

    @property
    def has_event(self) -> bool:
        """Whether something has come that was not taken in."""
        return len(self.reader.channel) > 0

    def advance(self) -> bool:
        """Take one event in; whether there was one."""
        event = self.reader.channel.take()
        match event:
            case None:
                return False
            case Started(position):
                self.start = position
                self._splitter = Splitter(self.physical, position, self._relay.table_of, self._until)
            case Connected(uuid, log):
                if self._splitter is not None and self._splitter.connected(uuid, log):
                    self.is_restarted = True
            case Arrived(groups):
                if self._splitter is not None:
                    for group in groups:
                        self.windows.extend(self._splitter.split(group))
            case Ended(error):
                self.is_ended = True
                self.error = error
        return True
