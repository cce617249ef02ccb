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
from databus.flow import CopySteps, KeyChoice, Stored
from databus.schema import TableSchema, converts_exactly, widens_to
from databus.sinks.delta._history import HistoryTable
from databus.sinks.delta._mirror import PAIR_FIELDS, Mirror, mirror_schema
from databus.sinks.delta._moves import SharedPlan
from databus.sinks.delta._rewrite_job import Work
from databus.sinks.delta._table import DeltaTarget

SOURCE_FIELD: Final = pa.field(SOURCE, pa.string())
_OURS: Final = frozenset({SOURCE, *(field.name for field in PAIR_FIELDS)})


def with_source(rows: pa.Table, source: str) -> pa.Table:
    """Rows and whose they are."""
    return rows.append_column(SOURCE_FIELD, pa.repeat(pa.scalar(source), rows.num_rows))


class SharedHistory(HistoryTable):
    """The history of one source in a table that it shares."""

    def __init__(
        self, target: DeltaTarget, source: str, *, all_controls: bool, retypes: bool, how_to_reset: str
    ) -> None:
        super().__init__(target, all_controls=all_controls, retypes=retypes, how_to_reset=how_to_reset)
        self._source = source

    def _named(self, rows: pa.Table) -> pa.Table:
        return with_source(rows, self._source)

    @property
    def _name(self) -> str:
        return self._source

    @property
    def partition(self) -> dict[str, str]:
        """See `HistoryTable.partition`."""
        return {SOURCE: self._source}


class SharedMirror(Mirror):
    """The mirror of one source in a table that it shares. source: its full name, as `_source` has it."""

    def __init__(
        self, target: DeltaTarget, source: str, *, key: KeyChoice, on_gap: str, rows_max: int, how_to_reset: str
    ) -> None:
        super().__init__(target, key=key, on_gap=on_gap, rows_max=rows_max, how_to_reset=how_to_reset)
        self._source = source

    @property
    def partition(self) -> dict[str, str]:
        """See `Mirror.partition`."""
        return {SOURCE: self._source}

    def _make_ready(self, table: TableSchema, stored: Stored) -> Work[None]:
        """Make room for a source that has come in, or whose columns the table lacks."""
        steps = self._plan(table, {}, {}, (0, 0))
        if not steps.is_nothing:
            kept = self._target.stored() or stored.nothing
            yield from self._carry_out(steps, table, "its columns", kept)

    def follow(self, table: TableSchema, steps: CopySteps, stored: Stored, why: str) -> Work[None]:
        """See `Mirror.follow`; of this source's rows."""
        inexact = [] if steps.inexact else self._inexact_in(table, steps.moved)
        if (steps.inexact or inexact) and not steps.needs_snapshot:
            raise self._cannot_follow(self._source, steps, inexact)
        columns = self._plan(table, steps.moved, steps.fill, steps.below)
        columns = replace(columns, gone=self._in_use(columns.gone), empties=bool(steps.inexact or inexact))
        if not columns.is_nothing:
            yield from self._carry_out(columns, table, why, stored)

    def _inexact_in(self, table: TableSchema, moved: Mapping[str, str]) -> list[str]:
        """Columns in which this source has values that are none of its new types."""
        have, want = self._target.schema(), mirror_schema(table)
        moves = [(field, have.field(moved[field.name])) for field in want if moved.get(field.name) in have.names]
        return [
            new.name
            for new, old in moves
            if new.type != old.type and widens_to(new.type, old.type)
            if not all(converts_exactly(batch.column(old.name), new.type) for batch in self._mine([old.name]))
        ]

    def _mine(self, names: Iterable[str]) -> Iterator[pa.RecordBatch]:
        """Columns of this source's rows."""
        for batch in self._target.batches([*names, SOURCE]):
            yield batch.filter(pc.equal(batch.column(SOURCE), self._source))

    def _in_use(self, names: frozenset[str]) -> frozenset[str]:
        """Those of these columns in which rows of this source have values."""
        in_use: set[str] = set()
        for batch in self._mine(names) if names else ():
            in_use |= {name for name in names if batch.column(name).null_count < batch.num_rows}
        return frozenset(in_use)

    def _plan(
        self, table: TableSchema, moved: Mapping[str, str], fill: Mapping[str, pa.Scalar], below: Pair
    ) -> SharedPlan:
        """moved: by name of now, the name that a column of this source had before; others are new, and null or filled
        in its rows below `below`.
        """
        have, want = self._target.schema(), mirror_schema(table)
        renaming = {new: old for new, old in moved.items() if new != old and old in have.names and new in want.names}
        fields = []
        for field in (*have, *(other for other in want if other.name not in have.names)):
            kinds = [schema.field(field.name).type for schema in (have, want) if field.name in schema.names]
            if field.name in renaming:
                kinds.append(have.field(renaming[field.name]).type)
            fields.append(pa.field(field.name, self._room(field.name, kinds, table)))
        schema = pa.schema(fields)
        kept = {*moved, *fill} & set(want.names) | _OURS
        gone = frozenset(have.names) - kept if below > (0, 0) else frozenset()
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

    def _carry_out(self, steps: SharedPlan, table: TableSchema, why: str, stored: Stored) -> Work[None]:
        if steps.only_adds_nulls:
            self._target.add_columns(steps.added, stored)
            return
        self._check_size(table.source, why)
        marks = self._true_marks(table, steps)
        yield from self._target.remade(steps, steps.schema, stored, marks)
