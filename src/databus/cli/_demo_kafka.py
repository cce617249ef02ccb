"""The demo's topics of Kafka, and what a reader makes of them: per key, the last row."""

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from databus.cli._demo_target import Say, compare_rows
from databus.core import COMMIT_VERSION, CONTROL, SEQ, FatalError, InputError, Pair, ServiceUnavailable, how_to_install
from databus.sources import SourceConfig
from databus.testing.servers import Kafka

_SECTIONS: Final = """\
outputs:
  topics:
    type: kafka
    from: shop
    topic: "shop.{{table}}"
    create_topics: {{partitions: 3, replication_factor: 1}}
    kafka: {{bootstrap.servers: "{bootstrap}"}}
    request_ms_max: 10000
    transaction_ms_max: 20000
"""
_ANSWER_S_MAX: Final = 60
_PUTS: Final = ("insert", "update_postimage")

Message = dict[str, Any]


class KafkaDemo:
    """A Kafka of one node with its data in the demo's folder, and a topic a table."""

    product = "Kafka"
    outputs = ("topics",)

    def __init__(self, folder: Path) -> None:
        self.server = Kafka(folder / "kafka")

    def build(self) -> None:
        """See `Target`."""
        try:
            import confluent_kafka  # noqa: F401 - looked for
        except ImportError:
            raise InputError(f"--sink kafka needs Kafka's client: {how_to_install('kafka')}") from None
        self.server.start()

    def sections(self) -> str:
        """See `Target`."""
        return _SECTIONS.format(bootstrap=self.server.bootstrap)

    def compare(self, source: SourceConfig, relay: str, say: Say) -> int:
        """See `Target`."""
        return compare_rows(source, relay, self._rows, say, "topics, folded by key,")

    def _rows(self, table: str) -> list[Message]:
        return folded(list(_messages(self.server.bootstrap, f"shop.{table}")), table)


def folded(messages: list[tuple[bytes | None, Message]], table: str) -> list[Message]:
    """The rows that are there, by the mirror rule: in the order of their pairs, whichever partition they were in.

    Controls stand in each partition. Raises `FatalError` for a row that is there twice.
    """
    held: dict[bytes, Message] = {}
    done: set[Pair] = set()
    for key, message in sorted(messages, key=lambda keyed: pair_of(keyed[1])):
        pair = pair_of(message)
        if key is None:
            if pair not in done:
                _follow(held, message[CONTROL])
        elif pair in done:
            raise FatalError(f"the topic of {table} holds the change at {pair} (SCN, _seq) twice")
        elif message["_change_type"] in _PUTS:
            held[key] = message
        else:
            held.pop(key, None)
        done.add(pair)
    return list(held.values())


def pair_of(message: Message) -> Pair:
    """The place of its change."""
    return message[COMMIT_VERSION], message[SEQ]


def _follow(held: dict[bytes, Message], control: dict[str, Any]) -> None:
    """Columns came or have other names, or a snapshot ended."""
    if control["kind"] == "schema":
        renamed, fill = control.get("renamed", {}), control.get("fill", {})
        for row in held.values():
            was = {renamed.get(name, name): value for name, value in row.items()}
            row.clear()
            row.update({**fill, **was})
    elif control["kind"] == "snapshot_end" and control["complete"]:
        begin = tuple(control["begin"])
        for key in [key for key, row in held.items() if pair_of(row) < begin]:
            del held[key]


def _messages(bootstrap: str, topic: str) -> Iterator[tuple[bytes | None, Message]]:
    """All committed messages of a topic, with their keys."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": "read_committed", "auto.offset.reset": "earliest"})
    try:
        left = set(reader.list_topics(topic, timeout=_ANSWER_S_MAX).topics[topic].partitions)
        reader.assign([TopicPartition(topic, number, 0) for number in left])
        while left:
            message = reader.poll(_ANSWER_S_MAX)
            if message is None:
                raise ServiceUnavailable(f"Kafka at {bootstrap} does not answer within {_ANSWER_S_MAX} s")
            error, value = message.error(), message.value()
            if error is None and value is not None:
                yield message.key(), json.loads(value)
            elif error is not None and error.name() == "_PARTITION_EOF":
                left.discard(message.partition())
    finally:
        reader.close()
