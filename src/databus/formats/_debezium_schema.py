"""The schemas of Debezium's messages and keys, as Connect's JSON converter writes them beside each payload."""

from functools import lru_cache
from typing import Any, Final

from databus.formats._debezium_types import DebeziumForm, connect_type
from databus.formats._messages import dumps
from databus.schema import TableSchema

_SCHEMAS_KEPT_MAX: Final = 1024
CONNECTOR: Final = "databus"
_VERSION: Final = 1

SOURCE_FIELDS: Final = (
    ("version", "string", False),
    ("connector", "string", False),
    ("name", "string", False),
    ("ts_ms", "int64", False),
    ("snapshot", "string", True),
    ("db", "string", False),
    ("sequence", "string", True),
    ("ts_us", "int64", True),
    ("ts_ns", "int64", True),
    ("table", "string", True),
    ("gtid", "string", True),
)
"""The members of `source`, their types, and whether they may be null: what all of Debezium's connectors have, and of
MySQL's the table and the transaction's id."""
TRANSACTION_FIELDS: Final = (
    ("id", "string", False),
    ("total_order", "int64", False),
    ("data_collection_order", "int64", False),
)
_TIMES: Final = (("ts_ms", "int64", True), ("ts_us", "int64", True), ("ts_ns", "int64", True))


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def value_schema(table: TableSchema, physical: str, form: DebeziumForm) -> str:
    """The schema of a table's envelopes, as JSON."""
    name = f"{physical}.{table.source}"
    row = [connect_type(column, form).to_json(optional=column.nullable, field=column.name) for column in table.columns]
    return dumps(
        struct_of(
            f"{name}.Envelope",
            [
                {**struct_of(f"{name}.Value", row, optional=True), "field": "before"},
                {**struct_of(f"{name}.Value", row, optional=True), "field": "after"},
                {**struct_of(f"io.debezium.connector.{CONNECTOR}.Source", fields_of(SOURCE_FIELDS)), "field": "source"},
                {**struct_of("event.block", fields_of(TRANSACTION_FIELDS), optional=True), "field": "transaction"},
                *fields_of((("op", "string", False), *_TIMES)),
            ],
        )
    )


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def key_schema(table: TableSchema, physical: str, form: DebeziumForm) -> str:
    """The schema of a table's keys, as JSON."""
    columns = [table.column(name) for name in table.key]
    fields = [connect_type(column, form).to_json(optional=column.nullable, field=column.name) for column in columns]
    return dumps(struct_of(f"{physical}.{table.source}.Key", fields))


def struct_of(name: str, fields: list[dict[str, Any]], *, optional: bool = False) -> dict[str, Any]:
    """The schema of a struct."""
    return {"type": "struct", "fields": fields, "optional": optional, "name": name, "version": _VERSION}


def fields_of(fields: tuple[tuple[str, str, bool], ...]) -> list[dict[str, Any]]:
    """Fields by their names and types, and whether they may be null."""
    return [{"type": kind, "optional": optional, "field": name} for name, kind, optional in fields]
