"""Schemas of tables: one definition, and Arrow, Avro and Spark derived from it. Start with `TableSchema`."""

from databus.schema._changes import NEEDS_SNAPSHOT, ColumnOrigin, SchemaChange, origins
from databus.schema._compat import SchemaDiff, diff
from databus.schema._derive import (
    BUS_FIELDS,
    avro_field_name,
    avro_name,
    avro_schema,
    frame_schema,
    sink_schema,
    spark_fields,
    user_schema,
)
from databus.schema._evaluate import BoundPredicate, column_named
from databus.schema._exact import converted, converts_exactly, widens_to
from databus.schema._key_bytes import key_bytes, key_form
from databus.schema._key_hash import column_hashes, key_buckets, key_hashes
from databus.schema._predicate import ColumnName, ComparisonNode, In, IsNull, Joined, LiteralNode, Node, Predicate
from databus.schema._table import Column, TableSchema
from databus.schema._types import TYPE_NAMES, TypeForms, forms_of, widens

__all__ = [
    "BUS_FIELDS",
    "NEEDS_SNAPSHOT",
    "TYPE_NAMES",
    "BoundPredicate",
    "Column",
    "ColumnName",
    "ColumnOrigin",
    "ComparisonNode",
    "In",
    "IsNull",
    "Joined",
    "LiteralNode",
    "Node",
    "Predicate",
    "SchemaChange",
    "SchemaDiff",
    "TableSchema",
    "TypeForms",
    "avro_field_name",
    "avro_name",
    "avro_schema",
    "column_hashes",
    "column_named",
    "converted",
    "converts_exactly",
    "diff",
    "forms_of",
    "frame_schema",
    "key_buckets",
    "key_bytes",
    "key_form",
    "key_hashes",
    "origins",
    "sink_schema",
    "spark_fields",
    "user_schema",
    "widens",
    "widens_to",
]
