"""What tasks do for the output `kafka`: the rows of a bucket of keys become messages, together with its position.

Each bucket has a transactional id. Whoever begins to write it shuts out all who began before, and reads how far these
have come; a transaction then brings rows and position, or neither. A producer that ended well is kept for the process's
next task of that bucket: no other writer has to be shut out then, and nothing read.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from databus.core import (
    ConfigError,
    DatabusError,
    ServiceUnavailable,
    SourceCheckpoint,
    UnsupportedFeature,
    crash_point,
)
from databus.flow import Bucket, BucketWriter, ChangeBatch, Letter, Letters, TableControl, TableRows
from databus.formats import TransactionMarks
from databus.places import Position
from databus.schema import TableSchema
from databus.sinks.kafka._cluster import Cluster, OtherBuckets, ProducerFenced, Refused, TopicMissing
from databus.sinks.kafka._encoding import Chunk, Encoding, objects_of
from databus.sinks.kafka._mirror import MirroredChunk, Mirroring
from databus.sinks.kafka._positions import BucketId, Record, known_at
from databus.sinks.kafka._refusals import Holding, Interrupted, Overtaken, RefusedRows, Report, rows_written
from databus.sinks.kafka._session import ABORT_S_MAX, KEPT, Session
from databus.sinks.kafka._topics import NewTopics, TopicNames, partitions_now, topic_name, topics_of
from databus.sinks.kafka._transactions import PlacedChanges, TransactionCounts

if TYPE_CHECKING:
    from confluent_kafka import KafkaException, Producer

INLINE: Final = "inline"
NO_CONTROLS: Final = "none"
_FULL_WAIT_S: Final = 0.1  # then refusals that have come meanwhile are looked at
_REPORTS_WAIT_S: Final = 0.2
_ANY_PARTITION: Final = -1


@dataclass(frozen=True)
class KafkaWriter:
    """Travels to tasks."""

    buckets: int
    cluster: Cluster
    topics: TopicNames
    encoding: Encoding | Mirroring
    control_topic: str | None
    """None for an output without transactions."""
    controls: str = INLINE
    """`inline`, `none`, or the template of a topic's name."""
    new: NewTopics | None = None
    """How topics are made that are not there; None if they are not."""
    retries: bool = False
    """Whether a batch with a row that is refused is tried again."""
    holding: Holding | None = None
    """How such rows are held back; None where they are not."""
    transactions: str | None = None
    """The template of the name of a topic of transactions, whose changes are counted then."""

    def replay(self, bucket: Bucket, given: Letters, holding: Holding) -> list[Letter]:
        """Write letters again, in order, by a producer that shuts out another replay and no bucket; returns those that
        are refused again, or behind an earlier letter of their key.
        """
        which = BucketId(bucket.pipeline, bucket.output, bucket.physical, bucket.number)
        session = Session(self.cluster, self.control_topic, which, is_replay=True)
        try:
            return _BucketOfKafka(replace(self, holding=holding), bucket, session, False).replay(given)
        finally:
            session.close()

    @contextmanager
    def open(self, bucket: Bucket) -> Iterator[BucketWriter]:
        """See `DirectWriter.open`."""
        which = BucketId(bucket.pipeline, bucket.output, bucket.physical, bucket.number)
        session = KEPT.take((self.cluster, self.control_topic, which))
        is_inherited = session is not None
        writer = _BucketOfKafka(self, bucket, session or Session(self.cluster, self.control_topic, which), is_inherited)
        try:
            yield writer
        except BaseException:
            writer.session.close()
            topics_of(self.cluster).forget()
            raise
        KEPT.keep(writer.session)


