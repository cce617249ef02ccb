"""The type table: which type of the bus a column becomes. docs/mysql-types.md says the same with all forms."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal

from databus.core import ConfigError, UnsupportedFeature
from databus.schema import Column, TableSchema
from databus.schema._types import DECIMAL_PRECISION_MAX
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, TableDefinition

if TYPE_CHECKING:
    from databus.sources.mysql.rows._omit import Omitter

_INTEGERS: Final = {
    FieldType.TINY: "int8",
    FieldType.SHORT: "int16",
    FieldType.INT24: "int32",
    FieldType.LONG: "int32",
    FieldType.LONGLONG: "int64",
}
_DATED: Final = {
    FieldType.DATE: "date",
    FieldType.NEWDATE: "date",
    FieldType.DATETIME: "timestamp",
    FieldType.DATETIME2: "timestamp",
    FieldType.TIMESTAMP: "timestamptz",
    FieldType.TIMESTAMP2: "timestamptz",
}
_PLAIN: Final = {
    FieldType.FLOAT: "float32",
    FieldType.DOUBLE: "float64",
    FieldType.YEAR: "int16",
    FieldType.TIME: "int64",
    FieldType.TIME2: "int64",
    FieldType.ENUM: "string",
    FieldType.SET: "string",
    FieldType.JSON: "string",
    FieldType.GEOMETRY: "binary",
    FieldType.VECTOR: "binary",
}
BLOBS: Final = frozenset({FieldType.TINY_BLOB, FieldType.MEDIUM_BLOB, FieldType.LONG_BLOB, FieldType.BLOB})
"""What a table map has as BLOB, whatever its size."""
TEXTS: Final = BLOBS | {
    FieldType.VARCHAR,
    FieldType.VAR_STRING,
    FieldType.STRING,
    FieldType.VARCHAR_COMPRESSED,
    FieldType.BLOB_COMPRESSED,
}
"""Types of text or of bytes; the character set says which."""
_ADDRESSES: Final = ("uuid", "inet4", "inet6")


@dataclass(frozen=True, slots=True)
class Policies:
    """What becomes of values that the bus cannot pass on as they are."""

    zero_dates: Literal["error", "null"] = "error"
    """For 0000-00-00 and other invalid dates, such as 2020-00-10: an error, or null."""
    invalid_text: Literal["error", "replace"] = "error"
    """For bytes that are not valid in their column's character set: an error, or U+FFFD in their place."""
    json_form: Literal["5.7", "8.0"] = "8.0"
    """JSON text is as SELECT of this release prints it: 5.7 prints a whole double as `1` and keeps the line breaks of
    base64; later releases print `1.0`, and escape them.
    """
    omitter: "Omitter | None" = None
    """What becomes of rows that are too large; without one they are an error."""
    texts: frozenset[str] = frozenset()
    """Columns of the table that come as the text that the server shows (see `text_columns`)."""

    def for_column(self, definition: TableDefinition, column: ColumnDefinition) -> "Policies":
        """What holds for a column: in the key, both are always errors, since values that differ would be one key."""
        is_free = column.name not in definition.key
        return self if is_free else replace(self, zero_dates="error", invalid_text="error")

    def bus_type(self, column: ColumnDefinition) -> str:
        """The bus's type of a column of the table."""
        return "string" if column.name in self.texts else bus_type(column)


def address_type(column: ColumnDefinition) -> str | None:
    """`uuid`, `inet4` or `inet6` if the column is one of MariaDB's, which a table map has as CHAR."""
    word = column.column_type.lower().split("(")[0].strip()
    return word if column.type is FieldType.STRING and word in _ADDRESSES else None


def bits_of(column: ColumnDefinition) -> int:
    """The bits of a BIT column."""
    return (column.meta >> 8) * 8 + (column.meta & 0xFF)


def bus_type(column: ColumnDefinition) -> str:
    """The bus's type of a column. Raises `UnsupportedFeature` for one that it has none for."""
    kind = column.type
    if kind in _INTEGERS:
        return ("u" if column.is_unsigned else "") + _INTEGERS[kind]
    if kind in _DATED:
        return _DATED[kind]
    if kind is FieldType.YEAR and column.column_type.lower() == "year(2)":
        raise UnsupportedFeature(
            f"column {column.name!r} is a YEAR(2), of which the log has four digits and a query two: 1901 and 2001 "
            f"both are read as 1. Run ALTER TABLE ... MODIFY {column.name} YEAR on the server, or leave it out with "
            f"`columns: {{<table>: {{exclude: [{column.name}]}}}}`"
        )
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind is FieldType.NEWDECIMAL:
        precision, scale = column.meta >> 8, column.meta & 0xFF
        return f"decimal({precision},{scale})" if precision <= DECIMAL_PRECISION_MAX else "string"
    if kind is FieldType.BIT:
        bits = bits_of(column)
        return "bool" if bits == 1 else next(f"uint{size}" for size in (8, 16, 32, 64) if bits <= size)
    if kind in TEXTS:
        return "string" if address_type(column) or column.charset not in (None, BINARY) else "binary"
    raise UnsupportedFeature(
        f"column {column.name!r} has the type {column.column_type}, which databus does not capture; leave it out with "
        f"`columns: {{<table>: {{exclude: [{column.name}]}}}}`"
    )


def text_columns(definition: TableDefinition, asked: Collection[str], *, dates: bool) -> frozenset[str]:
    """The columns of a table that come as text although their type has a form of its own.

    asked: names of columns, in lower case. dates: all columns of dates too. Raises `ConfigError` naming table and
    column for one that is asked for and has no exact text.
    """
    names = set()
    for column in definition.columns:
        is_asked = column.name.lower() in asked
        if not is_asked and not (dates and column.type in _DATED):
            continue
        kind = bus_type(column)
        if kind in _WITHOUT_TEXT:
            raise ConfigError(
                f"types.{definition.source}.{column.name}: a column of type {column.column_type} does not come as "
                f"`string`, since the server shows no exact text of its values; it is {kind}"
            )
        if kind != "string":
            names.add(column.name)
    return frozenset(names)


_WITHOUT_TEXT: Final = ("float32", "float64", "binary")


def describe(
    definition: TableDefinition,
    *,
    excluded: frozenset[str] = frozenset(),
    texts: frozenset[str] = frozenset(),
    zero_dates: Literal["error", "null"] = "error",
    invalid_text: Literal["error", "replace"] = "error",  # noqa: ARG001 - a policy like the other; changes no type
) -> TableSchema:
    """The table as the bus has it, without the `excluded` columns and those that only row images have. texts: see
    `Policies`.

    Raises `UnsupportedFeature` naming table and column for a type that the bus has none for, `ConfigError` where a
    column of the key is excluded.
    """
    for name in definition.key:
        if name in excluded:
            raise ConfigError(
                f"{definition.source}: column {name!r} is excluded, but is part of the table's key; keep it"
            )
    columns = []
    for column in definition.columns:
        if column.name in excluded or column.is_hidden:
            continue
        try:
            kind = "string" if column.name in texts else bus_type(column)
        except UnsupportedFeature as error:
            raise UnsupportedFeature(f"{definition.source}: {error}") from None
        columns.append(
            Column(
                column.name,
                kind,
                nullable=column.is_nullable
                or (zero_dates == "null" and column.type in _DATED and column.name not in definition.key),
                db_type=column.column_type,
                charset=None if column.charset == BINARY else column.charset,
            )
        )
    return TableSchema(definition.source, tuple(columns), definition.key)
