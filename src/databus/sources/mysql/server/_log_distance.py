"""How many bytes of a server's log lie behind a place, asked in the background and now and then."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from databus.core import DatabusError
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql.binlog import file_number
from databus.sources.mysql.server._hosts import asked_again
from databus.sources.mysql.server._status import ServerFacts, log_files

LogFiles = Sequence[tuple[str, int]]
"""Names of the log's files with their bytes, in order."""

_EVERY_S: Final = 5.0


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
            self._due_s = time.monotonic() + _EVERY_S
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
