"""What tasks and the driver do with topics of Kafka. Start with `KafkaWriter`.

Kafka's client is imported only where it is used: other executors do without it.
"""

from databus.sinks.kafka._cluster import Cluster
from databus.sinks.kafka._encoding import Encoding
from databus.sinks.kafka._positions import BucketId, Record, positions_of
from databus.sinks.kafka._topics import topic_name, topics_of
from databus.sinks.kafka._writer import KafkaWriter

__all__ = [
    "BucketId",
    "Cluster",
    "Encoding",
    "KafkaWriter",
    "Record",
    "positions_of",
    "topic_name",
    "topics_of",
]
