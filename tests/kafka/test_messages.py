"""Messages in other words, with deletes and keys as topics want them; read by the formats' own readers."""

import json
from collections import defaultdict

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from databus.core import ControlKind, UnsupportedFeature
from databus.formats import canal_rows, cloudevents_debezium_rows, cloudevents_rows, debezium_rows, maxwell_rows
from databus.testing._change_log import ORDERS, ChangeLog, mirror_of
from databus.testing._staged_writes import write_batch
from tests.kafka.support import KafkaHarness, messages_in, new_prefix, output_of
from tests.outputs.harnesses import log_of, order

READERS = {
    "debezium": debezium_rows,
    "maxwell": maxwell_rows,
    "canal": canal_rows,
    "cloudevents": cloudevents_rows,
    "cloudevents_debezium": cloudevents_debezium_rows,
}


def written(kafka, folder, log, **options):
    prefix = new_prefix()
    output = output_of(kafka, folder, prefix, **options)
    output.open()
    write_batch(output, log.batch(0, len(log.entries)))
    return messages_in(kafka, f"{prefix}.orders")


def busy_log():
    log = log_of(*range(1, 21))
    for number in range(1, 21, 2):
        log.begin().update(ORDERS, order(number), order(number, "changed"))
    log.begin().update(ORDERS, order(3, "changed"), order(103, "moved"))
    log.begin().delete(ORDERS, order(2))
    return log


@pytest.mark.parametrize("name", READERS)
def test_what_is_left_of_each_key_is_its_row_in_every_format(kafka, tmp_path, name):
    """Over three buckets and three partitions, a changed key included."""
    log, alive = busy_log(), {}
    for part in written(kafka, tmp_path, log, format=name, buckets=3):
        values = pa.array([message.value() for message in part], pa.large_binary())
        for row in READERS[name](ORDERS, values).rows.to_pylist():
            if row["_change_type"] in (1, 3):
                alive[row["id"]] = row["note"]
            else:
                alive.pop(row["id"], None)
    assert alive == {key: row["note"] for (key,), (row, _) in mirror_of(log.entries, ORDERS.source).items()}


def test_a_key_goes_where_kafkas_own_partitioner_sends_it(kafka, tmp_path):
    """The same keys by the client's own producer, with nothing but the partitioner's name."""
    mine = {message.key(): message.partition() for part in written(kafka, tmp_path, busy_log()) for message in part}
    topic, theirs = new_prefix(), {}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": "murmur2_random"})
    for key in mine:
        producer.produce(topic, b"", key, on_delivery=lambda error, at: theirs.update({at.key(): at.partition()}))
    producer.flush(30)
    assert mine == theirs
    assert len(set(mine.values())) == 3


@pytest.mark.parametrize(("deletes", "left"), [("envelope", []), ("tombstone", [2, 3]), ("both", [2, 3])])
def test_tombstones_say_that_a_key_is_gone(kafka, tmp_path, deletes, left):
    ids, last = {}, {}
    for part in written(kafka, tmp_path, busy_log(), deletes=deletes):
        for message in part:
            if message.value() is not None:
                ids[message.key()] = json.loads(message.value())["id"]
            last[message.key()] = message.value()
    assert sorted(ids[key] for key, value in last.items() if value is None) == left


def test_headers_say_the_place_of_each_row_and_may_be_left_out(kafka, tmp_path):
    for part in written(kafka, tmp_path, busy_log()):
        for message in part:
            row, headers = json.loads(message.value()), dict(message.headers())
            assert (int(headers["_commit_version"]), int(headers["_seq"])) == (row["_commit_version"], row["_seq"])
            assert headers["_txid"].decode() == row["_txid"]
    bare = written(kafka, tmp_path, log_of(1, 2), headers=False)
    assert [message.headers() for part in bare for message in part] == [None, None]


def test_headers_say_the_place_where_one_update_is_a_message_and_one_delete_is_two(kafka, tmp_path):
    """As many messages as rows, and yet not one of each."""
    log = log_of(1, 2)
    log.begin().update(ORDERS, order(1), order(1, "changed"))
    log.begin().delete(ORDERS, order(2))
    found = {}
    for each in (message for part in written(kafka, tmp_path, log, format="debezium", buckets=1) for message in part):
        op = json.loads(each.value())["op"] if each.value() else "tombstone"
        headers = dict(each.headers())
        found.setdefault(op, []).append((int(headers["_commit_version"]), int(headers["_seq"])))
    assert found == {"c": [(1, 1), (2, 1)], "u": [(3, 2)], "d": [(4, 1)], "tombstone": [(4, 1)]}


def test_controls_stand_in_each_partition_or_in_a_topic_of_their_own_or_stop(kafka, tmp_path):
    log = log_of(1)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    for part in written(kafka, tmp_path, log):
        assert json.loads(part[-1].value())["_control"]["kind"] == "truncate"
        assert part[-1].key() is None
    topic = f"{new_prefix()}.controls"
    assert sum(map(len, written(kafka, tmp_path, log, controls=topic))) == 1
    found = [json.loads(message.value()) for part in messages_in(kafka, topic) for message in part]
    assert [each["_control"]["kind"] for each in found] == ["truncate"]
    with pytest.raises(UnsupportedFeature, match=r"on_truncate: skip"):
        written(kafka, tmp_path, log, format="debezium")
    assert sum(map(len, written(kafka, tmp_path, log, format="debezium", on_truncate="skip"))) == 1


def test_controls_stand_in_partitions_that_a_topic_has_got_meanwhile(kafka, tmp_path):
    prefix, log = new_prefix(), log_of(1)
    log.begin().control(ControlKind.TRUNCATE, ORDERS)
    output = output_of(kafka, tmp_path, prefix)
    output.open()
    write_batch(output, log.batch(0, 1))
    topic = f"{prefix}.orders"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    write_batch(output, log.batch(1, 2))
    ends = [json.loads(part[-1].value())["_control"]["kind"] for part in messages_in(kafka, topic)]
    assert ends == ["truncate"] * 5


def test_an_update_is_in_one_piece_however_many_rows_there_are(kafka, tmp_path):
    log = ChangeLog().begin()
    log.insert(ORDERS, order(0))
    for number in range(5_000):
        log.begin().update(ORDERS, order(number), order(number, "new"))
    kinds = defaultdict(int)
    for part in written(kafka, tmp_path, log, format="debezium", buckets=1):
        for message in part:
            kinds[json.loads(message.value())["op"]] += 1
    assert kinds == {"c": 1, "u": 5_000}


def test_without_transactions_nothing_is_missing_and_repeats_can_be_told(kafka, tmp_path):
    """A task is run twice: whoever drops what is not above the last pair of its key has each change once."""
    prefix, log = new_prefix(), busy_log()
    harness = KafkaHarness(kafka, tmp_path, transactions=False)
    harness.prefix = prefix
    output = harness.make()
    output.open()
    write_batch(output, log.batch(0, len(log.entries)))
    rows = [json.loads(message.value()) for part in messages_in(kafka, f"{prefix}.orders") for message in part]
    last, once = {}, []
    for row in rows:
        pair = row["_commit_version"], row["_seq"]
        if last.get(row["id"], (0, 0)) < pair:
            last[row["id"]] = pair
            once.append(pair)
    assert sorted(once) == sorted(entry.pair for entry in log.entries)
    assert len(rows) > len(once)
