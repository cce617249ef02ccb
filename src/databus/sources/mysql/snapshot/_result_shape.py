"""Shape: what a query's result is made of, and how it becomes the arrays of a table.

Made of a table's definition and checked against what the server says of each result: a table that has changed since
its definition was read is noticed before a row of it is decoded.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CorruptData, SourceChanged
from databus.schema import Column, TableSchema, forms_of
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.rows import Policies, address_type, bus_type, number_text, result_text, to_text
from databus.sources.mysql.rows._row_errors import not_a_date
from databus.sources.mysql.snapshot._keys import KeyColumn
from databus.sources.mysql.snapshot._result_codes import (
    BIT,
    BYTES,
    COPY8,
    COPY16,
    COPY32,
    COPY64,
    DATE,
    DECIMAL,
    FIELDS,
    FIRST_NONE,
    NULLS,
    OP,
    OUT,
    SCALE,
    TIME,
    TIMESTAMP,
    VALID,
    VAR,
)

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
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_UNSIGNED: Final = 0x20
_ENUM: Final = 0x100
_SET: Final = 0x800
_ALIGN: Final = 64
_SLACK: Final = 8  # behind the last value, for stores of whole words
_TEXT_BYTES: Final = 4096

_COPIES: Final = {
    FieldType.TINY: (COPY8, 1),
    FieldType.SHORT: (COPY16, 2),
    FieldType.YEAR: (COPY16, 2),
    FieldType.INT24: (COPY32, 4),
    FieldType.LONG: (COPY32, 4),
    FieldType.FLOAT: (COPY32, 4),
    FieldType.LONGLONG: (COPY64, 8),
    FieldType.DOUBLE: (COPY64, 8),
}
_DATED: Final = {
    FieldType.DATE: (DATE, 4),
    FieldType.NEWDATE: (DATE, 4),
    FieldType.DATETIME: (TIMESTAMP, 8),
    FieldType.DATETIME2: (TIMESTAMP, 8),
    FieldType.TIMESTAMP: (TIMESTAMP, 8),
    FieldType.TIMESTAMP2: (TIMESTAMP, 8),
    FieldType.TIME: (TIME, 8),
    FieldType.TIME2: (TIME, 8),
}
_STRINGS: Final = frozenset({15, 253, 254})
_BLOBS: Final = frozenset({249, 250, 251, 252})
_SHOWN_AS: Final = {
    FieldType.NEWDATE: {10},
    FieldType.DATETIME2: {12},
    FieldType.TIMESTAMP2: {7},
    FieldType.TIME2: {11},
    FieldType.DATE: {10},
    FieldType.VARCHAR: _STRINGS,
    FieldType.VAR_STRING: _STRINGS,
    FieldType.STRING: _STRINGS,
    FieldType.VARCHAR_COMPRESSED: _STRINGS,
    FieldType.BLOB_COMPRESSED: _BLOBS,
    FieldType.TINY_BLOB: _BLOBS,
    FieldType.MEDIUM_BLOB: _BLOBS,
    FieldType.LONG_BLOB: _BLOBS,
    FieldType.BLOB: _BLOBS,
    FieldType.JSON: {245, *_BLOBS},
    FieldType.ENUM: {254},
    FieldType.SET: {254},
}
"""By the type in a table map, the types that a result has for it; the same one where nothing stands here."""
_SIGNED_OR_NOT: Final = frozenset(
    {FieldType.TINY, FieldType.SHORT, FieldType.INT24, FieldType.LONG, FieldType.LONGLONG, FieldType.NEWDECIMAL}
)
_TEXTS: Final = _STRINGS | _BLOBS


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of a result, as the server describes it."""

    name: str
    type: int
    flags: int
    charset: str
    """By name; empty for a number that databus has no name for."""
    decimals: int
    collation: int
    """The server's number of it."""

    @property
    def is_unsigned(self) -> bool:
        """Whether its integers have no sign."""
        return bool(self.flags & _UNSIGNED)


