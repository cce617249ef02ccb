"""Column types: from a type's words to what a table map and the catalogue have for them.

`resolve` is the server's own reckoning: default lengths, display widths, aliases, TEXT(n), a VARCHAR that is too long.
"""

from dataclasses import dataclass, replace
from typing import Final

from databus.sources.mysql._charsets import (
    BYTES_A_CHARACTER,
    UTF8MB3,
    canonical_charset,
    charset_of_collation,
    goes_with_any_charset,
    shown,
)
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql._server_text import decoded
from databus.sources.mysql.tables._column_clauses import read_type
from databus.sources.mysql.tables._lexer import (
    ServerKind,
    SqlMode,
    UnknownEffect,
    UnreadableStatement,
    tokens_of,
    words,
)
from databus.sources.mysql.tables._literal_charsets import LiteralCharsets
from databus.sources.mysql.tables._syntax import TypeText
from databus.sources.mysql.tables._token_cursor import TokenCursor

OLD_TIME_NOTES: Final = ("/* mariadb-5.3 */", "/* 5.5 binary format */")
"""How catalogues mark columns whose times are stored, and logged, as before MySQL 5.6."""

_CATALOGUE: Final = LiteralCharsets()
UNKNOWN_CHARSET: Final = ""
"""The default of a table that takes it from its database, or from another table, where the log does not say it."""

_COMPRESSED_NOTE: Final = " /*M!100301 COMPRESSED*/"
_VARCHAR_BYTES_MAX: Final = 65_535
_VARCHAR_BYTES_MAX_OF_MARIADB: Final = 65_532
_WIDTHLESS_FROM: Final = (8, 0, 19)  # MySQL shows no display widths from here on
_FLOAT_DIGITS: Final = 24

_INTEGERS: Final = {
    "TINYINT": (FieldType.TINY, 4, 3),
    "SMALLINT": (FieldType.SHORT, 6, 5),
    "MEDIUMINT": (FieldType.INT24, 9, 8),
    "INT": (FieldType.LONG, 11, 10),
    "BIGINT": (FieldType.LONGLONG, 20, 20),
}
"""By word: type, display width where none is given, signed and unsigned."""

_BLOBS: Final = {1: "TINY", 2: "", 3: "MEDIUM", 4: "LONG"}
_BLOB_WORDS: Final = {
    **{f"{size}BLOB": length for length, size in _BLOBS.items()},
    **{f"{size}TEXT": length for length, size in _BLOBS.items()},
}
_GEOMETRIES: Final = words(
    "GEOMETRY POINT LINESTRING POLYGON MULTIPOINT MULTILINESTRING MULTIPOLYGON GEOMETRYCOLLECTION"
)
_TIMES: Final = {
    "TIME": (FieldType.TIME2, FieldType.TIME),
    "DATETIME": (FieldType.DATETIME2, FieldType.DATETIME),
    "TIMESTAMP": (FieldType.TIMESTAMP2, FieldType.TIMESTAMP),
}
_ADDRESSES: Final = {"UUID": 16, "INET4": 4, "INET6": 16}


@dataclass(frozen=True, slots=True)
class ColumnType:
    """A resolved type: see `ColumnDefinition` for the meaning of each."""

    type: FieldType
    meta: int
    column_type: str
    is_unsigned: bool = False
    charset: str | None = None
    members: tuple[str, ...] = ()


def charset_of(kind: TypeText, inherited: str) -> str:
    """The character set of a column of text, where the table's is `inherited`."""
    if kind.is_byte:
        return BINARY
    return known_charset(resolve_charset(kind.charset, kind.collation, UTF8MB3 if kind.is_national else inherited))


def known_charset(charset: str) -> str:
    """`charset`, for columns of text. Raises `UnknownEffect` if it is unknown."""
    if charset == UNKNOWN_CHARSET:
        raise UnknownEffect(
            "a column has a default character set that the log does not say: its database was made before the log "
            "begins (for log files, say it in `database_charsets`), or the statement is in the server's own words, as "
            "it logs CREATE TABLE ... LIKE a temporary table"
        )
    return charset


