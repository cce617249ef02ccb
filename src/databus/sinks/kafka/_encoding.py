"""Rows and controls as Kafka's messages: bytes, keys and headers, in the words of some format."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, TXID, ChangeType
from databus.flow import ChangeBatch, Int, KeyChoice, RowMask, TableControl, TableRows, as_captured
from databus.formats import (
    DebeziumForm,
    Messages,
    TransactionMarks,
    control_line,
    messages_in,
    transaction_avro_messages,
    transaction_messages,
)
from databus.schema import TableSchema, key_buckets, key_bytes
from databus.sinks.kafka._avro import AvroIds, AvroSubjects
from databus.sinks.kafka._cluster import InvalidRecord, Refused, TooLarge
from databus.sinks.kafka._topics import Needs

OWN_FORMAT: Final = "json"
ENVELOPE: Final = "envelope"
TOMBSTONE: Final = "tombstone"
BOTH: Final = "both"
_ROWS_AT_ONCE: Final = 8_192
_ROWS_ALONE: Final = ("json", "avro", "cloudevents")  # formats in which each row is a message
_WITHOUT_KEYS: Final = ("canal",)
_DELETE: Final = ChangeType.DELETE.label
Header = list[tuple[str, "str | bytes | None"]]


@dataclass(frozen=True)
class Encoding:
    """How rows become messages; travels to tasks."""

    key: KeyChoice
    """By which rows are told apart."""
    headers: bool = True
    """Whether each message says the place of its row in the log."""
    format: str = OWN_FORMAT
    form: DebeziumForm = field(default_factory=DebeziumForm)
    deletes: str = ENVELOPE
    """What says that a row is gone: its message, a tombstone, or both."""
    subjects: AvroSubjects | None = None
    """Of Avro's schemas; None for other formats."""
    remedies: ClassVar[Mapping[type[Refused], str]] = {
        TooLarge: ", or `project` columns away",
        InvalidRecord: ". Give `controls` a topic of their own, and tables keys",
    }
    """What to do about messages that are refused, behind what the error says itself."""

    def chunks(self, physical: str, item: TableRows, topic: str) -> Iterator["Chunk"]:
        """Some rows at a time; an update is in one piece. Raises what `AvroSubjects.ids` does."""
        table = self._table(item.table)
        ids = self.register(physical, item.table, topic)
        captured = as_captured(item.table, item.rows).combine_chunks()
        images = _Images.of(table, captured)
        begin = 0
        while begin < captured.num_rows:
            end = min(begin + _ROWS_AT_ONCE, captured.num_rows)
            end += int(end < captured.num_rows and images.is_second[end])
            (rows,) = captured.slice(begin, end - begin).combine_chunks().to_batches()
            yield self._chunk(physical, table, rows, images.slice(begin, end), ids)
            begin = end

    def begins_change(self, item: TableRows) -> RowMask:
        """Which rows are the first of a change, as it is counted: both images of an update with one key are one."""
        table = self._table(item.table)
        images = _Images.of(table, item.rows)
        begins: RowMask = ~images.is_second | images.is_entered
        for name in table.key:
            values = item.rows.column(name)
            if pa.types.is_floating(values.type):  # 0.0 and -0.0 are one key for us, and two in Debezium's words
                signs = np.signbit(values.to_numpy())
                begins[1:] |= signs[1:] != signs[:-1]
        return begins

    def marks(self, marks: TransactionMarks, topic: str) -> Messages:
        """Begins and ends of transactions as messages. Raises what `AvroSubjects.transaction_ids` does."""
        if self.subjects is None:
            return transaction_messages(marks, with_schema=self.form.with_schema)
        return self.subjects.transaction_ids(topic).framed(transaction_avro_messages(marks))

    def register(self, physical: str, table: TableSchema, topic: str) -> AvroIds | None:
        """See to it that a table's schemas are registered; None for formats that have none. Raises as `chunks`."""
        if self.subjects is None:
            return None
        return self.subjects.ids(self.format, self._table(table), physical, self.form, topic)

    def _chunk(
        self, physical: str, table: TableSchema, rows: pa.RecordBatch, images: "_Images", ids: AvroIds | None
    ) -> "Chunk":
        if self.format not in _ROWS_ALONE and (images.is_left.any() or images.is_entered.any()):
            labels = rows.column(CHANGE_TYPE).cast(pa.string())
            labels = pc.if_else(pa.array(images.is_left), _DELETE, labels)
            labels = pc.if_else(pa.array(images.is_entered), ChangeType.INSERT.label, labels)
            rows = rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, labels)
        name = "own" if self.format == OWN_FORMAT else self.format
        messages = messages_in(name, table, rows, physical=physical, made_us=time.time_ns() // 1_000, form=self.form)
        if ids is not None:
            messages = ids.framed(messages)
        keys = _keys(table, rows) if self.format in _WITHOUT_KEYS and table.key else None
        is_gone = images.is_left | _is(rows, _DELETE)
        return Chunk(self._with_deletes(messages, is_gone), rows, keys, self.headers)

    def _with_deletes(self, messages: Messages, is_gone: RowMask) -> Messages:
        """With tombstones behind, or in the place of, the messages of rows that are gone."""
        if self.deletes == ENVELOPE:
            return messages
        rows = messages.rows.to_numpy()
        gone = is_gone[rows] & messages.keys.is_valid().to_numpy(zero_copy_only=False)
        if not gone.any():
            return messages
        if self.deletes == TOMBSTONE:
            return messages._replace(values=_without(messages.values, gone))
        places = np.repeat(np.arange(len(rows)), 1 + gone.astype(np.int64))
        is_tombstone = np.zeros(len(places), np.bool_)
        is_tombstone[1:] = places[1:] == places[:-1]
        taken = pa.array(places)
        return Messages(
            _without(messages.values.take(taken), is_tombstone),
            messages.keys.take(taken),
            messages.rows.take(taken),
            {name: header.take(taken) for name, header in messages.headers.items()},
        )

    def needs(self, batch: ChangeBatch, item: TableRows, topic: str) -> Needs:
        """Any number of partitions will do."""
        del batch, item, topic
        return Needs()

    def control(self, physical: str, control: TableControl) -> bytes:
        """A control as a message: a line of our own JSON."""
        return control_line(f"{physical}/{control.table.source}", control.body, control.pair).encode()

    def _table(self, table: TableSchema) -> TableSchema:
        chosen = tuple(self.key.of(table.source))
        return replace(table, key=chosen) if chosen else table


@dataclass(frozen=True)
class Chunk:
    """Some messages, and the rows that they are of."""

    messages: Messages
    rows: pa.RecordBatch
    row_keys: pa.LargeBinaryArray | None
    """Canonical, for formats without keys."""
    has_headers: bool
    """Whether they get the bus's own."""

    @property
    def values(self) -> Sequence[bytes | None]:
        """Their bytes; None is a tombstone."""
        return objects_of(self.messages.values)

    @property
    def keys(self) -> Sequence[bytes | None]:
        """Of each; None where there is none."""
        return objects_of(self.messages.keys)

    @property
    def message_rows(self) -> Int:
        """The number of each one's row."""
        rows: Int = self.messages.rows.to_numpy()
        return rows

    @property
    def times(self) -> Iterable[int]:
        """Of each: that of writing, for which Kafka's client takes 0."""
        return repeat(0)

    def partitions(self, count: int) -> list[int] | None:
        """Of each, where its format has no keys: where its row's canonical key would go. None: Kafka chooses."""
        if self.row_keys is None:
            return None
        buckets: list[int] = key_buckets(self.row_keys.take(self.messages.rows), count).tolist()
        return buckets

    @property
    def headers(self) -> Iterator[Header | None]:
        """Of each."""
        named: list[Iterable[tuple[str, Any]]] = [
            zip(repeat(name), objects_of(column), strict=False) for name, column in self.messages.headers.items()
        ]
        if self.has_headers:
            seqs = zip(repeat(SEQ), objects_of(self._of_messages(SEQ).cast(pa.string())), strict=False)
            named += [self._shared(COMMIT_VERSION), seqs, self._shared(TXID)]
        if not named:
            return iter([None] * len(self.messages.values))
        return map(list, zip(*named, strict=True))  # no line of Python for each message

    def pair(self, place: int) -> tuple[int, int]:
        """That of a message's row."""
        row = self.messages.rows[place].as_py()
        return self.rows.column(COMMIT_VERSION)[row].as_py(), self.rows.column(SEQ)[row].as_py()

    def _shared(self, name: str) -> Iterable[tuple[str, Any]]:
        """A column's headers; rows of one transaction share theirs."""
        column = self._of_messages(name)
        distinct = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        texts = distinct.dictionary.cast(pa.string()).to_pylist()
        made = np.fromiter(((name, text) for text in texts), np.object_, len(texts))
        names: list[tuple[str, Any]] = made[distinct.indices.to_numpy()].tolist()
        return names

    def _of_messages(self, name: str) -> pa.Array:
        column, rows = self.rows.column(name), self.messages.rows.to_numpy()
        is_one_each = len(rows) == len(column) and bool((rows == np.arange(len(rows))).all())
        return column if is_one_each else column.take(self.messages.rows)


@dataclass(frozen=True)
class _Images:
    """Which rows are images of updates."""

    is_second: RowMask
    """Those that are the other image of the row before them."""
    is_left: RowMask
    """Images before an update whose other image has another key, and may be in another bucket."""
    is_entered: RowMask
    """The same of images after an update."""

    @classmethod
    def of(cls, table: TableSchema, rows: pa.Table) -> "_Images":
        """Of all rows of a batch."""
        is_pre, is_post = _is(rows, ChangeType.UPDATE_PREIMAGE.label), _is(rows, ChangeType.UPDATE_POSTIMAGE.label)
        is_second = np.zeros(rows.num_rows, np.bool_)
        if not (is_pre.any() or is_post.any()):
            return cls(is_second, is_second, is_second)
        scns, seqs = (rows.column(name).to_numpy() for name in (COMMIT_VERSION, SEQ))
        is_second[1:] = is_pre[:-1] & is_post[1:] & (scns[1:] == scns[:-1]) & (seqs[1:] == seqs[:-1] + 1)
        together = is_second.copy()
        if table.key and rows.num_rows > 1:
            keys = _keys(table, rows)
            equal = pc.equal(keys.slice(0, len(keys) - 1), keys.slice(1)).fill_null(True)  # null is one key's too
            together[1:] &= equal.to_numpy(zero_copy_only=False)
        is_first = np.append(together[1:], False)
        return cls(is_second, is_pre & ~is_first, is_post & ~together)

    def slice(self, begin: int, end: int) -> "_Images":
        """Of some rows."""
        return _Images(self.is_second[begin:end], self.is_left[begin:end], self.is_entered[begin:end])


def _is(rows: "pa.Table | pa.RecordBatch", label: str) -> RowMask:
    mask: RowMask = pc.equal(rows.column(CHANGE_TYPE).cast(pa.string()), label).to_numpy(zero_copy_only=False)
    return mask


def _keys(table: TableSchema, rows: "pa.Table | pa.RecordBatch") -> pa.LargeBinaryArray:
    return key_bytes([rows.column(name) for name in table.key]).cast(pa.large_binary())


def _without(values: pa.LargeBinaryArray, where: RowMask) -> pa.LargeBinaryArray:
    return pc.if_else(pa.array(where), pa.scalar(None, pa.large_binary()), values)


def objects_of(column: pa.Array) -> Sequence[Any]:
    """A column's values as Kafka's client takes them."""
    values: Sequence[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values
