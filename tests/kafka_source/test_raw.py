"""Topics are read once, in the order of each partition, whatever is killed."""

import base64
import json
from typing import Any

import pytest
from confluent_kafka import Producer

from databus.client import windows
from databus.core import SourceChanged, UnknownSource, UnrepresentableValue, UnsupportedFeature
from databus.log import Resume
from databus.sources.kafka import KafkaSource
from databus.testing import RelayProcess
from tests.kafka_source.support import WAIT_S, Follower, Topics


def test_a_message_keeps_key_value_time_place_and_headers(topics: Topics):
    name = topics.create(partitions=2)
    headers = [("a", b"\x00\xff"), ("a", None), ("b", b"")]
    topics.write(name, [b"\xff\x00"], partition=1, key=b"k", timestamp=1_700_000_000_123, headers=headers)
    topics.write(name, [None], partition=1)
    with Follower(topics.config(name)) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
    first, second = follower.rows(f"kafka.{name}")
    assert (first["key"], first["value"], first["partition"], first["offset"]) == (b"k", b"\xff\x00", 1, 0)
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    told = [(name, None if value is None else base64.b64decode(value)) for name, value in json.loads(first["headers"])]
    assert told == headers
    assert (second["key"], second["value"], second["offset"], second["headers"]) == (None, None, 1, None)


def test_a_time_that_no_column_can_hold_stops_the_source_at_its_place(topics: Topics):
    name = topics.create(message_timestamp_after_max_ms=(1 << 63) - 1)
    topics.write(name, [b"far"], timestamp=200_000_000_000_000)
    topics.write(name, [b"beyond"], timestamp=(1 << 63) - 1)
    with Follower(topics.config(name)) as follower:
        with pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 1: .*timestamp"):
            follower.until(lambda: False)
        assert [row["value"] for row in follower.rows()] == [b"far"]


def test_each_partition_is_read_in_its_order_and_nothing_twice_however_often_it_is_killed(topics: Topics):
    names = [topics.create(partitions=3) for _ in range(2)]
    written = {(name, p): [f"{name}/{p}/{i}".encode() for i in range(400)] for name in names for p in range(3)}
    with Follower(topics.config(*names, group_bytes_max=1024, queue_bytes_max=1 << 20)) as follower:
        for start in range(0, 400, 100):
            for (name, partition), values in written.items():
                topics.write(name, values[start : start + 100], partition)
            for _ in range(5):
                follower.poll()
            follower.start()
        follower.until(lambda: len(follower.rows()) >= 2400)
        for _ in range(10):
            follower.poll()
    found: dict[tuple[str, int], list[bytes]] = {place: [] for place in written}
    for row in follower.rows():
        found[row["source"].removeprefix("kafka."), row["partition"]].append(row["value"])
    assert found == written


@pytest.mark.parametrize("part", ["value", "key", "headers"])
def test_a_group_ends_at_its_limit_whatever_part_of_messages_is_large(topics: Topics, part: str):
    """A compacted topic's tombstones have no value, and may have large keys and headers."""
    name, large, limit = topics.create(), b"x" * 20_000, 100_000
    options = {"key": large} if part == "key" else {"headers": [("trace", large)]}
    topics.write(name, [large if part == "value" else None] * 200, **({} if part == "value" else options))
    with Follower(topics.config(name, group_bytes_max=limit)) as follower:
        follower.until(lambda: len(follower.rows()) == 200)
        sizes = [rows.batch.get_total_buffer_size() for group in follower.tape.groups for rows in group.rows]
    assert max(sizes) < 2 * limit


def test_a_log_that_began_at_the_latest_goes_on_there_after_a_kill_before_the_first_message(topics: Topics):
    name = topics.create()
    topics.write(name, [b"old"])
    with Follower(topics.config(name, start="latest")) as follower:
        follower.until(lambda: bool(follower.tape.groups))  # the position alone
        follower.kill()
        topics.write(name, [b"new"])
        follower.until(lambda: bool(follower.rows()))
    assert follower.values() == [b"new"]


def test_a_log_begins_at_a_time_or_at_offsets(topics: Topics):
    name = topics.create(partitions=2)
    for at in range(5):
        topics.write(name, [f"{at}".encode()], partition=0, timestamp=1_700_000_000_000 + at * 1000)
    topics.write(name, [b"x"], partition=1, timestamp=1_600_000_000_000)
    with Follower(topics.config(name, start="2023-11-14T22:13:22Z")) as follower:
        follower.until(lambda: len(follower.rows()) == 3)
    assert follower.values() == [b"2", b"3", b"4"]
    with Follower(topics.config(name, start={name: {0: 4}})) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
    assert sorted(follower.values()) == [b"4", b"x"]


