"""Options of the output `kafka`."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator, model_validator

from databus.core import InputError
from databus.flow import BUCKETS_MAX, KeyChoice
from databus.formats import text_of_setting
from databus.link import RegistryOptions, wrong_kafka_setting
from databus.plugins import KeyColumns
from databus.sinks._letters import LettersConfig
from databus.sinks.kafka._avro import AVRO_FORMATS
from databus.sinks.kafka._cluster import OWN_SETTINGS
from databus.sinks.kafka._encoding import BOTH, ENVELOPE, OWN_FORMAT
from databus.sinks.kafka._mirror import MESSAGE, PARTITION
from databus.sinks.kafka._topics import topic_name
from databus.sinks.kafka._writer import INLINE, NO_CONTROLS
from databus.sources import SourceName

_WITH_TRANSACTIONS: Final = ("debezium", "debezium_avro")
_TYPE, _KEPT = "message.timestamp.type", "CreateTime"
_OF_ROWS: Final = ("controls", "debezium", "deletes", "headers", "key", "on_schema_change", "on_truncate")


Setting = Annotated[SecretStr, BeforeValidator(text_of_setting, json_schema_input_type=str | int | float | bool)]
"""A setting of Kafka's client, as it takes it: text. It may be a secret, so that none is shown."""
PlainSetting = Annotated[str, BeforeValidator(text_of_setting, json_schema_input_type=str | int | float | bool)]


class CreateTopics(BaseModel):
    """How topics are made that are not there."""

    model_config = ConfigDict(extra="forbid")

    partitions: int | None = Field(None, ge=1, le=100_000, description="Number of partitions; else the broker's own.")
    replication_factor: int | None = Field(None, ge=1, le=100, description="Copies of each; else the broker's own.")
    config: dict[str, PlainSetting] = Field(
        default_factory=dict, description="The topic's settings.", examples=[{"retention.ms": 604_800_000}]
    )


class DebeziumOptions(BaseModel):
    """The choices of Debezium's envelope."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    with_schema: bool = Field(False, description="Whether each message says its schema, as with `schemas.enable`.")
    decimals: Literal["precise", "string"] = Field("precise", description="Debezium's `decimal.handling.mode`.")
    unsigned: Literal["long", "precise"] = Field("long", description="Debezium's `bigint.unsigned.handling.mode`.")
    transaction_topic: str | None = Field(
        None,
        description="Topic of transactions, as Debezium's `topic.transaction`; `{physical}` stands for the source's "
        "name. With it each change says its place in its transaction, as with `provide.transaction.metadata`; without, "
        "neither is written. With formats `debezium` and `debezium_avro`, and `transactions: true`.",
        examples=["{physical}.transaction"],
    )


class SubjectOptions(RegistryOptions):
    """The registry of Avro's schemas, and what they are called there."""

    subject_naming: Literal["topic", "record", "topic_record"] = Field(
        "topic",
        description="What a schema's subject is called: `TOPIC-value` and `TOPIC-key`; the record's full name; or "
        "`TOPIC-` and that name. With several tables in a topic it cannot be `topic`.",
    )
    register_schemas: bool = Field(
        True,
        alias="register",
        description="Whether schemas are registered that are not there; else such a one stops the output.",
    )


