"""Watch: whether a connection on which only heartbeats come is still that of the server's log.

A server that throws its log away (RESET MASTER) while we follow goes on sending heartbeats about a file that is gone,
and nothing of the new one. So, while nothing comes, the end of its log is asked for now and then.
"""

import time
from collections.abc import Callable
from typing import Final

from databus.core import ServiceUnavailable, TransientError
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.server._hosts import ServerMismatch, asked_again
from databus.sources.mysql.server._status import ServerFacts, log_end

FileOffset = tuple[str, int]

_HEARTBEATS: Final = 5  # how often the log's end is compared while nothing comes


class EndWatch:
    """Compares where we rest with where the log of `server` ends. ask: for that end."""

    def __init__(self, server: str, ask: Callable[[], FileOffset], every_s: float) -> None:
        self._server = server
        self._ask = ask
        self._every_s = every_s
        self._due_s = time.monotonic() + every_s
        self._doubt: FileOffset | None = None  # we rested here when the log was found to end elsewhere

    def look(self, here: FileOffset | None) -> None:
        """We rest `here`, or nowhere.

        Raises `ServiceUnavailable` if we rest there although the log went on elsewhere since the last look but one, or
        another server answers at the address by now.
        """
        if time.monotonic() < self._due_s:
            return
        if here is None:
            there = None
        else:
            try:
                there = self._ask()
            except ServerMismatch:  # the address has moved on; the one that we hold may never log anything again
                raise
            except TransientError:  # then the connection at hand will end by itself
                there = here
        self._due_s = time.monotonic() + self._every_s
        if there == here or there is None:
            self._doubt = None
            return
        if self._doubt == here:
            raise ServiceUnavailable(
                f"{self._server}: its log ends at {there[0]}:{there[1]}, and nothing has come since {here}; connecting "
                f"anew"
            )
        self._doubt = here


def watch_end(facts: ServerFacts, *, config: MysqlConfig) -> EndWatch:
    """A watch that asks the server that these facts are of, on a connection of its own each time."""
    ask = asked_again(log_end, facts, config=config)
    return EndWatch(facts.server, ask, max(config.heartbeat_ms * _HEARTBEATS, 1_000) / 1e3)
