"""Values of a result as those of the log: bytes in a column's own character set become what `rows` makes of them."""

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CorruptData
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.rows import Policies, address_type, result_text, to_text

_TIMES: Final = frozenset(
    {
        FieldType.DATE,
        FieldType.NEWDATE,
        FieldType.DATETIME,
        FieldType.DATETIME2,
        FieldType.TIMESTAMP,
        FieldType.TIMESTAMP2,
        FieldType.TIME,
        FieldType.TIME2,
    }
)


@dataclass(frozen=True, slots=True)
class ResultRows:
    """Where rows of a result come from, for messages."""

    table: str
    place: str
    """The query that they came from, in words."""

    def row(self, number: int) -> str:
        """The place of a row."""
        return f"row {number + 1} of {self.place}"


def final_array(column: ColumnDefinition, kind: str, raw: pa.Array, policies: Policies, where: ResultRows) -> pa.Array:
    """The column's array, of raw bytes as the server sends them where results have no character set of their own.

    kind: the bus's type. Raises `UnrepresentableValue` for bytes that are no text, by policy; `CorruptData` where no
    server has others.
    """
    if kind == "binary":
        return raw
    if column.type in _TIMES:
        return result_text(column, raw, where)
    if column.type is FieldType.NEWDECIMAL and "zerofill" in column.column_type.lower():
        return pc.replace_substring_regex(_plain(column, raw, where), r"^0+([0-9])", r"\1")
    is_plain = column.type is FieldType.JSON or column.type is FieldType.NEWDECIMAL or address_type(column) is not None
    if column.charset == BINARY and column.members:
        return to_text(replace(column, charset="utf8mb4"), raw, policies, where)  # as its members are in the log
    if is_plain or column.charset in (None, BINARY):
        return _plain(column, raw, where)
    return to_text(column, raw, policies, where)


def _plain(column: ColumnDefinition, raw: pa.Array, where: ResultRows) -> pa.Array:
    """Digits, or UTF-8 whatever the column's character set."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptData(
            f"{where.table}: column {column.name!r}, {where.place}: bytes that are no text ({error})"
        ) from error
