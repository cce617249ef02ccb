"""Maxwell's JSON: one message for each change, with the values that an update replaced.

    {"database":"shop","table":"orders","type":"update","ts":1782907200,"xid":7,"xoffset":2,"gtid":"c4",
     "data":{"id":1,"total":9.95},"old":{"total":8.50}}

What stands where is Maxwell's own: `RowMap.toJSON` and the column definitions of github.com/zendesk/maxwell, and
maxwells-daemon.io/dataformat. docs/formats.md says what is lost.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, TXID, name_parts
from databus.formats._column_text import decimal_texts, escaped, quoted, texts_of
from databus.formats._images import Places, check_whole_rows, images_of, rows_at
from databus.formats._messages import Messages, dumps, joined, messages_of, object_pieces, old_texts
from databus.formats._mysql_words import clock_texts, is_clock, kind_of, moment_texts
from databus.schema import Column, TableSchema

_US_A_SECOND: Final = 1_000_000
_TEXT: Final = pa.large_string
INSERT, UPDATE, DELETE, BOOTSTRAP = "insert", "update", "delete", "bootstrap-insert"
_TYPES: Final = (BOOTSTRAP, INSERT, None, UPDATE, DELETE)  # by the number of the change type; 0 for a snapshot's


def maxwell_messages(table: TableSchema, batch: pa.RecordBatch, *, commits: pa.BooleanArray | None = None) -> Messages:
    """The changes of a batch in Maxwell's JSON, with Maxwell's keys.

    commits: for each row, whether it is the last one of its transaction, where that is known; then its message has
    `commit`. Raises `UnrepresentableValue` for a time outside the years 0 to 9999, and what `check_whole_rows` does.
    """
    check_whole_rows(table, "maxwell")
    images = images_of(table, batch)
    texts = [maxwell_texts(table, column, batch.column(column.name)) for column in table.columns]
    last = [rows_at(text, images.rows) for text in texts]
    database, name = name_parts(table.source)
    bus = {
        column: rows_at(batch.column(column), images.rows)
        for column in (COMMIT_VERSION, SEQ, COMMIT_TIMESTAMP, SNAPSHOT)
    }
    seconds = pc.divide(bus[COMMIT_TIMESTAMP].cast(pa.int64()), _US_A_SECOND)
    text = joined(
        f'{{"database":{dumps(database)},"table":{dumps(name)},"type":"',
        _types(images.kinds, bus[SNAPSHOT]),
        '","ts":',
        seconds.cast(_TEXT()),
        ',"xid":',
        bus[COMMIT_VERSION].cast(_TEXT()),
        ',"xoffset":',
        bus[SEQ].cast(_TEXT()),
        *_commit(commits, images.rows),
        ',"gtid":',
        texts_of(TXID, rows_at(batch.column(TXID), images.rows), big_in_string=False),
        ',"data":',
        *object_pieces(table.names, last),
        old_texts(table.names, texts, images, ',"old":', "", ""),
        "}",
    )
    return messages_of(text, _keys(table, database, name, last), images.rows)


def maxwell_texts(table: TableSchema, column: Column, values: pa.Array) -> pa.LargeStringArray:
    """A column's values as Maxwell writes them; none of them is null."""
    name = f"{table.source}.{column.name}"
    null = pa.scalar("null", _TEXT())
    if pa.types.is_decimal(values.type):
        return pc.coalesce(decimal_texts(values), null)
    if pa.types.is_timestamp(values.type):
        return pc.coalesce(quoted(moment_texts(name, column, values)), null)
    if is_clock(column):
        return pc.coalesce(quoted(clock_texts(column, values)), null)
    if is_set(column):
        return pc.coalesce(_members(values.cast(_TEXT())), null)
    if is_json(column):
        return pc.coalesce(values.cast(_TEXT()), null)
    return texts_of(name, values, big_in_string=False)


def is_set(column: Column) -> bool:
    """Whether Maxwell writes it as a list of its members."""
    return column.type == "string" and kind_of(column) == "set"


def is_json(column: Column) -> bool:
    """Whether Maxwell writes it as the document that it is, not as its text."""
    return column.type == "string" and kind_of(column) == "json"


def _members(values: pa.LargeStringArray) -> pa.LargeStringArray:
    lists = joined('["', pc.replace_substring(escaped(values), ",", '","'), '"]')
    return pc.if_else(pc.equal(values, ""), pa.scalar("[]", _TEXT()), lists)


def _types(kinds: npt.NDArray[np.int8], snapshot: pa.BooleanArray) -> pa.LargeStringArray:
    number = np.where(snapshot.to_numpy(zero_copy_only=False), 0, kinds)
    return pa.array(_TYPES, _TEXT()).take(pa.array(number))


def _commit(commits: pa.BooleanArray | None, rows: Places) -> list[pa.LargeStringArray]:
    if commits is None:
        return []
    return [pc.if_else(rows_at(commits, rows), pa.scalar(',"commit":true', _TEXT()), pa.scalar("", _TEXT()))]


def _keys(table: TableSchema, database: str, name: str, texts: list[pa.LargeStringArray]) -> pa.LargeStringArray | None:
    if not table.key:
        return None
    of = dict(zip(table.names, texts, strict=True))
    members = object_pieces([f"pk.{column.lower()}" for column in table.key], [of[column] for column in table.key])
    return joined(f'{{"database":{dumps(database)},"table":{dumps(name)},', *["" if m == "{" else m for m in members])
