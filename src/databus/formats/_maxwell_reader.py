"""Maxwell's JSON to change rows. An update's first image is `data` with the values of `old` in their places."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, TXID, ChangeType
from databus.formats._explicit_nulls import Olds, first_images
from databus.formats._maxwell import BOOTSTRAP, DELETE, INSERT, UPDATE, is_json, is_set
from databus.formats._mysql_words import clock_values, is_clock
from databus.formats._parse import DOCUMENT, parsed
from databus.formats._read import (
    ReadChanges,
    ReadRows,
    check_table,
    converted,
    json_type,
    json_value,
    kinds_of,
    members_of,
    present,
    rows_of,
    table_names,
)
from databus.schema import Column, TableSchema

_US_A_SECOND: Final = 1_000_000
_KINDS: Final = {
    INSERT: ChangeType.INSERT,
    BOOTSTRAP: ChangeType.INSERT,
    UPDATE: ChangeType.UPDATE_POSTIMAGE,
    DELETE: ChangeType.DELETE,
}


def maxwell_rows(table: TableSchema, values: pa.Array) -> ReadRows:
    """The change rows of Maxwell's messages of one table.

    What is not a change of a row (`table-alter`, `bootstrap-start`) is among the others. Raises `UnrepresentableValue`
    for a message that cannot be read, with its number, and for a value that the column cannot hold.
    """
    messages, places = present(values)
    row = pa.struct([pa.field(column.name, _type_of(column)) for column in table.columns])
    members = {"database": pa.string(), "table": pa.string(), "type": pa.string(), "ts": pa.int64(), "xid": pa.int64()}
    schema = pa.schema([*members.items(), ("xoffset", pa.int64()), ("gtid", pa.string()), ("data", row), ("old", row)])
    read = parsed(messages, schema, places, one_by_one=any(is_json(column) for column in table.columns))
    kinds = kinds_of(read.members["type"], _KINDS)
    is_row = kinds > 0
    chosen = np.flatnonzero(is_row)
    fields = {name: values.take(pa.array(chosen)) for name, values in read.members.items()}
    check_table(table, table_names(fields["database"], fields["table"]), places[chosen])
    data, old = members_of(fields["data"]), members_of(fields["old"])
    is_update = kinds[chosen] == ChangeType.UPDATE_POSTIMAGE
    olds = Olds(
        messages, read.objects, chosen, np.zeros(len(chosen), np.int64), True, _old_of, schema.names, table.names
    )
    last, before = [], []
    for column in table.columns:
        last.append(_values(table, column, data[column.name]))
        replaced = _values(table, column, old[column.name])
        before.append(first_images(olds, column.name, is_update, replaced, last[-1]))
    bus = {
        COMMIT_VERSION: fields["xid"],
        SEQ: fields["xoffset"],
        COMMIT_TIMESTAMP: pc.multiply(fields["ts"], _US_A_SECOND).cast(pa.timestamp("us", "UTC")),
        TXID: fields["gtid"],
        SNAPSHOT: pc.equal(fields["type"], BOOTSTRAP),
    }
    changes = ReadChanges(kinds[chosen], places[chosen], last, before, is_update, bus)
    return rows_of(table, changes, places[np.flatnonzero(~is_row)])


def _type_of(column: Column) -> pa.DataType:
    if is_set(column):
        return pa.list_(pa.string())
    if is_json(column):
        return DOCUMENT
    return pa.string() if is_clock(column) else json_type(column)


def _values(table: TableSchema, column: Column, raw: pa.Array) -> pa.Array:
    if is_set(column):
        return converted(table, column, lambda: pc.binary_join(raw, ","))
    if is_clock(column):
        return converted(table, column, lambda: clock_values(raw))
    return converted(table, column, lambda: json_value(column, raw))


def _old_of(message: dict[str, Any], _nth: int) -> dict[str, Any] | None:
    return message.get("old")
