"""The lock by which one process owns a folder, and by which the next one learns who that is; and the one by which
writers of the same file take turns.
"""

import datetime as dt
import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from databus.core import LockHeld, ServiceUnavailable

NAME: Final = "LOCK"
_TURN_S_MAX: Final = 10.0  # a writer holds it for one small file and its fsync
_LOOK_S: Final = 0.01
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


@contextmanager
def turn_of_writer(folder: Path) -> Iterator[None]:
    """Be the only one, among processes and threads that ask, who changes files of `folder`.

    Raises `ServiceUnavailable` where somebody does not let go, as a process that is stopped.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _TURN_S_MAX
        while not _has_locked(fd):
            if time.monotonic() > deadline:
                raise ServiceUnavailable(f"{folder}: another process has been writing there for {_TURN_S_MAX:.0f} s")
            time.sleep(_LOOK_S)  # a lock that is let go tells nobody
        yield
    finally:
        os.close(fd)


def _has_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):  # NFS and its like lock no folders
            raise
    return True


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
