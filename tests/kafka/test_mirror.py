"""Topics of one cluster in another: message for message, whatever is killed in between."""

import os
import pickle
import random
import signal
import subprocess
import sys

import pytest

from databus.core import ConfigError, TransientError, UnrepresentableValue, UnsupportedFeature
from databus.tasks.kafka import _writer
from databus.testing._staged_writes import write_batch
from databus.testing.servers import Kafka
from tests.kafka.mirrors import captured, mirror_of, produce, told, write
from tests.kafka.support import new_prefix
from tests.kafka.test_kafka_accidents import as_other_process
from tests.kafka_source.support import Topics
from tests.outputs.harnesses import log_of
from tests.pipeline.validated import problems_of

PARTITIONS = 4
FOR_EVER = {"retention.ms": -1}  # some messages are of 1970
COUNT = 120
POINTS = ("kafka.before_commit", "kafka.after_commit")
IN_A_PROCESS = """
import pickle, sys
from pathlib import Path
from tests.kafka.mirrors import mirror_of, write
server, folder, prefix, options, groups = pickle.loads(Path(sys.argv[1]).read_bytes())
write(mirror_of(server, folder, prefix, **options), groups)
"""


class Address:
    """Of a cluster, for another process."""

    def __init__(self, server):
        self.bootstrap = server.bootstrap


@pytest.fixture(scope="module")
def west(tmp_path_factory):
    with Kafka(tmp_path_factory.mktemp("west"), cluster_id="BBBBBBBBBBBBBBBBBBBBBQ") as server:
        yield server


