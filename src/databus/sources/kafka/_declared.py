"""The tables in `schemas`: as they are captured, and as their messages are read."""

from typing import TYPE_CHECKING, Final

from databus.schema import Column, TableSchema

if TYPE_CHECKING:
    from databus.sources.kafka._config import KafkaConfig

ORIGIN: Final = (
    ("origin_version", "int64", "_commit_version"),
    ("origin_seq", "int64", "_seq"),
    ("origin_txid", "string", "_txid"),
    ("origin_timestamp", "timestamptz", "_commit_timestamp"),
)
"""Columns that an envelope's own place gets, their types, and the bus's columns that its reader puts them in."""


def declared(name: str, config: "KafkaConfig") -> tuple[TableSchema, TableSchema]:
    """The table as it is captured, and as its messages are read."""
    declaration = config.schemas[name]
    columns = tuple(
        Column(column, kind.type, kind.nullable and column not in declaration.key, kind.db_type)
        for column, kind in declaration.columns.items()
    )
    key, first_images = tuple(declaration.key), config.has_first_images
    excluded = config.excluded_columns(name, declaration.key)
    kept = tuple(column for column in columns if column.name not in excluded)
    origin = tuple(Column(column, kind) for column, kind, _ in ORIGIN) if config.origin_columns else ()
    return TableSchema(name, (*kept, *origin), key, first_images), TableSchema(name, columns, key, first_images)
