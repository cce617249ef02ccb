"""The session of a connection that reads tables: nothing that the server displays otherwise than it stores it."""

from dataclasses import dataclass
from typing import Any

import pymysql

from databus.core import SourceChanged, UnsupportedFeature
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.snapshot._read_views import query

_SETTINGS = (
    "NAMES utf8mb4",
    "SESSION character_set_results = NULL",  # text comes in its column's own character set
    "SESSION time_zone = '+00:00'",
    "SESSION sql_mode = ''",
    "SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "SESSION net_write_timeout = 600",  # while we wait for a chunk's place
    "SESSION autocommit = 1",
)
_OPTIONAL = (
    "SESSION max_execution_time = 0",
    "SESSION max_statement_time = 0",
    "SESSION sql_quote_show_create = 1",
)
_UNKNOWN_VARIABLE = 1193


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server says about a table. index: that of its key; empty if its rows cannot be read in a key's order."""

    is_transactional: bool
    rows_estimate: int | None
    index: str


def prepare(connection: pymysql.Connection) -> dict[int, str]:
    """Set the session up; the character sets by their collations' numbers."""
    for setting in _SETTINGS:
        query(connection, f"SET {setting}")
    for setting in _OPTIONAL:
        try:
            query(connection, f"SET {setting}")
        except pymysql.MySQLError as error:
            if error.args[0] != _UNKNOWN_VARIABLE:
                raise
    found = query(connection, "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL")
    return {int(number): str(name) for number, name in found}


def facts_of(connection: pymysql.Connection, definition: TableDefinition) -> Facts:
    """Ask about a table. Raises `SourceChanged` if there is none, `UnsupportedFeature` for a view."""
    named = (
        f"table_schema = {_text(connection, definition.database)} AND table_name = {_text(connection, definition.name)}"
    )
    rows = query(
        connection,
        "SELECT t.table_type, e.transactions, t.table_rows FROM information_schema.tables t LEFT JOIN "  # noqa: S608
        f"information_schema.engines e ON e.engine = t.engine WHERE {named}",  # quoted by the driver
    )
    if not rows:
        raise SourceChanged(f"{definition.source}: there is no such table any more")
    kind, transactions, estimate = rows[0]
    if kind not in {"BASE TABLE", "SYSTEM VERSIONED"}:
        raise UnsupportedFeature(f"{definition.source} is a {kind}: only tables are captured; take it out of `tables`")
    return Facts(
        transactions == "YES", None if estimate is None else int(estimate), _index(connection, definition, named)
    )


def _index(connection: pymysql.Connection, definition: TableDefinition, named: str) -> str:
    """The index over the key's whole columns, in its order."""
    parts: dict[str, list[tuple[Any, ...]]] = {}
    for name, *rest in query(
        connection,
        "SELECT index_name, column_name, sub_part FROM information_schema.statistics WHERE non_unique = 0 "  # noqa: S608
        f"AND {named} ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
    ):
        parts.setdefault(str(name), []).append(tuple(rest))
    for name, columns in parts.items():
        if definition.key and tuple(columns) == tuple((column, None) for column in definition.key):
            return name
    return ""


def _text(connection: pymysql.Connection, value: str) -> str:
    return str(connection.escape(value))
