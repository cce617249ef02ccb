"""Which tables a topic's messages are rows of, and those rows: the choice of `format`."""

import base64
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, UnrepresentableValue, source_name
from databus.formats import (
    DebeziumForm,
    ReadRows,
    TableWords,
    canal_rows,
    cloudevents_debezium_rows,
    cloudevents_rows,
    confluent_unframed,
    debezium_avro_rows,
    debezium_rows,
    maxwell_rows,
    own_avro_rows,
    own_rows,
    tables_named,
)
from databus.link import RegistryAccess
from databus.schema import Column, TableSchema, user_schema
from databus.sources.kafka._config import DATABASE, ORIGIN, KafkaConfig
from databus.sources.kafka._consumer import TopicMessages
from databus.sources.kafka._removals import (
    canonical_columns,
    debezium_avro_keys,
    debezium_keys,
    key_table,
    maxwell_keys,
)

KEY: Final = ("partition", "offset")
_US_A_MS: Final = 1_000
_MS_MAX: Final = ((1 << 63) - 1) // _US_A_MS
_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_SCHEMAS_KEPT_MAX: Final = 1_024


class ReadAvro(Protocol):
    """Reads messages of one writer's schema: `own_avro_rows`, or `debezium_avro_rows` with its form."""

    def __call__(
        self, table: TableSchema, values: pa.Array, *, schema: Mapping[str, Any] | None = None
    ) -> ReadRows: ...


class WriterSchemas:
    """The schemas of ids, which never change; a registry is asked for each once, as long as there is room.

    What it does not know it may learn, so that is asked again after `forget_refused`; not for each message, though.
    """

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access
        self._kept: OrderedDict[int, Mapping[str, Any]] = OrderedDict()
        self._refused: dict[int, str] = {}

    def forget_refused(self) -> None:
        """Ask again for the ids of which there was no schema to read by."""
        self._refused.clear()

    def rows(self, read: ReadAvro, table: TableSchema, values: pa.Array) -> ReadRows:
        """The rows of framed messages, in their order, whichever schemas they were written in.

        Raises `UnrepresentableValue` for a message that cannot be read, or has an id that the registry does not know;
        `ServiceUnavailable` while the registry is away.
        """
        ids, bodies = confluent_unframed(values)
        parts = []
        for number in np.unique(ids[ids >= 0]).tolist():
            chosen = np.flatnonzero(ids == number)
            part = read(table, bodies.take(pa.array(chosen)), schema=self._of(number))
            parts.append(part._replace(messages=_at(chosen, part.messages), others=_at(chosen, part.others)))
        if not parts:
            return read(table, bodies)  # tombstones
        return parts[0] if len(parts) == 1 else _in_order(parts)

    def _of(self, number: int) -> Mapping[str, Any]:
        if number in self._refused:
            raise UnrepresentableValue(self._refused[number])
        if number not in self._kept:
            try:
                self._kept[number] = self._access.schema(number)
            except UnrepresentableValue as error:
                self._refused[number] = str(error)
                raise
            if len(self._kept) > _SCHEMAS_KEPT_MAX:
                self._kept.popitem(last=False)
        self._kept.move_to_end(number)
        return self._kept[number]


def _at(places: npt.NDArray[np.int64], numbers: pa.Int64Array) -> pa.Int64Array:
    return pa.array(places[numbers.to_numpy()])


def _in_order(parts: list[ReadRows]) -> ReadRows:
    """What was read in several schemas, in the order of the messages."""
    messages = np.concatenate([part.messages.to_numpy() for part in parts])
    order = np.argsort(messages, kind="stable")
    (rows,) = pa.Table.from_batches([part.rows for part in parts]).take(pa.array(order)).combine_chunks().to_batches()
    others = np.sort(np.concatenate([part.others.to_numpy() for part in parts]))
    return ReadRows(rows, pa.array(messages[order]), pa.array(others))