@pytest.fixture(scope="module")
def east(kafka):
    """A topic with all sorts of messages, and what the source reads of it, in many groups."""
    topics = Topics(kafka)
    name = topics.create(partitions=PARTITIONS, **FOR_EVER)
    counts = [COUNT // 6] * 6
    groups = captured(
        topics, name, *counts, write=lambda turn: produce(topics, name, PARTITIONS, seed=turn, count=counts[turn])
    )
    return kafka, name, groups


def assert_mirrored(east, west, prefix):
    kafka, name, _ = east
    found = told(west, f"{prefix}.{name}")
    assert len(found) == PARTITIONS
    for part, original in zip(found, told(kafka, name), strict=True):
        assert len(part) == len(original)
        for message, as_it_was in zip(part, original, strict=True):
            assert message == as_it_was
    assert sum(map(len, found)) == COUNT


def test_messages_arrive_as_they_were_each_in_its_partition(east, west, tmp_path):
    """Null and empty keys and values, headers of one name, no timestamp; and a partition that has none."""
    prefix = new_prefix()
    write(mirror_of(west, tmp_path, prefix), east[2])
    assert_mirrored(east, west, prefix)


def test_without_transactions_no_message_is_missing(east, west, tmp_path):
    prefix = new_prefix()
    write(mirror_of(west, tmp_path, prefix, transactions=False), east[2])
    for mirrored, part in zip(told(west, f"{prefix}.{east[1]}"), told(east[0], east[1]), strict=True):
        assert {*map(repr, mirrored)} == {*map(repr, part)}


def test_batches_that_come_again_and_other_numbers_of_buckets_repeat_nothing(east, west, tmp_path, seed):
    prefix, dice = new_prefix(), random.Random(seed)
    groups = east[2]
    for buckets in (2, 3, 1):
        end = dice.randrange(1, len(groups))
        write(mirror_of(west, tmp_path, prefix, buckets=buckets), groups[:end] if buckets > 1 else groups)
        as_other_process()
    assert_mirrored(east, west, prefix)


@pytest.mark.parametrize("point", POINTS)
def test_a_task_that_is_killed_around_its_commit_loses_and_repeats_nothing(east, west, tmp_path, point):
    prefix, given = new_prefix(), tmp_path / "given"
    given.write_bytes(pickle.dumps((Address(west), tmp_path, prefix, {}, east[2])))
    command = [sys.executable, "-c", IN_A_PROCESS, str(given)]
    killed = subprocess.run(command, env={**os.environ, "DATABUS_CRASH_AT": f"{point}:3"}, check=False)
    assert killed.returncode == -signal.SIGKILL
    write(mirror_of(west, tmp_path, prefix), east[2])
    assert_mirrored(east, west, prefix)


@pytest.mark.parametrize("point", POINTS)
def test_a_broker_that_is_killed_around_a_commit_loses_and_repeats_nothing(east, west, tmp_path, point, monkeypatch):
    prefix, places = new_prefix(), []

    def kill_the_broker(place):
        places.append(place)
        if place == point and places.count(point) == 2:
            west.kill()
            west.start()

    monkeypatch.setattr(_writer, "crash_point", kill_the_broker)
    for _ in range(5):  # as a run does, which tries again
        try:
            write(mirror_of(west, tmp_path, prefix), east[2])
            break
        except TransientError:
            continue
    assert_mirrored(east, west, prefix)


def test_a_topic_with_fewer_partitions_stops_and_goes_on_when_it_has_as_many(east, west, tmp_path):
    prefix, targets = new_prefix(), Topics(west)
    topic = targets.create(f"{prefix}.{east[1]}", partitions=PARTITIONS - 1, **FOR_EVER)
    output = mirror_of(west, tmp_path, prefix)
    with pytest.raises(ConfigError, match=f"--alter --topic {topic} --partitions {PARTITIONS}"):
        write(output, east[2])
    targets.widen(topic, PARTITIONS)
    write(output, east[2])
    assert_mirrored(east, west, prefix)


def test_a_topic_is_not_mirrored_into_itself(east, tmp_path):
    with pytest.raises(ConfigError, match="is the one that its messages were read from"):
        write(mirror_of(east[0], tmp_path, new_prefix(), topic="{table}"), east[2])


def test_a_timestamp_that_the_topic_refuses_stops_and_says_which_setting_to_change(kafka, west, tmp_path):
    topics = Topics(kafka)
    name = topics.create(**{"message.timestamp.after.max.ms": 2**62})
    groups = captured(
        topics, name, 1, write=lambda _: topics.write(name, [b"of the year 2100"], timestamp=4_102_444_800_000)
    )
    with pytest.raises(UnrepresentableValue, match=r"message\.timestamp\.after\.max\.ms"):
        write(mirror_of(west, tmp_path, new_prefix()), groups)


def test_rows_that_are_no_messages_stop_it(kafka, tmp_path):
    output = mirror_of(kafka, tmp_path, new_prefix(), buckets=1)
    output.open()
    with pytest.raises(
        UnsupportedFeature, match=r"main\.orders has no column key, value, timestamp, partition, headers"
    ):
        write_batch(output, log_of(1).batch(0, 1))


TEXT = """\
name: mirror
sources: {{east: {source}}}
inputs: {{east: {{type: databus, tables: [east/*]}}}}
outputs:
  west: {{type: kafka, from: east, format: message, kafka: {{bootstrap.servers: "west:9092"}}{options}}}
"""
KAFKA = '{type: kafka, kafka: {bootstrap.servers: "east:9092"}, topics: [orders]}'


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        (KAFKA, "", []),
        ("{type: mock}", "", ['outputs.west.format: "east" is a source `mock`, whose rows are no messages']),
        (
            KAFKA.replace("topics", "format: maxwell, schemas: {a.b: {columns: {id: int64}, key: [id]}}, topics"),
            "",
            ['outputs.west.format: "east" is a source `kafka`, whose rows are no messages'],
        ),
        (
            KAFKA,
            ", deletes: tombstone",
            ["`deletes` is about rows, and `format: message` writes messages as they were"],
        ),
        (KAFKA, ", controls: a-topic", ["`controls` is about rows"]),
        (KAFKA, ", key: [offset]", ["`key` is about rows"]),
        (KAFKA, ", headers: false", ["`headers` is about rows"]),
    ],
)
def test_validate_says_what_a_mirror_cannot_be(tmp_path, source, options, told):
    found = problems_of(tmp_path, TEXT.format(source=source, options=options))
    assert len(found) == len(told), found
    assert all(each in line for each, line in zip(told, found, strict=True)), found
