"""Describe: what a table of the database is to the bus, under the options chosen."""

from dataclasses import dataclass

from databus.core import ConfigError
from databus.schema import TableSchema
from databus.sources.sqlite._config import SqliteConfig
from databus.sources.sqlite._tables import TableShape
from databus.sources.sqlite._types import Kind, checked_kind, kind_of, typed_column


@dataclass(frozen=True, slots=True)
class Described:
    """A table as the bus sees it: its definition, and the kind of each column's values, in the same order."""

    table: TableSchema
    kinds: tuple[Kind, ...]


def describe(config: SqliteConfig, shape: TableShape) -> Described:
    """The captured columns of a table, typed, and its key: the declared primary key, or none.

    Raises `ConfigError` for an option that names a column wrongly.
    """
    source = shape.source
    left_out = config.left_out(source)
    in_key = [name for name in shape.primary_key if name.lower() in left_out]
    if in_key:
        raise ConfigError(f"columns.{source}.exclude: {in_key[0]!r} is part of the key; a row needs its key")
    names = {column.name.lower() for column in shape.columns}
    for asked, columns in config.types.items():
        unknown = sorted(name for name in columns if asked.lower() == source.lower() and name.lower() not in names)
        if unknown:
            raise ConfigError(f"types.{asked}: no column {unknown[0]!r}; there are {', '.join(sorted(names))}")
    typed = []
    for column in shape.columns:
        if column.name.lower() in left_out:
            continue
        override = config.type_of(source, column.name)
        where = f"types.{source}.{column.name}"
        kind = kind_of(column.declared) if override is None else checked_kind(override, where)
        nullable = not column.not_null and column.name not in shape.primary_key
        typed.append(typed_column(column.name, column.declared, kind, nullable=nullable))
    table = TableSchema(source, tuple(each.column for each in typed), shape.primary_key)
    return Described(table, tuple(each.kind for each in typed))
