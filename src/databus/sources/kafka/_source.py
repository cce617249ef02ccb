"""The Kafka source: topics become tables of the relay's log, and the log keeps how far each partition has been read.

Kafka has no order between partitions. What has queued when the relay polls becomes one transaction of the bus, in which
each partition's messages stand in their order. Reading again makes other transactions of the same messages, so the log
serves them only once they are on the disk (`Group.unrepeatable`).
"""

import hashlib
import json
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    COUNTED,
    SEQ,
    ChangeType,
    Clock,
    ControlKind,
    DatabusError,
    Identity,
    PositionPurged,
    ServiceUnavailable,
    SourceChanged,
    SystemClock,
    UnknownSource,
    UnrepresentableValue,
    UnsupportedFeature,
    next_bus_seq,
)
from databus.log import Resume
from databus.operate import logger_of
from databus.schema import TableSchema, frame_schema
from databus.sources._bus_frames import bus_columns, gap_body
from databus.sources._capabilities import Finding
from databus.sources._contract import ScnCounter, SourceLag
from databus.sources.kafka._cluster import KafkaCluster, missing_topics
from databus.sources.kafka._config import KafkaConfig
from databus.sources.kafka._consumer import Polled, TopicConsumer, TopicMessages
from databus.sources.kafka._places import Loss, Next, Partition, Places, TopicState
from databus.sources.kafka._poison import Poison, before, sifted
from databus.sources.kafka._removals import LoneTombstones
from databus.sources.kafka._tables import Block, TopicTables
from databus.wire import Commit, Control, Group, Rows

_NAMESPACE: Final = uuid.UUID("0f0d8e0a-93b4-4c0c-8d4e-3a5b7c1f2d66")
_PROGRESS_NS: Final = 1_000_000_000  # between two commits that only say how far partitions were read
_SHOWN_MAX: Final = 3
_LOOK_AGAIN_MS: Final = 1_000  # while a topic is absent
_POLLED_NS: Final = 2_000_000_000  # without `poll` for so long it is unknown what brokers hold


