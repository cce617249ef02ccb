"""Events: what a statement of the log did to a captured table."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from databus.sources.mysql._definition import ColumnDefinition, TableDefinition
from databus.sources.mysql.tables._change_class import METADATA, UNPROVEN, Reason
from databus.sources.mysql.tables._literals import shown_value


@dataclass(frozen=True, slots=True)
class Created:
    """A table was created."""

    after: TableDefinition
    ddl: str
    is_empty: bool = True
    """Its rows, if any, follow in the log; False: it has rows that no log entry shows."""


@dataclass(frozen=True, slots=True)
class Altered:
    """A table was altered."""

    before: TableDefinition
    after: TableDefinition
    ddl: str
    reasons: tuple[Reason, ...] = ()
    """Each has its class; the class of the change is the highest of them."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Old names of columns to new ones; empty for a class 3 change, where nothing is proven."""
    fill: Mapping[str, Any] = field(default_factory=dict)
    """By new column: the value that existing rows have in it, in the bus's type (a TIME as microseconds), None for
    NULL. Empty for a class 3 change.
    """
    text_reasons: tuple[Reason, ...] = ()
    """More reasons, for consumers that get their columns as text."""

    @property
    def number(self) -> int:
        """Its class: 1 metadata only, 2 columns added with a known value, 3 everything else."""
        return max((reason.number for reason in self.reasons), default=METADATA)

    def without(self, excluded: frozenset[str]) -> Self:
        """The same for consumers that never see these columns: reasons about them are dropped."""
        if not excluded:
            return self
        return replace(
            self,
            reasons=tuple(reason for reason in self.reasons if reason.column not in excluded),
            renamed={old: new for old, new in self.renamed.items() if old not in excluded and new not in excluded},
            fill={name: value for name, value in self.fill.items() if name not in excluded},
        )

    def as_text(self, before: frozenset[str], after: frozenset[str]) -> Self:
        """The same for consumers that get these columns, by their old and their new names, as text."""
        if not before and not after:
            return self
        fill = {n: shown_value(self._column(n), v) if n in after else v for n, v in self.fill.items()}
        old_names = {new: old for old, new in self.renamed.items()}
        old = {column.name: column for column in self.before.columns}
        reasons = [reason for reason in self.text_reasons if reason.column in after]
        for column in self.after.columns:
            origin = old.get(old_names.get(column.name, column.name))
            if origin is None or column.name in fill:
                continue
            if (origin.name in before) != (column.name in after):
                reasons.append(Reason(column.name, UNPROVEN, "by `types` it came as text, or now comes as text"))
            elif column.name in after and origin.meta != column.meta:
                reasons.append(Reason(column.name, UNPROVEN, f"its text is that of {column.column_type} now"))
        if not reasons:
            return replace(self, fill=fill)
        return replace(self, reasons=(*self.reasons, *reasons), renamed={}, fill={})

    def _column(self, name: str) -> ColumnDefinition:
        return next(column for column in self.after.columns if column.name == name)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A table is gone, or has a name that is not captured."""

    before: TableDefinition
    ddl: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """All rows of a table are gone."""

    table: TableDefinition
    ddl: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A statement that may have changed captured tables, and is not understood.

    The history has forgotten those tables: `definition` gives None until `put` says what they are.
    """

    ddl: str
    why: str
    tables: tuple[tuple[str, str], ...]
    """(database, name) of each captured table that it may have changed."""
    is_all: bool
    """Whether no other captured table can have changed."""


TableEvent = Created | Altered | Dropped | Truncated | Unknown
