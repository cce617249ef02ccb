"""Places of changes in transactions, begins and ends: the same in JSON and Avro; readers of rows pass over them."""

import datetime as dt
import io
import json

import fastavro
import numpy as np
import pyarrow as pa

from databus.core import ChangeType
from databus.formats import (
    COLLECTION_ORDER,
    TOTAL_ORDER,
    DebeziumForm,
    TransactionMarks,
    debezium_avro_messages,
    debezium_avro_rows,
    debezium_avro_schema,
    debezium_messages,
    debezium_rows,
    transaction_avro_messages,
    transaction_avro_schemas,
    transaction_messages,
)
from databus.schema import Column, TableSchema, frame_schema

TABLE = TableSchema("main.t", (Column("id", "int64", nullable=False),), ("id",))
PLACES = [(1, 1), (300, 2), (0, 0)]
MARKS = TransactionMarks(
    pa.array(["0-1-5", 'a"ü', "0-1-5"]),
    np.array([-1, 1 << 40, 7]),
    np.array([False, True, True]),
    np.array([0, 1 << 33, 1]),
    np.array([0, 0, 2, 3]),
    pa.array(["a.t", 'ü".u', "a.t"]),
    np.array([1, (1 << 33) - 1, 1]),
)


def batch_of():
    at = dt.datetime(2026, 7, 1, tzinfo=dt.UTC)
    rows = [[number, int(ChangeType.INSERT), 7, number, at, "0-1-5", False] for number in range(len(PLACES))]
    schema = frame_schema(TABLE)
    columns = zip(zip(*rows, strict=True), schema, strict=True)
    return pa.RecordBatch.from_arrays([pa.array(each, field.type) for each, field in columns], schema=schema)


def placed(batch):
    batch = batch.append_column(TOTAL_ORDER, pa.array([total for total, _ in PLACES]))
    return batch.append_column(COLLECTION_ORDER, pa.array([own for _, own in PLACES]))


def in_avro(schema, value):
    return fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(schema))


def test_a_change_says_its_place_and_one_without_a_place_says_none():
    of = {"physical": "p", "made_us": 0}
    texts = debezium_messages(TABLE, placed(batch_of()), **of).values.to_pylist()
    blocks = [json.loads(each)["transaction"] for each in texts]
    assert blocks == [
        {"id": "0-1-5", "total_order": 1, "data_collection_order": 1},
        {"id": "0-1-5", "total_order": 300, "data_collection_order": 2},
        None,
    ]
    schema = debezium_avro_schema(TABLE, "p", DebeziumForm())
    binary = debezium_avro_messages(TABLE, placed(batch_of()), **of).values.to_pylist()
    assert [in_avro(schema, each)["transaction"] for each in binary] == blocks


def test_readers_find_the_rows_of_changes_that_say_their_places():
    of = {"physical": "p", "made_us": 0}
    for write, read in ((debezium_messages, debezium_rows), (debezium_avro_messages, debezium_avro_rows)):
        without, withal = (read(TABLE, write(TABLE, each, **of).values) for each in (batch_of(), placed(batch_of())))
        assert without.rows.equals(withal.rows)
        assert withal.rows.num_rows == len(PLACES)


def test_begins_and_ends_say_the_same_in_json_and_in_avro():
    of_keys, of_values = transaction_avro_schemas()
    texts, binary = transaction_messages(MARKS), transaction_avro_messages(MARKS)
    values = [json.loads(each) for each in texts.values.to_pylist()]
    assert values == [
        {"status": "BEGIN", "id": "0-1-5", "event_count": None, "data_collections": None, "ts_ms": -1},
        {
            "status": "END",
            "id": 'a"ü',
            "event_count": 1 << 33,
            "data_collections": [
                {"data_collection": "a.t", "event_count": 1},
                {"data_collection": 'ü".u', "event_count": (1 << 33) - 1},
            ],
            "ts_ms": 1 << 40,
        },
        {
            "status": "END",
            "id": "0-1-5",
            "event_count": 1,
            "data_collections": [{"data_collection": "a.t", "event_count": 1}],
            "ts_ms": 7,
        },
    ]
    assert [in_avro(of_values, each) for each in binary.values.to_pylist()] == values
    keys = [json.loads(each) for each in texts.keys.to_pylist()]
    assert keys == [{"id": each["id"]} for each in values]
    assert [in_avro(of_keys, each) for each in binary.keys.to_pylist()] == keys
