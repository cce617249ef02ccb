"""What the filters of a branch do to columns, and what a change of the table's schema therefore does to a copy.

A copy behind filters holds rows that were filtered before a change of the schema. The rows after it were filtered in
the new one. Both are the same copy only if each column of the result comes from where it came from before, and if the
filters still judge the same values. `SchemaAhead.steps` says so, column by column, or why not. No row is looked at.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from databus.core import Pair, UnrepresentableValue
from databus.formats import scalar_of
from databus.schema import ColumnOrigin, SchemaChange, TableSchema, origins


@dataclass(frozen=True)
class Lineage:
    """What becomes of a table's columns."""

    columns: Mapping[str, str | None]
    """By name in the result, the column that it is, unchanged; None if it is computed."""
    reads: frozenset[str] = frozenset()
    """Columns on which computed ones and the choice of rows depend."""
    is_opaque: bool = False
    """Whether it is unknown which those are."""
    hashed: Mapping[str, str] = field(default_factory=dict)
    """Of the computed ones, by name, the column whose values it tells apart as that does."""
    made_of: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of the computed ones, by name, the columns that it is computed from; absent where they are unknown."""

    def origins(self, name: str) -> frozenset[str] | None:
        """The columns that one of the result comes from; None where they are unknown."""
        if self.is_opaque:
            return None
        column = self.columns[name]
        return self.made_of.get(name) if column is None else frozenset([column])

    def _all_origins(self, names: frozenset[str] | None) -> frozenset[str] | None:
        """Those of several together."""
        origins_of_names = [self.origins(name) for name in names or ()]
        known = [origins for origins in origins_of_names if origins is not None]
        return None if names is None or len(known) < len(origins_of_names) else frozenset[str]().union(*known)

    @classmethod
    def unchanged(cls, names: Sequence[str]) -> "Lineage":
        """Where there is no filter."""
        return cls({name: name for name in names})

    def then(self, following: "Lineage") -> "Lineage":
        """Of this filter and, behind it, another."""
        columns = {name: None if old is None else self.columns[old] for name, old in following.columns.items()}
        read = {self.columns[name] for name in following.reads}
        apart = {name: old for name, old in {**following.columns, **following.hashed}.items() if old is not None}
        sources = {name: self.columns[old] or self.hashed.get(old) for name, old in apart.items()}
        computed = {name: following.origins(name) for name in following.columns if columns[name] is None}
        made = {name: origins for name, olds in computed.items() if (origins := self._all_origins(olds)) is not None}
        return Lineage(
            columns,
            self.reads | {name for name in read if name is not None},
            self.is_opaque or following.is_opaque,
            {name: old for name, old in sources.items() if old is not None and columns[name] is None},
            made,
        )

    def key(self, key: Sequence[str]) -> tuple[str, ...]:
        """The columns of the result that tell its rows apart where these tell apart those that came in; empty where one
        of them is left out or computed, since two keys may have become one. Of an opaque filter, those of its names.

        >>> Lineage({"number": "id", "id": "customer"}).key(["id"]), Lineage({"id": None}).key(["id"])
        (('number',), ())
        >>> Lineage({"id": None}, hashed={"id": "id"}).key(["id"])
        ('id',)
        """
        if self.is_opaque:
            return tuple(key) if set(key) <= self.columns.keys() else ()
        apart = {**self.columns, **self.hashed}
        kept = [next((new for new in (name, *apart) if apart.get(new) == name), None) for name in key]
        return tuple(name for name in kept if name is not None) if None not in kept else ()


LineageOf = Callable[[Sequence[str]], Lineage]
"""The lineage of a branch over a table with these columns. Raises KeyError for a column that a filter names and the
table has not."""


@dataclass(frozen=True)
class CopySteps:
    """How to get from what a copy holds to rows of today's schema."""

    moved: Mapping[str, str]
    """By name of now, the name that the column has in the copy."""
    fill: Mapping[str, pa.Scalar]
    """By name, what every row of the copy holds."""
    inexact: Sequence[str]
    """Why that is not all; empty where it is."""
    needs_snapshot: bool
    """Whether the table is read again after one of the changes."""
    below: Pair
    """A pair above all rows of the copy that they are about."""


@dataclass(frozen=True)
class SchemaAhead:
    """Changes of a table's schema that stand later in the log than rows which have been made through them already."""

    changes: tuple[SchemaChange, ...]
    lineage_of: LineageOf = Lineage.unchanged

    @property
    def through(self) -> Pair:
        """The pair of the last change."""
        return self.changes[-1].pair

    def steps(self, above: Pair) -> CopySteps | None:
        """What a copy has to do that has followed all changes up to `above`; None if that is nothing."""
        pending = [change for change in self.changes if change.pair > above]
        return _Following(pending, self.lineage_of).steps() if pending else None


@dataclass
class _Following:
    pending: Sequence[SchemaChange]
    lineage_of: LineageOf
    moved: dict[str, str] = field(default_factory=dict)
    fill: dict[str, pa.Scalar] = field(default_factory=dict)
    inexact: list[str] = field(default_factory=list)

    def steps(self) -> CopySteps:
        before, after = self.pending[0].before, self.pending[-1].after
        if before is None:
            self.inexact.append("the columns that the table had before are unknown")
        else:
            self._follow(before, after)
        needs_snapshot = any(change.needs_snapshot for change in self.pending)
        return CopySteps(self.moved, self.fill, self.inexact, needs_snapshot, self.pending[0].pair)

    def _follow(self, before: TableSchema, after: TableSchema) -> None:
        origin_of = origins({column.name: column.type for column in before.columns}, self.pending)
        new = self.lineage_of(after.names)
        try:
            old = self.lineage_of(before.names)
        except KeyError as error:
            self.inexact.append(f"a filter names column {error.args[0]!r}, which did not exist before")
            return
        judged = set(before.names) & set(after.names) if new.is_opaque else new.reads
        self.inexact += [
            f"the filters read column {name!r}, and what has that name now is not what had it before"
            for name in sorted(judged)
            if not origin_of[name].is_still(name)
        ]
        for name, column in new.columns.items():
            if column is not None:
                self._column(name, column, origin_of[column], old, is_opaque=new.is_opaque)
            elif name in old.columns and old.columns[name] is None:
                self.moved[name] = name  # computed from columns that are what they were, or `inexact` says so
            else:
                self.inexact.append(f"column {name!r} was not computed before")

    def _column(self, name: str, column: str, origin: ColumnOrigin, old: Lineage, *, is_opaque: bool) -> None:
        """A column of the result that is a column of the table."""
        if origin.column is None:
            if is_opaque and origin.value is not None:
                self.inexact.append(f"what the function makes of the new column {column!r} is unknown")
            elif origin.value is not None:
                self._fill(name, origin)
            return
        held = [held_name for held_name, its in old.columns.items() if its == origin.column]
        if is_opaque and origin.column != column:
            self.inexact.append(f"what the function makes of {origin.column!r} under its present name is unknown")
        elif held:
            self.moved[name] = name if name in held else held[0]
        else:
            self.inexact.append(f"the copy does not have what is called {name!r} now")

    def _fill(self, name: str, origin: ColumnOrigin) -> None:
        try:
            self.fill[name] = scalar_of(origin.value, origin.types)
        except UnrepresentableValue as error:
            self.inexact.append(f"column {name!r} was filled with {error}")
