"""What a server says of the end of its log: whether it is where capture rests, and how many bytes are left until it.

A server that throws its log away (RESET MASTER) while we follow goes on sending heartbeats about a file that is gone,
and nothing of the new one. So, while nothing comes, the end of its log is asked for now and then.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from databus.core import DatabusError, ServiceUnavailable, TransientError
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import file_number
from databus.sources.mysql.server._hosts import ServerMismatch, asked_again
from databus.sources.mysql.server._status import ServerFacts, log_end, log_files

LogFiles = Sequence[tuple[str, int]]
"""Names of the log's files with their bytes, in order."""

_DISTANCE_EVERY_S: Final = 5.0  # between two questions
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
                f"again"
            )
        self._doubt = place


def watch_end(facts: ServerFacts, *, config: MysqlConfig) -> EndWatch:
    """A watch that asks the server that these facts are of, on a connection of its own each time."""
    ask = asked_again(log_end, facts, config=config)
    return EndWatch(facts.server, ask, max(config.heartbeat_ms * _HEARTBEATS, 1_000) / 1e3)


def bytes_behind(files: LogFiles, file: str, offset: int) -> int | None:
    """The bytes of `files` after a place; None where its file is not among them.

    >>> bytes_behind([("bin.000001", 900), ("bin.000002", 500), ("bin.000003", 30)], "bin.000002", 100)
    430
    """
    if file not in (name for name, _ in files):
        return None
    number = file_number(file)
    return max(sum(size for name, size in files if file_number(name) >= number) - offset, 0)


class LogDistance:
    """Asks a server for its log's files, each time in a thread that ends with the answer. ask: for them."""

    def __init__(self, ask: Callable[[], LogFiles]) -> None:
        self._ask = ask
        self._files: LogFiles = ()
        self._due_s = 0.0
        self._thread: threading.Thread | None = None

    def behind(self, file: str, offset: int) -> int | None:
        """The bytes after that place when the server was asked last; None before its first answer. Does not wait."""
        if time.monotonic() >= self._due_s and (self._thread is None or not self._thread.is_alive()):
            self._due_s = time.monotonic() + _DISTANCE_EVERY_S
            self._thread = threading.Thread(target=self._run, name="mysql-log-end", daemon=True)
            self._thread.start()
        return bytes_behind(self._files, file, offset)

    def _run(self) -> None:
        try:
            self._files = self._ask()
        except (DatabusError, OSError):  # the server does not answer; capture itself notices that
            self._files = ()


def distance_in(facts: ServerFacts, *, config: MysqlConfig) -> LogDistance:
    """Asks the server that these facts are of, on a connection of its own each time."""
    return LogDistance(asked_again(log_files, facts, config=config))
