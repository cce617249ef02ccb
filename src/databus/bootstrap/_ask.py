"""What a consumer asks for, as far as the rules of answers look at it. Pure."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from databus.filters import StreamFilter, TableRule
from databus.schema import Predicate, TableSchema, frame_schema
from databus.stores import RowsWanted


@dataclass(frozen=True)
class AnswerRequest:
    """Tables of one physical source, behind a filter."""

    physical: str
    sources: frozenset[str]
    """The tables that are asked for, `db.table`, among those that are known."""
    written: Sequence[str] | None = None
    """The names and patterns by which they were; None for all."""
    filter: StreamFilter = field(default_factory=StreamFilter)
    every: bool = False
    """Whether each change is wanted, in the place of what became of them."""
    first_images: bool = False
    """Whether all rows are to be told as removed that were changed: for who knows them by another key than the table's,
    or chooses among them in a way that the filter does not say."""
    by_table: bool = False
    """Whether who asks knows of each table where it stands, so that positions inside of an answer are good for other
    tables, too."""

    @cached_property
    def digest(self) -> str:
        """Of two that ask for the same it is the same, whatever tables are known meanwhile."""
        written = None if self.written is None or self.by_table else sorted(set(self.written))
        rules = [[rule.tables, rule.where, rule.columns] for rule in self.filter.rules]
        rules += [[rule.tables, rule.where, rule.hide] for rule in self.filter.forced]
        asked = [written, rules, str(self.filter.partition), self.by_table, self.first_images]
        text = json.dumps(asked, separators=(",", ":"))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def conditions(self, source: str) -> frozenset[str]:
        """The columns, in small letters, by which rows of a table are chosen."""
        wheres = [rule.where for rule in self._rules(source) if rule.where is not None]
        return frozenset(name.lower() for where in wheres for name in Predicate.parse(where).columns)

    def projection(self, source: str) -> frozenset[str] | None:
        """The columns, in small letters, that are asked for of a table; None for all."""
        chosen = [rule.columns for rule in self._rules(source) if rule.columns is not None]
        return frozenset(name.lower() for names in chosen for name in names) if chosen else None

    def wanted(self, source: str, table: TableSchema, *, is_told: bool = False) -> RowsWanted | None:
        """What is wanted of a table's rows in this definition; None for all. is_told: whoever asks is told how much
        that is. Bounds are of all rows, so conditions of his own would tell of those that are not there for him.
        """
        rules, forced = self.filter.about(f"{self.physical}/{source}")
        hides_rows = is_told and any(rule.where is not None for rule in forced)
        rules = forced if hides_rows else (*rules, *forced)
        conditions = tuple(Predicate.parse(rule.where) for rule in rules if rule.where is not None)
        projection = self.projection(source)
        if not conditions and projection is None:
            return None
        columns = None if projection is None else projection | self.conditions(source) | {*map(str.lower, table.key)}
        return RowsWanted(frame_schema(table), conditions, columns)

    def hidden(self, source: str) -> frozenset[str]:
        """The columns, in small letters, that are not there for who asks."""
        return frozenset(name.lower() for rule in self._rules(source) for name in rule.hide)

    def _rules(self, source: str) -> Collection[TableRule]:
        rules, forced = self.filter.about(f"{self.physical}/{source}")
        return (*rules, *forced)
