"""Keys of a table as places in its order: how a place is written in SQL, and kept as JSON.

The server orders a key's columns by their collation, their number (ENUM, SET) or their value; so a place is only ever
compared by the server. Its values are exact: text as bytes in the column's own character set.

Comparisons are spelled out (`a > 1 OR (a = 1 AND b > 2)`): row constructors are no range of an index before MySQL 8,
and an ENUM or SET is one only by equality, so the numbers that come after are listed where they are few.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, Literal

from databus.core import CorruptData
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, TableDefinition, identifier

KeyValue = int | str
"""A number, or text: digits, a time, a UUID; of text and bytes, the hexadecimal digits of the bytes."""
KeyValues = tuple[KeyValue, ...]
"""A key's values. A range of a table is what is above one place, up to and including another."""

Form = Literal["int", "float", "decimal", "date", "time", "bit", "text", "native"]

_NUMBERS_LISTED_MAX: Final = 1024
_DOUBLE_BITS: Final = 53
_SIZES: Final = {
    FieldType.TINY: 1,
    FieldType.SHORT: 2,
    FieldType.YEAR: 2,
    FieldType.INT24: 4,
    FieldType.LONG: 4,
    FieldType.FLOAT: 4,
    FieldType.LONGLONG: 8,
    FieldType.DOUBLE: 8,
}
_DATES: Final = frozenset({FieldType.DATE, FieldType.NEWDATE})
_DATED: Final = _DATES | {FieldType.DATETIME, FieldType.DATETIME2, FieldType.TIMESTAMP, FieldType.TIMESTAMP2}
_TIMES: Final = frozenset({FieldType.TIME, FieldType.TIME2})
_NATIVE: Final = ("uuid", "inet4", "inet6")


@dataclass(frozen=True, slots=True)
class KeyColumn:
    """A column of a key."""

    name: str
    type: FieldType
    is_unsigned: bool
    form: Form
    charset: str
    numbers: int
    """How many numbers an ENUM or SET has; 0 for other types."""

    @classmethod
    def of(cls, column: ColumnDefinition) -> "KeyColumn":
        """The column as one of a key."""
        numbers = 0
        if column.type is FieldType.ENUM:
            numbers = len(column.members) + 1
        elif column.type is FieldType.SET:
            numbers = 1 << len(column.members)
        unsigned = column.is_unsigned or column.type is FieldType.YEAR or numbers > 0
        return cls(column.name, column.type, unsigned, _form(column), column.charset or BINARY, numbers)

    @property
    def is_numbered(self) -> bool:
        """Whether it is ordered by a number that its value does not show."""
        return self.numbers > 0

    def is_compared_as_ordered(self, collation: str) -> bool:
        """Whether the server's `>` and `=` with a value agree with its ORDER BY, so that a value is a place.

        Not for a SET of more members than a double has digits, as which it is compared; and not for MariaDB's CHAR in a
        collation without padding: an index compares it with blanks at its end, a comparison without. All other
        collations of MariaDB 10.11, MySQL 5.7 and 8.0 were tried, as VARCHAR and as CHAR, with unusual characters.
        """
        if self.type is FieldType.SET:
            return self.numbers <= 1 << _DOUBLE_BITS
        return self.type is not FieldType.STRING or "nopad" not in collation

    @property
    def is_plain_number(self) -> bool:
        """Whether any number between two values is a place, too."""
        return self.form == "int" and not self.is_numbered and self.type is not FieldType.YEAR

    def is_date(self, value: KeyValue) -> bool:
        """Whether a value of a column of dates is a valid date."""
        try:
            date.fromisoformat(str(value)[:10])
        except ValueError:
            return False
        return True

    def literal(self, value: KeyValue) -> str:
        """The value in SQL, for comparison with the column."""
        if isinstance(value, int):
            return f"'{value:04}'" if self.type is FieldType.YEAR else str(value)  # as a number, 0 would be 2000
        if self.form == "text":
            return f"X'{value}'" if self.charset == BINARY else f"_{self.charset} X'{value}'"
        return value if self.form in {"decimal", "float"} else f"'{value}'"

    def check(self, value: object) -> KeyValue:
        """The value, from JSON. Raises `CorruptData` if it is not one of this column: it becomes a part of a query."""
        if self.form in {"int", "bit"}:
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        elif isinstance(value, str) and set(value) <= _ALLOWED[self.form] and len(value) <= _VALUE_CHARACTERS_MAX:
            return value
        raise CorruptData(
            f"column {self.name!r}: {str(value)[:100]!r} is no value of a key; the snapshot must begin again"
        )

    def beyond(self, value: KeyValue, *, above: bool) -> str:
        """A condition: the column is above (or below) the value."""
        sign = ">" if above else "<"
        if 0 < self.numbers <= _NUMBERS_LISTED_MAX and isinstance(value, int):
            rest = range(value + 1, self.numbers) if above else range(min(value, self.numbers))
            return f"{identifier(self.name)} IN ({', '.join(map(str, rest))})" if rest else "FALSE"
        return f"{identifier(self.name)} {sign} {self.literal(value)}"


_DIGITS: Final = frozenset("0123456789")
_ALLOWED: Final = {
    "text": _DIGITS | frozenset("abcdef"),
    "decimal": _DIGITS | frozenset("-."),
    "float": _DIGITS | frozenset("-+.e"),
    "date": _DIGITS | frozenset("-:. "),
    "time": _DIGITS | frozenset("-:."),
    "native": _DIGITS | frozenset("abcdef-:."),
}
_VALUE_CHARACTERS_MAX: Final = 2 * 65_536


