"""The captured tables of a server: whether they exist, are readable and logged, and can be captured."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import pymysql
from pymysql.constants import ER

from databus.core import DatabusError, database_name, is_pattern, name_fits, name_parts, source_name, split_database
from databus.sources._capabilities import Finding, Severity
from databus.sources.mysql._captured_tables import CapturedTables, TableSelection
from databus.sources.mysql._config import MysqlConfig
from databus.sources.mysql._definition import TableDefinition, identifier
from databus.sources.mysql.server._errors import error_of, telling
from databus.sources.mysql.server._status import DENIED, ServerFacts, account_of, ask, grants_of, has_global
from databus.sources.mysql.tables import ServerKind, read_catalogue

SYSTEM_DATABASES: Final = ("information_schema", "performance_schema", "mysql", "sys")
_NAMED_MAX: Final = 5  # in a message
_PROBES_MAX: Final = 2_000  # tables that are asked for one by one
_TRANSACTIONAL: Final = frozenset({"INNODB", "ROCKSDB", "TOKUDB", "NDB", "NDBCLUSTER"})
_MERGE: Final = "MRG_MYISAM"
_ZONED: Final = re.compile(r"\b(?:from_unixtime|unix_timestamp)\(", re.IGNORECASE)
_ACTS: Final = re.compile(r" ON (?:DELETE|UPDATE) (?:CASCADE|SET NULL|SET DEFAULT)\b")


@dataclass(frozen=True, slots=True)
class _CheckedTable:
    database: str
    name: str
    engine: str

    @property
    def source(self) -> str:
        return source_name(self.database, self.name)

    @property
    def identifier(self) -> str:
        return identifier(self.database, self.name)


def of_tables(connection: "pymysql.Connection[Any]", facts: ServerFacts, config: MysqlConfig) -> Iterator[Finding]:
    """What every start checks about them."""
    selection = TableSelection(config, fold=facts.lower_case_table_names != 0)
    tables = [table for table in _visible_tables(connection) if selection.selects(table.database, table.name)]
    account = account_of(connection)
    yield from _of_absence(connection, facts, config, tables)
    if not tables:
        return
    yield from _of_reading(connection, facts, tables, account)
    yield from _of_log_filters(facts, tables)
    yield from _of_engines_without_rows(connection, facts, tables)
    lax = [table for table in tables if table.engine.upper() not in _TRANSACTIONAL | {_MERGE, "BLACKHOLE"}]
    if lax:
        engines = ", ".join(sorted({table.engine for table in lax}))
        what = f"{_listed(lax)} of engine {engines}, without transactions: what a statement that failed half-way has "
        what += "changed stays, and a snapshot of it while it is written is not of one moment"
        yield Finding("warning", "engine", facts.server, what, f"ALTER TABLE {lax[0].identifier} ENGINE = InnoDB")
    databases = sorted({table.database for table in tables})
    with_key = _with_key(connection, databases)
    keyless = [table for table in tables if (table.database, table.name) not in with_key]
    if keyless:
        what = f"{_listed(keyless)} without a primary key: captured, but no mirror can follow and snapshots are slow"
        mend = f"ALTER TABLE {keyless[0].identifier} ADD PRIMARY KEY (...)"
        yield Finding("info", "no_key", facts.server, what, mend)
        if config.lock_tables_without_key and config.snapshot != "never":
            what = "`lock_tables_without_key` wants while they are read"
            yield from _of_locks(connection, facts, keyless, account, "error", what)
    if config.snapshot != "never":
        reported = keyless if config.lock_tables_without_key else ()
        locked, why = _locked_by_snapshots(facts, tables, lax, keyless)
        locked = [table for table in locked if table not in reported]
        yield from _of_locks(connection, facts, locked, account, "warning", why)
    yield from _of_cascades(connection, facts, tables, databases)
    yield from _of_time_zones(connection, facts, tables, databases)


def of_definitions(connection: "pymysql.Connection[Any]", facts: ServerFacts, config: MysqlConfig) -> list[Finding]:
    """Captured tables with a column or type that cannot be captured; a start would stop at the first of them."""
    selection = TableSelection(config, fold=facts.lower_case_table_names != 0)
    tables = CapturedTables("", selection, config, lambda *_: None, lambda *_: False, {})

    def query(sql: str) -> Sequence[Sequence[Any]]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    with telling(facts.server, "reading the tables' definitions"):
        catalogue = read_catalogue(query, ServerKind(facts.flavor, facts.version))
    findings = [
        Finding("error", "table", facts.server, f"{source_name(*name)} cannot be captured: {why}", "exclude it")
        for name, why in catalogue.unread.items()
        if selection.selects(*name)
    ]
    for table in catalogue.tables:
        if tables.selects(table.definition):
            try:
                tables.describe(table.definition)
            except DatabusError as error:
                findings.append(Finding("error", "table", facts.server, str(error)))
    return [*findings, *_of_types(facts, config, selection, [table.definition for table in catalogue.tables])]


def _of_types(
    facts: ServerFacts, config: MysqlConfig, selection: TableSelection, definitions: Sequence[TableDefinition]
) -> Iterator[Finding]:
    """Columns in `types` that no captured table has: a misspelt name would have no effect."""
    captured = [definition for definition in definitions if selection.selects(definition.database, definition.name)]
    columns = {
        selection.name_of(definition): {column.name.lower() for column in definition.columns} for definition in captured
    }
    for source, asked in config.types.items():
        known = columns.get(source.lower() if facts.lower_case_table_names else source, set())
        for name in asked:
            if name.lower() not in known:
                what = f"`types` names the column {name!r} of {source}, which no captured table has"
                yield Finding("warning", "types", facts.server, what, "correct the name, or take it out of `types`")


def _visible_tables(connection: "pymysql.Connection[Any]") -> list[_CheckedTable]:
    rows = ask(
        connection,
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, ENGINE AS e FROM information_schema.TABLES "
        "WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN %s ORDER BY 1, 2",
        SYSTEM_DATABASES,
    )
    return [_CheckedTable(str(row["d"]), str(row["t"]), str(row["e"] or "unknown")) for row in rows]


def _of_engines_without_rows(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, tables: Sequence[_CheckedTable]
) -> Iterator[Finding]:
    """A statement on a MERGE table is logged with its name, whichever part it changes. BLACKHOLE keeps nothing."""
    merged = [table for table in tables if table.engine.upper() == _MERGE]
    if merged:
        what = f"{_listed(merged)} of engine MERGE: the log names it for rows of its parts, so neither comes out right"
        yield Finding("error", "engine", facts.server, what, f"add {merged[0].source} to `exclude`")
    others = [table for table in _visible_tables(connection) if table.engine.upper() == _MERGE and table not in tables]
    if others and any(table.engine.upper() == "MYISAM" for table in tables):
        what = f"{_listed(others)} of engine MERGE: what is changed through it is not seen in its parts, if captured"
        yield Finding("warning", "engine", facts.server, what, "write to the parts only")
    empty = [table for table in tables if table.engine.upper() == "BLACKHOLE"]
    if empty:
        what = f"{_listed(empty)} of engine BLACKHOLE: its rows are logged and captured, and the server keeps none"
        yield Finding(
            "warning", "engine", facts.server, what, f"add {empty[0].source} to `exclude` if that is not meant"
        )


def _of_absence(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, config: MysqlConfig, tables: Sequence[_CheckedTable]
) -> Iterator[Finding]:
    """Patterns that fit no table, and tables that may exist although the user cannot see them."""
    account = account_of(connection)
    grants = grants_of(connection, facts)
    sees_all = has_global(grants, "SELECT")
    unseen = "" if sees_all else ", or the user may not see it"
    fold = facts.lower_case_table_names != 0
    present = {table.source.lower() if fold else table.source for table in tables}
    visible = [table.source for table in _visible_tables(connection)]
    for pattern in (pattern for pattern in config.tables if pattern.count(".") > 1):
        candidates = [other for other in visible if fnmatchcase(".".join(name_parts(other)), pattern)]
        if candidates and not any(name_fits(other, pattern) for other in visible):
            what = f"no table fits {pattern}, but {min(candidates)} is there: write a dot of a database in backquotes"
            yield Finding("warning", "tables", facts.server, what, "correct `tables`")
    named = [pattern for pattern in config.tables if split_database(pattern)[0] and not is_pattern(pattern)]
    for pattern in named:
        database, name = name_parts(pattern)
        source = source_name(database, name)
        if (source.lower() if fold else source) not in present and config.selects(source):
            what = f"{pattern} is not there{unseen}"
            grant = f"GRANT SELECT ON {identifier(database, name)} TO {account}"
            yield Finding("warning", "tables", facts.server, what, "correct `tables`" if sees_all else grant)
    if not tables and len(named) < len(config.tables):
        databases = sorted({database_name(table.database) for table in _visible_tables(connection)})
        seen = f"databases with tables: {', '.join(databases[:_NAMED_MAX]) or 'none'}"
        what = f"no table fits {', '.join(config.tables)}: there is none{unseen}; {seen}"
        grant = f"GRANT SELECT ON *.* TO {account}"
        yield Finding("warning", "tables", facts.server, what, "correct `tables`" if sees_all else grant)
    elif not sees_all:
        hidden = [pattern for pattern in config.tables if is_pattern(pattern) and not _sees_database(grants, pattern)]
        if hidden:
            what = f"{', '.join(hidden)} may fit tables that the user may not see, and whose rows would not be read"
            yield Finding("warning", "tables", facts.server, what, f"GRANT SELECT ON *.* TO {account}")


def _sees_database(grants: Iterable[str], pattern: str) -> bool:
    """Whether SELECT is granted on all of the one database that a pattern is about."""
    database, _ = name_parts(pattern)
    for privileges, name in _grants_on_databases(grants):
        if {"SELECT", "ALL PRIVILEGES"}.isdisjoint(privileges):
            continue
        if database in (name, name.replace("\\_", "_").replace("\\%", "%")):
            return True
    return False


def _locked_by_snapshots(
    facts: ServerFacts, tables: Sequence[_CheckedTable], lax: Sequence[_CheckedTable], keyless: Sequence[_CheckedTable]
) -> tuple[Sequence[_CheckedTable], str]:
    """The tables that a snapshot locks, even if only for a moment, and the reason."""
    if facts.flavor == "mysql" and facts.gtid != "on":
        return tables, "a snapshot does for a moment to find its place in the log, since the server has no GTIDs"
    locked = [*lax, *(keyless if facts.flavor == "mysql" else ())]
    return list(dict.fromkeys(locked)), "a snapshot does where a table has no key or no transactions"


def _of_locks(
    connection: "pymysql.Connection[Any]",
    facts: ServerFacts,
    tables: Sequence[_CheckedTable],
    account: str,
    severity: Severity,
    why: str,
) -> Iterator[Finding]:
    """Whether databus may lock the tables that need it. why: the reason for the locks. Only a warning if nothing
    but a snapshot needs them: a capture that has read its tables continues without.
    """
    grants = grants_of(connection, facts)
    if has_global(grants, "LOCK TABLES"):
        return
    refused = [table for table in tables if not _may_lock(grants, table.database)]
    if refused:
        what = f"the user may not lock {_listed(refused)}, which {why}; capture stops when it comes to read them"
        databases = sorted({table.database for table in refused})
        mend = "; ".join(f"GRANT LOCK TABLES ON {identifier(database)}.* TO {account}" for database in databases)
        yield Finding(severity, "privileges", facts.server, what, mend)


def _may_lock(grants: Iterable[str], database: str) -> bool:
    """Whether LOCK TABLES is granted on a database. The name in a grant is a pattern of LIKE."""
    for privileges, name in _grants_on_databases(grants):
        pattern = re.sub(
            r"\\?.", lambda match: {"%": ".*", "_": "."}.get(match[0], re.escape(match[0][-1])), name, flags=re.DOTALL
        )
        if not {"LOCK TABLES", "ALL PRIVILEGES"}.isdisjoint(privileges) and re.fullmatch(pattern, database, re.DOTALL):
            return True
    return False


def _grants_on_databases(grants: Iterable[str]) -> Iterator[tuple[list[str], str]]:
    """The privileges that each grant gives on a whole database, and the database as the grant writes it."""
    for grant in grants:
        match = re.match(r"GRANT (.+?) ON `((?:[^`]|``)+)`\.\* TO ", grant)
        if match is not None:
            yield match[1].upper().split(", "), match[2].replace("``", "`")


def _of_reading(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, tables: Sequence[_CheckedTable], account: str
) -> Iterator[Finding]:
    grants = grants_of(connection, facts)
    if has_global(grants, "SELECT") and not any(grant.startswith("REVOKE") for grant in grants):
        return
    unreadable = [table for table in tables[:_PROBES_MAX] if not _is_readable(connection, table)]
    if unreadable:
        what = f"the user may not read {_listed(unreadable)}"
        mend = "; ".join(f"GRANT SELECT ON {table.identifier} TO {account}" for table in unreadable[:_NAMED_MAX])
        yield Finding("error", "privileges", facts.server, what, mend)


def _is_readable(connection: "pymysql.Connection[Any]", table: _CheckedTable) -> bool:
    try:
        ask(connection, f"SELECT * FROM {table.identifier} LIMIT 0")  # noqa: S608 - an identifier, quoted
    except pymysql.MySQLError as error:
        if error_of(error)[0] == ER.NO_SUCH_TABLE:  # dropped since we looked
            return True
        if error_of(error)[0] not in {*DENIED, ER.COLUMNACCESS_DENIED_ERROR}:
            raise
        return False
    return True


def _of_log_filters(facts: ServerFacts, tables: Sequence[_CheckedTable]) -> Iterator[Finding]:
    def hidden(names: frozenset[str], is_hidden: Callable[[str], bool], option: str) -> Iterator[Finding]:
        lost = [table for table in tables if names and is_hidden(table.database)]
        if lost:
            what = f"{option} keeps {_listed(lost)} out of the log"
            mend = f"take {option} out of the server's option file, and restart it"
            yield Finding("error", "log_filter", facts.server, what, mend)

    yield from hidden(facts.never_logged, lambda name: name in facts.never_logged, "binlog-ignore-db")
    yield from hidden(facts.logged_only, lambda name: name not in facts.logged_only, "binlog-do-db")


def _with_key(connection: "pymysql.Connection[Any]", databases: Sequence[str]) -> set[tuple[str, str]]:
    """The tables with a primary key or a unique one over columns that are never NULL."""
    rows = ask(
        connection,
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.STATISTICS "
        "WHERE NON_UNIQUE = 0 AND TABLE_SCHEMA IN %s GROUP BY TABLE_SCHEMA, TABLE_NAME, INDEX_NAME "
        "HAVING SUM(NULLABLE = 'YES' OR COLUMN_NAME IS NULL) = 0",
        list(databases),
    )
    return {(str(row["d"]), str(row["t"])) for row in rows}


def _of_cascades(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, tables: Sequence[_CheckedTable], databases: Sequence[str]
) -> Iterator[Finding]:
    """What InnoDB changes by a foreign key's rule is in no log; MySQL 9.6 does it above the engine, and logs it."""
    if facts.variables.get("innodb_native_foreign_keys", "ON").upper() == "OFF":
        return
    rows = ask(
        connection,
        "SELECT DISTINCT TABLE_SCHEMA AS d, TABLE_NAME AS t FROM information_schema.KEY_COLUMN_USAGE "
        "WHERE TABLE_SCHEMA IN %s AND REFERENCED_TABLE_NAME IS NOT NULL ORDER BY 1, 2",
        list(databases),
    )
    referring = {(str(row["d"]), str(row["t"])) for row in rows}
    ask(connection, "SET SESSION sql_quote_show_create = 1")
    hit = [
        (table, constraint)
        for table in [table for table in tables if (table.database, table.name) in referring][:_PROBES_MAX]
        for constraint in _acting_constraints(connection, table)
    ]
    if hit:
        what = (
            f"{_listed([table for table, _ in hit])} with a foreign key that deletes or changes rows by itself "
            f"(CASCADE, SET NULL): the server does not log those changes, so they cannot be captured"
        )
        table, constraint = hit[0]
        mend = (
            f"ALTER TABLE {table.identifier} DROP FOREIGN KEY {identifier(constraint)} /* and add it with RESTRICT */"
        )
        yield Finding("warning", "foreign_key", facts.server, what, mend)


