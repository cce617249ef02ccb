"""Reads statements: which of the few kinds that matter one is, and what it says. Start with `read_statement`."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, Protocol

from databus.sources.mysql._charsets import charset_of_number
from databus.sources.mysql.tables._alter import REPAIRED, read_alter, read_options
from databus.sources.mysql.tables._column_clauses import (
    at_key,
    keys_of,
    read_column,
    read_key,
    read_key_parts,
    skip_key_options,
)
from databus.sources.mysql.tables._column_types import UNKNOWN_CHARSET
from databus.sources.mysql.tables._lexer import ServerKind, Token, UnreadableStatement, tokens_of
from databus.sources.mysql.tables._syntax import (
    AddKey,
    AlterTable,
    ChangesRows,
    ColumnText,
    CreateOther,
    CreateTable,
    DropDatabase,
    DropKey,
    DropTables,
    KeyText,
    Name,
    Options,
    Parsed,
    RenameTables,
    SetDatabase,
    Truncate,
)
from databus.sources.mysql.tables._token_cursor import TokenCursor

_READ: Final = frozenset({"CREATE", "ALTER", "DROP", "OPTIMIZE", "RENAME", "REPAIR", "TRUNCATE"})
_ROWS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD"})
_OTHER_MAKERS: Final = ("VIEW", "SEQUENCE")
_NAME_TOKENS_MAX: Final = 6  # IF NOT EXISTS a.b
_WORDS_BEFORE_KIND_MAX: Final = 32  # CREATE OR REPLACE ALGORITHM=... DEFINER=`a`@`b` SQL SECURITY DEFINER VIEW


class DdlStatement(Protocol):
    """A statement of the log: see `databus.sources.mysql.binlog.Query`."""

    @property
    def text(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def error_code(self) -> int: ...
    @property
    def sql_mode(self) -> int | None: ...
    @property
    def charsets(self) -> tuple[int, int, int] | None: ...
    @property
    def explicit_defaults_for_timestamp(self) -> bool | None: ...
    @property
    def time_zone(self) -> str | None: ...
    @property
    def uses_temporary(self) -> bool: ...


def server_charset_of(statement: DdlStatement) -> str:
    """The default character set of the server that a statement ran on."""
    number = statement.charsets[2] if statement.charsets is not None else 0
    return charset_of_number(number) or UNKNOWN_CHARSET


def read_statement(text: str, server: ServerKind, sql_mode: int, database: str) -> Parsed:
    """What `text` says, run in `database` under `sql_mode`; None where it never matters.

    Raises `UnreadableStatement`. Only the first token of a statement that does not matter is looked at.
    """
    tokens = tokens_of(text, server, sql_mode)
    first = next((token for token in tokens if not (token.kind == "other" and token.text in "();")), None)
    if first is not None and first.upper == "SET" and server.is_mariadb:
        first = _after_set_statement(tokens)
    if first is None or first.upper not in _READ | _ROWS:
        return None
    if first.upper in _ROWS and first.upper != "DELETE":
        return ChangesRows(first.upper)
    if first.upper == "CREATE":
        head = _head(tokens)
        if head[-1].upper in ("TABLE", "INDEX", "DATABASE", "SCHEMA"):
            return _read_create(TokenCursor([*head, *tokens], server, sql_mode, database))
        if head[-1].upper in _OTHER_MAKERS:
            return _read_create(TokenCursor([*head, *islice(tokens, _NAME_TOKENS_MAX)], server, sql_mode, database))
        return None
    cursor = TokenCursor(tokens, server, sql_mode, database)
    if first.upper == "ALTER":
        return _read_alter(cursor)
    if first.upper == "DROP":
        return _read_drop(cursor)
    if first.upper == "RENAME":
        return _read_rename(cursor)
    if first.upper == "DELETE":
        return _read_delete(cursor)
    if first.upper in ("OPTIMIZE", "REPAIR"):
        return _read_maintenance(cursor, repairs=first.upper == "REPAIR")
    cursor.accept("TABLE")
    return Truncate(cursor.name())


def _after_set_statement(tokens: Iterator[Token]) -> Token | None:
    """The first token of what MariaDB's SET STATEMENT ... FOR runs; None for any other SET."""
    token = next(tokens, None)
    if token is None or token.upper != "STATEMENT":
        return None
    return next(tokens, None) if any(token.upper == "FOR" for token in tokens) else None