class KafkaSource:
    """Topics of one cluster."""

    config_model: ClassVar = KafkaConfig

    def __init__(self, physical: str, config: KafkaConfig, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config = config
        self._clock = clock or SystemClock()
        self._logger = logger_of("databus.sources").bind(physical=physical)
        self._tables = TopicTables(config)
        self._cluster: KafkaCluster | None = None
        self._consumer: TopicConsumer | None = None
        self._cluster_id = ""
        self._topics: dict[str, tuple[str, int]] = {}
        self._absent_since: dict[str, int] = {}
        self._tombstones = LoneTombstones()
        self._places = Places("", {})
        self._counter = ScnCounter(Resume())
        self._seq = 0
        self._txid = ""
        self._commit_us = 0
        self._waiting: deque[Group] = deque()
        self._stopped: DatabusError | None = None
        self._next_look_ns = 0
        self._polled_ns = 0
        self._progress_ns = 0
        self._is_moved = False  # behind markers alone, since the last commit

    # The contract

    def identify(self) -> Identity:
        """See `Source.identify`: a cluster knows its own id."""
        self._cluster_id = self._connected().id()
        description = f"Kafka at {self._config.servers}"
        return Identity(str(uuid.uuid5(_NAMESPACE, self._cluster_id)), COUNTED, description)

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`: a table for each topic that is there."""
        self._topics = self._connected().topics()
        return list(dict.fromkeys(table for name in sorted(self._topics) for table in self._tables.of(name)))

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        cluster = self._connected()
        self._cluster_id = self._cluster_id or cluster.id()
        self._counter = ScnCounter(resume)
        self._seq, self._txid = resume.seq, resume.txid
        before, self._topics = self._topics, self._selected(cluster.topics())
        states = cluster.states(self._topics)
        if resume.position is None:
            self._check_begin(states, before)
            self._places = Places(self._cluster_id, cluster.started(states))
            self._waiting.append(self._progress())  # so that a restart begins at the same offsets
        else:
            held = Places.from_json(resume.position, self.physical)
            if held.cluster != self._cluster_id:
                raise SourceChanged(
                    f"{self.physical}: the log is of the Kafka cluster {held.cluster}, and {self._config.servers} is "
                    f"{self._cluster_id}. Name the brokers of that cluster, or capture this one under another name"
                )
            held = held.only(lambda topic: self._config.reads(topic) and bool(self._tables.of(topic)))
            self._places = held
            self._absent_since = {}
            self._adopt(*held.reconciled(states, awaited=self._awaited(states)))
        self._tombstones = LoneTombstones(self._places.gone())
        self._consumer = TopicConsumer(self.physical, self._config)
        self._assign()

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        if self._waiting:
            return self._waiting.popleft()
        if self._stopped is not None:
            raise self._stopped
        consumer = self._consumer
        assert consumer is not None  # noqa: S101 - started
        if self._clock.monotonic_ns() >= self._next_look_ns:
            self._look()
            if self._waiting:
                return self._waiting.popleft()
        taken = consumer.take(wait_ms)
        self._polled_ns = self._clock.monotonic_ns()
        self._take(taken)
        if taken.moved:
            self._look(taken.moved, taken.cut)
        return self._waiting.popleft() if self._waiting else None

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`: nothing is committed to Kafka, so that its retention is the topic's own."""
        del position

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`: a topic has no rows to read, only messages."""
        del where
        known = {table.source for topic in self._topics for table in self._tables.of(topic)}
        unknown = [name for name in sources if name not in known]
        if unknown:
            raise UnknownSource(
                f"{self.physical}: no table {unknown[0]}; there are: {', '.join(sorted(known)) or 'none'}"
            )
        raise UnsupportedFeature(
            f"{self.physical}: a topic cannot be read as a table; consumers get its messages from the log. To read it "
            "again from its begin, capture it under another name with `start: earliest`"
        )

    def lag(self) -> SourceLag:
        """See `Source.lag`. `behind_ms` is the age of the last message captured, and 0 where none waits.

        What brokers have comes with what they are asked for: nothing is known of it while capture is paused.
        """
        if self._consumer is None or self._clock.monotonic_ns() - self._polled_ns > _POLLED_NS:
            return SourceLag()
        waiting = self._consumer.waiting(self._places.next_offsets())
        if waiting == 0:
            return SourceLag(behind_ms=0.0, changes=0)
        behind_ms = max(self._clock.now_ns() / 1e6 - self._commit_us / 1e3, 0.0) if self._commit_us else None
        return SourceLag(behind_ms=behind_ms, changes=waiting)

    def close(self) -> None:
        """See `Source.close`."""
        consumer, self._consumer, self._cluster = self._consumer, None, None
        if consumer is not None:
            consumer.close()

    # What `databus check-source` asks

    @staticmethod
    def check(config: KafkaConfig) -> Sequence[Finding]:
        """See `Checkable.check`. A cluster that does not answer is a finding too."""
        server = config.servers
        try:
            cluster = KafkaCluster("check", config)
            cluster.id()
            topics = cluster.topics()
            states = cluster.states(topics)
        except DatabusError as error:
            return [Finding("error", "connect", server, str(error).removeprefix("check: "))]
        findings = [
            Finding("error", "topics", server, f"no topic fits {topic!r}", "create it, or correct `topics`")
            for topic in missing_topics(config, list(topics))
        ]
        findings += [
            Finding(
                "warning",
                "topic_ids",
                server,
                f"the cluster has no id for the topic {name}: a topic that is deleted and created again is "
                "noticed only by its offsets",
            )
            for name, state in states.items()
            if not state.id
        ]
        partitions = sum(len(state.earliest) for state in states.values())
        messages = sum(sum(state.latest) - sum(state.earliest) for state in states.values())
        what = f"{len(topics)} topics with {partitions} partitions, which hold at most {messages} messages"
        return [*findings, Finding("info", "topics", server, what)]

    @staticmethod
    def warm_up(physical: str, say: Any) -> None:
        """See `Checkable.warm_up`: there is nothing to do."""
        del physical, say

    # Topics

    def _connected(self) -> KafkaCluster:
        if self._cluster is None:
            self._cluster = KafkaCluster(self.physical, self._config)
        return self._cluster

    def _selected(self, topics: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
        return {name: topic for name, topic in topics.items() if self._tables.of(name)}

    def _check_begin(self, states: Mapping[str, TopicState], before: Collection[str]) -> None:
        """Of a new log: what brokers do not know when it begins is read from its first message later, whatever `start`
        says, so a topic that is made a moment later loses none. Raises `ServiceUnavailable` where they knew a topic
        before, or do not know its offsets, or not the partitions whose offsets `start` names.
        """
        start = self._config.start
        if start == "earliest":
            return
        named = start if isinstance(start, dict) else {}
        unknown = sorted({*before, *self._topics} - set(states))
        unknown += [
            f"{name}, partition {number}"
            for name, offsets in named.items()
            for number in offsets
            if number >= len(states[name].earliest if name in states else ())
        ]
        if unknown:
            raise ServiceUnavailable(
                f"{self.physical}: {self._config.servers} does not say where to begin, for it does not know "
                f"{'; '.join(unknown[:_SHOWN_MAX])}. It is asked again; correct `start` if there is no such thing"
            )
        for name in missing_topics(self._config, list(self._topics)):
            message = "no topic fits; one that appears later is read from its first message, whatever `start` says"
            self._logger.warning(message, topics=name, start=str(start))

    def _look(self, moved: str = "", cut: Mapping[Partition, int | None] | None = None) -> None:
        """See what became of topics. moved: why a partition may not be the one that was read. cut: see `Polled`."""
        cluster = self._connected()
        self._look_later()
        topics = self._selected(cluster.topics())
        if not (moved or self._absent_since or self._places.differs(topics)):
            return
        self._logger.info("topics changed", why=moved or "looked for", topics=len(topics))
        self._topics = topics
        states = cluster.states(topics)
        self._adopt(*self._places.reconciled(states, cut, self._awaited(states)))
        self._assign()

    def _awaited(self, topics: Mapping[str, TopicState]) -> list[str]:
        """The topics that were there not long ago: a broker may not know them for a moment, as when it has just
        started or lags behind its controller. Their places are kept meanwhile.
        """
        now = self._clock.monotonic_ns()
        absent = self._places.unknown(topics)
        for name in absent:
            if name not in self._absent_since:
                message = "the brokers do not know a topic; it counts as deleted if it does not come back"
                self._logger.warning(message, topic=name, gone_ms=self._config.gone_ms)
        self._absent_since = {name: self._absent_since.get(name, now) for name in absent}
        limit = now - self._config.gone_ms * 1_000_000
        return [name for name, since in self._absent_since.items() if since > limit]

    def _assign(self) -> None:
        """Have the consumer read on, but of topics that are not there at the moment."""
        assert self._consumer is not None  # noqa: S101 - started
        self._consumer.assign(self._places.only(lambda name: name not in self._absent_since).assigned())
        self._look_later()

    def _look_later(self) -> None:
        wait_ms = min(self._config.discover_ms, _LOOK_AGAIN_MS) if self._absent_since else self._config.discover_ms
        self._next_look_ns = self._clock.monotonic_ns() + wait_ms * 1_000_000

    def _adopt(self, places: Places, losses: Sequence[Loss]) -> None:
        """Go on at these places; what has been lost is in the log before anything behind it."""
        if losses and self._config.on_gap == "stop":
            reasons = "; ".join(loss.reason for loss in losses[:_SHOWN_MAX])
            more = f"; and {len(losses) - _SHOWN_MAX} more" if len(losses) > _SHOWN_MAX else ""
            raise PositionPurged(
                f"{self.physical}: {reasons}{more}. Set `on_gap: continue` to record a gap and go on with what is "
                f"there",
                physical=self.physical,
            )
        is_other = places.to_json() != self._places.to_json()
        self._places = places
        by_topic: dict[str, list[str]] = {}
        for loss in losses:
            by_topic.setdefault(loss.topic, []).append(loss.reason)
        if by_topic:
            self._gaps(by_topic)
        elif is_other:
            self._waiting.append(self._progress())

    # Groups

    def _take(self, taken: Polled) -> None:
        """Make what has come a transaction, with what is wrong in it before or behind it."""
        ends, reasons = dict(taken.ends), dict[str, list[str]]()
        blocks: list[Block] = []
        self._tables.begin_poll()
        for messages in taken.messages:
            new_blocks, poison = self._read(messages)
            if poison and (self._config.on_poison == "stop" or len(poison) > self._config.poison_max):
                kept = before(messages, poison)
                self._stop_at(messages, poison, ends)
                self._tombstones = LoneTombstones(self._places.gone())  # as if what comes behind had not been read
                new_blocks = self._read(kept)[0]
            elif poison:
                reasons[messages.topic] = [self._skipped(messages, poison)]
            blocks += new_blocks
            topic_ends = {at: end for at, end in ends.items() if at[0] == messages.topic}
            ends |= {at: end._replace(gone=self._tombstones.gone(at)) for at, end in topic_ends.items()}
        moved = self._places.moved(ends, taken.idle)
        if reasons:
            # At the position before: if we are killed in between, the gap may come twice, but is never lost.
            self._gaps(reasons)
        if blocks:
            self._places = moved
            self._waiting.append(self._transaction(blocks))
        elif ends or taken.idle:
            self._is_moved |= moved.to_json() != self._places.to_json()
            self._places = moved
        if self._is_moved and not self._waiting and self._clock.monotonic_ns() - self._progress_ns >= _PROGRESS_NS:
            self._waiting.append(self._progress())

    def _read(self, messages: TopicMessages) -> tuple[list[Block], list[Poison]]:
        """The rows of messages of one topic, and what is wrong among them."""
        is_json = self._config.format != "raw" and not self._config.is_avro
        parts, poison = sifted(messages, self._tables.read, is_json=is_json)
        blocks = [block for part in parts for block in part]
        if self._config.is_raw:
            return blocks, poison
        deleted = [block.numbers[block.kinds == ChangeType.DELETE] for block in blocks]
        is_gone = np.isin(messages.numbers, np.concatenate(deleted)) if deleted else np.zeros(len(messages), bool)
        is_gone[[fault.at for fault in poison]] = True
        alone = self._tombstones.alone(messages, is_gone)
        if not len(alone):
            return blocks, poison
        gone, refused = sifted(messages.chosen(alone), self._tables.removed, is_json=False)
        poison += [Poison(int(alone[fault.at]), fault.reason) for fault in refused]
        return blocks + [block for part in gone for block in part], sorted(poison)

    def _stop_at(self, messages: TopicMessages, poison: Sequence[Poison], ends: dict[Partition, Next]) -> None:
        """Have the next poll say what cannot be read, and the position stand before it."""
        firsts: dict[int, Poison] = {}
        for fault in sorted(poison, key=lambda fault: int(messages.offsets[fault.at]), reverse=True):
            firsts[int(messages.partitions[fault.at])] = fault
        for partition, fault in firsts.items():
            ends[messages.topic, partition] = Next(int(messages.offsets[fault.at]))
        at, reason = next(iter(firsts.values()))
        self._stopped = UnrepresentableValue(
            f"{self.physical}: {messages.place(at)}: not what `format: {self._config.format}` means: {reason}. Set "
            f"`on_poison: skip` to record a gap in the log and go on behind it"
            + (f", and no more than poison_max={self._config.poison_max}" if self._config.on_poison == "skip" else "")
        )

    def _skipped(self, messages: TopicMessages, poison: Sequence[Poison]) -> str:
        details = "; ".join(f"{messages.place(fault.at)}: {fault.reason}" for fault in poison[:_SHOWN_MAX])
        more = f"; and {len(poison) - _SHOWN_MAX} more" if len(poison) > _SHOWN_MAX else ""
        reason = f"{len(poison)} of the topic's messages are not what `format` says: {details}{more}"
        self._logger.warning("messages passed over", topic=messages.topic, messages=len(poison), reason=reason)
        return reason

    def _transaction(self, blocks: Sequence[Block]) -> Group:
        now_us = self._clock.now_ns() // 1000
        scn, self._txid = self._counter.next(), self._new_txid()
        batches: dict[TableSchema, list[pa.RecordBatch]] = {}
        self._seq = sum(len(block.kinds) for block in blocks)
        for block, seqs in zip(blocks, _seqs_of(blocks), strict=True):
            is_now = (block.timestamps < 0) | (block.timestamps > now_us // 1000)
            times = np.where(is_now, now_us, block.timestamps * 1000)
            self._commit_us = int(times[-1])
            bus = bus_columns(block.kinds, scn, seqs, times, self._txid)
            batch = pa.RecordBatch.from_arrays([*block.columns, *bus], schema=frame_schema(block.table))
            batches.setdefault(block.table, []).append(batch)
        rows = tuple(Rows(table, _as_one(parts)) for table, parts in batches.items())
        return Group(self._commit(), rows, unrepeatable=True)

    def _gaps(self, reasons: Mapping[str, Sequence[str]]) -> None:
        """A gap in each of these topics' tables; they stand or fall together."""
        tables = {table: topic for topic in reasons for table in self._tables.of(topic)}
        for number, (table, topic) in enumerate(tables.items(), 1):
            self._seq = next_bus_seq(self._seq, self._clock.now_ns())
            scn = self._counter.scn
            reason = "; ".join(reasons[topic][:_SHOWN_MAX])
            body = gap_body(table.source, scn, scn, reason, is_read_again=False)
            control = Control(ControlKind.GAP, table, scn, self._seq, body)
            commit = self._commit(continues=number < len(tables))
            self._waiting.append(Group(commit, (), control, unrepeatable=True))

    def _progress(self) -> Group:
        """A commit alone, which says how far partitions have been read."""
        self._counter.next()
        self._seq, self._txid = 0, self._new_txid()
        return Group(self._commit(), unrepeatable=True)

    def _commit(self, *, continues: bool = False) -> Commit:
        self._progress_ns, self._is_moved = self._clock.monotonic_ns(), False
        commit_us = self._commit_us or self._clock.now_ns() // 1000
        return Commit(self._counter.scn, self._seq, self._txid, self._places.to_json(), commit_us, continues=continues)

    def _new_txid(self) -> str:
        """Of the transaction that ends where the places are: another one at the same SCN has another id."""
        text = json.dumps(self._places.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _seqs_of(blocks: Sequence[Block]) -> list[npt.NDArray[np.int64]]:
    """The `_seq` of each block's rows: in the order in which messages came, whatever tables they are of."""
    numbers = np.concatenate([block.numbers for block in blocks])
    seqs = np.empty(len(numbers), np.int64)
    seqs[np.argsort(numbers, kind="stable")] = np.arange(1, len(numbers) + 1)
    return np.split(seqs, np.cumsum([len(block.numbers) for block in blocks[:-1]], dtype=np.int64))


def _as_one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one table, in the order of `_seq`."""
    if len(batches) == 1:
        return batches[0]
    rows = pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
    return rows.take(pc.sort_indices(rows.column(SEQ)))
