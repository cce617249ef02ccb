"""Topics of one cluster in another: message for message, whatever is killed in between."""

import os
import pickle
import random
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from databus.core import ConfigError, TransientError, UnrepresentableValue, UnsupportedFeature
from databus.sinks.kafka import _writer
from databus.testing._staged_writes import write_batch
from tests.kafka.dead_letters import set_topic
from tests.kafka.mirrors import batches, captured, mirror_of, produce, told, write
from tests.kafka.support import new_prefix
from tests.kafka.test_kafka_accidents import as_other_process
from tests.kafka.test_lost_markers import lose_marker
from tests.kafka_source.support import Follower, Topics
from tests.outputs.harnesses import log_of
from tests.pipeline.validated import problems_of

PARTITIONS = 4
FOR_EVER = {"retention.ms": -1}  # some messages are of 1970
COUNT = 120
RUNS_MAX = 5
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


@pytest.fixture
def west(other_kafka):
    return other_kafka


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
    """It may have answered the commit and lose its marker."""
    prefix, places, failures = new_prefix(), [], []

    def kill_the_broker(place):
        places.append(place)
        if place == point and places.count(point) == 2:
            west.kill()
            if point == "kafka.after_commit":
                lose_marker(west, f"{prefix}.control")
            west.start()

    monkeypatch.setattr(_writer, "crash_point", kill_the_broker)
    for _ in range(RUNS_MAX):  # as a run does, which tries again
        try:
            write(mirror_of(west, tmp_path, prefix, request_ms_max=30_000), east[2])  # as by default
            break
        except TransientError as error:
            failures.append(str(error))
    assert len(failures) < RUNS_MAX, failures
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


def test_a_topic_that_was_deleted_behind_its_messages_is_mirrored(kafka, west, tmp_path):
    """The position at the end of a batch has only topics that are there."""
    topics, prefix = Topics(kafka), new_prefix()
    name = topics.create(partitions=3)
    topics.write(name, [b"1", b"2"], partition=1)
    with Follower(topics.config(name, on_gap="continue")) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
        topics.delete(name)
        follower.until(lambda: bool(follower.gaps()))
    end = follower.tape.groups[-1].commit.position
    assert end["topics"] == {}
    output = mirror_of(west, tmp_path, prefix)
    output.open()
    for batch in batches(follower.tape.groups):
        write_batch(output, replace(batch, position=end))
    assert [[message[1] for message in part] for part in told(west, f"{prefix}.{name}")] == [[], [b"1", b"2"]]


def test_what_a_mirror_writes_into_the_cluster_that_it_reads_is_not_mirrored_again(kafka, tmp_path):
    """A pattern may select the mirror's own topics; without this, each copy would be copied, for ever."""
    topics = Topics(kafka)
    name = topics.create()
    topics.write(name, [b"once"])
    copies = f"{topics.prefix}.copy"
    output = mirror_of(kafka, tmp_path, copies, control_topic=new_prefix())
    with Follower(topics.config(f"{topics.prefix}.*")) as follower:
        follower.until(lambda: len(follower.rows()) == 1)
        write(output, follower.tape.groups)
        before = len(follower.tape.groups)
        follower.until(lambda: len(follower.rows()) == 2)
        with pytest.raises(ConfigError, match=rf"exclude: \[kafka\.{copies}\.{name}\]"):
            write(output, follower.tape.groups, before)


def test_a_mirror_writes_nothing_among_the_positions_of_outputs(kafka, west, tmp_path):
    """Where names are kept, the other cluster's positions would take the place of ours."""
    topics, control = Topics(kafka), new_prefix()
    topics.create(control)
    topics.write(control, [b"{}"], key=b'["shop", "mirror", "suite", 0]')
    groups = captured(topics, control, 1, write=lambda _: None)
    output = mirror_of(west, tmp_path, new_prefix(), topic="{table}", control_topic=control)
    with pytest.raises(ConfigError, match=f"{control} is its `control_topic`"):
        write(output, groups)
    assert b"{}" not in [message[1] for part in told(west, control) for message in part]


def test_a_timestamp_that_the_topic_refuses_stops_and_says_which_setting_to_change(kafka, west, tmp_path):
    topics = Topics(kafka)
    name = topics.create(**{"message.timestamp.after.max.ms": 2**62})
    groups = captured(
        topics, name, 1, write=lambda _: topics.write(name, [b"of the year 2100"], timestamp=4_102_444_800_000)
    )
    with pytest.raises(UnrepresentableValue, match=r"message\.timestamp\.after\.max\.ms"):
        write(mirror_of(west, tmp_path, new_prefix()), groups)


LATE = {"message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize("is_accepted", [False, True])
def test_a_topic_that_gives_messages_new_timestamps_is_written_only_where_the_file_says_so(
    east, west, tmp_path, is_accepted
):
    prefix = new_prefix()
    topic = f"{prefix}.{east[1]}"
    Topics(west).create(topic, partitions=PARTITIONS, **LATE, **FOR_EVER)
    output = mirror_of(west, tmp_path, prefix)
    with pytest.raises(ConfigError, match=rf"{topic} has message\.timestamp\.type=LogAppendTime.*timestamps: target"):
        write(output, east[2])
    assert sum(map(len, told(west, topic))) == 0
    if is_accepted:
        write(mirror_of(west, tmp_path, prefix, timestamps="target"), east[2])
        assert sum(map(len, told(west, topic))) == COUNT
        return
    set_topic(west, topic, **{"message.timestamp.type": "CreateTime"})
    write(output, east[2])
    assert_mirrored(east, west, prefix)


@pytest.mark.parametrize("where", ["client", "topic"])
def test_a_message_that_is_too_large_is_no_matter_of_columns(kafka, west, tmp_path, where):
    topics, prefix, targets = Topics(kafka), new_prefix(), Topics(west)
    name = topics.create()
    groups = captured(topics, name, 1, write=lambda _: topics.write(name, [b"x" * 30_000]))
    targets.create(f"{prefix}.{name}", **({"max.message.bytes": 10_000} if where == "topic" else {}))
    options = {"kafka": {"message.max.bytes": 10_000}} if where == "client" else {}
    with pytest.raises(UnrepresentableValue, match=r"MSG_SIZE_TOO_LARGE.*`on_error: dead_letter`") as told:
        write(mirror_of(west, tmp_path, prefix, **options), groups)
    assert "project" not in str(told.value)


def test_a_compacted_topic_refuses_messages_without_a_key(kafka, west, tmp_path):
    topics, prefix = Topics(kafka), new_prefix()
    name = topics.create()
    groups = captured(topics, name, 1, write=lambda _: topics.write(name, [b"x"]))
    Topics(west).create(f"{prefix}.{name}", **{"cleanup.policy": "compact"})
    with pytest.raises(UnrepresentableValue, match=r"no message without a key.*`on_error: dead_letter`") as told:
        write(mirror_of(west, tmp_path, prefix), groups)
    assert "controls" not in str(told.value)


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
        (KAFKA, f", create_topics: {{config: {LATE}}}", ["leave it out, or say `timestamps: target`"]),
        (KAFKA, f", timestamps: target, create_topics: {{config: {LATE}}}", []),
    ],
)
def test_validate_says_what_a_mirror_cannot_be(tmp_path, source, options, told):
    found = problems_of(tmp_path, TEXT.format(source=source, options=options))
    assert len(found) == len(told), found
    assert all(each in line for each, line in zip(told, found, strict=True)), found
