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


def identifier(*names: str) -> str:
    """A name in SQL, qualified where there are several.

    >>> identifier("shop", "or`ders")
    '`shop`.`or``ders`'
    """
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


@dataclass(frozen=True, slots=True)
class ColumnDefinition:
    """One column."""

    name: str
    type: FieldType
    """As a table map has it, but ENUM, SET and CHAR are distinguished."""
    meta: int
    """As a table map has it: DECIMAL's precision << 8 | scale, the bytes that a CHAR or VARCHAR may take, the bytes of
    a BLOB's length, the digits of a time's fraction, the bytes of an ENUM or SET, BIT's bytes << 8 | odd bits.
    """
    column_type: str
    """The whole type as information_schema spells it, such as `decimal(10,2) unsigned` or `enum('a','b')`."""
    is_unsigned: bool = False
    is_nullable: bool = True
    charset: str | None = None
    """Of text, ENUM and SET; `binary` for bytes; None for other types."""
    members: tuple[str, ...] = ()
    """Of ENUM and SET, with surrogates for bytes that are not valid text or not known."""
    is_generated: bool = False
    """Captured like any other column."""
    is_invisible: bool = False
    """Captured like any other column."""
    default: str | None = None
    """In SQL: the literal that existing rows get when the column is added; None for NULL or no default."""
    is_hidden: bool = False
    """The server's own, such as DB_ROW_HASH_1: it is in row images, but no query sees it. Never captured."""
    uses: tuple[str, ...] | None = ()
    """The columns that its expression may name; empty for an ordinary column; None if it is unknown whether it is
    generated, or from what.
    """
    is_auto_increment: bool = False
    """As far as is known."""
    is_steady: bool = field(default=False, compare=False)
    """Whether a generated column is not stored, or its expression gives the same value in every session. Definitions
    that differ only in this are equal, since the same expression has many spellings.
    """

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
    """A table."""

    database: str
    name: str
    columns: tuple[ColumnDefinition, ...]
    """In the log's order."""
    key: tuple[str, ...] = ()
    """The names of the columns of the primary key (or, without one, of the first NOT NULL unique key), in key order."""
    charset: str = "utf8mb4"
    """The default of columns that are added without one."""
    is_versioned: bool = False
    """MariaDB's WITH SYSTEM VERSIONING: the log has rows of the past as if they were inserted."""

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
