"""From the columns that a Delta table has to those that its source has now.

The engine is never asked to cast: it silently cuts 1.5 down to 1. We compare before each write and convert by
ourselves, and only what stays exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_VERSION, SEQ, SOURCE, Pair
from databus.schema import widens_to


def below_pair(rows: pa.Table, pair: Pair) -> pa.ChunkedArray:
    """Which rows have a pair below this one."""
    scn, seq = pair
    scns, seqs = rows.column(COMMIT_VERSION), rows.column(SEQ)
    return pc.or_(pc.less(scns, scn), pc.and_(pc.equal(scns, scn), pc.less(seqs, seq)))


def _is_same(old: pa.Field, new: pa.Field) -> bool:
    return bool(old.name == new.name and old.type == new.type)


@dataclass(frozen=True, slots=True)
class Move:
    """Where a column of the new schema comes from: `old`, an existing column, or nothing, and then it is null."""

    field: pa.Field
    old: pa.Field | None


@dataclass(frozen=True)
class Plan:
    """How to get from the columns a table has to those it shall have; travels to tasks as it is."""

    moves: tuple[Move, ...]
    """The new columns in order."""
    dropped: tuple[str, ...]
    fill: Mapping[str, pa.Array]
    """By name, the value of rows below `below`, in an array of its own, whose way to a task is exact for every type."""
    below: Pair

    @property
    def is_nothing(self) -> bool:
        """Whether the table is right as it is (the order of columns does not matter)."""
        return self.only_adds_nulls and not self.added

    @property
    def added(self) -> tuple[pa.Field, ...]:
        """Columns that did not exist."""
        return tuple(move.field for move in self.moves if move.old is None)

    @property
    def only_adds_nulls(self) -> bool:
        """Whether the schema's words alone change, no row."""
        kept = all(move.old is None or _is_same(move.old, move.field) for move in self.moves)
        return kept and not self.dropped and not self.fill

    @property
    def converted(self) -> tuple[Move, ...]:
        """Columns whose type changes to one that does not hold every value of the old."""
        return tuple(
            move for move in self.moves if move.old is not None and not widens_to(move.old.type, move.field.type)
        )

    def keeps(self, names: Sequence[str]) -> bool:
        """Whether every row keeps the values that it has in these columns."""
        same = {move.field.name for move in self.moves if move.old is not None and _is_same(move.old, move.field)}
        return same.issuperset(names) and not self.fill.keys() & set(names)

    @property
    def schema(self) -> pa.Schema:
        """The new schema."""
        return pa.schema([move.field for move in self.moves])

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Rows of the table in the new schema. Pairs stay as they are."""
        return pa.table([self._column(move, rows) for move in self.moves], schema=self.schema)

    def _column(self, move: Move, rows: pa.Table) -> pa.ChunkedArray:
        if move.old is None:
            column = pa.chunked_array([pa.nulls(rows.num_rows, move.field.type)])
        else:
            column = rows.column(move.old.name).cast(move.field.type, safe=True)
        value = self.fill.get(move.field.name)
        if value is None:
            return column
        return pc.if_else(below_pair(rows, self.below), value[0], column)


def plan(
    have: pa.Schema, want: pa.Schema, *, moved: Mapping[str, str], fill: Mapping[str, pa.Scalar], below: Pair
) -> Plan:
    """Compare. moved: by new name, the old name of a column that stays. fill: by new name, what rows hold in it."""
    moves = []
    for field in want:
        old = moved.get(field.name)
        moves.append(Move(field, have.field(old) if old is not None and old in have.names else None))
    used = {move.old.name for move in moves if move.old is not None}
    dropped = tuple(name for name in have.names if name not in used)
    filled = {
        name: pa.repeat(value.cast(want.field(name).type), 1) for name, value in fill.items() if name in want.names
    }
    return Plan(tuple(moves), dropped, filled, below)


@dataclass(frozen=True)
class Above:
    """Leaves rows whose pair is not below `pair`; travels to tasks as it is."""

    pair: Pair

    def __call__(self, rows: pa.Table) -> pa.Table | None:
        goes = below_pair(rows, self.pair)
        return rows.filter(pc.invert(goes)) if pc.any(goes).as_py() else None


@dataclass(frozen=True)
class SharedPlan:
    """From the columns that a shared table has to those that it needs when one of its sources changes."""

    have: pa.Schema
    schema: pa.Schema
    """The new columns."""
    source: str
    below: Pair
    renamed: Mapping[str, str]
    """Of the source, new name to old."""
    gone: frozenset[str]
    """Columns that it has no more."""
    fill: Mapping[str, pa.Array]
    """By name."""
    empties: bool = False
    """Whether its rows go. All this concerns rows of `source` whose pair is below `below`; types all rows. It travels
    to tasks.
    """

    @property
    def added(self) -> tuple[pa.Field, ...]:
        """Columns that did not exist."""
        return tuple(field for field in self.schema if field.name not in self.have.names)

    @property
    def only_adds_nulls(self) -> bool:
        """Whether no row changes."""
        widened = any(field.type != self.schema.field(field.name).type for field in self.have)
        return not (widened or self.renamed or self.gone or self.fill or self.empties)

    def keeps(self, names: Sequence[str]) -> bool:
        """Whether every row of `source` keeps the values that it has in these columns."""
        same = {field.name for field in self.have if _is_same(field, self.schema.field(field.name))}
        return same.issuperset(names) and not (self.renamed.keys() | self.gone | self.fill.keys()) & set(names)

    @property
    def is_nothing(self) -> bool:
        """Whether the table is right as it is."""
        return self.only_adds_nulls and not self.added

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Rows of the table in the new schema. Pairs stay as they are."""
        mine = pc.and_(pc.equal(rows.column(SOURCE), self.source), below_pair(rows, self.below))
        if self.empties:
            rows = rows.filter(pc.invert(mine))
            mine = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
        return pa.table([self._column(field, rows, mine) for field in self.schema], schema=self.schema)

    def _column(self, field: pa.Field, rows: pa.Table, mine: pa.ChunkedArray) -> pa.ChunkedArray:
        def stored(name: str) -> pa.ChunkedArray:
            if name not in self.have.names:
                return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
            return rows.column(name).cast(field.type, safe=True)

        if field.name in self.fill:
            return pc.if_else(mine, self.fill[field.name][0], stored(field.name))
        if field.name in self.renamed:
            return pc.if_else(mine, stored(self.renamed[field.name]), stored(field.name))
        if field.name in self.gone:
            return pc.if_else(mine, pa.scalar(None, field.type), stored(field.name))
        return stored(field.name)