def resolve_charset(charset: str | None, collation: str | None, inherited: str) -> str:
    """The character set that the words CHARACTER SET and COLLATE give, where either may be missing."""
    if charset is not None:
        canonical = canonical_charset(charset)
        if canonical is None:
            raise UnreadableStatement(f"{charset[:40]!r} is no character set that we know")
        return canonical
    if collation is None or goes_with_any_charset(collation):
        return inherited
    canonical = charset_of_collation(collation)
    if canonical is None:
        raise UnreadableStatement(f"{collation[:40]!r} is no collation that we know")
    return canonical


def resolve(
    kind: TypeText, inherited: str, server: ServerKind, sql_mode: int = 0, written: LiteralCharsets = _CATALOGUE
) -> ColumnType:
    """What the server makes of a type, where the table's character set is `inherited`. Raises `UnreadableStatement`."""
    word = kind.word
    if word in _INTEGERS or word in ("BOOL", "SERIAL"):
        return _integer(kind, server)
    if word in _TIMES or word in ("DATE", "YEAR"):
        return _time(kind, server, sql_mode)
    if word in ("DECIMAL", "FLOAT", "DOUBLE", "REAL", "BIT"):
        return _number(kind, sql_mode)
    if word in ("ENUM", "SET"):
        return _members(kind, charset_of(kind, inherited), server, written)
    if word in _TEXTS:
        return _text(kind, charset_of(kind, inherited), server)
    return _other(kind, server)


def _size(kind: TypeText, default: int) -> int:
    return kind.sizes[0] if kind.sizes else default


def _integer(kind: TypeText, server: ServerKind) -> ColumnType:
    word = {"BOOL": "TINYINT", "SERIAL": "BIGINT"}.get(kind.word, kind.word)
    field, signed, unsigned = _INTEGERS[word]
    is_unsigned = kind.is_unsigned or kind.word == "SERIAL"
    width = 1 if kind.word == "BOOL" else _size(kind, 0) or (unsigned if is_unsigned else signed)
    text = word.lower()
    hides = not server.is_mariadb and server.version >= _WIDTHLESS_FROM and not kind.is_zerofill
    if not hides or (word == "TINYINT" and width == 1 and not is_unsigned):
        text += f"({width})"
    return ColumnType(field, 0, text + _signs(kind, is_unsigned=is_unsigned), is_unsigned)


def _signs(kind: TypeText, *, is_unsigned: bool) -> str:
    return (" unsigned" if is_unsigned else "") + (" zerofill" if kind.is_zerofill else "")


