"""Show the first messages of a topic, as soon as there are so many: `python read.py shop.orders 3`."""

import json
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer

WAIT_S_MAX = 120


def main(topic, count):
    settings = {
        "bootstrap.servers": Path("kafka.address").read_text(),
        "group.id": f"read-{time.time_ns()}",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "allow.auto.create.topics": False,
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    deadline, shown = time.monotonic() + WAIT_S_MAX, 0
    while shown < count:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            print(line_of(message))
            shown += 1
        elif time.monotonic() > deadline:
            sys.exit(f"{topic} has {shown} messages, and {count} did not come in {WAIT_S_MAX} s")
    consumer.close()


def line_of(message):
    key = json.loads(message.key())
    if message.value() is None:
        return f"{key}: gone"
    value = json.loads(message.value())
    return f"{key}: {value['op']} {value['before']} -> {value['after']}"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
