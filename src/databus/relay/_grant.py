"""Grants: what those who hold a token may do and see. Pure; `access` of relay.yml says it, `_tokens.py` finds it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from databus.core import split_physical
from databus.filters import StreamFilter, TableRule, matches
from databus.log import SchemaStore


class Right(StrEnum):
    """What whoever asks must be allowed to do."""

    NONE = "none"
    """Nothing: a known token is enough."""
    READ = "read"
    """To see data, and states."""
    CONTROL = "control"
    """To change something."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one access allows. A table out of reach does not exist for its holder: where tables are named, counted or
    looked for, only those of `visible` are there.
    """

    name: str = ""
    """As in relay.yml; empty where there is no `access`."""
    rights: frozenset[Right] = frozenset({Right.READ, Right.CONTROL})
    tables: tuple[str, ...] | None = None
    """Patterns over full names; None for all."""
    rules: tuple[TableRule, ...] = ()
    """Rows that it sees only, and columns that it does not see."""

    @property
    def is_limited(self) -> bool:
        """Whether there may be tables, rows or columns that this one does not see."""
        return self.filter.conceals

    @property
    def filter(self) -> StreamFilter:
        """What it lets through, for filters to be put behind."""
        return StreamFilter((), self.rules, None, self.tables)

    @property
    def sees_messages(self) -> bool:
        """Whether it includes errors of capture, which may name any table and column."""
        return not self.is_limited and Right.READ in self.rights

    def allows(self, right: Right) -> bool:
        """Whether it includes a right."""
        return right is Right.NONE or right in self.rights

    def sees(self, physical: str, table: str) -> bool:
        """Whether a table (`db.table`) is there."""
        return self.tables is None or matches(f"{physical}/{table}", self.tables)

    def sees_physical(self, physical: str) -> bool:
        """Whether a physical source is there: one of whose tables some may be."""
        return self.tables is None or any(_owner_fits(physical, pattern) for pattern in self.tables)

    def visible(self, store: SchemaStore) -> Mapping[str, int]:
        """Id by name of the tables of a log that are there."""
        known = store.ids()
        if self.tables is None:
            return known
        return {name: id_ for name, id_ in known.items() if self.sees(store.physical, name)}


ALL: Final = Grant()
"""What everybody may where nothing limits it."""


def _owner_fits(physical: str, pattern: str) -> bool:
    owner, _ = split_physical(pattern)
    return not owner or fnmatchcase(physical, owner)
