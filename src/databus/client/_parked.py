"""Which keys are parked: pure. A key of which a change is a dead letter waits, from that change on.

A change has one image, or two where it updates a row; both stand or fall together, so an update that changes its key
parks both keys. A row without a key is a letter by itself: its key is the empty text, which parks nothing.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from databus.core import Pair

LOOK_S: Final = 1.0
"""How often a client that has letters looks whether somebody has asked for a replay."""


class RowImage(NamedTuple):
    """One image of a change."""

    key: str
    """What its row is called; empty for a row without a key."""
    pair: Pair


Change = Sequence[RowImage]


class ParkedKeys:
    """The letters of each table, by key. Tables by their full names."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[str, list[Pair]]] = {}

    def keys_of(self, table: str) -> Iterable[str]:
        """What letters of a table are called."""
        return self._tables.get(table, {}).keys()

    def park(self, table: str, image: RowImage) -> bool:
        """Note a letter; whether it is a new one."""
        pairs = self._tables.setdefault(table, {}).setdefault(image.key, [])
        at = bisect_left(pairs, image.pair)
        if at < len(pairs) and pairs[at] == image.pair:
            return False
        insort(pairs, image.pair)
        return True

    def release(self, table: str, image: RowImage) -> None:
        """Forget a letter, if it is one."""
        pairs = self._tables.get(table, {}).get(image.key, [])
        if image.pair in pairs:
            pairs.remove(image.pair)
        if not pairs and table in self._tables:
            self._tables[table].pop(image.key, None)
            if not self._tables[table]:
                del self._tables[table]

    def behind(self, table: str, change: Change) -> Pair | None:
        """The letter that a change comes behind, or is itself; None where it may be delivered."""
        letters = self._tables.get(table, {})
        for key, pair in change:
            pairs = letters.get(key)
            if pairs and (pairs[0] <= pair if key else pair in pairs):
                return pairs[0] if key else pair
        return None

    def held(self, table: str, changes: Iterable[Change]) -> list[tuple[int, Pair]]:
        """Of changes in order, the numbers of those that are held back, each with the letter that it is behind. They
        are letters from now on.
        """
        behind = []
        for number, change in enumerate(changes):
            letter = self.behind(table, change)
            if letter is not None:
                behind.append((number, letter))
                for image in change:
                    self.park(table, image)
        return behind


def due(keys: Sequence[AbstractSet[str]], is_wanted: Sequence[bool]) -> list[int]:
    """Of the letters of a table, in order, the numbers of those to be delivered once more: none before an earlier one
    of its key. keys: by letter; none for a row without a key.
    """
    blocked: set[str] = set()
    numbers = []
    for number, (own, wanted) in enumerate(zip(keys, is_wanted, strict=True)):
        if not wanted or own & blocked:
            blocked |= own
        else:
            numbers.append(number)
    return numbers
