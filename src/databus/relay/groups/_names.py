"""The names of groups, in a file of their own: a name that is listed there and that the journal does not have is lost.

Without it a lost journal would look like a first start, and a consumer would begin at the end, with a silent hole.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

from crc32c import crc32c

from databus.core import CorruptData, crash_point
from databus.disk import replace_file

NAME: Final = "groups.names"
_LEFT_MAX: Final = 10_000  # names that are no groups any more; beyond, the oldest are dropped


class NameState(StrEnum):
    """What is known of a name."""

    KEPT = "kept"
    DELETED = "deleted"
    FORGOTTEN = "forgotten"
    BEGINS = "begins"
    """Its state was lost, and an operator has said where it begins."""


@dataclass(frozen=True, slots=True)
class Listed:
    """What is known of one name, whether its group is there or not."""

    state: NameState
    n: int = 0
    """How many partitions it has: a journal that has fewer is a copy from before a resize. To go on with that would
    begin partitions below what their targets hold, under numbers that these do not know.
    """
    last_fence: int = 0
    """So high were its fences when it was removed."""
    at_ms: int = 0
    start: Any = None
    """Where it is to begin, for `BEGINS`."""

    def to_json(self) -> dict[str, Any]:
        """As it is kept."""
        return {
            "state": self.state,
            "n": self.n,
            "last_fence": self.last_fence,
            "at_ms": self.at_ms,
            "start": self.start,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return cls(NameState(value["state"]), value["n"], value["last_fence"], value["at_ms"], value["start"])


def read_names(folder: Path) -> dict[str, Listed]:
    """The names that are listed. Raises `CorruptData`."""
    path = folder / NAME
    try:
        crc, _, text = path.read_bytes().partition(b"\n")
        is_whole = int(crc, 16) == crc32c(text)
        listed = {name: Listed.from_json(value) for name, value in json.loads(text).items()} if is_whole else None
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError):
        listed = None
    if listed is None:
        raise CorruptData(
            f"{path}: not what was written. Move it away: it is made again of the groups that the journal has; a name "
            "that is in neither begins as a new one"
        )
    return listed


def write_names(folder: Path, names: Mapping[str, Listed]) -> None:
    """Put these in the place of what was listed, durably. Raises `DiskFull`, `ServiceUnavailable`."""
    left = sorted((listed.at_ms, name) for name, listed in names.items() if listed.state is NameState.DELETED)
    dropped = {name for _, name in left[: max(len(left) - _LEFT_MAX, 0)]}
    text = json.dumps({name: listed.to_json() for name, listed in names.items() if name not in dropped}).encode()
    replace_file(
        folder / NAME,
        [b"%08x\n" % crc32c(text), text],
        durable=True,
        before_rename=lambda: crash_point("groups.names.before_rename"),
    )
