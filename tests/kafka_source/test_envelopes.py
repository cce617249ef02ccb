"""Messages of other products become changes of their tables, with the place that they name in columns beside them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from databus.core import ConfigError, UnrepresentableValue
from databus.formats import confluent_framed, debezium_avro_messages, own_avro_messages, own_messages
from databus.schema import Column, TableSchema, frame_schema
from databus.sources import parse_source
from databus.sources.kafka._tables import _whole
from tests.kafka_source.support import Follower, Topics

ORDERS = {"columns": {"id": "int64", "name": "string"}, "key": ["id"]}
TABLE = TableSchema("shop.orders", (Column("id", "int64", nullable=False), Column("name", "string")), ("id",))
AT_MS = 1_700_000_000_000


def debezium(op: str, before: Any, after: Any, table: str = "orders", **more: Any) -> str:
    source = {"connector": "mysql", "db": "shop", "table": table, "ts_ms": AT_MS, "gtid": "g:1"}
    return json.dumps({"before": before, "after": after, "source": source, "op": op, "ts_ms": AT_MS, **more})


def row(number: int, name: str = "a") -> dict[str, Any]:
    return {"id": number, "name": name}


def told(follower: Follower, source: str = "shop.orders") -> list[tuple[int, Any, Any]]:
    return [(each["_change_type"], each["id"], each["name"]) for each in follower.rows(source)]


def test_debezium_s_messages_are_changes_in_the_order_of_their_partition(topics: Topics):
    name = topics.create()
    messages = [
        debezium("c", None, row(1)),
        debezium("u", row(1), row(1, "b")),
        debezium("u", None, row(1, "c")),  # a database that logs no first images
        debezium("d", row(1, "c"), None),
        None,
        debezium("r", None, row(2)),
    ]
    topics.write(name, messages)
    with Follower(topics.config(name, format="debezium", schemas={"shop.orders": ORDERS})) as follower:
        follower.until(lambda: len(follower.rows()) == 6)
    assert told(follower) == [(1, 1, "a"), (2, 1, "a"), (3, 1, "b"), (1, 1, "c"), (4, 1, "c"), (1, 2, "a")]
    first = follower.rows()[0]
    assert first["origin_txid"] == "g:1"
    assert first["origin_timestamp"].timestamp() == AT_MS / 1000
    assert first["origin_version"] is None


def test_an_update_without_its_first_image_is_poison_where_each_is_to_have_one(topics: Topics):
    name = topics.create()
    topics.write(name, [debezium("c", None, row(1)), debezium("u", None, row(1, "b")), debezium("c", None, row(2))])
    config = topics.config(name, format="debezium", schemas={"shop.orders": ORDERS}, first_images=True)
    with Follower(config) as follower:
        with pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 1: .*without its first image"):
            follower.until(lambda: False)
        assert [each[1] for each in told(follower)] == [1]


def test_tables_say_whether_their_updates_have_first_images(topics: Topics):
    given = {"schemas": {"shop.orders": ORDERS}}
    tables = [
        topics.config("any", **given, **more).definitions_here(Path())["shop.orders"]
        for more in ({"format": "debezium"}, {"format": "maxwell"}, {"format": "canal", "first_images": False})
    ]
    assert [table.first_images for table in tables] == [False, True, False]


def test_one_topic_has_messages_of_several_tables_and_others_are_passed_over(topics: Topics):
    name = topics.create()
    schemas = {"shop.orders": ORDERS, "shop.items": ORDERS}
    heartbeat = json.dumps({"ts_ms": 1})
    messages = [debezium("c", None, row(i), "orders" if i % 2 else "items") for i in range(6)]
    topics.write(name, [*messages, heartbeat, debezium("c", None, row(9), "unknown"), debezium("c", None, row(7))])
    options = {"format": "debezium", "schemas": schemas, "skip_others": True, "origin_columns": False}
    with Follower(topics.config(name, **options)) as follower:
        follower.until(lambda: len(follower.rows()) == 7)
    assert [each[1] for each in told(follower)] == [1, 3, 5, 7]
    assert [each[1] for each in told(follower, "shop.items")] == [0, 2, 4]
    of_all = sorted(follower.rows(), key=lambda row: (row["_commit_version"], row["_seq"]))
    assert [each["id"] for each in of_all] == [0, 1, 2, 3, 4, 5, 7], "as they stand in the partition"
    assert follower.gaps() == []
    with Follower(topics.config(name, **{**options, "skip_others": False})) as follower:
        with pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 6"):
            follower.until(lambda: False)
        assert len(follower.rows()) == 6
    with Follower(topics.config(name, **{**options, "skip_others": False}, on_poison="skip")) as follower:
        follower.until(lambda: len(follower.rows()) == 7)
    assert [f"offset {at}" in follower.gaps()[0] for at in (6, 7, 8)] == [True, True, False]


def test_maxwell_s_and_canal_s_messages_are_changes(topics: Topics):
    name = topics.create()
    start = {"database": "shop", "table": "orders", "ts": AT_MS // 1000}
    topics.write(
        name,
        [
            json.dumps({**start, "type": "insert", "xid": 5, "xoffset": 0, "data": row(1)}),
            json.dumps({**start, "type": "update", "xid": 6, "data": row(1, "b"), "old": {"name": "a"}}),
            json.dumps({**start, "type": "delete", "xid": 7, "data": row(1, "b")}),
        ],
    )
    with Follower(topics.config(name, format="maxwell", schemas={"shop.orders": ORDERS})) as follower:
        follower.until(lambda: len(follower.rows()) == 4)
    assert told(follower) == [(1, 1, "a"), (2, 1, "a"), (3, 1, "b"), (4, 1, "b")]
    assert [each["origin_version"] for each in follower.rows()] == [5, 6, 6, 7]

    name = topics.create()
    start = {"database": "shop", "table": "orders", "es": AT_MS, "id": 1, "isDdl": False, "sql": "", "pkNames": ["id"]}
    data = [{"id": "1", "name": "a"}, {"id": "2", "name": None}]
    topics.write(name, [json.dumps({**start, "type": "INSERT", "data": data, "old": None})])
    with Follower(topics.config(name, format="canal", schemas={"shop.orders": ORDERS})) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
    assert told(follower) == [(1, 1, "a"), (1, 2, None)]


def our_rows() -> pa.RecordBatch:
    rows = [{**row(number), "_seq": number} for number in (1, 2)]
    bus = {"_change_type": 1, "_commit_version": 7, "_commit_timestamp": 1, "_txid": "t", "_snapshot": False}
    schema = frame_schema(TABLE)
    return pa.RecordBatch.from_pylist([{**bus, **each} for each in rows], schema=schema)


@pytest.mark.parametrize("format_", ["own", "own-avro", "debezium-avro"])
def test_our_own_messages_come_back_with_their_pair_in_other_columns(topics: Topics, format_: str):
    name = topics.create()
    if format_ == "own":
        values = own_messages(TABLE, our_rows(), physical="db").values
    else:
        write = own_avro_messages if format_ == "own-avro" else debezium_avro_messages
        more = {} if format_ == "own-avro" else {"made_us": 1}
        values = confluent_framed(write(TABLE, our_rows(), physical="db", **more).values, 12)
    topics.write(name, values.to_pylist())
    declared = {**ORDERS, "columns": {"id": {"type": "int64", "nullable": False}, "name": "string"}, "topic": name}
    config = topics.config(name, format=format_, schemas={"shop.orders": {**declared, "schema_id": 12}})
    with Follower(config) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
    assert told(follower) == [(1, 1, "a"), (1, 2, "a")]
    assert [(each["origin_version"], each["origin_seq"]) for each in follower.rows()] == [(7, 1), (7, 2)]
    if format_ != "own":
        config = topics.config(name, format=format_, schemas={"shop.orders": {**declared, "schema_id": 13}})
        with Follower(config) as follower, pytest.raises(UnrepresentableValue, match="the schema 12"):
            follower.until(lambda: False)


def an_update(seq: int, number: int, before: str, after: str) -> list[dict[str, Any]]:
    bus = {"_commit_version": 7, "_commit_timestamp": 1, "_txid": "t", "_snapshot": False}
    images = ((2, before), (3, after))
    return [{**row(number, name), **bus, "_change_type": kind, "_seq": seq + kind - 2} for kind, name in images]


@pytest.mark.parametrize("format_", ["own", "own-avro"])
def test_an_update_that_comes_in_two_parts_is_a_delete_and_an_insert(topics: Topics, format_: str):
    """Each image is a message of our own words, and what queued when the relay polled may end between the two."""
    rows = [*an_update(1, 1, "a", "b"), *an_update(3, 2, "a", "b")]
    batch = pa.RecordBatch.from_pylist(rows, schema=frame_schema(TABLE))
    if format_ == "own":
        values = own_messages(TABLE, batch, physical="db").values.to_pylist()
    else:
        values = confluent_framed(own_avro_messages(TABLE, batch, physical="db").values, 12).to_pylist()
    name = topics.create()
    declared = {"columns": {"id": {"type": "int64", "nullable": False}, "name": "string"}, "key": ["id"], "topic": name}
    config = topics.config(name, format=format_, schemas={"shop.orders": {**declared, "schema_id": 12}})
    with Follower(config) as follower:
        for count, value in enumerate(values, 1):
            topics.write(name, [value])
            follower.until(lambda count=count: len(follower.rows()) == count)
    assert told(follower) == [(4, 1, "a"), (1, 1, "b"), (4, 2, "a"), (1, 2, "b")]


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        ([0, 0, 1, 1], [2, 3, 2, 3]),  # both images in a message, as Debezium's
        ([4, 5, 6, 7], [2, 3, 2, 3]),
        ([4, 6, 7, 8], [4, 1, 2, 3]),  # another message between them, of another partition or table
        ([4, 6, 7, 9], [4, 1, 4, 1]),
    ],
)
def test_images_are_of_one_update_where_nothing_came_between(numbers: list[int], kinds: list[int]):
    rows = [*an_update(1, 1, "a", "b"), *an_update(3, 2, "a", "b")]
    found, lacks_first = _whole(pa.RecordBatch.from_pylist(rows, schema=frame_schema(TABLE)), np.array(numbers))
    assert found.tolist() == kinds
    assert lacks_first == (1 in kinds)


def test_images_of_two_updates_are_not_of_one():
    """As where one partition has the first image of an update that changes a key, and the second of another one."""
    (first, _), (_, second) = an_update(1, 1, "a", "b"), an_update(3, 2, "a", "b")
    found, _ = _whole(pa.RecordBatch.from_pylist([first, second], schema=frame_schema(TABLE)), np.array([0, 1]))
    assert found.tolist() == [4, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"format": "debezium"}, "needs the tables"),
        ({"schemas": {"a.b": ORDERS}}, "raw has none"),
        ({"format": "own", "schemas": {"a.b": {**ORDERS, "topic": "b"}}}, "not among `topics`"),
        ({"format": "own", "schemas": {"a.b": {**ORDERS, "key": ["x"]}}}, "key column"),
        ({"format": "own", "schemas": {"a.b": {**ORDERS, "columns": {"id": "int"}}}}, "not a column type"),
        ({"format": "own-avro", "schemas": {"a.b": {**ORDERS, "topic": "a"}}}, "either `registry`, or `schema_id`"),
        ({"format": "own", "schemas": {"a.b": ORDERS}, "registry": {"url": "http://r"}}, "formats in Avro"),
    ],
)
def test_tables_that_cannot_be_are_refused(options: dict[str, Any], said: str):
    base = {"type": "kafka", "kafka": {"bootstrap.servers": "127.0.0.1:1"}, "topics": ["a"]}
    with pytest.raises(ConfigError, match=said):
        parse_source({**base, **options}, "sources.events")


def test_a_thousand_poisonous_messages_among_others_are_named_and_the_others_delivered(topics: Topics):
    name = topics.create()
    good = [debezium("c", None, row(i)) for i in range(2000)]
    topics.write(name, [value for pair in zip(good[:1000], ["{"] * 1000, strict=True) for value in pair] + good[1000:])
    options = {"format": "debezium", "schemas": {"shop.orders": ORDERS}, "on_poison": "skip"}
    with Follower(topics.config(name, **options)) as follower:
        follower.until(lambda: len(follower.rows()) == 2000)
    assert [each["id"] for each in follower.rows()] == list(range(2000))
    assert np.sum([int(each.split(" ", 1)[0]) for each in follower.gaps()]) == 1000
    with (
        Follower(topics.config(name, **options, poison_max=10)) as follower,
        pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 1:.*poison_max=10"),
    ):
        follower.until(lambda: False)


UNREADABLE = {
    "no UTF-8": debezium("c", None, row(2, "?")).encode().replace(b"?", b"\xff"),
    "half a character": debezium("c", None, row(2, "?")).encode().replace(b"?", b"\\ud800"),
    "no pair": debezium("c", None, row(2)).replace(
        '"connector": "mysql"', '"connector": "databus", "sequence": "[\\"99999999999999999999\\",\\"1\\"]"'
    ),
    "too deep": debezium("c", None, {"id": 2, "name": json.loads("[" * 600 + "]" * 600)}),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_whatever_a_reader_cannot_make_a_row_of_is_poison_and_can_be_passed(topics: Topics, what: str):
    name = topics.create()
    topics.write(name, [debezium("c", None, row(1)), UNREADABLE[what], debezium("c", None, row(3))])
    options = {"format": "debezium", "schemas": {"shop.orders": ORDERS}}
    with Follower(topics.config(name, **options)) as follower:
        with pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 1: "):
            follower.until(lambda: False)
        assert told(follower) == [(1, 1, "a")]
        follower.config = topics.config(name, **options, on_poison="skip")
        follower.kill()
        follower.until(lambda: len(follower.rows()) == 2)
    assert told(follower) == [(1, 1, "a"), (1, 3, "a")]
    assert [f"{name}, partition 0, offset 1: " in each for each in follower.gaps()] == [True]


def test_tables_of_one_name_in_two_schemas_of_a_database_stay_two_tables(topics: Topics):
    """As PostgreSQL, SQL Server and Oracle have them."""
    name = topics.create()
    both = [
        debezium("c", None, row(number, schema)).replace('"db": "shop"', f'"db": "shop", "schema": "{schema}"')
        for number, schema in ((1, "sales"), (2, "audit"), (3, "sales"))
    ]
    topics.write(name, both)
    schemas = {"shop.sales.orders": ORDERS, "shop.audit.orders": ORDERS}
    with Follower(topics.config(name, format="debezium", schemas=schemas)) as follower:
        follower.until(lambda: len(follower.rows()) == 3)
    assert told(follower, "shop.sales.orders") == [(1, 1, "sales"), (1, 3, "sales")]
    assert told(follower, "shop.audit.orders") == [(1, 2, "audit")]
    config = topics.config(name, format="debezium", schemas={"shop.orders": ORDERS})
    with Follower(config) as follower, pytest.raises(UnrepresentableValue, match=r"is of shop\.sales\.orders"):
        follower.until(lambda: False)
