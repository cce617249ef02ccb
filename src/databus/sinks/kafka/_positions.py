"""The control topic: how far each bucket has come, written in the transactions that bring its rows.

A message for each bucket, whose key says which: `["pipeline", "output", "source", number]`. The topic is compacted, so
that the last one of each stays.
"""

import json
import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self

from databus.core import ConfigError, CorruptData, DatabusError, Pair, ServiceUnavailable
from databus.places import Position
from databus.sinks.kafka._cluster import Cluster
from databus.sinks.kafka._lost_markers import AnsweredCommits, advice, commit_again, last_messages, says_it_is_there
from databus.sinks.kafka._topics import NewTopics, topics_of
from databus.sinks.kafka._transactions import OpenTransaction, TransactionCounts
from databus.wire import is_inside_transaction

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

_VERSION: Final = 1
_NOTHING: Final[Pair] = (-1, -1)
_POLL_S: Final = 0.2
_PATIENCE_S: Final = 3.0
"""Longer than most transactions are open in a control topic: their positions come last."""
_AT_ONCE: Final = 1_000
PARTITION: Final = 0
"""The partition of the control topic that holds all positions. A partition that follows from the key would change with
their number: a bucket's older position would stand in one, the newer in another, and rows would come twice.
"""
Ledger = Mapping[tuple[str, str, str], tuple[Position, Pair | None]]
NO_LEDGER: Final[Ledger] = {}
NO_PRODUCERS: Final[Mapping[Any, Any]] = {}
CONTROL_CONFIG: Final = (
    ("cleanup.policy", "compact"),
    ("segment.bytes", str(4 << 20)),  # what is in the last segment is not compacted, and is read at each start
    ("segment.ms", str(3_600_000)),
)


@dataclass(frozen=True)
class BucketId:
    """Which bucket it is, of which physical source into which output."""

    pipeline: str
    output: str
    physical: str
    number: int

    @property
    def key(self) -> bytes:
        """Of its message."""
        return json.dumps([self.pipeline, self.output, self.physical, self.number], ensure_ascii=False).encode()

    @classmethod
    def of_key(cls, key: bytes) -> Self:
        """Read what `key` made. Raises `ValueError`, `TypeError`."""
        pipeline, output, physical, number = json.loads(key)
        return cls(pipeline, output, physical, int(number))

    @property
    def transactional_id(self) -> str:
        """By which Kafka shuts out whoever began before."""
        return f"databus/{self.pipeline}/{self.output}/{self.physical}/{self.number}"


@dataclass(frozen=True)
class Record:
    """What stands in the control topic of a bucket."""

    position: Position
    """Where the tables stand in it."""
    buckets: int
    """How many there were."""
    counts: TransactionCounts | None = None
    """What is known at `at` of the transaction's counts; None where they were not counted, or not all."""

    @property
    def value(self) -> bytes:
        """Of its message."""
        content: dict[str, Any] = {"v": _VERSION, "buckets": self.buckets, **self.position.to_json(is_record=True)}
        if self.counts is not None and self.counts.is_whole:
            content["transaction"] = None if self.counts.open is None else self.counts.open.to_json()
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def of_value(cls, content: Mapping[str, Any], where: str) -> Self:
        """Read what `value` made. Raises what `Position.from_json` does."""
        counts = None
        if "transaction" in content:
            is_open = content["transaction"] is not None
            counts = TransactionCounts(OpenTransaction.from_json(content["transaction"]) if is_open else None)
        return cls(Position.from_json(content, where), int(content["buckets"]), counts)


