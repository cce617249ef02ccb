"""What happens to a micro-batch: collected as Arrow, decoded, written to each output of the query."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import COMMIT_TIMESTAMP, CorruptData, ServiceUnavailable, SourceCheckpoint, crash_point
from databus.pipeline._batch import ChangeBatch, TableRows
from databus.pipeline._contract import Decode, Input, Output, SparkOutput
from databus.pipeline._decode import decode_typed
from databus.pipeline._lineage import LineageOf
from databus.pipeline._plan import Feed
from databus.schema import TableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Report = Callable[[Mapping[str, Any]], None]
"""Takes an event of progress."""


class OutputHandle:
    """An output and the lock that lets one query at a time have it."""

    def __init__(self, name: str, output: Output | SparkOutput) -> None:
        self.name = name
        self.output = output
        self._lock = threading.RLock()
        self._is_open = False
        self._busy_since_s = 0.0

    @property
    def busy_s(self) -> float:
        """How long it has been at what it does now; 0 for an output that does nothing."""
        since_s = self._busy_since_s
        return time.monotonic() - since_s if since_s else 0.0

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._busy_since_s = time.monotonic()
            try:
                yield
            finally:
                self._busy_since_s = 0.0

    def open(self) -> None:
        """Open it anew, as before each start of a query."""
        with self._held():
            if isinstance(self.output, Output):
                self._close()
                self._is_open = True
                self.output.open()

    def close(self) -> None:
        """Close it; callable twice."""
        with self._held():
            self._close()

    def _close(self) -> None:
        if self._is_open and isinstance(self.output, Output):
            self._is_open = False
            self.output.close()

    def write(self, batch: ChangeBatch) -> Mapping[str, int]:
        """Apply a batch; returns the rows of each source that were written."""
        assert isinstance(self.output, Output)  # noqa: S101 - `validate` refuses tables for the others
        with self._held():
            self.output.write(batch)
            return _rows_of(batch) if self.output.written is None else self.output.written

    def write_in_spark(self, rows: "DataFrame", batch_id: int) -> None:
        """Apply a micro-batch."""
        assert isinstance(self.output, SparkOutput)  # noqa: S101 - the caller looked
        with self._held():
            self.output.write(rows, batch_id)


class Writer:
    """Called by Spark for each micro-batch of one query, in a thread of Spark's. `error` is what it failed with.

    wants_stop: once it is set, the next change batch of a micro-batch is not written. It comes again.
    """

    def __init__(
        self,
        query: str,
        feeds: Sequence[tuple[Feed, OutputHandle]],
        report: Report,
        wants_stop: threading.Event | None = None,
    ) -> None:
        self._query = query
        self._feeds = feeds
        self._report = report
        self._wants_stop = wants_stop or threading.Event()
        self.error: BaseException | None = None
        self.batches = 0
        self.is_writing = False

    def __call__(self, rows: "DataFrame", batch_id: int) -> None:
        """Write one micro-batch everywhere; Spark takes note of it when this returns."""
        self.is_writing = True
        try:
            crash_point("pipeline.batch.before")
            self._write(rows, batch_id)
            crash_point("pipeline.batch.after")
        except BaseException as error:
            self.error = error  # Spark keeps but its text
            raise
        finally:
            self.is_writing = False
        self.batches += 1

    def _write(self, rows: "DataFrame", batch_id: int) -> None:
        began = time.monotonic()
        in_spark = [handle for _, handle in self._feeds if isinstance(handle.output, SparkOutput)]
        in_driver = [(feed, handle) for feed, handle in self._feeds if isinstance(handle.output, Output)]
        if len(self._feeds) > 1 and in_spark:
            rows.persist()
        try:
            for handle in in_spark:
                self._write_in_spark(rows, batch_id, handle, began)
            if in_driver:
                self._write_in_driver(rows, batch_id, in_driver, began)
        finally:
            if len(self._feeds) > 1 and in_spark:
                rows.unpersist()

    def _write_in_spark(self, rows: "DataFrame", batch_id: int, handle: OutputHandle, began: float) -> None:
        output = handle.output
        assert isinstance(output, SparkOutput)  # noqa: S101 - the caller looked
        before = output.rows
        handle.write_in_spark(rows, batch_id)
        self._say(handle.name, None, {}, began, output.rows - before)

    def _write_in_driver(
        self, rows: "DataFrame", batch_id: int, feeds: Sequence[tuple[Feed, OutputHandle]], began: float
    ) -> None:
        for batch in self.batches_of(rows.toArrow(), batch_id):
            if self._wants_stop.is_set():
                raise ServiceUnavailable(f"{self._query}: the pipeline stops; what is left of this batch comes again")
            for feed, handle in feeds:
                mine = _for_feed(batch, feed)
                written = handle.write(mine)
                self._say(handle.name, mine, written, began)

    def batches_of(self, collected: pa.Table, batch_id: int) -> Iterable[ChangeBatch]:
        """The micro-batch as change batches, in order."""
        raise NotImplementedError

    def _say(
        self,
        output: str,
        batch: ChangeBatch | None,
        written: Mapping[str, int],
        began: float,
        rows: int | None = None,
    ) -> None:
        event: dict[str, Any] = {
            "event": "batch",
            "query": self._query,
            "output": output,
            "batch_ms": round((time.monotonic() - began) * 1e3, 1),
            "at_us": time.time_ns() // 1000,
            "rows": rows,
        }
        if batch is not None:
            tables = _tables_of(batch)
            event |= {
                "physical": batch.physical,
                "position": batch.end.to_json(),
                "rows": sum(written.values()),
                "controls": len(batch.items) - len(tables),
                "lag_ms": _lag_ms(tables),
                "tables": dict(written),
            }
        self._report(event)


def _tables_of(batch: ChangeBatch) -> list[TableRows]:
    return [item for item in batch.items if isinstance(item, TableRows)]


def _rows_of(batch: ChangeBatch) -> dict[str, int]:
    counted: dict[str, int] = {}
    for each in _tables_of(batch):
        counted[each.table.source] = counted.get(each.table.source, 0) + each.rows.num_rows
    return counted


def _lag_ms(tables: Sequence[TableRows]) -> float | None:
    """Time from the newest commit to now, when it is in the target."""
    newest = [pc.max(each.rows.column(COMMIT_TIMESTAMP)).cast(pa.int64()).as_py() for each in tables]
    known = [each for each in newest if each is not None]
    return round((time.time_ns() / 1e3 - max(known)) / 1e3, 1) if known else None


def _for_feed(batch: ChangeBatch, feed: Feed) -> ChangeBatch:
    items = tuple(item for item in batch.items if feed.selects(f"{batch.physical}/{item.table.source}"))
    return replace(batch, items=items)


class TablesWriter(Writer):
    """Of a query over tables; the input that they come from decodes them."""

    def __init__(
        self,
        query: str,
        feeds: Sequence[tuple[Feed, OutputHandle]],
        report: Report,
        decode: Decode,
        wants_stop: threading.Event | None = None,
    ) -> None:
        super().__init__(query, feeds, report, wants_stop)
        self._decode = decode

    def batches_of(self, collected: pa.Table, batch_id: int) -> Iterable[ChangeBatch]:
        """See `Writer.batches_of`."""
        del batch_id
        return self._decode(collected)


class TypedWriter(Writer):
    """Of a query over typed rows. `checkpoint`: its folder, which says where each batch begins and ends."""

    def __init__(
        self,
        query: str,
        feeds: Sequence[tuple[Feed, OutputHandle]],
        report: Report,
        *,
        physical: str,
        table: TableSchema,
        origin: Input,
        log: str,
        checkpoint: Path,
        lineage_of: LineageOf,
    ) -> None:
        super().__init__(query, feeds, report)
        self._physical = physical
        self._table = table
        self._origin = origin
        self._log = log
        self._lineage_of = lineage_of
        self._offsets = checkpoint / "offsets"

    def batches_of(self, collected: pa.Table, batch_id: int) -> list[ChangeBatch]:
        """See `Writer.batches_of`."""
        end = self._position(batch_id)
        start = SourceCheckpoint() if batch_id == 0 else self._position(batch_id - 1)
        return [decode_typed(collected, self._table, self._physical, start, end, self._lineage_of)]

    def _position(self, batch_id: int) -> SourceCheckpoint:
        """What Spark wrote down, before it ran the batch, as its end."""
        path = self._offsets / str(batch_id)
        try:
            offset = json.loads(path.read_text(encoding="utf-8").splitlines()[2])
        except (OSError, ValueError, IndexError) as error:
            raise CorruptData(f"{path}: not the offsets of a micro-batch: {error}") from error
        return self._origin.position_of(offset, self._physical, self._log)
