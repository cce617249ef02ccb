"""Sessions: the producers of buckets, which a process keeps between two tasks."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from databus.flow import Bucket
from databus.sinks.kafka._cluster import NEIGHBOUR, Cluster
from databus.sinks.kafka._lost_markers import ATTEMPT, Undecided, new_attempt
from databus.sinks.kafka._positions import NO_LEDGER, PARTITION, BucketId, Record, positions_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

Headers = list[tuple[str, str | bytes | None]]
ABORT_S_MAX: Final = 5.0
_GIVEN_UP: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_KEPT_MAX: Final = 64  # each has some 8 threads and 16 open files (measured)


class Session:
    """A bucket's producer, and how far the bucket has come. `begin` shuts out who came before.

    is_replay: whether it writes dead letters, which have no position. is_rehearsal: whether nothing of it is committed.
    """

    def __init__(
        self,
        cluster: Cluster,
        control_topic: str | None,
        bucket: BucketId,
        *,
        is_replay: bool = False,
        is_rehearsal: bool = False,
    ) -> None:
        self.cluster = cluster
        self.control_topic = control_topic
        self.bucket = bucket
        self.is_replay = is_replay
        self.is_rehearsal = is_rehearsal
        self.batch_bytes_max: int | None = None
        """Most bytes of several messages in one batch; None for what the client's settings say."""
        self._attempt = b""
        self.record: Record | None = None
        self.producer: Producer | None = None
        self._undecided = Undecided(cluster)
        self._has_lost_brokers = False
        self.failed: list[tuple[KafkaError, str]] = []

    @property
    def name(self) -> tuple[Cluster, str | None, BucketId]:
        """By which it is kept."""
        return self.cluster, self.control_topic, self.bucket

    def begin(self, ledger: Bucket | None = None) -> None:
        """Make the producer, if there is none, or if brokers were away since: they may have lost the end of what it was
        answered. ledger: what the ledger says of the bucket, as its task knows it. Raises what `Cluster.error` says.
        """
        from confluent_kafka import KafkaException

        if self.producer is not None:
            self.producer.poll(0)  # calls back
            if self.control_topic is None or not self._has_lost_brokers:
                return
            self.close()
        if self.control_topic is None:
            self.producer = self.cluster.producer(None, self.batch_bytes_max)
            return
        bucket, name = self.bucket, self._transactional_id
        producer = self.cluster.producer(name, self.batch_bytes_max, self._note_loss)
        try:
            # A client that is asked for its coordinator while it has no connection asks again after half a second. That
            # of the first answer is for finding the brokers only, and is closed then.
            for _ in range(2):
                producer.list_topics(self.control_topic, self.cluster.request_s_max)
            producer.init_transactions(self.cluster.request_s_max)
        except KafkaException as error:
            raise self.cluster.error(error, f"shutting out who wrote {name} before") from error
        if not self.is_replay and not self.is_rehearsal:
            known = NO_LEDGER
            if ledger is not None:
                whose = ledger.pipeline, ledger.output, ledger.physical
                known = {whose: (ledger.position, ledger.reached)}
            self.record = positions_of(self.cluster, self.control_topic).read({bucket: producer}, known).get(bucket)
        self.producer = producer
        self._undecided = Undecided(self.cluster)
        self._has_lost_brokers = False

    @property
    def _transactional_id(self) -> str:
        bucket = self.bucket
        name = f"databus/{bucket.pipeline}/{bucket.output}/dead-letters" if self.is_replay else bucket.transactional_id
        return f"{name}/rehearsal" if self.is_rehearsal else name

    def _note_loss(self, _: "KafkaError") -> None:
        self._has_lost_brokers = True

    def needs_rehearsal(self, topics: Iterable[str]) -> bool:
        """Whether a transaction in these topics that is broken off might take back one that was committed."""
        return self.control_topic is not None and not self.is_rehearsal and self._undecided.is_in(topics)

    def rehearsal(self) -> "Session":
        """One that tries out what this one is to write."""
        session = Session(self.cluster, self.control_topic, self.bucket, is_replay=self.is_replay, is_rehearsal=True)
        session.batch_bytes_max = self.batch_bytes_max
        return session

    @property
    def is_current(self) -> bool:
        """Whether its bucket still is where it was when the session began: the driver, or another process, may have
        written it since.
        """
        assert self.control_topic is not None  # noqa: S101 - it has a position
        own = {} if self.producer is None else {self.bucket: self.producer}
        return positions_of(self.cluster, self.control_topic).read(own).get(self.bucket) == self.record

    def message(self, record: Record) -> tuple[bytes, bytes, int, Headers]:
        """Of a record: its value, key, partition and headers. It is of a new transaction."""
        return record.value, self.bucket.key, PARTITION, self._headers()

    def _headers(self) -> Headers:
        self._attempt = new_attempt()
        return [(ATTEMPT, self._attempt)]

    def note_commit(self, record: Record | None) -> None:
        """The commit that has brought the bucket there was answered. None: it was of dead letters."""
        self.record = record
        if record is not None:
            self._note_answer([self.bucket.key])

    def put(self, messages: Mapping[bytes, bytes | None]) -> None:
        """Write records, by their keys, in one transaction. Raises `KafkaException`."""
        assert self.producer is not None  # noqa: S101 - it has begun
        assert self.control_topic is not None  # noqa: S101 - as above
        headers = self._headers()
        self.producer.begin_transaction()
        for key, value in messages.items():
            self.producer.produce(self.control_topic, value, key, PARTITION, headers=headers)
        self.producer.commit_transaction(self.cluster.request_s_max)
        self._note_answer(messages)

    def _note_answer(self, keys: Iterable[bytes]) -> None:
        assert self.control_topic is not None  # noqa: S101 - it has positions
        positions_of(self.cluster, self.control_topic).answers.note(keys, self._attempt)

    def note_failure(self, error: "KafkaError | None", message: "Message") -> None:
        """Called back for each message that did not arrive.

        Of a transaction that cannot go on the client gives up all messages; why, it says when it is committed.
        """
        if error is None or (self.control_topic is not None and error.name() in _GIVEN_UP):
            return
        if error.name() == NEIGHBOUR:  # the one at fault is reported too
            return
        if len(self.failed) < 1_000:
            self.failed.append((error, f"writing to topic {message.topic()}, partition {message.partition()}"))

    def commit(self, deadline: float) -> None:
        """Commit what was sent. deadline: by the clock of the cluster. Raises `KafkaException`."""
        from confluent_kafka import KafkaException

        assert self.producer is not None  # noqa: S101 - it has begun
        while True:
            try:
                self.producer.commit_transaction(self.cluster.request_s_max)
            except KafkaException as error:
                if not error.args[0].retriable() or self.cluster.clock.monotonic_s() > deadline:
                    raise
            else:
                return

    def check(self) -> None:
        """Raise if a message did not arrive."""
        if self.failed:
            raise self.cluster.error_of(*self.failed[0])

    def close(self) -> None:
        """Give up what is not committed, so that readers need not wait for it, and let go."""
        from confluent_kafka import KafkaException

        producer, self.producer, self.record = self.producer, None, None
        self.failed.clear()
        if producer is None:
            return
        with suppress(KafkaException):
            producer.purge()
            if self.control_topic is not None:
                producer.abort_transaction(ABORT_S_MAX)


class _Kept:
    """Sessions between two tasks of a process, the latest last; at most so many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[Any, Session] = OrderedDict()

    def take(self, name: object) -> Session | None:
        """Have it alone."""
        with self._lock:
            return self._sessions.pop(name, None)

    def keep(self, session: Session) -> None:
        """For the next."""
        surplus = []
        with self._lock:
            surplus += [self._sessions.pop(session.name, None)]
            self._sessions[session.name] = session
            if len(self._sessions) > _KEPT_MAX:
                surplus += [self._sessions.popitem(last=False)[1]]
        for other in surplus:
            if other is not None:
                other.close()


KEPT: Final = _Kept()
