"""The session of a connection that reads tables: the server must show values exactly as it stores them."""

from dataclasses import dataclass
from typing import Any

import pymysql

from databus.core import SourceChanged, UnsupportedFeature
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.snapshot._keys import key_columns
from databus.sources.mysql.snapshot._queries import table_name
from databus.sources.mysql.snapshot._read_views import query, query_by_name

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
    """What the server says about a table."""

    is_transactional: bool
    rows_estimate: int | None
    """The server's own, which may be far off."""
    index: str
    """The index by which rows can be read in the order of the key; empty if there is none."""


def prepare(connection: pymysql.Connection) -> dict[int, str]:
    """Set the session up. Returns the character sets by their collations' numbers."""
    for setting in _SETTINGS:
        query(connection, f"SET {setting}")
    for setting in _OPTIONAL:
        try:
            query(connection, f"SET {setting}")
        except pymysql.MySQLError as error:
            if error.args[0] != _UNKNOWN_VARIABLE:
                raise
    rows = query(connection, "SELECT id, character_set_name FROM information_schema.collations WHERE id IS NOT NULL")
    return {int(number): str(name) for number, name in rows}


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
    """An index over the key's whole columns, in its order, if queries may use it and a key is a place in it.

    Otherwise the server would sort for each chunk, of long values the first bytes only (`max_sort_length`).
    """
    rows = query(
        connection,
        "SELECT column_name, collation_name FROM information_schema.columns "  # noqa: S608 - as above
        f"WHERE {named} AND collation_name IS NOT NULL",
    )
    collations = {str(name): str(collation) for name, collation in rows}
    key = key_columns(definition)
    if not all(column.is_compared_as_ordered(collations.get(column.name, "")) for column in key):
        return ""
    indexes: dict[str, list[tuple[Any, ...]]] = {}
    for row in query_by_name(connection, f"SHOW INDEX FROM {table_name(definition)}"):
        is_usable = row.get("Visible") != "NO" and row.get("Ignored") != "YES" and row["Index_type"] != "HASH"
        if is_usable and not int(row["Non_unique"]):
            part = (row["Column_name"], row["Sub_part"], row["Collation"])
            indexes.setdefault(str(row["Key_name"]), []).append(part)
    sorted_whole = [[(column.name, None, direction) for column in key] for direction in "AD"]
    return next((name for name, parts in indexes.items() if key and parts in sorted_whole), "")


def _text(connection: pymysql.Connection, value: str) -> str:
    return str(connection.escape(value))
