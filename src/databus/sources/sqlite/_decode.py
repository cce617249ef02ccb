"""Decode: rows as SQLite hands them over, to Arrow columns, exactly or not at all. No loop over rows."""

import sqlite3
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from databus.core import UnrepresentableValue
from databus.sources.sqlite._store import TableVersion
from databus.sources.sqlite._types import ACCEPTED, ARROW

_TYPE_WORDS = {int: "an integer", float: "a real", str: "text", bytes: "a blob", type(None): "NULL"}


def decode_columns(version: TableVersion, columns: Sequence[Sequence[Any]], place: str) -> list[pa.Array]:
    """The table's columns in Arrow. place: how to name row 0's surroundings in an error, such as `change 17`.

    Raises `UnrepresentableValue` naming table, column and row for a value that the column's type does not hold exactly.
    """
    arrays = []
    for column, kind, values in zip(version.table.columns, version.kinds, columns, strict=True):
        accepted = ACCEPTED[kind]
        if not accepted.issuperset(map(type, values)):
            row = next(i for i, value in enumerate(values) if type(value) not in accepted)
            raise refusal(version, column.name, _key_of(version, columns, row), place, _words(values[row]))
        if not column.nullable and column.name in version.table.key and None in values:
            row = values.index(None)
            raise refusal(version, column.name, _key_of(version, columns, row), place, "NULL in a key column")
        try:
            arrays.append(pa.array(values, ARROW[kind]))
        except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError):
            row = next(i for i, value in enumerate(values) if not _fits(value, ARROW[kind]))
            raise refusal(version, column.name, _key_of(version, columns, row), place, _words(values[row])) from None
    return arrays


def refusal(version: TableVersion, column: str, key: str, place: str, value: str) -> UnrepresentableValue:
    """The error for a value that its column cannot hold."""
    kind = dict(zip(version.table.names, version.kinds, strict=True))[column]
    return UnrepresentableValue(
        f"{version.source}, column {column!r}, {place}, {key}: found {value}, which a column captured as {kind} cannot "
        f"hold exactly. Capture it as SQL literals with `types: {{{version.source}: {{{column}: any}}}}`, or leave the "
        f"column out. To correct the row does not help: what the triggers have written of it stays"
    )


def undecodable(version: TableVersion, rows: Sequence[Sequence[Any]], place: str) -> UnrepresentableValue:
    """The error for text that is not UTF-8; `rows` are the values with texts as bytes."""
    columns = list(zip(*rows, strict=True))
    for column, kind, values in zip(version.table.columns, version.kinds, columns, strict=True):
        if kind not in ("string", "any"):
            continue
        for row, value in enumerate(values):
            if isinstance(value, bytes):
                try:
                    value.decode()
                except UnicodeDecodeError as error:
                    text = f"text that is not UTF-8 (byte {error.start})"
                    return refusal(version, column.name, _key_of(version, columns, row), place, text)
    return UnrepresentableValue(f"{version.source}, {place}: text that is not UTF-8; leave the column out")


def fetch(db: sqlite3.Connection, version: TableVersion, sql: str, parameters: Sequence[Any], skip: int) -> list[Any]:
    """The rows of a query whose first `skip` columns are ours and the others the table's.

    Raises `UnrepresentableValue` for text that is not UTF-8.
    """
    try:
        return db.execute(sql, parameters).fetchall()
    except sqlite3.OperationalError as error:
        if "decode" not in str(error):
            raise
    db.text_factory = bytes
    try:
        rows = db.execute(sql, parameters).fetchall()
    finally:
        db.text_factory = str
    raise undecodable(version, [row[skip:] for row in rows], f"rows from {rows[0][0]} on")


def _key_of(version: TableVersion, columns: Sequence[Sequence[Any]], row: int) -> str:
    names = version.table.names
    values = [f"{name}={columns[names.index(name)][row]!r}" for name in version.table.key]
    return f"row with {', '.join(values)}" if values else f"row {row}"


def _words(value: Any) -> str:
    text = repr(value)
    return f"{_TYPE_WORDS.get(type(value), type(value).__name__)}, {text if len(text) <= 60 else text[:60] + '...'}"


def _fits(value: Any, arrow: pa.DataType) -> bool:
    try:
        pa.array([value], arrow)
    except (pa.ArrowInvalid, UnicodeEncodeError, OverflowError):
        return False
    return True
