"""Options of the Kafka source."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from databus.core import time_us
from databus.formats import DecimalForm, UnsignedForm, text_of_setting
from databus.link import RegistryOptions, wrong_kafka_setting
from databus.schema import Column, TableSchema
from databus.sources._config import SourceConfig, SourceName

ORIGIN: Final = (
    ("origin_version", "int64", "_commit_version"),
    ("origin_seq", "int64", "_seq"),
    ("origin_txid", "string", "_txid"),
    ("origin_timestamp", "timestamptz", "_commit_timestamp"),
)
"""Columns that an envelope's own place gets, their types, and the bus's columns that its reader puts them in."""
SERVERS: Final = "bootstrap.servers"
DATABASE: Final = "kafka"
"""Tables of topics are called `kafka.<topic>`."""

_OURS: Final[Mapping[str, str]] = {
    "auto.offset.reset": "use `start` and `on_gap`",
    "enable.auto.commit": "the relay's log keeps the position",
    "enable.auto.offset.store": "the relay's log keeps the position",
    "enable.partition.eof": "the relay needs it",
    "group.id": "the relay's log keeps the position, and no consumer group is used; brokers see `consumer_name`",
    "isolation.level": "use `isolation_level`",
    "queued.max.messages.kbytes": "use `queue_bytes_max`",
}
_REFUSED: Final = re.compile(r".*_cb|plugin\.library\.paths|interceptors|builtin\.features|opaque|.*partitioner.*")
_INTERNAL: Final = "__"
_POSITIONS: Final = "databus-control"
"""Where outputs `kafka` keep their positions, if nothing else is said."""
_PATTERN: Final = re.compile(r"[*?\[]")


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _check_options(options: dict[str, SecretStr]) -> dict[str, SecretStr]:
    if not options.get(SERVERS, SecretStr("")).get_secret_value():
        raise ValueError(f"{SERVERS}: missing; it names the brokers to begin with, such as broker1:9092,broker2:9092")
    for name in options:
        if name in _OURS:
            raise ValueError(f"{name}: not to be set here: {_OURS[name]}")
        if _REFUSED.fullmatch(name):
            raise ValueError(f"{name}: cannot be set in a configuration")
    if wrong := wrong_kafka_setting({name: value.get_secret_value() for name, value in options.items()}):
        raise ValueError(f"Kafka's client says: {wrong}")
    return options


def _check_start(start: str | dict[str, dict[int, int]]) -> str | dict[str, dict[int, int]]:
    if isinstance(start, str):
        if start not in ("earliest", "latest"):
            try:
                time_us(start)
            except ValueError:
                raise ValueError(
                    f"{start!r} is none of earliest, latest, a time (2026-11-21T12:00:00Z), or offsets by topic and "
                    "partition ({orders: {0: 12, 1: 34}})"
                ) from None
    elif any(offset < 0 or partition < 0 for offsets in start.values() for partition, offset in offsets.items()):
        raise ValueError("partitions and offsets are not negative")
    return start


def is_pattern(topic: str) -> bool:
    """Whether it may stand for several topics."""
    return _PATTERN.search(topic) is not None


class MessageColumn(BaseModel):
    """One column of a table that messages are changes of."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="Its type.", examples=["int64", "decimal(10,2)"])
    db_type: str = Field(
        "", description="The database's own words for it, where the format depends on them.", examples=["datetime(3)"]
    )
    nullable: bool = Field(True, description="Whether it may be null.")


class MessageTable(BaseModel):
    """One table that messages are changes of."""

    model_config = ConfigDict(extra="forbid")

    columns: dict[
        str,
        Annotated[
            MessageColumn,
            BeforeValidator(
                lambda value: {"type": value} if isinstance(value, str) else value,
                json_schema_input_type=str | MessageColumn,
            ),
        ],
    ] = Field(
        min_length=1,
        description="Name and type of each column, or its type, `db_type` and `nullable`.",
        examples=[{"id": "int64", "at": {"type": "timestamp", "db_type": "datetime(3)"}}],
    )
    key: list[str] = Field(default_factory=list, description="The columns that identify a row.", examples=[["id"]])
    topic: str | None = Field(
        None, description="The topic that has its messages; without it, every topic of `topics` may have some."
    )
    schema_id: int | None = Field(
        None,
        ge=0,
        description="Avro without `registry`: the id of the writer's schema; messages with another are refused.",
    )


