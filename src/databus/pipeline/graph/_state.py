"""A pipeline's state folder: checkpoints, logs, and the lock that allows only one process at a time."""

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from databus.core import LockHeld

_LOCK: Final = "lock"
_NOTE_BYTES_MAX: Final = 4096


class StateLock:
    """Held while a pipeline runs; the kernel releases it however the process ends."""

    def __init__(self, folder: Path, pipeline: str) -> None:
        self._path = folder / _LOCK
        self._pipeline = pipeline
        self._fd: int | None = None
        self._is_kept = False

    def take(self) -> None:
        """Take it, unless this object has it. Raises `LockHeld`, which names the holder."""
        if self._fd is not None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _noted(fd)
            os.close(fd)
            raise LockHeld(
                f"{self._path.parent}: the pipeline {self._pipeline} runs already, {_named(holder)}; stop that one, or "
                "give this one another `state`"
            ) from None
        self._fd = fd
        note = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
        os.ftruncate(fd, 0)
        os.pwrite(fd, note.encode(), 0)

    def keep(self) -> None:
        """Keep it until the process ends, since threads that may be writing are not waited for."""
        self._is_kept = True

    def release(self) -> None:
        """Release it, unless it is kept; callable twice."""
        if self._fd is not None and not self._is_kept:
            os.close(self._fd)
            self._fd = None


@contextmanager
def while_stopped(folder: Path, pipeline: str) -> Iterator[None]:
    """Keep a pipeline from running. Raises `LockHeld` if it runs."""
    lock = StateLock(folder, pipeline)
    lock.take()
    try:
        yield
    finally:
        lock.release()


def _named(note: str) -> str:
    """The holder's note as text; an unknown form is shown as it is."""
    try:
        holder = json.loads(note)
        return f"as process {holder['pid']} on {holder['host']}"
    except (ValueError, KeyError, TypeError):
        return f"as {note}"


def is_held(folder: Path) -> bool:
    """Whether a pipeline with this state folder runs, on this machine or, on a shared disk with locks, elsewhere."""
    return holder_of(folder) is not None


def holder_of(folder: Path) -> str | None:
    """The note of the pipeline that runs with this state folder; None if none runs."""
    try:
        fd = os.open(folder / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _noted(fd)
    finally:
        os.close(fd)
    return None


def _noted(fd: int) -> str:
    return os.pread(fd, _NOTE_BYTES_MAX, 0).decode(errors="replace").strip() or "another process"
