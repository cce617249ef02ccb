"""The name of an answer: all that a server needs to go on with it, whichever it is. Pure.

A checkpoint inside an answer has this name where otherwise a log's uuid stands.
"""

from dataclasses import dataclass
from typing import Self

from databus.core import MalformedRequest, Pair


@dataclass(frozen=True, slots=True)
class AnswerName:
    """Which answer it is."""

    state: str
    """The name of the state that it is made from."""
    since: Pair | None
    """Where the consumer stood that it was made for; None for one that had nothing."""
    is_inside: bool
    """Whether that was inside a transaction, or inside a snapshot of a table that it asks for."""
    told: Pair
    """Up to where controls and removals were given already by an answer before this one, from another state."""
    ask: str
    """A hash of what was asked for."""

    def __str__(self) -> str:
        kind = "state" if self.since is None else "since"
        since = "" if self.since is None else f"{_text(self.since)}{'i' if self.is_inside else ''}"
        return f"{kind};{self.state};{since};{_text(self.told)};{self.ask}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `str` wrote. Raises `MalformedRequest`."""
        try:
            kind, state, since, told, ask = text.split(";")
            is_inside = since.endswith("i")
            pair = None if kind == "state" else _pair(since.removesuffix("i"))
            return cls(state, pair, is_inside, _pair(told), ask)
        except ValueError as error:
            raise MalformedRequest(f"from.log: {text[:200]!r} is not the name of an answer: {error}") from None


def _text(pair: Pair) -> str:
    return f"{pair[0]}.{pair[1]}"


def _pair(text: str) -> Pair:
    scn, seq = text.split(".")
    return int(scn), int(seq)
