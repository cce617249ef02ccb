"""Our own change rows as Avro: the table's record (`avro_schema`), then the bus's columns and the source's full name.

Names that Avro does not allow are changed; a field's `doc` has the original.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    RESERVED_COLUMNS,
    SEQ,
    SNAPSHOT,
    SOURCE,
    TXID,
    ChangeType,
    UnrepresentableValue,
)
from databus.formats._avro_reading import AvroCursor
from databus.formats._avro_resolution import WrittenSchema, written_columns
from databus.formats._avro_writing import constant, encoded, joined_bytes, nullable
from databus.formats._images import change_types
from databus.formats._messages import Messages
from databus.formats._own import own_keys
from databus.formats._read import ReadRows, check_nulls, converted, kinds_of, present
from databus.schema import BUS_FIELDS, TableSchema, avro_schema, forms_of, frame_schema

_SCHEMAS_KEPT_MAX: Final = 1024
_BUS: Final = (
    {"name": CHANGE_TYPE, "type": "string"},
    {"name": COMMIT_VERSION, "type": "long"},
    {"name": SEQ, "type": "long"},
    {"name": COMMIT_TIMESTAMP, "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": TXID, "type": "string"},
    {"name": SNAPSHOT, "type": "boolean"},
    {"name": SOURCE, "type": "string"},
)
_LABELS: Final = (None, *(kind.label for kind in ChangeType))  # by number


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def own_avro_schema(table: TableSchema) -> dict[str, Any]:
    """The schema of a table's messages; not to be changed by the caller."""
    record = avro_schema(table, RESERVED_COLUMNS)
    return {**record, "fields": [*record["fields"], *_BUS]}


def own_avro_messages(table: TableSchema, batch: pa.RecordBatch, *, physical: str) -> Messages:
    """Each row of a batch as a message in the schema of `own_avro_schema`, with its canonical key."""
    pieces: list[bytes | pa.LargeBinaryArray] = []
    for column in table.columns:
        cell = encoded(batch.column(column.name))
        pieces.append(nullable(cell) if column.nullable else cell)
    labels = pa.array(_LABELS).take(pa.array(change_types(batch)))
    pieces.append(encoded(labels.dictionary_encode()))
    pieces += [encoded(batch.column(field.name)) for field in BUS_FIELDS if field.name != CHANGE_TYPE]
    values = joined_bytes(*pieces, constant(f"{physical}/{table.source}"))
    return Messages(values, own_keys(table, batch), pa.array(np.arange(batch.num_rows)))


def own_avro_rows(table: TableSchema, values: pa.Array, *, schema: Mapping[str, Any] | None = None) -> ReadRows:
    """The change rows of our own Avro messages of one table.

    schema: in which they were written, where that is not `own_avro_schema` of this table: by it, those of their columns
    are read that the table has. Raises `UnrepresentableValue` for a message of another schema or table.
    """
    ours = WrittenSchema(own_avro_schema(table)).fields
    written = WrittenSchema(own_avro_schema(table) if schema is None else schema)
    bus = {field.field: field for field in ours[len(table.columns) :]}
    is_bus = [field.field in bus for field in written.fields]
    if written.fields[len(written.fields) - len(bus) :] != list(bus.values()) or sum(is_bus) != len(bus):
        raise UnrepresentableValue("its schema is none of databus's rows: those end with the columns of the bus")
    fields = written.fields[: -len(bus)]
    messages, places = present(values)
    cursor = AvroCursor(messages, places)
    everywhere = cursor.everywhere()
    arrays = [pa.nulls(len(messages), forms_of(column.type).arrow) for column in table.columns]
    for field, chosen in zip(fields, written_columns(fields, table.columns, ours), strict=False):
        if chosen is None:
            written.skip(cursor, field, everywhere)
            continue
        column, kind = table.columns[chosen.at], arrays[chosen.at].type
        wanted, read_as = field.present(cursor, everywhere), forms_of(chosen.read_as.type).arrow
        arrays[chosen.at] = converted(table, column, lambda r=read_as, w=wanted, k=kind: cursor.column(r, w).cast(k))  # type: ignore[misc]
    check_nulls(table, arrays, places)
    labels = cursor.column(pa.string(), everywhere)
    kinds = kinds_of(labels, {kind.label: kind for kind in ChangeType})
    wrong = np.flatnonzero(kinds == 0)
    if len(wrong):
        raise UnrepresentableValue(f"message {places[wrong[0]]} has the change type {labels[wrong[0]]}, which is none")
    arrays.append(pa.array(kinds))
    for bus_field in BUS_FIELDS[1:]:
        plain = pa.string() if pa.types.is_dictionary(bus_field.type) else bus_field.type
        arrays.append(cursor.column(plain, everywhere).cast(bus_field.type))
    sources = cursor.column(pa.string(), everywhere)
    cursor.finish()
    ends = pa.compute.ends_with(sources, f"/{table.source}").to_numpy(zero_copy_only=False)
    if not ends.all():
        at = int(np.flatnonzero(~ends)[0])
        raise UnrepresentableValue(f"message {places[at]} is of {sources[at]}, not of {table.source}")
    rows = pa.RecordBatch.from_arrays(arrays, schema=frame_schema(table).remove_metadata())
    return ReadRows(rows, pa.array(places), pa.array([], pa.int64()))
