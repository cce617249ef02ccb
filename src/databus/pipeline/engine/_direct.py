"""Runs what direct outputs have tasks do: a small job of Spark's, a task for each bucket of keys."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from databus.flow import RECEIPTS, Bucket, Decode, DirectFeed, DirectWriter, Ways

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def write_ranges(
    spark: "SparkSession", decode: Decode, ranges: pa.Table, ways: Ways, writer: DirectWriter, bucket: Bucket
) -> pa.Table:
    """Have tasks write what ranges of the log hold; returns their receipts. Raises what a task raises."""
    run = partial(DirectFeed(ways, writer, replace(bucket, reads=ways.selects)).write_ranges, decode, ranges)
    numbers = spark.sparkContext.parallelize(range(writer.buckets), writer.buckets)
    found = numbers.map(partial(_with_number, run)).collect()
    receipts = [(number, receipt) for number, texts in found for receipt in texts]
    return pa.table([[number for number, _ in receipts], [text for _, text in receipts]], schema=RECEIPTS)


def _with_number(run: Callable[[int], list[str]], number: int) -> tuple[int, list[str]]:
    return number, run(number)
