"""EndWatch: whether a connection on which only heartbeats come still reads the server's present log.

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
    """Compares the place that capture has reached with the end of the log of `server`. ask: returns that end."""

    def __init__(self, server: str, ask: Callable[[], FileOffset], every_s: float) -> None:
        self._server = server
        self._ask = ask
        self._every_s = every_s
        self._due_s = time.monotonic() + every_s
        self._doubt: FileOffset | None = None  # the place at which the log was seen to end elsewhere

    def look(self, place: FileOffset | None) -> None:
        """Look at the end of the log, if that is due. place: where capture rests, None while changes come.

        Raises `ServiceUnavailable` if capture rests there although two looks in a row saw the log end elsewhere, or if
        another server answers at the address by now.
        """
        if time.monotonic() < self._due_s:
            return
        if place is None:
            end = None
        else:
            try:
                end = self._ask()
            except ServerMismatch:  # the address has moved on; the one that we hold may never log anything again
                raise
            except TransientError:  # then the connection at hand will end by itself
                end = place
        self._due_s = time.monotonic() + self._every_s
        if end == place or end is None:
            self._doubt = None
            return
        if self._doubt == place:
            raise ServiceUnavailable(
                f"{self._server}: its log ends at {end[0]}:{end[1]}, and nothing has come since {place}; connecting "
                f"anew"
            )
        self._doubt = place


def watch_end(facts: ServerFacts, *, config: MysqlConfig) -> EndWatch:
    """A watch that asks the server that these facts are of, on a connection of its own each time."""
    ask = asked_again(log_end, facts, config=config)
    return EndWatch(facts.server, ask, max(config.heartbeat_ms * _HEARTBEATS, 1_000) / 1e3)
