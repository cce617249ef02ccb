"""The Spark data source of input `mock`: Arrow batches with constant texts and consecutive numbers."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ
from databus.pipeline.inputs._mock import TABLE, MockInputConfig
from databus.spark import arrow_schema, typed_schema

BATCH_ROWS: Final = 20_000
_KEY_CHARS: Final = 16
_NUMBERS_BYTES: Final = 24
_EPOCH_US: Final = 1_700_000_000_000_000
_IDLE_S: Final = 0.01


def _config_of(options: dict[str, str]) -> MockInputConfig:
    known = {name.lower(): name for name in MockInputConfig.model_fields}
    return MockInputConfig.model_validate({known[name.lower()]: value for name, value in options.items()})


class MockRows(DataSource):  # type: ignore[misc]  # pyspark publishes no types
    """Registered as `databus_mock`."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "databus_mock"

    def schema(self) -> StructType:
        """Typed rows with everything that the bus adds."""
        return typed_schema(TABLE, meta_full=True)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The reader of a stream."""
        return _MockReader(_config_of(dict(self.options)), schema)


class _Range(InputPartition):  # type: ignore[misc]  # as above
    def __init__(self, start: int, end: int) -> None:
        super().__init__(None)
        self.start, self.end = start, end


class _MockReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # as above
    def __init__(self, config: MockInputConfig, schema: StructType) -> None:
        self._config = config
        self._schema = arrow_schema(schema)
        self._began: tuple[float, int] | None = None
        self._end: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._config.max_rows_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        total = self._config.rows_total
        self._end = self._config.max_rows_per_trigger if total is None else total

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        at = start["rows"]
        most = self._config.max_rows_per_trigger
        if isinstance(limit, ReadMaxRows):
            most = min(most, limit.max_rows)
        elif not isinstance(limit, ReadAllAvailable):
            raise TypeError(f"{type(limit).__name__} is not a limit that this source knows")
        end = min(at + most, self._available(at))
        if end == at and at != self._last():
            time.sleep(_IDLE_S)  # no row is due; Spark would ask again at once
        return {"rows": max(at, end)}

    def _last(self) -> int | None:
        ends = [end for end in (self._config.rows_total, self._end) if end is not None]
        return min(ends, default=None)

    def _available(self, at: int) -> int:
        last = self._last()
        rate = self._config.rows_per_s
        if rate is None or self._end is not None:
            return at + self._config.max_rows_per_trigger if last is None else last
        if self._began is None:
            self._began = (time.monotonic(), at)
        since, rows = self._began
        due = rows + int((time.monotonic() - since) * rate)
        return due if last is None else min(due, last)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        bounds = np.linspace(start["rows"], end["rows"], self._config.partitions + 1).astype(np.int64).tolist()
        return [_Range(first, last) for first, last in pairwise(bounds) if last > first]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, _Range)  # noqa: S101 - from `partitions`
        texts = _texts(self._config.row_bytes, self._schema)
        for first in range(partition.start, partition.end, BATCH_ROWS):
            yield _batch(first, min(BATCH_ROWS, partition.end - first), texts, self._config, self._schema)


def _texts(row_bytes: int, schema: pa.Schema) -> dict[str, pa.Array]:
    """The columns that are equal in every batch."""
    numbers = np.arange(BATCH_ROWS)
    payload_chars = max(1, row_bytes - _KEY_CHARS - _NUMBERS_BYTES)
    payload = "".join(chr(ord("a") + i % 26) for i in range(payload_chars))
    arrays = {
        "key": pa.array([f"key-{n:0{_KEY_CHARS - 4}d}" for n in numbers]),
        "payload": pa.array([payload] * BATCH_ROWS),
        "source": pa.array(numbers % 16, pa.int64()),
        "_change_type": pa.array(["insert"] * BATCH_ROWS),
        "_txid": pa.array(["mock"] * BATCH_ROWS),
        "_snapshot": pa.array(np.zeros(BATCH_ROWS, np.bool_)),
        "_control": pa.nulls(BATCH_ROWS, pa.string()),
    }
    return {name: array.cast(schema.field(name).type) for name, array in arrays.items()}


def _batch(
    first: int, rows: int, texts: dict[str, pa.Array], config: MockInputConfig, schema: pa.Schema
) -> pa.RecordBatch:
    ids = np.arange(first, first + rows, dtype=np.int64)
    times = pa.array(ids + _EPOCH_US).cast(pa.timestamp("us", "UTC"))
    counted = {
        "id": pa.array(ids),
        "at": times,
        COMMIT_VERSION: pa.array(ids // config.rows_per_transaction + 1),
        SEQ: pa.array(ids % config.rows_per_transaction),
        COMMIT_TIMESTAMP: times,
    }
    columns = [counted[name] if name in counted else texts[name].slice(0, rows) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