def _number(kind: TypeText, sql_mode: int) -> ColumnType:
    signs = _signs(kind, is_unsigned=kind.is_unsigned)
    if kind.word == "BIT":
        bits = _size(kind, 1) or 1
        return ColumnType(FieldType.BIT, bits // 8 << 8 | bits % 8, f"bit({bits})")
    if kind.word == "DECIMAL":
        precision = _size(kind, 10) or 10
        scale = kind.sizes[1] if len(kind.sizes) > 1 else 0
        text = f"decimal({precision},{scale}){signs}"
        return ColumnType(FieldType.NEWDECIMAL, precision << 8 | scale, text, kind.is_unsigned)
    is_float = kind.word == "FLOAT" or (kind.word == "REAL" and bool(sql_mode & SqlMode.REAL_AS_FLOAT))
    sizes = ""
    if len(kind.sizes) > 1:
        sizes = f"({kind.sizes[0]},{kind.sizes[1]})"
    elif kind.word == "FLOAT":
        is_float = _size(kind, 0) <= _FLOAT_DIGITS
    if is_float:
        return ColumnType(FieldType.FLOAT, 4, f"float{sizes}{signs}", kind.is_unsigned)
    return ColumnType(FieldType.DOUBLE, 8, f"double{sizes}{signs}", kind.is_unsigned)


def _time(kind: TypeText, server: ServerKind, sql_mode: int) -> ColumnType:
    word = kind.word
    if word == "DATE":
        return ColumnType(FieldType.DATE, 0, "date")
    if word == "YEAR":
        width = _size(kind, 4)
        shows = server.is_mariadb or server.version < _WIDTHLESS_FROM
        return ColumnType(FieldType.YEAR, 0, f"year({2 if width == 2 else 4})" if shows else "year", is_unsigned=False)
    if word == "TIMESTAMP" and server.is_mariadb and sql_mode & SqlMode.MAXDB:
        word = "DATETIME"
    digits = _size(kind, 0)
    text = word.lower() + (f"({digits})" if digits else "")
    return ColumnType(_TIMES[word][0], digits, text)


def escaped(text: str) -> str:
    """A member between its quotes, as the catalogue spells it, with U+FFFD for bytes that are not valid text."""
    text = shown(text)
    for plain, spelled in (("\\", "\\\\"), ("'", "''"), ("\0", "\\0"), ("\n", "\\n"), ("\r", "\\r")):
        if plain in text:
            text = text.replace(plain, spelled)
    return text


def _whole(digits: bytes, charset: str) -> bytes:
    """The bytes written as digits, with zeros before them up to a whole unit of the character set."""
    unit = _UNITS.get(charset, 1)
    return digits.rjust(-(-len(digits) // unit) * unit, b"\0")


def _members(kind: TypeText, charset: str, server: ServerKind, written: LiteralCharsets) -> ColumnType:
    members = tuple(
        decoded(_whole(member, charset), charset) if isinstance(member, bytes) else written.text_in(member, charset)
        for member in kind.members
    )
    if charset != BINARY:
        members = tuple(member.rstrip(" ") for member in members)
    if not server.is_mariadb and server.version < (8,) and charset not in _WIDE:
        members = tuple(member.partition("\0")[0] for member in members)  # MySQL 5.7 ends them there
    spelled = ",".join(f"'{escaped(member)}'" for member in members)
    text = f"{kind.word.lower()}({spelled})"
    if kind.word == "ENUM":
        size = 1 if len(members) < 256 else 2
        return ColumnType(FieldType.ENUM, size, text, charset=charset, members=members)
    size = (len(members) + 7) // 8
    return ColumnType(FieldType.SET, 8 if size > 4 else size, text, charset=charset, members=members)


_TEXTS: Final = frozenset({"CHAR", "VARCHAR", "BINARY", "VARBINARY", *_BLOB_WORDS})


def _text(kind: TypeText, charset: str, server: ServerKind) -> ColumnType:
    word = kind.word
    if word in ("BINARY", "VARBINARY") or word.endswith("BLOB"):
        charset = BINARY
    if word in _BLOB_WORDS:
        length = _BLOB_WORDS[word]
        if kind.sizes and word in ("TEXT", "BLOB"):
            length = _length_bytes(kind.sizes[0] * BYTES_A_CHARACTER[charset], server)
        return _blob(length, charset, is_compressed=kind.is_compressed)
    if word in ("VARCHAR", "VARBINARY"):
        if not kind.sizes:
            raise UnreadableStatement(f"{word} has no length")
        size = kind.sizes[0]
        limit = _VARCHAR_BYTES_MAX_OF_MARIADB if server.is_mariadb else _VARCHAR_BYTES_MAX
        if size * BYTES_A_CHARACTER[charset] > limit:
            return _blob(_length_bytes(size * BYTES_A_CHARACTER[charset], server), charset, is_compressed=False)
        return _varchar(size, charset, is_compressed=kind.is_compressed)
    size = _size(kind, 1)
    text = f"{'binary' if charset == BINARY else 'char'}({size})"
    return ColumnType(FieldType.STRING, size * BYTES_A_CHARACTER[charset], text, charset=charset)


def _length_bytes(size: int, server: ServerKind) -> int:
    if size == 0 and (server.is_mariadb or server.version < (8,)):
        return 2
    return next((length for length in (1, 2, 3) if size < 1 << 8 * length), 4)


def _blob(length: int, charset: str, *, is_compressed: bool) -> ColumnType:
    text = _BLOBS[length].lower() + ("blob" if charset == BINARY else "text")
    if is_compressed:
        return ColumnType(FieldType.BLOB_COMPRESSED, length, text + _COMPRESSED_NOTE, charset=charset)
    return ColumnType(FieldType.BLOB, length, text, charset=charset)


def _varchar(size: int, charset: str, *, is_compressed: bool) -> ColumnType:
    text = f"{'varbinary' if charset == BINARY else 'varchar'}({size})"
    length = size * BYTES_A_CHARACTER[charset]
    if is_compressed:  # a byte says how it is compressed
        return ColumnType(FieldType.VARCHAR_COMPRESSED, length + 1, text + _COMPRESSED_NOTE, charset=charset)
    return ColumnType(FieldType.VARCHAR, length, text, charset=charset)


def _other(kind: TypeText, server: ServerKind) -> ColumnType:
    word = kind.word
    if word in _ADDRESSES:
        return ColumnType(FieldType.STRING, _ADDRESSES[word], word.lower())
    if word == "JSON":
        if server.is_mariadb:
            return ColumnType(FieldType.BLOB, 4, "longtext", charset="utf8mb4")
        return ColumnType(FieldType.JSON, 4, "json")
    if word in _GEOMETRIES:
        is_short = word == "GEOMETRYCOLLECTION" and not server.is_mariadb and server.version >= (8,)
        return ColumnType(FieldType.GEOMETRY, 4, "geomcollection" if is_short else word.lower())
    if word == "VECTOR" and not server.is_mariadb:
        return ColumnType(FieldType.VECTOR, 4, f"vector({_size(kind, 2048)})")
    raise UnreadableStatement(f"the type {word} is not one that we know")


def parse_column_type(column_type: str, charset: str | None, server: ServerKind, sql_mode: int = 0) -> ColumnType:
    """A type as the catalogue spells it, with its character set. Raises `UnreadableStatement`.

    >>> parsed = parse_column_type("varchar(10)", "utf8mb4", ServerKind("mysql", (8, 0, 31)))
    >>> parsed.type.name, parsed.meta
    ('VARCHAR', 40)
    """
    cursor = TokenCursor(tokens_of(column_type, server, sql_mode), server, 0, "")
    kind = read_type(cursor)
    if not cursor.is_at_end:
        raise UnreadableStatement(f"{column_type[:80]!r} has more after the type")
    resolved = resolve(kind, charset or BINARY, server)
    if any(note in column_type for note in OLD_TIME_NOTES):
        return replace(resolved, type=_TIMES[kind.word][1], column_type=column_type)
    return resolved


_UNITS: Final = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}
_WIDE: Final = frozenset(_UNITS)
_UTF8: Final = frozenset({UTF8MB3, "utf8mb4"})
_UTF8MB3_LAST: Final = 0xFFFF


def _check_members(column: ColumnDefinition, charset: str) -> None:
    """Raise `UnreadableStatement` where servers damage members when they convert them.

    All of them leave a member's bytes as they are, and read them in the new character set: only ASCII, and what both
    kinds of UTF-8 have, stays what it was.
    """
    if column.charset == charset:
        return
    if {column.charset, charset} == _UTF8:
        is_kept = all(ord(character) <= _UTF8MB3_LAST for member in column.members for character in member)
    else:
        is_kept = not {column.charset, charset} & _WIDE and all(member.isascii() for member in column.members)
    if not is_kept:
        raise UnreadableStatement(f"what the server makes of the members of {column.name} in {charset} is not certain")


def resize_text(column: ColumnDefinition, charset: str, server: ServerKind) -> ColumnDefinition:
    """A column of text after CONVERT TO CHARACTER SET: as many characters fit as before."""
    old, new = BYTES_A_CHARACTER[column.charset or BINARY], BYTES_A_CHARACTER[charset]
    if column.members:
        _check_members(column, charset)
        return replace(column, charset=charset)
    is_compressed = column.type in (FieldType.BLOB_COMPRESSED, FieldType.VARCHAR_COMPRESSED)
    if column.type in (FieldType.BLOB, FieldType.BLOB_COMPRESSED):
        length = column.meta
        if new > old:
            length = _length_bytes(((1 << 8 * length) - 1) // old * new, server)
        resolved = _blob(length, charset, is_compressed=is_compressed)
    else:
        size = (column.meta - (column.type is FieldType.VARCHAR_COMPRESSED)) // old
        word = "CHAR" if column.type is FieldType.STRING else "VARCHAR"
        resolved = resolve(TypeText(word, (size,), charset=charset, is_compressed=is_compressed), charset, server)
    return replace(
        column,
        type=resolved.type,
        meta=resolved.meta,
        column_type=resolved.column_type,
        charset=resolved.charset,
        members=(),
    )
