"""Rows and controls as Kafka's messages: bytes, keys and headers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from databus.core import COMMIT_VERSION, SEQ, TXID
from databus.formats import Messages, control_line, own_messages
from databus.schema import TableSchema
from databus.tasks._batch import TableControl, TableRows
from databus.tasks._lines import as_captured
from databus.tasks._table_filters import KeyChoice

ROWS_AT_ONCE: Final = 8_192
Header = list[tuple[str, "str | bytes | None"]]


@dataclass(frozen=True)
class Encoding:
    """How rows become messages; travels to tasks. key: by which rows are told apart. headers: whether each message says
    the place of its row in the log.
    """

    key: KeyChoice
    headers: bool = True

    def chunks(self, physical: str, item: TableRows) -> Iterator["Chunk"]:
        """Some rows at a time."""
        table = self._table(item.table)
        for rows in as_captured(item.table, item.rows).to_batches(max_chunksize=ROWS_AT_ONCE):
            yield Chunk(own_messages(table, rows, physical=physical), rows, self.headers)

    def control(self, physical: str, control: TableControl) -> bytes:
        """A control as a message."""
        return control_line(f"{physical}/{control.table.source}", control.body, control.pair).encode()

    def _table(self, table: TableSchema) -> TableSchema:
        chosen = tuple(self.key.of(table.source))
        return replace(table, key=chosen) if chosen else table


@dataclass(frozen=True)
class Chunk:
    """Some messages, and the rows that they are of. has_headers: whether they get the bus's own."""

    messages: Messages
    rows: pa.RecordBatch
    has_headers: bool

    @property
    def values(self) -> Sequence[bytes | None]:
        """Their bytes."""
        return _objects(self.messages.values)

    @property
    def keys(self) -> Sequence[bytes | None]:
        """Of each; None where there is none."""
        return _objects(self.messages.keys)

    @property
    def headers(self) -> Iterator[Header | None]:
        """Of each."""
        named = [(name, _objects(column)) for name, column in self.messages.headers.items()]
        if self.has_headers:
            named += [(name, self._texts(name)) for name in (COMMIT_VERSION, SEQ, TXID)]
        if not named:
            return iter([None] * len(self.messages.values))
        names = [name for name, _ in named]
        columns = [column for _, column in named]
        if len(names) == 3:  # as it is with our own, unrolled: this is done for each message
            one, two, three = names
            return ([(one, a), (two, b), (three, c)] for a, b, c in zip(*columns, strict=True))
        return (list(zip(names, each, strict=True)) for each in zip(*columns, strict=True))

    def pair(self, place: int) -> tuple[int, int]:
        """That of a message's row."""
        row = self.messages.rows[place].as_py()
        return self.rows.column(COMMIT_VERSION)[row].as_py(), self.rows.column(SEQ)[row].as_py()

    def _texts(self, name: str) -> Sequence[bytes | None]:
        column = self.rows.column(name)
        if len(self.messages.rows) != len(column):
            column = column.take(self.messages.rows)
        return _objects(column.cast(pa.string()))


def _objects(column: pa.Array) -> Sequence[bytes | None]:
    found: Sequence[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return found
