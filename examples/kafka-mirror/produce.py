"""Write orders of a shop into a cluster: `python produce.py east 1000`."""

import sys
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PARTITIONS = 4


def main(cluster: str, count: int) -> None:
    servers = {"bootstrap.servers": Path(f"{cluster}.address").read_text()}
    admin = AdminClient(servers)
    made = admin.create_topics([NewTopic("shop.orders", PARTITIONS, 1)])
    if (error := made["shop.orders"].exception(60)) is not None and "TOPIC_ALREADY_EXISTS" not in str(error):
        raise error
    producer = Producer({**servers, "enable.idempotence": True})
    began_ms = int(time.time() * 1000) - 3_600_000
    for number in range(count):
        key = f"{cluster}-{number % 100}"
        value = None if number % 50 == 49 else f'{{"order": "{key}", "total": {number}}}'  # None: the order is gone
        headers = [("from", cluster), ("trace", number.to_bytes(4, "big")), ("trace", None)]
        producer.produce("shop.orders", value, key, headers=headers, timestamp=began_ms + number)
    if producer.flush(60):
        sys.exit(f"{cluster} did not take all messages")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
