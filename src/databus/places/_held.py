"""What a target says of a table by itself, and what a ledger has noted of it."""

import hashlib
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from databus.core import SEQ_DONE, Pair, SourceCheckpoint
from databus.wire import ANSWERS, is_answer


class Noted(NamedTuple):
    """What a target said of a table after the last batch that wrote it, or when its word was taken."""

    pair: Pair
    """All changes up to it were in the target."""
    mark: str
    """By which the target is known again."""

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what JSON makes of it. Raises `ValueError`, `TypeError`."""
        (scn, seq), mark = value
        return cls((int(scn), int(seq)), str(mark))


@dataclass(frozen=True, slots=True)
class Held:
    """A target's answer about a table, at a start."""

    place: SourceCheckpoint | None
    """All changes up to it are there; None where the target cannot tell. Of a target in buckets, the least of them."""
    mark: str = ""
    """The mark that was noted, where the target still has what it had then; else what it would be known by now. Empty
    where nothing is there yet, or the target cannot tell one from another.
    """
    db: str = ""
    """Identity of the database that the rows are of; empty where the target cannot tell."""
    way: str = ""
    """By which way the rows came (see `Wanted.way_of`); empty where the target cannot tell."""
    seed: str | int | None = None
    """See `Position.seeds`."""


def place_at(pair: Pair, log: str | None = None, txid: str = "", ts_us: int = 0) -> SourceCheckpoint:
    """A pair as a place."""
    scn, seq = pair
    return SourceCheckpoint(scn=scn, seq=None if seq == SEQ_DONE else seq, log=log, txid=txid, ts_us=ts_us)


def is_of_answer(log: str | None) -> bool:
    """Whether a target, or a ledger, says that rows came from an answer of a bootstrap service."""
    return is_answer(log) or log == _ANSWERS


def identity(uuid: str) -> str:
    """A uuid as what fits where only an integer of 63 bits can be stored, in hexadecimal digits. All answers of
    bootstrap services have the same.
    """
    uuid = ANSWERS if is_answer(uuid) else uuid
    number = int.from_bytes(hashlib.blake2b(uuid.encode(), digest_size=8).digest(), "little") >> 1
    return f"{number:016x}"


_ANSWERS: Final = identity(ANSWERS)
