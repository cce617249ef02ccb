"""Change rows into messages of each format and back, by one thread, from Arrow batches in memory.

    python -m benchmarks.formats [SCALE]

Rows have six columns (a key, a name, an amount, a flag, a time, a text) and 254 bytes in Arrow's form; a batch has
50,000. "inserts" is a message a row; "mixed" is one insert, two updates and one delete in six rows, so four messages,
and is counted in rows, too. The time is the processor's for this process, so that others on the machine do not count.
The limit beside it is `json.dumps` of rows that are Python objects already, which is what writing them one by one costs
at the least, and `json.loads` of our own lines for readers.
"""

import json
import time
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from benchmarks.figures import Figure, median_of, show
from databus.core import ChangeType
from databus.formats import (
    DebeziumForm,
    Messages,
    ReadRows,
    canal_messages,
    canal_rows,
    cloudevents_debezium_messages,
    cloudevents_messages,
    debezium_avro_messages,
    debezium_avro_rows,
    debezium_messages,
    debezium_rows,
    maxwell_messages,
    maxwell_rows,
    own_avro_messages,
    own_avro_rows,
    own_messages,
    own_rows,
)
from databus.schema import Column, TableSchema, frame_schema

ROWS = 200_000
ROWS_A_BATCH = 50_000
RUNS = 5
PHYSICAL = "shop"
MADE_US = 1_782_907_200_000_000
NOTE_BYTES = 192
TABLE = TableSchema(
    "shop.orders",
    (
        Column("id", "int64", nullable=False, db_type="bigint"),
        Column("customer", "string", db_type="varchar(40)"),
        Column("total", "decimal(12,2)", db_type="decimal(12,2)"),
        Column("paid", "bool", db_type="bit(1)"),
        Column("placed_at", "timestamp", db_type="datetime(6)"),
        Column("note", "string", db_type="text"),
    ),
    ("id",),
)
MIXED = [ChangeType.INSERT, *[ChangeType.UPDATE_PREIMAGE, ChangeType.UPDATE_POSTIMAGE] * 2, ChangeType.DELETE]


def batch_of(rows: int, kinds: list[ChangeType]) -> pa.RecordBatch:
    """Rows of orders; the two images of an update have one key."""
    random = np.random.default_rng(1)
    schema = frame_schema(TABLE)
    ids = np.arange(rows)
    cycle = np.array([int(kind) for kind in kinds], np.int8)
    change_types = np.resize(cycle, rows)
    is_post = change_types == ChangeType.UPDATE_POSTIMAGE
    letters = pa.array(np.array([f"{n:x}".rjust(NOTE_BYTES, "n") for n in range(1000)]))
    columns = [
        pa.array(ids - is_post),
        pa.array([f"customer number {n:06d}" for n in range(1000)]).take(pa.array(ids % 1000)),
        pa.array(random.integers(0, 10**9, rows)).cast(pa.decimal128(20, 0)).cast(pa.decimal128(12, 2)),
        pa.array(ids % 3 == 0),
        pa.array(MADE_US + random.integers(0, 10**9, rows)).cast(pa.timestamp("us")),
        letters.take(pa.array(ids % 1000)),
        pa.array(change_types),
        pa.array(ids // 6 + 1),
        pa.array(ids % 6 + 1),
        pa.array(MADE_US + ids).cast(pa.timestamp("us", "UTC")),
        pa.array([f"3E11FA47-71CA-11E1-9E33-C80AA9429562:{n}" for n in range(100)]).take(pa.array(ids % 100)),
        pa.array(np.zeros(rows, bool)),
    ]
    return pa.record_batch([c.cast(f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


WRITERS: dict[str, Callable[[pa.RecordBatch], Messages]] = {
    "own JSON": lambda batch: own_messages(TABLE, batch, physical=PHYSICAL),
    "Debezium JSON": lambda batch: debezium_messages(TABLE, batch, physical=PHYSICAL, made_us=MADE_US),
    "Debezium JSON with schema": lambda batch: debezium_messages(
        TABLE, batch, physical=PHYSICAL, made_us=MADE_US, form=DebeziumForm(with_schema=True)
    ),
    "Maxwell JSON": lambda batch: maxwell_messages(TABLE, batch),
    "Canal flat message": lambda batch: canal_messages(TABLE, batch, made_ms=MADE_US // 1000),
    "CloudEvents, own": lambda batch: cloudevents_messages(TABLE, batch, physical=PHYSICAL),
    "CloudEvents, Debezium": lambda batch: cloudevents_debezium_messages(TABLE, batch, physical=PHYSICAL),
}


WRITERS |= {
    "own Avro": lambda batch: own_avro_messages(TABLE, batch, physical=PHYSICAL),
    "Debezium Avro": lambda batch: debezium_avro_messages(TABLE, batch, physical=PHYSICAL, made_us=MADE_US),
}
READERS: dict[str, Callable[[pa.Array], ReadRows]] = {
    "own JSON": lambda values: own_rows(TABLE, values),
    "Debezium JSON": lambda values: debezium_rows(TABLE, values),
    "Maxwell JSON": lambda values: maxwell_rows(TABLE, values),
    "Canal flat message": lambda values: canal_rows(TABLE, values),
    "own Avro": lambda values: own_avro_rows(TABLE, values),
    "Debezium Avro": lambda values: debezium_avro_rows(TABLE, values),
}


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _dumps(rows: list[dict[str, object]]) -> None:
    for row in rows:
        json.dumps(row, default=str)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    """See this module's first lines."""
    pa.set_cpu_count(1)
    rows = max(60, int(ROWS * scale))
    for name, kinds in (("inserts", [ChangeType.INSERT]), ("mixed", MIXED)):
        whole = batch_of(rows, kinds)
        size = min(rows, ROWS_A_BATCH) // len(MIXED) * len(MIXED)
        batches = [whole.slice(at, size) for at in range(0, rows - size + 1, size)]
        count = sum(batch.num_rows for batch in batches)
        plain = batches[0].slice(0, 10_000).to_pylist()
        limit = len(plain) / median_of(RUNS, lambda plain=plain: _seconds(lambda: _dumps(plain)))
        for form, write in WRITERS.items():
            size_of = sum(write(batch).values.nbytes for batch in batches) / count
            seconds = median_of(
                RUNS, lambda write=write, batches=batches: _seconds(lambda: [write(batch) for batch in batches])
            )
            yield Figure(
                f"{form}, {name}, {size_of:,.0f} B a row", count / seconds, "rows/s", "json.dumps a row", limit
            )
        lines = WRITERS["own JSON"](batches[0].slice(0, 10_000)).values.to_pylist()
        limit = len(lines) / median_of(RUNS, lambda lines=lines: _seconds(lambda: [json.loads(line) for line in lines]))
        for form, read in READERS.items():
            messages = [WRITERS[form](batch).values for batch in batches]
            found = sum(read(values).rows.num_rows for values in messages)
            seconds = median_of(
                RUNS, lambda read=read, messages=messages: _seconds(lambda: [read(values) for values in messages])
            )
            yield Figure(f"read {form}, {name}", found / seconds, "rows/s", "json.loads a row", limit)


if __name__ == "__main__":
    show(figures)
