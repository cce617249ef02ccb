"""Debezium's transaction metadata: a change's place in its transaction, and the messages of a topic of transactions.

    "transaction":{"id":"c4","total_order":2,"data_collection_order":1}
    {"status":"BEGIN","id":"c4","event_count":null,"data_collections":null,"ts_ms":1782907200000}
    {"status":"END","id":"c4","event_count":2,"data_collections":[{"data_collection":"main.orders","event_count":2}],
     "ts_ms":1782907200000}

Names, types and order of the fields are Debezium's own (`SchemaFactory` and `TransactionStructMaker` of
github.com/debezium/debezium, with `provide.transaction.metadata=true`). Who counts is no matter here.
"""

from functools import cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import TXID
from databus.formats._avro_writing import constant, encoded, joined_bytes, longs, nullable
from databus.formats._column_text import texts_of
from databus.formats._debezium_schema import fields_of, struct_of
from databus.formats._images import Places, rows_at
from databus.formats._messages import Messages, dumps, joined

TOTAL_ORDER: Final = "\0total_order"
COLLECTION_ORDER: Final = "\0data_collection_order"
"""Columns of a batch that say the place of each row's change in its transaction, from 1 on, and among those of its
table there; 0 for a change without one. No database has a column with such a name."""

_TEXT: Final = pa.large_string
TRANSACTION_KEY: Final = "io.debezium.connector.common.TransactionMetadataKey"
TRANSACTION_VALUE: Final = "io.debezium.connector.common.TransactionMetadataValue"
EVENT_COLLECTION: Final = "event.collection"
KEY_FIELDS: Final = (("id", "string", False),)
FIRST_FIELDS: Final = (("status", "string", False), ("id", "string", False), ("event_count", "int64", True))
COLLECTION_FIELDS: Final = (("data_collection", "string", False), ("event_count", "int64", False))
LAST_FIELDS: Final = (("ts_ms", "int64", False),)
"""Of keys and values; `data_collections` stands between the first and the last of a value."""

Int = npt.NDArray[np.int64]


class TransactionMarks(NamedTuple):
    """Begins and ends of transactions, in order."""

    ids: pa.StringArray
    """The transaction's id."""
    ts_ms: Int
    """Time of its commit, milliseconds since 1970."""
    is_end: npt.NDArray[np.bool_]
    """Whether it is an end; if not, a begin."""
    counts: Int
    """How many events an end counts."""
    starts: Int
    """Where the tables of an end stand in `tables` and `table_counts`, with one more at the end; a begin has none."""
    tables: pa.StringArray
    table_counts: Int


def has_orders(batch: pa.RecordBatch) -> bool:
    """Whether a batch says the places of its changes."""
    return TOTAL_ORDER in batch.schema.names


def block_pieces(batch: pa.RecordBatch, rows: Places) -> "list[str | pa.LargeStringArray]":
    """The member `transaction` of envelopes of these rows, as JSON, with the comma before it and after."""
    if not has_orders(batch):
        return [',"transaction":null,']
    total, own, txid = (rows_at(batch.column(name), rows) for name in (TOTAL_ORDER, COLLECTION_ORDER, TXID))
    block = joined(
        '{"id":',
        texts_of(TXID, txid, big_in_string=False),
        ',"total_order":',
        total.cast(_TEXT()),
        ',"data_collection_order":',
        own.cast(_TEXT()),
        "}",
    )
    return [',"transaction":', pc.if_else(pc.greater(total, 0), block, pa.scalar("null", _TEXT())), ","]


def block_bytes(batch: pa.RecordBatch, rows: Places) -> "bytes | pa.LargeBinaryArray":
    """The same in Avro."""
    if not has_orders(batch):
        return b"\x00"
    total, own, txid = (rows_at(batch.column(name), rows) for name in (TOTAL_ORDER, COLLECTION_ORDER, TXID))
    block = joined_bytes(b"\x02", encoded(txid), encoded(total), encoded(own))
    return pc.if_else(pc.greater(total, 0), block, pa.scalar(b"\x00", pa.large_binary()))


def transaction_messages(marks: TransactionMarks, *, with_schema: bool = False) -> Messages:
    """Begins and ends as JSON, each with its transaction's id as key."""
    ids = texts_of("id", marks.ids, big_in_string=False)
    counts = pa.array(marks.counts)
    collections = joined(
        '{"data_collection":',
        texts_of("data_collection", marks.tables, big_in_string=False),
        ',"event_count":',
        pa.array(marks.table_counts).cast(_TEXT()),
        "}",
    )
    tables = pc.binary_join(_lists(marks.starts, collections), pa.scalar(",", _TEXT()))
    ends = joined('"END","id":', ids, ',"event_count":', counts.cast(_TEXT()), ',"data_collections":[', tables, "]")
    begins = joined('"BEGIN","id":', ids, ',"event_count":null,"data_collections":null')
    bodies = pc.if_else(pa.array(marks.is_end), ends, begins)
    values = joined('{"status":', bodies, ',"ts_ms":', pa.array(marks.ts_ms).cast(_TEXT()), "}")
    keys = joined('{"id":', ids, "}")
    if with_schema:
        values = joined(f'{{"schema":{_value_schema()},"payload":', values, "}")
        keys = joined(f'{{"schema":{_key_schema()},"payload":', keys, "}")
    return _messages(values.cast(pa.large_binary()), keys.cast(pa.large_binary()))


def transaction_avro_messages(marks: TransactionMarks) -> Messages:
    """What `transaction_messages` gives, in Avro."""
    collections = joined_bytes(b"\x02", encoded(marks.tables), longs(marks.table_counts))
    items = pc.binary_join(_lists(marks.starts, collections), pa.scalar(b"", pa.large_binary()))
    blocks = joined_bytes(b"\x02", longs(np.diff(marks.starts)), items, b"\x00")
    ids = encoded(marks.ids)
    ends = joined_bytes(constant("END"), ids, nullable(longs(marks.counts)), blocks)
    begins = joined_bytes(constant("BEGIN"), ids, b"\x00\x00")
    values = joined_bytes(pc.if_else(pa.array(marks.is_end), ends, begins), longs(marks.ts_ms))
    return _messages(values, ids)


def _lists(starts: Int, values: pa.Array) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(starts), values)


def _messages(values: pa.LargeBinaryArray, keys: pa.LargeBinaryArray) -> Messages:
    return Messages(values, keys, pa.array(np.arange(len(values))))


@cache
def _key_schema() -> str:
    return dumps(struct_of(TRANSACTION_KEY, fields_of(KEY_FIELDS)))


@cache
def _value_schema() -> str:
    table = struct_of(EVENT_COLLECTION, fields_of(COLLECTION_FIELDS), optional=True)
    tables = {"type": "array", "items": table, "optional": True, "field": "data_collections"}
    return dumps(struct_of(TRANSACTION_VALUE, [*fields_of(FIRST_FIELDS), tables, *fields_of(LAST_FIELDS)]))
