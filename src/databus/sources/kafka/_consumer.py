"""Messages as they come: fetched ahead by librdkafka in bounded memory, taken all at once, and made into columns.

The consumer is assigned its partitions; it belongs to no group and commits nothing. confluent-kafka hands over an
object for each message; that is the only place where this source has them.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from databus.core import AccessDenied, CorruptData
from databus.sources.kafka._cluster import as_ours, made, own_error
from databus.sources.kafka._config import KafkaConfig
from databus.sources.kafka._places import Next, Partition

_SLICE: Final = 4_096
_ROW_BYTES: Final = 64  # of a message beside its key, value and headers: its place, times, and the bus's columns
_MESSAGES_MAX: Final = 1 << 20  # of one poll
_FETCH_WAIT_MS: Final = 100  # how long a broker may hold back few bytes
_DOWN: Final = own_error("_ALL_BROKERS_DOWN")
_REFUSED: Final = own_error("_AUTHENTICATION")
_END: Final = own_error("_PARTITION_EOF")
_CUT: Final = own_error("_LOG_TRUNCATION")
_SAYS_CUT: Final = "log truncation detected"  # with `auto.offset.reset: error`, only the text of that error says it
_SAME: Final = re.compile(r"broker end offset is (\d+)")
_MOVED: Final = {  # the place is not there any more: it is looked up what became of the partition
    own_error("_AUTO_OFFSET_RESET"),
    _CUT,
    own_error("_UNKNOWN_PARTITION"),
    own_error("_UNKNOWN_TOPIC"),
    KafkaError.OFFSET_OUT_OF_RANGE,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
_HARMLESS: Final = {
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    own_error("_TRANSPORT"),
    own_error("_RESOLVE"),
}
_BROKEN: Final = {own_error("_BAD_MSG"), own_error("_BAD_COMPRESSION"), KafkaError.MSG_SIZE_TOO_LARGE}


@dataclass(frozen=True, slots=True)
class TopicMessages:
    """Messages of one topic in the order they came, which is that of each partition. Equal lengths."""

    topic: str
    keys: pa.Array
    values: pa.Array
    timestamps: npt.NDArray[np.int64]
    """Milliseconds since 1970, -1 where a message has no time."""
    partitions: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]
    headers: Sequence[list[tuple[str, bytes | None]] | None]
    """(name, value) of each message's headers, in order."""
    numbers: npt.NDArray[np.int64]
    """The message's number among all that came with it, of all topics."""

    def __len__(self) -> int:
        return len(self.offsets)

    def chosen(self, places: npt.NDArray[np.intp]) -> "TopicMessages":
        """Those at these places."""
        at = pa.array(places)
        return TopicMessages(
            self.topic,
            self.keys.take(at),
            self.values.take(at),
            self.timestamps[places],
            self.partitions[places],
            self.offsets[places],
            [self.headers[place] for place in places],
            self.numbers[places],
        )

    def place(self, at: int) -> str:
        """Where one of them stands, for people."""
        return f"{self.topic}, partition {self.partitions[at]}, offset {self.offsets[at]}"


@dataclass(slots=True)
class Polled:
    """What one poll brought."""

    messages: list[TopicMessages] = field(default_factory=list)
    ends: dict[Partition, Next] = field(default_factory=dict)
    """Where each partition with messages goes on."""
    idle: dict[Partition, int] = field(default_factory=dict)
    """Where partitions were read to their end."""
    moved: str = ""
    """Why a partition may not be the one that was read before; empty where there is no sign of that."""
    cut: dict[Partition, int | None] = field(default_factory=dict)
    """Partitions in which the last message that was read is gone or another one now, each with the offset up to which
    it is unchanged, if brokers say it."""


