"""Relay → Spark → noop, against a bare Python source that yields prebuilt batches of the same Spark schema.

python -m benchmarks.spark_read [SCALE]
"""

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.figures import Figure
from databus.link import RelayClient
from databus.schema import TableSchema
from databus.sources.mock import MockConfig
from databus.spark import arrow_schema, tuned_session, typed_schema
from databus.spark._cast import Caster
from databus.testing import RelayProcess

ROWS = 4_000_000
ROWS_A_TRANSACTION = 1_000
RUNS = 5
BATCH_ROWS = 32_768
BATCHES_KEPT = 8
CAPTURE_S_MAX = 300


class BareSource(DataSource):
    """What a Python source can do at best: batches that were made before, in the schema that Spark wants."""

    @classmethod
    def name(cls) -> str:
        return "bare"

    def schema(self) -> StructType:
        return typed_schema(TableSchema.from_json(json.loads(self.options["table"])), meta_full=False)

    def reader(self, schema: StructType) -> "BareReader":
        return BareReader(schema, int(self.options["rows"]), int(self.options["partitions"]))


class BareReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, partitions: int) -> None:
        self._schema = schema
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        made = _prebuilt(arrow_schema(self._schema))
        left, turn = partition.value, 0
        while left > 0:
            batch = made[turn % len(made)]
            yield batch if left >= len(batch) else batch.slice(0, left)
            left, turn = left - len(batch), turn + 1


_made: list[pa.RecordBatch] = []


def _prebuilt(schema: pa.Schema) -> list[pa.RecordBatch]:
    """Batches of the mock source's own rows; made once in each worker process."""
    if not _made:
        from databus.log import Resume
        from databus.sources.mock import MockSource

        config = MockConfig(group_bytes_max=BATCH_ROWS * 254, rows_per_transaction=BATCH_ROWS // 2)
        source = MockSource("mock", config)
        source.start(Resume())
        caster = Caster(schema, "bare")
        while len(_made) < BATCHES_KEPT:
            group = source.poll(0)
            _made.extend(caster.cast(pa.Table.from_batches([rows.batch])) for rows in group.rows)  # type: ignore[union-attr]
    return _made


def noop(frame: Any) -> float:
    """Seconds to read all of it and throw it away."""
    started = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def wait_for(relay: RelayClient, physical: str, scn: int) -> None:
    """Wait until the relay has captured up to this SCN."""
    deadline = time.monotonic() + CAPTURE_S_MAX
    while relay.head(physical).published.scn < scn:
        if time.monotonic() > deadline:
            raise RuntimeError("the relay did not capture in time")
        time.sleep(0.1)


def figures(scale: float = 1.0) -> Iterator[Figure]:
    transactions = max(int(ROWS * scale) // ROWS_A_TRANSACTION, 10)
    config = {
        "type": "mock",
        "rows_per_transaction": ROWS_A_TRANSACTION,
        "transactions_total": transactions,
        "updates": 0,
        "deletes": 0,
    }
    with tempfile.TemporaryDirectory(prefix="databus-bench-") as name:
        folder = Path(name)
        with RelayProcess(folder / "relay", {"shop": config}) as relay:
            client = RelayClient(relay.url)
            wait_for(client, "shop", transactions)
            table = client.register(["main.events"])[0].table
            spark = tuned_session("spark-read", "local[2]", folder=folder / "spark")
            try:
                yield from _compare(spark, relay.url, table, transactions * ROWS_A_TRANSACTION)
            finally:
                spark.stop()


def _compare(spark: SparkSession, url: str, table: TableSchema, rows: int) -> Iterator[Figure]:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(BareSource)
    for partitions in (1, 2):
        ours = (
            spark.read.format("databus")
            .options(relay=url, shape="typed", sources="main.events", partitions=partitions)
            .load()
        )
        bare = (
            spark.read.format("bare")
            .options(rows=rows, partitions=partitions, table=json.dumps(table.to_json()))
            .load()
        )
        for frame in (ours, bare):
            if frame.count() != rows:
                raise RuntimeError(f"expected {rows} rows, found {frame.count()}")
        times: dict[str, list[float]] = {"ours": [], "bare": []}
        for _ in range(RUNS):
            times["ours"].append(noop(ours))
            times["bare"].append(noop(bare))
        yield Figure(
            f"spark-read, {partitions} partition{'s' if partitions > 1 else ''}",
            rows / statistics.median(times["ours"]),
            "rows/s",
            "bare Python source",
            rows / statistics.median(times["bare"]),
        )


if __name__ == "__main__":
    for figure in figures(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0):
        print(f"{figure.name:28} {figure.value:>12,.0f} {figure.unit}   {figure.ratio:.2f} of {figure.peer} "
              f"({figure.peer_value:,.0f})")  # fmt: skip
