"""The data source: what `format("databus")` is to Spark.

Spark makes one of these when a query is loaded, asks it for the schema, pickles it, and unpickles it wherever it wants
a reader: in the process that plans a stream, in the one that plans tasks, and, inside of a reader, on the executors.
"""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from databus.core import Checkpoint, ConfigError, MalformedRequest, Pair, SourceCheckpoint
from databus.spark._options import DatabusOptions, parse_options
from databus.spark._plan import Planner, RangePartition
from databus.spark._read import PartitionReader
from databus.spark._schema import FRAMES_SCHEMA, RANGES_SCHEMA, arrow_schema, typed_schema
from databus.spark._target import Target

NAME: Final = "databus"


class DatabusSource(DataSource):  # type: ignore[misc]  # pyspark is untyped
    """Changes from a relay, as a batch or as a stream; options in `DatabusOptions`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = parse_options(options)
        self._target: Target | None = None

    @classmethod
    def name(cls) -> str:
        """What stands in `format(...)`."""
        return NAME

    def schema(self) -> StructType:
        """The shape's schema; from here on the query is tied to the table's schema of now."""
        table = self._resolved().table
        if table is not None:
            return typed_schema(table.schema, meta_full=self._options.meta_full)
        return RANGES_SCHEMA if self._options.shape == "ranges" else FRAMES_SCHEMA

    def reader(self, schema: StructType) -> "DatabusReader":
        """For `spark.read`."""
        return DatabusReader(self._options, self._resolved(), self._checked(schema))

    def streamReader(self, schema: StructType) -> "DatabusStreamReader":  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        return DatabusStreamReader(self._options, self._resolved(), self._checked(schema))

    def _resolved(self) -> Target:
        if self._target is None:
            planner = Planner(self._options, None)
            self._target = planner.target
            planner.close()
        return self._target

    def _checked(self, schema: StructType) -> pa.Schema:
        ours = arrow_schema(self.schema())
        if not arrow_schema(schema).equals(ours):
            raise ConfigError(
                "databus: the schema comes from the relay; leave out .schema(...), and select and cast after"
            )
        return ours


class DatabusReader(DataSourceReader):  # type: ignore[misc]
    """Reads once, up to the end of the log as it was when the query was loaded."""

    def __init__(self, options: DatabusOptions, target: Target, schema: pa.Schema) -> None:
        self._options = options
        self._target = target
        self._ranges = PartitionReader(options, target, schema)

    def partitions(self) -> Sequence[RangePartition]:
        """Contiguous ranges of groups."""
        planner = Planner(self._options, self._target)
        try:
            return planner.split_all()
        finally:
            planner.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the partition's batches. Spark makes up a partition where there are none."""
        return self._ranges.read(partition) if isinstance(partition, RangePartition) else iter(())


class DatabusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Reads as a stream. An offset is a checkpoint: {"v": 1, "sources": {...}} with the one physical source."""

    def __init__(self, options: DatabusOptions, target: Target, schema: pa.Schema) -> None:
        self._options = options
        self._target = target
        self._ranges = PartitionReader(options, target, schema)
        self._planner: Planner | None = None  # where the stream is planned; never on an executor
        self._initial: dict[str, Any] | None = None
        self._available: Pair | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_planner": None}

    def _plan(self) -> Planner:
        if self._planner is None:
            self._planner = Planner(self._options, self._target)
        return self._planner

    def _offset(self, position: SourceCheckpoint) -> dict[str, Any]:
        return Checkpoint({self._target.physical: position}).to_json()

    def _position(self, offset: dict[str, Any]) -> SourceCheckpoint:
        sources = Checkpoint.from_json(offset, "offset").sources
        if set(sources) != {self._target.physical}:
            raise MalformedRequest(
                f"offset: this query reads {self._target.physical}, and its checkpoint is of {', '.join(sources)}; "
                "a query over another physical source needs a checkpoint location of its own"
            )
        return sources[self._target.physical]

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a query without a checkpoint begins; the same when asked again."""
        if self._initial is None:
            self._initial = self._offset(self._plan().initial())
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What Spark hands to `latestOffset`; where rows and bytes are limited, that of bytes is added there."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        return ReadMaxBytes(self._options.bytes_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; `start` if nothing comes within `waitMs`."""
        position = self._position(start)
        takes_all = isinstance(limit, ReadAllAvailable)
        rows_max = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.bytes_max
        end = self._plan().end_after(
            position, rows_max=rows_max, bytes_max=None if takes_all else bytes_max, available=self._available
        )
        return start if end == position else self._offset(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """The end of the log as last heard of, so that the query's progress shows how far behind it is."""
        published = self._plan().published
        return None if published is None else self._offset(published)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Read up to the end of the log as it is now, and no further."""
        self._available = self._plan().head().pair

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RangePartition]:
        """Contiguous ranges of groups; the same rows whenever it is asked."""
        return self._plan().split(self._position(start), self._position(end))

    def read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        """On an executor: the partition's batches."""
        return self._ranges.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the relay's log does not depend on who has read it."""

    def stop(self) -> None:
        """End what waits at the relay."""
        if self._planner is not None:
            self._planner.close()
