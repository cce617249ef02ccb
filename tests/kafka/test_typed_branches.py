"""Filters of Spark's between Kafka's own rows, messages and Avro, and copies: judged by SQL and by others' readers."""

import datetime as dt
import json
import random
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from deltalake import DeltaTable

from databus.core import FatalError
from databus.formats import DebeziumForm, debezium_avro_schema
from databus.pipeline import run
from databus.pipeline.engine._handle import OutputHandle
from databus.schema import Column, TableSchema
from tests.kafka.mirrors import produce, told
from tests.kafka.support import messages_in, new_prefix
from tests.kafka_source.support import Topics
from tests.pipeline.projects import Project
from tests.relay.support import Database, scripted

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("relay_in_thread")]

MIRROR = """\
name: mirror
sources: {{east: {{type: kafka, topics: ["{topic}"], kafka: {{bootstrap.servers: "{servers}"}}}}}}
inputs: {{east: {{type: databus, tables: ["east/kafka.*"], max_rows_per_trigger: 50}}}}
filters: {{some: {filter}}}
outputs:
  west:
    type: kafka
    from: some
    format: message
    topic: "{prefix}-{{table}}"
    control_topic: "{prefix}-control"
    create_topics: {{partitions: 3, replication_factor: 1, config: {{retention.ms: -1}}}}
    buckets: 2
    kafka: {{bootstrap.servers: "{servers}"}}
"""
PYTHON = """
import pyarrow.compute as pc

def keyed(rows):
    return rows.filter(pc.is_valid(rows.column("key")))
"""
FILTERS = {
    "where": {"type": "sql", "where": "key IS NOT NULL"},
    "select": {
        "type": "sql",
        "select": "SELECT partition, key, headers, value, timestamp FROM {topic} WHERE key IS NOT NULL",
    },
    "python": {"type": "python", "function": "keyed.py:keyed"},
}


def died(*_: object) -> None:
    raise FatalError("killed before the ledger")


