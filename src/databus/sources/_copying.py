"""What a source is that has its changes from another relay, and hands on that relay's log byte for byte.

Such a log is a copy: it has the uuid, the positions, the ids and the definitions of its origin, and not one frame that
is not its origin's. So a capture that follows such a source writes nothing of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from databus.core import CorruptData
from databus.log import LogOrigin, SchemaVersion


@dataclass(frozen=True, slots=True)
class RelayHop:
    """A relay on the way from a database."""

    id: str
    """Id of the running relay; no two share one."""
    url: str
    """The relay's address."""

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Read what `dataclasses.asdict` wrote. Raises `CorruptData` that begins with `where`."""
        try:
            return cls(str(value["id"]), str(value["url"]))
        except (KeyError, TypeError) as error:
            raise CorruptData(f"{where}: a relay on the way is not readable: {error!r}") from error


@runtime_checkable
class Copying(Protocol):
    """Beside what every source has; see this module's first lines."""

    begins_new_log: bool
    """Whether a log that is another one than before is to be copied too, into a new log."""
    path: Sequence[RelayHop]
    """The relays between here and the database, the nearest first, as far as they are known."""
    definitions: Sequence[SchemaVersion]
    """All that the origin has; replaced when there are more."""

    def origin(self, me: RelayHop, *, is_new: bool) -> LogOrigin:
        """What the log is a copy of. is_new: whether this relay has no log yet; it then begins where the options say.

        Raises as `Source.identify` does, and `ConfigError` where the changes come from this relay itself.
        """
        ...
