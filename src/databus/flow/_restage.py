"""What an output asks for that cannot take what tasks have written: that they write it again, in another way."""

from collections.abc import Mapping, Sequence
from typing import Self

import pyarrow as pa

from databus.core import Pair


class Restage(Exception):
    """Tasks are to write the rows of some tables again, in another way.

    above: by full name of a table, the pair up to which the target has it. fits: the schema in which it wants its rows.
    """

    def __init__(self, *, above: Mapping[str, Pair] | None = None, fits: Mapping[str, pa.Schema] | None = None) -> None:
        super().__init__(f"rows of {', '.join([*(above or ()), *(fits or ())])} are to be written again")
        self.above = above or {}
        self.fits = fits or {}

    @classmethod
    def of_all(cls, asked: Sequence["Restage"]) -> Self:
        """What all of these ask for, at once: writing all rows again for each table would not end with many tables."""
        above = {name: pair for each in asked for name, pair in each.above.items()}
        return cls(above=above, fits={name: schema for each in asked for name, schema in each.fits.items()})
