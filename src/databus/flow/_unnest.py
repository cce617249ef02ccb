"""Filter over whole tables that makes a row of each element of a JSON column: the lines of an order, say. Pure.

It sees whole updates, as those in `_change_filters` do. The rows of an update that are in its array before and after it
are updates, those that left it deletes, and those that came inserts; so a mirror holds what is in the arrays now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import numpy as np
import pyarrow as pa

from databus.core import COMMIT_VERSION, SEQ, ConfigError, UnrepresentableValue
from databus.filters import TableStep, begins_update
from databus.flow._filters import TableFilter
from databus.flow._lineage import Lineage
from databus.formats import Elements, elements
from databus.schema import Column, TableSchema, column_named, forms_of

_LEFT: Final = 0
_STAYS: Final = 1
_CAME: Final = 2


@dataclass(frozen=True, kw_only=True)
class Unnest(TableFilter):
    """Makes rows of the objects in a JSON column, with the columns of the table's key and of `keep` before them."""

    column: str
    """It holds text."""
    ordinal: str
    """The column with each object's place in its array, from 1 on; the key is the table's and this."""
    members: Mapping[str, str]
    """By name, the type of each column that is a member of the objects."""
    required: tuple[str, ...] = ()
    """Those of them that have to be there."""
    keep: tuple[str, ...] = ()
    on_error: Literal["stop", "null"] = "stop"
    """What to do about a document that does not fit; `null` has what does not fit be NULL, and no rows of a document
    that is no JSON.
    """
    needs_tables: ClassVar[bool] = True
    hides = False

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return (self.column, *self.keep)

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TableFilter.columns_left`. The key, which is not known here, comes before them."""
        if any(column_named(name, names) is None for name in self.names):
            return [*names]
        return [*(column_named(name, names) or name for name in self.keep), self.ordinal, *self.members]

    def _lineage(self, names: Sequence[str]) -> Lineage:
        return Lineage(dict.fromkeys(self.columns_left(names)), frozenset(names))

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`. In rows from before the table had the column there are no objects."""
        if any(column is None for column in missing.values()):
            return TableStep.unchanged(table)
        if not table.key:
            raise ConfigError("it has no key, so the row that an object came from is unknown")
        if not table.first_images:
            raise ConfigError(
                "its updates may come without first images, so which objects left the array is unknown. Have "
                "the database log whole rows, and say `first_images: true` in the source"
            )
        later = {column_name: column for column_name, column in missing.items() if column is not None}
        columns_of = {
            name: later.get(name) or table.column(column_named(name, table.names) or name) for name in self.names
        }
        document = columns_of[self.column]
        if document.type != "string":
            raise ConfigError(f"column: {document.name} is {document.type}; JSON is text")
        kept = [table.column(name) for name in table.key]
        kept += [column for name in self.keep if (column := columns_of[name]).name not in table.key]
        members = [Column(name, kind, name not in self.required) for name, kind in self.members.items()]
        columns = (*kept, Column(self.ordinal, "int32", nullable=False), *members)
        self._check_names([column.name for column in columns])
        after = TableSchema(table.source, columns, (*table.key, self.ordinal))
        names = [column.name for column in kept]
        bus = len(table.names)

        def apply(rows: pa.Table) -> pa.Table:
            for column in later.values():
                rows = rows.append_column(column.name, pa.nulls(rows.num_rows, forms_of(column.type).sink))
            objects = self._objects(table, rows, document.name, members)
            order = _order(rows, objects)
            of = pa.array(objects.of[order])
            place = pa.array(order)
            made = [
                values.take(place).cast(forms_of(column.type).sink)
                for values, column in zip(objects.columns, members, strict=True)
            ]
            parent = rows.select([*names, *rows.column_names[bus : rows.num_columns - len(later)]]).take(of)
            taken = parent.columns
            ordinals = pa.array(objects.ordinals[order])
            return pa.table(
                [*taken[: len(names)], ordinals, *made, *taken[len(names) :]],
                names=[*after.names, *parent.column_names[len(names) :]],
            )

        own = {name: name for name in names if name in table.names}
        return TableStep(table, after, apply, own, reads=frozenset([document.name]), selects=True)

    def _check_names(self, names: Sequence[str]) -> None:
        twice = sorted({name for name in names if sum(other.lower() == name.lower() for other in names) > 1})
        if twice:
            raise ConfigError(
                f"columns that come out would both be called {twice[0]}; give `ordinal` another name, or "
                "leave that member out"
            )

    def _objects(self, table: TableSchema, rows: pa.Table, name: str, members: Sequence[Column]) -> Elements:
        documents = rows.column(name).cast(pa.large_string())
        objects = elements(pa.concat_arrays(documents.chunks or [pa.array([], pa.large_string())]), members)
        place, reason = (None, "") if objects.problem is None else objects.problem
        for column, values in zip(members, objects.columns, strict=True):
            if place is None and not column.nullable and values.null_count:
                at = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
                place = int(objects.of[at])
                reason = f"element {objects.ordinals[at]}: {column.name}: is missing or null, and `required` names it"
        if place is not None and self.on_error == "stop":
            pair = rows.column(COMMIT_VERSION)[place].as_py(), rows.column(SEQ)[place].as_py()
            key = ", ".join(f"{column} {rows.column(column)[place].as_py()}" for column in table.key)
            raise UnrepresentableValue(
                f"{table.source}: the JSON in {name} of the row with {key}, at {pair} (SCN, _seq): {reason}. Say "
                "`on_error: null` in the filter to have what does not fit be NULL; or have a `where` before it leave "
                "such rows out"
            )
        return objects


def _order(rows: pa.Table, objects: Elements) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """The order in which objects go on: of an update, those that leave it, then both images of each that stays, side by
    side, then those that come. The first of an update has its lower pair, and the last its higher one, where it has it.
    """
    begins = begins_update(rows)
    if not begins.any():
        return np.arange(len(objects.of))
    counts = np.bincount(objects.of, minlength=rows.num_rows)
    ends = np.append(False, begins[:-1])
    both = np.zeros(rows.num_rows, np.int64)
    (at,) = np.nonzero(begins)
    both[at] = both[at + 1] = np.minimum(counts[at], counts[at + 1])
    phase = np.full(len(objects.of), _STAYS)
    is_over = objects.ordinals > both[objects.of]
    phase[is_over & begins[objects.of]] = _LEFT
    phase[is_over & ends[objects.of]] = _CAME
    change = objects.of - ends[objects.of]
    ordinals = np.where(begins[objects.of] | ends[objects.of], objects.ordinals, 0)
    return np.lexsort((objects.of, ordinals, phase, change))