_MAKERS: Final = frozenset({"TABLE", "INDEX", "DATABASE", "SCHEMA", *_OTHER_MAKERS})


_ROUTINES: Final = frozenset({"PROCEDURE", "FUNCTION", "TRIGGER", "EVENT", "USER", "ROLE", "SERVER", "PACKAGE"})


def _head(tokens: Iterator[Token]) -> list[Token]:
    """What stands before the word that says what is created, and that word: the rest may be long, and not matter."""
    head = []
    for token in tokens:
        head.append(token)
        if token.upper in _MAKERS or token.upper in _ROUTINES or len(head) == _WORDS_BEFORE_KIND_MAX:
            break
    return head or [Token("end", "", "", -1, -1)]


def _read_create(cursor: TokenCursor) -> Parsed:
    or_replace = cursor.accept("OR", "REPLACE")
    if cursor.accept("TEMPORARY"):
        return None
    if cursor.accept("TABLE"):
        return _read_create_table(cursor, or_replace=or_replace)
    if cursor.accept_one_of("DATABASE", "SCHEMA"):
        is_optional = cursor.if_not_exists()
        database = cursor.identifier()
        return SetDatabase(database, _read_database_options(cursor), True, or_replace, is_optional)
    cursor.accept_one_of("ONLINE", "OFFLINE")
    kind = cursor.accept_one_of("UNIQUE", "FULLTEXT", "SPATIAL")
    if cursor.accept("INDEX"):
        return _read_create_index(cursor, "unique" if kind == "UNIQUE" else "index", or_replace=or_replace)
    while not cursor.is_at_end:
        if cursor.at_one_of(_ROUTINES):
            return None
        if kind := cursor.accept_one_of(*_OTHER_MAKERS):
            is_optional = cursor.if_not_exists() and kind == "VIEW"
            return CreateOther(cursor.name(), is_optional)
        cursor.take()
    return None


def _read_create_table(cursor: TokenCursor, *, or_replace: bool) -> CreateTable:
    is_optional = cursor.if_not_exists()
    name = cursor.name()
    if cursor.accept("LIKE"):
        return CreateTable(name, like=cursor.name(), or_replace=or_replace, is_optional=is_optional)
    columns: list[ColumnText] = []
    keys: list[KeyText] = []
    if cursor.at_mark("(") and not cursor.at_mark("(", 1) and cursor.peek(1).upper not in ("SELECT", "WITH"):
        cursor.take()
        if cursor.accept("LIKE"):
            like = cursor.name()
            cursor.expect_mark(")")
            return CreateTable(name, like=like, or_replace=or_replace, is_optional=is_optional)
        _read_elements(cursor, columns, keys)
        cursor.expect_mark(")")
    options, is_select = read_options(cursor)
    return CreateTable(
        name,
        tuple(columns),
        tuple(keys),
        options,
        is_select=is_select or not columns,
        or_replace=or_replace,
        is_optional=is_optional,
    )


def _read_elements(cursor: TokenCursor, columns: list[ColumnText], keys: list[KeyText]) -> None:
    while True:
        if at_key(cursor):
            key = read_key(cursor)
            if key is not None:
                keys.append(key)
        else:
            column = read_column(cursor, cursor.column_name())
            columns.append(column)
            keys += keys_of(column)
        if not cursor.accept_mark(","):
            return


