"""Messages found again by offsets: which changes a topic has between the ends that a journal has noted."""

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from databus.core import COMMIT_VERSION, SEQ, DatabusError, Pair
from databus.sinks.kafka._cluster import Cluster

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

_LOOK_S_MAX: Final = 30.0
_POLL_S: Final = 0.2


def pairs_between(
    cluster: Cluster,
    before: Mapping[str, int],
    after: Mapping[str, int],
    about: Collection[Pair],
    *,
    is_committed: bool,
) -> set[Pair] | None:
    """Those of some pairs that messages between two offsets of each partition (`topic/number`) name in their headers.

    None where that cannot be known: some messages are gone, as retention and compaction have it, or it takes too long.
    Raises what `Cluster.error` says.
    """
    from confluent_kafka import KafkaException

    pairs: set[Pair] = set()
    consumer, deadline = cluster.consumer(is_committed=is_committed), cluster.clock.monotonic_s() + _LOOK_S_MAX
    try:
        for part, end in after.items():
            topic, _, number = part.rpartition("/")
            mine = _pairs_of(cluster, consumer, topic, int(number), before.get(part, 0), end, deadline)
            if mine is None:
                return None
            pairs |= mine.intersection(about)
        if not pairs.issuperset(about) and any(_is_compacted(cluster, part.rpartition("/")[0]) for part in after):
            return None
    except KafkaException as error:
        raise cluster.error(error, "looking for messages by their offsets") from error
    finally:
        consumer.close()
    return pairs


def _pairs_of(
    cluster: Cluster, consumer: "Consumer", topic: str, number: int, begin: int, end: int, deadline: float
) -> set[Pair] | None:
    from confluent_kafka import TopicPartition

    if begin >= end:
        return set()
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, number), cluster.request_s_max)
    if low > begin:
        return None
    consumer.assign([TopicPartition(topic, number, begin)])
    pairs: set[Pair] = set()
    while cluster.clock.monotonic_s() < deadline:
        message = consumer.poll(_POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.name() == "_PARTITION_EOF":
                return pairs
            raise cluster.error_of(error, f"reading topic {topic}, partition {number}")
        if (message.offset() or 0) >= end:
            return pairs
        pairs.update(_pair_of(message))
    return None


def _pair_of(message: "Message") -> Iterator[Pair]:
    headers: Any = message.headers() or ()
    texts = dict(headers)
    if {COMMIT_VERSION, SEQ} <= texts.keys():
        yield int(texts[COMMIT_VERSION]), int(texts[SEQ])


def _is_compacted(cluster: Cluster, topic: str) -> bool:
    """Whether messages of the topic may be gone whose keys have newer ones; also where that cannot be seen."""
    try:
        return "compact" in cluster.topic_settings(topic)["cleanup.policy"]
    except (DatabusError, KeyError):
        return True
