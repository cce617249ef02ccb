"""What goes wrong with Kafka and with those who write to it: nothing is missing, and nothing is seen twice."""

import time

import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from databus.core import (
    ConfigError,
    ControlKind,
    ServiceUnavailable,
    UnrepresentableValue,
    UnsupportedFeature,
)
from databus.flow import Bucket, DirectFeed, Ways
from databus.schema import Column, TableSchema
from databus.sinks.kafka import Cluster
from databus.sinks.kafka._positions import positions_of
from databus.sinks.kafka._session import KEPT
from databus.testing._staged_writes import opened, write_batch
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import log_of, order

EVENTS = TableSchema("main.events", (Column("id", "int64"), Column("note", "string")))
LONG = {"request_ms_max": 600_000, "transaction_ms_max": 900_000}  # longer than the test may take


def make_topic(server, name, **config):
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)


def ids_in(server, prefix, **options):
    return sorted(row["id"] for part in rows_in(server, f"{prefix}.orders", **options) for row in part)


def attempt(output, buckets=1):
    return output.part_writer().open(Bucket("shop", "topics", "shop", 0, buckets))


def as_other_process():
    """What a process keeps between two tasks is not there in another one."""
    KEPT._sessions.clear()
    positions_of.cache_clear()


def test_partitions_that_a_control_topic_is_given_hide_no_position(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(*range(1, 13))
    for number, ends in enumerate([[3, 6], [9], [9], [12]]):
        output = output_of(kafka, tmp_path, prefix, buckets=2)
        output.open()
        for end in ends:
            write_batch(output, log.batch(max(0, end - 3), end))
        if number == 0:
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            admin.create_partitions([NewPartitions(f"{prefix}.control", 8)])[f"{prefix}.control"].result(30)
        as_other_process()
    assert ids_in(kafka, prefix) == [*range(1, 13)]


def test_a_task_given_up_for_dead_is_shut_out_by_its_successor(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2, 3)
    output = output_of(kafka, tmp_path, prefix, buckets=1)
    output.open()
    with pytest.raises(ServiceUnavailable, match="Another attempt"), attempt(output) as late:
        late.write(log.batch(0, 1))
        with attempt(output) as next_one:
            next_one.write(log.batch(0, 2))
        late.write(log.batch(1, 3))
    as_other_process()
    write_batch(output, log.batch(1, 3))
    assert ids_in(kafka, prefix) == [1, 2, 3]


def test_a_transaction_that_the_broker_has_ended_comes_again(kafka, tmp_path, monkeypatch):
    """It took too long, as while a broker does not answer; nobody else has begun to write."""
    prefix, log = new_prefix(), log_of(1)
    output = output_of(kafka, tmp_path, prefix, buckets=1, transaction_ms_max=1_000)
    output.open()
    topics = [TopicPartition(f"{prefix}.orders", number) for number in range(3)]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def ends(level):
        asked = admin.list_offsets({topic: OffsetSpec.latest() for topic in topics}, isolation_level=level)
        return [each.result(30).offset for each in asked.values()]

    def wait_until_it_has_ended(point):
        if point == "kafka.before_commit":
            (session,) = sessions
            session.producer.flush(30)
            deadline = time.monotonic() + 60
            while ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED):
                assert time.monotonic() < deadline

    with monkeypatch.context() as patched, pytest.raises(ServiceUnavailable, match="transaction_ms_max=1000"):
        patched.setattr("databus.sinks.kafka._writer.crash_point", wait_until_it_has_ended)
        with attempt(output) as slow:
            sessions = [slow.session]
            slow.write(log.batch(0, 1))
    write_batch(output_of(kafka, tmp_path, prefix, buckets=1), log.batch(0, 1))
    assert ids_in(kafka, prefix) == [1]


