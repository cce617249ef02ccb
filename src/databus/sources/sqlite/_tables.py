"""Tables as SQLite knows them: columns, what identifies a row, and every key by which a row may replace another."""

import sqlite3
from dataclasses import dataclass
from typing import Final

from databus.core import UnsupportedFeature, source_name
from databus.sources.sqlite._tokens import body_parts, condition_of, mentions, tokens_of, without_order

OWN_PREFIX: Final = "_databus_"
_ROWID_NAMES: Final = ("rowid", "_rowid_", "oid")


def quoted(name: str) -> str:
    """A name as an identifier.

    >>> quoted("order")
    '"order"'
    """
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class ColumnShape:
    """One column."""

    name: str
    declared: str
    """Its type, as it was declared."""
    not_null: bool
    default: str | None
    """The SQL text of its default."""
    is_generated: bool
    """Computed, virtual or stored."""


@dataclass(frozen=True, slots=True)
class IndexPart:
    """One part of a unique key."""

    text: str
    """A column's name, or an expression over the table's columns."""
    collation: str
    """How it compares."""
    is_column: bool


@dataclass(frozen=True, slots=True)
class UniqueKey:
    """A key over which a row may replace another."""

    parts: tuple[IndexPart, ...]
    condition: str | None = None
    """Of a partial index."""

    @property
    def is_plain(self) -> bool:
        """Whether it is made of columns alone."""
        return self.condition is None and all(part.is_column for part in self.parts)


@dataclass(frozen=True, slots=True)
class TableShape:
    """A table."""

    name: str
    columns: tuple[ColumnShape, ...]
    primary_key: tuple[str, ...]
    """Declared key columns in key order."""
    identity: UniqueKey
    """The key by which SQLite itself finds a row: the rowid, or the primary key of a WITHOUT ROWID table."""
    has_rowid: bool
    rowid_column: str | None
    """The column that is the rowid."""
    uniques: tuple[UniqueKey, ...]
    """The other keys."""

    @property
    def source(self) -> str:
        """The full name inside the physical source."""
        return source_name("main", self.name)


def list_tables(db: sqlite3.Connection) -> dict[str, str]:
    """Users' tables and what they are (`table`, `virtual`), by name; without views, SQLite's tables and our own."""
    rows = db.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main' ORDER BY name")
    return {
        name: kind
        for name, kind in rows
        if kind in ("table", "virtual") and not name.startswith(("sqlite_", OWN_PREFIX))
    }


def read_shape(db: sqlite3.Connection, name: str) -> TableShape:
    """Describe a table. Raises `UnsupportedFeature` for one in which a replaced row could not be noticed."""
    rows = db.execute(
        "SELECT name, type, \"notnull\", dflt_value, pk, hidden FROM pragma_table_xinfo(?, 'main')", (name,)
    ).fetchall()
    columns = tuple(ColumnShape(c, t or "", bool(n), d, h in (2, 3)) for c, t, n, d, _, h in rows)
    primary_key = tuple(row[0] for row in sorted((row for row in rows if row[4]), key=lambda row: row[4]))
    (without_rowid,) = db.execute(
        "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?", (name,)
    ).fetchone()
    indexes = db.execute(
        "SELECT name, origin, partial FROM pragma_index_list(?, 'main') WHERE \"unique\" ORDER BY name", (name,)
    ).fetchall()
    keys = {index: (origin, _read_key(db, index)) for index, origin, _ in indexes}
    if without_rowid:
        identity = next(key for origin, key in keys.values() if origin == "pk")
        uniques = tuple(key for origin, key in keys.values() if origin != "pk")
        rowid_column = None
    else:
        rowid = _rowid_name(name, columns)
        identity = UniqueKey((IndexPart(rowid, "BINARY", is_column=True),))
        uniques = tuple(key for _, key in keys.values())
        has_pk_index = any(origin == "pk" for origin, _ in keys.values())
        rowid_column = primary_key[0] if len(primary_key) == 1 and not has_pk_index else None
    shape = TableShape(name, columns, primary_key, identity, not without_rowid, rowid_column, uniques)
    if rowid_column is not None:
        _refuse_keys_made_of_rowid(db, shape, rowid_column)
    return shape


def _rowid_name(table: str, columns: tuple[ColumnShape, ...]) -> str:
    taken = {column.name.lower() for column in columns}
    for name in _ROWID_NAMES:
        if name not in taken:
            return name
    source = source_name("main", table)
    raise UnsupportedFeature(
        f"{source}: its columns take all of {', '.join(_ROWID_NAMES)}, so that its rows cannot be distinguished; "
        f"rename one, or leave the table out with `exclude: [{source}]`"
    )


def _read_key(db: sqlite3.Connection, index: str) -> UniqueKey:
    rows = db.execute("SELECT cid, name, coll FROM pragma_index_xinfo(?, 'main') WHERE key ORDER BY seqno", (index,))
    described = rows.fetchall()
    row = db.execute("SELECT sql FROM main.sqlite_schema WHERE type = 'index' AND name = ?", (index,)).fetchone()
    sql = row[0] if row else None
    if sql is None:  # made by a constraint: columns, no condition
        return UniqueKey(tuple(IndexPart(name, coll, is_column=True) for _, name, coll in described))
    texts, tail = body_parts(sql)
    parts = tuple(
        IndexPart(without_order(text), coll, is_column=False) if cid == -2 else IndexPart(name, coll, is_column=True)
        for text, (cid, name, coll) in zip(texts, described, strict=True)
    )
    return UniqueKey(parts, condition_of(tail))


def _refuse_keys_made_of_rowid(db: sqlite3.Connection, shape: TableShape, rowid_column: str) -> None:
    """A BEFORE trigger does not know the rowid that SQLite is going to give, so neither what is computed from it."""
    (sql,) = db.execute(
        "SELECT sql FROM main.sqlite_schema WHERE type = 'table' AND name = ?", (shape.name,)
    ).fetchone()
    names = {rowid_column, *_ROWID_NAMES}
    unknown = {
        column.name for column in shape.columns if column.is_generated and _definition_mentions(sql, column, names)
    }
    for key in shape.uniques:
        for part in key.parts:
            if part.text in unknown or (not part.is_column and mentions(part.text, names | unknown)):
                raise UnsupportedFeature(
                    f"{shape.source}: the unique index over {part.text} is computed from the rowid {rowid_column}, "
                    f"so that rows replaced through it cannot be noticed; drop the index, or leave the table out "
                    f"with `exclude: [{shape.source}]`"
                )


def _definition_mentions(sql: str, column: ColumnShape, names: set[str]) -> bool:
    for part in body_parts(sql)[0]:
        first = next(tokens_of(part), None)
        if first is not None and first.name.lower() == column.name.lower():
            return mentions(part[first.end :], names)
    return True
