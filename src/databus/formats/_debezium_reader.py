"""Debezium's envelope to change rows, as our own writer and Debezium's connectors write it.

Where each message has its schema beside it (`schemas.enable=true`), that says of a column how it was written, which may
be otherwise than the table says: decimals of another scale, since the column was changed, or times in other units, by
the connector's `time.precision.mode`. Such values are read as they were written. What would be read without an error,
as something else than it is, is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, TXID, ChangeType, UnrepresentableValue
from databus.formats._base64 import base64_bytes
from databus.formats._debezium_schema import CONNECTOR
from databus.formats._debezium_types import DECIMAL, UINT64_DIGITS, DebeziumForm, connect_type, is_milliseconds
from databus.formats._mysql_words import is_clock
from databus.formats._parse import json_object, parsed
from databus.formats._read import (
    Places,
    ReadChanges,
    ReadRows,
    check_table,
    converted,
    json_type,
    kinds_of,
    members_of,
    moments_from,
    present,
    rows_of,
    table_names,
)
from databus.formats._twos_complement import decimals_from
from databus.schema import Column, TableSchema, forms_of

_US_A_MS: Final = 1_000
_PAIR: Final = r'^\["(?P<scn>\d+)","(?P<seq>\d+)"\]$'
KINDS: Final = {
    "c": ChangeType.INSERT,
    "r": ChangeType.INSERT,
    "u": ChangeType.UPDATE_POSTIMAGE,
    "d": ChangeType.DELETE,
}
_UNAVAILABLE: Final = {"string": "__debezium_unavailable_value", "binary": b"__debezium_unavailable_value"}
_SOURCE: Final = pa.struct(
    [
        *((name, pa.string()) for name in ("connector", "db", "schema", "table", "sequence", "gtid")),
        ("ts_ms", pa.int64()),
        ("ts_us", pa.int64()),
    ]
)
_SCHEMA: Final = b'{"schema":'
_PAYLOAD: Final = b',"payload":'
_PRECISION_MAX: Final = 38
_CONNECT: Final = "org.apache.kafka.connect.data"
_MOMENTS: Final = {
    "io.debezium.time.Timestamp": "datetime(3)",
    f"{_CONNECT}.Timestamp": "datetime(3)",
    "io.debezium.time.MicroTimestamp": "datetime(6)",
}
_DATES: Final = ("io.debezium.time.Date", f"{_CONNECT}.Date")


def debezium_rows(table: TableSchema, values: pa.Array, *, form: DebeziumForm | None = None) -> ReadRows:
    """The change rows of Debezium's messages of one table; tombstones are passed over.

    form: as the messages were written; `tombstones` has no meaning here. What is not a change of a row (a truncation,
    a message, a heartbeat) is among the others. Raises `UnrepresentableValue` for a message that cannot be read, with
    its number, for a value that the column cannot hold, and for one that Debezium did not know
    (`unavailable.value.placeholder`).
    """
    form = form or DebeziumForm()
    messages, places = present(values)
    row = row_type(table, form)
    envelope = pa.schema([("before", row), ("after", row), ("source", _SOURCE), ("op", pa.string())])
    if form.with_schema:
        payload = parsed(messages, pa.schema([("payload", pa.struct(list(envelope)))]), places).members["payload"]
        members = members_of(payload)
    else:
        members = parsed(messages, envelope, places).members
    kinds = kinds_of(members["op"], KINDS)
    chosen = np.flatnonzero(kinds)
    fields = {name: values.take(pa.array(chosen)) for name, values in members.items()}
    source = members_of(fields["source"])
    check_table(table, table_names(source["db"], source["table"], source["schema"]), places[chosen])
    bus, is_ours = bus_of(source, fields["op"])
    written = _written(table, messages.take(pa.array(chosen)), places[chosen], form) if form.with_schema else []
    firsts, lasts = (
        images_of_json(table, fields[name], form, is_ours=is_ours, written=written) for name in ("before", "after")
    )
    changes = changes_of(firsts, lasts, kinds[chosen], bus, places[chosen])
    return rows_of(table, changes, places[np.flatnonzero(kinds == 0)])


def bus_of(source: dict[str, pa.Array], ops: pa.Array) -> tuple[dict[str, pa.Array], pa.BooleanArray]:
    """The bus's columns, as far as the envelope says them; and which messages the bus has written."""
    pairs = pc.extract_regex(source["sequence"], _PAIR)
    is_ours = pc.equal(source["connector"], CONNECTOR).fill_null(False)
    scns, seqs = (pc.struct_field(pairs, name).cast(pa.int64()) for name in ("scn", "seq"))
    null = pa.scalar(None, pa.int64())
    us = pc.coalesce(source["ts_us"], pc.multiply(source["ts_ms"], _US_A_MS))
    bus = {
        COMMIT_VERSION: pc.if_else(is_ours, scns, null),
        SEQ: pc.if_else(is_ours, seqs, null),
        COMMIT_TIMESTAMP: us.cast(pa.timestamp("us", "UTC")),
        TXID: source["gtid"],
        SNAPSHOT: pc.equal(ops, "r"),
    }
    return bus, is_ours


