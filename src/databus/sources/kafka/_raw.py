"""Messages as rows of their own topic's table: formats `raw` and `json`."""

import base64
import json
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from databus.core import UnrepresentableValue, source_name
from databus.schema import Column, TableSchema, user_schema
from databus.sources.kafka._config import DATABASE, KafkaConfig
from databus.sources.kafka._consumer import TopicMessages

KEY: Final = ("partition", "offset")
_US_A_MS: Final = 1_000
_MS_MAX: Final = ((1 << 63) - 1) // _US_A_MS
_to_json: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


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
