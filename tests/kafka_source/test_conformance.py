"""The Kafka source keeps what every source promises."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from databus.sources.kafka import KafkaSource
from databus.testing import SourceSuite
from databus.testing.servers import Kafka
from tests.kafka_source.support import Topics


class KafkaHarness:
    is_snapshottable = False
    knows_its_history = True
    makes_its_transactions = True

    def __init__(self, topics: Topics, other: Topics) -> None:
        self._topics, self._other = topics, other
        self._names = [topics.create(partitions=2), topics.create()]

    def make(self) -> KafkaSource:
        return KafkaSource("shop", self._topics.config(*self._names, group_bytes_max=1024))

    def another(self) -> KafkaSource:
        return KafkaSource("shop", self._other.config("*"))

    def transact(self, number: int) -> None:
        for partition in (0, 1):
            self._topics.write(
                self._names[0], [b"x" * (i * 10) for i in range(60 if number % 3 == 0 else 3)], partition
            )
        self._topics.write(self._names[1], [f"{number}", None])


@pytest.fixture(scope="module")
def other_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    server = Kafka(tmp_path_factory.mktemp("other"))
    data = server.folder / "data"
    shutil.copytree(server.prepare() / "empty", data)
    properties: Path = data / "meta.properties"
    lines = properties.read_text().splitlines()
    properties.write_text(
        "".join(f"{'cluster.id=BBBBBBBBBBBBBBBBBBBBBQ' if 'cluster.id' in each else each}\n" for each in lines)
    )
    with server:
        yield server


class TestKafka(SourceSuite):
    @pytest.fixture
    def harness(self, topics: Topics, other_cluster: Kafka) -> KafkaHarness:
        return KafkaHarness(topics, Topics(other_cluster))
