"""Watch: waiting until the database may have been written to, without asking all the time.

Each commit writes to the -wal file, which inotify reports at once where there is inotify. That is before the commit can
be seen, so that for a while after an event the caller looks often; without events, every `poll_ms`.
"""

import contextlib
import ctypes
import os
import select
import threading
import time
from typing import Final

_IN_MODIFY: Final = 0x2
_IN_NONBLOCK: Final = os.O_NONBLOCK
_IN_CLOEXEC: Final = getattr(os, "O_CLOEXEC", 0)
_EVENT_BYTES: Final = 4096
_RESTLESS_S: Final = 0.25  # after an event: its commit can be seen only later
_LOOK_S: Final = 0.0005  # between two looks then, at first
_LOOK_S_MAX: Final = 0.02  # and at last


class FileWatch:
    """Waits for writes to one file. Any thread may `wake` the one that waits."""

    def __init__(self, path: str, poll_ms: int) -> None:
        self._poll_s = poll_ms / 1000
        self._fd = _inotify(path)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        if self._fd is not None:
            self._poller.register(self._fd, select.POLLIN)
        self._restless_until = 0.0
        self._look_s = _LOOK_S
        self._closing = threading.Lock()

    def wait(self, deadline: float) -> None:
        """Return when it is worth looking again: `deadline` (time.monotonic) at the latest."""
        now = time.monotonic()
        limit = self._poll_s
        if now < self._restless_until:
            limit = min(limit, self._look_s)
            self._look_s = min(self._look_s * 1.5, _LOOK_S_MAX)
        wait_s = max(min(limit, deadline - now), 0.0)
        for fd, _ in self._poller.poll(max(wait_s * 1000, 0.2) if wait_s else 0):
            with contextlib.suppress(BlockingIOError):
                os.read(fd, _EVENT_BYTES)
            self._restless_until = time.monotonic() + _RESTLESS_S
            self._look_s = _LOOK_S

    def wake(self) -> None:
        """Have the waiting thread look now."""
        with self._closing, contextlib.suppress(OSError):
            os.write(self._wake_write, b"\0")

    def close(self) -> None:
        """Let go of the file descriptors; callable twice."""
        with self._closing:
            for fd in (self._fd, self._wake_read, self._wake_write):
                if fd is not None:
                    with contextlib.suppress(OSError):
                        os.close(fd)
            self._fd, self._wake_read, self._wake_write = None, -1, -1


def _inotify(path: str) -> int | None:
    """A descriptor that is readable after writes to the file; None where there is no inotify."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
    except (OSError, AttributeError):
        return None
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(fd)
        return None
    return fd
