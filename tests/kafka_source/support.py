"""What the Kafka source's tests are made with: topics of a real broker, and a tape that a source is polled into."""

import itertools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from databus.core import DatabusError, ServiceUnavailable
from databus.sources.kafka import KafkaConfig, KafkaSource
from databus.testing._source_suite import Tape
from databus.testing.servers import Kafka

WAIT_S = 60.0
_names = itertools.count(1)


class Topics:
    """Topics of names of their own on the broker of this run, and what is written to them."""

    def __init__(self, kafka: Kafka) -> None:
        self.bootstrap = kafka.bootstrap
        self.prefix = f"t{uuid.uuid4().hex[:8]}"
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def create(self, name: str = "", partitions: int = 1, **settings: Any) -> str:
        """A new topic; returns its name."""
        name = name or f"{self.prefix}.topic{next(_names)}"
        wanted = NewTopic(name, partitions, 1, config={key.replace("_", "."): str(v) for key, v in settings.items()})
        done(self._admin.create_topics([wanted]))
        eventually(lambda: self._has_leaders(name, partitions))
        return name

    def _has_leaders(self, name: str, partitions: int) -> bool:
        found = self._admin.list_topics(name, timeout=10).topics[name].partitions
        return len(found) == partitions and all(each.leader >= 0 for each in found.values())

    def delete(self, name: str) -> None:
        done(self._admin.delete_topics([name]))
        eventually(lambda: name not in self._admin.list_topics(timeout=10).topics)

    def widen(self, name: str, partitions: int) -> None:
        done(self._admin.create_partitions([NewPartitions(name, partitions)]))
        eventually(lambda: len(self._admin.list_topics(name, timeout=10).topics[name].partitions) == partitions)

    def purge(self, name: str, partition: int, before: int) -> None:
        """Have the broker drop what stands before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        done(self._admin.delete_records([TopicPartition(name, partition, before)]))

    def write(self, name: str, values: Sequence[bytes | str | None], partition: int = 0, **options: Any) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})  # one that knows new partitions
        for value in values:
            producer.produce(name, value=value, partition=partition, **options)
        assert producer.flush(WAIT_S) == 0

    def config(self, *topics: str, **options: Any) -> KafkaConfig:
        settings = {
            "kafka": {"bootstrap.servers": self.bootstrap},
            "topics": list(topics),
            "discover_ms": 200,
            "gone_ms": 500,
            "request_ms": 10_000,
        }
        return KafkaConfig.model_validate({**settings, **options})


def done(futures: Mapping[Any, Any]) -> None:
    for future in futures.values():
        future.result(timeout=WAIT_S)


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds, bounded."""
    limit = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < limit, "it never came to that"
        time.sleep(0.02)


class Follower:
    """A source that is polled into a tape, as the capture loop polls it into its log; and killed, and started again."""

    def __init__(self, config: KafkaConfig) -> None:
        self.config = config
        self.tape = Tape()
        self.source: KafkaSource | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    def start(self, before: Callable[[], None] = lambda: None) -> KafkaSource:
        """before: what happens once tables were asked for, and before the log is begun or taken up."""
        self.kill()
        source = KafkaSource("events", self.config)
        try:
            source.identify()
            source.tables()
            before()
            source.start(self.tape.resume())
        except DatabusError:
            source.close()
            raise
        self.source = source
        return source

    def kill(self) -> None:
        """Without a word: all that stays is the tape."""
        if self.source is not None:
            self.source.close()
            self.source = None

    def poll(self) -> bool:
        """Once; whether a group came."""
        source = self.source or self.start()
        group = source.poll(50)
        if group is not None:
            self.tape.append(group)
        return group is not None

    def until(self, condition: Callable[[], bool]) -> None:
        limit = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < limit, f"it never came to that; rows: {len(self.rows())}"
            self.poll()

    def rows(self, source: str | None = None) -> list[dict[str, Any]]:
        """All rows on the tape in their order."""
        found = [
            {"source": rows.table.source, **row}
            for group in self.tape.groups
            for rows in group.rows
            for row in rows.batch.to_pylist()
        ]
        found.sort(key=lambda row: (row["_commit_version"], row["_seq"]))
        return [row for row in found if source in (None, row["source"])]

    def values(self, source: str | None = None) -> list[Any]:
        return [row["value"] for row in self.rows(source)]

    def gaps(self) -> list[str]:
        return [g.control.body["reason"] for g in self.tape.groups if g.control is not None and g.control.kind == "gap"]


def patiently(follower: Follower, condition: Callable[[], bool]) -> None:
    """As capture does, which tries again while no broker answers."""

    def polled() -> bool:
        try:
            follower.poll()
        except ServiceUnavailable:
            follower.kill()
        return condition()

    eventually(polled)
