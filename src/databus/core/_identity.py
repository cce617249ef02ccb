"""What physical source a log, a checkpoint or a connection belongs to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

COUNTED: Final = "counted"
"""The scheme of a source that counts its transactions itself, from where its log began."""

Contains = Callable[[str, Mapping[str, Any], str], bool | None]
"""(scheme, position, txid): whether a transaction is before a position of the source; None if they do not tell."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What physical source this is."""

    uuid: str
    """Stays the same for the life of the database; no two databases share one."""
    scheme: str
    """How its ordinals are made (`cut`, `gtid`, `file-offset`...); it never changes inside a timeline."""
    description: str
    """For people, such as a path or an address; carries no secret."""

    @property
    def is_peerable(self) -> bool:
        """Whether another log of the same source has the same SCNs, so that a consumer can change between the two."""
        return self.scheme != COUNTED
