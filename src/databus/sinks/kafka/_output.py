"""Topics of Kafka: every change of a table, in the order of its keys.

Tasks write messages, in transactions that bring their positions too (`databus.sinks.kafka`). The driver sees to the
control topic and to controls that readers of the topics do not get.
"""

import importlib.util
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar

from databus.core import (
    ConfigError,
    ControlKind,
    CorruptData,
    DatabusError,
    Pair,
    UnsupportedFeature,
    how_to_install,
)
from databus.flow import Bucket, KeyChoice, Letter, Letters, StagedBatch, TableControl, Tasks
from databus.formats import DebeziumForm, DecimalForm, UnsignedForm, check_whole_rows
from databus.places import Choice, Held, Noted, Position
from databus.plugins import Delivery, OutputConfig, OutputContext, Written
from databus.schema import TableSchema
from databus.sinks._letters import LettersOutput
from databus.sinks.kafka._avro import AvroSubjects
from databus.sinks.kafka._buckets import rename_buckets, switch_buckets
from databus.sinks.kafka._cluster import Cluster
from databus.sinks.kafka._config import KafkaOutputConfig
from databus.sinks.kafka._encoding import Encoding
from databus.sinks.kafka._mirror import MESSAGE, MESSAGE_KEY, PARTITION, Mirroring, check_messages
from databus.sinks.kafka._offsets import pairs_between
from databus.sinks.kafka._positions import Record, of_output, positions_of
from databus.sinks.kafka._refusals import Holding
from databus.sinks.kafka._topics import NewTopics, TopicNames, as_settings, topic_name, topics_of
from databus.sinks.kafka._writer import INLINE, NO_CONTROLS, KafkaWriter