class KafkaOutputConfig(LettersConfig):
    """Options of the output `kafka`."""

    catch_up_default: ClassVar[Literal["together", "apart"]] = "together"
    type: Literal["kafka"] = "kafka"
    kafka: dict[str, Setting] = Field(
        description="Settings of Kafka's client (librdkafka), by their own names. Name secrets by reference.",
        examples=[
            {
                "bootstrap.servers": "kafka-1:9092,kafka-2:9092",
                "compression.type": "lz4",
                "security.protocol": "SASL_SSL",
                "sasl.password": "${file:/run/secrets/kafka}",
            }
        ],
    )
    topic: str = Field(
        "{physical}.{db}.{table}",
        description="Name of a table's topic. `{physical}`, `{db}` and `{table}` stand for the source's names; without "
        "them all tables go to one topic. A dot of the database's own is doubled.",
        examples=["shop.{table}", "changes"],
    )
    topics: dict[SourceName, str] = Field(
        default_factory=dict,
        description="Other names for the topics of some tables, by `db.table`; as `topic`.",
        examples=[{"main.orders": "orders"}],
    )
    create_topics: CreateTopics | None = Field(
        None, description="Make topics that are not there, so; without it, a topic that is missing stops the output."
    )
    format: Literal[
        "json",
        "avro",
        "debezium",
        "debezium_avro",
        "maxwell",
        "canal",
        "cloudevents",
        "cloudevents_debezium",
        "message",
    ] = Field(
        "json",
        description="Whose words the messages are in: our own rows or Debezium's envelope, as JSON or as Avro, "
        "Maxwell's JSON, Canal's flat messages, or CloudEvents around our own JSON or around Debezium's images. "
        "`message`: the messages of a source `kafka` as they were, each in its partition.",
    )
    registry: SubjectOptions | None = Field(None, description="The schema registry; of the formats in Avro.")
    debezium: DebeziumOptions = Field(
        default_factory=DebeziumOptions,
        description="The choices of Debezium's envelope and images: `with_schema`, `decimals`, `unsigned`; and "
        "`transaction_topic`, by which each change says its place in its transaction, and that topic gets begins and "
        "ends.",
        examples=[{"transaction_topic": "{physical}.transaction"}],
    )
    deletes: Literal["envelope", "tombstone", "both"] | None = Field(
        None,
        description="What says that a row is gone: a message with its last values, a tombstone (a key without a value, "
        "by which a compacted topic forgets it), or first the one, then the other. By default `both` for "
        "Debezium's formats, `envelope` for the others.",
    )
    timestamps: Literal["source", "target"] = Field(
        "source",
        description="With `format: message`: `source` keeps the timestamps of messages, and a topic whose "
        "`message.timestamp.type` is not `CreateTime` stops the output; `target` lets such a topic give them new ones.",
    )
    key: KeyColumns = None
    headers: bool = Field(
        True, description="Whether each message has the headers `_commit_version`, `_seq` and `_txid`, as text."
    )
    controls: str | None = Field(
        None,
        description="Where controls go (a changed schema, truncate, drop, begin and end of a snapshot, a gap), as "
        "lines of our own JSON: `inline`, to each partition of the table's topic, without a key; `none`; or the "
        "name of a topic for them, as `topic`. By default `inline` for `json`, `none` for other formats.",
        examples=["inline", "none", "shop.controls"],
    )
    on_truncate: Literal["stop", "skip"] = Field(
        "stop",
        description="With `controls: none`: what to do where a table is truncated or dropped, of which readers would "
        "hear nothing.",
    )
    on_schema_change: Literal["follow", "stop"] = Field(
        "follow", description="What a changed table does: its rows go on in their new form, or the output stops."
    )
    on_gap: Literal["stop", "continue"] = Field(
        "stop",
        description="What to do where changes are missing and no snapshot is said to follow, or a topic that had "
        "messages was removed: stop, or go on, because you have asked for one or accept what readers see.",
    )
    on_error: Literal["halt", "retry", "dead_letter"] = Field(
        "halt",
        description="What to do about a row that Kafka refuses (too large, without a key for a compacted topic, with a "
        "timestamp that the topic does not take): stop the output; try the batch again until it is taken; or keep the "
        "row, and what follows of its key, as dead letters (`databus dead-letters`), and go on. Dead letters are also "
        "made of rows that `format` cannot express.",
    )
    transactions: bool = Field(
        True,
        description="Whether rows and the position in the log are written in one transaction: each row is then there "
        "once for readers with `isolation.level=read_committed`. Without, a row may come twice.",
    )
    control_topic: str = Field(
        "databus-control", description="Compacted topic for positions; any number of outputs may share it."
    )
    buckets: int = Field(
        2, ge=1, le=BUCKETS_MAX, description="How many tasks write at a time, each the rows of some of the keys."
    )
    transaction_ms_max: int = Field(
        60_000,
        ge=1_000,
        le=900_000,
        description="Longest that one transaction, or one message without, may take, in milliseconds; at most the "
        "brokers' `transaction.max.timeout.ms`. A reader may wait so long for one that was broken off.",
    )
    request_ms_max: int = Field(30_000, ge=100, le=600_000, description="Longest wait for an answer, in milliseconds.")
    buffer_bytes_max: int = Field(
        64 << 20, ge=1 << 20, le=2 << 30, description="Most bytes of messages that a task has not sent yet."
    )

    @field_validator("kafka")
    @classmethod
    def _are_the_users(cls, settings: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in settings:
            if name in OWN_SETTINGS:
                raise ValueError(f"`{name}` is not to be set: {OWN_SETTINGS[name]}")
        if not settings.get("bootstrap.servers", SecretStr("")).get_secret_value():
            raise ValueError("`bootstrap.servers` is missing: host:port of some brokers")
        if wrong := wrong_kafka_setting({name: value.get_secret_value() for name, value in settings.items()}):
            raise ValueError(f"Kafka's client says: {wrong}")
        return settings

    @model_validator(mode="after")
    def _have_names(self) -> "KafkaOutputConfig":
        where = self.where_controls_go
        if where == INLINE and self.format != OWN_FORMAT:
            raise ValueError(f"`controls: inline` goes with `format: {OWN_FORMAT}`; give them a topic of their own")
        if where == INLINE and self._makes_compacted:
            raise ValueError(
                "`create_topics` makes compacted topics, which take no message without a key, as `controls: inline` "
                "brings them: give controls a topic of their own, or say `controls: none`"
            )
        others = [] if where in (INLINE, NO_CONTROLS) else [where]
        others += [] if self.debezium.transaction_topic is None else [self.debezium.transaction_topic]
        if where == self.control_topic:
            raise ValueError(
                "`controls` is to be another topic than `control_topic`, where positions of outputs are: all outputs "
                "that have theirs there would stop"
            )
        for template in (self.topic, *self.topics.values(), *others, self.control_topic):
            try:
                topic_name(template, "physical", "db.table")
            except InputError as error:
                raise ValueError(f"{template!r}: {str(error).partition(': ')[2]}") from error
        return self

    @model_validator(mode="after")
    def _leave_messages_as_they_are(self) -> "KafkaOutputConfig":
        for name in _OF_ROWS if self.format == MESSAGE else ():
            if name in self.model_fields_set:
                raise ValueError(
                    f"`{name}` is about rows, and `format: {MESSAGE}` writes messages as they were; leave it out"
                )
        if self.format != MESSAGE and "timestamps" in self.model_fields_set:
            raise ValueError(f"`timestamps` is about messages as they were: it goes with `format: {MESSAGE}`")
        made = {} if self.create_topics is None else self.create_topics.config
        if self.format == MESSAGE and self.timestamps == "source" and made.get(_TYPE, _KEPT) != _KEPT:
            raise ValueError(
                f"`create_topics` makes topics with {_TYPE}={made[_TYPE]}, in which messages get new timestamps: leave "
                f"it out, or say `timestamps: target`"
            )
        return self

    @model_validator(mode="after")
    def _have_a_registry(self) -> "KafkaOutputConfig":
        is_avro = self.format in AVRO_FORMATS
        if is_avro and self.registry is None:
            raise ValueError(
                f"`format: {self.format}` needs `registry`, where its schemas are; a relay is one: "
                f"{{url: URL-of-the-relay/registry}}"
            )
        if self.registry is not None and not is_avro:
            raise ValueError(f"`registry` goes with the formats in Avro ({', '.join(AVRO_FORMATS)})")
        if self.format == "debezium_avro" and self.debezium.with_schema:
            raise ValueError("`debezium.with_schema` is of Debezium's JSON: in Avro the registry has the schemas")
        return self

    @model_validator(mode="after")
    def _can_count_transactions(self) -> "KafkaOutputConfig":
        topic = self.debezium.transaction_topic
        if topic is None:
            return self
        if self.format not in _WITH_TRANSACTIONS:
            raise ValueError(f"`debezium.transaction_topic` goes with the formats {' and '.join(_WITH_TRANSACTIONS)}")
        if not self.transactions:
            raise ValueError(
                "`debezium.transaction_topic` needs `transactions: true`: what was counted of a transaction is kept "
                "with the position, in one transaction with the rows; without, counts would be wrong after a crash"
            )
        if self.on_error == "dead_letter":
            raise ValueError(
                "`debezium.transaction_topic` does not go with `on_error: dead_letter`: a transaction's counts would "
                "have changes that are letters, and are in no topic"
            )
        if "{db}" in topic or "{table}" in topic:
            raise ValueError("`debezium.transaction_topic` is for all tables of a source: it takes `{physical}` alone")
        if topic == self.control_topic:
            raise ValueError("`debezium.transaction_topic` is to be another topic than `control_topic`")
        return self

    @property
    def key_choice(self) -> KeyChoice:
        """See `OutputConfig.key_choice`. The messages of a partition are in order where one bucket has them."""
        return KeyChoice((PARTITION,) if self.format == MESSAGE else self.key or ())

    def form_of(self, source: str) -> Mapping[str, Any]:
        """See `OutputConfig.form_of`."""
        key = self.key.get(source) if isinstance(self.key, dict) else self.key
        return {"topic": self.topics.get(source, self.topic), "key": key, "format": self.format}

    @property
    def counts_transactions(self) -> bool:
        """See `OutputConfig.counts_transactions`."""
        return self.debezium.transaction_topic is not None

    @property
    def _makes_compacted(self) -> bool:
        made = {} if self.create_topics is None else self.create_topics.config
        return "compact" in str(made.get("cleanup.policy", ""))

    @property
    def compacts_in(self) -> Sequence[str]:
        """See `OutputConfig.compacts_in`. Tombstones are for topics that are compacted, whoever has made them."""
        is_for_compaction = self._makes_compacted or self.deletes in ("tombstone", "both")
        return (self.topic, *self.topics.values()) if is_for_compaction else ()

    @property
    def transactions_go_to(self) -> str:
        """See `OutputConfig.transactions_go_to`."""
        servers = self.kafka["bootstrap.servers"].get_secret_value()
        return f"{servers} {self.debezium.transaction_topic}" if self.counts_transactions else ""

    @property
    def takes_messages_alone(self) -> bool:
        """See `OutputConfig.takes_messages_alone`."""
        return self.format == MESSAGE

    @property
    def where_controls_go(self) -> str:
        """`inline`, `none`, or a topic."""
        return self.controls or (INLINE if self.format == OWN_FORMAT else NO_CONTROLS)

    @property
    def how_rows_go(self) -> str:
        """`deletes`, with its default."""
        return self.deletes or (BOTH if "debezium" in self.format else ENVELOPE)
