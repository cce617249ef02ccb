"""Rows of a Kafka source as the messages that they were: byte for byte, each in the partition that it came from.

What a row holds is in `databus.sources.kafka`: key, value, timestamp, partition and headers. How many partitions a
topic has at its source, and which cluster that is, the position in the log says.
"""

import json
from binascii import a2b_base64
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    CHANGE_TYPE,
    COMMIT_VERSION,
    SEQ,
    ChangeType,
    InputError,
    UnsupportedFeature,
    name_parts,
    source_name,
)
from databus.flow import ChangeBatch, TableControl, TableRows
from databus.schema import TableSchema
from databus.sinks.kafka._cluster import InvalidRecord, Refused, TooLarge
from databus.sinks.kafka._encoding import Header, objects_of
from databus.sinks.kafka._topics import Needs, TopicNames

MESSAGE: Final = "message"
PARTITION: Final = "partition"
MESSAGE_KEY: Final = "key"
_COLUMNS: Final[Mapping[str, tuple[pa.DataType, ...]]] = {
    MESSAGE_KEY: (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()),
    "value": (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()),
    "timestamp": (pa.timestamp("us", "UTC"),),
    PARTITION: (pa.int32(),),
    "headers": (pa.string(), pa.large_string()),
}
_ROWS_AT_ONCE: Final = 8_192
_US_A_MS: Final = 1_000
_NO_TIMESTAMP: Final = -1
_KEEP: Final = "say `on_error: dead_letter`, which keeps such messages and mirrors the others"
_OTHERS: Final = (
    "`format: message` takes the messages of a source `kafka` with `format: raw` or `json` as they are; choose another "
    "format for other rows"
)


def check_messages(table: TableSchema) -> None:
    """Raises `UnsupportedFeature` for a table whose rows cannot be a topic's messages."""
    missing = [name for name in _COLUMNS if name not in table.names]
    if missing:
        raise UnsupportedFeature(f"{table.source} has no column {', '.join(missing)}: {_OTHERS}")


@dataclass(frozen=True)
class Mirroring:
    """Makes rows the messages that they were; travels to tasks, in the place of an `Encoding`."""

    names: TopicNames
    """Of the topics that it writes."""
    keeps_timestamps: bool = True
    """Whether topics that give messages others are refused."""
    remedies: ClassVar[Mapping[type[Refused], str]] = {
        TooLarge: f"; or {_KEEP}",
        InvalidRecord: f". Change the topic's settings, or {_KEEP}",
    }

    def chunks(self, physical: str, item: TableRows, topic: str) -> Iterator["MirroredChunk"]:
        """Some rows at a time, once `needs` was asked. Raises `UnsupportedFeature` for rows that are no messages."""
        del topic
        self._check(physical, item)
        for begin in range(0, item.rows.num_rows, _ROWS_AT_ONCE):
            (rows,) = item.rows.slice(begin, _ROWS_AT_ONCE).combine_chunks().to_batches()
            yield MirroredChunk(rows)

    def register(self, physical: str, table: TableSchema, topic: str) -> None:
        """See `Encoding.register`: messages keep the schemas that they name."""

    def needs(self, batch: ChangeBatch, item: TableRows, topic: str) -> Needs:
        """As many partitions as the topic has at its source, or as the rows name where the batch does not say, or the
        topic is gone; and another cluster than that, where messages would come back. Raises as `check_messages` does.
        """
        check_messages(item.table)
        highest = pc.max(item.rows.column(PARTITION)).as_py() + 1
        position = batch.position or {}
        topics: Mapping[str, Any] | None = position.get("topics")
        _, name = name_parts(item.table.source)
        there = (topics or {}).get(name)
        partitions = highest if there is None else max(highest, len(there["offsets"]))
        loop = self._loop(batch.physical, item.table.source, topic, tuple(topics or ()))
        cluster = str(position.get("cluster", "")) if loop else ""
        return Needs(
            partitions,
            is_exact=topics is not None,
            not_of=cluster,
            or_else=loop,
            keeps_timestamps=self.keeps_timestamps,
        )

    def _loop(self, physical: str, source: str, topic: str, topics: tuple[str, ...]) -> str:
        """What would go on for ever, were source and target one cluster. topics: that are read."""
        db, name = name_parts(source)
        if topic == name:
            return (
                f"topic {topic} is the one that its messages were read from, and would never end. Name another with "
                f"`topic`, such as `mirror.{{table}}`"
            )
        if name in _targets(self.names, physical, db, topics):
            return (
                f"topic {name} has what this output writes, and is read again from the same cluster: its copies would "
                f"be copied for ever. Leave it out at the source (`exclude: [kafka.{name}]`), or name other topics "
                f"with `topic`"
            )
        return ""

    def control(self, physical: str, control: TableControl) -> bytes:
        """Not called: a topic's messages are all that a mirror writes."""
        raise NotImplementedError

    @staticmethod
    def _check(physical: str, item: TableRows) -> None:
        for name, kinds in _COLUMNS.items():
            kind = item.rows.schema.field(name).type
            if kind not in kinds:
                raise UnsupportedFeature(f"{physical}/{item.table.source}: column {name} is {kind}: {_OTHERS}")
        is_message = pc.equal(item.rows.column(CHANGE_TYPE), ChangeType.INSERT.label)
        if not pc.all(is_message).as_py():
            at = pc.index(is_message, False).as_py()
            raise UnsupportedFeature(
                f"{physical}/{item.table.source}: the row at {_pair(item.rows, at)} (SCN, _seq) is not an insert: "
                f"{_OTHERS}"
            )


