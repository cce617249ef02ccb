"""What tasks do for the output `kafka`: the rows of a bucket of keys become messages, together with its position.

Each bucket has a transactional id. Whoever begins to write it shuts out all who began before, and reads how far these
have come; a transaction then brings rows and position, or neither. A producer that ended well is kept for the process's
next task of that bucket: nobody has to be shut out then, and nothing read.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from databus.core import DatabusError, ServiceUnavailable, SourceCheckpoint, UnsupportedFeature, crash_point
from databus.schema import TableSchema
from databus.tasks._batch import ChangeBatch, TableControl, TableRows
from databus.tasks._direct import Bucket, BucketWriter, batch_above
from databus.tasks.kafka._cluster import Cluster, Fenced, TopicMissing
from databus.tasks.kafka._encoding import Chunk, Encoding
from databus.tasks.kafka._mirror import MirroredChunk, Mirroring
from databus.tasks.kafka._positions import BucketId, Position, of_output, positions_of
from databus.tasks.kafka._topics import NewTopics, TopicNames, topic_name, topics_of

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, KafkaException, Message, Producer

INLINE: Final = "inline"
NO_CONTROLS: Final = "none"
_ABORT_S_MAX: Final = 5.0
_FULL_WAIT_S: Final = 0.1
_ANY_PARTITION: Final = -1
_GIVEN_UP: Final = ("_PURGE_QUEUE", "_PURGE_INFLIGHT")
_KEPT_MAX: Final = 64


@dataclass(frozen=True)
class KafkaWriter:
    """Travels to tasks. control_topic: None for an output without transactions. controls: `inline`, `none`, or the
    template of a topic's name. new: how topics are made that are not there; None if they are not.
    """

    buckets: int
    cluster: Cluster
    topics: TopicNames
    encoding: Encoding | Mirroring
    control_topic: str | None
    controls: str = INLINE
    new: NewTopics | None = None

    @contextmanager
    def open(self, bucket: Bucket) -> Iterator[BucketWriter]:
        """See `DirectWriter.open`."""
        which = BucketId(bucket.pipeline, bucket.output, bucket.stream, bucket.number)
        session = _KEPT.take((self.cluster, self.control_topic, which))
        is_inherited = session is not None
        writer = _BucketOfKafka(self, bucket, session or Session(self.cluster, self.control_topic, which), is_inherited)
        try:
            yield writer
        except BaseException:
            writer.session.close()
            topics_of(self.cluster).forget()
            raise
        _KEPT.keep(writer.session)


class Session:
    """A bucket's producer, and how far the bucket has come. `begin` shuts out who came before."""

    def __init__(self, cluster: Cluster, control_topic: str | None, bucket: BucketId) -> None:
        self.cluster = cluster
        self.control_topic = control_topic
        self.bucket = bucket
        self.position: Position | None = None
        self.producer: Producer | None = None
        self.failed: list[tuple[KafkaError, str]] = []

    @property
    def name(self) -> tuple[Cluster, str | None, BucketId]:
        """By which it is kept."""
        return self.cluster, self.control_topic, self.bucket

    def begin(self) -> None:
        """Make the producer, if there is none. Raises what `Cluster.error` says."""
        from confluent_kafka import KafkaException

        if self.producer is not None:
            return
        if self.control_topic is None:
            self.producer = self.cluster.producer(None)
            return
        producer = self.cluster.producer(self.bucket.transactional_id)
        try:
            producer.init_transactions(self.cluster.request_s_max)
        except KafkaException as error:
            raise self.cluster.error(error, f"shutting out who wrote {self.bucket.transactional_id} before") from error
        self.position = positions_of(self.cluster, self.control_topic).read().get(self.bucket)
        self.producer = producer

    def note_failure(self, error: "KafkaError | None", message: "Message") -> None:
        """Called back for each message that did not arrive.

        Of a transaction that cannot go on the client gives up all messages; why, it says when it is committed.
        """
        if error is None or (self.control_topic is not None and error.name() in _GIVEN_UP):
            return
        if len(self.failed) < 1_000:
            self.failed.append((error, f"writing to topic {message.topic()}, partition {message.partition()}"))

    def check(self) -> None:
        """Raise if a message did not arrive."""
        if self.failed:
            raise self.cluster.error_of(*self.failed[0])

    def close(self) -> None:
        """Give up what is not committed, so that readers need not wait for it, and let go."""
        from confluent_kafka import KafkaException

        producer, self.producer, self.position = self.producer, None, None
        self.failed.clear()
        if producer is None:
            return
        with suppress(KafkaException):
            producer.purge()
            if self.control_topic is not None:
                producer.abort_transaction(_ABORT_S_MAX)