@dataclass(frozen=True, slots=True)
class ResultShape:
    """The result's columns: a number for each ENUM and SET of the key, the key's columns, then the others."""

    definition: TableDefinition
    """Its columns are those of `table`, and the excluded ones."""
    table: TableSchema
    key: tuple[KeyColumn, ...]
    """Empty for a table that is read as a whole."""
    policies: Policies

    @property
    def numbers(self) -> list[str]:
        """The names of the columns whose number the query asks for besides the value: the number orders them."""
        return [column.name for column in self.key if column.is_numbered]

    @property
    def columns(self) -> list[ColumnDefinition]:
        """The table's columns in the query's order, without excluded ones.

        Raises `SourceChanged` if the definition is not the table's: after a crash, one of the two may be newer.
        """
        by_name = {column.name: column for column in self.definition.columns}
        for described in self.table.columns:
            column = by_name.get(described.name)
            if column is None or self.policies.bus_type(column) != described.type:
                raise SourceChanged(
                    f"{self.table.source}: column {described.name!r} is {described.type} for consumers, but "
                    f"{'is not there' if column is None else column.column_type} in the table's definition"
                )
        first = [column.name for column in self.key]
        return [by_name[name] for name in (*first, *(name for name in self.table.names if name not in first))]

    def check(self, result: list[ResultColumn]) -> None:
        """Raises `SourceChanged` naming the first column that is not as defined."""
        columns, extra = self.columns, len(self.numbers)
        if len(result) != extra + len(columns):
            raise SourceChanged(f"{self.table.source}: the server answers {len(result)} columns to a query of others")
        for column, received in zip(columns, result[extra:], strict=True):
            difference = _difference(column, received)
            if difference:
                raise SourceChanged(
                    f"{self.table.source}: column {column.name!r} is known as {column.column_type}, but the server "
                    f"answers {difference}: it was altered since"
                )

    def order(self, result: list[ResultColumn]) -> tuple[str, ...]:
        """What decides the order of a checked result's rows: for each column of the key its name, type and
        collation. Empty for a table that is read as a whole.
        """
        extra = len(self.numbers)
        ordering = zip(self.columns[: len(self.key)], result[extra:], strict=False)
        return tuple(f"{column.name} {column.column_type} {received.collation}" for column, received in ordering)


def _difference(column: ColumnDefinition, received: ResultColumn) -> str:
    kind = column.type
    if received.type not in _SHOWN_AS.get(kind, {int(kind)}):
        return f"type {received.type}"
    if kind in _SIGNED_OR_NOT and received.is_unsigned != column.is_unsigned:
        return "unsigned numbers" if received.is_unsigned else "signed numbers"
    if kind is FieldType.NEWDECIMAL and received.decimals != column.meta & 0xFF:
        return f"{received.decimals} digits after the point"
    if bool(received.flags & _ENUM) != (kind is FieldType.ENUM) or bool(received.flags & _SET) != (
        kind is FieldType.SET
    ):
        return f"type {received.type} with flags {received.flags:#x}"
    is_text = received.type in _TEXTS and kind is not FieldType.JSON and column.charset is not None
    if is_text and received.charset and received.charset != _charset(column):
        return f"character set {received.charset}"
    return ""


def _charset(column: ColumnDefinition) -> str:
    return _ALIASES.get(column.charset or BINARY, column.charset or BINARY)


_ALIASES: Final = {"utf8": "utf8mb3"}


def charset_name(name: str) -> str:
    """The name that a character set has in all versions."""
    return _ALIASES.get(name, name)


def _received(column: ColumnDefinition, kind: str) -> str:
    """The type in which the kernel writes a column that consumers get as `kind`: the same, but for numbers that become
    text, which come as numbers.
    """
    is_bytes = column.type in _DATED or column.type is FieldType.NEWDECIMAL
    return kind if kind != "string" or is_bytes else bus_type(column)


def _operation(column: ColumnDefinition, kind: str) -> tuple[int, int, int]:
    """The operation, the bytes of a value in the arena (0: bits; -1: of variable size), and SCALE."""
    if column.type in _COPIES:
        return (*_COPIES[column.type], 0)
    if column.type in _DATED and kind != "string":
        return (*_DATED[column.type], 0)
    if column.type is FieldType.NEWDECIMAL and kind != "string":
        return DECIMAL, 16, column.meta & 0xFF
    if column.type is FieldType.BIT:
        width = 0 if kind == "bool" else forms_of(kind).arrow.bit_width // 8
        return BIT, width, width
    return BYTES, -1, 0


