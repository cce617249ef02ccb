"""A member's call, read from JSON, and what it is answered. Pure; every error names the field."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from databus.core import Checkpoint, MalformedRequest, SourceCheckpoint
from databus.relay.groups._state import PARTITIONS_MAX, Barrier

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MEMBER: Final = re.compile(r"[A-Za-z0-9-]{8,64}")
_NUMBER: Final = re.compile(r"[0-9]{1,4}")
_WAIT_MS_MAX: Final = 60_000
_INT64_MAX: Final = (1 << 63) - 1
_FIELDS: Final = frozenset(
    {
        "member", "call", "sources", "filters", "partitions", "start", "guard", "holds", "gives", "leave", "wait_ms",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Held:
    """One partition as a member says it. checkpoint: what it saves, None for nothing new."""

    fence: int
    checkpoint: Checkpoint | None = None
    waits: Barrier | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a member. gives: what it saves and gives back at once."""

    member: str
    number: int
    sources: tuple[str, ...] | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 1
    start: Any = "latest"
    guard: bool = False
    holds: Mapping[int, Held] = field(default_factory=dict)
    gives: Mapping[int, Held] = field(default_factory=dict)
    leave: bool = False
    wait_ms: int = 0

    @classmethod
    def from_json(cls, value: object) -> "Call":
        """Read and check it. Raises `MalformedRequest`."""
        if not isinstance(value, dict):
            raise MalformedRequest("the call is not a JSON object")
        for name in value:
            if name not in _FIELDS:
                raise MalformedRequest(f"{name[:100]}: no such field in a call; there are {', '.join(sorted(_FIELDS))}")
        member, filters = value.get("member"), value.get("filters", {})
        if not isinstance(member, str) or not _MEMBER.fullmatch(member):
            raise MalformedRequest("member: a UUID that the member makes itself is needed")
        if not isinstance(filters, dict):
            raise MalformedRequest("filters: not a JSON object")
        holds, gives = _held(value, "holds"), _held(value, "gives")
        if both := sorted(set(holds) & set(gives)):
            raise MalformedRequest(f"gives.{both[0]}: stands in holds too; a partition is held or given back")
        return cls(
            member,
            _integer(value, "call", None, least=1),
            sources_of(value.get("sources")),
            filters,
            _integer(value, "partitions", 1, least=1, most=PARTITIONS_MAX),
            value.get("start", "latest"),
            _flag(value, "guard"),
            holds,
            gives,
            _flag(value, "leave"),
            _integer(value, "wait_ms", 0, most=_WAIT_MS_MAX),
        )

    @property
    def said(self) -> dict[int, Held]:
        """All that it says of partitions."""
        return {**self.holds, **self.gives}


@dataclass(frozen=True, slots=True)
class Taken:
    """A partition that a member gets: `number` of `of`, its fence, and where it begins."""

    of: int
    fence: int
    checkpoint: Checkpoint
    waits: Barrier | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a member is told. See docs/http.md for the fields."""

    lease_ms: int
    again_ms: int
    state: str
    partitions: int
    take: Mapping[int, Taken] = field(default_factory=dict)
    give_up: tuple[int, ...] = ()
    passes: tuple[int, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, so that a call may wait for something."""
        return not (self.take or self.give_up or self.passes)

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        take = {
            str(number): {
                "fence": taken.fence,
                "of": taken.of,
                "checkpoint": taken.checkpoint.to_json(),
                **({} if taken.waits is None else {"waits": taken.waits.to_json()}),
            }
            for number, taken in self.take.items()
        }
        return {
            "lease_ms": self.lease_ms,
            "again_ms": self.again_ms,
            "state": self.state,
            "partitions": self.partitions,
            "take": take,
            "give_up": [str(number) for number in self.give_up],
            "pass": [str(number) for number in self.passes],
        }


def check_name(name: str) -> str:
    """A name that a group may have. Raises `MalformedRequest`."""
    if not NAME.fullmatch(name):
        raise MalformedRequest(
            f"{name[:120]!r} is no name of a group: letters, digits, '_', '-' and '.', 100 at most, neither '.' nor "
            "'-' first"
        )
    return name


def sources_of(value: object) -> tuple[str, ...] | None:
    """The sources of a group in one order, whichever they were given in; None for all of its physical source."""
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(isinstance(each, str) and each for each in value):
        raise MalformedRequest("sources: a list of names is needed, or null for all of the one physical source")
    return tuple(sorted(set(value)))


def _held(call: Mapping[str, Any], name: str) -> dict[int, Held]:
    value = call.get(name, {})
    if not isinstance(value, dict) or len(value) > PARTITIONS_MAX:
        raise MalformedRequest(f"{name}: an object is needed, with at most {PARTITIONS_MAX} partitions")
    found: dict[int, Held] = {}
    for text, each in value.items():
        where = f"{name}.{text[:20]}"
        if not _NUMBER.fullmatch(text) or not isinstance(each, dict) or each.keys() - {"fence", "checkpoint", "waits"}:
            raise MalformedRequest(f'{where}: expected a partition such as "3": {{"fence", "checkpoint", "waits"}}')
        checkpoint = each.get("checkpoint")
        found[int(text)] = Held(
            _integer(each, "fence", None, where=where),
            None if checkpoint is None else Checkpoint.from_json(checkpoint, f"{where}.checkpoint"),
            _barrier(each.get("waits"), f"{where}.waits"),
        )
    return found


def _barrier(value: object, where: str) -> Barrier | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("physical"), str):
        raise MalformedRequest(f'{where}: expected {{"physical", "scn", "seq"}}')
    at = {name: each for name, each in value.items() if name != "physical"}
    return Barrier(value["physical"], SourceCheckpoint.from_json(at, where).pair)


def _integer(
    value: Mapping[str, Any], name: str, default: int | None, *, least: int = 0, most: int = _INT64_MAX, where: str = ""
) -> int:
    found = value.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or not least <= found <= most:
        place = f"{where}.{name}" if where else name
        raise MalformedRequest(f"{place}: {str(found)[:100]} is not a whole number in {least}..{most}")
    return found


def _flag(value: Mapping[str, Any], name: str) -> bool:
    found = value.get(name, False)
    if not isinstance(found, bool):
        raise MalformedRequest(f"{name}: {str(found)[:100]} is neither true nor false")
    return found
