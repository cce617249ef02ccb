"""What an answer says of the time before its state: controls, rows of tables without a key, and removals. Pure.

A removal is a delete, or the first image of an update after which the row is not what, or where, it was for who asks.
It comes as a delete, at its own pair; the row that is there in its place comes with the state, and is newer.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.bootstrap._plan import StateAnswer, TableExtent
from databus.core import CHANGE_TYPE, ChangeType, ControlKind
from databus.filters import Flags, TableCut, begins_update, differs
from databus.filters import row_hashes as hashes_of
from databus.schema import NEEDS_SNAPSHOT, TableSchema
from databus.stores import LoggedControl


@dataclass(frozen=True)
class Told:
    """What an answer says of one table's time before the state."""

    answer: StateAnswer
    source: str
    is_keyless: bool
    cut_of: Callable[[TableSchema], TableCut] | None = None
    """What the asker's filter makes of a definition; None where it has none."""
    all_first_images: bool = False
    """Whether every first image counts as a removal."""

    def control(self, control: LoggedControl) -> LoggedControl | None:
        """A control as the answer has it; None if it has not."""
        answer, kind = self.answer, self.answer.kinds.get(self.source)
        if answer.is_new or self.is_keyless:
            return control if self.is_keyless else None
        if control.kind is ControlKind.DROP:
            return control
        if control.kind is not ControlKind.SCHEMA or answer.is_lost:
            return None
        if kind is TableExtent.SINCE:
            return control  # of a class that needs no snapshot: else the table would be given whole
        # the table comes whole after it: so nothing that filters make of its older rows has to be read again
        return replace(control, body={**control.body, "class": NEEDS_SNAPSHOT})

    def rows(self, table: TableSchema, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Rows of a table, in its frames' schema, as the answer has them; None where nothing is left."""
        if self.is_keyless:
            return rows
        if self.answer.is_new or self.answer.kinds.get(self.source) is not TableExtent.SINCE:
            return None
        removed = rows.filter(pa.array(self._removes(table, rows)))
        if not removed.num_rows:
            return None
        deletes = pa.repeat(pa.scalar(int(ChangeType.DELETE), pa.int8()), removed.num_rows)
        return removed.set_column(
            removed.schema.get_field_index(CHANGE_TYPE), removed.schema.field(CHANGE_TYPE), deletes
        )

    def _removes(self, table: TableSchema, rows: pa.RecordBatch) -> Flags:
        kinds, begins = np.asarray(rows.column(CHANGE_TYPE)), begins_update(rows)
        # a first image without its second, whose row group was left out, may be a removal: so it is one
        is_first = kinds == ChangeType.UPDATE_PREIMAGE
        removes: Flags = (kinds == ChangeType.DELETE) | (is_first if self.all_first_images else is_first & ~begins)
        before = np.flatnonzero(begins)
        if len(before) and not self.all_first_images:
            removes[before[self._moved(table, rows, before)]] = True
        return removes

    def _moved(self, table: TableSchema, rows: pa.RecordBatch, before: npt.NDArray[np.int64]) -> Flags:
        """Of each first image, whether the row has another key afterwards, or is not the asker's any more."""
        moved = np.zeros(len(before), bool)
        for name in table.key:
            moved |= differs(rows.column(name), before)
        cut = None if self.cut_of is None else self.cut_of(table)
        if cut is not None and cut.step.selects:
            hashes = None if cut.partition is None else hashes_of(table, rows)
            for passes in cut.passing(rows, hashes):
                if passes is not None:
                    moved |= ~passes[before + 1]
        return moved
