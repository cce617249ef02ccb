"""Watermarks: what a read view has seen of the log."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Position = Mapping[str, Any]
"""The log's position after a transaction, as commits carry it: `file`, `offset`, and `gtids` where GTIDs rule."""


@dataclass(frozen=True, slots=True)
class LogWatermark:
    """A place in one server's log."""

    file: str
    offset: int
    gtids: str | None = None
    """The executed set, which stands for the place if file and offset would be wrong."""

    def contains(self, position: Position) -> bool:
        """As a low watermark: whether everything logged up to `position` is in what was read."""
        if self.gtids is None:
            return _order(str(position["file"]), int(position["offset"])) <= _order(self.file, self.offset)
        from databus.sources.mysql.binlog import GtidSet

        return GtidSet.parse(self.gtids).contains(GtidSet.parse(str(position["gtids"])))

    def is_in(self, position: Position) -> bool:
        """As a high watermark: whether the log up to `position` holds everything that was read."""
        return _order(self.file, self.offset) <= _order(str(position["file"]), int(position["offset"]))

    def precedes(self, other: "LogWatermark") -> bool:
        """Whether it is before that one in the log, or at the same place."""
        return _order(self.file, self.offset) <= _order(other.file, other.offset)


def _order(file: str, offset: int) -> tuple[int, int]:
    """Binary logs are numbered; the number outgrows its six digits."""
    return int(file.rpartition(".")[2]), offset
