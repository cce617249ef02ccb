"""Checkpoints: where a consumer stands, as JSON that any relay of the same source understands.

    {"v": 1, "sources": {"shop": {"uuid": "...", "scn": 17, "seq": null, "txid": "...", "ts_us": 1700000000000000,
                                  "log": null, "snapshots": {}}}}

A consumer resumes after the pair (SCN, `_seq`), never by a count of rows. `seq: null` says that all logged rows of that
SCN are done. Checkpoints compare per physical source only; there is no order between physical sources.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Self

from databus.core._errors import MalformedRequest
from databus.core._scn import SEQ_DONE, Pair

VERSION: Final = 1
UNREAD_TABLES: Final = "*"
"""Key in `snapshots`: that log has tables whose snapshots have not begun yet. No table has this name."""
UNBEGUN: Final = 0
"""Generation of a snapshot that was open in another log and has been requested from this log. No log gives this
generation to a snapshot, so no log takes it for its own."""


@dataclass(frozen=True, slots=True)
class SourceCheckpoint:
    """Where a consumer stands in one physical source."""

    uuid: str = ""
    """Identity of the physical source."""
    scn: int = 0
    """SCN of the last row that is done."""
    seq: int | None = None
    """`_seq` of that row; None where all logged rows of that SCN are done."""
    txid: str = ""
    """The transaction at `scn`, by which a relay recognises its own history."""
    ts_us: int = 0
    """Commit time of that transaction, microseconds since 1970."""
    log: str | None = None
    """UUID of the log; set where `seq` or `snapshots` have a meaning in that log only."""
    snapshots: Mapping[str, int] = field(default_factory=dict)
    """By source, the generation of each snapshot that this consumer has begun and not finished; see also
    `UNREAD_TABLES`."""

    @property
    def pair(self) -> Pair:
        """(SCN, `_seq`) for comparing: everything up to and including it is done."""
        return self.scn, SEQ_DONE if self.seq is None else self.seq

    def to_json(self) -> dict[str, Any]:
        """The object that stands under the physical source's name."""
        return {
            "uuid": self.uuid,
            "scn": self.scn,
            "seq": self.seq,
            "txid": self.txid,
            "ts_us": self.ts_us,
            "log": self.log,
            "snapshots": dict(self.snapshots),
        }

    @classmethod
    def from_json(cls, value: object, where: str) -> Self:
        """Read what `to_json` wrote; integers may be text. Raises `MalformedRequest` naming `where` and the field."""
        if not isinstance(value, dict):
            raise MalformedRequest(f"{where}: expected an object, found {_name_of(value)}")
        if unknown := value.keys() - _FIELDS.keys():
            raise MalformedRequest(f"{where}: unknown field {min(unknown)!r}; a position has {', '.join(_FIELDS)}")
        if "scn" not in value:
            raise MalformedRequest(f"{where}: field 'scn' is missing")
        fields: dict[str, Any] = {}
        for name, written in value.items():
            kinds = _FIELDS[name]
            content = _integer(written) if int in kinds else written
            if type(content) not in kinds:
                raise MalformedRequest(f"{where}.{name}: {_name_of(content)} is not allowed here")
            if type(content) is int and not 0 <= content < 1 << 63:
                raise MalformedRequest(f"{where}.{name}: {content} is outside 0..2^63-1")
            if content is not None:
                fields[name] = content
        if fields.get("snapshots"):
            fields["snapshots"] = _generations(fields["snapshots"], f"{where}.snapshots")
        return cls(**fields)


_DIGITS_MAX: Final = 19
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "uuid": (str,),
    "scn": (int,),
    "seq": (int, type(None)),
    "txid": (str,),
    "ts_us": (int,),
    "log": (str, type(None)),
    "snapshots": (dict, type(None)),
}
"""What may stand in each, as JSON has it; `scn` has to."""


def _integer(value: object) -> object:
    """A number that was written as text, for readers of JSON that hold numbers as doubles, as the number."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) <= _DIGITS_MAX:
        return int(value)
    return value


def _generations(value: Mapping[str, object], where: str) -> dict[str, object]:
    generations = {source: _integer(written) for source, written in value.items()}
    for source, generation in generations.items():
        if type(generation) is not int:
            raise MalformedRequest(f"{where}.{source}: expected an integer, found {_name_of(generation)}")
    return generations


def _name_of(value: object) -> str:
    return "null" if value is None else type(value).__name__


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a consumer stands, for every physical source that it follows; also what a Spark offset is.

    >>> Checkpoint.from_json('{"v": 1, "sources": {"shop": {"scn": 3, "txid": "a"}}}').sources["shop"].pair[0]
    3
    """

    sources: Mapping[str, SourceCheckpoint] = field(default_factory=dict)

    def advanced(self, physical: str, position: SourceCheckpoint) -> "Checkpoint":
        """This checkpoint with one physical source moved."""
        return Checkpoint({**self.sources, physical: position})

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"v": VERSION, "sources": {name: position.to_json() for name, position in self.sources.items()}}

    def dumps(self) -> str:
        """As JSON text, keys sorted, one line."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, value: object, where: str = "checkpoint") -> "Checkpoint":
        """Read JSON text or an object. Raises `MalformedRequest` naming `where` and the path in it."""
        if isinstance(value, str | bytes):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise MalformedRequest(f"{where}: not JSON: {error}") from error
        if not isinstance(value, dict):
            raise MalformedRequest(f"{where}: expected an object, found {_name_of(value)}")
        if value.get("v") != VERSION:
            raise MalformedRequest(f"{where}.v: this databus reads version {VERSION}, found {value.get('v')!r}")
        sources = value.get("sources", {})
        if not isinstance(sources, dict):
            raise MalformedRequest(f"{where}.sources: expected an object, found {_name_of(sources)}")
        return cls({name: SourceCheckpoint.from_json(sources[name], f"{where}.sources.{name}") for name in sources})


class Barrier(NamedTuple):
    """A control that deals keys anew. Past it no partition of a group goes before all have saved it."""

    physical: str
    pair: Pair

    def to_json(self) -> dict[str, Any]:
        """As it stands in calls and answers."""
        return {"physical": self.physical, "scn": self.pair[0], "seq": self.pair[1]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Barrier":
        """Read what `to_json` wrote."""
        return cls(str(value["physical"]), (int(value["scn"]), int(value["seq"])))

    def is_reached_by(self, checkpoint: Checkpoint) -> bool:
        """Whether that stands at it or past it."""
        position = checkpoint.sources.get(self.physical)
        return position is not None and position.pair >= self.pair