class Block(NamedTuple):
    """Rows of one table in their order."""

    table: TableSchema
    columns: Sequence[pa.Array]
    kinds: npt.NDArray[np.int8]
    """Numbers of change types."""
    timestamps: npt.NDArray[np.int64]
    """Times of their messages, milliseconds since 1970."""
    numbers: npt.NDArray[np.int64]
    """Numbers of their messages among all that came with them."""


class TopicTables:
    """The tables of topics. Raw ones are made of the topic's name; those of envelopes stand in the configuration."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._writers = None if config.registry is None else WriterSchemas(config.registry.access)
        self._form = DebeziumForm(config.decimals, config.unsigned, with_schema=config.with_schema)
        self._declared = {name: config.declared(name) for name in config.schemas}

    def of(self, topic: str) -> list[TableSchema]:
        """The captured tables that the topic's messages may be of; none of a topic that is not to be read."""
        if self._config.is_raw:
            tables = [topic_table(topic, self._config)]
        else:
            tables = [table for name, (table, _) in self._declared.items() if self._config.holds(topic, name)]
        return [table for table in tables if self._config.selects(table.source)]

    def begin_poll(self) -> None:
        """What a registry did not know at the last poll it may know now."""
        if self._writers is not None:
            self._writers.forget_refused()

    def read(self, messages: TopicMessages) -> list[Block]:
        """The rows of messages, all of one topic.

        Raises `UnrepresentableValue` where a message is not what the format says, without always saying which.
        """
        if self._config.is_raw:
            (table,) = self.of(messages.topic)
            kinds = np.full(len(messages), ChangeType.INSERT, np.int8)
            columns = topic_columns(table, messages, self._config)
            return [Block(table, columns, kinds, messages.timestamps, messages.numbers)]
        named = [name for name in self._declared if self._config.holds(messages.topic, name)]
        if self._config.is_avro or (len(named) == 1 and not self._config.skip_others):
            return self._blocks(named[0], messages)
        names = tables_named(self._words, messages.values, with_schema=self._config.with_schema)
        is_other = pc.and_(messages.values.is_valid(), pc.invert(pc.is_in(names, pa.array(named, pa.string()))))
        if not self._config.skip_others and pc.any(is_other).as_py():
            at = pc.index(is_other, True).as_py()
            raise UnrepresentableValue(
                f"it is of {names[at]}, which `schemas` does not have for this topic"
                if names[at].is_valid
                else _NO_CHANGE
            )
        blocks = []
        for name in named:
            chosen = np.flatnonzero(pc.equal(names, name).fill_null(False).to_numpy(zero_copy_only=False))
            if len(chosen):
                blocks += self._blocks(name, messages.chosen(chosen))
        return blocks

    def removed(self, messages: TopicMessages) -> list[Block]:
        """The rows that are gone by tombstones alone, all of one topic, of which nothing but the key is known.

        Raises `UnrepresentableValue` where a key does not say its row, or deletes are to have whole rows. Where other
        tables' messages are passed over, so are tombstones: they do not name their table.
        """
        named = [name for name in self._declared if self._config.holds(messages.topic, name)]
        if self._config.skip_others or not any(self._config.selects(name) for name in named):
            return []
        if len(named) > 1:
            raise UnrepresentableValue(
                f"{_ALONE}, and its topic has several tables: `skip_others: true` passes over such"
            )
        table, read_as = self._declared[named[0]]
        if not table.key or table.first_images:
            raise UnrepresentableValue(
                f"{_ALONE}: it has the key alone, and by `first_images` deletes have the whole row. Say "
                "`first_images: false` and the table's `key`, and it is a delete of the key"
            )
        by_name = dict(zip(read_as.key, self._keys(named[0], read_as, messages.keys), strict=True))
        count = len(messages)
        columns = [by_name.get(field.name, pa.nulls(count, field.type)) for field in user_schema(table)]
        fields = zip(user_schema(table), columns, strict=True)
        lacking = [field.name for field, values in fields if not field.nullable and values.null_count]
        if lacking:
            raise UnrepresentableValue(f"{_ALONE}, and {lacking[0]} cannot be null: leave out its `nullable: false`")
        kinds = np.full(count, ChangeType.DELETE, np.int8)
        return [Block(table, columns, kinds, messages.timestamps, messages.numbers)]

    def _keys(self, name: str, table: TableSchema, keys: pa.Array) -> Sequence[pa.Array]:
        """The columns of the key, of messages' keys."""
        only = key_table(table)
        if self._config.format == "maxwell":
            read_rows = maxwell_keys(only, keys, self._reader(name))
        elif not self._config.is_debezium:
            return canonical_columns(only.columns, keys)
        elif not self._config.is_avro:
            read_rows = debezium_keys(only, keys, self._form)
        else:
            read = partial(debezium_avro_keys, form=self._form)
            read_rows = read(only, keys) if self._writers is None else self._writers.rows(read, only, keys)
        if read_rows.rows.num_rows != len(keys):
            raise UnrepresentableValue(f"{_ALONE}, and its key is none of {table.source}")
        columns: list[pa.Array] = read_rows.rows.columns[: len(table.key)]
        return columns

    @property
    def _words(self) -> TableWords:
        return cast(TableWords, self._config.format)

    def _blocks(self, name: str, messages: TopicMessages) -> list[Block]:
        table, read_as = self._declared[name]
        if not self._config.selects(name):
            return []
        read = self._reader(name)(read_as, messages.values)
        if len(read.others) and not self._config.skip_others:
            raise UnrepresentableValue(_NO_CHANGE)
        if not read.rows.num_rows:
            return []
        of = read.messages.to_numpy()
        numbers = messages.numbers[of]
        kinds, is_lacking = _whole(read.rows, numbers)
        if table.first_images and self._config.is_debezium and is_lacking:
            raise UnrepresentableValue(_NO_FIRST_IMAGE)
        columns = [read.rows.column(column.name) for column in read_as.columns if column.name in table.names]
        if self._config.origin_columns:
            columns += [_plain(read.rows.column(column)) for _, _, column in ORIGIN]
        return [Block(table, columns, kinds, messages.timestamps[of], numbers)]

    def _reader(self, name: str) -> Callable[[TableSchema, pa.Array], ReadRows]:
        form = self._form
        if self._config.is_avro:
            schema_id = self._config.schemas[name].schema_id
            read = own_avro_rows if self._config.format == "own-avro" else partial(debezium_avro_rows, form=form)
            if self._writers is not None:
                return partial(self._writers.rows, read)
            return lambda table, values: read(table, _unframed(values, schema_id))
        readers: Mapping[str, Callable[[TableSchema, pa.Array], ReadRows]] = {
            "own": own_rows,
            "debezium": partial(debezium_rows, form=form),
            "maxwell": maxwell_rows,
            "canal": canal_rows,
            "cloudevents": cloudevents_rows,
            "cloudevents-debezium": partial(cloudevents_debezium_rows, form=form),
        }
        return readers[self._config.format]


