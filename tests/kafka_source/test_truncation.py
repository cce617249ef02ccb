"""A broker that has lost messages which were read, and has others in their places, is found out by its leaders' epochs.

These tests put a partition of their one node back to what it was. In a cluster, a replica without the last messages
becomes the leader, where `unclean.leader.election.enable` is true.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from databus.core import PositionPurged
from databus.testing.servers import Kafka
from tests.kafka_source.support import Follower, Topics, patiently

KEPT = [b"kept %d" % number for number in range(10)]
LOST = [b"lost %d" % number for number in range(5)]
OTHERS = [b"other %d" % number for number in range(8)]  # more than were lost: the partition reaches as far as before


@pytest.fixture
def server(other_kafka: Kafka) -> Kafka:
    return other_kafka


@pytest.fixture
def topics(server: Kafka) -> Topics:
    return Topics(server)


def with_others_in_their_places(
    server: Kafka, topics: Topics, name: str, folder: Path, read: Callable[[], None]
) -> None:
    """Write, have it read, and let the broker lose the last of it. read: called while everything is there."""
    topics.write(name, KEPT)
    server.stop()
    partition, held = server.folder / "data" / f"{name}-0", folder / "held"
    shutil.copytree(partition, held)
    server.start()
    topics.write(name, LOST)
    read()
    server.kill()
    shutil.rmtree(partition)
    shutil.copytree(held, partition)
    server.start()
    topics.write(name, OTHERS)


@pytest.mark.parametrize(
    "is_running", [pytest.param(True, marks=pytest.mark.nightly), False], ids=["while it reads", "while it is stopped"]
)
def test_messages_that_took_the_places_of_lost_ones_are_told_and_read(
    server: Kafka, topics: Topics, tmp_path: Path, is_running: bool
) -> None:
    name = topics.create()
    with Follower(topics.config(name)) as follower:

        def read() -> None:
            follower.until(lambda: len(follower.rows()) == len(KEPT + LOST))
            if not is_running:
                follower.kill()

        with_others_in_their_places(server, topics, name, tmp_path, read)
        for _ in range(2):  # also when it is only started again
            with pytest.raises(PositionPurged, match=f"{name}, partition 0, .* from offset 10 on"):
                patiently(follower, lambda: False)
            follower.kill()
        follower.config = topics.config(name, on_gap="continue")
        patiently(follower, lambda: len(follower.rows()) == len(KEPT + LOST + OTHERS))
        assert len(follower.gaps()) == 1
        follower.start()
        topics.write(name, [b"last"])
        patiently(follower, lambda: follower.values()[-1] == b"last")
    assert follower.values() == [*KEPT, *LOST, *OTHERS, b"last"]
    assert len(follower.gaps()) == 1


@pytest.mark.nightly
def test_a_transaction_that_ended_under_a_later_leader_is_no_loss(server: Kafka, topics: Topics) -> None:
    """Its marker is of a later epoch than its messages, and stands between the last message and the position."""
    name = topics.create()
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"first", partition=0)
    assert producer.flush(30) == 0
    server.kill()
    server.start()
    producer.commit_transaction(30)
    with Follower(topics.config(name)) as follower:
        patiently(follower, lambda: bool(follower.rows()))
        for turn in range(3):
            patiently(follower, lambda: follower.tape.groups[-1].commit.position["topics"][name]["offsets"] == [2])
            follower.kill()
            if turn:
                server.kill()
                server.start()
        topics.write(name, [b"second"])
        patiently(follower, lambda: len(follower.rows()) > 1)
        assert follower.values() == [b"first", b"second"]
        assert follower.gaps() == []


@pytest.mark.nightly
def test_messages_that_retention_took_once_they_were_read_are_no_loss(server: Kafka, topics: Topics) -> None:
    name = topics.create()
    with Follower(topics.config(name)) as follower:
        for turn in range(1, 4):
            topics.write(name, [b"%d" % turn])
            patiently(follower, lambda: len(follower.rows()) == turn)  # noqa: B023 - called here
            Topics(server).purge(name, 0, turn)  # whose client knows the leader of now
            follower.kill()
            server.kill()
            server.start()
        assert follower.values() == [b"1", b"2", b"3"]
        assert follower.gaps() == []
