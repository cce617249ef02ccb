"""Ranges of the log that no stream plans: what a table that is behind the others reads next."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from databus.core import CONTROL, Pair, SourceCheckpoint
from databus.schema import TableSchema
from databus.spark._options import parse_options
from databus.spark._plan import Planner, RangePartition
from databus.spark._read import PartitionReader
from databus.spark._schema import RANGES_SCHEMA, arrow_schema, typed_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def ranges_after(options: Mapping[str, str], start: SourceCheckpoint, to: Pair) -> tuple[pa.Table, SourceCheckpoint]:
    """The rows of a `shape=ranges` batch after a place, within the limits of the options, and where it ends, which is
    not above `to`; the place itself where nothing is left up to there.
    """
    parsed = parse_options({**options, "shape": "ranges"})
    planner, schema = Planner(parsed, None), arrow_schema(RANGES_SCHEMA)
    try:
        end = planner.end_after(start, rows_max=parsed.rows_max, bytes_max=parsed.bytes_max, available=to)
        reader = PartitionReader(parsed, planner.target, schema)
        parts = [] if end == start else planner.split(start, end)
        batches = [batch for part in parts for batch in reader.read(part)]
    finally:
        planner.close()
    return pa.Table.from_batches(batches, schema=schema), end


_TYPED: Final = {"shape": "typed", "meta": "full", "schemaChanges": "ahead"}


class TypedRanges:
    """In the schema that the table had when this was made. Used by one thread at a time."""

    def __init__(self, spark: "SparkSession", options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = parse_options({**options, **_TYPED})
        self._planner = Planner(self._options, None)
        target = self._planner.target
        assert target.table is not None  # noqa: S101 - so it is with this shape
        self.name = target.name
        self.log = target.log
        self.table: TableSchema = target.table.schema
        self._schema = typed_schema(self.table, meta_full=True)
        self._read = spark.sparkContext.accumulator({}, _ByRange())
        self._asked = 0

    def after(self, start: SourceCheckpoint, to: Pair) -> "tuple[DataFrame | None, SourceCheckpoint]":
        """The rows and controls after a place, within the limits of a batch and not above `to`, and where they end: the
        place itself where nothing is left up to there. Before a change of the schema that is not known here an end
        comes; if the next group begins with one, this raises `SchemaChanged`, and so do the rows, once they are read.
        """
        options, planner = self._options, self._planner
        self._asked += 1
        self._read.value = {}
        end = planner.end_after(start, rows_max=options.rows_max, bytes_max=options.bytes_max, available=to)
        parts = [] if end == start else planner.split(start, end)
        if not parts:
            return None, end
        reader = PartitionReader(options, planner.target, arrow_schema(self._schema))
        read = _RowsRead(reader, parts, self._read, self._asked)
        numbers = self._spark.range(0, len(parts), 1, len(parts))
        return numbers.mapInArrow(read, self._schema), end

    def was_read(self) -> tuple[int, int]:
        """How many rows tasks have read of what `after` gave last, without controls, and how many us that took."""
        mine = [counts for (asked, _), counts in self._read.value.items() if asked == self._asked]
        return sum(rows for rows, _ in mine), sum(spent_us for _, spent_us in mine)

    def empty(self) -> "DataFrame":
        """No row, to try filters on."""
        return self._spark.createDataFrame([], self._schema)

    def close(self) -> None:
        """End what waits at the relay."""
        self._planner.close()


@dataclass(frozen=True)
class _RowsRead:
    """What a task does: it reads the ranges of the numbers that it is given, and counts rows in `counted`."""

    reader: PartitionReader
    parts: Sequence[RangePartition]
    counted: Any
    asked: int

    def __call__(self, given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in given:
            for number in numbers.column(0).to_pylist():
                rows, spent_ns, began_ns = 0, 0, time.perf_counter_ns()
                for batch in self.reader.read(self.parts[number]):
                    spent_ns += time.perf_counter_ns() - began_ns
                    rows += batch.column(CONTROL).null_count
                    yield batch
                    began_ns = time.perf_counter_ns()
                self.counted.add({(self.asked, number): (rows, spent_ns // 1000)})


class _ByRange:
    """Adds up what tasks say of ranges; a task that runs twice says the same of its range. See Spark's accumulators."""

    def zero(self, value: Any) -> Any:
        """Nothing is said yet."""
        del value
        return {}

    def addInPlace(self, one: Any, other: Any) -> Any:  # noqa: N802 - Spark's name
        """What both say."""
        one.update(other)
        return one