class Columns:
    """The columns of up to `rows_max` rows while they are decoded."""

    def __init__(self, shape: ResultShape, rows_max: int) -> None:
        self._shape = shape
        self._columns = shape.columns
        self.rows = 0
        self.rows_max = rows_max
        operations = [(COPY64, 8, 0)] * len(shape.numbers)
        received = [_received(column, shape.table.column(column.name).type) for column in self._columns]
        operations += [_operation(*pair) for pair in zip(self._columns, received, strict=True)]
        self.program = np.zeros((len(operations), FIELDS), np.int64)
        bits = _aligned((rows_max + 7) // 8)
        end = 0
        texts = 0
        for row, (operation, size, scale) in zip(self.program, operations, strict=True):
            row[OP], row[SCALE], row[FIRST_NONE] = operation, scale, -1
            row[VALID] = end
            row[OUT] = end + bits
            end += bits + (0 if size < 0 else bits if size == 0 else _aligned(rows_max * size))
            row[VAR] = texts if size < 0 else -1
            texts += size < 0
        self._sizes = [size for _, size, _ in operations]
        self.arena = np.zeros(end + _SLACK, np.uint8)
        self.offsets = [np.zeros(rows_max + 1, np.int32) for _ in range(texts)]
        self.texts = [np.empty(_TEXT_BYTES, np.uint8) for _ in range(texts)]
        self.filled = [0] * texts

    def make_room(self, var: int, added_bytes: int) -> Bytes:
        """The text of a column, with room for so many bytes more and the slack."""
        text = self.texts[var]
        wanted = self.filled[var] + added_bytes + _SLACK
        if len(text) < wanted:
            larger = np.empty(max(wanted, 2 * len(text)), np.uint8)
            larger[: self.filled[var]] = text[: self.filled[var]]
            self.texts[var] = text = larger
        return text

    def arrays(self, place: str) -> list[pa.Array]:
        """The arrays, in the table's order.

        Raises `UnrepresentableValue` for an invalid date or invalid text, by policy; `SourceChanged` for a
        NULL in a NOT NULL column; `LimitExceeded` for a row that is too large even without its largest values.
        """
        extra = len(self._shape.numbers)
        arrays = {}
        for number, column in enumerate(self._columns, extra):
            row, described = self.program[number], self._shape.table.column(column.name)
            policies = self._shape.policies.for_column(self._shape.definition, column)
            if row[FIRST_NONE] >= 0 and policies.zero_dates == "error":
                at = f"row {int(row[FIRST_NONE]) + 1} of {place}"
                in_key = column.name in self._shape.definition.key
                raise not_a_date(self._shape.table.source, column.name, at, in_key=in_key)
            if row[NULLS] and not described.nullable:
                raise SourceChanged(f"{self._shape.table.source}: column {column.name!r} is NOT NULL, but has nulls")
            arrays[column.name] = self._array(row, self._sizes[number], column, described, policies, place)
        shape = self._shape
        made = [arrays[name] for name in shape.table.names]
        if shape.policies.omitter is not None:
            where = ResultRows(shape.table.source, place)
            made = shape.policies.omitter.apply(shape.definition, shape.table, made, where)
        return made

    def _array(
        self, row: Ints, size: int, column: ColumnDefinition, described: Column, policies: Policies, place: str
    ) -> pa.Array:
        nulls = int(row[NULLS])
        valid = self._slice(int(row[VALID]), (self.rows + 7) // 8) if nulls else None
        if size >= 0:
            length = (self.rows + 7) // 8 if size == 0 else self.rows * size
            buffers = [valid, self._slice(int(row[OUT]), length)]
            received = forms_of(_received(column, described.type)).arrow
            array = pa.Array.from_buffers(received, self.rows, buffers, nulls)
            return number_text(column, array) if described.type == "string" else array
        var = int(row[VAR])
        buffers = [valid, pa.py_buffer(self.offsets[var]), pa.py_buffer(self.texts[var][: self.filled[var]])]
        raw = pa.Array.from_buffers(pa.binary(), self.rows, buffers, nulls)
        where = ResultRows(self._shape.table.source, place)
        return final_array(column, described.type, raw, policies, where)

    def _slice(self, at: int, length: int) -> Any:
        return pa.py_buffer(self.arena[at : at + length])


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


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
