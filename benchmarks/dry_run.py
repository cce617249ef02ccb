"""A pipeline without ends: mock input, SQL filter, rows counted in Spark. Run: python -m benchmarks.dry_run [scale].

Real rows of 254 B, two cores. The seed's mock to mock moves 1.9 to 2.1 million packets/s, each a pointer to one shared
object that nobody reads; here the bytes of every row cross from Python to the JVM. The ceiling is what a Python source
that yields batches made before, in the same schema, reaches into Spark's noop sink in the same run: the crossing, and
then whole rows, one by one. A count may pass above it, since columns that nothing asks for stay as they came.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from benchmarks.figures import Figure
from databus.pipeline import run
from databus.pipeline.inputs._mock import TABLE, MockInputConfig
from databus.pipeline.inputs._mock_rows import BATCH_ROWS, _batch, _Range, _texts
from databus.spark import arrow_schema, tuned_session, typed_schema

SEED_PACKETS_A_S = 2_000_000
ROWS_A_BATCH = 4_000_000
BATCHES = 10
WARM_UP_BATCHES = 3

PIPELINE = """
name: dry-run
inputs: {{rows: {{type: mock, rows_total: {rows}, max_rows_per_trigger: {a_batch}, partitions: 2}}}}
filters: {{some: {{type: sql, from: rows, where: "source <> 3 AND payload LIKE 'a%'"}}}}
outputs: {{count: {{type: count, from: {last}}}}}
"""


def rate_of(events: list[Mapping[str, Any]]) -> float:
    """Rows a second that entered, over whole micro-batches, the first ones left aside."""
    at = [event["at_us"] for event in events if event["event"] == "batch"]
    steps = [(b - a) / 1e6 for a, b in zip(at[WARM_UP_BATCHES - 1 :], at[WARM_UP_BATCHES:], strict=False)]
    return ROWS_A_BATCH / statistics.median(steps)


def pipeline_rate(spark: SparkSession, folder: Path, batches: int, *, filtered: bool) -> float:
    folder.mkdir()
    file = folder / "pipeline.yaml"
    last = "some" if filtered else "rows"
    text = PIPELINE.format(rows=batches * ROWS_A_BATCH, a_batch=ROWS_A_BATCH, last=last)
    if not filtered:
        text = "\n".join(line for line in text.splitlines() if not line.startswith("filters"))
    file.write_text(text)
    events: list[Mapping[str, Any]] = []
    code = run(file, once=True, on_event=events.append, session=spark)
    if code:
        raise RuntimeError(f"the pipeline ended with {code}: {events[-1]}")
    return rate_of(events)


class Bare(DataSource):
    """Prebuilt batches of the same rows in the same schema."""

    @classmethod
    def name(cls) -> str:
        return "bare_rows"

    def schema(self) -> StructType:
        return typed_schema(TABLE, meta_full=True)

    def streamReader(self, schema: StructType) -> "BareStream":  # noqa: N802
        return BareStream(schema)


class BareStream(DataSourceStreamReader):
    def __init__(self, schema: StructType) -> None:
        self.schema = arrow_schema(schema)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:  # noqa: N802, ARG002
        return {"rows": start["rows"] + ROWS_A_BATCH}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        half = (start["rows"] + end["rows"]) // 2
        return [_Range(start["rows"], half), _Range(half, end["rows"])]

    def read(self, partition: Any) -> Iterator[Any]:
        if not _prebuilt:
            config = MockInputConfig(type="mock")
            _prebuilt.append(_batch(0, BATCH_ROWS, _texts(config.row_bytes, self.schema), config, self.schema))
        for _ in range(partition.start, partition.end, BATCH_ROWS):
            yield _prebuilt[0]


_prebuilt: list[Any] = []


def bare_rate(spark: SparkSession, folder: Path, batches: int) -> float:
    """The same stream into Spark's own sink that drops it."""
    spark.dataSource.register(Bare)
    query = (
        spark.readStream.format("bare_rows")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .start()
    )
    try:
        deadline = time.monotonic() + 300
        while len(query.recentProgress) < batches and time.monotonic() < deadline:
            if query.exception() is not None:
                raise RuntimeError(str(query.exception()))
            time.sleep(0.2)
        steps = [each["durationMs"]["triggerExecution"] / 1e3 for each in query.recentProgress[WARM_UP_BATCHES:]]
    finally:
        query.stop()
    return ROWS_A_BATCH / statistics.median(steps)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    batches = max(int(BATCHES * scale), WARM_UP_BATCHES + 3)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with tempfile.TemporaryDirectory(prefix="databus-bench-") as name:
        folder = Path(name)
        spark = tuned_session("dry-run", "local[2]", folder=folder / "spark")
        try:
            bare = bare_rate(spark, folder / "bare", batches)
            filtered = pipeline_rate(spark, folder / "filtered", batches, filtered=True)
            plain = pipeline_rate(spark, folder / "plain", batches, filtered=False)
        finally:
            spark.stop()
    yield Figure("mock input, SQL filter, counted in Spark", filtered, "rows/s", "bare source to noop", bare)
    yield Figure("mock input, SQL filter, counted in Spark", filtered, "rows/s", "seed's packets/s", SEED_PACKETS_A_S)
    yield Figure("mock input, counted in Spark", plain, "rows/s", "bare source to noop", bare)


def main() -> None:
    print("rows of 254 B, two cores, micro-batches of 4,000,000 rows")
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print(
            f"  {figure.name:45} {figure.value:12,.0f} {figure.unit}   {figure.peer}: {figure.peer_value:,.0f}", end=""
        )
        print(f", ratio {figure.ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
