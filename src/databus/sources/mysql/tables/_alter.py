"""Reads ALTER TABLE, action by action, and the options of tables."""

from typing import Final

from databus.sources.mysql.tables._column_clauses import at_check, at_key, keys_of, read_column, read_default, read_key
from databus.sources.mysql.tables._lexer import UnreadableStatement, words
from databus.sources.mysql.tables._syntax import (
    FIRST,
    Action,
    AddColumn,
    AddKey,
    AlterTable,
    ChangeColumn,
    ChangeRows,
    ColumnText,
    Convert,
    CopyClause,
    DropColumn,
    DropKey,
    Options,
    RenameColumn,
    RenameKey,
    RenameTo,
    SetDefault,
    SetOptions,
    SetVersioning,
    SetVisibility,
)
from databus.sources.mysql.tables._token_cursor import TokenCursor

_QUERIES: Final = ("SELECT", "AS", "WITH", "TABLE", "VALUES", "IGNORE", "REPLACE")
_MOVES_PARTITIONS: Final = frozenset({"REORGANIZE", "COALESCE", "ANALYZE", "CHECK", "OPTIMIZE", "REBUILD", "PARTITION"})

_OPTIONS: Final = words(
    "AUTOEXTEND_SIZE AUTO_INCREMENT AVG_ROW_LENGTH CHECKSUM TABLE_CHECKSUM COMMENT COMPRESSION "
    "DELAY_KEY_WRITE ENCRYPTION ENCRYPTED ENCRYPTION_KEY_ID ENGINE_ATTRIBUTE INSERT_METHOD KEY_BLOCK_SIZE "
    "MAX_ROWS MIN_ROWS PACK_KEYS PAGE_CHECKSUM PAGE_COMPRESSED PAGE_COMPRESSION_LEVEL PASSWORD RAID_TYPE ROW_FORMAT "
    "SECONDARY_ENGINE SECONDARY_ENGINE_ATTRIBUTE STATS_AUTO_RECALC STATS_PERSISTENT STATS_SAMPLE_PAGES STORAGE "
    "TABLESPACE TRANSACTIONAL"
)
"""Options of tables that are skipped; each may stand without an equals sign. They say how rows are stored, counted,
protected or described, not which rows there are.
"""

REPAIRED: Final = ChangeRows("REPAIR takes rows away that are damaged")

COPY: Final = CopyClause(copies=True)
IN_PLACE: Final = CopyClause(copies=False)
_IN_PLACE: Final = ("INPLACE", "INSTANT", "NOCOPY")

_ELSEWHERE: Final = ("CONNECTION", "UNION", "IETF_QUOTES")
"""Options that say where, or how, an engine finds rows that it did not write. Unknown options may do so too."""


def read_options(cursor: TokenCursor) -> tuple[Options, bool]:
    """The options after the brackets of CREATE TABLE, to its end; and whether a query follows them."""
    charset = collation = engine = None
    is_versioned = False
    while not cursor.is_at_end:
        if cursor.accept("PARTITION", "BY"):
            return Options(charset, collation, engine, is_versioned), _has_query(cursor)
        if cursor.accept("WITH", "SYSTEM", "VERSIONING"):
            is_versioned = True
        elif cursor.at_one_of(_QUERIES) or cursor.at_mark("("):
            return Options(charset, collation, engine, is_versioned), True
        elif (option := _read_option(cursor)) is not None:
            charset = option.charset or charset
            collation = option.collation or (None if option.charset else collation)
            engine = option.engine or engine
    return Options(charset, collation, engine, is_versioned), False


def _has_query(cursor: TokenCursor) -> bool:
    """Whether a query follows the partitions; expressions in brackets are passed."""
    while not cursor.is_at_end:
        if cursor.at_mark("("):
            cursor.skip_brackets()
        elif cursor.at_one_of(("SELECT", "AS", "IGNORE", "REPLACE")):
            return True
        else:
            cursor.take()
    return False


def _read_option(cursor: TokenCursor) -> Options | None:
    """One table option; None for one that does not matter."""
    cursor.accept_mark(",")
    cursor.accept("DEFAULT")
    if cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET"):
        cursor.accept_mark("=")
        return Options(charset=cursor.text())
    if cursor.accept("COLLATE"):
        cursor.accept_mark("=")
        return Options(collation=cursor.text())
    if cursor.accept_one_of("ENGINE", "TYPE"):
        cursor.accept_mark("=")
        return Options(engine=cursor.text())
    if cursor.accept("START", "TRANSACTION"):
        return None
    other_rows = ""
    if not cursor.accept_one_of(*_OPTIONS):
        other_rows = cursor.accept_one_of(*_ELSEWHERE)
        if cursor.accept_one_of("DATA", "INDEX"):  # of no effect but in CREATE TABLE
            cursor.expect("DIRECTORY")
        elif not other_rows and cursor.at_mark("=", 1):  # an engine may have options of its own
            other_rows = cursor.identifier()
        elif not other_rows:
            raise UnreadableStatement(f"{cursor.peek().text[:40]!r} is no option or action that we know")
    cursor.accept_mark("=")
    cursor.skip_value()
    return Options(other_rows=other_rows) if other_rows else None


