"""Debezium's transaction metadata: each change's place in its transaction, whatever becomes of batches and tasks."""

import random
from collections import Counter, defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic import ValidationError

from databus.core import ChangeType, ControlKind
from databus.filters import TableChoice
from databus.flow import Bucket, DirectFeed, Ways
from databus.places import Position
from databus.sinks.kafka._session import KEPT
from databus.testing._change_log import ORDERS, STOCK, ChangeLog, Image, random_log
from databus.testing._staged_writes import opened, write_batch
from tests.kafka.support import messages_in, new_prefix, output_of
from tests.kafka.transactions import as_json, changes_in, counts_of_whole_transactions
from tests.outputs.harnesses import order
from tests.relay.support import Database, scripted


def counting(server, folder, prefix, *, chosen=None, **options):
    topic = {"transaction_topic": f"{prefix}.{{physical}}.transaction"}
    given = {
        "format": "debezium",
        "debezium": {"unsigned": "precise", **topic, **(chosen or {})},
        "buckets": 3,
        "on_truncate": "skip",
        **options,
    }
    output = output_of(server, folder, prefix, **given)
    output.open()
    return output


def counts_in(server, prefix, **options):
    topics = [f"{prefix}.orders", f"{prefix}.stock"]
    return counts_of_whole_transactions(server, topics, f"{prefix}.shop.transaction", **options)


def counts_of(log):
    """What a transaction changed in each table, one entry after the other: another key is another row."""
    found, before = defaultdict(Counter), None
    for entry in log.entries:
        if not isinstance(entry, Image) or entry.snapshot:
            continue
        key = [entry.row[name] for name in entry.table.key]
        is_second = entry.kind is ChangeType.UPDATE_POSTIMAGE and before == key
        before = key if entry.kind is ChangeType.UPDATE_PREIMAGE else None
        if not is_second:
            found[f"t{entry.pair[0]}"][entry.table.source] += 1
    return {name: dict(counts) for name, counts in found.items()}


def cuts_of(log, dice, least=1, most=15):
    """Places at which a run would cut it: anywhere but between the two images of an update."""
    cuts, at = [], 0
    while (at := at + dice.randint(least, most)) < len(log.entries):
        entry = log.entries[at - 1]
        cuts.append(at + 1 if isinstance(entry, Image) and entry.kind is ChangeType.UPDATE_PREIMAGE else at)
    return [cut for cut in cuts if cut < len(log.entries)]


def as_other_process():
    KEPT._sessions.clear()


@pytest.mark.parametrize("seed", range(2))
def test_every_change_has_its_place_wherever_batches_are_cut(kafka, tmp_path, seed):
    log, dice = random_log(seed, 25), random.Random(seed)
    prefix = new_prefix()
    output = counting(kafka, tmp_path, prefix)
    for batch in log.batches(cuts_of(log, dice)):
        write_batch(output, batch)
        if dice.random() < 0.2:
            as_other_process()
    found, without = counts_in(kafka, prefix)
    assert found == counts_of(log)
    assert without == []


def write_bucket(output, batch, number, **more):
    """As one task does, and none of the others."""
    writer = output.part_writer()
    bucket = Bucket("shop", "topics", "shop", 0, writer.buckets, **more)
    DirectFeed(Ways(key=output.config.key_choice), writer, bucket).write_ranges(lambda _: [batch], pa.table({}), number)


def long_log():
    """A transaction of 12 changes in two tables, and one of two."""
    log = ChangeLog().begin()
    for number in range(6):
        log.insert(ORDERS, order(number))
        log.insert(STOCK, {"Shelf no": f"{number}", "price": number, 'the "count"': 1, "raw": b""})
    log.begin().update(ORDERS, order(1), order(1, "new"))
    log.delete(ORDERS, order(2))
    return log


def test_buckets_that_were_killed_at_different_places_count_on_from_where_each_stands(kafka, tmp_path):
    """And the batches that come again have other boundaries."""
    log, prefix = long_log(), new_prefix()
    output = counting(kafka, tmp_path, prefix)
    for number, begin, end in ((0, 0, 5), (1, 0, 7), (0, 3, 9), (2, 0, 2)):
        write_bucket(output, log.batch(begin, end), number)
        as_other_process()
    for batch in log.batches([1, 4, 6, 8, 11]):
        write_batch(output, batch)
    found, _ = counts_in(kafka, prefix)
    assert found == counts_of(log) == {"t1": {"main.orders": 6, "main.stock": 6}, "t2": {"main.orders": 2}}


def test_a_transaction_ends_where_the_log_says_so_though_none_of_its_last_rows_come_here(kafka, tmp_path):
    log, prefix = long_log(), new_prefix()
    output = counting(kafka, tmp_path, prefix)
    write_batch(output, log.batch(0, 5))
    write_batch(output, replace(log.batch(5, 9), items=()))
    statuses = [as_json(message.value())["status"] for part in marks_in(kafka, prefix) for message in part]
    assert statuses == ["BEGIN"]
    write_batch(output, replace(log.batch(9, 12), items=()))
    found, _ = counts_in(kafka, prefix)
    assert found == {"t1": {"main.orders": 3, "main.stock": 2}}


def marks_in(kafka, prefix):
    return messages_in(kafka, f"{prefix}.shop.transaction")


def test_a_transaction_without_rows_for_the_output_has_no_begin_and_no_end(kafka, tmp_path):
    log, prefix = long_log(), new_prefix()
    output = counting(kafka, tmp_path, prefix)
    write_batch(output, replace(log.batch(0, 12), items=()))
    write_batch(output, log.batch(12, 15))
    found, _ = counts_in(kafka, prefix)
    assert found == {"t2": {"main.orders": 2}}


