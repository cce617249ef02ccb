"""The source's side of a comparison: what a database holds, read from itself and by nothing of the bus.

An oracle opens readings; a reading is one consistent read at one position. Each kind of database has a module of its
own that makes one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeAlias

from databus.core import SourceCheckpoint

Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class OracleTable:
    """A captured table, as an oracle reads it."""

    source: str
    """`db.table`."""
    names: tuple[str, ...]
    """The captured columns, in order."""
    key: tuple[str, ...]
    readers: tuple[Callable[[Any], Any], ...]
    """By column: makes of the value that the database's client gives the value that a mirror holds."""
    expressions: tuple[str, ...]
    """By column: what is selected."""

    def row(self, values: Sequence[Any]) -> Row:
        """Values of all columns, as a mirror holds them."""
        return tuple(read(value) for read, value in zip(self.readers, values, strict=True))


class Reading(ABC):
    """One consistent read."""

    cut: int
    """The ordinal of the last transaction that it sees."""

    @abstractmethod
    def not_captured(self) -> str:
        """Why the bus cannot have everything that this reading sees, as far as the database itself knows; empty if
        nothing speaks against it.
        """

    @abstractmethod
    def not_reached(self, position: SourceCheckpoint | None) -> str:
        """Why a copy at this position does not hold everything that this reading sees; empty if it does."""

    @abstractmethod
    def tables(self) -> Sequence[OracleTable]:
        """The captured tables, by name."""

    @abstractmethod
    def rows(self, table: OracleTable) -> Iterator[Row]:
        """All rows of a table, as they come; to be taken to the end before anything else is asked."""

    @abstractmethod
    def rests(self) -> bool:
        """Whether nothing was written since the reading was opened."""


Oracle = Callable[[], AbstractContextManager[Reading]]
"""Opens a reading. Raises `ServiceUnavailable` where the database cannot be read now."""
