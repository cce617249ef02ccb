"""Of a log that another one is a copy of: which it is, what is defined in it, and where the copy begins. Pure.

A copy has its origin's uuid, since it holds the same frames: a position in one is a position in the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from databus.core import CorruptData, DatabusError, Identity
from databus.log._schemas import SchemaVersion, version_json
from databus.log._segment import End, fingerprints_from_json, fingerprints_to_json
from databus.schema import TableSchema


@dataclass(frozen=True, slots=True)
class LogOrigin:
    """See this module's first lines."""

    log: str
    """The uuid of the log."""
    identity: Identity
    """Of the database."""
    definitions: tuple[SchemaVersion, ...]
    """All that the log ever used, with their numbers."""
    before: End
    """The end of the last group that is not copied; its place in files is the origin's."""
    in_force: Mapping[int, int]
    """Fingerprint by source id there."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        identity = self.identity
        return {
            "log": self.log,
            "identity": {
                "uuid": identity.uuid, "scheme": identity.scheme, "description": identity.description
            },
            "definitions": definitions_json(self.definitions),
            "before": self.before.to_json(),
            "in_force": fingerprints_to_json(self.in_force),
        }  # fmt: skip

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> "LogOrigin":
        """Read what `to_json` wrote. Raises `CorruptData` that begins with `where` for anything else."""
        try:
            return cls(
                str(value["log"]),
                Identity(**value["identity"]),
                definitions_from_json(value["definitions"]),
                End.from_json(value["before"]),
                fingerprints_from_json(value["in_force"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, DatabusError) as error:
            raise CorruptData(f"{where}: what is said of the log is not readable: {error!r}") from error


def definitions_json(definitions: Sequence[SchemaVersion]) -> list[dict[str, Any]]:
    """Definitions with their numbers, as JSON."""
    return [
        {"id": definition.source_id, "version": definition.version, **version_json(definition.table)}
        for definition in definitions
    ]


def definitions_from_json(value: Sequence[Mapping[str, Any]]) -> tuple[SchemaVersion, ...]:
    """Read what `definitions_json` wrote."""
    return tuple(
        SchemaVersion(int(definition["id"]), int(definition["version"]), TableSchema.from_json(definition["table"]))
        for definition in value
    )
