"""Topics of Kafka, read into the relay's log. Start with `_source.py`, then `_places.py`."""

from databus.sources.kafka._config import KafkaConfig
from databus.sources.kafka._source import KafkaSource

__all__ = ["KafkaConfig", "KafkaSource"]
