"""What a request asks for: query parameters as typed values. Pure; every error names its parameter."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from databus.core import Checkpoint, MalformedRequest, Pair, SourceCheckpoint, split_names, time_us

_INT64_END: Final = 1 << 63
_DIGITS: Final = re.compile(r"[0-9]{1,19}")
ROWS_MAX: Final = _INT64_END - 1


class StartName(StrEnum):
    """Places in a log that have a name."""

    BEGINNING = "beginning"
    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first group whose commit time, as a running maximum, is at or after this."""

    us: int


Start = StartName | AtTime | SourceCheckpoint | Checkpoint
"""Where to begin. A whole checkpoint still has to be asked for its part of the physical source."""

Query = Mapping[str, str]


def check_names(query: Query, allowed: frozenset[str]) -> None:
    """Refuse a parameter that the command does not have: a misspelt limit would be no limit."""
    for name in query:
        if name not in allowed:
            raise MalformedRequest(f"{name[:100]}: no such parameter here; there are {', '.join(sorted(allowed))}")


def integer(query: Query, name: str, default: int, *, least: int = 0, most: int = _INT64_END - 1) -> int:
    """A whole number in `least..most`."""
    text = query.get(name)
    if text is None:
        return default
    return _integer(name, text, least, most)


def _integer(name: str, text: str, least: int = 0, most: int = _INT64_END - 1) -> int:
    if not _DIGITS.fullmatch(text) or not least <= int(text) <= most:
        raise MalformedRequest(f"{name}: {text[:100]!r} is not a whole number in {least}..{most}")
    return int(text)


def optional_integer(query: Query, name: str, *, least: int = 0, most: int = _INT64_END - 1) -> int | None:
    """A whole number in `least..most`, or None where the parameter is missing."""
    return integer(query, name, 0, least=least, most=most) if name in query else None


def flag(query: Query, name: str) -> bool:
    """0 or 1, false or true; missing is false."""
    text = query.get(name, "0").lower()
    if text not in ("0", "1", "true", "false"):
        raise MalformedRequest(f"{name}: {text[:100]!r} is neither 0 nor 1")
    return text in ("1", "true")


def names(query: Query, name: str) -> list[str] | None:
    """A comma list, or None where the parameter is missing; `all`, as in the original, is None too."""
    text = query.get(name)
    if text is None:
        return None
    found = split_names(text)
    if not all(found):
        raise MalformedRequest(f"{name}: {text[:100]!r} has an empty name in it")
    return None if found == ["all"] else found


def pair(query: Query, name: str) -> Pair | None:
    """`scn` or `scn:seq`; without `seq` the end of that SCN."""
    text = query.get(name)
    if text is None:
        return None
    scn, colon, seq = text.partition(":")
    done = SourceCheckpoint(scn=_integer(name, scn))
    return (done.scn, _integer(name, seq)) if colon else done.pair


def fingerprint(query: Query, name: str) -> int | None:
    """Sixteen hexadecimal digits."""
    text = query.get(name)
    if text is None:
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{1,16}", text):
        raise MalformedRequest(f"{name}: {text[:100]!r} is not a fingerprint of sixteen hexadecimal digits")
    return int(text, 16)


def microseconds(name: str, text: str) -> int:
    """A time: microseconds since 1970, or ISO 8601, UTC where it names no zone.

    >>> microseconds("time", "1970-01-01T00:00:01Z")
    1000000
    """
    try:
        return max(_integer(name, text) if _DIGITS.fullmatch(text) else time_us(text), 0)
    except ValueError as error:
        raise MalformedRequest(f"{name}: {error}") from None


START_NAMES: Final = frozenset({"from", "scn", "time", "start", "checkPoint"})


def start_of(query: Query, default: StartName) -> Start:
    """Where to begin. Raises `MalformedRequest` if more than one parameter says it, or one says nothing."""
    given = sorted(START_NAMES & set(query))
    if not given:
        return default
    if len(given) > 1:
        raise MalformedRequest(f"{given[0]}, {given[1]}: only one of them can say where to start")
    name = given[0]
    text = query[name]
    if name == "scn":
        return SourceCheckpoint(scn=_integer(name, text))
    if name == "time":
        return AtTime(microseconds(name, text))
    if name == "start":
        if text not in list(StartName):
            raise MalformedRequest(f"start: {text[:100]!r} is none of {', '.join(StartName)}")
        return StartName(text)
    value = _json(name, text)
    return _original(value) if name == "checkPoint" else _position(value)


def _json(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"{name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise MalformedRequest(f"{name}: expected a JSON object, found {text[:100]}")
    return value


def _position(value: dict[str, Any]) -> SourceCheckpoint | Checkpoint:
    if "v" in value or "sources" in value:
        return Checkpoint.from_json(value, "from")
    return SourceCheckpoint.from_json(value, "from")


def _original(value: dict[str, Any]) -> Start:
    """A checkpoint of the original's client library; where it stands inside a window, that window comes again."""

    def number(name: str, default: int) -> int:
        found = value.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or not -1 <= found < _INT64_END:
            raise MalformedRequest(f"checkPoint.{name}: {str(found)[:100]!r} is not a whole number of 64 bits")
        return found

    mode = value.get("consumption_mode", "ONLINE_CONSUMPTION")
    if mode == "INIT":
        return StartName.BEGINNING
    if mode != "ONLINE_CONSUMPTION":
        raise MalformedRequest(f"checkPoint.consumption_mode: {str(mode)[:100]!r} is served by a bootstrap, not here")
    scn, offset = number("windowScn", -1), number("windowOffset", -1)
    before, time_ns = number("prevScn", -1), number("tsNsecs", -1)
    if scn < 0:
        return StartName.EARLIEST
    if scn == 0 and time_ns > 0:
        return AtTime(time_ns // 1000)
    if offset < 0:
        return SourceCheckpoint(scn=scn)
    return SourceCheckpoint(scn=before if 0 <= before < scn else max(scn - 1, 0))
