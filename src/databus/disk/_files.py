"""Files that are either old or new, never half: written beside, fsynced, renamed, and the folder fsynced too."""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

from databus.core import ConfigError, DiskFull, ServiceUnavailable

BUFFERS_A_CALL_MAX: Final = os.sysconf("SC_IOV_MAX")
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_FOLDER: Final = frozenset(
    {errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT}
)
"""Waiting does not help."""


def is_no_room(error: OSError) -> bool:
    """Whether a write failed for lack of room: the disk, a quota, or the process's limit on the size of files."""
    return error.errno in _NO_ROOM


def disk_full(path: Path, error: OSError) -> DiskFull:
    """The error that a write without room becomes."""
    return DiskFull(
        f"{path}: {error.strerror}; nothing was half-written. Free some room (a relay's logs take less with a lower "
        f"retention_bytes_max); what still runs then goes on by itself"
    )


def free_ratio(folder: Path) -> float | None:
    """How much of its disk is free for us, between 0 and 1; None where the system does not say."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return None
    return round(disk.f_bavail / disk.f_blocks, 4) if disk.f_blocks else None


def write_failure(path: Path, error: OSError) -> DiskFull | ServiceUnavailable:
    """The error that becomes of one in making a file: waiting may help, for room or for whatever else is short."""
    if is_no_room(error):
        return disk_full(path, error)
    return ServiceUnavailable(
        f"{path}: cannot be written now: {error.strerror}; the file is as it was, and this is tried again"
    )


def write_all(fd: int, buffers: Sequence[Any], offset: int) -> None:
    """Write all buffers from `offset` on, in as few calls as the system allows. Raises OSError; what came is there."""
    views: list[Any] = list(buffers)
    while views:
        part = views[:BUFFERS_A_CALL_MAX]
        written = os.pwritev(fd, part, offset)
        offset += written
        done = 0
        while done < len(part) and written >= (size := memoryview(part[done]).nbytes):
            written -= size
            done += 1
        views = views[done:]
        if written:
            views[0] = memoryview(views[0]).cast("B")[written:]


def is_readable_by_all(path: Path) -> bool:
    """Whether every user of this machine may read a file; False where that is unknown."""
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


def make_folder(folder: Path) -> None:
    """Make `folder` and what is missing above it, durably.

    Raises `ConfigError` if it cannot be one, `DiskFull` or `ServiceUnavailable` where waiting may help.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in reversed(missing):
            sync_folder(path.parent)
    except OSError as error:
        if error.errno in _NO_FOLDER:
            raise ConfigError(f"{folder}: cannot be made a folder: {error.strerror}") from error
        raise write_failure(folder, error) from error


def move_folder(folder: Path, to: Path) -> None:
    """Give a folder, or a file, another place on the same disk, durably; what is above that is made. Raises as
    `make_folder`.
    """
    make_folder(to.parent)
    try:
        folder.rename(to)
        sync_folder(to.parent)
        sync_folder(folder.parent)
    except OSError as error:
        raise write_failure(to, error) from error


def sync_folder(folder: Path) -> None:
    """Make names that were created, renamed or removed in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def replacing(
    path: Path,
    *,
    durable: bool = True,
    beside: Path | None = None,
    before_rename: Callable[[], None] | None = None,
) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` in the end, whole or not at all.

    durable: fsync it and its folder. beside: where it is written until then, in the same folder. Raises `DiskFull`, or
    `ServiceUnavailable` for any other trouble that may pass, such as too many open files. After an error the old file
    is as it was, unless only the folder's fsync failed.
    """
    beside = beside or path.with_name(f"{path.name}.tmp")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        with os.fdopen(fd, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(fd)
        if before_rename is not None:
            before_rename()
        beside.rename(path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise write_failure(path, error) from error
        raise


def replace_file(
    path: Path, buffers: Sequence[Any], *, durable: bool, before_rename: Callable[[], None] | None = None
) -> None:
    """Put a file of these bytes in the place of `path`: see `replacing`."""
    with replacing(path, durable=durable, before_rename=before_rename) as file:
        write_all(file.fileno(), buffers, 0)
