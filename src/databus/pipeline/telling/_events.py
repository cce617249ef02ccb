"""Events of a run: passed to listeners one at a time, and written to a file as JSON lines. Start with `reporting`."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from databus.operate import hide_in_answer

OnEvent = Callable[[Mapping[str, Any]], None]

_PENDING_BYTES_MAX: Final = 1 << 20
"""What is kept for a FIFO whose reader is slow; events beyond it are dropped."""
_MODE: Final = 0o644


@contextmanager
def reporting(listeners: Sequence[OnEvent | None], file: Path | None) -> Iterator[OnEvent]:
    """Give a function that takes events, from any thread, and passes them on, without secrets in their texts, to the
    listeners and the file in order.

    Raises OSError if the file cannot be opened.
    """
    lock = threading.Lock()
    lines = None if file is None else _Lines(file)

    def report(event: Mapping[str, Any]) -> None:
        event = hide_in_answer(event)
        with lock:
            for listener in listeners:
                if listener is not None:
                    listener(event)
            if lines is not None:
                lines.put(event)

    try:
        yield report
    finally:
        if lines is not None:
            lines.close()


class _Lines:
    """Lines of JSON, appended to a file. A FIFO never blocks the run: events that its reader does not take are lost."""

    def __init__(self, path: Path) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(path, flags, _MODE)
        self._pending = b""

    def put(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, default=str).encode() + b"\n"
        if len(self._pending) + len(line) <= _PENDING_BYTES_MAX:
            self._pending += line
        try:
            while self._pending:
                self._pending = self._pending[os.write(self._fd, self._pending) :]
        except BlockingIOError:
            return  # the rest is written with the next event

    def close(self) -> None:
        os.close(self._fd)
