r"""Debezium's envelope as JSON: the row before a change, the row after it, and where the change comes from.

    {"before":null,"after":{"id":1,"total":"A+M="},"source":{"version":"0.1","connector":"databus","name":"shop",
     "ts_ms":1782907200000,"snapshot":"false","db":"main","sequence":"[\"7\",\"1\"]",...,"table":"orders","gtid":"c4"},
     "transaction":null,"op":"c","ts_ms":1782907200003,"ts_us":1782907200003000,"ts_ns":1782907200003000000}

What stands where is Debezium's own: `Envelope` and `AbstractSourceInfoStructMaker` of github.com/debezium/debezium. A
delete is followed by a tombstone; an update that changes the key is a delete, a tombstone and a create, whose headers
name each other's key. `sequence`, which Debezium leaves to its connectors, is the change's pair (`_commit_version`,
`_seq`). docs/formats.md says what is lost.
"""

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus import __version__
from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, TXID, ChangeType, name_parts
from databus.formats._column_text import quoted, texts_of
from databus.formats._debezium_schema import CONNECTOR, key_schema, value_schema
from databus.formats._debezium_transactions import block_pieces
from databus.formats._debezium_types import DebeziumForm, debezium_texts
from databus.formats._images import ChangeImages, Places, images_of, rows_at
from databus.formats._messages import Messages, dumps, joined, object_pieces
from databus.schema import TableSchema

_NEW_KEY: Final = "__debezium.newkey"
_OLD_KEY: Final = "__debezium.oldkey"
_TEXT: Final = pa.large_string
_OPS: Final = ("r", "c", None, "u", "d")  # by the number of the change type; 0 for a row that a snapshot read
_US_A_MS: Final = 1_000
_NS_A_US: Final = 1_000


class Events(NamedTuple):
    """The events of a batch, each of which becomes a message. Places are those of rows in the batch."""

    rows: Places
    """The row that the event is of."""
    ops: pa.LargeStringArray
    """`op` of the envelope; null for a tombstone."""
    before: Places
    """The first image, -1 for none."""
    after: Places
    """The last image, -1 for none."""
    keys: Places
    """The row whose key the message has."""
    others: Places
    """The row that has the other key where an update changes the key, else -1."""

    def where(self, wanted: npt.NDArray[np.bool_]) -> "Events":
        """Some of them."""
        places = np.flatnonzero(wanted)
        return Events(
            *(column.take(places) if isinstance(column, np.ndarray) else rows_at(column, places) for column in self)
        )

    def messages(self, envelopes: pa.LargeBinaryArray, keys: pa.LargeBinaryArray | None) -> Messages:
        """The events as messages, tombstones among them. envelopes: of the others. keys: each row's key."""
        is_event = self.ops.is_valid().to_numpy(zero_copy_only=False)
        values = envelopes if is_event.all() else rows_at(envelopes, np.where(is_event, np.cumsum(is_event) - 1, -1))
        if keys is None:
            return Messages(values, pa.nulls(len(values), pa.large_binary()), pa.array(self.rows))
        headers = {}
        if (self.others >= 0).any():
            is_create = pc.equal(self.ops, "c").fill_null(False).to_numpy(zero_copy_only=False)
            headers[_NEW_KEY] = rows_at(keys, np.where(is_create, -1, self.others))
            headers[_OLD_KEY] = rows_at(keys, np.where(is_create, self.others, -1))
        return Messages(values, rows_at(keys, self.keys), pa.array(self.rows), headers)


def debezium_messages(
    table: TableSchema, batch: pa.RecordBatch, *, physical: str, made_us: int, form: DebeziumForm | None = None
) -> Messages:
    """The changes of a batch in Debezium's envelope, with its keys, tombstones and headers.

    physical: the name of the physical source, which takes the place of Debezium's topic prefix. made_us: when the
    messages are made, in microseconds since 1970. A batch may say the places of its changes in their transactions, in
    columns `TOTAL_ORDER` and `COLLECTION_ORDER`. Raises `UnrepresentableValue` for a value that the form cannot hold.
    """
    form = form or DebeziumForm()
    objects, keys = row_texts(table, batch, form)
    if keys is not None and form.with_schema:
        keys = joined(f'{{"schema":{key_schema(table, physical, form)},"payload":', keys, "}")
    events = events_of(batch, images_of(table, batch), keys, tombstones=form.tombstones)
    is_event = events.ops.is_valid().to_numpy(zero_copy_only=False)
    texts = _envelopes(table, batch, events.where(is_event), objects, physical, made_us)
    if form.with_schema:
        texts = joined(f'{{"schema":{value_schema(table, physical, form)},"payload":', texts, "}")
    binary = pa.large_binary()
    return events.messages(texts.cast(binary), None if keys is None else keys.cast(binary))


