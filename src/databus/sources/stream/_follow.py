"""A file that is followed: read as it grows, and recognised after rotation, truncation and restarts.

A file is known by its inode and by what is in it (`mark_of`). Rotated by rename, it is read to its end under its new
name before the next one is begun. Copied and truncated, the copy is read on where the file was left.
"""

import hashlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from databus.core import ConfigError, SourceChanged

_SAMPLE_BYTES: Final = 256  # at a file's begin and before the offset: it is recognised by them
_COMPRESSED: Final = (".gz", ".bz2", ".xz", ".zst", ".lz4")
_BACK_BYTES: Final = 64 << 10
_BACK_BYTES_MAX: Final = 64 << 20  # searched for the begin of the last line


@dataclass(frozen=True)
class FilePlace:
    """How far a stream was read: in which file, or run of a command, and up to which byte."""

    origin: str
    """The path or the command."""
    number: int = 0
    """Number of the file or the run, counted since the log began; 0 before the first."""
    offset: int = 0
    """How many bytes of it were read."""
    inode: int = 0
    """Inode of the file; 0 for a command."""
    mark: str = ""
    """Recognises the file, see `mark_of`."""

    def to_json(self) -> dict[str, Any]:
        """As a commit keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any], origin: str, physical: str) -> "FilePlace":
        """Read what `to_json` made. Raises `SourceChanged` for a position of something else."""
        try:
            place = cls(*(value[name] for name in ("origin", "number", "offset", "inode", "mark")))
        except KeyError:
            raise SourceChanged(f"{physical}: the log ends at {dict(value)}, which is no place of a stream") from None
        if place.origin != origin:
            raise SourceChanged(
                f"{physical}: the log is of {place.origin}, and the configuration says {origin}. Capture that under "
                f"another name"
            )
        return place


def mark_of(read: Any, offset: int) -> str:
    """What distinguishes a file that was read up to an offset from others: a digest of its first bytes and of the last
    before that. read: takes a count of bytes and an offset.
    """
    if not offset:
        return ""
    head = read(min(_SAMPLE_BYTES, offset), 0)
    tail = read(min(_SAMPLE_BYTES, offset), max(offset - _SAMPLE_BYTES, 0))
    return hashlib.blake2b(head + b"\0" + tail, digest_size=12).hexdigest()


class FollowedFile:
    """One file at a time. place: up to where it has been taken; read_to: up to where it has been given out."""

    def __init__(self, path: Path, rotated: list[str], rotate_wait_ms: int, place: FilePlace) -> None:
        self._path = path
        self._patterns = [pattern.replace("{name}", path.name) for pattern in rotated]
        self._wait_s = rotate_wait_ms / 1e3
        self.place = place
        self.read_to = place.offset
        self._read_mark = place.mark
        self._file: int | None = None
        self._ended: tuple[int, int] | None = None  # the file before it, and how long that was
        self._quiet_since = 0.0
        self._size_seen = place.offset

    @property
    def is_open(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def close(self) -> None:
        """Let go of it."""
        self._close_file()
        self._forget_ended()

    def waiting_bytes(self) -> int | None:
        """How many bytes have not been taken; None without a file."""
        return None if self._file is None else max(os.fstat(self._file).st_size - self.place.offset, 0)

    def begin(self, *, at_end: bool) -> bool:
        """Open the file from its begin, or at its end, as the next one. Returns whether it is there."""
        return self._open_next(self._path, at_end=at_end)

    def find(self) -> str | None:
        """Open the file that `place` is in, whatever it is called now; returns why not, if it is lost."""
        if self.place.number == 0:
            return None
        candidates = [self._path, *self._siblings()]
        # Another inode counts only where something was read: without an offset there is no mark to recognise a copy by.
        same = [path for path in candidates if _inode(path) == self.place.inode]
        for path in [*same, *(path for path in candidates if path not in same and self.place.offset)]:
            if self._is_here(path):
                self._open(path, self._place_in(path))
                return None
        if not self.place.offset and not same:
            return f"the file that took the place of the last one is gone, unread: inode {self.place.inode}"
        return (
            f"{self._path}: what was read of it up to byte {self.place.offset} is not in it, nor in any file that it "
            f"may have been rotated to ({', '.join(self._patterns)})"
        )

    def read(self, size: int) -> bytes:
        """More of it, as much as there is."""
        if self._file is None:
            return b""
        content = os.pread(self._file, size, self.read_to)
        if content and self._has_other_content():
            return b""  # truncated and written again meanwhile: `is_truncated` sees it
        if content:
            self.read_to += len(content)
            self._read_mark = self._mark_at(self.read_to)
            self._size_seen = max(self._size_seen, self.read_to)
            self._quiet_since = time.monotonic()
        return content

    def take(self, offset: int) -> None:
        """Have its bytes be taken up to here."""
        self.place = replace(self.place, offset=offset, mark=self._mark_at(offset))

    def late_bytes(self) -> int:
        """How many bytes the file before it has got since it was left; each byte is counted once."""
        if self._ended is None:
            return 0
        file, size = self._ended
        more = os.fstat(file).st_size - size
        if more > 0:
            self._ended = file, size + more
        return max(more, 0)

    def has_ended(self) -> bool:
        """Whether another file has its name, and it has not grown for a while: what it holds is all."""
        if self._file is None or os.fstat(self._file).st_size > self.read_to:
            return False
        is_other = _inode(self._path) not in (None, self.place.inode)
        return is_other and time.monotonic() - self._quiet_since >= self._wait_s

    def is_truncated(self) -> bool:
        """Whether it holds no longer what was read of it."""
        return self._file is not None and (os.fstat(self._file).st_size < self.read_to or self._has_other_content())

    def next(self) -> str | None:
        """Begin the file that follows. Returns what is missing between the two, if anything is."""
        assert self._file is not None  # noqa: S101 - it has ended
        ended = os.fstat(self._file)
        later = sorted(
            (status.st_mtime_ns, path)
            for path in self._siblings(compressed=True)
            if (status := _stat(path)) is not None and status.st_mtime_ns > ended.st_mtime_ns
            if status.st_ino not in (ended.st_ino, _inode(self._path))
        )
        lost = [path for _, path in later if path.suffix in _COMPRESSED]
        whole = [path for _, path in later if path.suffix not in _COMPRESSED]
        self._forget_ended()
        self._ended, self._file = (self._file, ended.st_size), None
        self._open_next(whole[0] if whole else self._path, at_end=False)
        return f"{', '.join(map(str, lost))}: compressed before it was read" if lost else None

    def recover(self) -> str | None:
        """After a truncation: go on in the copy that was made before it, or where the file has changed, or at its
        beginning. Returns what is missing.
        """
        unread = self._size_seen - self.place.offset
        copies = [path for path in self._siblings() if _inode(path) != self.place.inode]
        copies.sort(key=_changed_ns, reverse=True)  # older ones may begin alike
        for offset, mark in {self.read_to: self._read_mark, self.place.offset: self.place.mark}.items():
            for path in copies if offset else ():
                if _holds(path, offset, mark):
                    self._open(path, self._place_in(path))
                    return None
        if self.place.offset and self._is_here(self._path):  # a line that was not whole has become another one
            self._open(self._path, self._place_in(self._path))
        else:
            self._open_next(self._path, at_end=False)
        if unread:
            return f"{self._path}: it was truncated, and {unread} bytes of it, known to have been there, were not read"
        return None

    def _place_in(self, path: Path) -> FilePlace:
        """The place, in a file that may be a copy of the one that it was noted in."""
        return replace(self.place, inode=_inode(path) or 0)

    def _has_other_content(self) -> bool:
        return self._file is not None and self._mark_at(self.read_to) != self._read_mark

    def _mark_at(self, offset: int) -> str:
        """That of the file as it is now."""
        assert self._file is not None  # noqa: S101 - something was read of it
        return _mark(self._file, offset)

    def _is_here(self, path: Path) -> bool:
        """Whether this file holds what was read up to the place."""
        return _holds(path, self.place.offset, self.place.mark)

    def _open_next(self, path: Path, *, at_end: bool) -> bool:
        try:
            file = _opened(path)
        except FileNotFoundError:
            return False
        status = os.fstat(file)
        offset = _last_line_of(file, status.st_size) if at_end else 0
        mark = _mark(file, offset)
        os.close(file)
        self._open(path, FilePlace(self.place.origin, self.place.number + 1, offset, status.st_ino, mark))
        return True

    def _open(self, path: Path, place: FilePlace) -> None:
        self._close_file()
        self._file = _opened(path)
        self.place, self.read_to, self._read_mark = place, place.offset, place.mark
        self._size_seen = place.offset
        self._quiet_since = time.monotonic()

    def _close_file(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _forget_ended(self) -> None:
        if self._ended is not None:
            os.close(self._ended[0])
            self._ended = None

    def _siblings(self, *, compressed: bool = False) -> list[Path]:
        """The files that it may have been rotated to."""
        try:
            files = [file for file in self._path.parent.iterdir() if file != self._path and file.is_file()]
        except OSError:
            return []
        return [
            file
            for file in sorted(files)
            if any(fnmatchcase(file.name, pattern) for pattern in self._patterns)
            and (compressed or file.suffix not in _COMPRESSED)
        ]


def _opened(path: Path) -> int:
    """Raises `OSError`, and `ConfigError` for what is no file, which would block, or have no offsets."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise ConfigError(f"{path}: is no file; read it by a `command`, such as [cat, {path}]")
    return file


def _holds(path: Path, offset: int, mark: str) -> bool:
    """Whether a file holds what was read of one up to an offset."""
    try:
        file = _opened(path)
    except OSError:
        return False
    try:
        return os.fstat(file).st_size >= offset and _mark(file, offset) == mark
    finally:
        os.close(file)


def _mark(file: int, offset: int) -> str:
    return mark_of(lambda count, at: os.pread(file, count, at), offset)


def _last_line_of(file: int, size: int) -> int:
    """Where the last line begins, which may not be whole yet; the file's end where that is very long."""
    at = size
    while at > max(size - _BACK_BYTES_MAX, 0):
        begin = max(at - _BACK_BYTES, 0)
        at_end = os.pread(file, at - begin, begin).rfind(b"\n")
        if at_end >= 0:
            return begin + at_end + 1
        at = begin
    return at if at == 0 else size


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _changed_ns(path: Path) -> int:
    status = _stat(path)
    return 0 if status is None else status.st_mtime_ns


def _inode(path: Path) -> int | None:
    status = _stat(path)
    return None if status is None else status.st_ino
