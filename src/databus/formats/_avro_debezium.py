"""Debezium's envelope as Avro: the schema that Confluent's converter derives from Connect's; messages and keys.

What Connect knows of a type and Avro does not stands in `connect.name`, `connect.parameters` and `connect.type`, as
that converter (io.confluent.connect.avro.AvroData) writes it. Names that Avro does not allow are changed: of fields as
with Debezium's `field.name.adjustment.mode=avro_unicode`, of records as with its `schema.name.adjustment.mode=avro`.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus import __version__
from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, TXID, UnrepresentableValue, name_parts
from databus.formats._avro_reading import AvroCursor, Wanted
from databus.formats._avro_resolution import WrittenField, WrittenSchema, written_columns
from databus.formats._avro_writing import constant, encoded, joined_bytes, longs, nullable
from databus.formats._debezium import Events, events_of
from databus.formats._debezium_reader import KINDS, ImagesRead, bus_of, changes_of, check_available
from databus.formats._debezium_schema import CONNECTOR, SOURCE_FIELDS, TRANSACTION_FIELDS
from databus.formats._debezium_transactions import (
    COLLECTION_FIELDS,
    EVENT_COLLECTION,
    FIRST_FIELDS,
    KEY_FIELDS,
    LAST_FIELDS,
    TRANSACTION_KEY,
    TRANSACTION_VALUE,
    block_bytes,
)
from databus.formats._debezium_types import DECIMAL, DebeziumForm, connect_type, debezium_values, is_milliseconds
from databus.formats._images import images_of, rows_at
from databus.formats._messages import Messages, joined
from databus.formats._read import (
    ReadRows,
    check_table,
    converted,
    kinds_of,
    moments_from,
    present,
    rows_of,
    table_names,
)
from databus.schema import Column, TableSchema, avro_schema, forms_of

_SCHEMAS_KEPT_MAX: Final = 1024
_TEXT: Final = pa.large_string
_US_A_MS: Final = 1_000
_AVRO: Final = {
    "boolean": "boolean", "int16": {"type": "int", "connect.type": "int16"}, "int32": "int", "int64": "long",
    "float": "float", "double": "double", "string": "string", "bytes": "bytes",
}  # fmt: skip
_BASES: Final = {"string": "string", "int64": "long"}
_READ: Final = {"string": pa.string(), "int64": pa.int64()}
_TIMES: Final = ("ts_ms", "ts_us", "ts_ns")
_SAID: Final = {**{name: kind for name, kind, _ in SOURCE_FIELDS}, "schema": "string"}
"""What is read of `source`: what we write, and the schema of a database that has several."""


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def debezium_avro_schema(table: TableSchema, physical: str, form: DebeziumForm) -> dict[str, Any]:
    """The schema of a table's envelopes; not to be changed by the caller."""
    space = _namespace(physical, table)
    source, block = _fields(SOURCE_FIELDS), _fields(TRANSACTION_FIELDS)
    return {
        **_record("Envelope", space, []),
        "fields": [
            {"name": "before", "type": ["null", _record("Value", space, _columns(table, form))], "default": None},
            {"name": "after", "type": ["null", f"{space}.Value"], "default": None},
            {"name": "source", "type": _record("Source", f"io.debezium.connector.{CONNECTOR}", source)},
            {"name": "transaction", "type": ["null", _record("block", "event", block)], "default": None},
            _field("op", "string"),
            *(_field(name, "int64", optional=True) for name in _TIMES),
        ],
    }


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def debezium_avro_key_schema(table: TableSchema, physical: str, form: DebeziumForm) -> dict[str, Any]:
    """The schema of a table's keys; not to be changed by the caller."""
    fields = {column.name: field for column, field in zip(table.columns, _columns(table, form), strict=True)}
    return _record("Key", _namespace(physical, table), [fields[name] for name in table.key])


