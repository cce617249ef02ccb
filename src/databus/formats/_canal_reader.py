"""Canal's flat messages to change rows; a message may hold several rows of one table."""

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, TXID, ChangeType, UnrepresentableValue
from databus.formats._buffers import bytes_without_nulls, places_of, validity_of
from databus.formats._canal import TYPES
from databus.formats._explicit_nulls import Olds, first_images
from databus.formats._mysql_words import clock_values, is_clock
from databus.formats._parse import parsed
from databus.formats._read import (
    Places,
    ReadChanges,
    ReadRows,
    check_table,
    converted,
    kinds_of,
    members_of,
    moments_from,
    present,
    rows_of,
    table_names,
)
from databus.schema import Column, TableSchema, forms_of

_US_A_MS: Final = 1_000
_KINDS: Final = {word: ChangeType(number) for number, word in enumerate(TYPES) if word is not None}
_MEMBERS: Final = (
    "data",
    "database",
    "es",
    "gtid",
    "id",
    "isDdl",
    "mysqlType",
    "old",
    "pkNames",
    "sql",
    "sqlType",
    "table",
    "ts",
    "type",
)


def canal_rows(table: TableSchema, values: pa.Array) -> ReadRows:
    """The change rows of Canal's flat messages of one table.

    What is not a change of a row (`isDdl`, `QUERY`) is among the others. Raises `UnrepresentableValue` for a message
    that cannot be read, with its number, and for a value that the column cannot hold.
    """
    messages, places = present(values)
    row = pa.list_(pa.struct([pa.field(column.name, pa.string()) for column in table.columns]))
    words = {name: pa.string() for name in ("database", "table", "type", "gtid")}
    members = {**words, "id": pa.int64(), "es": pa.int64(), "isDdl": pa.bool_(), "data": row, "old": row}
    read = parsed(messages, pa.schema(list(members.items())), places)
    is_ddl = read.members["isDdl"].fill_null(False).to_numpy(zero_copy_only=False)
    message_kinds = np.where(is_ddl, 0, kinds_of(read.members["type"], _KINDS))
    chosen = np.flatnonzero(message_kinds > 0)
    fields = {name: values.take(pa.array(chosen)) for name, values in read.members.items()}
    check_table(table, table_names(fields["database"], fields["table"]), places[chosen])

    counts, olds_there = (_lengths(fields[name]) for name in ("data", "old"))
    wrong = np.flatnonzero((olds_there > 0) & (olds_there != counts))
    if len(wrong):
        raise UnrepresentableValue(
            f"message {places[chosen[wrong[0]]]}: `old` has {olds_there[wrong[0]]} rows and `data` {counts[wrong[0]]}; "
            "which belong together is not known"
        )
    of = np.repeat(np.arange(len(chosen)), counts)
    starts, _ = places_of(counts)
    nth = np.arange(len(of)) - starts[of]
    kinds = message_kinds[chosen][of].astype(np.int8)
    data = members_of(fields["data"].flatten())
    old_starts, _ = places_of(olds_there)
    old_at = np.where(olds_there[of] > 0, old_starts[of] + nth, -1)
    old = members_of(fields["old"].flatten().take(pa.array(old_at, mask=old_at < 0)))
    is_update = kinds == ChangeType.UPDATE_POSTIMAGE
    olds = Olds(messages, read.objects, chosen[of], nth, bool((counts <= 1).all()), _old_of, _MEMBERS, table.names)
    last, before = [], []
    for column in table.columns:
        last.append(_values(table, column, data[column.name]))
        replaced = _values(table, column, old[column.name])
        before.append(first_images(olds, column.name, is_update, replaced, last[-1]))
    by_change = {name: fields[name].take(pa.array(of)) for name in ("id", "es", "gtid")}
    bus = {
        COMMIT_VERSION: by_change["id"],
        COMMIT_TIMESTAMP: pc.multiply(by_change["es"], _US_A_MS).cast(pa.timestamp("us", "UTC")),
        TXID: by_change["gtid"],
    }
    changes = ReadChanges(kinds, places[chosen][of], last, before, is_update, bus)
    return rows_of(table, changes, places[np.flatnonzero(message_kinds == 0)])


def _lengths(lists: pa.ListArray) -> Places:
    lengths: Places = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
    return lengths


def _old_of(message: dict[str, Any], nth: int) -> dict[str, Any] | None:
    old = message.get("old")
    return old[nth] if old else None


def _values(table: TableSchema, column: Column, raw: pa.StringArray) -> pa.Array:
    return converted(table, column, lambda: _value(column, raw))


def _value(column: Column, raw: pa.StringArray) -> pa.Array:
    kind = forms_of(column.type).arrow
    if is_clock(column):
        return clock_values(raw)
    if pa.types.is_timestamp(kind):
        return moments_from(raw, kind)
    if pa.types.is_binary(kind):
        return latin1_bytes(raw).cast(kind)
    return raw.cast(kind)


def latin1_bytes(texts: pa.Array) -> pa.LargeBinaryArray:
    """What `latin1_texts` wrote. Raises `ValueError` for a character that ISO 8859-1 does not have."""
    large = texts.cast(pa.large_binary())
    held = np.frombuffer(bytes_without_nulls(large), np.uint8)
    if (held > 0xC3).any():  # the first byte of a character above U+00FF
        raise ValueError("a character above U+00FF, where each is to be a byte")
    is_first = (held & 0xC0) != 0x80
    firsts = np.flatnonzero(is_first)
    is_wide = held[firsts] >= 0xC0
    codes = held[firsts].copy()
    codes[is_wide] = (codes[is_wide] & 0x03) << 6 | held[firsts[is_wide] + 1] & 0x3F
    lengths = pc.binary_length(large).fill_null(0).to_numpy().astype(np.int64)
    before = np.append(0, np.cumsum(is_first))  # characters before each byte
    offsets = before[np.append(0, np.cumsum(lengths))]
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(large),
        [validity_of(large), pa.py_buffer(offsets), pa.py_buffer(codes)],
        large.null_count,
    )
