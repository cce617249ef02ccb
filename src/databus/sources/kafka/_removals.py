"""Tombstones that stand alone: which of them, and the keys of the rows that they say are gone. No I/O.

A tombstone repeats what the delete before it said. Compaction leaves the tombstone alone, for the last message of a key
is what stays, and some writers write nothing else.
"""

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import UnrepresentableValue, name_parts
from databus.formats import DebeziumForm, ReadRows, debezium_avro_rows, debezium_rows
from databus.schema import Column, TableSchema, forms_of, key_form
from databus.sources.kafka._consumer import TopicMessages
from databus.sources.kafka._places import Partition

_INTEGER_BYTES: Final = 8
_LARGE_BYTES: Final = 17
_LENGTH_BYTES: Final = 4
_DIGITS: Final = Context(prec=40)


Flags = npt.NDArray[np.bool_]


class LoneTombstones:
    """Finds those that stand alone. gone: of partitions, the hash of the key whose delete was read last; see `Next`."""

    def __init__(self, gone: Mapping[Partition, str] = MappingProxyType({})) -> None:
        self._gone = dict(gone)

    def gone(self, partition: Partition) -> str:
        """The hash of the last message's key, where that says that a row is gone."""
        return self._gone.get(partition, "")

    def alone(self, messages: TopicMessages, is_gone: Flags) -> npt.NDArray[np.intp]:
        """The places of those among these messages. is_gone: which messages are deletes, or may be, since they could
        not be read.
        """
        is_tombstone = messages.values.is_null().to_numpy(zero_copy_only=False)
        places = self._followed(messages, is_gone, is_tombstone) if is_tombstone.any() else []
        _, backwards = np.unique(messages.partitions[::-1], return_index=True)
        for place in len(messages) - 1 - backwards:
            at = (messages.topic, int(messages.partitions[place]))
            self._gone[at] = _hash(messages.keys[place].as_py()) if is_tombstone[place] or is_gone[place] else ""
        return np.array(places, np.intp)

    def _followed(self, messages: TopicMessages, is_gone: Flags, is_tombstone: Flags) -> list[int]:
        places = []
        partitions, keys = messages.partitions.tolist(), messages.keys.to_pylist()
        gone: dict[tuple[int, bytes | None], bool] = {}
        for place, at in enumerate(zip(partitions, keys, strict=True)):
            if is_tombstone[place] and keys[place] is not None:
                was_gone = gone.get(at)
                if was_gone is None:
                    was_gone = self.gone((messages.topic, partitions[place])) == _hash(keys[place])
                if not was_gone:
                    places.append(place)
            gone[at] = bool(is_tombstone[place] or is_gone[place])
        return places


def _hash(key: bytes | None) -> str:
    return "" if key is None else blake2b(key, digest_size=8).hexdigest()


def key_table(table: TableSchema) -> TableSchema:
    """A table that has nothing but the key."""
    return replace(table, columns=tuple(table.column(name) for name in table.key))


def debezium_keys(table: TableSchema, keys: pa.Array, form: DebeziumForm) -> ReadRows:
    """Deletes of rows by Debezium's keys in JSON, with their schemas or without. table: see `key_table`."""
    database, name = name_parts(table.source)
    members = {"op": "d", "source": {"db": database, "table": name}}
    values = []
    for key_object in _objects(keys):
        has_schema = key_object.keys() == {"schema", "payload"}
        schema, key = (key_object["schema"], key_object["payload"]) if has_schema else (None, key_object)
        fields = [{**schema, "field": "before"}] if isinstance(schema, Mapping) else []
        values.append({"schema": {"fields": fields}, "payload": {"before": key, **members}})
    return debezium_rows(table, _as_messages(values), form=replace(form, with_schema=True))


