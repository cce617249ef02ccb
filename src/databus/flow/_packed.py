"""Packed columns: text of few values, kept as numbers into a list of these from one Parquet file to the next.

To make each value of such a column again, and to look for it again when it is written, is most of what a rewrite would
do. What is written has no value in its list that no row has any more.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_VALUE_BYTES_MAX: Final = 3
_PACKED: Final = pa.dictionary(pa.int32(), pa.string())


def packed_columns(found: "pq.FileMetaData", schema: pa.Schema) -> list[str]:
    """Columns of a file to read packed: those that are so small in it that their values cannot stand there one by one.

    Read so, a column of many values would cost more than otherwise.
    """
    groups = [found.row_group(number) for number in range(found.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    large = {each.path_in_schema for each in chunks if not _is_small(each)}
    names = {each.path_in_schema for each in chunks} - large
    return [field.name for field in schema if field.name in names and pa.types.is_string(field.type)]


def _is_small(chunk: "pq.ColumnChunkMetaData") -> bool:
    return bool(chunk.total_uncompressed_size <= _VALUE_BYTES_MAX * chunk.num_values)


def packed_schema(schema: pa.Schema, rows: pa.Schema) -> pa.Schema:
    """A schema, with those columns packed that are so in rows."""
    return pa.schema([field.with_type(_PACKED) if _is_packed(rows, field.name) else field for field in schema])


def _is_packed(schema: pa.Schema, name: str) -> bool:
    return name in schema.names and pa.types.is_dictionary(schema.field(name).type)


def concat_packed(tables: Sequence[pa.Table]) -> pa.Table:
    """Rows of tables of the same columns; a column that is packed in one of them is so in all."""
    if all(each.schema.equals(tables[0].schema) for each in tables[1:]):
        return pa.concat_tables(tables).unify_dictionaries()
    names = {name for each in tables for name in each.column_names if _is_packed(each.schema, name)}
    return pa.concat_tables([_with_packed(each, names) for each in tables]).unify_dictionaries()


def _with_packed(rows: pa.Table, names: set[str]) -> pa.Table:
    for index, name in enumerate(rows.column_names):
        if name in names and not _is_packed(rows.schema, name):
            rows = rows.set_column(index, name, rows.column(name).dictionary_encode().cast(_PACKED))
    return rows


def without_unused(rows: pa.Table) -> pa.Table:
    """Rows whose packed columns have only values in their lists that some row has."""
    for index, name in enumerate(rows.column_names):
        if _is_packed(rows.schema, name):
            rows = rows.set_column(index, name, _tight(rows.column(name).unify_dictionaries().combine_chunks()))
    return rows


def _tight(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used = np.sort(pc.unique(column.indices.drop_null()).to_numpy())
    if len(used) == len(column.dictionary):
        return column
    places = np.zeros(len(column.dictionary), np.int32)
    places[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(pa.array(places).take(column.indices), column.dictionary.take(pa.array(used)))
