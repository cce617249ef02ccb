"""Reads columns and keys: what stands between the brackets of CREATE TABLE, and after ADD, MODIFY and CHANGE."""

from dataclasses import replace
from typing import Final

from databus.sources.mysql.tables._lexer import SqlMode, UnreadableStatement, words
from databus.sources.mysql.tables._syntax import (
    EXPRESSION,
    NULL,
    ColumnText,
    KeyPart,
    KeyText,
    SqlLiteral,
    TypeText,
)
from databus.sources.mysql.tables._token_cursor import TokenCursor

_TYPES: Final = words(
    "TINYINT SMALLINT MEDIUMINT INT BIGINT DECIMAL FLOAT DOUBLE REAL BIT YEAR DATE TIME DATETIME TIMESTAMP CHAR "
    "VARCHAR BINARY VARBINARY TINYTEXT TEXT MEDIUMTEXT LONGTEXT TINYBLOB BLOB MEDIUMBLOB LONGBLOB JSON GEOMETRY "
    "POINT LINESTRING POLYGON MULTIPOINT MULTILINESTRING MULTIPOLYGON GEOMETRYCOLLECTION ENUM SET UUID INET4 INET6 "
    "VECTOR BOOL SERIAL"
)
_WORDS: Final = {
    **{word: word for word in _TYPES},
    "BOOLEAN": "BOOL",
    "INT1": "TINYINT",
    "INT2": "SMALLINT",
    "INT3": "MEDIUMINT",
    "MIDDLEINT": "MEDIUMINT",
    "INT4": "INT",
    "INTEGER": "INT",
    "INT8": "BIGINT",
    "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "FIXED": "DECIMAL",
    "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE",
    "CHARACTER": "CHAR",
    "VARCHARACTER": "VARCHAR",
    "GEOMCOLLECTION": "GEOMETRYCOLLECTION",
}
_ORACLE: Final = {
    "NUMBER": "DECIMAL",
    "VARCHAR2": "VARCHAR",
    "CLOB": "LONGTEXT",
    "BLOB": "LONGBLOB",
    "RAW": "VARBINARY",
    "DATE": "DATETIME",
}
"""MariaDB's `sql_mode=ORACLE` gives these words other meanings, as does `oracle_schema.` before them."""
_SCHEMAS: Final = ("MARIADB_SCHEMA", "ORACLE_SCHEMA", "MAXDB_SCHEMA")
"""What may stand before a type, and a dot, in MariaDB: its SHOW CREATE TABLE writes it where the sql_mode misleads."""

_NOW: Final = frozenset({"CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP"})
_KEY_WORDS: Final = frozenset({"PRIMARY", "UNIQUE", "INDEX", "KEY", "FULLTEXT", "SPATIAL", "FOREIGN", "CONSTRAINT"})
_KEY_OPTIONS: Final = frozenset(
    {"USING", "TYPE", "KEY_BLOCK_SIZE", "COMMENT", "ENGINE_ATTRIBUTE", "WITH", "CLUSTERING"}
)
"""They say how a key is stored or described, not which rows are equal by it: that depends on its columns and, in
MariaDB, on HASH. A key that queries may not use (INVISIBLE, IGNORED) refuses equal rows like any other.
"""


def at_key(cursor: TokenCursor) -> bool:
    """Whether a key, a constraint or a period comes next, not a column."""
    return cursor.at_one_of(_KEY_WORDS) or _at_period(cursor) or at_check(cursor)


def _at_period(cursor: TokenCursor) -> bool:
    return cursor.at_words("PERIOD", "FOR") or cursor.at_words("PERIOD", "IF", "NOT", "EXISTS", "FOR")


def at_check(cursor: TokenCursor) -> bool:
    """Whether a CHECK comes next."""
    return cursor.at_words("CHECK") and cursor.at_mark("(", 1)


def read_type(cursor: TokenCursor) -> TypeText:
    """A type and, where they follow at once, its attributes."""
    type_text = _read_word(cursor)
    while (extended := _type_attribute(cursor, type_text)) is not None:
        type_text = extended
    return type_text


