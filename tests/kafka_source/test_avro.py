"""Avro is read by the schemas that its writers registered, older ones and newer ones among each other."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from databus.core import ServiceUnavailable, UnrepresentableValue
from databus.formats import (
    DebeziumForm,
    confluent_framed,
    debezium_avro_messages,
    debezium_avro_schema,
    own_avro_messages,
    own_avro_schema,
)
from databus.schema import Column, TableSchema
from tests.kafka_source.support import Follower, Topics
from tests.pipeline.cluster import free_port
from tests.relay.support import Database, rows_of, scripted

OLDER = TableSchema("shop.orders", (Column("id", "int64", nullable=False), Column("name", "string")), ("id",))
NEWER = replace(OLDER, columns=(OLDER.columns[0], Column("city", "string"), Column("extra", "int64"), OLDER.columns[1]))
DECLARED = {
    "columns": {"id": {"type": "int64", "nullable": False}, "name": "string", "city": "string"},
    "key": ["id"],
}


def framed(url: str, format_: str, topic: str, table: TableSchema, row: dict[str, Any]) -> bytes:
    batch = rows_of(table, 7, [row]).batch
    if format_ == "own-avro":
        values, schema = own_avro_messages(table, batch, physical="db").values, own_avro_schema(table)
    else:
        values = debezium_avro_messages(table, batch, physical="db", made_us=1).values
        schema = debezium_avro_schema(table, "db", DebeziumForm())
    number = SchemaRegistryClient({"url": url}).register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
    return bytes(confluent_framed(values, number)[0].as_py())


@pytest.mark.parametrize("format_", ["own-avro", "debezium-avro"])
def test_each_message_is_read_by_its_writer_s_schema_and_all_in_their_order(
    topics: Topics, tmp_path: Path, format_: str
) -> None:
    name = topics.create()
    with scripted(tmp_path, {"shop": Database()}) as relay:
        url = f"{relay.url}/registry"
        older = framed(url, format_, name, OLDER, {"id": 1, "name": "a"})
        newer = framed(url, format_, name, NEWER, {"id": 2, "name": "b", "city": "Zürich", "extra": 3})
        topics.write(name, [older, newer, None, older, newer, b"\x00\x00\x00\x00\x01x"])
        schemas = {"shop.orders": {**DECLARED, "topic": name}}
        config = topics.config(name, format=format_, schemas=schemas, registry={"url": url})
        with Follower(config) as follower:
            follower.until(lambda: len(follower.rows()) == 4)
            with pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 5: .*no schema 1"):
                follower.until(lambda: False)
        found = [(row["id"], row["name"], row["city"], row["origin_version"]) for row in follower.rows()]
    assert found == [(1, "a", None, 7), (2, "b", "Zürich", 7)] * 2


def test_while_the_registry_is_away_nothing_is_read_and_nothing_is_lost(topics: Topics, tmp_path: Path) -> None:
    name, port = topics.create(), free_port()
    schemas = {"shop.orders": {**DECLARED, "topic": name}}
    options = {"format": "own-avro", "schemas": schemas, "registry": {"url": f"http://127.0.0.1:{port}/registry"}}
    with scripted(tmp_path / "first", {"shop": Database()}) as relay:
        topics.write(name, [framed(f"{relay.url}/registry", "own-avro", name, OLDER, {"id": 1, "name": "a"})])
    with Follower(topics.config(name, **options)) as follower:
        with pytest.raises(ServiceUnavailable, match="does not answer"):
            follower.until(lambda: False)
        follower.kill()
        with scripted(tmp_path / "first", {"shop": Database()}, listen=f"127.0.0.1:{port}"):
            follower.until(lambda: len(follower.rows()) == 1)
