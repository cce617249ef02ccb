"""Topics of one cluster mirrored into another: what the source reads of them, cut into batches, and what arrives."""

import random
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from databus.core import SourceCheckpoint
from databus.flow import ChangeBatch, TableRows
from databus.flow._decode import to_user_rows
from databus.testing._staged_writes import opened, write_batch
from databus.wire import Group
from tests.kafka.support import messages_in, output_of
from tests.kafka_source.support import Follower, Topics


def produce(topics: Topics, name: str, partitions: int, *, seed: int, count: int) -> None:
    """Messages of every form that Kafka has, into all but the last partition."""
    dice = random.Random(seed)
    producer = Producer({"bootstrap.servers": topics.bootstrap, "partitioner": "random"})
    for number in range(count):
        producer.produce(
            name,
            dice.choice([None, b"", b"\x00\xff", f"value {number}".encode()]),
            dice.choice([None, b"", b"\xfe", f"key {number % 7}".encode()]),
            number % max(partitions - 1, 1),
            timestamp=dice.choice([-1, 1, 1_700_000_000_000 + number]),
            headers=dice.choice([None, [("a", b"1"), ("b", None), ("a", b"1")], [("é", b""), ("n", b"%d" % number)]]),
        )
    assert producer.flush(60) == 0


def captured(topics: Topics, name: str, *counts: int, write: Callable[[int], None]) -> list[Group]:
    """What the source makes of a topic that `write` fills, with so many messages at a time: as many groups or more."""
    with Follower(topics.config(name)) as follower:
        for number in range(len(counts)):
            write(number)
            follower.until(lambda: len(follower.rows()) >= sum(counts[: number + 1]))  # noqa: B023 - called here
        return follower.tape.groups


def batches(groups: list[Group], begin: int = 0) -> Iterator[ChangeBatch]:
    """Groups as tasks are given them, each a batch. begin: of them."""
    log = str(uuid.uuid5(uuid.NAMESPACE_OID, "log"))
    at = SourceCheckpoint(log=log)
    for number, group in enumerate(groups):
        commit = group.commit
        end = SourceCheckpoint("", commit.scn, None, commit.txid, commit.commit_us, log)
        if number >= begin:
            items = tuple(
                TableRows(row.table, to_user_rows(row.table, pa.Table.from_batches([row.batch]))) for row in group.rows
            )
            yield ChangeBatch("east", at, end, items, position=commit.position)
        at = end


def mirror_of(server: Any, folder: Any, prefix: str, **options: Any) -> Any:
    """The output that a mirror is."""
    new = {"replication_factor": 1, "config": {"retention.ms": -1}}
    given = {"create_topics": new, "format": "message", "name": "mirror", **options}
    return output_of(server, folder, prefix, **given)


def write(output: Any, groups: list[Group], begin: int = 0) -> None:
    """As a run does, with tasks that run twice."""
    opened(output)
    for batch in batches(groups, begin):
        write_batch(output, batch)


def told(server: Any, topic: str) -> list[list[tuple[Any, ...]]]:
    """All that a reader can tell of each partition's messages, in order."""
    return [
        [(message.key(), message.value(), message.timestamp(), message.headers()) for message in part]
        for part in messages_in(server, topic)
    ]
