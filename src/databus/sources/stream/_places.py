"""Where a stream has been read up to, as a commit of the log keeps it."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from databus.core import SourceChanged

_SAMPLE_BYTES: Final = 256


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
        return {
            "origin": self.origin,
            "number": self.number,
            "offset": self.offset,
            "inode": self.inode,
            "mark": self.mark,
        }

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