class Positions:
    """What a control topic says. It is read from its beginning once in a process, and then from where that ended."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._next: dict[int, int] = {}
        self._known: dict[BucketId, Record] = {}
        self.answers = AnsweredCommits()

    def make(self, replication_factor: int) -> int:
        """See to it that the topic is there; returns the number of its partitions."""
        new = NewTopics(1, replication_factor, CONTROL_CONFIG)
        return topics_of(self._cluster).ready(self._topic, new)

    def check_kept(self) -> None:
        """Raise `ConfigError` where the topic, if another program made it, forgets positions; pass where the user may
        not know.
        """
        try:
            policy = self._cluster.topic_settings(self._topic)["cleanup.policy"]
        except (DatabusError, KeyError):
            return
        if policy != "compact":
            raise ConfigError(
                f"{self._cluster.name}: control topic {self._topic} has cleanup.policy={policy} and forgets positions: "
                f"what is written after that may come twice. Set it to compact"
            )

    def read(
        self, own: "Mapping[BucketId, Producer]" = NO_PRODUCERS, ledger: Ledger = NO_LEDGER
    ) -> dict[BucketId, Record]:
        """What is committed now: by whoever was shut out before this was called, too.

        own: the producers that the caller has, by which a commit can be made once more whose marker is lost. ledger:
        what an output's ledger says, by pipeline, output and physical source: where the tables stand, and the end of
        the last batch that was written. Raises `ServiceUnavailable` if some other
        writer's transaction stays open for longer than one may take.
        """
        with self._lock:
            try:
                self._read_on(own, ledger)
            except BaseException:
                self._forget()
                raise
            return dict(self._known)

    def _forget(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._next.clear()
        self._known.clear()

    def _read_on(self, own: "Mapping[BucketId, Producer]", ledger: Ledger) -> None:
        from confluent_kafka import OFFSET_BEGINNING, TopicPartition

        ends = self._ends()
        if any(end < self._next.get(number, 0) for number, end in ends.items()):
            self._forget()  # it is another topic of that name
        behind = {number for number, end in ends.items() if end > self._next.get(number, 0)}
        if not behind:
            return
        if self._consumer is None:
            self._consumer = self._cluster.consumer()
        self._consumer.assign(
            [TopicPartition(self._topic, number, self._next.get(number, OFFSET_BEGINNING)) for number in behind]
        )
        # What is read stops before the oldest open transaction, whoever's: those behind it may be ours.
        begun = self._cluster.clock.monotonic_s()
        deadline = begun + (self._cluster.transaction_ms_max + self._cluster.request_ms_max) / 1e3
        look_at = begun + _PATIENCE_S
        while behind:
            if self._cluster.clock.monotonic_s() > look_at:
                is_answered = self._commit_again(behind, own, ledger)
                look_at = math.inf if is_answered else self._cluster.clock.monotonic_s() + _PATIENCE_S
            if self._cluster.clock.monotonic_s() > deadline:
                raise ServiceUnavailable(
                    f"{self._cluster.name}: control topic {self._topic} could not be read to its end: a transaction in "
                    f"it is open, or its partitions have no leader. "
                    f"{advice(self._topic, [bucket.transactional_id for bucket in self._unread(behind)])}"
                )
            first = self._consumer.poll(_POLL_S)  # `consume` would wait for as many as it may give
            for message in () if first is None else (first, *self._consumer.consume(_AT_ONCE, 0.0)):
                self._take(message, ends, behind)
        self._consumer.unassign()

    def _unread(self, behind: Collection[int]) -> "dict[BucketId, Message]":
        """What stands last for each bucket where committed messages cannot be read, committed or not."""
        from confluent_kafka import OFFSET_BEGINNING

        starts = {number: self._next.get(number, OFFSET_BEGINNING) for number in behind}
        return {BucketId.of_key(key): value for key, value in last_messages(self._cluster, self._topic, starts).items()}

    def _commit_again(self, behind: Collection[int], own: "Mapping[BucketId, Producer]", ledger: Ledger) -> bool:
        """End transactions that are known to be committed, so that they can be read. Returns whether brokers have said
        what is there.
        """

        def again(bucket: BucketId) -> "Message | None":
            message = self._unread(behind).get(bucket)
            return message if message is not None and self._is_committed(bucket, message, ledger) else None

        unread = self._unread(behind)
        for bucket, message in unread.items():
            if self._is_committed(bucket, message, ledger):
                find = partial(again, bucket)
                commit_again(self._cluster, self._topic, bucket.transactional_id, find, own.get(bucket))
        return len(unread) > 0

    def _is_committed(self, bucket: BucketId, message: "Message", ledger: Ledger) -> bool:
        """Whether that is known without reading it as committed."""
        value = message.value()
        if value is None:
            return False
        content = json.loads(value)
        if content["v"] != _VERSION:
            return False
        if self.answers.have(bucket.key, message):
            return True
        known = ledger.get((bucket.pipeline, bucket.output, bucket.physical))
        return known is not None and says_it_is_there(*known, Record.of_value(content, self._topic).position)

    def _take(self, message: Any, ends: dict[int, int], behind: set[int]) -> None:
        number, error = message.partition(), message.error()
        if error is None:
            self._note(message.key(), message.value())
            self._next[number] = message.offset() + 1
        elif error.name() == "_PARTITION_EOF":
            self._next[number] = max(message.offset(), self._next.get(number, 0))
        elif not error.retriable() and error.name() not in ("_TRANSPORT", "_ALL_BROKERS_DOWN"):
            raise self._cluster.error_of(error, f"reading control topic {self._topic}")
        if self._next.get(number, 0) >= ends.get(number, 0):
            behind.discard(number)

    def _note(self, key: bytes, value: bytes | None) -> None:
        try:
            bucket = BucketId.of_key(key)
            if value is None:
                self._known.pop(bucket, None)
                return
            content = json.loads(value)
            if content["v"] != _VERSION:
                return  # of another version of databus, whose buckets are not ours
            self._known[bucket] = Record.of_value(content, f"{self._topic}: {key!r}")
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise CorruptData(
                f"{self._cluster.name}: control topic {self._topic} holds a message that databus has not written, with "
                f"key {key!r}. Give the output a `control_topic` of its own"
            ) from error

    def _ends(self) -> dict[int, int]:
        """Where each partition ends now, with all that is not committed."""
        partitions = [(self._topic, number) for number in range(self.make(-1))]
        try:
            ends = self._cluster.ends(partitions, is_committed=False)
        except DatabusError:
            topics_of(self._cluster).forget()
            raise
        return {number: end for (_, number), end in ends.items()}


def known_at(record: Record | None, reached: Pair | None) -> tuple[Pair, TransactionCounts]:
    """After which pair the changes of a bucket are counted, and what is known there of its transaction's counts.

    reached: the end of what the ledger knows to be written, for a bucket without a record. Without either nothing was
    written, and so nothing is missing.
    """
    known = None if record is None else record.position.at
    if known is None and reached is None:
        return _NOTHING, TransactionCounts()
    at = known.pair if known is not None else reached or _NOTHING
    if record is not None and record.counts is not None:
        return at, record.counts
    return at, TransactionCounts(is_whole=at[0] <= 0 or not is_inside_transaction(at))


@lru_cache(maxsize=8)
def positions_of(cluster: Cluster, topic: str) -> Positions:
    """The one for this process."""
    return Positions(cluster, topic)


def of_output(known: Mapping[BucketId, Record], pipeline: str, output: str) -> dict[str, dict[int, Record]]:
    """The records of an output, by physical source and number."""
    records: dict[str, dict[int, Record]] = {}
    for bucket, record in known.items():
        if (bucket.pipeline, bucket.output) == (pipeline, output):
            records.setdefault(bucket.physical, {})[bucket.number] = record
    return records