@pytest.mark.parametrize("name", FILTERS)
def test_messages_that_a_typed_filter_lets_pass_are_as_they_were_in_their_partitions(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Killed before the ledger in between. What has no key stays behind; a tombstone is a message."""
    topics, path, prefix = Topics(kafka), tmp_path / "databus.yml", new_prefix()
    topic = topics.create(f"{prefix}from", partitions=3, **{"retention.ms": -1})
    each = {**FILTERS[name], "from": "east", "table": f"kafka.{topic}"}
    if "select" in each:
        each["select"] = each["select"].format(topic=f"kafka.{topic}")
    (tmp_path / "keyed.py").write_text(PYTHON)
    path.write_text(MIRROR.format(topic=topic, servers=kafka.bootstrap, prefix=prefix, filter=json.dumps(each)))

    def go_on(turn: int, code: int = 0) -> None:
        produce(topics, topic, 3, seed=turn, count=150)
        events: list[Any] = []
        assert run(path, once=True, session=spark, on_event=events.append) == code, events

    go_on(1)
    with monkeypatch.context() as patch:
        patch.setattr(OutputHandle, "advance", died)
        go_on(2, code=3)
    go_on(3)
    wanted = [[message for message in part if message[0] is not None] for part in told(kafka, topic)]
    assert told(kafka, f"{prefix}-{topic}") == wanted
    assert sum(map(len, wanted)) > 100


AVRO = """
filters:
  cheap:
    type: sql
    from: shop
    select: >
      SELECT id, customer_id, upper(status) AS state, total_cents * 2 AS doubled FROM orders WHERE status <> 'paid'
outputs:
  topics:
    type: kafka
    from: cheap
    format: {format}
    registry: {{url: "{registry}"}}
    topic: "{prefix}.{{table}}"
    control_topic: "{prefix}.control"
    create_topics: {{partitions: 2}}
    buckets: 2
    kafka: {{bootstrap.servers: "{servers}"}}
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["avro", "debezium_avro"])
def test_what_is_left_of_each_key_in_avro_behind_a_typed_filter_is_what_sql_selects(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Rows that leave the condition are deleted. Read by Confluent's deserializer."""
    prefix = new_prefix()
    with scripted(tmp_path / "registry", {"none": Database()}) as relay:
        registry = f"{relay.url}/registry"
        given = AVRO.format(format=name, registry=registry, prefix=prefix, servers=kafka.bootstrap)
        (tmp_path / "project").mkdir()
        project = Project(tmp_path / "project", given)
        project.work(40)
        project.once(spark)
        project.work(40)
        with monkeypatch.context() as patch:
            patch.setattr(OutputHandle, "advance", died)
            with pytest.raises(AssertionError, match="killed before the ledger"):
                project.once(spark)
        project.execute("UPDATE orders SET status = 'paid' WHERE id % 3 = 0", "DELETE FROM orders WHERE id % 5 = 0")
        project.once(spark)
        alive: dict[int, Any] = {}
        deserialize = AvroDeserializer(SchemaRegistryClient({"url": registry}))
        context = SerializationContext(f"{prefix}.orders", MessageField.VALUE)
        for message in (each for part in messages_in(kafka, f"{prefix}.orders") for each in part):
            row = message.value() and deserialize(message.value(), context)
            if row is not None:
                apply(alive, *((row["before"], row["after"]) if name == "debezium_avro" else images_of(row)))
    wanted = project.select("SELECT id, customer_id, upper(status), total_cents * 2 FROM orders WHERE status <> 'paid'")
    found = [(row["id"], row["customer_id"], row["state"], row["doubled"]) for row in alive.values()]
    assert sorted(found, key=repr) == wanted
    assert len(wanted) > 5


def images_of(row: Any) -> tuple[Any, Any]:
    """Of one of our own rows: what was before it, and what is now."""
    return (None, row) if row["_change_type"] in ("insert", "update_postimage") else (row, None)


def apply(alive: dict[int, Any], before: Any, after: Any) -> None:
    """Have rows by their key say what they are after a change."""
    if before is not None:
        alive.pop(before["id"], None)
    if after is not None:
        alive[after["id"]] = after


ORDERS = TableSchema(
    "shop.orders",
    (
        Column("id", "int64", nullable=False),
        Column("name", "string"),
        Column("total", "decimal(10,2)"),
        Column("at", "timestamp"),
        Column("raw", "binary"),
    ),
    ("id",),
)
COPY = """\
name: copy
sources:
  east:
    type: kafka
    topics: ["{topic}"]
    format: debezium-avro
    registry: {{url: "{registry}"}}
    first_images: true
    schemas:
      shop.orders:
        topic: "{topic}"
        columns:
          {{id: {{type: int64, nullable: false}}, name: string, total: "decimal(10,2)", at: timestamp, raw: binary}}
        key: [id]
    kafka: {{bootstrap.servers: "{servers}"}}
inputs: {{east: {{type: databus, tables: ["east/shop.*"], max_rows_per_trigger: 40}}}}
filters:
  some: {{type: sql, from: east, table: shop.orders, where: "name IS NULL OR name <> 'hidden'"}}
outputs:
  copy: {{type: delta, from: east, mode: mirror, path: "lake/{{table}}"}}
  some: {{type: delta, from: some, mode: mirror, path: "some/{{table}}"}}
"""


@dataclass
class Connector:
    """Writes envelopes as Debezium does, by Confluent's serializer, and knows what its table holds."""

    topics: Topics
    topic: str
    registry: str
    rows: dict[int, Any] = field(default_factory=dict)
    dice: random.Random = field(default_factory=lambda: random.Random(5))

    def change(self, count: int) -> None:
        schema = json.dumps(debezium_avro_schema(ORDERS, "db", DebeziumForm()))
        serialize = AvroSerializer(SchemaRegistryClient({"url": self.registry}), schema)
        context = SerializationContext(self.topic, MessageField.VALUE)
        envelopes = [change for _ in range(count) for change in self._changes()]
        self.topics.write(self.topic, [envelope and serialize(envelope, context) for envelope in envelopes])

    def _changes(self) -> list[Any]:
        key = self.dice.randrange(30)
        before = self.rows.pop(key, None)
        if before is None:
            self.rows[key] = self._row(key)
            return [self._envelope("c", None, self.rows[key])]
        if self.dice.random() < 0.25:
            return [self._envelope("d", before, None), None]
        to = self.dice.choice([key, key, *({*range(30)} - self.rows.keys())])
        self.rows[to] = self._row(to)
        if to == key:
            return [self._envelope("u", before, self.rows[to])]
        return [self._envelope("d", before, None), None, self._envelope("c", None, self.rows[to])]

    def _row(self, key: int) -> Any:
        return {
            "id": key,
            "name": self.dice.choice([None, "", "Zoë 订单", "hidden"]),
            "total": self.dice.choice(
                [None, Decimal("-0.01"), Decimal("99999999.99"), Decimal(self.dice.randrange(99))]
            ),
            "at": self.dice.choice([None, 0, -1, 1_700_000_000_123_456]),
            "raw": self.dice.choice([None, b"", b"\x00\xff"]),
        }

    def _envelope(self, op: str, before: Any, after: Any) -> Any:
        source = {"version": "3", "connector": "mysql", "name": "db", "ts_ms": 1, "db": "shop", "table": "orders"}
        return {"before": before, "after": after, "source": source, "op": op, "ts_ms": 2}


def test_a_mirror_of_envelopes_in_avro_is_what_their_table_holds(
    tmp_path: Any, spark: Any, kafka: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whole tables, and behind a typed filter. Killed before the ledger in between; read by Delta's own reader."""
    topics = Topics(kafka)
    topic, path = topics.create(), tmp_path / "databus.yml"
    with scripted(tmp_path / "registry", {"none": Database()}) as relay:
        registry = f"{relay.url}/registry"
        path.write_text(COPY.format(topic=topic, registry=registry, servers=kafka.bootstrap))
        connector = Connector(topics, topic, registry)

        def go_on(code: int = 0) -> None:
            connector.change(150)
            events: list[Any] = []
            assert run(path, once=True, session=spark, on_event=events.append) == code, events

        go_on()
        with monkeypatch.context() as patch:
            patch.setattr(OutputHandle, "advance", died)
            go_on(code=3)
        go_on()
    wanted = sorted((tuple(row.values()) for row in connector.rows.values()), key=repr)
    assert copied(tmp_path / "lake" / "orders") == wanted
    assert copied(tmp_path / "some" / "orders") == [row for row in wanted if row[1] != "hidden"]


def copied(path: Any) -> list[Any]:
    rows = DeltaTable(path).to_pyarrow_table(columns=["id", "name", "total", "at", "raw"]).to_pylist()
    epoch = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - as columns without a zone are
    for row in rows:
        row["at"] = None if row["at"] is None else (row["at"] - epoch) // dt.timedelta(microseconds=1)
    return sorted((tuple(row.values()) for row in rows), key=repr)