def _of_time_zones(
    connection: "pymysql.Connection[Any]", facts: ServerFacts, tables: Sequence[_CheckedTable], databases: Sequence[str]
) -> Iterator[Finding]:
    """Generated columns whose value depends on a session's time zone: the log has the writer's, a snapshot ours."""
    rows = ask(
        connection,
        "SELECT TABLE_SCHEMA AS d, TABLE_NAME AS t, COLUMN_NAME AS c, DATA_TYPE AS y, GENERATION_EXPRESSION AS e "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA IN %s AND (DATA_TYPE = 'timestamp' OR "
        "GENERATION_EXPRESSION <> '') ORDER BY 1, 2, ORDINAL_POSITION",
        list(databases),
    )
    captured = {(table.database, table.name) for table in tables}
    moments = {(row["d"], row["t"], identifier(row["c"])) for row in rows if row["y"] == "timestamp"}
    hit = []
    for row in rows:
        text = re.sub(r"'(?:[^'\\]|\\.|'')*'", "''", str(row["e"] or "").replace("\\'", "'"))
        mentioned = [name for database, table, name in moments if (database, table) == (row["d"], row["t"])]
        for name in mentioned:
            text = re.sub(rf"unix_timestamp\({re.escape(name)}\)", "", text, flags=re.IGNORECASE)  # the same everywhere
        if (row["d"], row["t"]) in captured and (_ZONED.search(text) or any(name in text for name in mentioned)):
            hit.append(f"{row['d']}.{row['t']}.{row['c']}")
    if hit:
        what = (
            f"{', '.join(hit[:_NAMED_MAX])}: a generated column over a TIMESTAMP has another value in each session's "
            f"time zone: the log has the writer's, a snapshot that of UTC"
        )
        mend = "have all sessions write in UTC, or leave the column out with `columns`"
        yield Finding("warning", "time_zone", facts.server, what, mend)


def _acting_constraints(connection: "pymysql.Connection[Any]", table: _CheckedTable) -> list[str]:
    """The foreign keys of a table that change its rows. MariaDB's catalogue shows their rules only to those who may
    write the table; SHOW CREATE TABLE shows them to every reader.
    """
    try:
        (row,) = ask(connection, f"SHOW CREATE TABLE {table.identifier}")
    except pymysql.MySQLError as error:
        if error_of(error)[0] in {*DENIED, ER.NO_SUCH_TABLE}:
            return []
        raise
    names = []
    for line in str(row["Create Table"]).splitlines():
        head = re.match(r"\s*CONSTRAINT `((?:[^`]|``)+)` FOREIGN KEY ", line)
        if head and _ACTS.search(re.sub(r"`(?:[^`]|``)*`", "", line)):
            names.append(head[1].replace("``", "`"))
    return names


def _listed(tables: Sequence[_CheckedTable]) -> str:
    names = list(dict.fromkeys(table.source for table in tables))
    rest = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + rest
