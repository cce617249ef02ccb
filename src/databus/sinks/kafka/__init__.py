"""What tasks and the driver do with topics of Kafka. Start with `KafkaWriter`.

Kafka's client is imported only where it is used: other executors do without it.
"""

from databus.sinks.kafka._avro import AVRO_FORMATS, AvroSubjects
from databus.sinks.kafka._buckets import switch_buckets
from databus.sinks.kafka._cluster import OWN_SETTINGS, Cluster, Fenced
from databus.sinks.kafka._encoding import BOTH, ENVELOPE, OWN_FORMAT, TOMBSTONE, Encoding
from databus.sinks.kafka._mirror import MESSAGE, MESSAGE_KEY, PARTITION, Mirroring, check_messages
from databus.sinks.kafka._positions import BucketId, Positions, Record, of_output, positions_of
from databus.sinks.kafka._refusals import Holding
from databus.sinks.kafka._session import Session
from databus.sinks.kafka._topics import NewTopics, TopicNames, Topics, as_settings, topic_name, topics_of
from databus.sinks.kafka._writer import INLINE, NO_CONTROLS, KafkaWriter

__all__ = [
    "AVRO_FORMATS",
    "BOTH",
    "ENVELOPE",
    "INLINE",
    "MESSAGE",
    "MESSAGE_KEY",
    "NO_CONTROLS",
    "OWN_FORMAT",
    "OWN_SETTINGS",
    "PARTITION",
    "TOMBSTONE",
    "AvroSubjects",
    "BucketId",
    "Cluster",
    "Encoding",
    "Fenced",
    "Holding",
    "KafkaWriter",
    "Mirroring",
    "NewTopics",
    "Positions",
    "Record",
    "Session",
    "TopicNames",
    "Topics",
    "as_settings",
    "check_messages",
    "of_output",
    "positions_of",
    "switch_buckets",
    "topic_name",
    "topics_of",
]
