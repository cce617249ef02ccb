"""From the columns that a Delta table has to those that its source has now.

The engine is never asked to cast: it silently cuts 1.5 down to 1. We compare before each write and convert by
ourselves, and only what stays exact.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_VERSION, SEQ, Pair
from databus.schema import widens_to


def below_pair(batch: pa.RecordBatch, pair: Pair) -> pa.Array:
    """Which rows have a pair below this one."""
    scn, seq = pair
    scns, seqs = batch.column(COMMIT_VERSION), batch.column(SEQ)
    return pc.or_(pc.less(scns, scn), pc.and_(pc.equal(scns, scn), pc.less(seqs, seq)))


@dataclass(frozen=True, slots=True)
class Move:
    """Where a column of the new schema comes from: `old`, an existing column, or nothing, and then it is null."""

    field: pa.Field
    old: pa.Field | None


@dataclass(frozen=True)
class Plan:
    """How to get from the columns a table has to those it shall have.

    moves: the new columns in order. fill: by name, the value of rows below `below`.
    """

    moves: tuple[Move, ...]
    dropped: tuple[str, ...]
    fill: Mapping[str, pa.Scalar]
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
        kept = all(m.old is None or (m.old.name == m.field.name and m.old.type == m.field.type) for m in self.moves)
        return kept and not self.dropped and not self.fill

    @property
    def converted(self) -> tuple[Move, ...]:
        """Columns whose type changes to one that does not hold every value of the old."""
        return tuple(
            move for move in self.moves if move.old is not None and not widens_to(move.old.type, move.field.type)
        )

    @property
    def schema(self) -> pa.Schema:
        """The new schema."""
        return pa.schema([move.field for move in self.moves])

    def apply(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The table's rows in the new schema. Pairs stay as they are."""
        for batch in batches:
            yield pa.RecordBatch.from_arrays([self._column(move, batch) for move in self.moves], schema=self.schema)

    def _column(self, move: Move, batch: pa.RecordBatch) -> pa.Array:
        if move.old is None:
            column = pa.nulls(batch.num_rows, move.field.type)
        else:
            column = batch.column(move.old.name).cast(move.field.type, safe=True)
        value = self.fill.get(move.field.name)
        if value is None:
            return column
        return pc.if_else(below_pair(batch, self.below), value, column)


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
    filled = {name: value.cast(want.field(name).type) for name, value in fill.items() if name in want.names}
    return Plan(tuple(moves), dropped, filled, below)
