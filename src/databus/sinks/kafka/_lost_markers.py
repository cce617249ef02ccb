"""Commits that were answered, and whose markers may never come.

Brokers answer a commit before each partition has its marker, and a broker that is killed in between may forget it
(Kafka 4.3 does where all replicas of a partition were away). Who reads committed messages then stops there for ever.
The next committed transaction of the same transactional id in that partition ends the earlier one as committed; an
aborted one takes back what was answered. So a position is committed once more where it is known to be committed: by an
answer that this process had, or by a ledger. And where the end of something may be lost in a topic of rows, what comes
next is tried out by another producer: refused rows break off the transaction of that one, which ends nothing else.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from databus.core import Pair
from databus.flow import log_number
from databus.places import Position
from databus.sinks.kafka._cluster import Cluster
from databus.sinks.kafka._topics import topics_of

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

ATTEMPT: Final = "attempt"
_POLL_S: Final = 0.2
_LOOK_MS: Final = 20
_OTHERS_S_MAX: Final = 1.0
"""Longer than most transactions of other buckets are open."""


class AnsweredCommits:
    """Which transactions this process was answered that they are committed, as far as they stand last for some key."""

    def __init__(self) -> None:
        self._attempts: dict[bytes, bytes] = {}

    def note(self, keys: Iterable[bytes], attempt: bytes) -> None:
        """The commit of an attempt was answered, which has messages of these keys in the control topic."""
        self._attempts.update(dict.fromkeys(keys, attempt))

    def have(self, key: bytes, message: "Message") -> bool:
        """Whether a message of this key is of such a transaction."""
        attempt = dict(message.headers() or ()).get(ATTEMPT)
        return attempt is not None and self._attempts.get(key) == attempt


class Undecided:
    """Where topics have something that was neither committed nor aborted when a session first looked at them. Mostly
    transactions of others, which soon end; or one of its own bucket, whose end brokers have lost.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._topics: set[str] = set()
        self._ends: dict[tuple[str, int], int] = {}
        self._said = 0
        self._since = 0.0

    def is_in(self, topics: Iterable[str]) -> bool:
        """Whether there still is something, in these topics or in those of earlier calls."""
        new = set(topics) - self._topics
        if new:
            self._ends |= self._cluster.ends(topics_of(self._cluster).partitions_of(new), is_committed=False)
            self._topics |= new
            self._since = self._cluster.clock.monotonic_s()
        while self._ends:
            stable = self._cluster.ends(self._ends, is_committed=True)
            self._ends = {at: end for at, end in self._ends.items() if stable[at] < end}
            if not self._ends:
                break
            if self._cluster.clock.monotonic_s() > self._since + _OTHERS_S_MAX:
                self._say({at: stable[at] for at in self._ends})
                return True
            self._cluster.clock.sleep_ms(_LOOK_MS)  # brokers do not tell when a marker is written
        return False

    def _say(self, stable: Mapping[tuple[str, int], int]) -> None:
        """At first, since whoever is killed now may take something back; and where it lasts longer than any transaction
        of ours may take.
        """
        is_long = self._cluster.clock.monotonic_s() - self._since > self._cluster.transaction_ms_max / 1e3
        if self._said >= 1 + is_long:
            return
        self._said = 1 + is_long
        logging.getLogger("databus.kafka").log(
            logging.WARNING if is_long else logging.INFO,
            "%s: transactions are open from these offsets on, and readers of committed messages wait there: %s. What "
            'comes next is tried out first. If it stays so: docs/kafka.md, "A transaction without an end"',
            self._cluster.name, ", ".join(f"{topic}-{number} {at}" for (topic, number), at in sorted(stable.items())),
        )  # fmt: skip


def new_attempt() -> bytes:
    """Stands in the headers of a transaction's positions: two attempts may write the same, and one of them fail."""
    return uuid4().bytes


def says_it_is_there(ledger: Position, reached: Pair | None, record: Position) -> bool:
    """Whether a ledger says that all buckets are where one of them is to be, or further. reached: the end of the last
    batch that was written, as it says.
    """
    at, known = record.at, ledger.at
    if at is None or known is None or reached is None or log_number(at.log) != log_number(known.log):
        return False
    are_there = all(place.pair <= ledger.done(name) for name, place in record.places.items())
    return are_there and record.tables == ledger.tables and at.pair <= min(known.pair, reached)


def last_messages(cluster: Cluster, topic: str, starts: Mapping[int, int]) -> "dict[bytes, Message]":
    """The last message of each key, committed or not; nothing where a partition does not answer.

    starts: by partitions, the offsets from which they are read.
    """
    from confluent_kafka import TopicPartition

    messages: dict[bytes, Message] = {}
    unread, deadline = set(starts), cluster.clock.monotonic_s() + cluster.request_s_max
    with closing(cluster.consumer(is_committed=False)) as consumer:
        consumer.assign([TopicPartition(topic, number, start) for number, start in starts.items()])
        while unread and cluster.clock.monotonic_s() < deadline:
            message = consumer.poll(_POLL_S)
            if message is None:
                continue
            error, key = message.error(), message.key()
            if error is None and key is not None:
                messages[key] = message
            elif error is not None and error.name() == "_PARTITION_EOF":
                unread.discard(message.partition())
    return {} if unread else messages


def commit_again(
    cluster: Cluster,
    topic: str,
    transactional_id: str,
    find: "Callable[[], Message | None]",
    own: "Producer | None",
) -> None:
    """Commit a position once more.

    find: gives its message, or None where it is another one by now; asked when whoever began before to write it is
    shut out. own: the producer of that id, where the caller has one. Raises what `Cluster.error` says.
    """
    from confluent_kafka import KafkaException

    try:
        producer = own or cluster.producer(transactional_id)
        if own is None:
            producer.init_transactions(cluster.request_s_max)
        message = find()
        if message is None:
            return
        producer.begin_transaction()
        partition = message.partition()
        assert partition is not None  # noqa: S101 - it was read there
        producer.produce(topic, message.value(), message.key(), partition, headers=message.headers())
        producer.commit_transaction(cluster.request_s_max)
    except KafkaException as error:
        raise cluster.error(error, f"committing once more as {transactional_id}") from error


def advice(topic: str, transactional_ids: Iterable[str]) -> str:
    """What to do about a transaction in a control topic that does not end."""
    names = ", ".join(sorted(transactional_ids)) or "not known"
    return (
        f"Transactional ids of what stands there: {names}. If it stays so, brokers may have lost the end of a "
        f"transaction. Stop the pipeline and look with `kafka-transactions.sh --bootstrap-server ... describe "
        f"--transactional-id ID` before you do anything: `Ongoing` and `Prepare...` end by themselves; after "
        f"`CompleteAbort` end it with `abort`, at the offset that `find-hanging --topic {topic}` names; after "
        f'`CompleteCommit` do not: that would take back rows that are committed. docs/kafka.md, "A transaction without '
        f'an end", says how to commit it once more, and what to do after `Empty`'
    )
