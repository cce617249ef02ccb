"""Files that are either old or new, never half: written beside, fsynced, renamed, and the folder fsynced too."""

import errno
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError, DiskFull, ServiceUnavailable

BUFFERS_A_CALL_MAX: Final = os.sysconf("SC_IOV_MAX")
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def is_no_room(error: OSError) -> bool:
    """Whether a write failed for lack of room: the disk, a quota, or the process's limit on the size of files."""
    return error.errno in _NO_ROOM


def disk_full(path: Path, error: OSError) -> DiskFull:
    """The error that a write without room becomes."""
    return DiskFull(
        f"{path}: {error.strerror}; nothing was half-written. Capture goes on when there is room: free some, or lower "
        f"retention_bytes_max"
    )


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
        some = views[:BUFFERS_A_CALL_MAX]
        written = os.pwritev(fd, some, offset)
        offset += written
        done = 0
        while done < len(some) and written >= (size := memoryview(some[done]).nbytes):
            written -= size
            done += 1
        views = views[done:]
        if written:
            views[0] = memoryview(views[0]).cast("B")[written:]


def make_folder(folder: Path) -> None:
    """Make `folder` and what is missing above it, durably. Raises `ConfigError` if it cannot be one."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for each in reversed(missing):
            sync_folder(each.parent)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made a folder: {error.strerror}") from error


def sync_folder(folder: Path) -> None:
    """Make names that were created, renamed or removed in `folder` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(
    path: Path, buffers: Sequence[Any], *, durable: bool, before_rename: Callable[[], None] | None = None
) -> None:
    """Put a file of these bytes in the place of `path`, whole or not at all.

    durable: fsync it and its folder before returning. Raises `DiskFull`, or `ServiceUnavailable` for any other trouble
    that may pass, such as too many open files; the old file is then as it was, unless only the folder's fsync failed.
    """
    beside = path.with_name(f"{path.name}.tmp")
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            write_all(fd, buffers, 0)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        if before_rename is not None:
            before_rename()
        beside.rename(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise write_failure(path, error) from error
