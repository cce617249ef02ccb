"""Input `mock`: rows made inside Spark, without source, log and relay, to try what comes after it, and its speed."""

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from databus.core import SourceCheckpoint
from databus.pipeline.inputs._mock_config import PHYSICAL, TABLE, MockInputConfig
from databus.plugins import Input, InputConfig, RunContext, Shape
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Spark looks whether the name is there and then adds it: of two queries that begin at once, one would find it taken.
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
