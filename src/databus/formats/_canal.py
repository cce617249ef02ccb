"""Canal's flat messages: one for each change, in which every value of a row is a text.

    {"data":[{"id":"1","total":"9.95"}],"database":"shop","es":1782907200000,"gtid":"c4","id":7,"isDdl":false,
     "mysqlType":{"id":"int","total":"decimal(12,2)"},"old":[{"total":"8.50"}],"pkNames":["id"],"sql":"",
     "sqlType":{"id":4,"total":3},"table":"orders","ts":1782907200003,"type":"UPDATE"}

What stands where is Canal's own: `FlatMessage`, `MQMessageUtils` and `LogEventConvert` of github.com/alibaba/canal.
docs/formats.md says what is lost.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, TXID, name_parts
from databus.formats._buffers import bytes_without_nulls, validity_of
from databus.formats._column_text import decimal_texts, escaped, quoted, texts_of, time_texts
from databus.formats._images import check_whole_rows, images_of, rows_at
from databus.formats._messages import Messages, dumps, joined, messages_of, object_pieces, old_texts
from databus.formats._mysql_words import clock_texts, is_clock, kind_of, moment_texts
from databus.schema import Column, TableSchema

_TEXT: Final = pa.large_string
_US_A_MS: Final = 1_000
TYPES: Final = (None, "INSERT", None, "UPDATE", "DELETE")
"""Canal's words, by the number of the change type."""

_SQL_TYPES: Final = {
    "tinyint": -6, "smallint": 5, "mediumint": 4, "int": 4, "integer": 4, "bigint": -5, "bit": -7, "bool": -7,
    "float": 7, "double": 8, "real": 8, "decimal": 3, "numeric": 3, "char": 1, "varchar": 12, "enum": 12, "set": 12,
    "date": 91, "time": 92, "datetime": 93, "timestamp": 93, "year": 12, "json": 12, "tinytext": 2005, "text": 2005,
    "mediumtext": 2005, "longtext": 2005, "binary": 2004, "varbinary": 2004, "tinyblob": 2004, "blob": 2004,
    "mediumblob": 2004, "longblob": 2004,
}  # fmt: skip
"""Numbers of java.sql.Types, by the first word of MySQL's type."""
_SQL_TYPES_OF_OURS: Final = {
    "bool": -7, "int8": -6, "int16": 5, "int32": 4, "int64": -5, "uint8": 5, "uint16": 4, "uint32": -5, "uint64": 3,
    "float32": 7, "float64": 8, "string": 12, "binary": 2004, "date": 91, "timestamp": 93, "timestamptz": 93,
}  # fmt: skip
_DECIMAL: Final = 3


def canal_messages(table: TableSchema, batch: pa.RecordBatch, *, made_ms: int) -> Messages:
    """The changes of a batch as Canal's flat messages; they have no keys.

    made_ms: when the messages are made, in milliseconds since 1970, which is what Canal says in `ts`. Raises
    `UnrepresentableValue` for a time outside the years 0 to 9999, and what `check_whole_rows` does.
    """
    check_whole_rows(table, "canal")
    images = images_of(table, batch)
    texts = [canal_texts(table, column, batch.column(column.name)) for column in table.columns]
    last = [rows_at(text, images.rows) for text in texts]
    database, name = name_parts(table.source)
    bus = {column: rows_at(batch.column(column), images.rows) for column in (COMMIT_VERSION, COMMIT_TIMESTAMP, TXID)}
    milliseconds = pc.divide(bus[COMMIT_TIMESTAMP].cast(pa.int64()), _US_A_MS)
    mysql_types = dumps({column.name: column.db_type or column.type for column in table.columns})
    sql_types = dumps({column.name: _sql_type(column) for column in table.columns})
    text = joined(
        '{"data":[',
        *object_pieces(table.names, last),
        f'],"database":{dumps(database)},"es":',
        milliseconds.cast(_TEXT()),
        ',"gtid":',
        texts_of(TXID, bus[TXID], big_in_string=False),
        ',"id":',
        bus[COMMIT_VERSION].cast(_TEXT()),
        f',"isDdl":false,"mysqlType":{mysql_types},"old":',
        old_texts(table.names, texts, images, "[", "]", "null"),
        f',"pkNames":{dumps(list(table.key) or None)},"sql":"","sqlType":{sql_types},"table":{dumps(name)},'
        f'"ts":{made_ms},"type":"',
        pa.array(TYPES, _TEXT()).take(pa.array(images.kinds)),
        '"}',
    )
    return messages_of(text, None, images.rows)


def canal_texts(table: TableSchema, column: Column, values: pa.Array) -> pa.LargeStringArray:
    """A column's values as Canal writes them: strings, or null in words."""
    name = f"{table.source}.{column.name}"
    kind = values.type
    if pa.types.is_boolean(kind):
        text = quoted(values.cast(pa.int8()).cast(_TEXT()))
    elif pa.types.is_decimal(kind):
        text = quoted(decimal_texts(values))
    elif pa.types.is_timestamp(kind):
        text = quoted(moment_texts(name, column, values))
    elif pa.types.is_date(kind):
        text = quoted(time_texts(name, values))
    elif is_clock(column):
        text = quoted(clock_texts(column, values))
    elif pa.types.is_integer(kind):
        text = quoted(values.cast(_TEXT()))
    elif pa.types.is_floating(kind):
        text = texts_of(name, values, big_in_string=False)
        is_number = pc.and_(pc.invert(pc.starts_with(text, '"')), values.is_valid())
        return pc.if_else(is_number, quoted(text), text)
    elif pa.types.is_binary(kind):
        text = quoted(escaped(latin1_texts(values)))
    else:
        return texts_of(name, values, big_in_string=False)
    return pc.coalesce(text, pa.scalar("null", _TEXT()))


def latin1_texts(values: pa.Array) -> pa.LargeStringArray:
    """Bytes as the characters of ISO 8859-1, which is how Canal has binary values in a text."""
    large = values.cast(pa.large_binary())
    codes = np.frombuffer(bytes_without_nulls(large), np.uint8)
    is_high = codes >= 0x80  # such a character has two bytes in UTF-8
    ends = np.append(0, np.cumsum(1 + is_high.astype(np.int64)))
    held = np.empty(ends[-1], np.uint8)
    starts = ends[:-1]
    held[starts] = np.where(is_high, 0xC0 | codes >> 6, codes)
    held[starts[is_high] + 1] = 0x80 | codes[is_high] & 0x3F
    lengths = pc.binary_length(large).fill_null(0).to_numpy().astype(np.int64)
    offsets = ends[np.append(0, np.cumsum(lengths))]
    return pa.LargeStringArray.from_buffers(
        len(large), pa.py_buffer(offsets), pa.py_buffer(held), validity_of(large), large.null_count
    )


def _sql_type(column: Column) -> int:
    known = _SQL_TYPES.get(kind_of(column)) if column.db_type else None
    return _SQL_TYPES_OF_OURS.get(column.type, _DECIMAL) if known is None else known
