"""What a request asks for: query parameters as typed values. Pure; every error names its parameter."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from databus.core import Checkpoint, MalformedRequest, Pair, SourceCheckpoint, split_names, time_us

INT64_MAX: Final = (1 << 63) - 1
_DIGITS: Final = re.compile(r"[0-9]{1,19}")


class StartName(StrEnum):
    """Places in a log that have a name."""

    BEGINNING = "beginning"
    EARLIEST = "earliest"
    LATEST = "latest"


class StreamForm(StrEnum):
    """How changes are written."""

    FRAMES = "frames"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first group whose commit time, as a running maximum, is at or after this."""

    us: int


Start = StartName | AtTime | SourceCheckpoint | Checkpoint
"""Where to begin. A whole checkpoint still has to be asked for its part of the physical source."""

Given = Mapping[str, Any]
"""The values of a command's parameters, those that are missing with their default."""


def integer(name: str, text: str, least: int = 0, most: int = INT64_MAX) -> int:
    """A whole number in `least..most`."""
    if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
        raise MalformedRequest(f"{name}: {text[:100]!r} is not a whole number in {least}..{most}")
    return int(text)


def flag(name: str, text: str) -> bool:
    """0 or 1, false or true."""
    if text.lower() not in ("0", "1", "true", "false"):
        raise MalformedRequest(f"{name}: {text[:100]!r} is neither 0 nor 1")
    return text.lower() in ("1", "true")


def names(name: str, text: str) -> list[str] | None:
    """A comma list; `all`, as in the original, is None, as if the parameter were missing."""
    listed = split_names(text)
    if not all(listed):
        raise MalformedRequest(f"{name}: {text[:100]!r} has an empty name in it")
    return None if listed == ["all"] else listed


def pair(name: str, text: str) -> Pair:
    """`scn` or `scn:seq`; without `seq` the end of that SCN."""
    scn, colon, seq = text.partition(":")
    done = SourceCheckpoint(scn=integer(name, scn))
    return (done.scn, integer(name, seq)) if colon else done.pair


def fingerprint(name: str, text: str) -> int:
    """Sixteen hexadecimal digits."""
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        raise MalformedRequest(f"{name}: {text[:100]!r} is not a fingerprint of sixteen hexadecimal digits")
    return int(text, 16)


def microseconds(name: str, text: str) -> int:
    """A time: microseconds since 1970, or ISO 8601, UTC where it names no zone.

    >>> microseconds("time", "1970-01-01T00:00:01Z")
    1000000
    """
    try:
        return max(integer(name, text) if _DIGITS.fullmatch(text) else time_us(text), 0)
    except ValueError as error:
        raise MalformedRequest(f"{name}: {error}") from None


def after(name: str, text: str) -> SourceCheckpoint:
    """The place after an SCN."""
    return SourceCheckpoint(scn=integer(name, text))


def time_of(name: str, text: str) -> AtTime:
    """The place of a time."""
    return AtTime(microseconds(name, text))


START_NAMES: Final = frozenset({"from", "scn", "time", "start", "checkPoint"})


def start_of(given: Given, default: StartName) -> Start:
    """Where to begin, as one of the parameters says that can."""
    starts: list[Start] = [given[name] for name in sorted(START_NAMES) if given.get(name) is not None]
    return starts[0] if starts else default


def checkpoint_of(start: Start) -> Checkpoint | None:
    """The whole checkpoint that was given to start from, if it was one."""
    return start if isinstance(start, Checkpoint) else None


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedRequest(f"{name}: expected a JSON object, found {text[:100]}")
    return value


def position(name: str, text: str) -> SourceCheckpoint | Checkpoint:
    """A checkpoint, of one physical source or whole."""
    value = _json(name, text)
    if "v" in value or "sources" in value:
        return Checkpoint.from_json(value, name)
    return SourceCheckpoint.from_json(value, name)


def original_position(parameter: str, text: str) -> Start:
    """A checkpoint of the original's client library; where it stands inside a window, that window comes again."""
    value = _json(parameter, text)

    def number(name: str, default: int) -> int:
        member = value.get(name, default)
        if isinstance(member, bool) or not isinstance(member, int) or not -1 <= member <= INT64_MAX:
            raise MalformedRequest(f"{parameter}.{name}: {str(member)[:100]!r} is not a whole number of 64 bits")
        return member

    mode = value.get("consumption_mode", "ONLINE_CONSUMPTION")
    if mode == "INIT":
        return StartName.BEGINNING
    if mode != "ONLINE_CONSUMPTION":
        raise MalformedRequest(f"{parameter}.consumption_mode: {str(mode)[:100]!r} is served by a bootstrap, not here")
    scn, offset = number("windowScn", -1), number("windowOffset", -1)
    before, time_ns = number("prevScn", -1), number("tsNsecs", -1)
    if scn < 0:
        return StartName.EARLIEST
    if scn == 0 and time_ns > 0:
        return AtTime(time_ns // 1000)
    if offset < 0:
        return SourceCheckpoint(scn=scn)
    return SourceCheckpoint(scn=before if 0 <= before < scn else max(scn - 1, 0))
