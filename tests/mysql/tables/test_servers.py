"""The history against real servers: after every statement it says what the catalogue says, and what table maps say."""

import dataclasses
from dataclasses import replace

import pymysql
import pytest

from databus.sources.mysql._definition import ColumnDefinition, FieldType, TableDefinition
from databus.sources.mysql.binlog import Query, TableMap
from databus.sources.mysql.tables import (
    TableHistory,
    TableState,
    Unknown,
    check_agreement,
    from_table_map,
    read_catalogue,
)
from databus.testing.servers import Server
from tests.mysql.tables.corpus import SCRIPTS
from tests.mysql.tables.ddl import Generator
from tests.mysql.tables.tail import LogTail, new_history, server_of

pytestmark = [pytest.mark.old_servers, pytest.mark.both_servers]

_MODES = ("", "", "STRICT_TRANS_TABLES", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "REAL_AS_FLOAT")
_TRIES_MAX = 50  # for each statement that a server takes; between two and eight are usual
_FIELDS = tuple(field.name for field in dataclasses.fields(ColumnDefinition))
_ADDRESSES = ("uuid", "inet4", "inet6")


def _follow(history: TableHistory, tail: LogTail) -> list[TableMap]:
    maps = []
    for found in tail.new():
        if isinstance(found, Query):
            unknown = [event for event in history.apply(found) if isinstance(event, Unknown)]
            assert not unknown, unknown
        else:
            maps.append(found)
    return maps


def _told_by_map(definition: TableDefinition, like: TableDefinition) -> list[tuple[object, ...]]:
    """What a table map alone must tell of the columns that a query sees, the words of types aside."""
    return [
        (c.name, c.type, c.meta, c.is_unsigned, c.is_nullable, c.members, other.column_type in _ADDRESSES or c.charset)
        for c, other in zip(definition.columns, like.columns, strict=True)
        if not other.is_hidden
    ]


def _differences(ours: TableDefinition | None, theirs: TableDefinition) -> list[object]:
    if ours is None:
        return ["missing"]
    ours = replace(ours, charset=ours.charset or theirs.charset)  # which the log does not say of a temporary one's copy
    pairs = zip(ours.columns, theirs.columns, strict=False)
    found: list[object] = [
        (
            ours_.name,
            theirs_.column_type,
            {n: (getattr(ours_, n), getattr(theirs_, n)) for n in _FIELDS if getattr(ours_, n) != getattr(theirs_, n)},
        )
        for ours_, theirs_ in pairs
        if (ours_ if ours_.default or not ours_.members else replace(ours_, default=theirs_.default)) != theirs_
    ]  # DEFAULT 1 of an ENUM or SET is not reckoned
    if not found and (ours.key, ours.charset, len(ours.columns)) != (theirs.key, theirs.charset, len(theirs.columns)):
        found.append(
            f"{ours.key} {ours.charset}, {theirs.key} {theirs.charset}; {len(ours.columns)}, {len(theirs.columns)}"
        )
    return found


def _has_hashed_geometry(table: TableState) -> bool:
    geometries = {column.name for column in table.columns if column.type is FieldType.GEOMETRY}
    return any(part.name in geometries for key in table.keys if key.kind == "unique" for part in key.parts)


def _has_members_beyond_ascii(server: Server, database: str) -> bool:
    rows = server.query(
        "SELECT COLUMN_TYPE FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND DATA_TYPE IN ('enum', 'set')",
        database,
    )
    return not all((said.decode() if isinstance(said, bytes) else said).isascii() for (said,) in rows)