class _Kept:
    """Sessions between two tasks of a process, the latest last; at most so many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[Any, Session] = OrderedDict()

    def take(self, name: object) -> Session | None:
        """Have it, and nobody else."""
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
        for each in surplus:
            if each is not None:
                each.close()


_KEPT: Final = _Kept()


class _BucketOfKafka:
    """Writes the rows of a bucket. is_inherited: whether its session is of an earlier task, which somebody may have
    shut out since.
    """

    def __init__(self, writer: KafkaWriter, bucket: Bucket, session: Session, is_inherited: bool) -> None:
        self._writer = writer
        self._bucket = bucket
        self.session = session
        self._is_inherited = is_inherited
        self._deadline = 0.0

    def expect(self, physical: str, tables: Sequence[TableSchema]) -> None:
        """See `ExpectsTables.expect`: a registry has to hear of a table's schemas in their order."""
        for table in tables:
            self._writer.encoding.register(physical, table, self._writer.topics.name(physical, table.source))

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """See `BucketWriter.write`."""
        try:
            return self._write(batch)
        except (Fenced, UnsupportedFeature) as error:  # what an inherited session knows may be out of date
            if not self._is_inherited:
                raise self._outlasted(error) from error
        except TopicMissing as error:
            if self._writer.new is None:
                raise
            raise ServiceUnavailable(f"{error}. It was removed, and is made again") from error
        finally:
            self._is_inherited = False
        self.session.close()  # somebody was between: an attempt in another process, or the driver; this one is later
        return self._write(batch)

    def _outlasted(self, error: DatabusError) -> DatabusError:
        """Whoever takes longer than a transaction may is shut out by the broker: nobody else has begun to write."""
        if not isinstance(error, Fenced) or time.monotonic() < self._deadline:
            return error
        cluster = self._writer.cluster
        return ServiceUnavailable(
            f"{cluster.name}: a transaction took longer than transaction_ms_max={cluster.transaction_ms_max}, so the "
            f"broker ended it: none of it is seen, and all comes again. Raise that if it happens often"
        )

    def _write(self, batch: ChangeBatch) -> Mapping[str, int]:
        session = self.session
        session.begin()
        self._deadline = time.monotonic() + self._writer.cluster.transaction_ms_max / 1e3
        if session.control_topic is None:
            written = self._put(batch)
            self._flush()
            return written
        position = session.position
        if position is not None and position.buckets != self._bucket.buckets:
            raise UnsupportedFeature(
                f"outputs.{self._bucket.output}: {self._bucket.stream} was written in {position.buckets} buckets, and "
                f"is to be in {self._bucket.buckets} now: start the pipeline again, which changes the number"
            )
        at = None if position is None else position.at
        self._bucket.check(at, batch)
        if at is not None:
            if batch.end.pair <= at.pair:
                return {}
            batch = batch_above(batch, at.pair)
        return self._commit(batch)

    def _commit(self, batch: ChangeBatch) -> Mapping[str, int]:
        from confluent_kafka import KafkaException

        session = self.session
        producer = self._producer
        try:
            producer.begin_transaction()
            written = self._put(batch)
            position = Position(batch.end, self._bucket.buckets)
            self._produce(session.control_topic or "", position.value, session.bucket.key, _ANY_PARTITION, None)
            crash_point("kafka.before_commit")
            self._end_transaction()
            crash_point("kafka.after_commit")
        except KafkaException as error:
            with suppress(KafkaException):  # it raises what is fatal once more
                producer.poll(0)
            session.check()  # says which message it was about
            raise self._error(error, "committing") from error
        session.position = position
        return written

    @property
    def _producer(self) -> "Producer":
        assert self.session.producer is not None  # noqa: S101 - it has begun
        return self.session.producer

    def _error(self, error: "KafkaException", what: str) -> DatabusError:
        """What an error of the client's means. That it cannot go on, it says of each message; why, of transactions."""
        from confluent_kafka import KafkaException

        if self.session.control_topic is not None and error.args[0].name() == "_FATAL":
            try:
                self._producer.abort_transaction(_ABORT_S_MAX)
            except KafkaException as cause:
                error = cause
        return self._writer.cluster.error(error, what)

    def _end_transaction(self) -> None:
        from confluent_kafka import KafkaException

        while True:
            try:
                self._producer.commit_transaction(self._writer.cluster.request_s_max)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > self._deadline:
                    raise
            else:
                return

    def _flush(self) -> None:
        left = self._producer.flush(max(self._deadline - time.monotonic(), 0.0))
        self.session.check()
        if left:
            raise ServiceUnavailable(
                f"{self._writer.cluster.name} did not take {left} messages within `transaction_ms_max`. Those that it "
                f"took come again"
            )

    def _put(self, batch: ChangeBatch) -> Mapping[str, int]:
        written: Counter[str] = Counter()
        for item in batch.items:
            if isinstance(item, TableControl):
                if self._bucket.takes_controls_of(item.table):
                    self._put_control(batch.physical, item)
                continue
            self._put_rows(batch, item)
            written[item.table.source] += item.rows.num_rows
        return written

    def _put_rows(self, batch: ChangeBatch, item: TableRows) -> None:
        writer, physical = self._writer, batch.physical
        topic = writer.topics.name(physical, item.table.source)
        needs = writer.encoding.needs(batch, item, topic)
        partitions = topics_of(writer.cluster).ready(topic, writer.new, needs)
        for chunk in writer.encoding.chunks(physical, item, topic):
            self._put_chunk(topic, partitions, chunk, f"{physical}/{item.table.source}")

    def _put_chunk(self, topic: str, partitions: int, chunk: Chunk | MirroredChunk, source: str) -> None:
        """The only work that is done message by message."""
        from confluent_kafka import KafkaException

        produce, failed = self._producer.produce, self.session.note_failure
        place = 0
        numbers = chunk.partitions(partitions) or repeat(_ANY_PARTITION)
        messages = zip(chunk.values, chunk.keys, chunk.headers, numbers, chunk.times, strict=False)
        try:
            for place, (value, key, headers, number, time_ms) in enumerate(messages):  # noqa: B007 - an error names it
                try:
                    produce(topic, value, key, number, failed, None, time_ms, headers)
                except BufferError:
                    self._produce(topic, value, key, number, headers, time_ms)
        except KafkaException as error:
            told = f"{source}: the row at {chunk.pair(place)} (SCN, _seq), for topic {topic}"
            raise self._error(error, told) from error
        self._producer.poll(0)
        self.session.check()

    def _put_control(self, physical: str, control: TableControl) -> None:
        writer = self._writer
        if writer.controls == NO_CONTROLS:
            return
        source = control.table.source
        is_inline = writer.controls == INLINE
        topic = writer.topics.name(physical, source) if is_inline else topic_name(writer.controls, physical, source)
        topics_of(writer.cluster).ready(topic, writer.new)
        value = writer.encoding.control(physical, control)
        for number in self._partitions_now(topic) if is_inline else (_ANY_PARTITION,):
            key = None if is_inline else f"{physical}/{source}".encode()
            self._produce(topic, value, key, number, None)

    def _partitions_now(self, topic: str) -> Sequence[int]:
        """As the brokers say, which may have got more meanwhile; the producer knows them too then."""
        from confluent_kafka import KafkaException

        cluster, what = self._writer.cluster, f"asking for the partitions of topic {topic}"
        try:
            found = self._producer.list_topics(topic, cluster.request_s_max).topics[topic]
        except KafkaException as error:
            raise self._error(error, what) from error
        if found.error is not None:
            raise cluster.error_of(found.error, what)
        return sorted(found.partitions)

    def _produce(
        self, topic: str, value: bytes | None, key: bytes | None, partition: int, headers: Any, time_ms: int = 0
    ) -> None:
        """One message, with patience where the queue is full. time_ms: 0 for now."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition, self.session.note_failure, None, time_ms, headers)
            except BufferError:
                self._producer.poll(_FULL_WAIT_S)
                self.session.check()
                if time.monotonic() > self._deadline:
                    raise ServiceUnavailable(
                        f"{self._writer.cluster.name} took too long for the messages of one transaction: none of it is "
                        f"seen, and all comes again. Raise `transaction_ms_max` if it is slow"
                    ) from None
            else:
                return


def switch_buckets(writer: KafkaWriter, pipeline: str, output: str) -> None:
    """Have an output's positions be those of as many buckets as it has now. While nothing writes.

    All buckets of a stream have to stand at one place, as they do when no batch was broken off. Whoever writes older
    buckets is shut out. Raises `UnsupportedFeature`.
    """
    from confluent_kafka import KafkaException

    topic = writer.control_topic
    if topic is None:
        return
    positions = positions_of(writer.cluster, topic)
    for stream, found in of_output(positions.read(), pipeline, output):
        if {each.buckets for each in found.values()} == {writer.buckets}:
            continue
        before = max(each.buckets for each in found.values())
        numbers = sorted({*found, *range(before)})  # one without a position has written nothing yet
        sessions = [Session(writer.cluster, topic, BucketId(pipeline, output, stream, number)) for number in numbers]
        try:
            for each in sessions:
                each.begin()
            at = _common_place([each.position for each in sessions], output, stream, before, writer.buckets)
            _move(writer, topic, sessions[0], BucketId(pipeline, output, stream, 0), numbers[-1] + 1, at)
        except KafkaException as error:
            raise writer.cluster.error(error, f"changing the number of buckets of {stream}") from error
        finally:
            for each in sessions:
                each.close()


def _common_place(
    positions: list[Position | None], output: str, stream: str, before: int, buckets: int
) -> SourceCheckpoint:
    places = {None if each is None else (each.at.pair, each.at.log) for each in positions}
    first = positions[0]
    if len(places) > 1 or first is None:
        raise UnsupportedFeature(
            f"outputs.{output}: the buckets of {stream} do not stand at one place, so that there cannot be {buckets} "
            f"now: a batch was broken off. Say `buckets: {before}`, let it run until a batch is whole, and change "
            f"the number then"
        )
    return first.at


def _move(
    writer: KafkaWriter, topic: str, session: Session, first: BucketId, before: int, at: SourceCheckpoint
) -> None:
    producer = session.producer
    assert producer is not None  # noqa: S101 - it has begun
    value = Position(at, writer.buckets).value
    producer.begin_transaction()
    for number in range(max(before, writer.buckets)):
        key = BucketId(first.pipeline, first.output, first.stream, number).key
        producer.produce(topic, value if number < writer.buckets else None, key)
    producer.commit_transaction(writer.cluster.request_s_max)
