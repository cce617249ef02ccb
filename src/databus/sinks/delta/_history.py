"""Histories: every change, appended. A history never fills, drops or renames.

A column that did not exist is null, a dropped one stays and is null from then on, a renamed one is a new column.
`truncate`, `drop` and `gap` are rows too, with that word as `_change_type` and the table's columns null, since what a
history says of the rows before would be wrong without them. With `controls: all` every control is a row, and `_control`
has its JSON and the table's definition, so that the whole stream can be given again from the table.
"""

import json
from typing import Any, Final

import pyarrow as pa

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    CONTROL,
    SEQ,
    ControlKind,
    LimitExceeded,
    UnsupportedFeature,
)
from databus.flow import (
    Restage,
    StagedRows,
    Stored,
    TableControl,
    as_stored,
    fitted_rows,
    retyped_name,
    retyping,
    stored_name,
    user_rows_schema,
)
from databus.schema import TableSchema, widens_to
from databus.sinks.delta._moves import Move, Plan
from databus.sinks.delta._rewrite_job import Work
from databus.sinks.delta._table import DeltaTarget

RECORDED: Final = (ControlKind.TRUNCATE, ControlKind.DROP, ControlKind.GAP)
_CONTROL_FIELD: Final = pa.field(CONTROL, pa.string())


def control_row(control: TableControl, *, has_body: bool) -> pa.Table:
    """A control as a row of a history. has_body: whether with its JSON and the table's definition."""
    scn, seq = control.pair
    row: dict[str, Any] = {CHANGE_TYPE: control.kind.value, COMMIT_VERSION: scn, SEQ: seq}
    schema = user_rows_schema(control.table)
    if has_body:
        schema = schema.append(_CONTROL_FIELD)
        row[COMMIT_TIMESTAMP] = control.commit_us or None  # what the rows were at a time depends on it
        row[CONTROL] = json.dumps({**control.body, "table": control.table.to_json()}, separators=(",", ":"))
    return pa.Table.from_pylist([row], schema=schema)


class HistoryTable:
    """The history of one table in a Delta table. all_controls: whether every control is a row. retypes: whether a
    column whose new type its values do not fit into goes on as a new column.
    """

    def __init__(self, target: DeltaTarget, *, all_controls: bool, retypes: bool, how_to_reset: str) -> None:
        self._target = target
        self._all_controls = all_controls
        self._retypes = retypes
        self._how_to_reset = how_to_reset

    def commit(self, staged: StagedRows, stored: Stored) -> Work[None]:
        """Show rows that tasks have written. Raises `Restage` if the history has other types."""
        rows = user_rows_schema(staged.table) if staged.fitted is None else staged.fitted
        none = self._named(user_rows_schema(staged.table).empty_table())
        have = yield from self._fit(staged.table, none.schema, stored)
        named = rows if staged.fitted is not None else as_stored(rows.empty_table(), have).schema
        if named.names != rows.names or any(
            field.name not in have.names or have.field(field.name).type != field.type for field in rows
        ):
            wanted = [field for field in have if field.name not in self.partition]
            raise Restage(fits={self._name: pa.schema(wanted, have.metadata)})
        self._target.replace(staged.files, (), stored, self.partition)

    @property
    def _name(self) -> str:
        """The full name of the table whose history it is."""
        return self._target.owner

    @property
    def partition(self) -> dict[str, str]:
        """Columns that its rows share, which stand in no file."""
        return {}

    def control(self, control: TableControl, stored: Stored) -> Work[None]:
        """Record what the rows do not show; `schema` makes columns before their first row comes."""
        if control.kind is ControlKind.SCHEMA:
            none = user_rows_schema(control.table).empty_table()
            yield from self._fit(control.table, self._named(none).schema, stored)
        if self._all_controls or control.kind in RECORDED:
            row = self._named(control_row(control, has_body=self._all_controls))
            have = self._target.schema()
            if not row.schema.equals(have):
                have = yield from self._fit(control.table, row.schema, stored)
                row = fitted_rows(as_stored(row, have), have)
            self._target.append(row, stored, self.partition)

    def _named(self, rows: pa.Table) -> pa.Table:
        """Rows as the table has them."""
        return rows

    def _fit(self, table: TableSchema, want: pa.Schema, stored: Stored) -> Work[pa.Schema]:
        """Make room for columns and types. A commit of its own keeps the pair that the table has."""
        have = self._schema()
        kept = self._target.stored() or stored.nothing
        added: list[pa.Field] = []
        wider: dict[str, pa.DataType] = {}
        for field in want:
            name = stored_name(field, have.names) if self._retypes else field.name
            if name not in have.names:
                added.append(field.with_name(name))
            elif not widens_to(field.type, have.field(name).type):
                if widens_to(have.field(name).type, field.type) and not (self._retypes and self._is_too_large):
                    wider[name] = field.type
                elif self._retypes:
                    added.append(field.with_name(retyped_name(field)))
                else:
                    raise self._cannot_hold(table, field, have.field(name).type)
        if added:
            self._target.add_columns(added, kept)
        if wider:
            yield from self._widen(table, wider, kept)
        return self._schema()

    def _schema(self) -> pa.Schema:
        have = self._target.schema()
        return retyping(have) if self._retypes else have

    @property
    def _is_too_large(self) -> bool:
        return self._target.bytes_total() > self._target.upkeep.rewrite_bytes_max

    def _cannot_hold(self, table: TableSchema, field: pa.Field, held: pa.DataType) -> UnsupportedFeature:
        return UnsupportedFeature(
            f"{self._target.path}: column {field.name} of {table.source} became {field.type}, and the history holds "
            f"{held}, neither of which holds every value of the other. Say `retype: new_column` in this output: the "
            f"column goes on under another name. Or: {self._how_to_reset}"
        )

    def _widen(self, table: TableSchema, wider: dict[str, pa.DataType], kept: Stored) -> Work[None]:
        size, limit = self._target.bytes_total(), self._target.upkeep.rewrite_bytes_max
        if size > limit:
            raise LimitExceeded(
                f"{self._target.path}: {', '.join(wider)} of {table.source} became wider, for which all {size} bytes "
                f"of the history are rewritten, more than rewrite_bytes_max={limit}. Raise `rewrite_bytes_max` "
                f"of this output and start the pipeline again. Or: {self._how_to_reset}"
            )
        moves = tuple(
            Move(pa.field(field.name, wider.get(field.name, field.type)), field) for field in self._target.schema()
        )
        steps = Plan(moves, (), {}, (0, 0))
        yield from self._target.remade(steps, steps.schema, kept)
