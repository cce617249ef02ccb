"""The engine of queries, and the rows that it hands to what writes a batch. Users get only Spark.

The logic of a pipeline needs only `BatchRows` and `Engine`, so that its tests run it in one process
(`tests/local_engine.py`), in some milliseconds a batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from databus.flow import ORDER, ROWS_A_TASK_MIN, Tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

T = TypeVar("T")

Stage = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A task's work on its rows; it returns receipts."""
_RECEIPTS_DDL: Final = "feed int, receipt string"


class BatchRows(Tasks, Protocol):
    """The rows of a part of a batch, wherever they are, and the tasks that work on them."""

    @property
    def frame(self) -> "DataFrame":
        """As a DataFrame, for filters and outputs that take one."""

    def ranges(self) -> pa.Table:
        """All of them, in this process; for whole tables they are ranges of the log."""

    def map(self, stage: Stage) -> pa.Table:
        """The receipts of tasks that share these rows."""

    def in_order(self, *, in_one: bool) -> "BatchRows":
        """The same in the order of their pairs. in_one: all for one task."""


@runtime_checkable
class Engine(Protocol):
    """What the queries of a run execute on."""

    @property
    def session(self) -> "SparkSession":
        """For inputs and filters, which make DataFrames."""

    def rows(self, ranges: pa.Table) -> BatchRows:
        """Rows of this process, as those of a batch."""

    def start(
        self,
        stream: "DataFrame",
        write: Callable[[BatchRows, int], None],
        *,
        name: str,
        checkpoint: Path,
        trigger_ms: int | None,
    ) -> "StreamingQuery":
        """Begin to write a stream: `write` gets each micro-batch with its number.

        trigger_ms: between the starts of two; None for a query that ends at the stream's present end.
        """


@dataclass(frozen=True)
class SparkRows:
    """See `BatchRows`."""

    frame: "DataFrame"

    @cached_property  # it asks the JVM
    def slots(self) -> int:
        """See `Tasks.slots`."""
        return int(self.frame.sparkSession.sparkContext.defaultParallelism)

    @property
    def rows_min(self) -> int:
        """See `Tasks.rows_min`."""
        return ROWS_A_TASK_MIN

    def ranges(self) -> pa.Table:
        """See `BatchRows.ranges`."""
        return self.frame.toArrow()

    def map(self, stage: Stage) -> pa.Table:
        """See `BatchRows.map`."""
        return self.frame.mapInArrow(stage, _RECEIPTS_DDL).toArrow()

    def in_order(self, *, in_one: bool) -> "SparkRows":
        """See `BatchRows.in_order`."""
        parted = self.frame.coalesce(1) if in_one else self.frame.repartitionByRange(ORDER[0])
        return SparkRows(parted.sortWithinPartitions(*ORDER))

    def run(self, task: Callable[[int], T], count: int) -> list[T]:
        """See `Tasks.run`: one small job. The task is sent with it, not broadcast: it may have secrets of a store,
        which must not be on a disk of Spark's.
        """
        if not count:
            return []
        done: list[T] = self.frame.sparkSession.sparkContext.parallelize(range(count), count).map(task).collect()
        return done


@dataclass(frozen=True)
class SparkEngine:
    """See `Engine`."""

    session: "SparkSession"

    def rows(self, ranges: pa.Table) -> SparkRows:
        """See `Engine.rows`."""
        return SparkRows(self.session.createDataFrame(ranges))

    def start(
        self,
        stream: "DataFrame",
        write: Callable[[BatchRows, int], None],
        *,
        name: str,
        checkpoint: Path,
        trigger_ms: int | None,
    ) -> "StreamingQuery":
        """See `Engine.start`."""
        interval = {"processingTime": f"{trigger_ms} milliseconds"}
        trigger: dict[str, Any] = {"availableNow": True} if trigger_ms is None else interval
        writer = stream.writeStream.foreachBatch(lambda frame, number: write(SparkRows(frame), number))
        writer = writer.queryName(name).trigger(**trigger)
        return writer.option("checkpointLocation", f"file://{checkpoint}").start()  # Hadoop does not decode URIs
