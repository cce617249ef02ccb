"""Input `mock`: rows made inside Spark, without source, log and relay, to try filters and outputs, and their speed."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from databus.core import SourceCheckpoint
from databus.plugins import Input, InputConfig, RunContext, Shape
from databus.schema import Column, TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PHYSICAL = "mock"
TABLE = TableSchema(
    "main.events",
    (
        Column("id", "int64", nullable=False),
        Column("source", "int64"),
        Column("at", "timestamptz"),
        Column("key", "string"),
        Column("payload", "string"),
    ),
    ("id",),
)
"""Its one table."""


class MockInputConfig(InputConfig):
    """Inserts into one made-up table `main.events` (id, source, at, key, payload): row n is a function of n alone."""

    type: Literal["mock"] = "mock"
    row_bytes: int = Field(254, ge=64, le=1 << 20, description="Bytes of a row, without the bus's columns.")
    rows_total: int | None = Field(None, ge=0, le=2**62, description="How many rows there are; without it, endless.")
    rows_per_s: float | None = Field(None, gt=0, le=1e9, description="Rate; without it, all micro-batches are full.")
    max_rows_per_trigger: int = Field(2_000_000, ge=1, le=2**31 - 1, description="Most rows in a micro-batch.")
    rows_per_transaction: int = Field(1_000, ge=1, le=2**31 - 1, description="Rows of one SCN.")
    partitions: int = Field(2, ge=1, le=1024, description="How many ranges a micro-batch has.")


# Spark checks the name and then adds it: of two queries that begin at the same time, one would find it taken.
_registering = threading.Lock()


class MockInput(Input):
    """See this module's first lines."""

    config_model: ClassVar[type[InputConfig]] = MockInputConfig
    emits: ClassVar[Shape] = Shape.TYPED
    config: MockInputConfig

    def typed(self, spark: "SparkSession", context: RunContext) -> "DataFrame":
        """The rows."""
        del context
        from databus.pipeline.inputs._mock_rows import MockRows

        with _registering:
            spark.dataSource.register(MockRows)
        options = {name: str(value) for name, value in self.config.model_dump(exclude_none=True).items()}
        return spark.readStream.format(MockRows.name()).options(**options).load()

    def schema_of(self, context: RunContext, table: str | None) -> tuple[str, TableSchema]:
        """The made-up table."""
        del context, table
        return PHYSICAL, TABLE

    def position_of(self, offset: Mapping[str, Any], physical: str, log: str) -> SourceCheckpoint:
        """The pair of the last row."""
        del physical
        scn, seq = divmod(max(0, int(offset["rows"]) - 1), self.config.rows_per_transaction)
        return SourceCheckpoint(scn=scn + 1, seq=seq, log=log)
