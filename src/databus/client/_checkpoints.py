"""Checkpoint stores: where a consumer's checkpoint is kept. `FileCheckpoints` survives a crash at any moment."""

import contextlib
import errno
import fcntl
import os
import socket
from pathlib import Path
from typing import Final, Protocol

from crc32c import crc32c

from databus.core import Checkpoint, CorruptData, DiskFull, LockHeld, MalformedRequest, crash_point

_BYTES_MAX: Final = 64 << 20
_HOLDER_BYTES_MAX: Final = 4096
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Checkpoints(Protocol):
    """Keeps one consumer's checkpoint. One client has it open at a time."""

    def open(self) -> Checkpoint | None:
        """Take it, and say what was saved last; None if nothing was. Raises `LockHeld`, `CorruptData`."""
        ...

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep it: when this returns, it is what the next `open` finds, whatever happens.

        What it raises is logged, and it is tried again, unless it is a `FatalError` or `InputError`: those end the
        source.
        """
        ...

    def close(self) -> None:
        """Let go of it; callable twice."""
        ...


class MemoryCheckpoints:
    """Kept as long as the process lives."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self.checkpoint = checkpoint

    def open(self) -> Checkpoint | None:
        """See `Checkpoints.open`."""
        return self.checkpoint

    def save(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoints.save`."""
        self.checkpoint = checkpoint

    def close(self) -> None:
        """See `Checkpoints.close`."""


class FileCheckpoints:
    """Kept in a file of two lines: the checkpoint as JSON, and the CRC-32C of that line.

    A new one is written beside it, synced, and renamed over it. While it is open, `<file>.lock` is locked and names
    the process that has it; the operating system lets go of the lock when that process ends, however it does.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock_path = self.path.with_name(f"{self.path.name}.lock")
        self._lock_fd = -1

    def open(self) -> Checkpoint | None:
        """See `Checkpoints.open`. Makes the folder if there is none."""
        _make_folder(self.path.parent)
        self._take_lock()
        try:
            return self._load()
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        if self._lock_fd >= 0:
            raise LockHeld(f"{self.path}: this object has it open already")
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, _HOLDER_BYTES_MAX, 0).decode(errors="replace").strip()
            os.close(fd)
            raise LockHeld(
                f"{self.path}: another consumer keeps its checkpoint here ({holder or 'it is just starting'}); "
                f"stop that one, or give this one a file of its own"
            ) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._lock_fd = fd

    def _load(self) -> Checkpoint | None:
        try:
            with self.path.open("rb") as file:
                content = file.read(_BYTES_MAX)
        except FileNotFoundError:
            return None
        text, _, check = content.partition(b"\n")
        found = check.strip().decode(errors="replace")
        if found != f"{crc32c(text):08x}":
            raise CorruptData(
                f"{self.path}: the checkpoint is torn or was edited: its checksum is {crc32c(text):08x}, the file says "
                f"{found or 'nothing'!r}. Put a good copy there; or remove it, and the consumer starts from its `start`"
            )
        try:
            return Checkpoint.from_json(text, str(self.path))
        except MalformedRequest as error:
            raise CorruptData(f"{error}; put a good copy there, or remove it") from error

    def save(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoints.save`. Raises `DiskFull`, and then the one before stays."""
        if self._lock_fd < 0:
            raise LockHeld(f"{self.path}: not open")
        text = checkpoint.dumps().encode()
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            _write_synced(new, text + b"\n" + f"{crc32c(text):08x}\n".encode())
            crash_point("client.checkpoint.before_rename")
            new.replace(self.path)
            crash_point("client.checkpoint.after_rename")
            _sync_folder(self.path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):  # a torn `.new` is never read
                new.unlink(missing_ok=True)
            if error.errno in _NO_ROOM:
                raise DiskFull(f"{self.path}: no room for the checkpoint: {error.strerror}") from error
            raise

    def close(self) -> None:
        """See `Checkpoints.close`."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    """Make it and what is missing above it, so that a crash of the machine does not take them away again."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        _sync_folder(each.parent)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load_checkpoint(path: str | Path) -> Checkpoint | None:
    """What a checkpoint file holds, without taking it: for looking at it. Raises `CorruptData`."""
    return FileCheckpoints(path)._load()  # noqa: SLF001 - the same module