_ALONE: Final = "it is a tombstone without its delete"
_NO_CHANGE: Final = (
    "it is no change of a row (a changed schema, a truncation, a heartbeat); `skip_others: true` passes over such"
)

_NO_FIRST_IMAGE: Final = (
    "it is an update without its first image, and `first_images: true` says that each has one; have the database log "
    "them (MySQL: binlog_row_image=FULL, PostgreSQL: REPLICA IDENTITY FULL), or say `first_images: false`"
)


def _whole(rows: pa.RecordBatch, numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int8], bool]:
    """The kinds of rows, of which no update is cut between its images, and whether one lacks its first image.

    The two images of an update may be messages of their own, and the second comes with other messages then, or through
    another partition: without the second, the first removes the row, and without the first, the second puts it, as a
    delete and an insert do. numbers: of the rows' messages.
    """
    kinds = rows.column(CHANGE_TYPE).to_numpy().copy()
    scns, seqs = (rows.column(name).to_numpy(zero_copy_only=False) for name in (COMMIT_VERSION, SEQ))
    apart = np.diff(numbers)
    is_one = (apart == 0) | ((apart == 1) & (np.diff(scns) == 0) & (np.diff(seqs) == 1))
    is_first, is_second = kinds == ChangeType.UPDATE_PREIMAGE, kinds == ChangeType.UPDATE_POSTIMAGE
    are_both = is_first[:-1] & is_second[1:] & is_one
    without_first = is_second & ~np.append(False, are_both)
    kinds[is_first & ~np.append(are_both, False)] = ChangeType.DELETE
    kinds[without_first] = ChangeType.INSERT
    return kinds, bool(without_first.any())