def read_alter(cursor: TokenCursor, *, ignores: bool) -> AlterTable:
    """ALTER TABLE, from its name on."""
    is_optional = cursor.if_exists()
    name = cursor.name()
    cursor.skip_wait()
    actions: list[Action] = []
    while not cursor.is_at_end:
        actions += _read_action(cursor)
        cursor.accept_mark(",")
    is_optional |= REPAIRED in actions  # it is logged of a table that is not there, too
    copies = False if IN_PLACE in actions else True if COPY in actions else None  # in place, or the server refuses
    others = tuple(action for action in actions if not isinstance(action, CopyClause))
    return AlterTable(name, others, ignores, is_optional, copies)


def _read_action(cursor: TokenCursor) -> list[Action]:
    if cursor.accept("ADD"):
        return _read_add(cursor)
    if cursor.accept("DROP"):
        return _read_drop(cursor)
    if cursor.accept("MODIFY"):
        cursor.accept("COLUMN")
        is_optional = cursor.if_exists()
        name = cursor.column_name()
        column = read_column(cursor, name)
        return [ChangeColumn(name, column, _read_place(cursor), is_optional), *_add_keys(column)]
    if cursor.accept("CHANGE"):
        cursor.accept("COLUMN")
        is_optional = cursor.if_exists()
        name = cursor.column_name()
        column = read_column(cursor, cursor.column_name())
        return [ChangeColumn(name, column, _read_place(cursor), is_optional), *_add_keys(column)]
    if cursor.accept("RENAME"):
        return _read_rename(cursor)
    if cursor.accept("ALTER"):
        return _read_alter_part(cursor)
    if cursor.accept("CONVERT"):
        return _read_convert(cursor)
    actions = _read_partition(cursor)
    return _read_rest(cursor) if actions is None else actions


def _add_keys(column: ColumnText) -> list[AddKey]:
    return [AddKey(key) for key in keys_of(column)]


def _read_place(cursor: TokenCursor) -> str | None:
    if cursor.accept("FIRST"):
        return FIRST
    return cursor.column_name() if cursor.accept("AFTER") else None


def _read_add(cursor: TokenCursor) -> list[Action]:
    if cursor.accept("PARTITION"):
        _skip_partitions(cursor)
        return []
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [SetVersioning(is_versioned=True)]
    if at_key(cursor) or at_check(cursor):
        key = read_key(cursor)
        return [] if key is None else [AddKey(key)]
    cursor.accept("COLUMN")
    is_optional = cursor.if_not_exists()
    if not cursor.accept_mark("("):
        column = read_column(cursor, cursor.column_name())
        return [AddColumn(column, _read_place(cursor), is_optional), *_add_keys(column)]
    actions: list[Action] = []
    while True:
        if at_key(cursor):
            key = read_key(cursor)
            actions += [] if key is None else [AddKey(key)]
        else:
            column = read_column(cursor, cursor.column_name())
            actions += [AddColumn(column, None, is_optional), *_add_keys(column)]
        if not cursor.accept_mark(","):
            break
    cursor.expect_mark(")")
    return actions


def _read_drop(cursor: TokenCursor) -> list[Action]:
    if cursor.accept("PRIMARY", "KEY"):
        return [DropKey("PRIMARY")]
    if cursor.accept_one_of("INDEX", "KEY"):
        is_optional = cursor.if_exists()
        return [DropKey(cursor.identifier(), is_optional)]
    if cursor.accept("FOREIGN", "KEY"):
        cursor.if_exists()
        cursor.identifier()
        return []
    if cursor.accept_one_of("CONSTRAINT", "CHECK"):
        cursor.if_exists()
        return [DropKey(cursor.identifier(), is_optional=True)]
    if cursor.accept("PARTITION"):
        cursor.if_exists()
        _skip_names(cursor)
        return [ChangeRows("a partition was dropped")]
    if cursor.accept("SYSTEM", "VERSIONING"):
        return [SetVersioning(is_versioned=False)]
    if cursor.at_words("PERIOD", "FOR") or cursor.at_words("PERIOD", "IF", "EXISTS"):
        cursor.accept("PERIOD")
        cursor.if_exists()
        cursor.expect("FOR")
        return [DropKey(cursor.identifier(), is_optional=True, is_period=True)]
    cursor.accept("COLUMN")
    is_optional = cursor.if_exists()
    name = cursor.column_name()
    cursor.accept_one_of("RESTRICT", "CASCADE")
    return [DropColumn(name, is_optional)]


def _read_rename(cursor: TokenCursor) -> list[Action]:
    if cursor.accept("COLUMN"):
        is_optional = cursor.if_exists()
        old = cursor.column_name()
        cursor.expect("TO")
        return [RenameColumn(old, cursor.column_name(), is_optional)]
    if cursor.accept_one_of("INDEX", "KEY"):
        cursor.if_exists()
        old = cursor.identifier()
        cursor.expect("TO")
        return [RenameKey(old, cursor.identifier())]
    if not cursor.accept_one_of("TO", "AS"):
        cursor.accept_mark("=")
    return [RenameTo(cursor.name())]


