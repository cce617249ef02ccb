"""What queries run on, and what writes a batch is given of it. Users get Spark alone.

The logic of a pipeline asks for no more than what stands in `Rows` and `Engine`, so that its tests run it in one
process (`tests/local_engine.py`), in some milliseconds a batch.
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
"""What a task does with the rows that it is given; it hands back receipts."""
_RECEIPTS_DDL: Final = "feed int, receipt string"


class Rows(Tasks, Protocol):
    """The rows of a part of a batch, wherever these are, and the tasks that can be had for it."""

    @property
    def frame(self) -> "DataFrame":
        """As Spark has them: for filters and outputs that take these."""

    def ranges(self) -> pa.Table:
        """All of them, in this process: of whole tables these are ranges of the log."""

    def map(self, stage: Stage) -> pa.Table:
        """The receipts of tasks that are given these rows, each some of them."""

    def in_order(self, *, in_one: bool) -> "Rows":
        """The same in the order of their pairs. in_one: all of them for one task."""


@runtime_checkable
class Engine(Protocol):
    """What the queries of a run run on."""

    @property
    def session(self) -> "SparkSession":
        """For inputs and filters, which make DataFrames."""

    def rows(self, ranges: pa.Table) -> Rows:
        """Rows that are here, as those of a batch."""

    def start(
        self,
        stream: "DataFrame",
        write: Callable[[Rows, int], None],
        *,
        name: str,
        checkpoint: Path,
        trigger_ms: int | None,
    ) -> "StreamingQuery":
        """Begin to write a stream, a micro-batch with its number at a time. trigger_ms: between the starts of two; None
        for one that ends where the stream ends now.
        """


@dataclass(frozen=True)
class SparkRows:
    """See `Rows`."""

    frame: "DataFrame"

    @cached_property  # a question to the JVM
    def slots(self) -> int:
        """See `Tasks.slots`."""
        return int(self.frame.sparkSession.sparkContext.defaultParallelism)

    @property
    def rows_min(self) -> int:
        """See `Tasks.rows_min`."""
        return ROWS_A_TASK_MIN

    def ranges(self) -> pa.Table:
        """See `Rows.ranges`."""
        return self.frame.toArrow()

    def map(self, stage: Stage) -> pa.Table:
        """See `Rows.map`."""
        return self.frame.mapInArrow(stage, _RECEIPTS_DDL).toArrow()

    def in_order(self, *, in_one: bool) -> "SparkRows":
        """See `Rows.in_order`."""
        parted = self.frame.coalesce(1) if in_one else self.frame.repartitionByRange(ORDER[0])
        return SparkRows(parted.sortWithinPartitions(*ORDER))

    def run(self, task: Callable[[int], T], count: int) -> list[T]:
        """See `Tasks.run`: one small job. The task travels with it, since options of a store are in it, which are to
        stand on no disk of Spark's.
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
        write: Callable[[Rows, int], None],
        *,
        name: str,
        checkpoint: Path,
        trigger_ms: int | None,
    ) -> "StreamingQuery":
        """See `Engine.start`."""
        often = {"processingTime": f"{trigger_ms} milliseconds"}
        when: dict[str, Any] = {"availableNow": True} if trigger_ms is None else often
        written = stream.writeStream.foreachBatch(lambda frame, number: write(SparkRows(frame), number))
        written = written.queryName(name).trigger(**when)
        return written.option("checkpointLocation", f"file://{checkpoint}").start()  # Hadoop decodes no URI
