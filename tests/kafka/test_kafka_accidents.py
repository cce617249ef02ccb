"""What goes wrong with Kafka and with those who write to it: nothing is missing, and nothing is seen twice."""

import pytest

from databus.core import ConfigError, LockHeld, UnrepresentableValue, UnsupportedFeature
from databus.tasks import Bucket
from databus.tasks.kafka._writer import _KEPT
from databus.testing._staged_writes import write_batch
from tests.kafka.support import new_prefix, output_of, rows_in
from tests.outputs.harnesses import log_of, order


def ids_in(server, prefix, **options):
    return sorted(row["id"] for part in rows_in(server, f"{prefix}.orders", **options) for row in part)


def attempt(output, buckets=1):
    return output.direct_writer().open(Bucket("shop", "topics", "suite", 0, buckets))


def as_other_process():
    """What a process keeps between two tasks is not there in another one."""
    _KEPT._sessions.clear()


def test_a_task_given_up_for_dead_is_shut_out_by_its_successor(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2, 3)
    output = output_of(kafka, tmp_path, prefix, buckets=1)
    output.open()
    with pytest.raises(LockHeld, match="Another attempt"), attempt(output) as late:
        late.write(log.batch(0, 1))
        with attempt(output) as next_one:
            next_one.write(log.batch(0, 2))
        late.write(log.batch(1, 3))
    as_other_process()
    write_batch(output, log.batch(1, 3))
    assert ids_in(kafka, prefix) == [1, 2, 3]


def test_a_number_of_buckets_that_is_changed_in_one_process_loses_and_repeats_nothing(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(*range(1, 10))
    for buckets, begin, end in ((2, 0, 3), (3, 2, 6), (1, 5, 9)):
        output = output_of(kafka, tmp_path, prefix, buckets=buckets)
        output.open()
        write_batch(output, log.batch(begin, end))
    assert ids_in(kafka, prefix) == list(range(1, 10))


def test_buckets_that_do_not_stand_at_one_place_keep_their_number(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1, 2)
    two = output_of(kafka, tmp_path, prefix, buckets=2)
    two.open()
    write_batch(two, log.batch(0, 1))
    with attempt(two, 2) as first:
        first.write(log.batch(1, 2))
    with pytest.raises(UnsupportedFeature, match="Say `buckets: 2`"):
        output_of(kafka, tmp_path, prefix, buckets=3).open()
    write_batch(two, log.batch(1, 2))
    output_of(kafka, tmp_path, prefix, buckets=3).open()


def test_a_row_that_is_too_large_is_named_and_nothing_of_its_batch_is_seen(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1)
    log.begin().insert(*[log.entries[0].table, order(2, "x" * 2_000_000)])
    output = output_of(kafka, tmp_path, prefix, buckets=1)
    output.open()
    with pytest.raises(UnrepresentableValue, match=r"shop/main.orders: the row at \(2, 1\).*message.max.bytes"):
        write_batch(output, log.batch(0, 2))
    assert ids_in(kafka, prefix) == []


def test_a_topic_that_is_missing_is_told(kafka, tmp_path):
    output = output_of(kafka, tmp_path, new_prefix(), create_topics=None)
    output.open()
    with pytest.raises(ConfigError, match="create_topics"):
        write_batch(output, log_of(1).batch(0, 1))
