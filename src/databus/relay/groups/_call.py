"""A member's call, read from JSON, and what it is answered. Pure; every error names the field."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from databus.core import Barrier, Checkpoint, MalformedRequest, SourceCheckpoint
from databus.relay.groups._state import PARTITIONS_MAX

NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,128}")  # PIPELINE.OUTPUT has up to 129
_WAIT_MS_MAX: Final = 60_000
_INT64_MAX: Final = (1 << 63) - 1
_STRICT: Final = ConfigDict(extra="forbid", frozen=True, strict=True)


class BarrierBody(BaseModel):
    """A control that redistributes keys."""

    model_config = _STRICT

    physical: str
    scn: int = Field(ge=0, le=_INT64_MAX)
    seq: int | None = Field(None, ge=0, le=_INT64_MAX)


class HeldBody(BaseModel):
    """One partition as a member says it."""

    model_config = _STRICT

    fence: int = Field(ge=0, le=_INT64_MAX, description="As it was given with the partition.")
    checkpoint: dict[str, Any] | None = Field(
        None, description="To save; missing where nothing is new since the last call that was answered."
    )
    waits: list[BarrierBody] = Field(
        default_factory=list,
        description="The controls that redistribute keys, one of a physical source at most, behind which the member "
        "waits for all other partitions.",
    )


_Number = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,3})$")]
Filters = dict[str, str]
"""Parameters as they stand in an address. Texts only: whatever is nested could be kept, and be too deep to be read."""


class CallBody(BaseModel):
    """A member's call, as it is sent."""

    model_config = _STRICT

    member: str = Field(pattern=r"^[A-Za-z0-9-]{8,64}$", description="A UUID that the member makes itself.")
    call: int = Field(ge=1, le=_INT64_MAX, description="Above the number of every call before.")
    sources: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, description="The names that the group follows; null for all of the one physical source."
    )
    filters: Filters = Field(
        default_factory=dict, description="The parameters of `/stream` for filters; the same for all members."
    )
    partitions: int = Field(1, ge=1, le=PARTITIONS_MAX, description="Counts when the group is made.")
    start: str | dict[str, Any] = Field(
        "latest",
        description="Where the group begins when it is made: latest, earliest, beginning, {time}, {scn}, a checkpoint.",
    )
    guard: bool = Field(False, description="Keep the log for this group beyond retention.")
    holds: dict[_Number, HeldBody] = Field(
        default_factory=dict, description="What the member holds after this call; all else is given back."
    )
    gives: dict[_Number, HeldBody] = Field(default_factory=dict, description="What it saves and gives back at once.")
    leave: bool = Field(False, description="Saves what is held, gives it back, and is a member no more.")
    wait_ms: int = Field(0, ge=0, le=_WAIT_MS_MAX, description="How long to wait for something to do.")


class ReportBody(BaseModel):
    """How far a consumer without partitions has come, such as a pipeline's output."""

    model_config = _STRICT

    checkpoint: dict[str, Any] = Field(description="With every physical source that it reads.")
    sources: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, description="The names that it follows, to be shown."
    )
    guard: bool | None = Field(
        None, description="Whether the log is kept for it beyond retention; missing where nothing changes."
    )


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """One partition as a member says it."""

    fence: int
    checkpoint: Checkpoint | None = None
    """What it saves, None for nothing new."""
    waits: tuple[Barrier, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberCall:
    """One call of a member."""

    member: str
    number: int
    sources: tuple[str, ...] | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 1
    start: Any = "latest"
    guard: bool = False
    holds: Mapping[int, HeldPartition] = field(default_factory=dict)
    gives: Mapping[int, HeldPartition] = field(default_factory=dict)
    """The partitions that it gives back at once, with what it saves of each."""
    leave: bool = False
    wait_ms: int = 0

    @classmethod
    def of(cls, body: CallBody) -> "MemberCall":
        """The call that was sent. Raises `MalformedRequest` naming the field."""
        holds, gives = _held(body.holds, "holds"), _held(body.gives, "gives")
        if both := sorted(holds.keys() & gives.keys()):
            raise MalformedRequest(f"gives.{both[0]}: stands in holds too; a partition is held or given back")
        return cls(
            body.member,
            body.call,
            None if body.sources is None else tuple(sorted(set(body.sources))),
            body.filters,
            body.partitions,
            body.start,
            body.guard,
            holds,
            gives,
            body.leave,
            body.wait_ms,
        )

    @property
    def named(self) -> dict[int, HeldPartition]:
        """All that it says of partitions."""
        return {**self.holds, **self.gives}


@dataclass(frozen=True, slots=True)
class TakenPartition:
    """A partition that a member gets: `number` of `of`, its fence, and where it begins."""

    of: int
    fence: int
    checkpoint: Checkpoint
    waits: tuple[Barrier, ...] = ()


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """The answer to a member. See docs/http.md for the fields."""

    lease_ms: int
    again_ms: int
    state: str
    partitions: int
    take: Mapping[int, TakenPartition] = field(default_factory=dict)
    give_up: tuple[int, ...] = ()
    passes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The physical sources of partitions that need not wait any more."""

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
                **({"waits": [barrier.to_json() for barrier in taken.waits]} if taken.waits else {}),
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
            "pass": {str(number): [*physicals] for number, physicals in self.passes.items()},
        }


def check_name(name: str) -> str:
    """A name that a group may have. Raises `MalformedRequest`."""
    if not NAME.fullmatch(name):
        raise MalformedRequest(
            f"{name[:120]!r} is no name of a group: letters, digits, '_', '-' and '.', 129 at most, neither '.' nor "
            "'-' first"
        )
    return name


def _held(bodies: Mapping[str, HeldBody], name: str) -> dict[int, HeldPartition]:
    if len(bodies) > PARTITIONS_MAX:
        raise MalformedRequest(f"{name}: {len(bodies)} partitions, and a group has at most {PARTITIONS_MAX}")
    return {int(text): _held_one(body, f"{name}.{text}") for text, body in bodies.items()}


def _held_one(body: HeldBody, where: str) -> HeldPartition:
    checkpoint = body.checkpoint
    return HeldPartition(
        body.fence,
        None if checkpoint is None else Checkpoint.from_json(checkpoint, f"{where}.checkpoint"),
        tuple(
            Barrier(barrier.physical, SourceCheckpoint(scn=barrier.scn, seq=barrier.seq).pair) for barrier in body.waits
        ),
    )
