"""A physical source as a client follows it."""

from databus.client._consumer import AnyWindow
from databus.client._lane import Lane
from databus.client._subscription import Wanted
from databus.core import SourceCheckpoint


class FollowedSource:
    """One physical source in the client: its lane, which is renewed at each replay, and what has been counted."""

    def __init__(self, wanted: Wanted, lane: Lane) -> None:
        self.wanted = wanted
        self.lane: Lane | None = lane
        self.replay_from: SourceCheckpoint | None = None
        self.replay_at = 0.0
        self.is_known = False
        self.is_left = False
        self.last: AnyWindow | None = None
        self.windows = 0
        self.rows = 0
        self.failures = 0
        self.last_error: BaseException | None = None
        self.checkpointed_at = 0.0