class KafkaConfig(SourceConfig):
    """Topics of a Kafka cluster, read into the relay's log."""

    type: Literal["kafka"] = "kafka"
    kafka: Annotated[
        dict[
            str, Annotated[SecretStr, BeforeValidator(text_of_setting, json_schema_input_type=str | int | float | bool)]
        ],
        AfterValidator(_check_options),
    ] = Field(
        description="Options of the Kafka client (librdkafka) by their own names, those of security included; "
        "`bootstrap.servers` is needed. Give secrets by `${NAME}` or `${file:PATH}`.",
        examples=[{SERVERS: "broker1:9092,broker2:9092", "security.protocol": "SASL_SSL"}],
    )
    topics: Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=str | list[str])] = Field(
        min_length=1,
        description="Topics to read; `*` stands for any run of characters. Topics that begin with `__` are Kafka's "
        f"own, and `{_POSITIONS}` is databus's: they are read only where they are named without `*`.",
        examples=[["orders", "shop.*"]],
    )
    format: Literal[
        "raw",
        "json",
        "own",
        "own-avro",
        "debezium",
        "debezium-avro",
        "maxwell",
        "canal",
        "cloudevents",
        "cloudevents-debezium",
    ] = Field(
        "raw",
        description="What messages are. `raw`: bytes; `json`: text that is checked to be JSON. Either makes a table "
        "`kafka.<topic>` with the columns key, value, timestamp, partition, offset and headers. The others are changes "
        "of rows, of the tables in `schemas`; see docs/formats.md.",
    )
    schemas: dict[SourceName, MessageTable] = Field(
        default_factory=dict,
        description="The tables that messages are changes of, by `db.table` as messages name them.",
    )
    registry: RegistryOptions | None = Field(
        None,
        description="Avro: the registry of the writers' schemas. Each message is then read by the schema in which it "
        "was written in: columns that this one lacks are null, columns that `schemas` lacks are passed over.",
    )
    with_schema: bool = Field(
        False,
        description="Debezium's JSON: each message has its schema beside it (`schemas.enable=true`), and is read as "
        "that says: decimals by their scale, times by their unit.",
    )
    decimals: DecimalForm = Field(
        DecimalForm.PRECISE, description="Debezium's `decimal.handling.mode`; its `double` loses digits."
    )
    unsigned: UnsignedForm = Field(UnsignedForm.LONG, description="Debezium's `bigint.unsigned.handling.mode`.")
    first_images: bool | None = Field(
        None,
        description="Whether each update has its first image and each delete the whole row, as MySQL's "
        "`binlog_row_image=FULL` and PostgreSQL's `REPLICA IDENTITY FULL` have it. True: an update of Debezium's "
        "without one is treated as `on_poison` says. False: filters let a delete of its key pass for a row that they "
        "leave out, since it may be in a copy. Default: false for Debezium's envelopes, true for the others.",
    )
    origin_columns: bool = Field(
        True,
        description="Whether rows of changes have the columns origin_version, origin_seq, origin_txid and "
        "origin_timestamp: their place in the database, as far as the message says it.",
    )
    skip_others: bool = Field(
        False,
        description="Whether messages are passed over that are no change of a row of `schemas`: of other tables, "
        "changed schemas, truncations, heartbeats. Else they are treated as `on_poison` says.",
    )
    start: Annotated[str | dict[str, dict[int, int]], AfterValidator(_check_start)] = Field(
        "earliest",
        description="Where a new log begins: `earliest`, `latest`, a time in ISO form, or offsets by topic and "
        "partition (the others begin at their earliest). Topics and partitions that appear later are read from their "
        "first message.",
        examples=["latest", "2026-11-21T12:00:00Z", {"orders": {0: 12, 1: 34}}],
    )
    isolation_level: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed",
        description="Whether messages of open and of aborted transactions are skipped (`read_committed`) or read.",
    )
    on_gap: Literal["stop", "continue"] = Field(
        "stop",
        description="When messages that were not read have left a topic, or it was deleted: stop, or record a gap in "
        "the log and go on with what is there.",
    )
    on_poison: Literal["stop", "skip"] = Field(
        "stop",
        description="When a message is not what `format` says: stop and name its place, or record a gap in the log and "
        "go on behind it.",
    )
    poison_max: int = Field(
        1_000,
        ge=1,
        le=1_000_000,
        description="Most messages of a topic that one poll may pass over; more stop the source: then `format` or "
        "`schemas` is wrong.",
    )
    consumer_name: str = Field(
        "databus",
        min_length=1,
        description="The group's id that the client shows to brokers; nothing is kept under it.",
    )
    discover_ms: int = Field(
        10_000,
        ge=100,
        le=3_600_000,
        description="How often new topics, new partitions and deleted topics are looked for.",
    )
    gone_ms: int = Field(
        30_000,
        ge=0,
        le=3_600_000,
        description="How long brokers must not know a topic until it counts as deleted: one that has just started, or "
        "lags, may not know it for a moment. A topic that was created again is recognised by its id at once.",
    )
    request_ms: int = Field(15_000, ge=100, le=300_000, description="How long a broker is waited for.")
    group_bytes_max: int = Field(
        4 << 20, ge=1024, le=64 << 20, description="Where a group of frames ends, in bytes of messages."
    )
    queue_bytes_max: int = Field(
        32 << 20, ge=1 << 20, le=1 << 30, description="Bytes of messages that the client fetches ahead."
    )
    partitions_max: int = Field(10_000, ge=1, le=100_000, description="Most partitions that one source reads.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.start, dict):
            unknown = [topic for topic in self.start if not self.reads(topic)]
            if unknown:
                raise ValueError(f"start: {unknown[0]!r} is not among `topics`")
        if self.is_raw == bool(self.schemas):
            raise ValueError(
                f"schemas: format {self.format} "
                + ("has none" if self.is_raw else "needs the tables, their columns and keys")
            )
        for name, table in self.schemas.items():
            columns = tuple(Column(column, kind.type) for column, kind in table.columns.items())
            TableSchema(name, columns, tuple(table.key))
            if table.topic is not None and not self.reads(table.topic):
                raise ValueError(f"schemas.{name}.topic: {table.topic!r} is not among `topics`")
            if self.is_avro and table.topic is None:
                raise ValueError(f"schemas.{name}: Avro needs `topic`, since messages name no table")
            if self.is_avro and (table.schema_id is None) == (self.registry is None):
                raise ValueError(f"schemas.{name}: Avro needs either `registry`, or `schema_id` of each table")
        topics = [table.topic for table in self.schemas.values()]
        if self.is_avro and len(set(topics)) < len(topics):
            raise ValueError("schemas: Avro has one table in a topic, since messages name none")
        if self.registry is not None and not self.is_avro:
            raise ValueError(f"registry: it goes with formats in Avro; format {self.format} is none")
        return self

    @model_validator(mode="after")
    def _check_images(self) -> Self:
        if self.first_images is not None and self.is_raw:
            raise ValueError(f"first_images: format {self.format} has messages, and no updates of rows")
        return self

    @property
    def is_raw(self) -> bool:
        """Whether messages are rows of a table of their topic's."""
        return self.format in ("raw", "json")

    @property
    def has_messages(self) -> bool:
        """See `SourceConfig.has_messages`."""
        return self.is_raw

    @property
    def is_avro(self) -> bool:
        """Whether messages are Avro, with the id of their schema before them."""
        return self.format.endswith("-avro")

    @property
    def is_debezium(self) -> bool:
        """Whether an update is one message in Debezium's words, with or without `before`."""
        return "debezium" in self.format

    @property
    def has_first_images(self) -> bool:
        """See `first_images`. Debezium says nothing where the database logs less."""
        return not self.is_debezium if self.first_images is None else self.first_images

    def tables_here(self, folder: Path) -> Mapping[str, Sequence[str]] | None:
        """See `SourceConfig.tables_here`: those of envelopes stand here."""
        del folder
        return None if self.is_raw else {name: self.declared(name)[0].names for name in self.schemas}

    def definitions_here(self, folder: Path) -> Mapping[str, TableSchema] | None:
        """See `SourceConfig.definitions_here`."""
        del folder
        return None if self.is_raw else {name: self.declared(name)[0] for name in self.schemas if self.selects(name)}

    def holds(self, topic: str, table: str) -> bool:
        """Whether the topic may have messages of a table of `schemas`."""
        return self.schemas[table].topic in (None, topic)

    @property
    def servers(self) -> str:
        """The brokers to begin with."""
        return self.kafka[SERVERS].get_secret_value()

    def unmatched(self, captured: Sequence[str]) -> Mapping[str, str]:
        """See `SourceConfig.unmatched`: a table of raw messages is a topic, so `topics` is judged first.

        >>> KafkaConfig(kafka={"bootstrap.servers": "b:9092"}, topics=["orders"]).unmatched([])
        {'orders': 'topics'}
        """
        if not self.is_raw:
            return super().unmatched(captured)
        topics = [table.removeprefix(f"{DATABASE}.") for table in captured]
        alone = {entry: self.model_copy(update={"topics": [entry]}) for entry in self.topics}
        absent = {entry: "topics" for entry, narrowed in alone.items() if not any(map(narrowed.reads, topics))}
        return {**absent, **super().unmatched(captured)} if captured else absent

    def reads(self, topic: str) -> bool:
        """Whether the topic is among `topics`.

        >>> KafkaConfig(kafka={"bootstrap.servers": "b:9092"}, topics=["shop.*"]).reads("shop.orders")
        True
        """
        if topic.startswith(_INTERNAL) or topic == _POSITIONS:
            return topic in self.topics
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)

    def client_options(self) -> dict[str, Any]:
        """What librdkafka is given, secrets in the clear: to be shown nowhere."""
        return {name: value.get_secret_value() for name, value in self.kafka.items()}

    def declared(self, name: str) -> tuple[TableSchema, TableSchema]:
        """A table of `schemas`: as it is captured, and as its messages are read."""
        declaration = self.schemas[name]
        columns = tuple(
            Column(column, kind.type, kind.nullable and column not in declaration.key, kind.db_type)
            for column, kind in declaration.columns.items()
        )
        key, first_images = tuple(declaration.key), self.has_first_images
        excluded = self.excluded_columns(name, declaration.key)
        kept = tuple(column for column in columns if column.name not in excluded)
        origin = tuple(Column(column, kind) for column, kind, _ in ORIGIN) if self.origin_columns else ()
        return TableSchema(name, (*kept, *origin), key, first_images), TableSchema(name, columns, key, first_images)
