"""Our own lines of JSON to change rows, alone or as the data of a CloudEvent."""

from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQ,
    SNAPSHOT,
    SOURCE,
    TXID,
    ChangeType,
    UnrepresentableValue,
)  # fmt: skip
from databus.formats._parse import parsed
from databus.formats._read import Places, ReadRows, converted, json_type, json_value, kinds_of, moments_from, present
from databus.schema import BUS_FIELDS, TableSchema, frame_schema

_BUS_TYPES: Final = {
    SOURCE: pa.string(),
    CHANGE_TYPE: pa.string(),
    COMMIT_VERSION: pa.int64(),
    SEQ: pa.int64(),
    COMMIT_TIMESTAMP: pa.string(),
    TXID: pa.string(),
    SNAPSHOT: pa.bool_(),
}
_KINDS: Final = {kind.label: kind for kind in ChangeType}


def own_rows(table: TableSchema, values: pa.Array) -> ReadRows:
    """The change rows of our own messages of one table; controls and positions are among the others.

    Raises `UnrepresentableValue` for a message that cannot be read, with its number, and for a value that the column
    cannot hold.
    """
    messages, places = present(values)
    return rows_in(table, parsed(messages, own_schema(table), places).members, places)


def own_schema(table: TableSchema) -> pa.Schema:
    """The members of a line, as they are read."""
    columns = [pa.field(column.name, json_type(column)) for column in table.columns]
    return pa.schema([*columns, *(pa.field(*member) for member in _BUS_TYPES.items())])


def rows_in(table: TableSchema, members: dict[str, pa.Array], places: Places) -> ReadRows:
    """The rows of lines that were read. places: of the messages."""
    kinds = kinds_of(members[CHANGE_TYPE], _KINDS)
    chosen = np.flatnonzero(kinds)
    fields = {name: values.take(pa.array(chosen)) for name, values in members.items()}
    ends = pa.compute.ends_with(fields[SOURCE], f"/{table.source}").fill_null(False).to_numpy(zero_copy_only=False)
    if not ends.all():
        at = int(np.flatnonzero(~ends)[0])
        raise UnrepresentableValue(f"message {places[chosen[at]]} is of {fields[SOURCE][at]}, not of {table.source}")
    arrays = [converted(table, column, partial(json_value, column, fields[column.name])) for column in table.columns]
    fields[CHANGE_TYPE] = pa.array(kinds[chosen])
    fields[COMMIT_TIMESTAMP] = moments_from(fields[COMMIT_TIMESTAMP], pa.timestamp("us", "UTC"))
    arrays += [fields[field.name].cast(field.type) for field in BUS_FIELDS]
    rows = pa.RecordBatch.from_arrays(arrays, schema=frame_schema(table).remove_metadata())
    return ReadRows(rows, pa.array(places[chosen]), pa.array(places[np.flatnonzero(kinds == 0)]))
