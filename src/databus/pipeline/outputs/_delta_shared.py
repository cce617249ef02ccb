"""Tables that several sources share (`merge: true`): whose row it is, and room for everybody's columns.

Column `_source` names the source of each row, as `physical/db.table`, and the table is partitioned by it: what one
source does reads and writes files of its own. A source's key tells its rows apart, never those of another. The columns
are those of all sources, each in a type that holds everybody's values; a column that a source has not is null in its
rows, and one that it drops becomes so. Start with `SharedMirror`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import SOURCE, Pair, UnsupportedFeature
from databus.pipeline.outputs._delta_history import History
from databus.pipeline.outputs._delta_mirror import PAIR_FIELDS, Mirror, fill_of, mirror_schema
from databus.pipeline.outputs._delta_schema import below_pair
from databus.pipeline.outputs._delta_table import DeltaTarget
from databus.schema import SchemaChange, TableSchema, converts_exactly, widens_to
from databus.tasks import CopySteps, Stored, TableControl, fitted_rows

SOURCE_FIELD: Final = pa.field(SOURCE, pa.string())
_OURS: Final = frozenset({SOURCE, *(field.name for field in PAIR_FIELDS)})


def with_source(rows: pa.Table, source: str) -> pa.Table:
    """Rows and whose they are."""
    return rows.append_column(SOURCE_FIELD, pa.repeat(pa.scalar(source), rows.num_rows))


@dataclass(frozen=True)
class SharedPlan:
    """From the columns that a shared table has to those that it needs when one of its sources changes.

    schema: the new columns. renamed: of the source, new name to old. gone: columns that it has no more. fill: by name.
    empties: whether its rows go. All this concerns rows of `source` whose pair is below `below`; types all rows.
    """

    have: pa.Schema
    schema: pa.Schema
    source: str
    below: Pair
    renamed: Mapping[str, str]
    gone: frozenset[str]
    fill: Mapping[str, pa.Scalar]
    empties: bool = False

    @property
    def added(self) -> tuple[pa.Field, ...]:
        """Columns that did not exist."""
        return tuple(field for field in self.schema if field.name not in self.have.names)

    @property
    def only_adds_nulls(self) -> bool:
        """Whether no row changes."""
        widened = any(field.type != self.schema.field(field.name).type for field in self.have)
        return not (widened or self.renamed or self.gone or self.fill or self.empties)

    @property
    def is_nothing(self) -> bool:
        """Whether the table is right as it is."""
        return self.only_adds_nulls and not self.added

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the table in the new schema. Pairs stay as they are."""
        mine = pc.and_(pc.equal(batch.column(SOURCE), self.source), below_pair(batch, self.below))
        if self.empties:
            batch, mine = (
                batch.filter(pc.invert(mine)),
                pa.repeat(pa.scalar(False), pc.sum(pc.invert(mine)).as_py() or 0),
            )
        return pa.RecordBatch.from_arrays(
            [self._column(field, batch, mine) for field in self.schema], self.schema.names
        )

    def _column(self, field: pa.Field, batch: pa.RecordBatch, mine: pa.Array) -> pa.Array:
        def stored(name: str) -> pa.Array:
            if name not in self.have.names:
                return pa.nulls(batch.num_rows, field.type)
            return batch.column(name).cast(field.type, safe=True)

        if field.name in self.fill:
            return pc.if_else(mine, self.fill[field.name], stored(field.name))
        if field.name in self.renamed:
            return pc.if_else(mine, stored(self.renamed[field.name]), stored(field.name))
        if field.name in self.gone:
            return pc.if_else(mine, pa.scalar(None, field.type), stored(field.name))
        return stored(field.name)


class SharedHistory(History):
    """The history of one source in a table that it shares."""

    def __init__(self, target: DeltaTarget, source: str, *, how_to_reset: str) -> None:
        super().__init__(target, how_to_reset=how_to_reset)
        self._source = source

    def _named(self, rows: pa.Table) -> pa.Table:
        return with_source(rows, self._source)

    @property
    def _name(self) -> str:
        return self._source

    @property
    def partition(self) -> dict[str, str]:
        """See `History.partition`."""
        return {SOURCE: self._source}