def test_rows_of_snapshots_have_no_place_and_change_no_other_one_s(kafka, tmp_path):
    log, prefix = ChangeLog(), new_prefix()
    log.begin().insert(ORDERS, order(1))
    log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.snapshot(ORDERS, [order(7), order(8)])
    log.begin().insert(ORDERS, order(2))
    log.insert(ORDERS, order(3))
    output = counting(kafka, tmp_path, prefix)
    for batch in log.batches([3]):
        write_batch(output, batch)
    found, without = counts_in(kafka, prefix)
    assert found == {"t1": {"main.orders": 1}, "t2": {"main.orders": 2}}
    assert sorted(each["after"]["id"] for each in without) == [7, 8]
    assert {each["op"] for each in without} == {"r"}


def test_a_transaction_of_which_a_part_was_not_counted_has_no_places_and_no_begin_or_end(kafka, tmp_path):
    """The option came while it was written; what comes after it is counted."""
    log, prefix = long_log(), new_prefix()
    write_batch(counting(kafka, tmp_path, prefix, chosen={"transaction_topic": None}), log.batch(0, 5))
    output = counting(kafka, tmp_path, prefix)
    for batch in (log.batch(5, 8), log.batch(8, 15)):
        write_batch(output, batch)
        as_other_process()
    found, without = counts_in(kafka, prefix)
    assert found == {"t2": {"main.orders": 2}}
    assert len(without) == 12


@pytest.mark.parametrize(("reached", "counted"), [((1, 5), {"t2"}), (None, {"t1", "t2"})])
def test_a_bucket_without_a_position_counts_on_only_where_nothing_was_written_before(kafka, tmp_path, reached, counted):
    """Its position may be lost, and then nobody knows what was counted; the ledger says that something was."""
    log, prefix = long_log(), new_prefix()
    output = counting(kafka, tmp_path, prefix)
    known = {"position": Position(log.position(5), ((TableChoice(),),)), "reached": reached}
    for number in range(3):
        write_bucket(output, log.batch(5, 15), number, **known)
    found, without = counts_in(kafka, prefix)
    assert set(found) == counted
    assert len(without) == (7 if reached else 0)


def test_the_number_of_buckets_may_change_inside_a_transaction(kafka, tmp_path):
    log, prefix = long_log(), new_prefix()
    for buckets, begin, end in ((2, 0, 5), (3, 5, 8), (1, 8, 15)):
        write_batch(opened(counting(kafka, tmp_path, prefix, buckets=buckets)), log.batch(begin, end))
    assert counts_in(kafka, prefix)[0] == counts_of(log)


def test_with_schema_each_message_says_it(kafka, tmp_path):
    log, prefix = long_log(), new_prefix()
    output = counting(kafka, tmp_path, prefix, chosen={"with_schema": True})
    for batch in log.batches([5]):
        write_batch(output, batch)

    def payload(data):
        return None if data is None else as_json(data)["payload"]

    found, _ = counts_in(kafka, prefix, read=payload, read_key=payload)
    assert found == counts_of(log)
    (schema,) = {str(as_json(message.value())["schema"]) for part in marks_in(kafka, prefix) for message in part}
    assert "'name': 'io.debezium.connector.common.TransactionMetadataValue'" in schema


def test_in_avro_confluents_deserializer_reads_places_and_marks(kafka, tmp_path):
    log, prefix = random_log(5, 12), new_prefix()
    with scripted(tmp_path / "relay", {"shop": Database()}) as relay:
        url = f"{relay.url}/registry"
        output = counting(kafka, tmp_path, prefix, format="debezium_avro", registry={"url": url})
        for batch in log.batches(cuts_of(log, random.Random(5))):
            write_batch(output, batch)
        client = SchemaRegistryClient({"url": url})
        deserialize = AvroDeserializer(client)
        value, key = (SerializationContext("t", each) for each in (MessageField.VALUE, MessageField.KEY))
        found, without = counts_in(
            kafka,
            prefix,
            read=lambda data: None if data is None else deserialize(data, value),
            read_key=lambda data: deserialize(data, key),
        )
        topic = f"{prefix}.shop.transaction"
        assert {f"{topic}-key", f"{topic}-value"} < set(client.get_subjects())
    assert found == counts_of(log)
    assert without == []


def test_without_the_option_there_is_neither_block_nor_topic(kafka, tmp_path):
    log, prefix = long_log(), new_prefix()
    write_batch(counting(kafka, tmp_path, prefix, chosen={"transaction_topic": None}), log.batch(0, 15))
    assert {change["transaction"] for change in changes_in(kafka, [f"{prefix}.orders", f"{prefix}.stock"])} == {None}
    assert marks_in(kafka, prefix) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"format": "json"}, "goes with the formats debezium and debezium_avro"),
        ({"format": "cloudevents_debezium"}, "goes with the formats debezium and debezium_avro"),
        ({"transactions": False}, "counts would be wrong after a crash"),
        ({"on_error": "dead_letter"}, "does not go with `on_error: dead_letter`"),
        ({"chosen": {"transaction_topic": "{table}.transaction"}}, "takes `{physical}` alone"),
        ({"chosen": {"transaction_topic": "shop transactions"}}, "no topic can be called"),
        ({"chosen": {"transaction_topic": "p.control"}}, "another topic than `control_topic`"),
        ({"controls": "p.control"}, "all outputs that have theirs there would stop"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, told):
    class Nowhere:
        bootstrap = "127.0.0.1:1"

    with pytest.raises(ValidationError, match=told):
        counting(Nowhere, tmp_path, "p", **options)
