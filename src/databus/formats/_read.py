"""Change rows out of messages: what a format's reader found becomes rows as frames have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, SEQ, ChangeType, UnrepresentableValue, name_parts, source_name
from databus.formats._base64 import base64_bytes
from databus.schema import BUS_FIELDS, Column, TableSchema, forms_of

_BETWEEN: Final = "\0"  # which no database has in a name
Places = npt.NDArray[np.int64]


class ReadRows(NamedTuple):
    """The rows of messages that were read."""

    rows: pa.RecordBatch
    """The table's columns, then the bus's own, which are null where the format does not say them."""
    messages: pa.Int64Array
    """For each row the number of its message."""
    others: pa.Int64Array
    """Messages about something else than a row (a change of the schema, a truncation, a heartbeat), without
    tombstones."""


class ReadChanges(NamedTuple):
    """What a reader found, one element for each change."""

    kinds: npt.NDArray[np.int8]
    """Numbers of `INSERT`, `UPDATE_POSTIMAGE`, `DELETE`."""
    messages: Places
    """For each change the number of its message."""
    last: Sequence[pa.Array]
    """By column: the second image of an update, the only image of an insert or a delete."""
    before: Sequence[pa.Array]
    """By column: the first image of an update, where `has_before`."""
    has_before: npt.NDArray[np.bool_]
    bus: Mapping[str, pa.Array]
    """The bus's columns of the last image, as far as the format says them."""


def rows_of(table: TableSchema, changes: ReadChanges, others: Places) -> ReadRows:
    """The rows of changes. Raises `UnrepresentableValue` for null in a column that has none."""
    count = len(changes.kinds)
    firsts = np.flatnonzero(changes.has_before)
    ends = np.cumsum(1 + changes.has_before.astype(np.int64))
    order = np.empty(count + len(firsts), np.int64)  # places in the last images followed by the first ones
    order[ends - 1] = np.arange(count)
    order[ends[firsts] - 2] = count + np.arange(len(firsts))
    of = np.repeat(np.arange(count), 1 + changes.has_before)
    is_first = order >= count

    arrays = []
    for last, before in zip(changes.last, changes.before, strict=True):
        values = pa.concat_arrays([last, before.take(pa.array(firsts))]) if len(firsts) else last
        arrays.append(values.take(pa.array(order)))
    check_nulls(table, arrays, changes.messages[of])
    columns = {**changes.bus, CHANGE_TYPE: pa.array(changes.kinds)}
    for field in BUS_FIELDS:
        values = columns[field.name].take(pa.array(of)) if field.name in columns else pa.nulls(len(of), field.type)
        if field.name == CHANGE_TYPE:
            values = pc.if_else(pa.array(is_first), pa.scalar(int(ChangeType.UPDATE_PREIMAGE), pa.int8()), values)
        if field.name == SEQ:
            values = pc.subtract(values, pa.array(is_first.astype(np.int64)))
        arrays.append(values if values.type == field.type else values.cast(field.type))
    schema = pa.schema(
        [
            *(pa.field(c.name, forms_of(c.type).arrow, nullable=c.nullable) for c in table.columns),
            *(field.with_nullable(field.name != CHANGE_TYPE) for field in BUS_FIELDS),
        ]
    )
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return ReadRows(rows, pa.array(changes.messages[of]), pa.array(others))


def check_nulls(table: TableSchema, arrays: Sequence[pa.Array], messages: Places) -> None:
    """Raises `UnrepresentableValue` for null in a column that has none. messages: of each row."""
    for column, values in zip(table.columns, arrays, strict=True):
        if not column.nullable and values.null_count:
            at = messages[np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]]
            raise UnrepresentableValue(f"{table.source}.{column.name}: message {at} has no value, and null is none")


def present(values: pa.Array) -> tuple[pa.LargeBinaryArray, Places]:
    """Messages that are no tombstones, and where they stand."""
    binary = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return binary.drop_null().cast(pa.large_binary()), np.flatnonzero(binary.is_valid().to_numpy(zero_copy_only=False))


def kinds_of(words: pa.Array, known: dict[str, ChangeType]) -> npt.NDArray[np.int8]:
    """The numbers of change types by a format's words for them; 0 for any other word, and none."""
    numbers = np.append([int(kind) for kind in known.values()], 0).astype(np.int8)
    at = pc.index_in(words, pa.array(list(known), words.type)).fill_null(len(known))
    kinds: npt.NDArray[np.int8] = numbers[at.to_numpy(zero_copy_only=False)]
    return kinds


def check_table(table: TableSchema, names: pa.StringArray, messages: Places) -> None:
    """Raises `UnrepresentableValue` for a message that names another table. names: see `table_names`."""
    is_this = pc.equal(names, source_name(*name_parts(table.source))).fill_null(False)
    wrong = np.flatnonzero(~is_this.to_numpy(zero_copy_only=False))
    if len(wrong):
        other = names[wrong[0]].as_py() or "no table"
        raise UnrepresentableValue(f"message {messages[wrong[0]]} is of {other}, not of {table.source}")


def table_names(databases: pa.Array, tables: pa.Array, schemas: pa.Array | None = None) -> pa.StringArray:
    """The names (`db.table`) that messages say; null where they do not. schemas: where tables stand in schemas of a
    database (PostgreSQL, SQL Server, Oracle), of which two may have tables of one name: the schema belongs to the
    table's.
    """
    parts = pc.binary_join_element_wise(databases, tables, _BETWEEN)
    if schemas is not None:
        parts = pc.coalesce(pc.binary_join_element_wise(databases, schemas, tables, _BETWEEN), parts)
    alike = parts.dictionary_encode()
    pieces = [text.split(_BETWEEN) for text in alike.dictionary.to_pylist()]
    names = [source_name(piece[0], piece[1] if len(piece) == 2 else source_name(*piece[1:3])) for piece in pieces]
    return pa.array(names, pa.string()).take(alike.indices)


def members_of(structs: pa.StructArray) -> dict[str, pa.Array]:
    """The members of objects, null where the object is."""
    return {field.name: pc.struct_field(structs, index) for index, field in enumerate(structs.type)}


def converted(table: TableSchema, column: Column, convert: Callable[[], pa.Array]) -> pa.Array:
    """What `convert` makes. Raises `UnrepresentableValue` with the column's name where it cannot."""
    try:
        return convert()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError, UnrepresentableValue) as error:
        raise UnrepresentableValue(f"{table.source}.{column.name}: not a {column.type}: {error}") from error


JSON_NUMBERS: Final = ("int", "uint", "float", "decimal", "bool")


def json_type(column: Column) -> pa.DataType:
    """How our own JSON holds a column: numbers, and decimals, which may be text, as they are; else as text."""
    return forms_of(column.type).arrow if column.type.startswith(JSON_NUMBERS) else pa.string()


def json_value(column: Column, raw: pa.Array) -> pa.Array:
    """The values of a column that were read as `json_type`."""
    kind = forms_of(column.type).arrow
    if pa.types.is_binary(kind):
        return base64_bytes(raw.cast(pa.large_string())).cast(kind)
    if pa.types.is_timestamp(kind):
        return moments_from(raw, kind)
    return raw.cast(kind)


def moments_from(texts: pa.Array, kind: pa.TimestampType) -> pa.Array:
    """Points in time from text, with `Z` or without, and any digits up to six."""
    bare = pc.utf8_rtrim(texts, "Z")
    moments = bare.cast(pa.timestamp("us"))
    return moments if kind.tz is None else moments.cast(pa.int64()).cast(kind)
