"""Rows of a store as they stand in frames, and as users see them. No Python object is made for a row."""

from functools import cache
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, RESERVED_COLUMNS, TXID, ChangeType, UnrepresentableValue
from databus.flow import fitted_rows, stored_name, user_rows_schema
from databus.schema import TableSchema, frame_schema, sink_schema

Rows: TypeAlias = pa.Table


@cache
def _labels() -> pa.Array:
    return pa.array([kind.label for kind in ChangeType], pa.string())


@cache
def _numbers() -> pa.Array:
    return pa.array([int(kind) for kind in ChangeType], pa.int8())


def under_own_names(table: TableSchema, rows: Rows) -> Rows:
    """Rows of the log store with the table's own names, where a column goes on under another; see `stored_name`."""
    names = {stored_name(field, rows.column_names): field.name for field in sink_schema(table)}
    if all(stored == name for stored, name in names.items()):
        return rows
    kept = [name for name in rows.column_names if name in names or name in RESERVED_COLUMNS]
    return rows.select(kept).rename_columns([names.get(name, name) for name in kept])


def user_rows(table: TableSchema, rows: Rows) -> Rows:
    """Rows of a table as `databus.flow.user_rows_schema` has them; a column that the store lacks is null. Raises
    `UnrepresentableValue` for a value that would change.
    """
    try:
        return fitted_rows(rows, user_rows_schema(table))
    except pa.ArrowException as error:
        raise UnrepresentableValue(f"{table.source}: the stores hold what its definition cannot: {error}") from error


def frame_rows(table: TableSchema, rows: Rows) -> pa.RecordBatch:
    """Rows of a table, as `databus.flow.user_rows_schema` has them or with fewer or wider columns, in its frames'
    schema; a column that they lack is null. Raises `UnrepresentableValue` for a value that would change.
    """
    schema = frame_schema(table)
    columns = []
    for field in schema:
        if field.name not in rows.column_names:
            columns.append(pa.nulls(rows.num_rows, field.type))
            continue
        column = _one_array(rows.column(field.name))
        if column.type == field.type:
            columns.append(column)
        elif field.name == CHANGE_TYPE:
            columns.append(_numbers().take(pc.index_in(column, _labels())))
        elif field.name == TXID:
            columns.append(pc.fill_null(column, "").dictionary_encode())
        else:
            columns.append(_cast(table, column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    """To combine chunks would copy the only one, too."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _cast(table: TableSchema, column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return column.cast(field.type, safe=True)
    except pa.ArrowException as error:
        raise UnrepresentableValue(
            f"{table.source}.{field.name}: {column.type} does not become {field.type} exactly: {error}"
        ) from error
