"""Checkpoint stores: where a consumer's checkpoint is kept. `FileCheckpoints` survives a crash at any moment."""

import fcntl
import os
import socket
from pathlib import Path
from typing import Final, Protocol

from crc32c import crc32c

from databus.core import Checkpoint, CorruptData, DiskFull, LockHeld, MalformedRequest, crash_point
from databus.disk import make_folder, replace_file

_BYTES_MAX: Final = 64 << 20
_HOLDER_BYTES_MAX: Final = 4096
_CHECK_CHARS_MAX: Final = 8
_MEND: Final = "Put a good copy there; or remove it: the consumer begins at its `start`, and may repeat or lose changes"


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
        make_folder(self.path.parent)
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
        if text and not text.startswith(b"{"):
            raise CorruptData(f"{self.path}: is no checkpoint's file; name another, and leave this one where it is")
        written = check.strip().decode(errors="replace")[:_CHECK_CHARS_MAX]
        if written != f"{crc32c(text):08x}":
            raise CorruptData(
                f"{self.path}: the checkpoint is torn or was edited: its checksum is {crc32c(text):08x}, the file says "
                f"{written or 'nothing'!r}. {_MEND}"
            )
        try:
            return Checkpoint.from_json(text, str(self.path))
        except MalformedRequest as error:
            raise CorruptData(f"{error}. {_MEND}") from error

    def save(self, checkpoint: Checkpoint) -> None:
        """See `Checkpoints.save`. Raises `DiskFull`, `ServiceUnavailable`, and then the one before stays."""
        if self._lock_fd < 0:
            raise LockHeld(f"{self.path}: not open")
        text = checkpoint.dumps().encode()
        content = [text, b"\n", f"{crc32c(text):08x}\n".encode()]
        try:
            replace_file(self.path, content, durable=True, before_rename=_crash_before_rename)
        except DiskFull as error:
            raise DiskFull(f"no room for the checkpoint: {error}") from error
        crash_point("client.checkpoint.after_rename")

    def close(self) -> None:
        """See `Checkpoints.close`."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def _crash_before_rename() -> None:
    crash_point("client.checkpoint.before_rename")


def load_checkpoint(path: str | Path) -> Checkpoint | None:
    """What a checkpoint file holds, without taking it: for looking at it. Raises `CorruptData`."""
    return FileCheckpoints(path)._load()  # noqa: SLF001 - the same module