def _unframed(values: pa.Array, schema_id: int | None) -> pa.Array:
    ids, bodies = confluent_unframed(values)
    wrong = np.flatnonzero((ids != schema_id) & (ids >= 0))
    if len(wrong):
        raise UnrepresentableValue(f"it is written in the schema {ids[wrong[0]]} of the registry, not in {schema_id}")
    return bodies


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column


def topic_table(topic: str, config: KafkaConfig) -> TableSchema:
    """The table of a topic's messages. Raises `ConfigError` where a column of its key is excluded."""
    kind = "binary" if config.format == "raw" else "string"
    columns = (
        Column("key", kind),
        Column("value", kind),
        Column("timestamp", "timestamptz"),
        Column("partition", "int32", nullable=False),
        Column("offset", "int64", nullable=False),
        Column("headers", "string"),
    )
    source = source_name(DATABASE, topic)
    excluded = config.excluded_columns(source, KEY)
    return TableSchema(source, tuple(column for column in columns if column.name not in excluded), KEY)


def topic_columns(table: TableSchema, messages: TopicMessages, config: KafkaConfig) -> list[pa.Array]:
    """The columns of `table`, one element for each message.

    Raises `UnrepresentableValue` where a message is not what the format says, without saying which.
    """
    keys, values = messages.keys, messages.values
    if config.format == "json":
        keys, values = _text(keys, "its key"), _text(values, "it")
        _check_json(values)
    is_timed = messages.timestamps >= 0
    if (messages.timestamps > _MS_MAX).any():
        raise UnrepresentableValue("its timestamp is later than microseconds of 64 bits can say")
    times = pa.array(messages.timestamps * _US_A_MS, mask=~is_timed).cast(pa.timestamp("us", "UTC"))
    columns = {
        "key": keys,
        "value": values,
        "timestamp": times,
        "partition": pa.array(messages.partitions),
        "offset": pa.array(messages.offsets),
        "headers": pa.array([header_text(message_headers) for message_headers in messages.headers], pa.string()),
    }
    return [columns[field.name].cast(field.type) for field in user_schema(table)]


def header_text(headers: Sequence[tuple[str, bytes | None]] | None) -> str | None:
    """Headers as JSON, in their order: `[["name","base64 of the value"],...]`; None without any.

    >>> header_text([("a", b"1"), ("a", None)])
    '[["a","MQ=="],["a",null]]'
    """
    if not headers:
        return None
    return _to_json([[name, None if value is None else base64.b64encode(value).decode()] for name, value in headers])


def _text(values: pa.Array, what: str) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise UnrepresentableValue(f"{what} is not text in UTF-8: {error}") from error


def _check_json(values: pa.Array) -> None:
    """Arrow reads all texts at once as JSON objects; if one is something else, they are read one by one."""
    texts = values.drop_null()
    if not len(texts):
        return
    if pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
        run = pc.binary_join(lines, "\n")[0].as_buffer()
        try:
            table = pj.read_json(
                pa.BufferReader(run),
                pj.ReadOptions(use_threads=False, block_size=run.size),
                pj.ParseOptions(explicit_schema=pa.schema([]), unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid:
            table = None
        if table is not None and table.num_rows == len(texts):
            return
    for text in texts.to_pylist():
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnrepresentableValue(f"it is not JSON: {error}") from error