def test_a_number_of_buckets_that_is_changed_in_one_process_loses_and_repeats_nothing(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(*range(1, 10))
    for buckets, begin, end in ((2, 0, 3), (3, 2, 6), (1, 5, 9)):
        output = output_of(kafka, tmp_path, prefix, buckets=buckets)
        opened(output)
        write_batch(output, log.batch(begin, end))
    assert ids_in(kafka, prefix) == list(range(1, 10))


def test_a_query_begins_again_where_a_task_of_an_earlier_run_wrote_in_another_number_of_buckets(kafka, tmp_path):
    """It had written nothing yet when the query began, so that nobody shut it out."""
    prefix, log = new_prefix(), log_of(*range(1, 9))
    earlier, now = (output_of(kafka, tmp_path, prefix, buckets=buckets) for buckets in (2, 3))
    opened(now)
    write_batch(earlier, log.batch(0, 5))
    as_other_process()
    with pytest.raises(ServiceUnavailable, match=r"in 2 buckets, and not in 3.*begins again, and changes the number"):
        write_batch(now, log.batch(0, 8))
    opened(now)
    write_batch(now, log.batch(0, 8))
    assert ids_in(kafka, prefix) == list(range(1, 9))


def test_buckets_that_do_not_stand_at_one_place_keep_their_number(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2)
    two = output_of(kafka, tmp_path, prefix, buckets=2)
    opened(two)
    write_batch(two, log.batch(0, 1))
    with attempt(two, 2) as first:
        first.write(log.batch(1, 2))
    with pytest.raises(UnsupportedFeature, match="Say `buckets: 2`"):
        opened(output_of(kafka, tmp_path, prefix, buckets=3))
    write_batch(two, log.batch(1, 2))
    opened(output_of(kafka, tmp_path, prefix, buckets=3))


def test_a_first_batch_that_was_broken_off_keeps_its_number_of_buckets(kafka, tmp_path):
    """Buckets that have written nothing yet stand at no place."""
    prefix, log = new_prefix(), log_of(*range(1, 9))
    four = output_of(kafka, tmp_path, prefix, buckets=4)
    opened(four)
    feed = DirectFeed(Ways(), four.part_writer(), Bucket("shop", "topics", "shop", 0, 4))
    feed.write_ranges(lambda _: [log.batch(0, 8)], pa.table({}), 0)
    with pytest.raises(UnsupportedFeature, match="Say `buckets: 4`"):
        opened(output_of(kafka, tmp_path, prefix, buckets=2))
    write_batch(four, log.batch(0, 8))
    opened(output_of(kafka, tmp_path, prefix, buckets=2))
    assert ids_in(kafka, prefix) == list(range(1, 9))


def test_a_row_that_is_too_large_is_named_and_nothing_of_its_batch_is_seen(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1)
    log.begin().insert(*[log.entries[0].table, order(2, "x" * 2_000_000)])
    output = output_of(kafka, tmp_path, prefix, buckets=1)
    output.open()
    with pytest.raises(UnrepresentableValue, match=r"shop/main.orders: the row at \(2, 1\).*message.max.bytes"):
        write_batch(output, log.batch(0, 2))
    assert ids_in(kafka, prefix) == []


def test_a_control_topic_that_forgets_positions_is_refused(kafka, tmp_path):
    prefix = new_prefix()
    forgets = NewTopic(f"{prefix}.control", 1, 1, config={"cleanup.policy": "delete"})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([forgets])[forgets.topic].result(30)
    with pytest.raises(ConfigError, match=r"cleanup\.policy=delete and forgets positions"):
        output_of(kafka, tmp_path, prefix).open()


def test_a_control_without_a_key_is_said_not_to_fit_a_compacted_topic(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1)
    log.begin().control(ControlKind.TRUNCATE, log.entries[0].table)
    compacted = NewTopic(f"{prefix}.orders", 1, 1, config={"cleanup.policy": "compact"})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([compacted])[compacted.topic].result(30)
    output = output_of(kafka, tmp_path, prefix, buckets=1)
    output.open()
    with pytest.raises(UnrepresentableValue, match="`controls` a topic of their own"):
        write_batch(output, log.batch(0, 2))
    with pytest.raises(ValueError, match="makes compacted topics"):
        output_of(kafka, tmp_path, prefix, create_topics={"config": {"cleanup.policy": "compact"}})


def test_of_rows_that_a_broker_refuses_together_the_one_at_fault_is_told(kafka, tmp_path):
    """The client reports the others of its batch too, and first."""
    prefix, log = new_prefix(), log_of(1, 2)
    for number in range(2):
        log.begin().insert(EVENTS, {"id": number, "note": "has no key"})
    make_topic(kafka, f"{prefix}.all", **{"cleanup.policy": "compact"})
    output = output_of(kafka, tmp_path, prefix, buckets=1, topic=f"{prefix}.all", controls="none")
    output.open()
    with pytest.raises(UnrepresentableValue, match=r"INVALID_RECORD.*takes no message without a key"):
        write_batch(output, log.batch(0, 4))


def test_a_refusal_in_the_middle_of_a_transaction_is_told_at_once(kafka, tmp_path):
    """The client would wait for messages that it does not send any more."""
    prefix, log = new_prefix(), log_of(1, 2)
    for number in range(3, 40):
        log.begin().insert(log.entries[0].table, order(number, "x" * (20_000 if number % 10 == 5 else 10)))
    make_topic(kafka, f"{prefix}.orders", **{"max.message.bytes": 10_000})
    output = output_of(kafka, tmp_path, prefix, buckets=1, kafka={"batch.num.messages": 1}, **LONG)
    output.open()
    with pytest.raises(UnrepresentableValue, match=r"MSG_SIZE_TOO_LARGE"):
        write_batch(output, log.batch(0, len(log.entries)))


class Behind:
    """A producer that knows that a message of its transaction was refused before anybody has heard of that."""

    def __init__(self, producer):
        self._producer = producer

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def poll(self, _):
        return 0

    def produce(self, topic, value, *more):
        self._producer.produce(topic, value, *more)
        deadline = time.monotonic() + 60
        while value is not None and len(value) > 10_000:
            assert time.monotonic() < deadline
            try:
                self._producer.produce(topic, b"{}")
            except KafkaException:
                return
            time.sleep(0.01)  # that the client knows of a refusal, it says in no other way than by its next error


@pytest.mark.parametrize("on_error", ["halt", "dead_letter"])
def test_a_refusal_whose_report_comes_late_is_told_for_what_it_is(kafka, tmp_path, monkeypatch, on_error):
    """Else the output would stop for an "erroneous state", whatever `on_error` says."""
    made = Cluster.producer
    monkeypatch.setattr(Cluster, "producer", lambda *args: Behind(made(*args)))
    prefix, log = new_prefix(), log_of(1, 2)
    log.begin().insert(log.entries[0].table, order(3, "x" * 20_000))
    log.begin().insert(log.entries[0].table, order(4))
    make_topic(kafka, f"{prefix}.orders", **{"max.message.bytes": 10_000})
    settings = {"batch.num.messages": 1}
    output = output_of(kafka, tmp_path, prefix, buckets=1, kafka=settings, on_error=on_error, **LONG)
    output.open()
    if on_error == "halt":
        with pytest.raises(UnrepresentableValue, match=r"MSG_SIZE_TOO_LARGE"):
            write_batch(output, log.batch(0, 4))
    else:
        write_batch(output, log.batch(0, 4))
        assert ids_in(kafka, prefix) == [1, 2, 4]


def test_a_topic_that_was_removed_is_made_again_where_topics_are_made(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2)
    output = output_of(kafka, tmp_path, prefix, buckets=1, on_gap="continue")
    output.open()
    write_batch(output, log.batch(0, 1))
    topic, admin = f"{prefix}.orders", AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result(30)
    deadline = time.monotonic() + 30
    while topic in admin.list_topics(timeout=30).topics:
        assert time.monotonic() < deadline
    with pytest.raises(ServiceUnavailable):
        write_batch(output, log.batch(1, 2))
    write_batch(output, log.batch(1, 2))
    assert ids_in(kafka, prefix) == [2]


def test_a_topic_that_is_missing_is_told(kafka, tmp_path):
    output = output_of(kafka, tmp_path, new_prefix(), create_topics=None)
    output.open()
    with pytest.raises(ConfigError, match="create_topics"):
        write_batch(output, log_of(1).batch(0, 1))