def test_messages_of_aborted_transactions_are_not_delivered_and_the_position_passes_their_markers(topics: Topics):
    name = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    for number in range(4):
        producer.begin_transaction()
        producer.produce(name, value=f"{number}".encode(), partition=0)
        producer.flush()
        producer.abort_transaction() if number % 2 else producer.commit_transaction()
    with Follower(topics.config(name)) as follower:
        follower.until(lambda: len(follower.rows()) == 2)
        place = lambda: follower.tape.groups[-1].commit.position["topics"][name]["offsets"]  # noqa: E731
        follower.until(lambda: place() == [8])  # four messages, four markers
        assert follower.source is not None
        assert follower.source.lag().changes == 0
        follower.start()
        topics.write(name, [b"4"])
        follower.until(lambda: len(follower.rows()) == 3)
    assert follower.values() == [b"0", b"2", b"4"]
    assert follower.gaps() == []


@pytest.mark.parametrize("start", ["latest", "2100-01-01T00:00:00Z"])
def test_a_log_that_begins_at_the_latest_has_a_transaction_that_was_open_then_as_a_whole(topics: Topics, start: str):
    name = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, value=b"one", partition=0)
    producer.flush()
    with Follower(topics.config(name, start=start)) as follower:
        follower.until(lambda: bool(follower.tape.groups))  # the position alone
        producer.produce(name, value=b"two", partition=0)
        producer.commit_transaction(30)
        follower.until(lambda: follower.values()[-1:] == [b"two"])
    assert follower.values() == [b"one", b"two"]


def test_the_marker_behind_the_last_message_is_passed_also_where_both_come_at_once(topics: Topics):
    """As on a busy machine, or after a pause. Nothing tells again where a partition at rest ends."""
    name = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, value=b"0", partition=0)
    producer.commit_transaction(30)
    with Follower(topics.config(name)) as follower:
        consumer = follower.start()._consumer
        assert consumer is not None
        really, came = consumer._consume, list[Any]()
        while not came or came[-1].error() is None or came[-1].offset() < 2:  # its end, behind message and marker
            came += really(1, WAIT_S)
        consumer._consume = lambda count, wait_s: [came.pop(0) for _ in came[:count]] or really(count, wait_s)
        follower.until(lambda: bool(follower.rows()))
        follower.until(lambda: follower.tape.groups[-1].commit.position["topics"][name]["offsets"] == [2])
        assert follower.source is not None
        assert follower.source.lag().changes == 0


def test_json_is_text_and_a_message_that_is_none_stops_the_source_at_its_place(topics: Topics):
    name = topics.create()
    topics.write(name, ['{"a": {"b": 1}}', "[1]", '{"a": "x"}', None, '{"a":', '{"z": 1}'])
    with Follower(topics.config(name, format="json")) as follower:
        follower.until(lambda: len(follower.rows()) == 4)
        assert follower.values() == ['{"a": {"b": 1}}', "[1]", '{"a": "x"}', None]
        for _ in range(2):  # however often it is started
            with pytest.raises(UnrepresentableValue, match=f"{name}, partition 0, offset 4.*not JSON.*on_poison: skip"):
                follower.until(lambda: False)
            follower.start()
    with Follower(topics.config(name, format="json", on_poison="skip")) as follower:
        follower.until(lambda: len(follower.rows()) == 5)
    assert follower.values()[-1] == '{"z": 1}'
    assert len(follower.gaps()) == 1
    assert f"{name}, partition 0, offset 4" in follower.gaps()[0]


def test_another_cluster_s_position_and_tables_that_are_none_are_refused(topics: Topics):
    name = topics.create()
    topics.write(name, [b"x"])
    with Follower(topics.config(name)) as follower:
        follower.until(lambda: bool(follower.rows()))
        source = follower.source
        assert source is not None
        with pytest.raises(UnknownSource, match="no_such"):
            source.request_snapshot(["kafka.no_such"])
        with pytest.raises(UnsupportedFeature, match="start: earliest"):
            source.request_snapshot([f"kafka.{name}"])
        resume = follower.tape.resume()
    other = KafkaSource("events", topics.config(name))
    with pytest.raises(SourceChanged, match="another name"):
        other.start(Resume({**resume.position, "cluster": "elsewhere"}, resume.scn, resume.seq, resume.txid))
    other.close()


def test_a_relay_that_is_killed_again_and_again_serves_each_message_once(topics: Topics, tmp_path):
    name = topics.create(partitions=2)
    sources = {
        "events": {
            "type": "kafka",
            "kafka": {"bootstrap.servers": topics.bootstrap},
            "topics": [name],
            "format": "json",
        }
    }
    written: dict[int, list[str]] = {0: [], 1: []}
    with RelayProcess(tmp_path, sources) as relay:
        for round_ in range(4):
            for partition in (0, 1):
                values = [json.dumps({"n": round_ * 300 + i}) for i in range(300)]
                topics.write(name, values, partition)
                written[partition] += values
            if round_ < 3:
                relay.kill()
                relay.start()
        found = _served(relay, 2400)
    assert found == written


def _served(relay: RelayProcess, rows: int) -> dict[int, list[str]]:
    """The values that a relay serves, by partition, up to so many."""
    found: dict[int, list[str]] = {0: [], 1: []}
    followed = windows(relay.url)
    for window in followed:
        for table in window.tables().values():
            for partition, value in zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True):
                found[partition].append(value)
        if sum(map(len, found.values())) >= rows:
            break
    followed.close()
    return found