def debezium_avro_keys(
    table: TableSchema, keys: pa.Array, *, form: DebeziumForm, schema: Mapping[str, Any] | None = None
) -> ReadRows:
    """The same by keys in Avro: each is read as the first image of an envelope that has the key alone."""
    if schema is None:
        raise UnrepresentableValue("it is a tombstone, and `schema_id` is not of keys: say `registry`")
    database, name = name_parts(table.source)
    texts = [{"name": "db", "type": "string"}, {"name": "table", "type": "string"}]
    envelope = {
        "type": "record",
        "name": "databus.Removal",
        "fields": [
            {"name": "before", "type": ["null", schema]},
            {"name": "after", "type": ["null", schema["name"]]},
            {"name": "source", "type": {"type": "record", "name": "databus.Source", "fields": texts}},
            {"name": "op", "type": "string"},
        ],
    }
    behind = b"\x00" + b"".join(_avro_text(text) for text in (database, name, "d"))
    values = [b"\x02" + key + behind for key in keys.to_pylist()]
    return debezium_avro_rows(table, pa.array(values, pa.large_binary()), form=form, schema=envelope)


def maxwell_keys(table: TableSchema, keys: pa.Array, read: Callable[[TableSchema, pa.Array], ReadRows]) -> ReadRows:
    """The same by Maxwell's keys; those of other tables are among the others."""
    values = []
    for key_object in _objects(keys):
        data = {name: key_object.get(f"pk.{name.lower()}") for name in table.key}
        values.append(
            {"database": key_object.get("database"), "table": key_object.get("table"), "type": "delete", "data": data}
        )
    return read(table, _as_messages(values))


def canonical_columns(columns: Sequence[Column], keys: pa.Array) -> list[pa.Array]:
    """What canonical keys were written of; see docs/key-bytes.md. Raises `UnrepresentableValue` for other bytes."""
    try:
        parts = [_parts(key, len(columns)) for key in keys.to_pylist()]
        return [_column(column, [part[at] for part in parts]) for at, column in enumerate(columns)]
    except (ValueError, OverflowError, struct.error, pa.ArrowException) as error:
        raise UnrepresentableValue(f"its key is none of the table's, in canonical bytes: {error}") from error


def _parts(key: bytes, count: int) -> list[bytes]:
    if count == 1:
        return [key]
    parts, at = [], 0
    for _ in range(count):
        (length,) = struct.unpack_from(">i", key, at)
        at += _LENGTH_BYTES + length
        if length < 0 or at > len(key):
            raise ValueError("a part of it is null, or not whole")
        parts.append(key[at - length : at])
    if at != len(key):
        raise ValueError("bytes are left over")
    return parts


def _column(column: Column, parts: Sequence[bytes]) -> pa.Array:
    kind = forms_of(column.type).arrow
    form = key_form(kind)
    if form == "octets":
        return pa.array(parts, pa.binary()).cast(kind)
    if form == "float":
        return pa.array([struct.unpack(">d", part)[0] for part in parts], pa.float64()).cast(kind)
    numbers = [_number(part) for part in parts]
    if form == "number" and pa.types.is_decimal(kind):
        return pa.array(numbers, kind)
    whole = [int(number) for number in numbers]
    if whole != numbers:
        raise ValueError("it is not a whole number")
    if pa.types.is_date(kind):
        return pa.array(whole, pa.int32()).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.array(whole, pa.int8()).cast(kind)
    return pa.array(whole, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(whole, kind)


def _number(part: bytes) -> Decimal:
    if len(part) == _INTEGER_BYTES:
        return Decimal(int.from_bytes(part, "big", signed=True))
    if len(part) != _LARGE_BYTES:
        raise ValueError(f"a number of {len(part)} bytes")
    return Decimal(int.from_bytes(part[1:], "big", signed=True)).scaleb(-part[0], _DIGITS)


def _objects(keys: pa.Array) -> list[dict[str, Any]]:
    objects = []
    for key in keys.to_pylist():
        try:
            document = json.loads(key)
        except (ValueError, RecursionError) as error:
            raise UnrepresentableValue(f"its key is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise UnrepresentableValue("its key is not an object")
        objects.append(document)
    return objects


def _as_messages(values: Sequence[dict[str, Any]]) -> pa.Array:
    return pa.array([json.dumps(value).encode() for value in values], pa.binary())


def _avro_text(text: str) -> bytes:
    octets = text.encode()
    length, made = len(octets) << 1, bytearray()
    while length > 0x7F:
        made.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*made, length]) + octets