def _read_word(cursor: TokenCursor) -> TypeText:
    written = cursor.identifier().upper()
    oracle = cursor.server.is_mariadb and bool(cursor.sql_mode & SqlMode.ORACLE)
    if written in _SCHEMAS and cursor.accept_mark("."):
        oracle = written == "ORACLE_SCHEMA"
        is_maxdb = written == "MAXDB_SCHEMA"
        written = cursor.identifier().upper()
        written = "DATETIME" if is_maxdb and written == "TIMESTAMP" else written
    word = (_ORACLE.get(written) if oracle else None) or _WORDS.get(written, written)
    if written == "BLOB" and cursor.at_mark("("):
        word = written  # of a length of its own, as in any sql_mode
    is_national = False
    if word in ("NATIONAL", "NCHAR", "NVARCHAR"):
        is_national = True
        inner = cursor.accept_one_of("CHAR", "CHARACTER", "VARCHAR", "VARCHARACTER") if word != "NVARCHAR" else ""
        word = "VARCHAR" if word == "NVARCHAR" or inner.startswith("VAR") else "CHAR"
    elif word == "LONG":
        word = _read_long(cursor)
    elif word not in _WORDS:
        raise UnreadableStatement(f"{written[:40]} is no type that we know")
    if word == "CHAR" and cursor.accept("VARYING"):
        word = "VARCHAR"
    if word == "DOUBLE":
        cursor.accept("PRECISION")
    if word in ("ENUM", "SET"):
        return TypeText(word, members=_read_members(cursor))
    sizes = _read_sizes(cursor)
    if oracle and written == "NUMBER" and not sizes:
        word = "DOUBLE"
    return TypeText(word, sizes=sizes, is_national=is_national)


def _read_long(cursor: TokenCursor) -> str:
    if cursor.accept("VARBINARY"):
        return "MEDIUMBLOB"
    if cursor.accept_one_of("CHAR", "CHARACTER"):
        cursor.expect("VARYING")
    else:
        cursor.accept_one_of("VARCHAR", "VARCHARACTER")
    return "MEDIUMTEXT"


def _read_sizes(cursor: TokenCursor) -> tuple[int, ...]:
    if not cursor.accept_mark("("):
        return ()
    sizes = [cursor.cut_number()]
    while cursor.accept_mark(","):
        sizes.append(cursor.cut_number())
    cursor.accept_one_of("BYTE", "CHAR")  # sql_mode=ORACLE
    cursor.expect_mark(")")
    return tuple(sizes)


def _read_members(cursor: TokenCursor) -> tuple[str | bytes, ...]:
    cursor.expect_mark("(")
    members = [_read_member(cursor)]
    while cursor.accept_mark(","):
        members.append(_read_member(cursor))
    cursor.expect_mark(")")
    return tuple(members)


def _read_member(cursor: TokenCursor) -> str | bytes:
    token = cursor.take()
    if token.kind == "string":
        return token.text
    if token.kind in ("hex", "bits"):
        return bytes_of(SqlLiteral(token.kind, digits_of(token.text)))
    raise UnreadableStatement(f"a member expected, not {token.text[:40]!r}")


def digits_of(text: str) -> str:
    """The digits of `0x1F`, `x'1F'`, `0b11` or `b'11'`."""
    return text[2:].rstrip("'")