@cache
def transaction_avro_schemas() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schemas of keys and values in a topic of transactions; not to be changed by the caller."""
    table = _record(*_split(EVENT_COLLECTION), _fields(COLLECTION_FIELDS))
    tables = {"type": "array", "items": ["null", table]}
    collections = {"name": "data_collections", "type": ["null", tables], "default": None}
    value = _record(*_split(TRANSACTION_VALUE), [*_fields(FIRST_FIELDS), collections, *_fields(LAST_FIELDS)])
    return _record(*_split(TRANSACTION_KEY), _fields(KEY_FIELDS)), value


def debezium_avro_messages(
    table: TableSchema, batch: pa.RecordBatch, *, physical: str, made_us: int, form: DebeziumForm | None = None
) -> Messages:
    """What `debezium_messages` gives, in Avro; of the form, `with_schema` has no meaning here."""
    form = form or DebeziumForm()
    cells = {}
    for column in table.columns:
        cell = encoded(debezium_values(table, column, batch.column(column.name), form))
        cells[column.name] = nullable(cell) if column.nullable else cell
    rows = joined_bytes(*cells.values())
    keys = joined_bytes(*(cells[name] for name in table.key)) if table.key else None
    events = events_of(batch, images_of(table, batch), keys, tombstones=form.tombstones)
    is_event = events.ops.is_valid().to_numpy(zero_copy_only=False)
    values = _envelopes(table, batch, events.where(is_event), rows, physical, made_us)
    return events.messages(values, keys)


def _envelopes(
    table: TableSchema, batch: pa.RecordBatch, events: Events, rows: pa.LargeBinaryArray, physical: str, made_us: int
) -> pa.LargeBinaryArray:
    database, name = name_parts(table.source)
    bus = {
        column: rows_at(batch.column(column), events.rows)
        for column in (COMMIT_VERSION, SEQ, COMMIT_TIMESTAMP, TXID, SNAPSHOT)
    }
    us = bus[COMMIT_TIMESTAMP].cast(pa.int64())
    snapshot = pc.if_else(bus[SNAPSHOT], pa.scalar("incremental", _TEXT()), pa.scalar("false", _TEXT()))
    scns, seqs = (bus[column].cast(_TEXT()) for column in (COMMIT_VERSION, SEQ))
    made = (made_us // _US_A_MS, made_us, made_us * 1000)
    return joined_bytes(
        nullable(rows_at(rows, events.before)),
        nullable(rows_at(rows, events.after)),
        constant(__version__) + constant(CONNECTOR) + constant(physical),
        encoded(pc.divide(us, _US_A_MS)),
        nullable(encoded(snapshot.cast(pa.string()))),
        constant(database),
        nullable(encoded(joined('["', scns, '","', seqs, '"]').cast(pa.string()))),
        nullable(encoded(us)),
        nullable(encoded(pc.multiply_checked(us, 1000))),
        b"\x02" + constant(name),
        nullable(encoded(bus[TXID])),
        block_bytes(batch, events.keys),
        encoded(events.ops.cast(pa.string())),
        b"".join(b"\x02" + longs(np.array([moment]))[0].as_py() for moment in made),
    )


def debezium_avro_rows(
    table: TableSchema, values: pa.Array, *, form: DebeziumForm | None = None, schema: Mapping[str, Any] | None = None
) -> ReadRows:
    """The change rows of Debezium's envelopes in Avro, as `debezium_rows` gives them.

    schema: in which they were written, where that is not `debezium_avro_schema` of this table: by it, those of their
    columns are read that the table has, and what of `source` we know. Raises `UnrepresentableValue` for a message of
    another schema or table.
    """
    form = form or DebeziumForm()
    written = WrittenSchema(debezium_avro_schema(table, "", form) if schema is None else schema)
    messages, places = present(values)
    cursor = AvroCursor(messages, places)
    everywhere = cursor.everywhere()
    images: dict[str, ImagesRead] = {}
    source: dict[str, pa.Array] = {name: pa.nulls(len(messages), _READ[kind]) for name, kind in _SAID.items()}
    ops = None
    for field in written.fields:
        if field.field in ("before", "after"):
            images[field.field] = _images(table, cursor, written, field, form)
        elif field.field == "source":
            source |= _source(cursor, written, field)
        elif field.field == "op" and field.base == "string":
            ops = cursor.column(pa.string(), field.present(cursor, everywhere))
        else:
            written.skip(cursor, field, everywhere)
    cursor.finish()
    if ops is None or len(images) < 2:
        raise UnrepresentableValue("its schema is none of Debezium's envelope: that has before, after, source and op")
    firsts, lasts = images["before"], images["after"]
    kinds = kinds_of(ops, KINDS)
    chosen = np.flatnonzero(kinds)
    at = pa.array(chosen)
    source = {name: array.take(at) for name, array in source.items()}
    check_table(table, table_names(source["db"], source["table"], source["schema"]), places[chosen])
    bus, is_ours = bus_of(source, ops.take(at))
    if not pc.all(is_ours).as_py():
        for column, *pair in zip(table.columns, firsts.columns, lasts.columns, strict=True):
            for image in pair:
                check_available(table, column, image)
    firsts, lasts = (
        ImagesRead([column.take(at) for column in image.columns], image.is_there[chosen]) for image in (firsts, lasts)
    )
    changes = changes_of(firsts, lasts, kinds[chosen], bus, places[chosen])
    return rows_of(table, changes, places[np.flatnonzero(kinds == 0)])


def _source(cursor: AvroCursor, written: WrittenSchema, field: WrittenField) -> dict[str, pa.Array]:
    """Those members of `source` that we know; it may have others."""
    wanted = field.present(cursor, cursor.everywhere())
    columns = {}
    for member in written.record(field.avro):
        kind = _SAID.get(member.field)
        if kind is None or member.base != _BASES[kind]:
            written.skip(cursor, member, wanted)
        else:
            columns[member.field] = cursor.column(_READ[kind], member.present(cursor, wanted))
    return columns


def _images(
    table: TableSchema, cursor: AvroCursor, written: WrittenSchema, field: WrittenField, form: DebeziumForm
) -> ImagesRead:
    is_there = field.present(cursor, cursor.everywhere())
    fields = written.record(field.avro)
    ours = WrittenSchema(_record("Value", "", _columns(table, form))).fields
    columns = [pa.nulls(len(is_there), forms_of(column.type).arrow) for column in table.columns]
    for member, chosen in zip(fields, written_columns(fields, table.columns, ours), strict=True):
        if chosen is None:
            written.skip(cursor, member, is_there)
            continue
        wanted, kind = member.present(cursor, is_there), columns[chosen.at].type
        value = converted(table, table.columns[chosen.at], partial(_value, cursor, chosen.read_as, wanted, form))
        columns[chosen.at] = converted(table, table.columns[chosen.at], partial(value.cast, kind))
    return ImagesRead(columns, is_there)


def _value(cursor: AvroCursor, column: Column, wanted: Wanted, form: DebeziumForm) -> pa.Array:
    kind = forms_of(column.type).arrow
    connect = connect_type(column, form)
    if pa.types.is_timestamp(kind):
        if kind.tz is not None:
            return moments_from(cursor.column(pa.string(), wanted), kind)
        counts = cursor.column(pa.int64(), wanted)
        return (pc.multiply_checked(counts, _US_A_MS) if is_milliseconds(column) else counts).cast(kind)
    if connect.type in _READ and connect.name != DECIMAL:
        return cursor.column(_READ[connect.type], wanted).cast(kind)
    return cursor.column(kind, wanted)


def _namespace(physical: str, table: TableSchema) -> str:
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part) for part in (physical, *name_parts(table.source))]
    return ".".join(f"_{part}" if not part or part[0].isdigit() else part for part in parts)


def _columns(table: TableSchema, form: DebeziumForm) -> list[dict[str, Any]]:
    names = [field["name"] for field in avro_schema(table)["fields"]]
    return [_column(column, name, form) for column, name in zip(table.columns, names, strict=True)]


def _column(column: Column, name: str, form: DebeziumForm) -> dict[str, Any]:
    connect = connect_type(column, form)
    avro: Any = _AVRO[connect.type]
    if connect.name is not None:
        avro = {"type": avro} if isinstance(avro, str) else dict(avro)
        avro |= {"connect.version": 1, "connect.name": connect.name}
        if connect.parameters:
            avro["connect.parameters"] = dict(connect.parameters)
        if connect.name == DECIMAL:
            of = dict(connect.parameters)
            avro |= {
                "scale": int(of["scale"]),
                "precision": int(of["connect.decimal.precision"]),
                "logicalType": "decimal",
            }
    field = {"name": name, "type": ["null", avro], "default": None} if column.nullable else {"name": name, "type": avro}
    return field if name == column.name else {**field, "doc": column.name}


def _field(name: str, kind: str, *, optional: bool = False) -> dict[str, Any]:
    avro = _AVRO[kind]
    return {"name": name, "type": ["null", avro], "default": None} if optional else {"name": name, "type": avro}


def _fields(fields: Sequence[tuple[str, str, bool]]) -> list[dict[str, Any]]:
    return [_field(name, kind, optional=optional) for name, kind, optional in fields]


def _split(full: str) -> tuple[str, str]:
    namespace, _, name = full.rpartition(".")
    return name, namespace


def _record(name: str, namespace: str, fields: Sequence[dict[str, Any]]) -> dict[str, Any]:
    full = f"{namespace}.{name}"
    return {
        "type": "record",
        "name": name,
        "namespace": namespace,
        "fields": list(fields),
        "connect.version": 1,
        "connect.name": full,
    }
