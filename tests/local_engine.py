"""An engine in this process, for tests of what a pipeline does around Spark: some milliseconds a batch.

Offsets and commits are written as Spark writes them, and what goes to tasks is pickled as Spark pickles it. There are
no DataFrames here: filters that take these (`sql`, `python`, routes by row) need Spark.
"""

import json
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import cloudpickle

from databus.flow import RECEIPTS
from databus.spark import DatabusSource, arrow_schema, last_done, offset_of


def sent(value: Any) -> Any:
    """What comes of it in a task."""
    return pickle.loads(cloudpickle.dumps(value))  # noqa: S301 - of this process


class LocalRows:
    """See `Rows`: some, for each task."""

    slots = 2
    rows_min = 1

    def __init__(self, *parts: pa.Table) -> None:
        self._parts = parts

    @property
    def frame(self) -> NoReturn:
        raise NotImplementedError("there are no DataFrames here; this test needs Spark")

    def ranges(self) -> pa.Table:
        return pa.concat_tables(self._parts)

    def map(self, stage: Any) -> pa.Table:
        receipts = [each for part in self._parts for each in sent(stage)(iter(part.to_batches()))]
        return pa.Table.from_batches(receipts, RECEIPTS)

    def in_order(self, *, in_one: bool) -> NoReturn:
        raise NotImplementedError(in_one)

    def run(self, task: Callable[[int], Any], count: int) -> list[Any]:
        return [sent(task)(number) for number in range(count)]


class LocalEngine:
    """See `Engine`."""

    def __init__(self) -> None:
        self.session = Session()

    def rows(self, ranges: pa.Table) -> LocalRows:
        return LocalRows(ranges)

    def start(
        self,
        stream: DatabusSource,
        write: Callable[[LocalRows, int], None],
        *,
        name: str,
        checkpoint: Path,
        trigger_ms: int | None,
    ) -> "LocalQuery":
        return LocalQuery(stream, write, name, checkpoint, trigger_ms)


class Session:
    """As much of a SparkSession as the input `databus` asks for."""

    sparkContext = SimpleNamespace(master="local[2]", defaultParallelism=2)  # noqa: N815 - Spark's name

    @property
    def readStream(self) -> "Session":  # noqa: N802 - as above
        return self

    def format(self, name: str) -> "Session":
        assert name == "databus"
        return self

    def options(self, **options: str) -> SimpleNamespace:
        def load() -> DatabusSource:
            source = DatabusSource(options)
            source.schema()  # Spark asks for it then
            return source

        return SimpleNamespace(load=load)


class LocalQuery:
    """What Spark does with a stream, in a thread: offsets, the batch, its commit. Called like Spark's own."""

    status: Mapping[str, str] = {"message": "Processing new data"}

    def __init__(
        self,
        stream: DatabusSource,
        write: Callable[[LocalRows, int], None],
        name: str,
        checkpoint: Path,
        trigger_ms: int | None,
    ) -> None:
        self._schema = arrow_schema(stream.schema())
        self._reader = sent(stream.streamReader(stream.schema()))
        self._write = write
        self._checkpoint = checkpoint
        self._trigger_ms = trigger_ms
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"stream {name}", daemon=True)
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        if not (checkpoint / "metadata").exists():
            (checkpoint / "metadata").write_text(json.dumps({"id": name}))
        self._thread.start()

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self._thread.is_alive()

    def exception(self) -> BaseException | None:
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool:  # noqa: N802 - as above
        self._thread.join(timeout)
        if self._error is not None:
            raise self._error
        return not self.isActive

    def stop(self) -> None:
        self._stopping.set()  # a question that waits at the relay ends by itself; cut off, it would be repeated

    def _run(self) -> None:
        try:
            self._go_on()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            if not self._stopping.is_set():
                self._error = error
        finally:
            self._reader.stop()

    def _go_on(self) -> None:
        reader = self._reader
        if self._trigger_ms is None:
            reader.prepareForTriggerAvailableNow()
        number, start, end = self._begin()
        while not self._stopping.is_set():
            began = time.monotonic()
            if end is None:
                end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end != start:
                self._batch(number, start, end)
                number, start = number + 1, end
            elif self._trigger_ms is None:
                return
            end = None
            self._stopping.wait(max((self._trigger_ms or 0) / 1e3 - (time.monotonic() - began), 0))

    def _begin(self) -> tuple[int, Any, Any]:
        """The number of the next batch, where it begins, and where it ends if that was planned already."""
        planned = [int(each.name) for each in (self._checkpoint / "offsets").iterdir()]
        if not planned:
            return 0, self._reader.initialOffset(), None
        last = max(planned)
        if last_done(self._checkpoint) == last:
            return last + 1, offset_of(self._checkpoint, last), None
        before = offset_of(self._checkpoint, last - 1) if last else self._reader.initialOffset()
        return last, before, offset_of(self._checkpoint, last)

    def _batch(self, number: int, start: Any, end: Any) -> None:
        (self._checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(end)}")
        self._write(LocalRows(*self._parts(start, end)), number)
        (self._checkpoint / "commits" / str(number)).write_text("v1\n{}")

    def _parts(self, start: Any, end: Any) -> Sequence[pa.Table]:
        parts = self._reader.partitions(start, end)
        found = [pa.Table.from_batches(sent(self._reader).read(part), self._schema) for part in parts]
        return found or [self._schema.empty_table()]
