"""TableDefinition: a table as MySQL or MariaDB defines it at one position of its log.

History makes it (from the server's catalogue, from DDL, from a table map's own metadata); rows decodes by it. It says
everything that a row image does not: names, signedness, character sets, members, the key.
"""

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Self

from databus.core import source_name


class FieldType(IntEnum):
    """Column types by the numbers that the replication protocol has for them (`enum_field_types`)."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


BINARY: Final = "binary"
"""The character set of columns that hold bytes."""


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column.

    type, meta: as a table map has them, once ENUM, SET and CHAR are told apart: `meta` is DECIMAL's precision << 8 |
    scale, the bytes that a CHAR or VARCHAR may take, the bytes of a BLOB's length, the fraction's digits of a time, the
    bytes of an ENUM or SET, BIT's bytes << 8 | odd bits. column_type: the database's own words for the whole, such as
    `decimal(10,2) unsigned` or `enum('a','b')`, as information_schema has them. charset: of text, ENUM and SET;
    `binary` for bytes; None elsewhere. members: of ENUM and SET, with surrogates for what is no text or not known.
    is_invisible, is_generated: captured like any other column. is_hidden: the server's own, such as DB_ROW_HASH_1: it
    stands in row images, and no query sees it; never captured. default: the literal that existing rows get when the
    column is added, in SQL; None for NULL or none. uses: the columns that its expression may name, none of an ordinary
    column; None where it is not known whether it is generated, or from what. is_auto_increment: as far as is known.
    is_steady: of a generated column, whether it is not stored, or its expression gives the same in every session; two
    definitions that differ only in that are equal, as one and the same expression has many spellings.
    """

    name: str
    type: FieldType
    meta: int
    column_type: str
    is_unsigned: bool = False
    is_nullable: bool = True
    charset: str | None = None
    members: tuple[str, ...] = ()
    is_generated: bool = False
    is_invisible: bool = False
    default: str | None = None
    is_hidden: bool = False
    uses: tuple[str, ...] | None = ()
    is_auto_increment: bool = False
    is_steady: bool = field(default=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without what is as by default."""
        value: dict[str, Any] = {
            "name": self.name,
            "type": int(self.type),
            "meta": self.meta,
            "column_type": self.column_type,
        }
        if self.is_unsigned:
            value["unsigned"] = True
        if not self.is_nullable:
            value["nullable"] = False
        if self.charset is not None:
            value["charset"] = self.charset
        if self.members:
            value["members"] = list(self.members)
        marks = {
            "generated": self.is_generated,
            "invisible": self.is_invisible,
            "hidden": self.is_hidden,
            "auto_increment": self.is_auto_increment,
            "steady": self.is_steady,
        }
        value |= {mark: True for mark, holds in marks.items() if holds}
        if self.default is not None:
            value["default"] = self.default
        if self.uses is None or self.is_generated:
            value["uses"] = None if self.uses is None else list(self.uses)
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        uses = value.get("uses", ())
        return cls(
            name=value["name"],
            type=FieldType(value["type"]),
            meta=value["meta"],
            column_type=value["column_type"],
            is_unsigned=value.get("unsigned", False),
            is_nullable=value.get("nullable", True),
            charset=value.get("charset"),
            members=tuple(value.get("members", ())),
            is_generated=value.get("generated", False),
            is_invisible=value.get("invisible", False),
            default=value.get("default"),
            is_hidden=value.get("hidden", False),
            uses=None if uses is None else tuple(uses),
            is_auto_increment=value.get("auto_increment", False),
            is_steady=value.get("steady", False),
        )


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A table: its columns in the log's order, and the names of its primary key's (or, without one, the first NOT NULL
    unique key's) columns in key order. charset: the default of columns added without one. is_versioned: MariaDB's WITH
    SYSTEM VERSIONING: its log holds rows of the past as if they were inserted.
    """

    database: str
    name: str
    columns: tuple[ColumnDefinition, ...]
    key: tuple[str, ...] = ()
    charset: str = "utf8mb4"
    is_versioned: bool = False

    @property
    def hidden(self) -> frozenset[str]:
        """The columns that stand in row images only: they are excluded like those that the user leaves out."""
        return frozenset(column.name for column in self.columns if column.is_hidden)

    @property
    def source(self) -> str:
        """The name inside the physical source, `db.table`."""
        return source_name(self.database, self.name)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return {
            "database": self.database,
            "name": self.name,
            "columns": [column.to_json() for column in self.columns],
            "key": list(self.key),
            "charset": self.charset,
            **({"versioned": True} if self.is_versioned else {}),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        columns = tuple(ColumnDefinition.from_json(column) for column in value["columns"])
        return cls(
            value["database"],
            value["name"],
            columns,
            tuple(value["key"]),
            value["charset"],
            value.get("versioned", False),
        )
