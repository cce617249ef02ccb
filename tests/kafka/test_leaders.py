"""Partitions whose leader is away for a while: nobody takes for an answer that there is none."""

import shutil
import time
from contextlib import suppress
from functools import partial

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from databus.core import DatabusError, ServiceUnavailable
from databus.sinks.kafka import positions_of
from databus.sources.kafka._cluster import KafkaCluster
from databus.sources.kafka._config import KafkaConfig
from databus.testing._staged_writes import write_batch
from databus.testing.servers import Kafka, ServerMissing
from databus.testing.servers._kafka import _EMPTY
from tests.kafka.support import new_prefix, output_of
from tests.outputs.harnesses import log_of

ASKED = 12  # of which every other one was told of an end below zero, without an error
BROKER = 2
_DIRECTORY = "psOcwuR7vrQo6BuPQCx4Sg"


class SecondBroker(Kafka):
    """Belongs to the cluster of another server, which is broker and controller."""

    def __init__(self, folder, first):
        super().__init__(folder)
        self.first = first

    def _program(self, folder):
        clients, controller = self.port, self.first._ports[1].number
        self.settings = {
            "process.roles": "broker",
            "node.id": BROKER,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{clients}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{clients}",
        }
        data = self.folder / "data"
        if not data.exists():
            shutil.copytree(folder / _EMPTY, data)
            own = {"version": 1, "cluster.id": self.cluster_id, "node.id": BROKER, "directory.id": _DIRECTORY}
            (data / "meta.properties").write_text("".join(f"{name}={value}\n" for name, value in own.items()))
        return super()._program(folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    first = Kafka(tmp_path_factory.mktemp("1"))
    second = SecondBroker(tmp_path_factory.mktemp("2"), first)
    try:
        first.start()
        yield first, second
    except ServerMissing as missing:
        pytest.skip(str(missing))
    finally:
        second.close()
        first.close()


@pytest.fixture
def brokers(both):
    """The second one runs again, if it was killed."""
    both[1].start()
    return both


def make_topic(server, name, **config):
    """The second broker is the leader."""
    topic, admin = NewTopic(name, 1, replica_assignment=[[BROKER]], config=config), AdminClient(settings_of(server))
    deadline = time.monotonic() + 60
    while True:
        try:
            return admin.create_topics([topic])[name].result(30)
        except KafkaException:  # it is not let in again yet
            if time.monotonic() > deadline:
                raise


def settings_of(server):
    return {"bootstrap.servers": server.bootstrap}


def in_the_end(ask):
    """On a machine that is busy, not each answer comes in time."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask()
        except DatabusError:
            assert time.monotonic() < deadline


def says_nothing_wrong(ask, right):
    """It may say nothing: there is an error then."""
    for _ in range(ASKED):
        with suppress(DatabusError):
            assert ask() == right


def test_positions_whose_leader_is_away_are_not_taken_for_none(brokers, tmp_path):
    """A bucket without a position is written from where the ledger stands, and the topics may be further."""
    first, second = brokers
    prefix, log = new_prefix(), log_of(1, 2, 3)
    make_topic(first, f"{prefix}.control", **{"cleanup.policy": "compact"})
    output = output_of(first, tmp_path, prefix, buckets=1)
    output.open()
    in_the_end(lambda: write_batch(output, log.batch(0, 3)))
    cluster = output_of(first, tmp_path, prefix, request_ms_max=500).part_writer().cluster
    positions = positions_of(cluster, f"{prefix}.control")
    known = in_the_end(positions.read)
    assert [each.position.at.scn for each in known.values()] == [3]
    second.kill()
    says_nothing_wrong(positions.read, known)


def test_a_source_does_not_take_the_end_of_a_partition_whose_leader_is_away_for_another(brokers):
    first, second = brokers
    topic = new_prefix()
    make_topic(first, topic)
    config = {"type": "kafka", "topics": [topic], "kafka": settings_of(first), "request_ms": 500}
    cluster = KafkaCluster("events", KafkaConfig.model_validate(config))
    states = partial(cluster.states, {topic: ("id", 1)})

    def known_states():
        known = states()
        if topic not in known:
            raise ServiceUnavailable("a broker does not know the new topic yet")
        return known

    known = in_the_end(known_states)
    assert known[topic].latest == (0,)
    second.kill()
    says_nothing_wrong(states, known)
