"""The durable mark: up to where a log is known to be on the disk, written after each fsync and never fsynced itself.

Whatever a crash leaves of it is a lower bound. Bytes that are wrong behind the mark were on their way to the disk when
the machine stopped, and the log is cut back before them; bytes that are wrong before it are damage, and are reported.
It also spares recovery everything before it.

  0  magic b"DBM1", CRC-32C u32 (over length and facts), facts length u32, facts (JSON)
"""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from crc32c import crc32c

from databus.log._segment import fingerprints_from_json, fingerprints_to_json

NAME: Final = "durable.mark"
MAGIC: Final = b"DBM1"
_FIXED: Final = struct.Struct("<4sII")
_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class LogMark:
    """The end of a whole transaction that is on the disk, with everything before it."""

    log: str
    segment: int
    offset: int
    commit_offset: int
    max_commit_us: int
    in_force: Mapping[int, int]
    """At that place: the fingerprint in force, by source id."""


class MarkFile:
    """Where the mark is kept. One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, mark: LogMark) -> None:
        """Put `mark` in the place of the last one, which stays if this one is larger than `read` would take."""
        facts = json.dumps(
            {
                "log": mark.log,
                "segment": mark.segment,
                "offset": mark.offset,
                "commit_offset": mark.commit_offset,
                "max_commit_us": mark.max_commit_us,
                "in_force": fingerprints_to_json(mark.in_force),
            }
        ).encode()
        if len(facts) > _BYTES_MAX:
            return
        size = len(facts).to_bytes(4, "little")
        os.pwrite(self._fd, MAGIC + crc32c(facts, crc32c(size)).to_bytes(4, "little") + size + facts, 0)

    def read(self) -> LogMark | None:
        """The mark; None if the file is missing, or was written in part."""
        fixed = os.pread(self._fd, _FIXED.size, 0)
        if len(fixed) < _FIXED.size:
            return None
        magic, crc, size = _FIXED.unpack(fixed)
        facts = os.pread(self._fd, min(size, _BYTES_MAX), _FIXED.size)
        if magic != MAGIC or len(facts) != size or crc32c(facts, crc32c(fixed[8:])) != crc:
            return None
        value = json.loads(facts)
        return LogMark(**{**value, "in_force": fingerprints_from_json(value["in_force"])})

    def close(self) -> None:
        """Let go of the file; callable twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
