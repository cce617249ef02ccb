"""Position: a place between two transactions of a server's log, by file and offset, and by GTIDs where there are
any.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

from databus.core import ORDINAL_MAX, InputError, LimitExceeded, PositionForeign
from databus.sources.mysql.binlog._gtid import GtidSet, GtidState

Flavor = Literal["mysql", "mariadb"]
Scheme = Literal["gtid", "domains", "file-offset"]

_NUMBER: Final = re.compile(r"\.(\d+)$")


def file_number(file: str) -> int:
    """The number of a log file's name. Raises `InputError`, or `LimitExceeded` where an ordinal cannot hold it.

    >>> file_number("mysql-bin.000042")
    42
    """
    match = _NUMBER.search(file)
    if match is None:
        raise InputError(f"{file!r} is no name of a binary log: it does not end in a dot and a number")
    number = int(match[1])
    if number > ORDINAL_MAX >> 32:
        raise LimitExceeded(f"{file}: an SCN by file and offset holds file numbers up to {ORDINAL_MAX >> 32}")
    return number


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in a server's log, right after a transaction."""

    file: str = ""
    """The log file; empty where unknown."""
    offset: int = 0
    """The offset in `file`; 0 where unknown."""
    gtids: str | None = None
    """All transactions executed up to here, as the server writes them (MySQL's GTID set, MariaDB's GTID position); None
    where the server has no GTIDs or they are unknown.
    """
    server_uuid: str | None = None
    """The server whose log `file` and `offset` are of."""
    began_s: int = field(default=0, compare=False)
    """When the server began `file`, in seconds since 1970, as the file's first event says; 0 where unknown. A server
    that was reset uses the names of its files again.
    """

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        began = {"began_s": self.began_s} if self.began_s else {}
        return {"file": self.file, "offset": self.offset, "gtids": self.gtids, "server_uuid": self.server_uuid, **began}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote; keys that it does not know are left alone."""
        place = value.get("file", ""), value.get("offset", 0), value.get("gtids"), value.get("server_uuid")
        return cls(*place, began_s=value.get("began_s", 0))

    def __str__(self) -> str:
        place = f"{self.file} at {self.offset}" if self.file else ""
        gtids = f"GTIDs {self.gtids}" if self.gtids is not None else ""
        return ", ".join(text for text in (place, gtids) if text) or "the beginning"


def ordinal_of(position: LogPosition, scheme: Scheme) -> int:
    """The ordinal that the transaction before `position` has at most; the next one's is above it."""
    if scheme == "file-offset":
        return max(file_number(position.file) << 32 | position.offset, 1) - 1 if position.file else 0
    if position.gtids is None:
        return 0
    return GtidSet.parse(position.gtids).size if scheme == "gtid" else GtidState.parse(position.gtids).size


def contains(position: LogPosition, other: LogPosition) -> bool:
    """Whether everything up to `other` is also before `position`.

    By GTIDs where both have them, else by file and offset on one and the same server. Raises `PositionForeign` where
    the two cannot be compared.
    """
    if position.gtids is not None and other.gtids is not None:
        if _is_mariadb(position.gtids) or _is_mariadb(other.gtids):
            return GtidState.parse(position.gtids).contains(GtidState.parse(other.gtids))
        return GtidSet.parse(position.gtids).contains(GtidSet.parse(other.gtids))
    if position.file and other.file and position.server_uuid == other.server_uuid:
        number, other_number = file_number(position.file), file_number(other.file)
        return (number, position.offset) >= (other_number, other.offset)
    raise PositionForeign(
        f"{position} (server {position.server_uuid}) and {other} (server {other.server_uuid}) cannot be compared: "
        f"one of them has no "
        f"GTIDs, and file and offset mean something on one server only"
    )


def _is_mariadb(gtids: str) -> bool:
    return bool(gtids) and ":" not in gtids
