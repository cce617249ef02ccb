"""Ranges of the log that no stream plans: what a table that is behind the others reads next."""

from collections.abc import Mapping

import pyarrow as pa

from databus.core import Pair, SourceCheckpoint
from databus.spark._options import parse_options
from databus.spark._plan import Planner
from databus.spark._read import PartitionReader
from databus.spark._schema import RANGES_SCHEMA, arrow_schema


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
