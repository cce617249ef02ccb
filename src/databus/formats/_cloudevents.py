"""CloudEvents 1.0 in their structured JSON form, around a change in our own words or in Debezium's.

    {"specversion":"1.0","id":"7/1","source":"/databus/shop","type":"databus.change","subject":"main.orders",
     "time":"2026-07-01T12:00:00.000000Z","datacontenttype":"application/json","data":{"_source":"shop/main.orders",...}}

The attributes are those of the specification (github.com/cloudevents/spec, 1.0.2, and its JSON event format); around
Debezium's words they are those that its CloudEventsConverter writes, whose data is the images alone.
"""

from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus import __version__
from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, name_parts
from databus.formats._changes import BigIntegers, lines_by_column
from databus.formats._column_text import time_texts
from databus.formats._debezium import events_of, image_texts, row_texts
from databus.formats._debezium_schema import CONNECTOR
from databus.formats._debezium_types import DebeziumForm
from databus.formats._images import Places, images_of, rows_at
from databus.formats._messages import Messages, dumps, joined
from databus.formats._own import own_keys
from databus.schema import TableSchema

OWN_TYPE: Final = "databus.change"
DEBEZIUM_TYPE: Final = f"io.debezium.connector.{CONNECTOR}.DataChangeEvent"
_TEXT: Final = pa.large_string
_US_A_MS: Final = 1_000


def cloudevents_messages(
    table: TableSchema, batch: pa.RecordBatch, *, physical: str, big_integers: BigIntegers = BigIntegers.NUMBER
) -> Messages:
    """Each row of a batch as an event around the line of JSON that relay and files write; canonical keys."""
    rows = np.arange(batch.num_rows)
    text = joined(
        *_attributes(batch, rows, f"/databus/{quote(physical)}", OWN_TYPE),
        f',"subject":{dumps(table.source)},"datacontenttype":"application/json","data":',
        lines_by_column(f"{physical}/{table.source}", batch, big_integers, line_end=""),
        "}",
    )
    return Messages(text.cast(pa.large_binary()), own_keys(table, batch), pa.array(rows))


def cloudevents_debezium_messages(
    table: TableSchema, batch: pa.RecordBatch, *, physical: str, form: DebeziumForm | None = None
) -> Messages:
    """The changes of a batch as events around Debezium's images; keys and tombstones as in Debezium's envelope.

    form: its `with_schema` has no meaning here. Raises `UnrepresentableValue` for a value that the form cannot hold.
    """
    form = form or DebeziumForm()
    objects, keys = row_texts(table, batch, form)
    events = events_of(batch, images_of(table, batch), keys, tombstones=form.tombstones)
    database, name = name_parts(table.source)
    us = rows_at(batch.column(COMMIT_TIMESTAMP), events.rows).cast(pa.int64())
    snapshot = rows_at(batch.column(SNAPSHOT), events.rows)
    text = joined(
        *_attributes(batch, events.rows, f"/debezium/{CONNECTOR}/{quote(physical)}", DEBEZIUM_TYPE, events.ops),
        f',"datacontenttype":"application/json","iodebeziumversion":{dumps(__version__)},'
        f'"iodebeziumconnector":"{CONNECTOR}","iodebeziumname":{dumps(physical)},"iodebeziumtsms":"',
        pc.divide(us, _US_A_MS).cast(_TEXT()),
        '","iodebeziumsnapshot":"',
        pc.if_else(snapshot, pa.scalar("incremental", _TEXT()), pa.scalar("false", _TEXT())),
        f'","iodebeziumdb":{dumps(database)},"iodebeziumtable":{dumps(name)},"iodebeziumop":"',
        events.ops,
        '","data":{"before":',
        image_texts(objects, events.before),
        ',"after":',
        image_texts(objects, events.after),
        "}}",
    )
    binary = pa.large_binary()
    event_keys = pa.nulls(len(text), binary) if keys is None else rows_at(keys.cast(binary), events.keys)
    return Messages(text.cast(binary), event_keys, pa.array(events.rows))


def _attributes(
    batch: pa.RecordBatch, rows: Places, source: str, kind: str, ops: pa.LargeStringArray | None = None
) -> "list[str | pa.LargeStringArray]":
    """What every event has. ops: part of the id, so that two events of one row differ."""
    scns, seqs = (rows_at(batch.column(name), rows).cast(_TEXT()) for name in (COMMIT_VERSION, SEQ))
    return [
        '{"specversion":"1.0","id":"',
        scns,
        "/",
        seqs,
        *([] if ops is None else ["/", ops]),
        f'","source":{dumps(source)},"type":"{kind}","time":"',
        time_texts(COMMIT_TIMESTAMP, rows_at(batch.column(COMMIT_TIMESTAMP), rows)),
        '"',
    ]
