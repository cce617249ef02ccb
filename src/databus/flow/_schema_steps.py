"""What a `schema` control says of rows from before it: where each column comes from, and what it is filled with."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from databus.flow._batch import TableControl
from databus.flow._lineage import CopySteps
from databus.formats import scalar_of
from databus.schema import SchemaChange, origins


def steps_at(control: TableControl, have: Iterable[str]) -> CopySteps:
    """How rows that have these columns get those that the control brings."""
    names = list(have)
    change = SchemaChange.of_control(control.pair, control.body, None, control.table)
    now = origins(dict.fromkeys(names, ""), [change])
    moved = {name: origin.column for name, origin in now.items() if origin.column is not None}
    fill = _fill_of(control)
    younger = {name: name for name in fill if name in names and name not in moved}  # rows above its pair
    return CopySteps({**younger, **moved}, fill, (), change.needs_snapshot, control.pair)


def _fill_of(control: TableControl) -> dict[str, pa.Scalar]:
    """The values that rows before a `schema` control have in its new columns, by name; nulls left out."""
    fill: Mapping[str, Any] = control.body.get("fill") or {}
    types = {column.name: column.type for column in control.table.columns}
    return {
        name: scalar_of(value, [types[name]]) for name, value in fill.items() if name in types and value is not None
    }
