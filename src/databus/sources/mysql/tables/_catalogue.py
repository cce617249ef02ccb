"""Reads the server's catalogue: all tables of all user databases as they are now, in a handful of queries."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from databus.core import UnsupportedFeature
from databus.sources.mysql._charsets import canonical_charset, charset_of_collation
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.tables._column_clauses import digits_of, read_default
from databus.sources.mysql.tables._column_types import parse_column_type
from databus.sources.mysql.tables._generated_columns import computed
from databus.sources.mysql.tables._lexer import ServerKind, Token, UnreadableStatement, tokens_of
from databus.sources.mysql.tables._literals import spelled
from databus.sources.mysql.tables._members import Asker
from databus.sources.mysql.tables._syntax import EXPRESSION, KeyPart, SqlLiteral
from databus.sources.mysql.tables._table_state import PRIMARY, Key, TableState
from databus.sources.mysql.tables._token_cursor import TokenCursor
from databus.sources.mysql.tables._unknown_tables import SERVERS_OWN

Query = Callable[[str], Sequence[Sequence[Any]]]

_MEMORY: Final = "MEMORY"
_BASE_TABLES: Final = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})


@dataclass(slots=True)
class Catalogue:
    """Everything that a history begins with."""

    tables: list[TableState] = field(default_factory=list)
    databases: dict[str, str] = field(default_factory=dict)
    """The default character set of each database."""
    others: set[tuple[str, str]] = field(default_factory=set)
    """Views and sequences."""
    unread: dict[tuple[str, str], str] = field(default_factory=dict)
    """Tables of a kind that databus does not know, with the reason."""
    is_whole: bool = True
    """Whether the server has no other tables."""

    def definitions(self) -> list[TableDefinition]:
        """What rows of each table are decoded by, in the order of names."""
        return [table.definition for table in self.tables]


def read_catalogue(query: Query, server: ServerKind, *, tables: Iterable[tuple[str, str]] | None = None) -> Catalogue:
    """Read all user databases, or only `tables`. One query each for databases, tables, columns and keys.

    The connection's character set must be utf8mb4 and its sql_mode without NO_BACKSLASH_ESCAPES. A table of a kind that
    databus does not know is in `unread`, with the reason.
    """
    wanted = None if tables is None else set(tables)
    schema_filter = (
        "" if wanted is None else f" AND table_schema IN ({', '.join(sorted({_text(name) for name, _ in wanted}))})"
    )
    if wanted is not None and not wanted:
        return Catalogue()
    catalogue = Catalogue()
    users = f"schema_name NOT IN {SERVERS_OWN}"
    for name, charset in query(
        f"SELECT schema_name, default_character_set_name FROM information_schema.schemata WHERE {users}"
    ):
        catalogue.databases[_str(name)] = _charset(_str(charset))
    own = f"WHERE table_schema NOT IN {SERVERS_OWN}{schema_filter}"
    listed = query(
        f"SELECT table_schema, table_name, table_type, table_collation, engine FROM information_schema.tables {own}"
    )
    columns, keys, asker = _columns(query, own), _keys(query, own), Asker(query, server)
    for row in sorted(listed, key=lambda row: (_str(row[0]), _str(row[1]))):
        name = (_str(row[0]), _str(row[1]))
        if wanted is not None and name not in wanted:
            continue
        if _str(row[2]) not in _BASE_TABLES:
            catalogue.others.add(name)
            continue
        is_versioned = _str(row[2]) == "SYSTEM VERSIONED"
        charset = charset_of_collation(_str(row[3] or "")) or catalogue.databases.get(name[0], "utf8mb4")
        try:
            hides_hashes = server.is_mariadb and _str(row[4]) != _MEMORY
            made = [_key(*item, hides_hashes=hides_hashes) for item in sorted(keys[name].items())]
            table = _table(name, charset, columns[name], made, server, is_versioned=is_versioned)
            catalogue.tables.append(_settled(table, asker))
        except UnreadableStatement as why:
            catalogue.unread[name] = str(why)
    return catalogue


def _text(name: str) -> str:
    quoted = name.replace("\\", "\\\\").replace("'", "''")
    return f"'{quoted}'"


def _str(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _charset(name: str) -> str:
    canonical = canonical_charset(name)
    if canonical is None:
        raise UnsupportedFeature(f"the server has the character set {name!r}, which databus does not know")
    return canonical


def _columns(query: Query, own: str) -> defaultdict[tuple[str, str], list[Sequence[Any]]]:
    columns: defaultdict[tuple[str, str], list[Sequence[Any]]] = defaultdict(list)
    for row in query(
        "SELECT table_schema, table_name, ordinal_position, column_name, column_type, character_set_name, is_nullable, "
        f"column_key, extra, column_default, generation_expression FROM information_schema.columns {own}"
    ):
        columns[_str(row[0]), _str(row[1])].append(row[2:])
    return columns


def _keys(query: Query, own: str) -> defaultdict[tuple[str, str], dict[str, list[Sequence[Any]]]]:
    keys: defaultdict[tuple[str, str], dict[str, list[Sequence[Any]]]] = defaultdict(dict)
    for row in query(
        "SELECT table_schema, table_name, index_name, seq_in_index, column_name, sub_part, non_unique, index_type "
        f"FROM information_schema.statistics {own}"
    ):
        keys[_str(row[0]), _str(row[1])].setdefault(_str(row[2]), []).append(row[3:])
    return keys


def _table(
    name: tuple[str, str],
    charset: str,
    columns: list[Sequence[Any]],
    made: list[Key],
    server: ServerKind,
    *,
    is_versioned: bool,
) -> TableState:
    columns.sort(key=lambda row: int(row[0]))
    definitions = tuple(_column(row, server) for row in columns)
    if not definitions:
        raise UnreadableStatement("the catalogue shows no columns; the user may not have SELECT on it")
    expressions = [_str(row[8] or "") for row in columns]
    definitions = tuple(
        _computed(column, expression, definitions, server, is_stored="VIRTUAL" not in _str(row[6]).upper())
        if column.is_generated
        else column
        for column, expression, row in zip(definitions, expressions, columns, strict=True)
    )
    in_key = {_str(row[1]) for row in columns if _str(row[5]) == "PRI"}
    row_times = ""
    if is_versioned:
        is_shown = any(_str(row[8] or "").upper() in ("ROW START", "ROW END") for row in columns)
        row_times = "explicit" if is_shown else "implicit"
    chosen = [key for key in made if key.kind == "unique" and {part.name for part in key.parts} == in_key]
    ordered = chosen[:1] + [key for key in made if key not in chosen[:1]]
    return TableState(name[0], name[1], definitions, tuple(ordered), charset, row_times).with_sorted_keys()


def _computed(
    column: ColumnDefinition,
    expression: str,
    columns: Sequence[ColumnDefinition],
    server: ServerKind,
    *,
    is_stored: bool,
) -> ColumnDefinition:
    """A generated column, with the columns that its expression uses. MySQL's catalogue escapes quotes in it."""
    is_computed = is_stored and expression.upper() not in ("ROW START", "ROW END")
    plain = expression if server.is_mariadb else expression.replace("\\'", "'")
    try:
        tokens = list(tokens_of(plain, server))
    except UnreadableStatement:
        tokens = [Token("other", expression, "", 0, 0)]  # which no session is known to understand in the same way
    return computed(column, expression, tokens, columns, is_stored=is_computed)