def _form(column: ColumnDefinition) -> Form:  # noqa: PLR0911 - a table of cases
    kind = column.type
    if kind in {FieldType.FLOAT, FieldType.DOUBLE}:
        return "float"
    if kind in _SIZES or kind in {FieldType.ENUM, FieldType.SET}:
        return "int"
    if kind is FieldType.NEWDECIMAL:
        return "decimal"
    if kind in _DATED:
        return "date"
    if kind in _TIMES:
        return "time"
    if kind is FieldType.BIT:
        return "bit"
    return "native" if column.column_type.lower().split("(")[0].strip() in _NATIVE else "text"


def key_columns(definition: TableDefinition) -> tuple[KeyColumn, ...]:
    """The columns of the table's key, in the key's order."""
    by_name = {column.name: column for column in definition.columns}
    return tuple(KeyColumn.of(by_name[name]) for name in definition.key)


def above(columns: Sequence[KeyColumn], place: KeyValues) -> str:
    """A condition: the row comes after the place."""
    return _beyond(columns, place, is_above=True)


def upto(columns: Sequence[KeyColumn], place: KeyValues) -> str:
    """A condition: the row comes before the place, or is at it."""
    return f"{_beyond(columns, place, is_above=False)} OR ({_equal(columns, place)})"


def _beyond(columns: Sequence[KeyColumn], place: KeyValues, *, is_above: bool) -> str:
    parts = []
    for number, (column, value) in enumerate(zip(columns, place, strict=True)):
        beyond = column.beyond(value, above=is_above)
        same = _equal(columns[:number], place[:number])
        parts.append(f"({same} AND {beyond})" if same else f"({beyond})")
    return " OR ".join(parts)


def _equal(columns: Sequence[KeyColumn], place: KeyValues) -> str:
    return " AND ".join(
        f"{identifier(column.name)} = {column.literal(value)}" for column, value in zip(columns, place, strict=True)
    )


def read_place(columns: Sequence[KeyColumn], width: int, payload: memoryview) -> KeyValues:
    """The key of a row of a result whose first columns are the numbers of the key's ENUMs and SETs, then its columns.

    width: how many columns the result has. payload: the row's, checked by the kernel before. Slow and obvious; asked
    for one row of many.
    """
    at = 1 + (width + 9) // 8
    numbers = {}
    for column in columns:
        if column.is_numbered:
            numbers[column.name] = int.from_bytes(payload[at : at + 8], "little")
            at += 8
    values: list[KeyValue] = []
    for column in columns:
        value, at = _read_value(column, payload, at)
        values.append(numbers.get(column.name, value))
    return tuple(values)


def _read_value(column: KeyColumn, payload: memoryview, at: int) -> tuple[KeyValue, int]:
    size = _SIZES.get(column.type)
    if size is not None:
        raw = payload[at : at + size]
        if column.form == "int":
            return int.from_bytes(raw, "little", signed=not column.is_unsigned), at + size
        (number,) = struct.unpack("<f" if size == 4 else "<d", raw)
        text = repr(number)
        return text if "e" in text else f"{text}e0", at + size
    length, at = _length(payload, at)
    raw, end = payload[at : at + length], at + length
    if column.type in _DATED:
        text = _date(raw, with_clock=column.type not in _DATES)
    elif column.type in _TIMES:
        text = _time(raw)
    elif column.form == "bit":
        return int.from_bytes(raw, "big"), end
    elif column.form == "text":
        text = bytes(raw).hex()
    else:
        text = bytes(raw).decode("ascii", "replace")
    return text, end


def _length(payload: memoryview, at: int) -> tuple[int, int]:
    first = payload[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(payload[at + 1 : at + 1 + width], "little"), at + 1 + width


def _date(raw: memoryview, *, with_clock: bool) -> str:
    year, month, day, hour, minute, second, us = struct.unpack("<HBBBBBI", bytes(raw).ljust(11, b"\0"))
    text = f"{year:04}-{month:02}-{day:02}"
    return f"{text} {hour:02}:{minute:02}:{second:02}.{us:06}" if with_clock else text


def _time(raw: memoryview) -> str:
    negative, days, hour, minute, second, us = struct.unpack("<BIBBBI", bytes(raw).ljust(12, b"\0"))
    return f"{'-' if negative else ''}{days * 24 + hour:02}:{minute:02}:{second:02}.{us:06}"


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A part of a table: the rows after one place, up to and including another."""

    after: KeyValues | None = None
    """None for the table's beginning."""
    upto: KeyValues | None = None
    """None for the table's end."""

    def to_json(self) -> list[list[KeyValue] | None]:
        """As JSON."""
        return [None if place is None else list(place) for place in (self.after, self.upto)]

    @classmethod
    def from_json(cls, columns: Sequence[KeyColumn], value: object) -> "KeyRange":
        """Read what `to_json` wrote. Raises `CorruptData` for a value that is no place in this key."""
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise CorruptData(f"{str(value)[:100]!r} is no range of keys; the snapshot must begin again")
        return cls(*(_place(columns, place) for place in value))


def _place(columns: Sequence[KeyColumn], value: object) -> KeyValues | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or len(value) != len(columns):
        raise CorruptData(f"{str(value)[:100]!r} is no key of {len(columns)} columns; the snapshot must begin again")
    return tuple(column.check(part) for column, part in zip(columns, value, strict=True))
