"""A Kafka output as the tests make it, and what readers find in its topics, as Kafka's own client reads them."""

import json
import time
import uuid

from confluent_kafka import Consumer, IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from databus.pipeline import OutputContext
from databus.sinks.kafka._output import KafkaOutput
from tests.outputs.harnesses import parsed

QUICK = {"request_ms_max": 10_000, "transaction_ms_max": 20_000}


def output_of(server, folder, prefix, *, name="topics", **options):
    settings = {"bootstrap.servers": server.bootstrap, **options.pop("kafka", {})}
    given = {
        "from": "shop",
        "kafka": settings,
        "topic": f"{prefix}.{{table}}",
        "control_topic": f"{prefix}.control",
        "create_topics": {"partitions": 3},
        **QUICK,
        **options,
    }
    return KafkaOutput(KafkaOutput.config_model.model_validate(given), OutputContext("shop", name, folder))


def new_prefix():
    """Of topics that no other test has."""
    return f"t{uuid.uuid4().hex[:12]}"


def messages_in(server, topic, *, committed=True):
    """Of each partition of a topic, in order; none where there is no such topic."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    topics = admin.list_topics(timeout=30).topics
    if topic not in topics:
        return []
    if committed:
        wait_for_ends(admin, [TopicPartition(topic, number) for number in topics[topic].partitions])
    isolation = "read_committed" if committed else "read_uncommitted"
    settings = {"bootstrap.servers": server.bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": isolation, "auto.offset.reset": "earliest"})
    partitions = [[] for _ in topics[topic].partitions]
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(len(partitions))])
        ended = set()
        while len(ended) < len(partitions):
            message = reader.poll(60)
            assert message is not None, f"{topic} does not end"
            if message.error() is None:
                partitions[message.partition()].append(message)
            elif message.error().name() == "_PARTITION_EOF":
                ended.add(message.partition())
            else:  # of a broker that has just been started again
                assert message.error().name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN") or message.error().retriable()
        return partitions
    finally:
        reader.close()


def wait_for_ends(admin, partitions):
    """A commit is answered before each partition says that it was one. Of what stays open, nothing is read."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        levels = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED
        asked = [
            admin.list_offsets({partition: OffsetSpec.latest() for partition in partitions}, isolation_level=level)
            for level in levels
        ]
        stable, last = ([each.result(30).offset for each in found.values()] for found in asked)
        if stable == last:
            return
        time.sleep(0.02)  # brokers do not tell when a marker is written


def rows_in(server, topic, **options):
    """The rows in a topic, of each partition in order, without controls."""
    found = [[json.loads(message.value()) for message in part] for part in messages_in(server, topic, **options)]
    return [[row for row in part if "_control" not in row] for part in found]


class KafkaHarness:
    keeps = "changes"

    def __init__(self, server, folder, **options):
        self.server = server
        self.folder = folder
        self.prefix = new_prefix()
        self.options = options

    def full(self):
        return None

    def make(self):
        return output_of(self.server, self.folder, self.prefix, **self.options)

    def read(self, physical, table):
        parts = rows_in(self.server, f"{self.prefix}.{table.source.partition('.')[2]}")
        mine = [row for part in parts for row in part if row["_source"] == f"{physical}/{table.source}"]
        return [parsed(row, table) for row in mine]
