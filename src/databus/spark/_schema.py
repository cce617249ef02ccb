"""The two shapes as Spark schemas, and as the Arrow schemas that Spark takes batches in."""

from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from databus.core import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, CONTROL, SEQ, SNAPSHOT, TXID, ConfigError
from databus.schema import TableSchema, spark_fields

CONTROL_LABEL: Final = "control"
"""What stands in `_change_type` where the row is a control."""

SCHEMA_AHEAD: Final = "schema_ahead"
"""With `schemaChanges=ahead`, the kind of the control that a batch begins with: changes of the schema that stand later
in the log, and that its rows have been made through already."""

FRAMES_SCHEMA: Final = StructType(
    [
        StructField("physical", StringType()),
        StructField("scn", LongType()),
        StructField("seq", LongType()),
        StructField("log", StringType()),
        StructField("frames", BinaryType()),
        StructField("after_scn", LongType()),
        StructField("after_seq", LongType()),
        StructField("until_scn", LongType()),
        StructField("until_seq", LongType()),
    ]
)
"""A run of whole groups a row. (scn, seq): the pair at its end. Rows of it at or below (after_scn, after_seq) or above
(until_scn, until_seq) are not part of the batch; whoever decodes drops them."""

RANGES_SCHEMA: Final = StructType(
    [
        StructField("physical", StringType()),
        StructField("start", StringType()),
        StructField("after_scn", LongType()),
        StructField("after_seq", LongType()),
        StructField("until_scn", LongType()),
        StructField("until_seq", LongType()),
        StructField("ranges", LongType()),
        StructField("log", StringType()),
    ]
)
"""A range a row: read from the position `start`, JSON, up to the group that reaches (until_scn, until_seq), and drop
what is at or below (after_scn, after_seq) or above that. ranges: how many the batch has. log: the one that it was
planned on; empty where the relay did not say."""

_BUS_FIELDS: Final = (
    StructField(CHANGE_TYPE, StringType()),
    StructField(COMMIT_VERSION, LongType()),
    StructField(COMMIT_TIMESTAMP, TimestampType()),
)

_META_FIELDS: Final = (
    StructField(SEQ, LongType()),
    StructField(TXID, StringType()),
    StructField(SNAPSHOT, BooleanType()),
    StructField(CONTROL, StringType()),
)


def typed_schema(table: TableSchema, *, meta_full: bool) -> StructType:
    """A table's rows: its columns, then the bus's. Raises `ConfigError` if two names differ only in case."""
    fields = [StructField.fromJson(field) for field in spark_fields(table)]
    fields += [*_BUS_FIELDS, *_META_FIELDS] if meta_full else _BUS_FIELDS
    names = [field.name.lower() for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{table.source}: two columns are called {name!r}, which Spark does not tell apart; "
                "read this table with shape=frames"
            )
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema that Spark wants each batch in, exactly."""
    return to_arrow_schema(schema, timezone="UTC")
