"""The journal of all groups: one file, appended and fsynced a batch at a time, and rewritten when it has grown.

A line is a batch: the CRC-32C of what follows in eight hexadecimal digits, a blank, and the records of
`databus.relay.groups._state` as a JSON array. The first line says which version this is. A batch is written when the
one before it is on the disk; so bytes that are wrong at the end were on their way there in a crash, and are cut off,
and bytes that are wrong before a good line are damage.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from crc32c import crc32c

from databus.core import CorruptData, crash_point, is_armed
from databus.disk import replacing, write_all, write_failure
from databus.operate import logger_of

NAME: Final = "groups.journal"
_HEADER: Final = {"v": 1}
_CRC_CHARS: Final = 8
_GROWN_BYTES_MIN: Final = 16 << 20  # below, reading it takes less than a second
_GROWN_TIMES: Final = 8
_REMEDY: Final = (
    "Move it away, restart the relay, and say of each name where it stands: databus consumers import or reset. Streams "
    "without a name go on meanwhile"
)
_logger = logger_of("databus.relay.groups")


class GroupJournal:
    """The journal of one folder. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self._fd = -1
        self._bytes = self._first_bytes = 0
        self._is_sound = False
        """Whether what is on the disk is what was written: not after a write that failed."""

    def read(self) -> list[dict[str, Any]]:
        """What was written. Cuts off what a crash left of a last batch. Raises `CorruptData` that names the place,
        `ValueError` and `RecursionError` for what was written so and is no batch.
        """
        try:
            content = self._path.read_bytes()
        except FileNotFoundError:
            return []
        records: list[dict[str, Any]] = []
        offset = 0
        while offset < len(content):
            end = content.find(b"\n", offset)
            batch = None if end < 0 else _batch(content[offset:end])
            if batch is None:
                self._check_is_end(content, offset)
                break
            if offset == 0 and batch != [_HEADER]:
                raise CorruptData(f"{self._path}: not a journal of groups of this version of databus: {batch}"[:500])
            records += batch if offset else []
            offset = end + 1
        if offset == 0:  # it was being made, and what made it has not been answered
            return []
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        if offset < len(content):
            _logger.warning(
                "cut off what a crash left of a last batch", file=str(self._path), bytes=len(content) - offset
            )
            os.ftruncate(self._fd, offset)
            os.fsync(self._fd)
        self._bytes = self._first_bytes = offset
        self._is_sound = True
        return records

    def unreadable(self, error: Exception) -> CorruptData:
        """The error where its batches are whole, and do not make up groups."""
        return CorruptData(f"{self._path}: what it says cannot be followed ({error!r:.200}). {_REMEDY}")

    def _check_is_end(self, content: bytes, offset: int) -> None:
        for line in content[offset:].split(b"\n")[1:]:
            if _batch(line) is not None:
                raise CorruptData(
                    f"{self._path}: what stands at byte {offset} is not what was written there, and there is more "
                    f"behind it: the file is damaged. {_REMEDY}"
                )

    @property
    def wants_rewriting(self) -> bool:
        """Whether `rewrite` is next: it has grown, or is not there, or a write failed."""
        return not self._is_sound or self._bytes > max(_GROWN_BYTES_MIN, self._first_bytes * _GROWN_TIMES)

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        """Put a batch on the disk. Raises `DiskFull`, `ServiceUnavailable`; then `rewrite` is next."""
        line = _line(records)
        crash_point("groups.journal.before")
        try:
            self._is_sound = False
            if is_armed("groups.journal.torn"):
                write_all(self._fd, [line[: len(line) // 2]], self._bytes)
            crash_point("groups.journal.torn")
            write_all(self._fd, [line], self._bytes)
            os.fdatasync(self._fd)
        except OSError as error:
            raise write_failure(self._path, error) from error
        crash_point("groups.journal.after")
        self._bytes += len(line)
        self._is_sound = True

    def rewrite(self, records: Sequence[dict[str, Any]]) -> None:
        """Put a journal that begins with these in the place of this one. Raises `DiskFull`, `ServiceUnavailable`."""
        self._is_sound = False
        lines = [_line([_HEADER]), *(_line([record]) for record in records)]
        with replacing(self._path, before_rename=lambda: crash_point("groups.journal.before_rename")) as file:
            write_all(file.fileno(), lines, 0)
        self.close()
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise write_failure(self._path, error) from error
        self._bytes = self._first_bytes = sum(map(len, lines))
        self._is_sound = True

    def close(self) -> None:
        """Let go of the file; callable twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _line(records: Sequence[dict[str, Any]]) -> bytes:
    text = json.dumps(records, separators=(",", ":")).encode()
    return b"%08x %s\n" % (crc32c(text), text)


def _batch(line: bytes) -> list[dict[str, Any]] | None:
    """The records of a line; None if it is not what was written."""
    text = line[_CRC_CHARS + 1 :]
    try:
        is_whole = int(line[:_CRC_CHARS], 16) == crc32c(text)
    except ValueError:
        return None
    records: list[dict[str, Any]] | None = json.loads(text) if is_whole and text else None
    return records