class TopicConsumer:
    """Reads the partitions and from the offsets that `assign` names."""

    def __init__(self, physical: str, config: KafkaConfig) -> None:
        self._where = f"{physical}: Kafka at {config.servers}"
        self._config = config
        self._is_down = ""
        ours = {
            "group.id": config.consumer_name,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": config.isolation_level,
            "queued.max.messages.kbytes": config.queue_bytes_max >> 10,
            "error_cb": self._noted,
            "logger": logging.getLogger("databus.sources.kafka"),
        }
        if "fetch.wait.max.ms" not in config.kafka:
            ours["fetch.wait.max.ms"] = _FETCH_WAIT_MS
        self._consumer = made(config, Consumer, ours)

    def assign(self, places: Sequence[tuple[str, int, int, int]]) -> None:
        """Read on from these (topic, partition, offset, epoch), and nothing else. Where a broker says that the epoch
        ends before the offset, it has other messages than those that were read.
        """
        self._consumer.assign(
            [
                TopicPartition(topic, partition, offset, leader_epoch=epoch)
                if epoch >= 0
                else TopicPartition(topic, partition, offset)
                for topic, partition, offset, epoch in places
            ]
        )

    def take(self, wait_ms: int) -> Polled:
        """What has queued, up to `group_bytes_max`; waits for the first message. Raises `ServiceUnavailable` when no
        broker answers, `AccessDenied`, and `CorruptData` for what cannot be unpacked.
        """
        arrived = self._consume(1, wait_ms / 1e3)
        size = _size_of(arrived)
        while arrived and (room := self._config.group_bytes_max - size) > 0 and len(arrived) < _MESSAGES_MAX:
            more = self._consume(min(room * len(arrived) // size + 1, _SLICE), 0)  # if they go on to be as large
            if not more:
                break
            size += _size_of(more)
            arrived += more
        taken = Polled()
        messages: list[Any] = []
        for message in arrived:
            if message.error() is None:
                messages.append(message)
            else:
                self._event(message, taken)
        if not arrived and self._is_down:
            reason, self._is_down = self._is_down, ""
            raise as_ours(KafkaError(_DOWN, reason), self._where)
        if messages:
            self._is_down = ""
            lasts = {(message.topic(), message.partition()): message for message in messages}
            taken.ends = {place: _behind(message, taken.idle.get(place, -1)) for place, message in lasts.items()}
            taken.messages = [_columns(*topic_messages) for topic_messages in _by_topic(messages)]
        return taken

    def waiting(self, places: Sequence[tuple[str, int, int]]) -> int | None:
        """How many offsets are behind these places, as brokers said last; None where one has not said it."""
        total = 0
        for topic, partition, offset in places:
            try:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), cached=True)
            except KafkaException:
                return None
            if high < 0:
                return None
            total += max(high - offset, 0)
        return total

    def close(self) -> None:
        """Let go."""
        self._consumer.close()

    def _consume(self, count: int, wait_s: float) -> list[Any]:
        try:
            return self._consumer.consume(count, wait_s)
        except KafkaException as error:
            raise as_ours(error.args[0], self._where) from error

    def _noted(self, error: KafkaError) -> None:
        """The client's own thread reports errors here, and tries again by itself."""
        if error.code() in (_DOWN, _REFUSED):
            self._is_down = error.str()

    def _event(self, message: Any, taken: Polled) -> None:
        error = message.error()
        code, place = error.code(), f"{message.topic()}, partition {message.partition()}, offset {message.offset()}"
        if code == _END:  # behind markers of transactions, which no consumer gets
            taken.idle[message.topic(), message.partition()] = message.offset()
        elif code in _MOVED:
            taken.moved = f"{place}: {error.str()}"
            if code == _CUT or _SAYS_CUT in error.str():
                same = _SAME.search(error.str())
                taken.cut[message.topic(), message.partition()] = int(same[1]) if same else None
        elif code in _BROKEN:
            raise CorruptData(f"{self._where}: {place}: {error.str()}")
        elif code == _DOWN:
            self._is_down = error.str()
        elif code not in _HARMLESS:
            ours = as_ours(error, f"{self._where}: {place}")
            if isinstance(ours, AccessDenied) or not error.retriable():
                raise ours


def _behind(message: Any, end: int) -> Next:
    """What comes after the last message of a partition. end: the last offset at which the partition was read to its
    end: that is behind the message where markers follow it, and the client reports it once.
    """
    epoch, offset = message.leader_epoch(), message.offset() + 1
    place = Next(offset) if epoch is None else Next(offset, epoch)
    return place.behind(end) if end > offset else place


def _size_of(messages: Sequence[Any]) -> int:
    """Bytes of their rows, about. A tombstone has a key and headers as well."""
    size = 0
    for message in messages:
        size += _ROW_BYTES + len(message) + len(message.key() or b"")
        headers = message.headers()
        if headers:
            size += sum(len(name) + len(value or b"") for name, value in headers)
    return size


def _by_topic(messages: Sequence[Any]) -> list[tuple[str, Sequence[Any], npt.NDArray[np.int64]]]:
    """Of each topic its messages, and their numbers among all."""
    topics = [message.topic() for message in messages]
    names = dict.fromkeys(topics)
    if len(names) == 1:
        return [(topics[0], messages, np.arange(len(messages)))]
    by_topic: dict[str, list[int]] = {name: [] for name in names}
    for number, name in enumerate(topics):
        by_topic[name].append(number)
    return [(name, [messages[number] for number in numbers], np.array(numbers)) for name, numbers in by_topic.items()]


def _columns(topic: str, messages: Sequence[Any], numbers: npt.NDArray[np.int64]) -> TopicMessages:
    def ints(values: list[Any], kind: Any) -> npt.NDArray[Any]:
        return np.array(values, kind)

    return TopicMessages(
        topic,
        pa.array([message.key() for message in messages], pa.binary()),
        pa.array([message.value() for message in messages], pa.binary()),
        ints([message.timestamp()[1] for message in messages], np.int64),
        ints([message.partition() for message in messages], np.int32),
        ints([message.offset() for message in messages], np.int64),
        [message.headers() for message in messages],
        numbers,
    )
