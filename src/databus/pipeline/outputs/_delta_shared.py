"""Tables that several sources share (`merge: true`): whose row it is, and room for everybody's columns.

Column `_source` names the source of each row, as `physical/db.table`, and the table is partitioned by it: what one
source does reads and writes files of its own. A source's key tells its rows apart, never those of another. The columns
are those of all sources, each in a type that holds everybody's values; a column that a source has not is null in its
rows, and one that it drops becomes so. Start with `SharedMirror`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import SOURCE, Pair, UnsupportedFeature
from databus.pipeline.outputs._delta_history import History
from databus.pipeline.outputs._delta_mirror import PAIR_FIELDS, Mirror, fill_of, mirror_schema
from databus.pipeline.outputs._delta_table import DeltaTarget
from databus.schema import SchemaChange, TableSchema, converts_exactly, widens_to
from databus.tasks import CopySteps, SharedPlan, Stored, TableControl, Work

SOURCE_FIELD: Final = pa.field(SOURCE, pa.string())
_OURS: Final = frozenset({SOURCE, *(field.name for field in PAIR_FIELDS)})


def with_source(rows: pa.Table, source: str) -> pa.Table:
    """Rows and whose they are."""
    return rows.append_column(SOURCE_FIELD, pa.repeat(pa.scalar(source), rows.num_rows))


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

    @property
    def partition(self) -> dict[str, str]:
        """See `Mirror.partition`."""
        return {SOURCE: self._source}

    def _make_ready(self, table: TableSchema, stored: Stored) -> Work[None]:
        """Make room for a source that has come in, or whose columns the table lacks."""
        steps = self._plan(table, {}, {}, (0, 0))
        if not steps.is_nothing:
            kept = self._target.stored() or Stored((0, 0), stored.log)
            yield from self._carry_out(steps, table.source, "its columns", kept)

    def _follow(self, control: TableControl, stored: Stored) -> Work[None]:
        renamed = {new: old for old, new in (control.body.get("renamed") or {}).items()}
        needs_snapshot = SchemaChange.of_control(control.pair, control.body, None, control.table).needs_snapshot
        steps = CopySteps(renamed, fill_of(control), (), needs_snapshot, control.pair)
        yield from self.follow(control.table, steps, stored, control.body.get("ddl") or "no DDL")

    def follow(self, table: TableSchema, steps: CopySteps, stored: Stored, why: str) -> Work[None]:
        """See `Mirror.follow`; of this source's rows."""
        inexact = [] if steps.inexact else self._inexact_in(table)
        if (steps.inexact or inexact) and not steps.needs_snapshot:
            raise self._cannot_follow(self._source, steps, inexact)
        renamed = {new: old for new, old in steps.moved.items() if new != old}
        found = self._plan(table, renamed, steps.fill, steps.below)
        found = replace(found, gone=self._in_use(found.gone), empties=bool(steps.inexact or inexact))
        if not found.is_nothing:
            yield from self._carry_out(found, table.source, why, stored)

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
            name: pa.repeat(value.cast(want.field(name).type).cast(schema.field(name).type), 1)
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

    def _carry_out(self, steps: SharedPlan, source: str, why: str, stored: Stored) -> Work[None]:
        if steps.only_adds_nulls:
            self._target.add_columns(steps.added, stored)
            return
        self._check_size(source, why)
        yield from self._target.remade(steps, steps.schema, stored)
