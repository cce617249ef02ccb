"""Derived schemas: the frame's in Arrow, Avro for /register, Spark's as JSON, and the Arrow form that sinks take."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from databus.core import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, SNAPSHOT, TXID, name_parts
from databus.schema._table import TableSchema
from databus.schema._types import forms_of

_SCHEMAS_KEPT_MAX: Final = 4096

BUS_FIELDS: Final = (
    pa.field(CHANGE_TYPE, pa.int8(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(SEQ, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
    pa.field(TXID, pa.dictionary(pa.int32(), pa.string()), nullable=False),
    pa.field(SNAPSHOT, pa.bool_(), nullable=False),
)
"""The bus's own columns as they stand in a frame, after the table's."""


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def _user_schema(table: TableSchema) -> pa.Schema:
    return pa.schema(
        [
            pa.field(c.name, forms_of(c.type).arrow, nullable=c.nullable, metadata={"db_type": c.db_type})
            if c.db_type
            else pa.field(c.name, forms_of(c.type).arrow, nullable=c.nullable)
            for c in table.columns
        ]
    )


def user_schema(table: TableSchema) -> pa.Schema:
    """The table's own columns in Arrow, without the bus's."""
    return _user_schema(table)


@lru_cache(maxsize=_SCHEMAS_KEPT_MAX)
def _frame_schema(table: TableSchema) -> pa.Schema:
    return pa.schema(
        [*_user_schema(table), *BUS_FIELDS],
        metadata={"databus.source": table.source, "databus.fingerprint": f"{table.fingerprint:016x}"},
    )


def frame_schema(table: TableSchema) -> pa.Schema:
    """The schema of this table's frames of rows: its columns, then the bus's."""
    return _frame_schema(table)


def sink_schema(table: TableSchema) -> pa.Schema:
    """The table's own columns in the Arrow types that Spark, Delta and Parquet take: nothing unsigned; all nullable."""
    return pa.schema([pa.field(c.name, forms_of(c.type).sink) for c in table.columns])


_AVRO_NAME: Final = re.compile(r"[^A-Za-z0-9_]")


def avro_name(name: str) -> str:
    """A record's name as Avro allows it; other names may become the same."""
    cleaned = _AVRO_NAME.sub("_", name)
    return cleaned if cleaned and not cleaned[0].isdigit() else f"_{cleaned}"


_NOT_IN_FIELDS: Final = re.compile(r"^[0-9]|[^A-Za-z0-9_]")


def avro_field_name(name: str) -> str:
    """A column's name as Avro allows it, with `_uXXXX` for what it does not, as Debezium's `avro_unicode` has it.

    It depends on nothing but the column's own name: readers with another schema of the table find fields by names, and
    take one column for another if these change hands.

    >>> avro_field_name("Straße 1"), avro_field_name("1st_line")
    ('Stra_u00dfe_u00201', '_u0031st_line')
    """

    def escaped(match: re.Match[str]) -> str:
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"_u{units[at : at + 4]}" for at in range(0, len(units), 4))

    return _NOT_IN_FIELDS.sub(escaped, name) or "_"


def avro_schema(table: TableSchema, reserved: Collection[str] = ()) -> dict[str, Any]:
    """The table's row as an Avro record. Names that Avro does not allow are changed; `doc` keeps the original.

    reserved: names that no field may be given.
    """
    used = set(reserved)
    fields: list[dict[str, Any]] = []
    for column in table.columns:
        name = avro_field_name(column.name)
        while name in used:
            name += "_"
        used.add(name)
        avro = forms_of(column.type).avro
        field: dict[str, Any] = {"name": name, "type": ["null", avro] if column.nullable else avro}
        if column.nullable:
            field["default"] = None
        if name != column.name:
            field["doc"] = column.name
        if column.db_type:
            field["db_type"] = column.db_type
        fields.append(field)
    namespace, name = name_parts(table.source)
    record: dict[str, Any] = {"type": "record", "name": avro_name(name), "fields": fields}
    if namespace:
        record["namespace"] = avro_name(namespace)
    return record


def spark_fields(table: TableSchema) -> list[dict[str, Any]]:
    """The table's columns as Spark's own JSON of StructFields, for `StructType.fromJson`; imports nothing of Spark."""
    return [
        {
            "name": column.name,
            "type": forms_of(column.type).spark,
            "nullable": True,
            "metadata": {"db_type": column.db_type} if column.db_type else {},
        }
        for column in table.columns
    ]