class _BucketOfKafka:
    """Writes the rows of a bucket. is_inherited: whether its session is of an earlier task, which another may have
    shut out since.
    """

    def __init__(self, writer: KafkaWriter, bucket: Bucket, session: Session, is_inherited: bool) -> None:
        self._writer = writer
        self._bucket = bucket
        self.session = session
        self._is_inherited = is_inherited
        self._deadline = 0.0
        self._refusals: RefusedRows | None = None  # of the batch that is written; None where these are errors
        self._replayed: Letters | None = None
        self._changes: PlacedChanges | None = None
        self._marks: TransactionMarks | None = None  # of the batch that is written
        self.letters: Counter[str] = Counter()
        """See `CountsLetters`."""
        self.already: Counter[str] = Counter()
        """See `CountsKnown`."""

    def seen(self, batch: ChangeBatch) -> ChangeBatch:
        """See `SeesAllRows.seen`: a change's place in its transaction is one among all changes, in any bucket."""
        encoding = self._writer.encoding
        if self._writer.transactions is None or isinstance(encoding, Mirroring):
            return batch
        self._changes, placed = PlacedChanges.of(batch, encoding.begins_change)
        return placed

    def expect(self, physical: str, tables: Sequence[TableSchema]) -> None:
        """See `ExpectsTables.expect`: a registry has to hear of a table's schemas in their order."""
        for table in tables:
            self._writer.encoding.register(physical, table, self._writer.topics.name(physical, table.source))

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """See `BucketWriter.write`."""
        try:
            return self._write(batch)
        except Refused as error:
            message = f"{error}{self._writer.encoding.remedies.get(type(error), '')}"
            if self._writer.retries:
                raise ServiceUnavailable(f"{message}. It is tried again") from error
            raise type(error)(message) from error
        except (ProducerFenced, OtherBuckets, UnsupportedFeature) as error:  # an inherited session may be out of date
            if not self._is_inherited:
                raise self._outlasted(error) from error
        except TopicMissing as error:
            if self._writer.new is None:
                raise
            raise ServiceUnavailable(f"{error}. It was removed while it was written") from error
        finally:
            self._is_inherited = False
            if self.session.batch_bytes_max is not None:  # it was for this batch
                self._close(None)
        self.session.close()  # another writer was between, in another process or the driver; this one is later
        return self._write(batch)

    def _outlasted(self, error: DatabusError) -> DatabusError:
        """Whoever takes longer than a transaction may is shut out by the broker, though no other has begun to write."""
        if not isinstance(error, ProducerFenced) or self._writer.cluster.clock.monotonic_s() < self._deadline:
            return error
        cluster = self._writer.cluster
        return ServiceUnavailable(
            f"{cluster.name}: a transaction took longer than transaction_ms_max={cluster.transaction_ms_max}, so the "
            f"broker ended it: none of it is seen, and all comes again. Raise that if it happens often"
        )

    def replay(self, given: Letters) -> list[Letter]:
        """See `KafkaWriter.replay`. Of letters that are forgotten meanwhile, none is written, as far as that is known
        before the commit: readers may have had the control that has overtaken them, and newer rows.
        """
        self._replayed = given
        nowhere, holding = SourceCheckpoint(), self._writer.holding
        assert holding is not None  # noqa: S101 - it is given
        batch = ChangeBatch(given.physical, nowhere, nowhere, (TableRows(given.table, given.rows()),))
        parking = holding.parking(batch, given)
        self._refusals = RefusedRows(parking, batch, self._writer.encoding, self._writer.topics, self._writer.cluster)
        self.session.begin()
        try:
            while not self._attempt(batch, None):
                self.session.begin()
        except Overtaken:
            return []
        return [replace(given.letters[row], reason=why) for row, why in parking.held(0)]

    def _write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """Write what is left of a batch, in as many attempts as it takes to find what is to be held back."""
        self.letters.clear()
        writer, session = self._writer, self.session
        session.begin(self._bucket)
        before, left = session.record, self._left(batch)
        self.already = batch.rows_by_source() - (Counter() if left is None else left.rows_by_source())
        if left is None:
            if not self._is_inherited or session.is_current:
                return {}
            session.close()
            return self._write(batch)
        if writer.holding is not None:
            parking = writer.holding.parking(left)
            parking.release()  # before a control is sent: behind it, no replay may write a letter from before
            self._refusals = RefusedRows(parking, left, writer.encoding, writer.topics, writer.cluster)
        left, counts = self._counted(left)
        while not self._attempt(left, Record(self._bucket.after(self._own, batch), self._bucket.buckets, counts)):
            session.begin()
            if session.record != before:  # another writer was between
                return self._write(batch)
        written, self.letters = rows_written(left, self._refusals)
        return written

    @property
    def _own(self) -> Position | None:
        """What the bucket's record says, of the tables that are chosen now."""
        record = self.session.record
        return self._bucket.own(None if record is None else record.position)

    def _left(self, batch: ChangeBatch) -> ChangeBatch | None:
        """What of a batch is above the bucket's own places; None where all of it is there."""
        record, own = self.session.record, self._own
        if record is None or own is None:
            return batch
        if record.buckets != self._bucket.buckets:
            raise OtherBuckets(
                f"outputs.{self._bucket.output}: {self._bucket.physical} was written in {record.buckets} buckets, and "
                f"not in {self._bucket.buckets}, since this query began: by a task of an earlier run, or by another "
                f"pipeline of this name. The query begins again, and changes the number if all buckets stand at one "
                f"place"
            )
        self._bucket.check(own, batch)
        left = batch.above(own.done)
        moves = self._bucket.moves_at and (own.at is None or own.at.pair < batch.end.pair)
        moves = moves or any(
            self._bucket.reads(name) and place.pair < batch.end.pair for name, place in own.places.items()
        )
        moves = moves or (not self._bucket.moves_at and any(own.place(name) is None for name in self._named(batch)))
        return left if moves or left.items else None

    def _named(self, batch: ChangeBatch) -> set[str]:
        return {f"{batch.physical}/{item.table.source}" for item in batch.items}

    def _attempt(self, batch: ChangeBatch, record: Record | None) -> bool:
        """Write a batch without what is held back, and with its position; dead letters have none.

        Returns whether it is written. It is not where rows were refused: these are held back from then on, and the
        session is to begin again, since a producer whose messages were refused counts the next ones wrongly.
        """
        from confluent_kafka import KafkaException

        refusals = self._refusals
        try:
            self._check_replayed()
            if self.session.needs_rehearsal(self._topics_of(batch)) and not self._rehearse(batch):
                return False
            self._deadline = self._writer.cluster.clock.monotonic_s() + self._writer.cluster.transaction_ms_max / 1e3
            self._send(batch, record)
            if self.session.is_rehearsal:
                return True
            if refusals is not None and refusals.found_any:
                refusals.settle(comes_again=False)
            if refusals is not None and record is not None:
                refusals.parking.put()
                refusals.parking.release()
            self._commit(record)
        except Interrupted:
            assert refusals is not None  # noqa: S101 - it says so
            self._gather_reports()
            refusals.settle(comes_again=True)
            self._close(refusals.batch_bytes_max)
            return False
        except KafkaException as error:
            self._look_at_reports(error)  # they say which message it was about
            raise self._error(error, "committing") from error
        return True

    def _rehearse(self, batch: ChangeBatch) -> bool:
        """Have brokers take a batch in a transaction that is broken off; returns as `_attempt`."""
        own, self.session = self.session, self.session.rehearsal()
        try:
            self.session.begin()
            is_taken = self._attempt(batch, None)
            batch_bytes_max = self.session.batch_bytes_max
        finally:
            self.session.close()
            self.session = own
        if not is_taken:
            self._close(batch_bytes_max)
        return is_taken

    def _topics_of(self, batch: ChangeBatch) -> set[str]:
        """Those in which it may write something of a batch."""
        writer, physical = self._writer, batch.physical
        templates = [] if writer.controls in (INLINE, NO_CONTROLS) else [writer.controls]
        templates += [] if writer.transactions is None else [writer.transactions]
        sources = {item.table.source for item in batch.items}
        named = {topic_name(template, physical, source) for template in templates for source in sources}
        return named | {writer.topics.name(physical, source) for source in sources}

    def _send(self, batch: ChangeBatch, record: Record | None) -> None:
        """All but the commit. Raises `Interrupted` where it has to be done again."""
        session, refusals = self.session, self._refusals
        in_transaction = session.control_topic is not None
        if in_transaction:
            self._producer.begin_transaction()
        self._put_marks(batch.physical)
        for number, item in enumerate(batch.items):
            if isinstance(item, TableRows):
                self._put_rows(batch, number, item)
            elif self._bucket.takes_controls_of(item.table):
                self._put_control(batch.physical, item)
        if session.control_topic is not None and record is not None:
            self._produce(session.control_topic, *session.message(record))
        self._flush()
        if refusals is not None and (refusals.has_others or (in_transaction and refusals.found_any)):
            raise Interrupted

    def _commit(self, record: Record | None) -> None:
        if self.session.control_topic is None:
            return
        crash_point("kafka.before_commit")
        self._check_replayed()
        self.session.commit(self._deadline)
        self.session.note_commit(record)
        crash_point("kafka.after_commit")

    def _check_replayed(self) -> None:
        holding, given = self._writer.holding, self._replayed
        if given is not None and holding is not None and not holding.letters.has(given):
            raise Overtaken

    def _counted(self, batch: ChangeBatch) -> tuple[ChangeBatch, TransactionCounts | None]:
        """The batch with the places of its changes in their transactions; one bucket says where these begin and end."""
        if self._changes is None:
            return batch, None
        after, known = known_at(self.session.record, self._bucket.reached)
        counts = self._changes.counted(after, known, batch.end.pair)
        self._marks = counts.marks if self._bucket.number == 0 else None
        return counts.placed(batch), counts.after

    def _put_marks(self, physical: str) -> None:
        writer, marks = self._writer, self._marks
        if marks is None or writer.transactions is None or isinstance(writer.encoding, Mirroring):
            return
        topic = topic_name(writer.transactions, physical, "")
        topics_of(writer.cluster).ready(topic, writer.new)
        messages = writer.encoding.marks(marks, topic)
        for value, key in zip(objects_of(messages.values), objects_of(messages.keys), strict=True):
            self._produce(topic, value, key, _ANY_PARTITION, None)

    def _gather_reports(self, *, is_over: bool = True) -> None:
        """Those that are there; where it is over with this attempt, also of what is on its way: no more is sent."""
        from confluent_kafka import KafkaException

        with suppress(KafkaException):  # it raises what is fatal once more
            if is_over:
                self._producer.purge(in_queue=True, in_flight=False)
            self._producer.flush(_REPORTS_WAIT_S if is_over else 0)

    def _close(self, batch_bytes_max: int | None) -> None:
        self.session.close()
        self.session.batch_bytes_max = batch_bytes_max

    @property
    def _producer(self) -> "Producer":
        assert self.session.producer is not None  # noqa: S101 - it has begun
        return self.session.producer

    def _error(self, error: "KafkaException", what: str) -> DatabusError:
        """What an error of the client's means. That it cannot go on, it says of each message; why, of transactions."""
        from confluent_kafka import KafkaException

        name = error.args[0].name() if self.session.control_topic is not None else ""
        if name == "_FATAL":
            try:
                self._producer.abort_transaction(ABORT_S_MAX)
            except KafkaException as cause:
                error = cause
        if name == "_STATE":  # it is given up; what for, stands in the log where no message was to blame
            return ServiceUnavailable(f"{self._writer.cluster.error(error, what)}. All of the batch comes again")
        return self._writer.cluster.error(error, what)

    def _flush(self) -> None:
        """Wait until all messages are there. A commit would wait for those that are not sent after a refusal."""
        while left := self._producer.flush(_FULL_WAIT_S):
            self._check()
            if self._writer.cluster.clock.monotonic_s() > self._deadline:
                raise ServiceUnavailable(
                    f"{self._writer.cluster.name} did not take {left} messages within `transaction_ms_max`. All of the "
                    f"batch comes again"
                )
        self._check()

    def _look_at_reports(self, error: "KafkaException") -> None:
        """After an error: raise what messages did not arrive for, if that is known. The client knows that a transaction
        cannot go on a moment before their reports are there.
        """
        self._gather_reports(is_over=error.args[0].name() == "_STATE")
        self._check()

    def _check(self) -> None:
        """Raise what messages did not arrive for."""
        is_interrupted = self._refusals is not None and self._refusals.interrupts
        if is_interrupted and self.session.control_topic is not None:
            raise Interrupted
        self.session.check()

    def _put_rows(self, batch: ChangeBatch, number: int, item: TableRows) -> None:
        writer, physical = self._writer, batch.physical
        source = f"{physical}/{item.table.source}"
        topic = writer.topics.name(physical, item.table.source)
        if topic == writer.control_topic:
            raise ConfigError(
                f"{physical}/{item.table.source}: topic {topic} is its `control_topic`, where positions of outputs "
                f"are: leave the table out, or name another topic for it"
            )
        needs = writer.encoding.needs(batch, item, topic)
        partitions = topics_of(writer.cluster).ready(topic, writer.new, needs)
        refusals, others = self._refusals, self.session.note_failure
        if refusals is None:
            for chunk in writer.encoding.chunks(physical, item, topic):
                self._put_chunk(topic, partitions, chunk, source, repeat(others))
            return
        for chunk, rows in refusals.chunks(number, topic):
            self._put_chunk(topic, partitions, chunk, source, refusals.reports(number, rows, others))

    def _put_chunk(
        self, topic: str, partitions: int, chunk: Chunk | MirroredChunk, source: str, reports: Iterable[Report]
    ) -> None:
        """The only work that is done message by message."""
        from confluent_kafka import KafkaException

        produce, refusals = self._producer.produce, self._refusals
        numbers = chunk.partitions(partitions) or repeat(_ANY_PARTITION)
        messages = zip(chunk.values, chunk.keys, chunk.headers, numbers, chunk.times, reports, strict=False)
        for place, (value, key, headers, number, time_ms, failed) in enumerate(messages):
            try:
                try:
                    produce(topic, value, key, number, failed, None, time_ms, headers)
                except BufferError:
                    self._produce(topic, value, key, number, headers, time_ms, failed)
            except KafkaException as error:
                if refusals is not None and refusals.takes(error.args[0], failed):
                    continue
                self._look_at_reports(error)
                message = f"{source}: the row at {chunk.pair(place)} (SCN, _seq), for topic {topic}"
                raise self._error(error, message) from error
        self._producer.poll(0)
        self._check()

    def _put_control(self, physical: str, control: TableControl) -> None:
        writer = self._writer
        if writer.controls == NO_CONTROLS:
            return
        source, refusals = control.table.source, self._refusals
        report = None if refusals is None else refusals.control_report(self.session.note_failure)
        is_inline = writer.controls == INLINE
        topic = writer.topics.name(physical, source) if is_inline else topic_name(writer.controls, physical, source)
        topics_of(writer.cluster).ready(topic, writer.new)
        value = writer.encoding.control(physical, control)
        for number in partitions_now(writer.cluster, self._producer, topic) if is_inline else (_ANY_PARTITION,):
            key = None if is_inline else f"{physical}/{source}".encode()
            self._produce(topic, value, key, number, None, failed=report)

    def _produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int,
        headers: Any,
        time_ms: int = 0,
        failed: Report | None = None,
    ) -> None:
        """One message, with patience where the queue is full. time_ms: 0 for now."""
        from confluent_kafka import KafkaException

        report = failed or self.session.note_failure
        while True:
            try:
                self._producer.produce(topic, value, key, partition, report, None, time_ms, headers)
            except BufferError:
                self._producer.poll(_FULL_WAIT_S)
                self._check()
                if self._writer.cluster.clock.monotonic_s() > self._deadline:
                    raise ServiceUnavailable(
                        f"{self._writer.cluster.name} took too long for the messages of one transaction: none of it is "
                        f"seen, and all comes again. Raise `transaction_ms_max` if it is slow"
                    ) from None
            except KafkaException as error:
                self._look_at_reports(error)
                raise
            else:
                return