def _read_alter_part(cursor: TokenCursor) -> list[Action]:
    if cursor.accept_one_of("INDEX", "KEY", "CONSTRAINT", "CHECK"):
        cursor.skip_to_comma()
        return []
    cursor.accept("COLUMN")
    is_optional = cursor.if_exists()
    name = cursor.column_name()
    if cursor.accept("DROP", "DEFAULT"):
        return [SetDefault(name, None, is_optional)]
    cursor.expect("SET")
    if cursor.accept("DEFAULT"):
        return [SetDefault(name, read_default(cursor), is_optional)]
    visibility = cursor.accept_one_of("VISIBLE", "INVISIBLE")
    if not visibility:
        raise UnreadableStatement(f"ALTER COLUMN SET {cursor.peek().text[:40]}")
    return [SetVisibility(name, visibility == "INVISIBLE")]


def _read_convert(cursor: TokenCursor) -> list[Action]:
    if cursor.accept("PARTITION"):
        cursor.identifier()
        cursor.expect("TO", "TABLE")
        made = cursor.name()
        cursor.skip_to_comma()
        return [ChangeRows("a partition became a table of its own", makes=made)]
    if cursor.accept("TABLE"):
        taken = cursor.name()
        cursor.expect("TO", "PARTITION")
        _skip_partitions(cursor)
        return [ChangeRows("a table became a partition", takes=taken)]
    cursor.expect("TO")
    if not (cursor.accept("CHARACTER", "SET") or cursor.accept("CHAR", "SET") or cursor.accept("CHARSET")):
        raise UnreadableStatement("CONVERT TO CHARACTER SET expected")
    charset = None if cursor.accept("DEFAULT") else cursor.text()
    collation = None
    if cursor.accept("COLLATE"):
        collation = None if cursor.accept("DEFAULT") else cursor.text()
    return [Convert(charset, collation)]


def _read_partition(cursor: TokenCursor) -> list[Action] | None:
    """Partition maintenance; None for something else."""
    for verb, why in (("TRUNCATE", "truncated"), ("DISCARD", "discarded"), ("IMPORT", "imported")):
        if cursor.accept(verb, "PARTITION"):
            _skip_names(cursor)
            cursor.accept("TABLESPACE")
            return [ChangeRows(f"a partition was {why}")]
        if verb != "TRUNCATE" and cursor.accept(verb, "TABLESPACE"):
            return [ChangeRows(f"its tablespace was {why}")]
    if cursor.accept("REPAIR", "PARTITION"):
        cursor.accept_one_of("NO_WRITE_TO_BINLOG", "LOCAL")
        _skip_partitions(cursor)
        return [REPAIRED]
    if cursor.accept("EXCHANGE", "PARTITION"):
        cursor.identifier()
        cursor.expect("WITH", "TABLE")
        other = cursor.name()
        cursor.skip_to_comma()
        return [ChangeRows("a partition was exchanged with a table", other=other)]
    if cursor.accept("REMOVE", "PARTITIONING"):
        return [COPY]
    if cursor.at_one_of(_MOVES_PARTITIONS) and (cursor.peek(1).upper in ("PARTITION", "BY") or cursor.is_at_end):
        verb = cursor.take().upper
        _skip_partitions(cursor)
        return [COPY] if verb in ("OPTIMIZE", "PARTITION") else []
    return None


def _skip_names(cursor: TokenCursor) -> None:
    cursor.identifier()
    while cursor.accept_mark(","):
        cursor.identifier()


def _skip_partitions(cursor: TokenCursor) -> None:
    """Pass the rest of the statement: what defines partitions comes last, and moves rows only inside the table."""
    while not cursor.is_at_end:
        if cursor.at_words("PARTITION", "BY") or not cursor.at_mark("("):
            cursor.take()
        else:
            cursor.skip_brackets()


_HARMLESS: Final = frozenset({"SECONDARY_LOAD", "SECONDARY_UNLOAD"})


def _read_rest(cursor: TokenCursor) -> list[Action]:
    if cursor.accept_one_of("ENABLE", "DISABLE"):
        cursor.expect("KEYS")
        return []
    if cursor.accept_one_of("WITH", "WITHOUT"):
        cursor.expect("VALIDATION")
        return []
    if cursor.accept("ORDER", "BY"):
        while not cursor.is_at_end:
            cursor.take()
        return [COPY]
    if cursor.accept("FORCE"):
        return [COPY]
    if cursor.accept_one_of(*_HARMLESS):
        return []
    if cursor.accept("ALGORITHM"):
        cursor.accept_mark("=")
        algorithm = cursor.text().upper()
        return [COPY] if algorithm == "COPY" else [IN_PLACE] if algorithm in _IN_PLACE else []
    if cursor.accept("LOCK"):
        cursor.accept_mark("=")
        cursor.text()
        return []
    option = _read_option(cursor)
    return [] if option is None else [SetOptions(option), *([COPY] if option.engine else [])]
