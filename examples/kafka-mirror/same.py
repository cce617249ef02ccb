"""Compare a topic with its mirror, message by message: `python same.py east shop.orders west east.shop.orders`."""

import sys
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition


def messages(cluster: str, topic: str) -> list[list[tuple[object, ...]]]:
    """All committed messages of each partition, in order."""
    settings = {
        "bootstrap.servers": Path(f"{cluster}.address").read_text(),
        "group.id": "same",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    count = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
    found: list[list[tuple[object, ...]]] = [[] for _ in range(count)]
    ended = 0
    while ended < count:
        message = consumer.poll(30)
        if message is None:
            sys.exit(f"{cluster} does not answer")
        if message.error() is None:
            found[message.partition()].append(parts(message))
        else:
            ended += message.error().name() == "_PARTITION_EOF"
    consumer.close()
    return found


def parts(message: Message) -> tuple[object, ...]:
    return message.key(), message.value(), message.timestamp(), message.headers()


def main(cluster: str, topic: str, other: str, mirror: str) -> None:
    found = messages(cluster, topic)
    if found != messages(other, mirror):
        sys.exit(f"{mirror} in {other} is not what {topic} in {cluster} is")
    print(f"{mirror} in {other}: {sum(map(len, found))} messages in {len(found)} partitions, the same as in {cluster}")


if __name__ == "__main__":
    main(*sys.argv[1:])