class KafkaOutput(LettersOutput):
    """Writes each row of the log as a message."""

    config_model: ClassVar[type[OutputConfig]] = KafkaOutputConfig
    delivery: ClassVar[Delivery] = Delivery.EXACTLY_ONCE
    config: KafkaOutputConfig

    def __init__(self, config: KafkaOutputConfig, context: OutputContext) -> None:
        super().__init__(config, context)
        if not config.transactions:
            self.delivery = Delivery.AT_LEAST_ONCE  # type: ignore[misc]  # the class says what it does by default
        self._cluster = Cluster(
            as_settings({name: setting.get_secret_value() for name, setting in config.kafka.items()}),
            config.request_ms_max,
            config.transaction_ms_max,
            config.buffer_bytes_max,
        )
        self._marks: dict[str, str] = {}  # by full names of tables: the topic that has their messages, and its id

    def target_of(self, physical: str, source: str) -> tuple[str, str]:
        """See `NamesTargets.target_of`."""
        broker = dict(self._cluster.settings).get("bootstrap.servers", "").partition(",")[0]
        return f"kafka://{broker}", self._topics.name(physical, source)

    def check_table(self, table: TableSchema) -> None:
        """See `ChecksTables.check_table`."""
        self._topics.name("physical", table.source)
        check_whole_rows(table, self.config.format, f"outputs.{self.context.output}.format: ")
        if self.config.format == MESSAGE:
            try:
                check_messages(table)
            except UnsupportedFeature as error:
                raise UnsupportedFeature(f"outputs.{self.context.output}.format: {error}") from error

    def open(self) -> None:
        """See `Output.open`. Raises `ConfigError` without Kafka's client, and as `check_left` does."""
        self.check_left()
        if importlib.util.find_spec("confluent_kafka") is None:
            raise ConfigError(
                f"outputs.{self.context.output}: Kafka's client is missing: {how_to_install('kafka')}; and "
                f"wherever tasks run"
            )
        if self.config.transactions:
            new = self.config.create_topics
            positions = positions_of(self._cluster, self.config.control_topic)
            positions.make(-1 if new is None or new.replication_factor is None else new.replication_factor)
            positions.check_kept()

    def take_over(self, ledger: Mapping[str, Position], choice: Choice) -> None:
        """See `TakesOver.take_over`."""
        if self.config.transactions:
            pipeline, output = self.context.pipeline, self.context.output
            known = {
                (pipeline, output, physical): (position, position.last_written) for physical, position in ledger.items()
            }
            switch_buckets(self.part_writer(), pipeline, output, choice, known)

    def take_name(self, before: OutputContext, tables: Collection[str]) -> int:
        """See `TakesName.take_name`: records are all that has a name in it."""
        del tables
        mine = self.context
        return rename_buckets(self.part_writer(), (before.pipeline, before.output), (mine.pipeline, mine.output))

    @property
    def _topics(self) -> TopicNames:
        return TopicNames(self.config.topic, tuple(self.config.topics.items()))

    @property
    def _encoding(self) -> Encoding | Mirroring:
        config, chosen = self.config, self.config.debezium
        if config.format == MESSAGE:
            return Mirroring(self._topics, config.timestamps == "source")
        form = DebeziumForm(
            decimals=DecimalForm(chosen.decimals),
            unsigned=UnsignedForm(chosen.unsigned),
            with_schema=chosen.with_schema,
            tombstones=False,  # they are made for all formats alike
        )
        return Encoding(config.key_choice, config.headers, config.format, form, config.how_rows_go, self._subjects)

    @property
    def _subjects(self) -> AvroSubjects | None:
        chosen = self.config.registry
        if chosen is None:
            return None
        return AvroSubjects(chosen.access, chosen.subject_naming, chosen.register_schemas)

    def part_writer(self) -> KafkaWriter:
        """See `Output.part_writer`."""
        config, new = self.config, self.config.create_topics
        settings = {"message.timestamp.type": "CreateTime"} if config.format == MESSAGE else {}
        return KafkaWriter(
            config.buckets,
            self._cluster,
            self._topics,
            self._encoding,
            config.control_topic if config.transactions else None,
            config.where_controls_go,
            None
            if new is None
            else NewTopics(new.partitions or -1, new.replication_factor or -1, as_settings({**settings, **new.config})),
            config.on_error == "retry",
            self._holding if config.on_error == "dead_letter" else None,
            config.debezium.transaction_topic,
        )

    @property
    def _holding(self) -> Holding:
        """Messages of a mirror are told apart by their own keys, in each partition."""
        if self.config.format == MESSAGE:
            return Holding(self.letters, KeyChoice((PARTITION, MESSAGE_KEY)), MESSAGE_KEY)
        return Holding(self.letters, self.config.key_choice)

    def replay(self, letters: Letters) -> Sequence[Letter]:
        """See `KeepsLetters.replay`."""
        bucket = Bucket(self.context.pipeline, self.context.output, "dead-letters", 0, 1)
        return self.part_writer().replay(bucket, letters, self._holding)

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held]:
        """See `Output.held`. Raises `CorruptData` where a topic is gone that is not to be done without."""
        noted = {name: table.mark for name, table in tables.items() if table is not None}
        self._marks |= noted
        missed = self._check_topics(noted)
        # Topics that were made since are no other ones: what was noted is still there.
        marks = {**self._marks, **{name: mark for name, mark in noted.items() if name not in missed}}
        words = {}
        records = self._records()
        for name in tables:
            mine = records.get(name.partition("/")[0], {})
            buckets = max((record.buckets for record in mine.values()), default=0)
            parts = [None if (record := mine.get(number)) is None else record.position for number in range(buckets)]
            word, mark = Position.least_of(parts, name), marks.get(name, "")
            if word is not None:
                words[name] = Held(word[0], mark, word[0].uuid, seed=word[1])
            elif mark:
                words[name] = Held(None, mark)
        return words

    def _records(self) -> Mapping[str, Mapping[int, Record]]:
        """By physical source and number of the bucket."""
        if not self.config.transactions:
            return {}
        known = positions_of(self._cluster, self.config.control_topic).read()
        return of_output(known, self.context.pipeline, self.context.output)

    def commit(self, batch: StagedBatch, tasks: Tasks) -> Written:
        """See `Output.commit`: the rows are there; some controls stop."""
        del tasks
        for item in batch.items:
            if isinstance(item, TableControl):
                self._look_at(f"{batch.physical}/{item.table.source}", item)
        names = dict.fromkeys(f"{batch.physical}/{item.table.source}" for item in batch.items)
        self._check_topics(names)
        for source in _dropped(batch):  # whoever has no use for its topic any more may remove that
            self._marks[f"{batch.physical}/{source}"] = ""
        self.release_letters(batch)
        marks = {name: Noted(batch.end.pair, mark) for name in names if (mark := self._marks.get(name))}
        return Written(marks=marks, offsets=self._ends_of(names))

    def _ends_of(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """Behind what the topics of tables have now; of none where that cannot be had: the journal alone has it."""
        topics = {name: self._topics.name(*name.split("/", 1)) for name in names}
        parts = topics_of(self._cluster).partitions_seen({*topics.values()})
        try:
            ends = self._cluster.ends_now(parts, is_committed=self.config.transactions) if parts else {}
        except DatabusError:
            return {}
        return {
            name: {f"{mine}/{number}": end for (mine, number), end in ends.items() if mine == topic}
            for name, topic in topics.items()
        }

    def find_between(
        self, before: Mapping[str, int], after: Mapping[str, int], about: Collection[Pair]
    ) -> Sequence[Pair] | None:
        """See `FindsOffsets.find_between`: by the headers of messages."""
        if not self.config.headers or self.config.format == MESSAGE:
            return None
        pairs = pairs_between(self._cluster, before, after, about, is_committed=self.config.transactions)
        return None if pairs is None else sorted(pairs)

    def _check_topics(self, names: Iterable[str]) -> set[str]:
        """Look whether the topics of tables are those that have the messages from before; note which they are.

        Returns the tables of which one is not, where the options say that its readers can do without; else raises
        `CorruptData`.
        """
        topics, missed = {name: self._topics_of(name) for name in names}, set[str]()
        if not topics:
            return missed
        before = {
            name: {topic: uuid for topic, uuid in _marked(self._marks.get(name, "")) if topic in mine}
            for name, mine in topics.items()
        }
        ids = topics_of(self._cluster).ids({*chain(*topics.values())}, {*chain(*before.values())})
        for name, mine in topics.items():
            for topic, uuid in before[name].items():
                if ids.get(topic) not in ("", uuid):
                    self._miss(name, topic)
                    missed.add(name)
            self._marks[name] = ",".join(f"{topic}/{ids[topic]}" for topic in mine if ids.get(topic))
        return missed

    def _topics_of(self, name: str) -> list[str]:
        """Those that messages of a table are in, its controls and the transactions of its source included."""
        physical, _, source = name.partition("/")
        others = [self.config.debezium.transaction_topic or ""]
        if self.config.where_controls_go not in (INLINE, NO_CONTROLS):
            others.append(self.config.where_controls_go)
        return [
            self._topics.name(physical, source),
            *(topic_name(other, physical, source) for other in others if other),
        ]

    def _miss(self, name: str, topic: str) -> None:
        message = (
            f"outputs.{self.context.output}: topic {topic} was removed, or made by others, after messages of "
            f"{name} had been written to it: those are gone"
        )
        if self.config.on_gap == "stop":
            physical, _, source = name.partition("/")
            raise CorruptData(
                f"{message}. Say `on_gap: continue` to go on with what is there, and have the table read again: "
                f"`databus snapshot {physical} {source}`"
            )
        logging.getLogger("databus.kafka").warning("%s. It goes on, as on_gap says", message)

    def _look_at(self, name: str, control: TableControl) -> None:
        config, where = self.config, f"outputs.{self.context.output}"
        if control.missing is not None and config.on_gap == "stop":
            raise UnsupportedFeature(
                f"{where}: changes of {name} are missing ({control.missing}). Ask for a snapshot of it, and say "
                f"`on_gap: continue`"
            )
        if control.kind is ControlKind.SCHEMA and config.on_schema_change == "stop":
            raise UnsupportedFeature(
                f"{where}: the schema of {name} changed at {control.pair} (SCN, _seq), and `on_schema_change` is stop. "
                f"Say follow, once its readers are ready for the new columns"
            )
        is_emptied = control.kind in (ControlKind.TRUNCATE, ControlKind.DROP)
        if is_emptied and config.where_controls_go == NO_CONTROLS and config.on_truncate == "stop":
            raise UnsupportedFeature(
                f"{where}: {name} had a {control.kind} at {control.pair} (SCN, _seq), and with `controls: none` its "
                f"readers would keep its rows. Give `controls` a topic, or say `on_truncate: skip`"
            )


def _marked(mark: str) -> Iterator[tuple[str, str]]:
    """Topics and their ids, as a mark has them."""
    for part in mark.split(",") if mark else ():
        topic, _, uuid = part.partition("/")
        yield topic, uuid


def _dropped(batch: StagedBatch) -> set[str]:
    """The tables that are no more at the end of a batch."""
    last: dict[str, Pair] = {}
    for item in batch.items:
        pair = item.pair if isinstance(item, TableControl) else item.last
        last[item.table.source] = max(pair, last.get(item.table.source, pair))
    controls = (item for item in batch.items if isinstance(item, TableControl))
    return {
        control.table.source
        for control in controls
        if control.kind is ControlKind.DROP and control.pair == last[control.table.source]
    }