def _settled(table: TableState, asker: Asker) -> TableState:
    """The table with members that the catalogue does not show."""
    columns = tuple(
        asker.settle(table.database, table.name, column) if column.members else column for column in table.columns
    )
    return table if columns == table.columns else replace(table, columns=columns)


def _key(name: str, parts: list[Sequence[Any]], *, hides_hashes: bool) -> Key:
    """hides_hashes: whether the engine keeps hashes in columns of its own, or has indices of hashes."""
    parts.sort(key=lambda row: int(row[0]))
    is_unique = not int(parts[0][3])
    kind = "primary" if name == PRIMARY else "unique" if is_unique else "index"
    is_hashed = hides_hashes and kind == "unique" and _str(parts[0][4]) == "HASH"
    columns = tuple(KeyPart("" if row[1] is None else _str(row[1]), int(row[2] or 0)) for row in parts)
    return Key(kind, name, columns, is_hashed=is_hashed)


def _column(row: Sequence[Any], server: ServerKind) -> ColumnDefinition:
    _, name, column_type, charset, nullable, _, extra, default, expression = row
    resolved = parse_column_type(_str(column_type), None if charset is None else _charset(_str(charset)), server)
    words = _str(extra).upper()
    is_generated = bool(expression) or "GENERATED" in words.replace("DEFAULT_GENERATED", "")
    column = ColumnDefinition(
        name=_str(name),
        type=resolved.type,
        meta=resolved.meta,
        column_type=resolved.column_type,
        is_unsigned=resolved.is_unsigned,
        is_nullable=_str(nullable) == "YES",
        charset=resolved.charset,
        members=resolved.members,
        is_generated=is_generated,
        is_invisible="INVISIBLE" in words,
        is_auto_increment="AUTO_INCREMENT" in words,
    )
    if is_generated or default is None:
        return column
    literal = _default(column, default, server, is_expression="DEFAULT_GENERATED" in words)
    return replace(column, default=spelled(column, literal))


def _default(column: ColumnDefinition, default: Any, server: ServerKind, *, is_expression: bool) -> SqlLiteral:
    """A default as the catalogue has it: MariaDB's in SQL, MySQL's bare."""
    if is_expression:
        return EXPRESSION
    if server.is_mariadb:
        try:
            cursor = TokenCursor(tokens_of(_str(default), server), server, 0, "")
            literal = read_default(cursor)
        except UnreadableStatement:
            return EXPRESSION
        return literal if cursor.is_at_end else EXPRESSION
    text = default.decode("utf-8", "surrogateescape") if isinstance(default, bytes) else str(default)
    if column.type is FieldType.BIT and text.startswith("b'"):
        return SqlLiteral("bits", digits_of(text))
    if column.charset == BINARY and text.startswith("0x") and server.version >= (8,):
        return SqlLiteral("hex", digits_of(text))
    return SqlLiteral("string", text)
