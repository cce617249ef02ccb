"""SnapshotReader: threads that read tables in chunks, and the rule that places the chunks in the log.

The session that follows the log reports all that it sees (`images`, `control`, `advance`) and takes chunks when it
stands between two transactions (`take`). It never waits for a chunk: chunks that cannot be placed yet, or have to be
read again, stay in here.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import Backoff, CorruptData, DatabusError, ServiceUnavailable, TransientError
from databus.sources.snapshots._chunks import Placed, Position, Progress, ReadChunk, ReadingRestarted, SnapshotOptions
from databus.sources.snapshots._reading import SnapshotReading, TableT
from databus.sources.snapshots._tracker import KeyTracker

Ints = npt.NDArray[np.int64]

_CHUNKS_WAITING_MAX: Final = 2  # chunks that wait for their place, besides one for each connection
_PAUSE_MS: Final = (100, 5_000)  # after failures in a row: the first pause, and the longest
_JOIN_S: Final = 1.0  # for threads that end; they are daemons
_LOCK_PAUSE_S: Final = 2.0  # until a locked table is tried again
_WAITING_MAX: Final = 24  # tables that take no room while they wait


class ReadAbandoned(TransientError):
    """The chunk being read is not needed any more."""


class TableLocked(TransientError):
    """Transactions of other clients hold the table, for an unknown time."""


class ChunkReader(Protocol[TableT]):
    """Reads chunks on a connection of its own. One thread uses it; any may interrupt it."""

    def read(self, reading: SnapshotReading[TableT], chunk: ReadChunk) -> None:
        """Read it and hand it to `SnapshotReader.read`. Raises `TransientError` or OSError where waiting may help."""
        ...

    def drop(self) -> None:
        """Close the connections, whatever state they are in."""
        ...

    def interrupt(self) -> None:
        """Make whatever it waits for fail at once. Any thread."""
        ...

    def end(self) -> None:
        """Close everything."""
        ...


class SnapshotReader(Generic[TableT]):
    """Reads the tables that `begin_table` names. Its methods belong to the thread that follows the log, except `close`
    and those below "What its threads call".

    make_reader: makes what reads chunks; called by several threads. on_ready: called by them when a chunk may be taken.
    """

    def __init__(
        self,
        make_reader: Callable[["SnapshotReader[TableT]"], ChunkReader[TableT]],
        options: SnapshotOptions | None = None,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._make_reader = make_reader
        self._options = options or SnapshotOptions()
        self._on_ready = on_ready
        self._changed = threading.Condition()
        self._readings: dict[str, SnapshotReading[TableT]] = {}
        self._tracker = KeyTracker(self._options.chunk_keys_max, self._options.chunk_keys_bytes_max)
        self._scn = -1
        self._position: Position | None = None
        self._restarts: list[ReadingRestarted] = []
        self._error: DatabusError | None = None
        self._is_closed = False
        self._idle = 0
        self._threads: list[threading.Thread] = []
        self._readers: set[ChunkReader[TableT]] = set()

    # What the session that follows the log calls

    def begin_table(self, table: TableT, remains: tuple[Any, ...] | None = None, order: tuple[str, ...] = ()) -> None:
        """Read a table, or what `remains` of it in an order (`last_key` and `order` of an earlier chunk).

        Its `snapshot_begin` stands in the log at or before the position of the last `advance`, called before.
        """
        if self._position is None:
            raise AssertionError("a snapshot begins before its place in the log is known")
        with self._changed:
            source = table.task.source
            self.drop(source)
            self._readings[source] = reading = SnapshotReading(table, self._options)
            if remains and not reading.go_on(remains, order):
                self._restarts.append(ReadingRestarted(source))
            self._start_threads()
            self._changed.notify_all()

    def redefine_table(self, table: TableT) -> None:
        """The table has another definition from here on, but what was placed of it stays right."""
        with self._changed:
            reading = self._readings.get(table.task.source)
            if reading is not None:
                if reading.use(table):
                    self._restarts.append(ReadingRestarted(reading.source))
                self._changed.notify_all()

    def drop(self, source: str) -> None:
        """Do not read this table any more."""
        with self._changed:
            reading = self._readings.pop(source, None)
            if reading is not None:
                reading.end()
            self._restarts = [restart for restart in self._restarts if restart.source != source]
            self._tracker.drop(source)
            self._changed.notify_all()

    def has_room(self, tables_max: int) -> bool:
        """Whether another table may begin. One that waits, for a lock or for a pause in its writes, takes no room."""
        now_s = time.monotonic()
        with self._changed:
            waiting = sum(reading.not_before_s > now_s for reading in self._readings.values())
            return len(self._readings) < tables_max + min(waiting, _WAITING_MAX)

    def watches(self, source: str) -> bool:
        """Whether the table is being read, so that its images are wanted."""
        return source in self._readings

    def images(self, source: str, scns: Ints, keys: Sequence[pa.Array]) -> None:
        """Images of a table were logged, before and after ones. keys: its key's columns; none if it has no key."""
        with self._changed:
            if source in self._readings:
                self._tracker.add(source, scns, keys)

    def control(self, source: str, scn: int) -> None:
        """The table was truncated, dropped or altered."""
        with self._changed:
            if source in self._readings:
                self._tracker.control(source, scn)

    def advance(self, scn: int, position: Position) -> None:
        """Everything up to here has been reported; `position` lies between two transactions.

        Called at the end of each group, and where only the log's position moves (rotation, heartbeat).
        """
        with self._changed:
            self._scn, self._position = scn, position
            for source, reading in self._readings.items():
                reading.follow(scn, position)
                self._tracker.forget(source, reading.horizon(scn))
            if any(reading.table.task.locks for reading in self._readings.values()):
                self._changed.notify_all()

    def take(self, wait_s: float = 0.0) -> Placed | ReadingRestarted | None:
        """A chunk whose place is here, between the transaction of the last `advance` and the next; None if none comes.

        Raises errors that an operator must resolve (`InputError`, `UnrepresentableValue`, `SourceChanged`,
        `LimitExceeded`...), and `ServiceUnavailable` if the server did not answer several times in a row.
        """
        until_s = time.monotonic() + wait_s
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if self._restarts:
                    return self._restarts.pop(0)
                placed = self._take()
                if placed is not None:
                    return placed
                left_s = until_s - time.monotonic()
                if left_s <= 0 or self._restarts:
                    return self._restarts.pop(0) if self._restarts else None
                self._changed.wait(left_s)

    def progress(self) -> list[Progress]:
        """How far each table is."""
        with self._changed:
            return [reading.progress() for reading in self._readings.values()]

    def close(self) -> None:
        """End all threads and connections, within a second or so. Any thread; callable twice."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            for reader in self._readers:
                reader.interrupt()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _take(self) -> Placed | None:
        for reading in list(self._readings.values()):
            while (chunk := reading.ready(self._is_reached)) is not None:
                placed = self._place(reading, chunk)
                if placed is not None:
                    self._changed.notify_all()
                    return placed
        return None

    def _is_reached(self, chunk: ReadChunk) -> bool:
        return self._position is not None and chunk.high is not None and chunk.high.is_in(self._position)

    def _place(self, reading: SnapshotReading[TableT], chunk: ReadChunk) -> Placed | None:
        """The chunk, if it can be placed here; else None, and it is read again."""
        source = reading.source
        if chunk.error is not None and not self._tracker.has_control(source, chunk.after):
            self._error = chunk.error
            raise chunk.error
        names = list(reading.table.task.table.names)
        keys = [chunk.arrays[names.index(name)] for name in reading.table.task.table.key] if chunk.rows else []
        stays = None
        if chunk.error is None and not self.lacks(chunk):
            stays = self._staying(chunk, keys)
        if stays is None:
            self._read_again(reading, chunk)
            return None
        reading.placed(chunk)
        arrays, rows = chunk.arrays, int(stays.sum())
        if rows < chunk.rows:
            arrays = [array.filter(pa.array(stays)) for array in arrays]
        is_last = not reading.todo and not reading.chunks and not chunk.is_part
        remains, order = reading.remains(), reading.order or ()
        if is_last:
            self.drop(source)
        return Placed(source, reading.table.task.table, arrays, rows, remains, order, is_last)

    def _staying(self, chunk: ReadChunk, keys: Sequence[pa.Array]) -> npt.NDArray[np.bool_] | None:
        """Which of its rows stay if it is placed now; None if it must be read again.

        A table read under a lock has no images meanwhile, unless the lock was lost: then the last part shows it, and
        the parts that were placed before are worth nothing.
        """
        if chunk.is_held and chunk.is_part and not self._tracker.has_control(chunk.source, chunk.after):
            return np.ones(chunk.rows, np.bool_)
        # A consumer of a table without a key keeps nothing but what was read: also an empty view must be the table.
        is_exact = chunk.is_held or not chunk.table.task.table.key
        if is_exact and self._tracker.has_images(chunk.source, chunk.after):
            return None
        return self._tracker.place(chunk.source, chunk.after, keys, chunk.rows)

    def lacks(self, chunk: ReadChunk) -> bool:
        """Whether a transaction that the chunk may lack is in the log: then it is read again."""
        return bool(chunk.prepared)

    def _read_again(self, reading: SnapshotReading[TableT], chunk: ReadChunk) -> None:
        if reading.is_whole:
            reading.restart()
            reading.pause()
            self._restarts.append(ReadingRestarted(reading.source))
        else:
            if self._tracker.is_lost(reading.source, chunk.after):
                reading.smaller()
            reading.give_back(chunk)
        self._changed.notify_all()

    # Threads

    def _start_threads(self) -> None:
        while len(self._threads) < self._options.connections and not self._is_closed:
            name = f"databus-snapshot-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        reader = self._make_reader(self)
        with self._changed:
            self._readers.add(reader)
        failures = 0
        while (job := self.next_job()) is not None:
            reading, chunk = job
            try:
                reader.read(reading, chunk)
                failures = 0
            except ReadAbandoned:
                reader.drop()
            except TableLocked as error:
                reader.drop()
                self._postpone(reading, chunk, error)
            except (OSError, TransientError) as error:
                if self._is_closed:
                    break
                reader.drop()
                failures += 1
                self._failed(reading, chunk, error, failures)
            except DatabusError as error:
                reader.drop()
                self._stop(reading, chunk, error)
            except BaseException as error:
                self._stop(reading, chunk, CorruptData(f"{chunk.source}: reading it failed: {error!r}"))
                raise
        reader.end()

    def next_job(self) -> tuple[SnapshotReading[TableT], ReadChunk] | None:
        """The next range to read; waits for one. None at the end."""
        with self._changed:
            self._idle += 1
            try:
                while not self._is_closed:
                    job = self._claim()
                    if job is not None:
                        return job
                    self._changed.wait(self._until_due_s())
                return None
            finally:
                self._idle -= 1

    def _claim(self) -> tuple[SnapshotReading[TableT], ReadChunk] | None:
        if self._error is not None or self.is_full:
            return None
        now_s = time.monotonic()
        waiting = [reading for reading in self._readings.values() if reading.todo and not reading.is_parked]
        ready = [reading for reading in waiting if reading.not_before_s <= now_s]
        if not ready:
            return None
        # The table with the fewest chunks on their way comes first, so that all of them advance.
        reading = min(ready, key=lambda reading: len(reading.chunks))
        return reading, reading.claim(self._scn)

    def _until_due_s(self) -> float | None:
        due_s = [reading.not_before_s for reading in self._readings.values() if reading.todo and reading.not_before_s]
        return max(min(due_s) - time.monotonic(), 0.01) if due_s else None

    # What its threads call, through `ChunkReader`

    @property
    def is_full(self) -> bool:
        """Whether enough chunks are held."""
        chunks = sum(len(reading.chunks) for reading in self._readings.values())
        return chunks >= self._options.connections + _CHUNKS_WAITING_MAX

    @property
    def changed(self) -> threading.Condition:
        """Guards everything here, and is notified of changes."""
        return self._changed

    @property
    def is_closed(self) -> bool:
        """Whether it is over."""
        return self._is_closed

    @property
    def somebody_idles(self) -> bool:
        """Whether a thread has nothing to read."""
        with self._changed:
            return self._idle > 0 and not any(reading.todo for reading in self._readings.values()) and not self.is_full

    @property
    def position(self) -> Position | None:
        """Up to where the log has been followed."""
        return self._position

    @property
    def scn(self) -> int:
        """The same as an SCN."""
        return self._scn

    def holds_many(self, source: str) -> bool:
        """Whether the keys that are held of a table are half of what may be."""
        return self._tracker.held(source) * 2 > self._options.chunk_keys_max

    def check_order(self, reading: SnapshotReading[TableT], chunk: ReadChunk, order: tuple[str, ...]) -> None:
        """The database has the rows of this chunk in that order. Raises `ReadAbandoned` if its range is of another one:
        then the table is read from its beginning.
        """
        with self._changed:
            if not reading.owns(chunk) or reading.is_in_order(chunk, order):
                return
            reading.restart()
            self._restarts.append(ReadingRestarted(reading.source))
            self._changed.notify_all()
        self._on_ready()
        raise ReadAbandoned(f"{chunk.source}: its key is in another order now")

    def read(self, reading: SnapshotReading[TableT], chunk: ReadChunk) -> None:
        """A thread has read a chunk."""
        with self._changed:
            if not reading.owns(chunk):
                return
            chunk.is_read = True
            if chunk.error is None:
                reading.measured(chunk)
            else:
                reading.is_parked = True
            self._changed.notify_all()
        self._on_ready()

    def _postpone(self, reading: SnapshotReading[TableT], chunk: ReadChunk, error: TableLocked) -> None:
        """Transactions of other clients hold the table: try it again later, with the other tables meanwhile."""
        with self._changed:
            reading.give_back(chunk)
            reading.waits_for = str(error)
            reading.not_before_s = time.monotonic() + _LOCK_PAUSE_S
            self._changed.notify_all()

    def _failed(self, reading: SnapshotReading[TableT], chunk: ReadChunk, error: Exception, failures: int) -> None:
        """Waiting may help: the chunk is read again on a new connection."""
        with self._changed:
            if reading.is_whole and reading.generation == chunk.generation:  # parts of it may have their places
                if self._readings.get(chunk.source) is reading:  # else it was read to its end
                    self._read_again(reading, chunk)
            else:
                reading.give_back(chunk)
            if failures >= self._options.connect_attempts_max and not self._is_closed:
                self._error = ServiceUnavailable(
                    f"{chunk.source}: reading it failed {failures} times in a row: {error}"
                )
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_closed, Backoff(*_PAUSE_MS).after(failures) / 1e3)

    def _stop(self, reading: SnapshotReading[TableT], chunk: ReadChunk, error: DatabusError) -> None:
        with self._changed:
            if reading.owns(chunk) and not self._is_closed and self._readings.get(reading.source) is reading:
                self._error = error
            self._changed.notify_all()
        self._on_ready()
