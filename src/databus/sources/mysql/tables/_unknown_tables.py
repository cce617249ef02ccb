"""Presence: which tables there may be on the server beside the known ones.

A history that begins with the server's catalogue knows every table. One that begins in the middle of a log knows none,
though most are there; what the log then shows to be made, dropped or renamed away is certain again. A table that a
statement made or changed in a way that is not understood stays doubtful until something says what it is.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from databus.sources.mysql.tables._lexer import UnreadableStatement

Note = tuple[str, ...]
TableName = tuple[str, str]

SERVERS_OWN: Final = ("mysql", "information_schema", "performance_schema", "sys")
"""Databases whose tables are in no catalogue, and that hold what statements may take after (CREATE TABLE ... LIKE)."""

PARTIAL: Final[Note] = ("partial",)
"""Noted of a history that did not begin with everything."""


def contents_known(database: str) -> Note:
    """Noted of a database that the log has shown to be made, or dropped: all its tables are known."""
    return "database", database


def gone(name: TableName) -> Note:
    """Noted of a table that the log has shown to be dropped, or renamed."""
    return "gone", *name


def doubtful(name: TableName) -> Note:
    """Noted of a table that may exist, with an unknown definition."""
    return "doubtful", *name


def announced(name: TableName) -> Note:
    """Noted of a table that is not known here, though consumers have been sent a definition of it."""
    return "announced", *name


def unlogged(name: TableName) -> Note:
    """Noted of a table of which the log has shown rows, but not its creation."""
    return "unlogged", *name


def not_known(name: TableName) -> UnreadableStatement:
    """The error for a table that must be known."""
    return UnreadableStatement(f"{name[0]}.{name[1]} is not in the history")


class Presence:
    """The notes that hold at one position of the log."""

    def __init__(self) -> None:
        self._notes: set[Note] = set()

    def __len__(self) -> int:
        return len(self._notes)

    def __contains__(self, note: object) -> bool:
        return note in self._notes

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)

    def announced(self) -> list[TableName]:
        """The tables that are not known, though consumers have got definitions of them."""
        return [(note[1], note[2]) for note in self._notes if note[0] == "announced"]

    def clear(self) -> None:
        """Begin with everything known."""
        self._notes.clear()

    def set(self, note: Note, holds: bool) -> bool:
        """Let a note hold, or not. Returns whether that is a change."""
        if holds == (note in self._notes):
            return False
        (self._notes.add if holds else self._notes.discard)(note)
        return True

    def may_be_there(self, name: TableName, pending: Mapping[Note, bool]) -> bool:
        """Whether there may be a table of that name beside the known ones. pending: notes that a
        statement is about to change.
        """

        def holds(note: Note) -> bool:
            return pending.get(note, note in self._notes)

        if holds(doubtful(name)) or holds(announced(name)):
            return True
        return self.may_hold_more(name[0], pending) and not holds(gone(name))

    def may_hold_more(self, database: str, pending: Mapping[Note, bool]) -> bool:
        """Whether the database may have existed before the history began, or is one that no history follows."""
        if database.casefold() in SERVERS_OWN:
            return True
        known = contents_known(database)
        return PARTIAL in self._notes and not pending.get(known, known in self._notes)
