"""The Kafka source keeps what every source promises."""

import time

import pytest

from databus.sources.kafka import KafkaSource
from databus.testing import SourceSuite
from databus.testing.servers import Kafka
from databus.wire import Group
from tests.kafka_source.support import Topics

QUIET_S = 0.25
BEHIND_S_MAX = 30.0


class PatientSource(KafkaSource):
    """The suite takes a source that is silent for one that has nothing; brokers send a little later what they have."""

    def poll(self, wait_ms: int) -> Group | None:
        quiet_until = time.monotonic() + QUIET_S
        end = quiet_until + BEHIND_S_MAX
        while (group := super().poll(wait_ms)) is None:
            now = time.monotonic()
            if now > quiet_until and (self.lag().changes == 0 or now > end):
                break
        return group


class KafkaHarness:
    is_snapshottable = False
    knows_its_history = True
    makes_its_transactions = True

    def __init__(self, topics: Topics, other: Topics) -> None:
        self._topics, self._other = topics, other
        self._names = [topics.create(partitions=2), topics.create()]

    def make(self) -> KafkaSource:
        return PatientSource("shop", self._topics.config(*self._names, group_bytes_max=1024))

    def another(self) -> KafkaSource:
        return KafkaSource("shop", self._other.config("*"))

    def transact(self, number: int) -> None:
        for partition in (0, 1):
            self._topics.write(
                self._names[0], [b"x" * (i * 10) for i in range(60 if number % 3 == 0 else 3)], partition
            )
        self._topics.write(self._names[1], [f"{number}", None])


class TestKafka(SourceSuite):
    @pytest.fixture
    def harness(self, topics: Topics, other_kafka: Kafka) -> KafkaHarness:
        return KafkaHarness(topics, Topics(other_kafka))