def row_texts(
    table: TableSchema, batch: pa.RecordBatch, form: DebeziumForm
) -> tuple[pa.LargeStringArray, pa.LargeStringArray | None]:
    """Each row of a batch as an object, and its key as one, where the table has a key."""
    texts = {column.name: debezium_texts(table, column, batch.column(column.name), form) for column in table.columns}
    keys = joined(*object_pieces(table.key, (texts[name] for name in table.key))) if table.key else None
    return joined(*object_pieces(table.names, texts.values())), keys


def events_of(
    batch: pa.RecordBatch, images: ChangeImages, keys: pa.LargeStringArray | None, *, tombstones: bool
) -> Events:
    """What the changes of a batch become. keys: each row's key."""
    has_tombstone = int(tombstones and keys is not None)
    is_move = np.zeros(len(images.rows), np.bool_)
    updates = np.flatnonzero(images.has_before)
    if keys is not None and len(updates):
        same = pc.equal(rows_at(keys, images.before[updates]), rows_at(keys, images.rows[updates]))
        is_move[updates] = ~same.to_numpy(zero_copy_only=False)
    is_delete = images.kinds == ChangeType.DELETE
    counts = 1 + is_delete * has_tombstone + is_move * (1 + has_tombstone)
    change = np.repeat(np.arange(len(counts)), counts)
    nth = np.arange(len(change)) - np.repeat(np.cumsum(counts) - counts, counts)

    rows, before, move = images.rows[change], images.before[change], is_move[change]
    is_last = nth == counts[change] - 1
    is_leaving, is_arriving = move & ~is_last, move & is_last
    is_tombstone = (nth == 1) & (is_delete[change] | (move & ~is_last))
    snapshot = batch.column(SNAPSHOT).to_numpy(zero_copy_only=False)[rows]
    numbers = np.where(snapshot, 0, images.kinds[change])
    numbers = np.where(is_leaving, int(ChangeType.DELETE), np.where(is_arriving, int(ChangeType.INSERT), numbers))
    is_removal = numbers == ChangeType.DELETE
    return Events(
        rows,
        pa.array(_OPS, _TEXT()).take(pa.array(numbers, pa.int64(), mask=is_tombstone)),
        np.where(is_removal & ~is_leaving, rows, np.where(is_arriving, -1, before)),
        np.where(is_removal, -1, rows),
        np.where(is_leaving, before, rows),
        np.where(is_arriving, before, np.where(is_leaving & ~is_tombstone, rows, -1)),
    )


def _envelopes(
    table: TableSchema, batch: pa.RecordBatch, events: Events, objects: pa.LargeStringArray, physical: str, made_us: int
) -> pa.LargeStringArray:
    made = f'"ts_ms":{made_us // _US_A_MS},"ts_us":{made_us},"ts_ns":{made_us * _NS_A_US}}}'
    return joined(
        '{"before":',
        image_texts(objects, events.before),
        ',"after":',
        image_texts(objects, events.after),
        ',"source":',
        *_source_pieces(table, batch, events.rows, physical),
        *block_pieces(batch, events.keys),
        '"op":"',
        events.ops,
        f'",{made}',
    )


def image_texts(objects: pa.LargeStringArray, places: Places) -> pa.LargeStringArray:
    """The rows at some places, null in words at -1."""
    texts = rows_at(objects, places)
    return pc.coalesce(texts, pa.scalar("null", _TEXT())) if texts.null_count else texts


def _source_pieces(
    table: TableSchema, batch: pa.RecordBatch, rows: Places, physical: str
) -> "list[str | pa.LargeStringArray]":
    database, name = name_parts(table.source)
    bus = {
        column: rows_at(batch.column(column), rows)
        for column in (COMMIT_VERSION, SEQ, COMMIT_TIMESTAMP, TXID, SNAPSHOT)
    }
    us = bus[COMMIT_TIMESTAMP].cast(pa.int64())
    us_text = us.cast(_TEXT())
    snapshot = pc.if_else(bus[SNAPSHOT], pa.scalar("incremental", _TEXT()), pa.scalar("false", _TEXT()))
    return [
        f'{{"version":{dumps(__version__)},"connector":"{CONNECTOR}","name":{dumps(physical)},"ts_ms":',
        pc.divide(us, _US_A_MS).cast(_TEXT()),
        ',"snapshot":',
        quoted(snapshot),
        f',"db":{dumps(database)},"sequence":"[\\"',
        bus[COMMIT_VERSION].cast(_TEXT()),
        '\\",\\"',
        bus[SEQ].cast(_TEXT()),
        '\\"]","ts_us":',
        us_text,
        ',"ts_ns":',
        pc.if_else(pc.equal(us, 0), us_text, joined(us_text, "000")),
        f',"table":{dumps(name)},"gtid":',
        texts_of(TXID, bus[TXID], big_in_string=False),
        "}",
    ]