class SharedMirror(Mirror):
    """The mirror of one source in a table that it shares. source: its full name, as `_source` has it."""

    def __init__(self, target: DeltaTarget, source: str, *, on_gap: str, rows_max: int, how_to_reset: str) -> None:
        super().__init__(target, on_gap=on_gap, rows_max=rows_max, how_to_reset=how_to_reset)
        self._source = source
        self._is_mine = f"{SOURCE} = {_literal(source)}"

    def _only(self, predicate: str) -> str:
        return f"{self._is_mine} AND {predicate}"

    def _matches(self, images: pa.Table, key: Sequence[str]) -> str:
        return f"target.{self._is_mine} AND {super()._matches(images, key)}"

    def _fitted(self, images: pa.Table) -> pa.Table:
        """Everybody's columns, in the table's types."""
        return fitted_rows(with_source(images, self._source), self._target.schema())

    def _make_ready(self, table: TableSchema, stored: Stored) -> None:
        """Make room for a source that has come in, or whose columns the table lacks."""
        steps = self._plan(table, {}, {}, (0, 0))
        if not steps.is_nothing:
            self._carry_out(steps, table.source, "its columns", self._target.stored() or Stored((0, 0), stored.log))

    def _follow(self, control: TableControl, stored: Stored) -> None:
        renamed = {new: old for old, new in (control.body.get("renamed") or {}).items()}
        needs_snapshot = SchemaChange.of_control(control.pair, control.body, None, control.table).needs_snapshot
        steps = CopySteps(renamed, fill_of(control), (), needs_snapshot, control.pair)
        self.follow(control.table, steps, stored, control.body.get("ddl") or "no DDL")

    def follow(self, table: TableSchema, steps: CopySteps, stored: Stored, why: str) -> None:
        """See `Mirror.follow`; of this source's rows."""
        inexact = [] if steps.inexact else self._inexact_in(table)
        if (steps.inexact or inexact) and not steps.needs_snapshot:
            raise self._cannot_follow(self._source, steps, inexact)
        renamed = {new: old for new, old in steps.moved.items() if new != old}
        found = self._plan(table, renamed, steps.fill, steps.below)
        found = replace(found, gone=self._in_use(found.gone), empties=bool(steps.inexact or inexact))
        if not found.is_nothing:
            self._carry_out(found, table.source, why, stored)

    def _inexact_in(self, table: TableSchema) -> list[str]:
        """Columns in which this source has values that are none of its new types."""
        have, want = self._target.schema(), mirror_schema(table)
        narrower = [field for field in want if field.name in have.names and have.field(field.name).type != field.type]
        moves = [field for field in narrower if widens_to(field.type, have.field(field.name).type)]
        return [
            name
            for name, kind in ((field.name, field.type) for field in moves)
            if not all(converts_exactly(batch.column(name), kind) for batch in self._mine([name]))
        ]

    def _mine(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Columns of this source's rows."""
        for batch in self._target.batches([*names, SOURCE]):
            yield batch.filter(pc.equal(batch.column(SOURCE), self._source))

    def _in_use(self, names: frozenset[str]) -> frozenset[str]:
        """Those of these columns in which rows of this source have values."""
        found: set[str] = set()
        for batch in self._mine(names) if names else ():
            found |= {name for name in names if batch.column(name).null_count < batch.num_rows}
        return frozenset(found)

    def _plan(
        self, table: TableSchema, renamed: Mapping[str, str], fill: Mapping[str, pa.Scalar], below: Pair
    ) -> SharedPlan:
        have, want = self._target.schema(), mirror_schema(table)
        renaming = {new: old for new, old in renamed.items() if old in have.names and new in want.names}
        fields = []
        for field in (*have, *(each for each in want if each.name not in have.names)):
            kinds = [each.field(field.name).type for each in (have, want) if field.name in each.names]
            if field.name in renaming:
                kinds.append(have.field(renaming[field.name]).type)
            fields.append(pa.field(field.name, self._room(field.name, kinds, table)))
        schema = pa.schema(fields)
        gone = frozenset(have.names) - set(want.names) - _OURS if below > (0, 0) else frozenset()
        values = {
            name: value.cast(want.field(name).type).cast(schema.field(name).type)
            for name, value in fill.items()
            if name in want.names
        }
        return SharedPlan(have, schema, self._source, below, renaming, gone, values)

    def _room(self, name: str, kinds: Sequence[pa.DataType], table: TableSchema) -> pa.DataType:
        """The one of these types that holds every value of them all."""
        for kind in kinds:
            if all(widens_to(other, kind) for other in kinds):
                return kind
        raise UnsupportedFeature(
            f"{self._target.path}: column {name} of {self._source} is {kinds[-1]}, and the table that it shares holds "
            f"{kinds[0]}, neither of which holds every value of the other. Give {table.source} a table of its own "
            f"(another output, or `{{physical}}` in the path). Or, if all its sources have the new type now: "
            f"{self._how_to_reset}"
        )

    def _carry_out(self, steps: SharedPlan, source: str, why: str, stored: Stored) -> None:
        if steps.only_adds_nulls:
            self._target.add_columns(steps.added, stored)
            return
        self._check_size(source, why)
        self._target.overwrite(steps.schema, map(steps.apply, self._target.batches()), stored)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
