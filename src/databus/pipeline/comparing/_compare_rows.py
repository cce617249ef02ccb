"""Rows of both sides of a comparison, put aside on disk by their keys, so that any table is compared in parts.

Rows with equal keys come into the same part, whichever side they are from; one part at a time is held in memory.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from databus.pipeline.comparing._compare_found import TableDifference, difference
from databus.sources import Row

_PARTS: Final = 256
_ROWS_WAITING_MAX: Final = 50_000
"""How many rows of a side wait in memory; a table that is smaller never goes to disk."""


class Side:
    """The rows of one side. places: where in a row its key is."""

    def __init__(self, folder: Path, places: Sequence[int]) -> None:
        self._folder = folder
        self._places = places
        self._waiting: list[list[Row]] = [[] for _ in range(_PARTS)]

    def fill(self, rows: Iterable[Row]) -> None:
        """Put all rows aside."""
        for number, row in enumerate(rows, 1):
            self._waiting[hash(self._key(row)) % _PARTS].append(row)
            if number % _ROWS_WAITING_MAX == 0:
                self._write()

    def part(self, part: int) -> dict[Row, Row]:
        """One part's rows, by key."""
        return {self._key(row): row for rows in (*self._read(part), self._waiting[part]) for row in rows}

    def _key(self, row: Row) -> Row:
        return tuple(row[place] for place in self._places)

    def _write(self) -> None:
        for part, rows in enumerate(self._waiting):
            with (self._folder / str(part)).open("ab") as file:
                pickle.dump(rows, file, pickle.HIGHEST_PROTOCOL)
            rows.clear()

    def _read(self, part: int) -> Iterator[list[Row]]:
        path = self._folder / str(part)
        if not path.exists():
            return
        with path.open("rb") as file:
            while file.peek(1):
                yield pickle.load(file)  # noqa: S301 - written above, in a folder of this process alone


@contextmanager
def two_sides(places: Sequence[int]) -> Iterator[tuple[Side, Side]]:
    """The source's side and the copy's, in a folder that is removed at the end."""
    with TemporaryDirectory(prefix="databus-compare-") as folder:
        sides = []
        for name in ("source", "copy"):
            path = Path(folder) / name
            path.mkdir()
            sides.append(Side(path, places))
        yield sides[0], sides[1]


def difference_of(name: str, source: Side, copied: Side, keys_max: int) -> TableDifference:
    """What differs between two sides, part by part."""
    found = TableDifference(name, 0)
    for part in range(_PARTS):
        found = found.joined(difference(name, source.part(part), copied.part(part), keys_max), keys_max)
    return found