def bytes_of(literal: SqlLiteral) -> bytes:
    """The bytes that a literal in hexadecimal or binary digits stands for."""
    width, base = (2, 16) if literal.kind == "hex" else (8, 2)
    count = -(-len(literal.text) // width)
    return int(literal.text or "0", base).to_bytes(count, "big")


def _type_attribute(cursor: TokenCursor, type_text: TypeText) -> TypeText | None:
    """The type with the attribute that comes next; None if none does."""
    if cursor.accept("UNSIGNED"):
        return replace(type_text, is_unsigned=True)
    if cursor.accept("SIGNED"):
        return type_text
    if cursor.accept("ZEROFILL"):
        return replace(type_text, is_unsigned=True, is_zerofill=True)
    if cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET"):
        return replace(type_text, charset=None if cursor.accept("DEFAULT") else cursor.text())
    if cursor.accept("COLLATE"):
        return replace(type_text, collation=None if cursor.accept("DEFAULT") else cursor.text())
    if cursor.accept("BYTE"):
        return replace(type_text, is_byte=True)
    if cursor.accept("BINARY"):
        return type_text  # a collation of the same character set
    if cursor.accept("ASCII"):
        return replace(type_text, charset="latin1")
    if cursor.accept("UNICODE"):
        return replace(type_text, charset="ucs2")
    if cursor.server.is_mariadb and cursor.accept("COMPRESSED"):
        if cursor.accept_mark("="):
            cursor.text()
        return replace(type_text, is_compressed=True)
    return None


def read_column(cursor: TokenCursor, name: str) -> ColumnText:
    """A column after its name: type and attributes, up to a comma, a closing bracket or a place."""
    column = ColumnText(name, read_type(cursor))
    while not _ends_column(cursor):
        column = _attribute(cursor, column)
    if column.type.word == "SERIAL":
        kind = replace(column.type, word="BIGINT", is_unsigned=True)
        return replace(column, type=kind, is_nullable=False, is_auto_increment=True, is_unique=True)
    return column


def keys_of(column: ColumnText) -> list[KeyText]:
    """The keys that a column's own attributes make."""
    parts = (KeyPart(column.name),)
    primary = [KeyText("primary", "PRIMARY", parts)] if column.is_primary else []
    return [*primary, KeyText("unique", "", parts)] if column.is_unique else primary


def _ends_column(cursor: TokenCursor) -> bool:
    if cursor.is_at_end or cursor.at_mark(",") or cursor.at_mark(")") or cursor.at_one_of(("FIRST", "AFTER")):
        return True
    return cursor.at_words("PARTITION", "BY") or cursor.at_words("REMOVE", "PARTITIONING")


def _attribute(cursor: TokenCursor, column: ColumnText) -> ColumnText:
    type_text = _type_attribute(cursor, column.type)
    if type_text is not None:
        return replace(column, type=type_text)
    changed = _state(cursor, column) or _default(cursor, column) or _generated(cursor, column)
    if changed is not None:
        return changed
    if cursor.at_mark("=", 1) and not cursor.at_one_of(_NAMED):
        option = cursor.identifier()
        cursor.take()
        cursor.skip_value()
        return replace(column, engine_option=option)
    _skip_attribute(cursor)
    return column


def _state(cursor: TokenCursor, column: ColumnText) -> ColumnText | None:
    if cursor.accept("NOT", "NULL"):
        return replace(column, is_nullable=False)
    if cursor.accept("NULL"):
        return replace(column, is_nullable=True)
    if cursor.accept("AUTO_INCREMENT"):
        return replace(column, is_auto_increment=True)
    if cursor.accept("UNIQUE"):
        cursor.accept("KEY")
        return replace(column, is_unique=True)
    if cursor.accept("PRIMARY", "KEY") or cursor.accept("PRIMARY") or cursor.accept("KEY"):
        return replace(column, is_primary=True)
    if cursor.accept("INVISIBLE"):
        return replace(column, is_invisible=True)
    if cursor.accept("VISIBLE"):
        return replace(column, is_invisible=False)
    if cursor.accept("SERIAL", "DEFAULT", "VALUE"):
        return replace(column, is_nullable=False, is_auto_increment=True, is_unique=True)
    return None


def _default(cursor: TokenCursor, column: ColumnText) -> ColumnText | None:
    if cursor.accept("DEFAULT"):
        return replace(column, default=read_default(cursor))
    if cursor.accept("ON", "UPDATE"):
        if not cursor.accept_one_of(*_NOW):
            raise UnreadableStatement(f"ON UPDATE {cursor.peek().text[:40]}")
        if cursor.at_mark("("):
            cursor.skip_brackets()
        return replace(column, on_update=True)
    return None


def _generated(cursor: TokenCursor, column: ColumnText) -> ColumnText | None:
    if not (cursor.accept("GENERATED", "ALWAYS", "AS") or cursor.accept("AS")):
        return None
    if cursor.accept("ROW"):
        if not cursor.accept_one_of("START", "END"):
            raise UnreadableStatement("ROW START or ROW END expected")
        return replace(column, is_generated=True, is_row_time=True, is_nullable=False)
    expression = tuple(cursor.skip_brackets())
    is_stored = cursor.accept_one_of("VIRTUAL", "STORED", "PERSISTENT") in ("STORED", "PERSISTENT")
    return replace(column, is_generated=True, expression=expression, is_stored=is_stored)


_NAMED: Final = ("COMMENT", "COLUMN_FORMAT", "STORAGE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "SRID")
"""They say how a column is stored or described. A SRID is refused where a row has another one; so is a row that fails a
CHECK or REFERENCES.
"""


def _skip_attribute(cursor: TokenCursor) -> None:
    if cursor.accept_one_of(*_NAMED):
        cursor.accept_mark("=")
        cursor.skip_value()
    elif cursor.at_words("REFERENCES"):
        skip_references(cursor)
    elif cursor.accept("CONSTRAINT"):
        if not cursor.at_words("CHECK"):
            cursor.identifier()
    elif cursor.accept("CHECK"):
        cursor.skip_brackets()
        skip_enforced(cursor)
    elif cursor.accept("NOT", "SECONDARY") or cursor.accept("WITHOUT", "SYSTEM", "VERSIONING"):
        pass
    else:
        raise UnreadableStatement(f"{cursor.peek().text[:40]!r} in the definition of a column")


def skip_enforced(cursor: TokenCursor) -> None:
    """Pass [NOT] ENFORCED."""
    if not cursor.accept("NOT", "ENFORCED"):
        cursor.accept("ENFORCED")


def read_default(cursor: TokenCursor) -> SqlLiteral:
    """What follows DEFAULT: one literal, or `EXPRESSION`."""
    if cursor.at_mark("("):
        cursor.skip_brackets()
        return EXPRESSION
    sign = ""
    while cursor.at_mark("-") or cursor.at_mark("+"):
        sign = "-" if (cursor.take().text == "-") != (sign == "-") else ""
    token = cursor.take()
    if token.kind == "number":
        return SqlLiteral("number", sign + token.text)
    if sign:
        raise UnreadableStatement(f"a number expected, not {token.text[:40]!r}")
    if token.kind == "string":
        return SqlLiteral("string", token.text + _more_strings(cursor))
    if token.kind in ("hex", "bits"):
        return SqlLiteral(token.kind, digits_of(token.text))
    if token.kind == "word":
        return _default_word(cursor, token.upper)
    raise UnreadableStatement(f"DEFAULT {token.text[:40]}")


def _more_strings(cursor: TokenCursor) -> str:
    rest = ""
    while cursor.peek().kind == "string":
        rest += cursor.take().text
    return rest


def _default_word(cursor: TokenCursor, word: str) -> SqlLiteral:
    if word == "NULL":
        return NULL
    if word in ("TRUE", "FALSE"):
        return SqlLiteral("number", "1" if word == "TRUE" else "0")
    following = cursor.peek().kind
    if word.startswith("_") and following in ("string", "hex", "bits"):  # a character set's introducer
        token = cursor.take()
        is_plain = token.kind == "string" and token.text.isascii() and not word.startswith(("_UCS", "_UTF16", "_UTF32"))
        return SqlLiteral("string", token.text) if is_plain else EXPRESSION
    if word in ("DATE", "TIME", "TIMESTAMP") and following == "string":
        return SqlLiteral("string", cursor.take().text)
    if word in ("NEXT", "PREVIOUS") and cursor.accept("VALUE", "FOR"):
        cursor.name()
        return EXPRESSION
    if cursor.accept_mark("."):  # a sequence's or function's database
        cursor.identifier()
    if cursor.at_mark("("):
        cursor.skip_brackets()
    return EXPRESSION


def skip_references(cursor: TokenCursor) -> None:
    """Pass REFERENCES and all that belongs to it."""
    cursor.expect("REFERENCES")
    cursor.name()
    if cursor.at_mark("("):
        cursor.skip_brackets()
    while True:
        if cursor.accept("MATCH"):
            cursor.take()
        elif cursor.at_words("ON", "DELETE") or (cursor.at_words("ON", "UPDATE") and cursor.peek(2).upper not in _NOW):
            cursor.take()
            cursor.take()
            if not (cursor.accept("SET", "NULL") or cursor.accept("SET", "DEFAULT") or cursor.accept("NO", "ACTION")):
                cursor.take()
        else:
            return


def read_key(cursor: TokenCursor) -> KeyText | None:
    """A key, a constraint or a period; None for a clause that defines no key.

    A CHECK changes no row: the server refuses one that a row fails. SYSTEM_TIME is `SetVersioning`'s business.
    """
    constraint = ""
    if cursor.accept("CONSTRAINT"):
        cursor.if_not_exists()
        if not (cursor.at_one_of(_KEY_WORDS) or at_check(cursor)):
            constraint = cursor.identifier()
    if cursor.accept("CHECK"):
        cursor.skip_brackets()
        skip_enforced(cursor)
        return None
    if cursor.accept("PERIOD"):
        is_optional = cursor.if_not_exists()
        cursor.expect("FOR")
        name = cursor.identifier()
        parts = read_key_parts(cursor)
        return None if name.upper() == "SYSTEM_TIME" else KeyText("period", name, parts, is_optional)
    return _read_key(cursor, constraint)


def _read_key(cursor: TokenCursor, constraint: str) -> KeyText:
    written = cursor.accept_one_of("PRIMARY", "UNIQUE", "FULLTEXT", "SPATIAL", "FOREIGN").lower()
    kind = written if written in ("primary", "unique", "foreign") else "index"
    if kind in ("primary", "foreign"):
        cursor.expect("KEY")
    elif not cursor.accept_one_of("INDEX", "KEY") and not written:
        raise UnreadableStatement(f"a key expected, not {cursor.peek().text[:40]!r}")
    is_optional = cursor.if_not_exists()
    name = ""
    if not cursor.at_mark("(") and not (cursor.at_one_of(("USING", "TYPE")) and not cursor.at_mark("(", 1)):
        name = cursor.identifier()
    is_hash = skip_key_options(cursor)
    parts = read_key_parts(cursor)
    if kind == "foreign":
        skip_references(cursor)
        return KeyText(kind, constraint or name, parts, is_optional)
    is_hash = skip_key_options(cursor) or is_hash
    name = "PRIMARY" if kind == "primary" else name or constraint
    return KeyText(kind, name, parts, is_optional, is_hash)


def skip_key_options(cursor: TokenCursor) -> bool:
    """Pass what stands around the columns of a key; whether it asks for a hash."""
    is_hash = False
    while True:
        if cursor.accept("WITH", "PARSER"):
            cursor.text()
        elif cursor.accept_one_of("USING", "TYPE"):
            is_hash = cursor.text().upper() == "HASH"
        elif cursor.accept_one_of("VISIBLE", "INVISIBLE", "IGNORED") or cursor.accept("NOT", "IGNORED"):
            pass
        elif cursor.accept_one_of(*_KEY_OPTIONS, "SECONDARY_ENGINE_ATTRIBUTE") or (
            cursor.peek().kind in ("word", "quoted") and cursor.at_mark("=", 1) and cursor.take()
        ):
            cursor.accept_mark("=")
            cursor.skip_value()
        else:
            return is_hash


def read_key_parts(cursor: TokenCursor) -> tuple[KeyPart, ...]:
    """The columns of a key, in brackets. In which direction each is sorted says nothing of what is equal."""
    cursor.expect_mark("(")
    parts = []
    while True:
        if cursor.at_mark("("):
            cursor.skip_brackets()
            parts.append(KeyPart(""))
        else:
            name = cursor.column_name()
            sizes = _read_sizes(cursor)
            is_period = cursor.accept("WITHOUT", "OVERLAPS")
            parts.append(KeyPart(name, sizes[0] if sizes else 0, is_period))
        cursor.accept_one_of("ASC", "DESC")
        if not cursor.accept_mark(","):
            break
    cursor.expect_mark(")")
    return tuple(parts)
