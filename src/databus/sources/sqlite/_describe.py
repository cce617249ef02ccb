"""Describe: what a table of the database is to the bus, under the options chosen."""

from dataclasses import dataclass
from typing import Final

from databus.core import ConfigError
from databus.schema import Column, TableSchema
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._tables import TableShape
from databus.sources.sqlite._types import ColumnKind, checked_kind, kind_of

_COLUMNS_OF_SQLITE: Final = 2_000
"""In one table, as SQLite is built everywhere (SQLITE_MAX_COLUMN)."""
_BESIDE_A_CHANGE: Final = 3
"""The change table's number, table and operation."""
_BESIDE_A_COPY: Final = 2
"""The scratch table's number and `held`; it has the columns of each key once more."""


@dataclass(frozen=True, slots=True)
class Described:
    """A table as the bus sees it: its definition, and the kind of each column's values, in the same order."""

    table: TableSchema
    kinds: tuple[ColumnKind, ...]


def describe(config: SqliteConfig, shape: TableShape) -> Described:
    """The captured columns of a table, typed, and its key: the declared primary key, or none.

    Raises `ConfigError` for an option that names a column wrongly, and for more columns than the triggers can log.
    """
    source = shape.source
    excluded = config.left_out(source)
    in_key = [name for name in shape.primary_key if name.lower() in excluded]
    if in_key:
        raise ConfigError(f"columns.{source}.exclude: {in_key[0]!r} is part of the key; a row needs its key")
    names = {column.name.lower() for column in shape.columns}
    for asked, types in config.types.items():
        unknown = sorted(name for name in types if asked.lower() == source.lower() and name.lower() not in names)
        if unknown:
            raise ConfigError(f"types.{asked}: no column {unknown[0]!r}; there are {', '.join(sorted(names))}")
    columns: list[Column] = []
    kinds: list[ColumnKind] = []
    for column in shape.columns:
        if column.name.lower() in excluded:
            continue
        override = config.type_of(source, column.name)
        where = f"types.{source}.{column.name}"
        kind = kind_of(column.declared) if override is None else checked_kind(override, where)
        nullable = not column.not_null and column.name not in shape.primary_key
        ours, declared = ("string", "ANY (as a literal)") if kind == "any" else (kind, column.declared)
        columns.append(Column(column.name, ours, nullable, declared))
        kinds.append(kind)
    key_columns = sum(len(key.parts) for key in (shape.identity, *shape.uniques))
    columns_max = _COLUMNS_OF_SQLITE - max(_BESIDE_A_CHANGE, _BESIDE_A_COPY + key_columns)
    if len(columns) > columns_max:
        raise ConfigError(
            f"{source}: {len(columns):,} columns, of which {columns_max:,} can be captured, since SQLite's tables have "
            f"{_COLUMNS_OF_SQLITE:,} at most and each change is a row of one; name {len(columns) - columns_max} that "
            f"are not needed in `columns: {{{source}: {{exclude: [...]}}}}`, or the table in `exclude`"
        )
    return Described(TableSchema(source, tuple(columns), shape.primary_key), tuple(kinds))
