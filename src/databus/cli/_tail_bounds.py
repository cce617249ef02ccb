"""From where on and up to where `databus tail` goes, and a group is reset: words, times, SCNs, files of checkpoints."""

import datetime as dt
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from databus.core import SEQ_DONE, Checkpoint, ConfigError, Pair, SourceCheckpoint, time_us, us_of

if TYPE_CHECKING:
    from databus.client import Subscription, Window
    from databus.link import RelayClient, Start

_STARTS: Final[dict[str, Literal["beginning", "earliest", "latest"]]] = {
    "beginning": "beginning",
    "earliest": "earliest",
    "latest": "latest",
}
_AGO: Final = re.compile(r"(\d{1,6})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
SCN: Final = re.compile(r"\d{1,19}")
_ON_THE_WAY_S: Final = 1.0  # what was committed just before a time that comes may take so long to arrive


@dataclass(frozen=True)
class TailBegin:
    """Where following begins."""

    start: "Start"
    """As `windows` takes it."""
    checkpoint: Checkpoint | None = None
    """Where the physical sources that it holds begin; all others begin at `start`."""
    since_us: int | None = None
    """What was committed before it is left out: a time means the group that it lies in."""


def begin_of(text: str, option: str, client: "RelayClient", tables: Sequence[str] | None) -> TailBegin:
    """What --from or --since says. A number is an SCN, which is included; a file holds a checkpoint."""
    if text in _STARTS:
        return TailBegin(_STARTS[text])
    if option == "--from" and Path(text).is_file():
        return TailBegin("beginning", _checkpoint_in(text, option))
    if option == "--from" and SCN.fullmatch(text):
        physical = _physical_of(client, tables, f"--from {text}")
        scn = int(text)
        position = client.position(physical, scn=scn - 1) if scn > 1 else client.position(physical, start="beginning")
        return TailBegin("latest", Checkpoint({physical: position}))
    at = time_of(text, option)
    return TailBegin(at, since_us=us_of(at))


def place_of(text: str, option: str) -> dict[str, str]:
    """Where a group is to stand, from the same words, as parameters for the relay; a number: to go on after the SCN."""
    if text in _STARTS or SCN.fullmatch(text):
        return {"to": text}
    if Path(text).is_file():
        return {"from": _checkpoint_in(text, option).dumps()}
    return {"to": time_of(text, option).isoformat()}


@dataclass(frozen=True)
class TailEnd:
    """Where following ends."""

    follows: bool
    """Whether to wait for what comes."""
    until: Mapping[str, Pair] | None = None
    """As `windows` takes it."""
    at_us: int | None = None
    """What was committed later does not belong to it."""

    def phases(self) -> "list[TailEnd]":
        """Up to a time that is still to come: follow until then, and take what is there then."""
        is_to_come = self.at_us is not None and self.follows
        return [self, replace(self, follows=False)] if is_to_come else [self]


def end_of(text: str | None, client: "RelayClient", tables: Sequence[str] | None, *, follow: bool) -> TailEnd:
    """What --until says. The transaction of an SCN belongs to it, and what was committed at the time itself."""
    if text is None:
        return TailEnd(follow)
    if SCN.fullmatch(text):
        physical = _physical_of(client, tables, f"--until {text}")
        return TailEnd(follow, {physical: (int(text), SEQ_DONE)})
    at = time_of(text, "--until")
    return TailEnd(follow and at > dt.datetime.now(dt.UTC), at_us=us_of(at))


@contextmanager
def ended_in_time(end: TailEnd, following: "Subscription") -> Iterator[None]:
    """End the iteration when a time has come that was still to come."""
    if end.at_us is None or not end.follows:
        yield
        return
    left_s = end.at_us / 1e6 - dt.datetime.now(dt.UTC).timestamp()
    clock = threading.Timer(min(max(left_s, 0.0) + _ON_THE_WAY_S, threading.TIMEOUT_MAX), following.close)
    clock.daemon = True
    clock.start()
    try:
        yield
    finally:
        clock.cancel()


def within(
    following: "Subscription", begin: TailBegin, end: TailEnd, ended: dict[str, SourceCheckpoint]
) -> "Iterator[Window]":
    """The windows between the two. ended: filled with where a physical source stands when it has come to the end; with
    all of them the iteration is over.
    """
    for window in following:
        if begin.since_us is not None and window.commit_us < begin.since_us:
            continue
        if end.at_us is not None and window.commit_us > end.at_us:
            if window.physical not in ended:
                ended[window.physical] = following.checkpoint.sources[window.physical]
            if len(ended) >= len(following.checkpoint.sources):
                return
        elif window.physical not in ended:
            yield window


def _checkpoint_in(path: str, option: str) -> Checkpoint:
    """The checkpoint of a file: JSON alone, or with the checksum that `FileCheckpoints` writes below it."""
    text = Path(path).read_text()
    lines = text.splitlines()
    return Checkpoint.from_json(lines[0] if len(lines) == 2 else text, f"{option} {path}")


def time_of(text: str, option: str) -> dt.datetime:
    """A time, or how long ago it is."""
    if match := _AGO.fullmatch(text):
        ago_s = int(match[1]) * _SECONDS[match[2]]
        return dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago_s)
    try:
        return dt.datetime.fromtimestamp(time_us(text) / 1e6, dt.UTC)
    except (ValueError, OverflowError) as error:
        places = ", latest, earliest or beginning, an SCN, or the file of a checkpoint"
        others = {"--from": places, "--to": places, "--until": ", or an SCN"}
        raise ConfigError(
            f"{option} {text[:100]}: is neither a time such as 2026-07-01T12:00Z nor 15m or 2h{others.get(option, '')}"
        ) from error


def _physical_of(client: "RelayClient", tables: Sequence[str] | None, where: str) -> str:
    """The only physical source that is followed: an SCN is one's alone."""
    from databus.link import is_called

    names = sorted(
        {
            source.physical
            for source in client.sources()
            if tables is None or any(is_called(name, source.physical, source.table) for name in tables)
        }
    )
    if len(names) != 1:
        problem = f"these tables are of {', '.join(names)}" if names else "no such table is there"
        raise ConfigError(f"{where}: an SCN is a number of one physical source, and {problem}; name tables of one")
    return names[0]