class WrittenPart(NamedTuple):
    """How the columns of a table were written in some messages, which stand at these places."""

    columns: Sequence[Column]
    places: Places


def _written(table: TableSchema, values: pa.LargeBinaryArray, numbers: Places, form: DebeziumForm) -> list[WrittenPart]:
    """By what messages say themselves."""
    schemas = schemas_of(values, numbers)
    return [WrittenPart(columns_written(table, text, form), at) for text, at in schemas.items()]


class ImagesRead(NamedTuple):
    """One image of each message, by column; `is_there`: which messages have it."""

    columns: list[pa.Array]
    is_there: npt.NDArray[np.bool_]


def images_of_json(
    table: TableSchema,
    rows: pa.StructArray,
    form: DebeziumForm,
    *,
    is_ours: pa.BooleanArray,
    written: Sequence[WrittenPart] = (),
) -> ImagesRead:
    """Images that were read as `row_type`. is_ours: which of them the bus has written, for which no value is ever
    unavailable. written: of all of them, where they say it; else columns are as the table has them.
    """
    raw = members_of(rows)
    columns = []
    for at, column in enumerate(table.columns):
        parts = [(part.columns[at], part.places) for part in written]
        columns.append(converted(table, column, partial(_values, column, raw[column.name], form, parts)))
    if not pc.all(is_ours).as_py():
        for column, array in zip(table.columns, columns, strict=True):
            check_available(table, column, array)
    return ImagesRead(columns, rows.is_valid().to_numpy(zero_copy_only=False))


def changes_of(
    firsts: ImagesRead, lasts: ImagesRead, kinds: npt.NDArray[np.int8], bus: dict[str, pa.Array], places: Places
) -> ReadChanges:
    """The changes whose images were read. places: of the messages."""
    is_delete = kinds == ChangeType.DELETE
    missing = np.flatnonzero(~np.where(is_delete, firsts.is_there, lasts.is_there))
    if len(missing):
        at = missing[0]
        raise UnrepresentableValue(f"message {places[at]} has no `{'before' if is_delete[at] else 'after'}`")
    has_before = (kinds == ChangeType.UPDATE_POSTIMAGE) & firsts.is_there
    only = [
        pc.if_else(pa.array(is_delete), first, last) if is_delete.any() else last
        for first, last in zip(firsts.columns, lasts.columns, strict=True)
    ]
    return ReadChanges(kinds, places, only, firsts.columns, has_before, bus)


def row_type(table: TableSchema, form: DebeziumForm) -> pa.StructType:
    """How the images of a table are read."""
    return pa.struct([pa.field(column.name, _raw_type(column, form)) for column in table.columns])


def _raw_type(column: Column, form: DebeziumForm) -> pa.DataType:
    kind = forms_of(column.type).arrow
    if connect_type(column, form).name == DECIMAL:
        return pa.string()
    if pa.types.is_date(kind):
        return pa.int32()
    if pa.types.is_timestamp(kind) and kind.tz is None:
        return pa.int64()
    return json_type(column)


def check_available(table: TableSchema, column: Column, values: pa.Array) -> None:
    """Raises `UnrepresentableValue` where Debezium put a placeholder for a value that it did not know."""
    unavailable = _UNAVAILABLE.get(column.type)
    if unavailable is not None and pc.any(pc.equal(values, pa.scalar(unavailable, values.type))).as_py():
        raise UnrepresentableValue(
            f"{table.source}.{column.name}: a message does not have this value (`__debezium_unavailable_value`); have "
            "the database log whole rows (PostgreSQL: REPLICA IDENTITY FULL)"
        )


def _values(column: Column, raw: pa.Array, form: DebeziumForm, parts: Sequence[tuple[Column, Places]]) -> pa.Array:
    """parts: as what the values were written, and which of them."""
    if not parts:
        return _value(column, raw, form)
    kind = forms_of(column.type).arrow
    values = [_value(written, raw.take(pa.array(places)), form).cast(kind) for written, places in parts]
    order = np.argsort(np.concatenate([places for _, places in parts]))
    return pa.concat_arrays(values).take(pa.array(order))