def _campaign(server: Server, database: str, seed: int, statements: int) -> None:
    facts = server_of(server)
    generator = Generator(seed, is_mariadb=facts.is_mariadb, version=facts.version)
    connection = server.connect(database=database, charset="utf8mb4")
    cursor = connection.cursor()
    charset = generator.random.choice(["latin1", "utf8mb4", "utf8"])
    cursor.execute(f"ALTER DATABASE {database} CHARACTER SET {charset}")
    tail = LogTail(server)
    history = new_history(server, captured=lambda db, _: db == database)
    history.begin(read_catalogue(server.query, facts))
    ran = tries = 0
    while ran < statements:
        tries += 1
        assert tries <= _TRIES_MAX * statements, "nearly all that is made up is refused: what does this try, then?"
        if generator.random.randrange(8) == 0:
            cursor.execute("SET sql_mode = %s", (generator.random.choice(_MODES),))
        statement = generator.statement()
        if "CONVERT TO" in statement and _has_members_beyond_ascii(server, database):
            continue  # servers damage them, and the history does not understand it
        try:
            cursor.execute(statement)
        except pymysql.err.MySQLError:
            continue
        ran += 1
        _follow(history, tail)
        catalogue = read_catalogue(server.query, facts)
        assert not catalogue.unread, statement
        there = {d.name: d for d in catalogue.definitions() if d.database == database}
        for table in catalogue.tables:
            if facts.is_mariadb and table.database == database and _has_hashed_geometry(table):
                history.put(table)  # which of these MariaDB hashes depends on how the key came about
        for name, definition in there.items():
            assert _differences(history.definition(database, name), definition) == [], statement
            generator.columns[name] = [column.name for column in definition.columns if not column.is_hidden]
            integers = [c.name for c in definition.columns if c.type in (FieldType.TINY, FieldType.SHORT)]
            generator.integers[name] = integers
        assert {name for db, name in history.names() if db == database} == set(there), statement
        if generator.random.randrange(3) == 0 and there:
            _compare_with_map(server, database, history, tail, generator.random.choice(sorted(there)))
    connection.close()


def _first_key(server: Server, database: str, name: str) -> tuple[str, ...]:
    """What MariaDB takes for a table's key. Where a column becomes NOT NULL, or a key goes, it leaves its keys in their
    order, and looks at the first one only: rows have a key that ours is, and its log says none, or another.
    """
    shown = server.query(f"SHOW KEYS FROM {database}.`{name}`")
    parts = [row for row in shown if row[2] == shown[0][2]]
    is_whole = all(not row[1] and row[7] is None and row[9] != "YES" and row[10] != "HASH" for row in parts)
    return tuple(row[4] for row in parts) if is_whole else ()


def _compare_with_map(server: Server, database: str, history: TableHistory, tail: LogTail, name: str) -> None:
    known = history.definition(database, name)
    assert known is not None
    try:
        with server.connect(database=database) as writer:
            writer.cursor().execute("SET sql_mode = ''")
            writer.cursor().execute(f"INSERT INTO `{name}` () VALUES ()")
    except pymysql.err.MySQLError:
        return
    for table_map in _follow(history, tail):
        assert tuple(column.type for column in known.columns) == table_map.types
        assert tuple(column.meta for column in known.columns) == table_map.metas
        told = zip(known.columns, table_map.nullable, strict=True)
        assert [c.name for c, may in told if c.is_nullable != may and not c.is_hidden] == []
        check_agreement(table_map, known)
        if table_map.metadata.names is not None:
            if server.flavor == "mariadb" and from_table_map(table_map).key != known.key:
                known = replace(known, key=_first_key(server, database, name))
            assert [
                each for each in _differences(from_table_map(table_map, known), known) if "HASH" not in str(each)
            ] == []
            alone = from_table_map(table_map)
            assert _told_by_map(alone, known) == _told_by_map(known, known)
            assert alone.key == known.key


def test_after_every_random_statement_the_history_is_the_catalogue(server: Server, database: str, seed: int) -> None:
    _campaign(server, database, seed, 40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_after_thousands_of_random_statements_too(server: Server, database: str, seed: int) -> None:
    _campaign(server, database, seed, 2_000)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_class_of_statements_is_followed(server: Server, database: str, script: str) -> None:
    facts = server_of(server)
    tail = LogTail(server)
    history = new_history(server, captured=lambda db, _: db in (database, "other_of_tests"))
    history.begin(read_catalogue(server.query, facts))
    with server.connect(database=database, charset="utf8mb4") as connection:
        for statement in SCRIPTS[script]:
            if "OFF" in statement and facts.is_mariadb and "timestamp" in statement:
                continue  # MariaDB does not log that setting: the server's own is believed
            try:
                connection.cursor().execute(statement)
            except pymysql.err.MySQLError:
                continue
            _follow(history, tail)
            definitions = read_catalogue(server.query, facts).definitions()
            there = {(d.database, d.name): d for d in definitions if d.database in (database, "other_of_tests")}
            for name, definition in there.items():
                assert _differences(history.definition(*name), definition) == [], statement
            names = {name for name in history.names() if name[0] in (database, "other_of_tests")}
            assert names == set(there), statement
