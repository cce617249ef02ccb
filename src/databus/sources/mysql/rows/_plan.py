"""Plans: everything that the kernels need to know about one table as one table map of the log has it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from databus.core import SourceChanged
from databus.schema import TableSchema
from databus.sources.mysql._definition import FieldType, TableDefinition
from databus.sources.mysql.rows import _program as ops
from databus.sources.mysql.rows._arrow_types import Policies, describe
from databus.sources.mysql.rows._layout import ColumnLayout, check_type, lay_out
from databus.sources.mysql.rows._omit import Omitter


@dataclass(frozen=True, slots=True, eq=False)
class DecodePlan:
    """How to decode the row images of `definition` into arrays of `table`. Made by `make_plan`; threads share it."""

    definition: TableDefinition
    table: TableSchema
    policies: Policies
    layouts: tuple[ColumnLayout, ...]
    """One for each column of the definition, excluded ones included."""
    program: NDArray[np.int64]
    """One row for each column of the definition, as `_program` says."""
    mask: NDArray[np.uint8]
    """Which bits of an image's null bitmap stand for columns."""
    steps: NDArray[np.int64]
    """How to walk through an image without nulls."""
    json_columns: int
    """How many JSON columns there are."""


def make_plan(
    definition: TableDefinition,
    types: Sequence[int],
    metas: Sequence[int],
    nullable: Sequence[bool] | None = None,
    *,
    excluded: frozenset[str] = frozenset(),
    texts: frozenset[str] = frozenset(),
    zero_dates: Literal["error", "null"] = "error",
    invalid_text: Literal["error", "replace"] = "error",
    json_form: Literal["5.7", "8.0"] = "8.0",
    omitter: Omitter | None = None,
) -> DecodePlan:
    """Plan the decoding of a table map's rows by the table's definition at that position.

    types, metas, nullable: of each column, as the table map has them, but ENUM, SET and CHAR are distinguished (as
    `ColumnDefinition` says). The rest: see `Policies`; json_form is that of the server's release. Raises
    `SourceChanged` naming the column if the map is not the definition's.
    """
    _check_count(definition, len(types))
    policies = Policies(zero_dates, invalid_text, json_form, omitter, texts)
    table = describe(definition, excluded=excluded, texts=texts, zero_dates=zero_dates, invalid_text=invalid_text)
    layouts = []
    for number, column in enumerate(definition.columns):
        if nullable is not None and nullable[number] and not column.is_nullable:
            raise SourceChanged(
                f"{definition.source}: the log has column {column.name!r} as nullable, but its definition at this "
                f"position is {column.column_type} NOT NULL; have the table snapshotted again"
            )
        logged = check_type(definition.source, column, types[number], metas[number])
        is_excluded = column.name in excluded or column.is_hidden
        layouts.append(lay_out(column, logged, excluded=is_excluded, policies=policies.for_column(definition, column)))
    program = np.array(
        [layout.fields(column) for layout, column in zip(layouts, definition.columns, strict=True)], dtype=np.int64
    ).reshape(-1, ops.FIELDS)
    return DecodePlan(
        definition,
        table,
        policies,
        tuple(layouts),
        program,
        _mask(len(layouts)),
        _steps(layouts),
        sum(column.type is FieldType.JSON for column in definition.columns),
    )


def _check_count(definition: TableDefinition, count: int) -> None:
    known = len(definition.columns)
    if count != known:
        first = f"the log's column {known + 1} is unknown" if count > known else definition.columns[count].name
        raise SourceChanged(
            f"{definition.source}: the log has {count} columns, but the definition at this position has {known} "
            f"(first difference: {first}); the history of the table's schema is not that of this log. Have the table "
            "snapshotted again"
        )


def _mask(columns: int) -> NDArray[np.uint8]:
    mask = np.full((columns + 7) // 8, 0xFF, dtype=np.uint8)
    if columns % 8:
        mask[-1] = (1 << columns % 8) - 1
    return mask


def _steps(layouts: Sequence[ColumnLayout]) -> NDArray[np.int64]:
    steps, skipped = [], 0
    for number, layout in enumerate(layouts):
        skipped += layout.width
        if layout.length_bytes:
            steps.append((skipped, layout.length_bytes, layout.limit, number))
            skipped = 0
    steps.append((skipped, 0, 0, len(layouts) - 1))
    return np.array(steps, dtype=np.int64)
