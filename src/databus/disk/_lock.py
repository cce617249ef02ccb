"""The lock by which one process owns a folder, and by which the next one learns who that is."""

import datetime as dt
import fcntl
import json
import os
import socket
import sys
from pathlib import Path
from typing import Final

from databus.core import LockHeld

NAME: Final = "LOCK"
_HOLDER_BYTES_MAX: Final = 4096
_COMMAND_CHARS_MAX: Final = 300


class FolderLock:
    """Held from `take` to `release`, or to the end of the process, however it ends.

    The lock belongs to the open file and not to the process, so that a second log on the same folder in the same
    process is refused too.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @classmethod
    def take(cls, folder: Path) -> "FolderLock":
        """Own `folder`. Raises `LockHeld`, naming pid, host and command of the process that does."""
        path = folder / NAME
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = _describe(os.pread(fd, _HOLDER_BYTES_MAX, 0))
            os.close(fd)
            if not isinstance(error, BlockingIOError):
                raise
            raise LockHeld(f"{folder}: owned by {holder}; stop that process first, or use another folder") from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, _own_description()[:_HOLDER_BYTES_MAX], 0)
        return cls(fd)

    @classmethod
    def is_held(cls, folder: Path) -> bool:
        """Whether somebody owns `folder` now; False where it is not there."""
        try:
            cls.take(folder).release()
        except LockHeld:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return False

    def release(self) -> None:
        """Let go; callable twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _own_description() -> bytes:
    command = " ".join(" ".join(sys.orig_argv).split())
    command = command if len(command) <= _COMMAND_CHARS_MAX else f"{command[:_COMMAND_CHARS_MAX]}..."
    since = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "command": command, "since": since}
    return json.dumps(holder).encode()


def _describe(written: bytes) -> str:
    try:
        holder = json.loads(written)
        return f"process {holder['pid']} on {holder['host']} since {holder['since']} ({holder['command']})"
    except (ValueError, KeyError, TypeError):
        return "a process that has not written its name yet"