def _value(column: Column, raw: pa.Array, form: DebeziumForm) -> pa.Array:
    kind = forms_of(column.type).arrow
    if connect_type(column, form).name == DECIMAL:
        exact = kind if pa.types.is_decimal(kind) else pa.decimal128(UINT64_DIGITS, 0)
        return decimals_from(base64_bytes(raw.cast(pa.large_string())), exact).cast(kind)
    if pa.types.is_binary(kind):
        return base64_bytes(raw.cast(pa.large_string())).cast(kind)
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return moments_from(raw, kind)
        return (pc.multiply_checked(raw, _US_A_MS) if is_milliseconds(column) else raw).cast(kind)
    return raw.cast(kind)


def schemas_of(values: pa.LargeBinaryArray, numbers: Places) -> dict[bytes, Places]:
    """The text of each schema, and the places of the messages that have it. numbers: what each is called in an error.

    Connect's converter writes the schema first, so that messages of one schema begin with the same bytes.
    """
    ends = pc.find_substring(values, _PAYLOAD).to_numpy()
    is_first = pc.starts_with(values, _SCHEMA).to_numpy(zero_copy_only=False) & (ends > 0)
    by_schema: dict[bytes, list[npt.NDArray[np.int64]]] = {}
    for end in np.unique(ends[is_first]).tolist():
        places = np.flatnonzero(is_first & (ends == end))
        texts = pc.binary_slice(values.take(pa.array(places)), len(_SCHEMA), end).dictionary_encode()
        for number, text in enumerate(texts.dictionary.to_pylist()):
            chosen = places[texts.indices.to_numpy() == number]
            if _is_json(text):
                by_schema.setdefault(text, []).append(chosen)
            else:
                is_first[chosen] = False
    for place in np.flatnonzero(~is_first).tolist():
        schema = json_object(int(numbers[place]), values[place].as_py()).get("schema")
        by_schema.setdefault(json.dumps(schema).encode(), []).append(np.array([place]))
    return {text: np.sort(np.concatenate(parts)) for text, parts in by_schema.items()}


def columns_written(table: TableSchema, schema: bytes, form: DebeziumForm) -> list[Column]:
    """The table's columns as they have to be read from messages of this schema. Where it says nothing of a column, that
    is as the table has it.

    Raises `UnrepresentableValue` for a column that was written as something of which it cannot be made.
    """
    images = _fields(json.loads(schema))
    written = _fields(images.get("after", images.get("before")))
    return [_column(column, written.get(column.name), form) for column in table.columns]


def _column(column: Column, written: Mapping[str, Any] | None, form: DebeziumForm) -> Column:
    if written is None:
        return column
    ours, kind, name = connect_type(column, form), written.get("type"), written.get("name")
    is_unlike = (kind == "bytes") != (ours.type == "bytes") or (name == DECIMAL) != (ours.name == DECIMAL)
    if column.type == "timestamp" and name in _MOMENTS:
        return replace(column, db_type=_MOMENTS[name])
    is_unlike |= column.type == "timestamp" or (is_clock(column) and name != ours.name)
    is_unlike |= column.type == "date" and name not in _DATES
    if is_unlike:
        raise UnrepresentableValue(
            f"{column.name} was written as {_shown(kind, name)}, and is read as {_shown(ours.type, ours.name)}: see "
            "the connector's modes for such columns, and the column's type in `schemas`"
        )
    return _of_scale(column, written) if name == DECIMAL else column


def _of_scale(column: Column, written: Mapping[str, Any]) -> Column:
    parameters = written.get("parameters")
    scale = str(parameters.get("scale")) if isinstance(parameters, Mapping) else ""
    if not scale.isdecimal() or int(scale) > _PRECISION_MAX or (column.type == "uint64" and int(scale)):
        raise UnrepresentableValue(f"{column.name} was written as a decimal with the scale {scale or 'none'}")
    if column.type == "uint64" or int(scale) == forms_of(column.type).arrow.scale:
        return column
    return replace(column, type=f"decimal({_PRECISION_MAX},{int(scale)})")


def _shown(kind: Any, name: Any) -> str:
    return f"{kind} ({name})" if name else str(kind)


def _fields(struct: Any) -> dict[str, Mapping[str, Any]]:
    fields = struct.get("fields") if isinstance(struct, Mapping) else None
    return {str(field.get("field")): field for field in fields or () if isinstance(field, Mapping)}


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