@dataclass(frozen=True)
class MirroredChunk:
    """Some messages; see `Chunk`."""

    rows: pa.RecordBatch

    @property
    def values(self) -> Sequence[bytes | None]:
        """Their bytes; None is a tombstone."""
        return objects_of(_as_bytes(self.rows.column("value")))

    @property
    def keys(self) -> Sequence[bytes | None]:
        """Of each; None where there is none."""
        return objects_of(_as_bytes(self.rows.column(MESSAGE_KEY)))

    @property
    def message_rows(self) -> npt.NDArray[np.int64]:
        """The number of each one's row."""
        return np.arange(self.rows.num_rows)

    @property
    def times(self) -> Sequence[int]:
        """Milliseconds since 1970, -1 for none. Kafka's client takes 0 for now, so that 1 stands for it."""
        times = self.rows.column("timestamp").cast(pa.int64()).fill_null(_NO_TIMESTAMP * _US_A_MS).to_numpy()
        times_ms: list[int] = np.where(times == 0, 1, times // _US_A_MS).tolist()
        return times_ms

    @property
    def headers(self) -> Iterator[Header | None]:
        """Of each, in their order. Equal ones are read once."""
        texts = self.rows.column("headers")
        if texts.null_count == len(texts):
            return repeat(None, len(texts))
        alike = texts.dictionary_encode()
        known = _headers_of(alike.dictionary.to_pylist())
        return (None if at is None else known[at] for at in alike.indices.to_pylist())

    def partitions(self, count: int) -> list[int]:
        """Of each, that of its source; `count` is checked by `Topics.ready`."""
        del count
        partitions: list[int] = self.rows.column(PARTITION).to_pylist()
        return partitions

    def pair(self, place: int) -> tuple[int, int]:
        """That of a message's row."""
        return _pair(self.rows, place)


@lru_cache(maxsize=8)
def _targets(names: TopicNames, physical: str, db: str, topics: tuple[str, ...]) -> frozenset[str]:
    """What the copies of these topics are called."""
    targets = set()
    for topic in topics:
        with suppress(InputError):  # no topic can be called so
            targets.add(names.name(physical, source_name(db, topic)))
    return frozenset(targets)


def _pair(rows: "pa.Table | pa.RecordBatch", at: int) -> tuple[int, int]:
    return rows.column(COMMIT_VERSION)[at].as_py(), rows.column(SEQ)[at].as_py()


def _as_bytes(column: pa.Array) -> pa.Array:
    return column.cast(pa.large_binary())


def _headers_of(texts: Sequence[str]) -> list[Header]:
    """Of messages, from what `databus.sources.kafka` wrote as JSON.

    >>> _headers_of(['[["a","MQ=="],["a",null]]'])
    [[('a', b'1'), ('a', None)]]
    """
    try:
        headers: list[list[tuple[str, str | None]]] = json.loads(f"[{','.join(texts)}]")
        return [
            [(name, None if value is None else a2b_base64(value, strict_mode=True)) for name, value in header]
            for header in headers
        ]
    except (TypeError, ValueError) as error:
        raise UnsupportedFeature(f"`headers` are not those of messages ({error}): {_OTHERS}") from error