def _read_create_index(cursor: TokenCursor, kind: str, *, or_replace: bool) -> AlterTable:
    is_optional = cursor.if_not_exists()
    name = cursor.identifier()
    is_hash = skip_key_options(cursor)
    cursor.expect("ON")
    table = cursor.name()
    parts = read_key_parts(cursor)
    key = KeyText(kind, name, parts, is_optional, skip_key_options(cursor) or is_hash)
    replaced = (DropKey(name, is_optional=True),) if or_replace else ()
    return AlterTable(table, (*replaced, AddKey(key)))


def _read_database_options(cursor: TokenCursor) -> Options:
    charset = collation = None
    while not cursor.is_at_end:
        if cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET"):
            cursor.accept_mark("=")
            charset = cursor.text()
        elif cursor.accept("COLLATE"):
            cursor.accept_mark("=")
            collation = cursor.text()
        else:
            cursor.take()
    return Options(charset=charset, collation=collation)


def _read_alter(cursor: TokenCursor) -> Parsed:
    if cursor.accept_one_of("DATABASE", "SCHEMA"):
        unnamed = cursor.at_one_of(
            ("DEFAULT", "CHARACTER", "CHARSET", "CHAR", "COLLATE", "ENCRYPTION", "READ", "COMMENT")
        )
        database = cursor.database if unnamed else cursor.identifier()
        return SetDatabase(database, _read_database_options(cursor), is_new=False)
    cursor.accept_one_of("ONLINE", "OFFLINE")
    ignores = cursor.accept("IGNORE")
    if not cursor.accept("TABLE"):
        return None
    return read_alter(cursor, ignores=ignores)


def _read_drop(cursor: TokenCursor) -> Parsed:
    if cursor.accept_one_of("DATABASE", "SCHEMA"):
        cursor.if_exists()
        return DropDatabase(cursor.identifier())
    cursor.accept_one_of("ONLINE", "OFFLINE")
    if cursor.accept("INDEX"):
        is_optional = cursor.if_exists()
        name = cursor.identifier()
        cursor.expect("ON")
        return AlterTable(cursor.name(), (DropKey(name, is_optional),))
    kind = cursor.accept_one_of("TABLE", "TABLES", "VIEW", "SEQUENCE")
    if not kind:
        return None
    is_optional = cursor.if_exists()
    names = [cursor.name()]
    while cursor.accept_mark(","):
        names.append(cursor.name())
    return DropTables(tuple(names), kind.startswith("TABLE"), is_optional)


def _read_rename(cursor: TokenCursor) -> Parsed:
    if not cursor.accept_one_of("TABLE", "TABLES"):
        return None
    is_optional = cursor.if_exists()
    pairs: list[tuple[Name, Name]] = []
    while True:
        old = cursor.name()
        cursor.skip_wait()
        cursor.expect("TO")
        pairs.append((old, cursor.name()))
        if not cursor.accept_mark(","):
            break
    if not cursor.is_at_end:
        raise UnreadableStatement(f"{cursor.peek().text[:40]!r} after RENAME TABLE")
    return RenameTables(tuple(pairs), is_optional)


def _read_maintenance(cursor: TokenCursor, *, repairs: bool) -> Parsed:
    """REPAIR and OPTIMIZE: logged whatever the engine, and of tables that are not there.

    MySQL's OPTIMIZE copies a table of InnoDB that has a FULLTEXT key, and makes invalid dates zero in any sql_mode.
    """
    cursor.accept_one_of("NO_WRITE_TO_BINLOG", "LOCAL")
    if not cursor.accept_one_of("TABLE", "TABLES"):
        return None
    names = [cursor.name()]
    while cursor.accept_mark(","):
        names.append(cursor.name())
    actions = (REPAIRED,) if repairs else ()
    first, *others = (
        AlterTable(name, actions, is_optional=True, copies=True, is_lenient=not repairs) for name in names
    )
    return replace(first, others=tuple(others))


def _read_delete(cursor: TokenCursor) -> Parsed:
    """A DELETE of all rows is how a server logs that a MEMORY table is empty since its restart."""
    if not cursor.accept("FROM"):
        return ChangesRows("DELETE")
    name = cursor.name()
    return Truncate(name) if cursor.is_at_end else ChangesRows("DELETE")
