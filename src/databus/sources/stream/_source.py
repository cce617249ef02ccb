"""The stream source: lines become rows of one table, and the log keeps how far they have been read.

What has queued when the relay polls becomes one transaction. Reading again makes other transactions of the same lines,
so the log serves them only once they are on the disk (`Group.unrepeatable`).
"""

import hashlib
import json
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from databus.core import (
    COUNTED,
    Backoff,
    ChangeType,
    Clock,
    ControlKind,
    DatabusError,
    FatalError,
    Identity,
    PositionPurged,
    SystemClock,
    UnknownSource,
    UnrepresentableValue,
    UnsupportedFeature,
    next_bus_seq,
)
from databus.log import Resume
from databus.operate import logger_of
from databus.schema import Column, TableSchema, frame_schema
from databus.sources._bus_frames import bus_columns, gap_body
from databus.sources._contract import ScnCounter, SourceLag
from databus.sources.stream._config import StreamConfig
from databus.sources.stream._follow import FilePlace, FollowedFile
from databus.sources.stream._lines import LineBuffer, Lines, Texts, texts_of
from databus.sources.stream._process import Process
from databus.wire import Commit, Control, Group, Rows

_NAMESPACE: Final = uuid.UUID("8d0f4f0b-6f0c-4d07-8a35-0b6f2f7a4c51")
_KEY: Final = ("stream", "offset")
_SHOWN_MAX: Final = 3
_END_S: Final = 2.0  # for a process to end by itself, once its output has


class StreamSource:
    """Lines of one file, or of one command's runs."""

    config_model: ClassVar = StreamConfig

    def __init__(self, physical: str, config: StreamConfig, clock: Clock | None = None) -> None:
        self.physical = physical
        self._config = config
        self._clock = clock or SystemClock()
        self._logger = logger_of("databus.sources").bind(physical=physical)
        self._origin = str(Path(config.path).absolute()) if config.path is not None else json.dumps(config.command)
        self._table = _table_of(config)
        self._counter = ScnCounter(Resume())
        self._seq = 0
        self._txid = ""
        self._commit_us = 0
        self._waiting: deque[Group] = deque()
        self._stopped: DatabusError | None = None
        self._place = FilePlace(self._origin)
        self._buffer = LineBuffer(0, config.line_bytes_max)
        self._followed: FollowedFile | None = None
        self._process: Process | None = None
        self._backoff = Backoff(config.restart_ms_min, config.restart_ms_max)
        self._began_s = self._start_s = 0.0

    def identify(self) -> Identity:
        """See `Source.identify`: a path, or a command, on this machine."""
        return Identity(str(uuid.uuid5(_NAMESPACE, self._origin)), COUNTED, self._origin)

    def tables(self) -> Sequence[TableSchema]:
        """See `Source.tables`."""
        return [self._table]

    def start(self, resume: Resume) -> None:
        """See `Source.start`."""
        self._counter = ScnCounter(resume)
        self._seq, self._txid = resume.seq, resume.txid
        if resume.position is not None:
            self._place = FilePlace.from_json(resume.position, self._origin, self.physical)
        config = self._config
        if config.path is None:
            if resume.position is None:
                self._waiting.append(self._progress())
            return
        self._followed = FollowedFile(Path(config.path), config.rotated, config.rotate_wait_ms, self._place)
        if self._place.number == 0:
            if self._followed.begin(at_end=config.start == "end" and resume.position is None):
                self._moved()
            if resume.position is None:
                self._waiting.append(self._progress())
        elif (lost := self._followed.find()) is not None:
            self._lose(lost)
            self._restart()
        else:
            self._moved()

    def poll(self, wait_ms: int) -> Group | None:
        """See `Source.poll`."""
        deadline = time.monotonic() + wait_ms / 1e3
        while not self._waiting:
            if self._stopped is not None:
                raise self._stopped
            left_s = deadline - time.monotonic()
            if self._config.path is not None:
                if not self._look_at_file() and not self._waiting and left_s > 0:
                    time.sleep(min(self._config.poll_ms / 1e3, left_s))
            else:
                self._look_at_process(max(left_s, 0))
            if not self._waiting and left_s <= 0:
                return None
        return self._waiting.popleft()

    def durable(self, position: Mapping[str, Any]) -> None:
        """See `Source.durable`: a stream needs no confirmation."""
        del position

    def request_snapshot(self, sources: Sequence[str], where: str | None = None) -> None:
        """See `Source.request_snapshot`: lines are read once."""
        del where
        if unknown := [name for name in sources if name != self._table.source]:
            raise UnknownSource(f"{self.physical}: no table {unknown[0]}; there is {self._table.source}")
        raise UnsupportedFeature(
            f"{self.physical}: a stream cannot be read as a table; consumers get its lines from the log. To read a "
            f"file again from its begin, capture it under another name"
        )

    def lag(self) -> SourceLag:
        """See `Source.lag`."""
        waiting = None if self._followed is None else self._followed.waiting_bytes()
        return SourceLag(0.0 if waiting == 0 else None, bytes=waiting)

    def close(self) -> None:
        """See `Source.close`. A process is ended."""
        if self._followed is not None:
            self._followed.close()
            self._followed = None
        if self._process is not None:
            process, self._process = self._process, None
            process.end()

    # A file

    def _look_at_file(self) -> bool:
        """Returns whether there was something of it."""
        file = self._followed
        assert file is not None  # noqa: S101 - started
        if not file.is_open:
            if file.begin(at_end=False):
                self._moved()
            return file.is_open
        self._look_at_ended(file)
        content = file.read(self._config.group_bytes_max)
        if content:
            self._take(self._buffer.feed(content))
        elif file.is_truncated():
            lost = file.recover()
            if lost is not None:
                self._lose(lost)
            self._moved()
            if not self._waiting:
                self._waiting.append(self._progress())
        elif file.has_ended():
            self._take(self._buffer.finish())
            if self._stopped is None:
                lost = file.next()
                if lost is not None:
                    self._lose(lost)
                self._moved()
                self._waiting.append(self._progress())
        return bool(content)

    def _look_at_ended(self, file: FollowedFile) -> None:
        late = file.late_bytes()
        if late:
            self._lose(
                f"{self._config.path}: {late} bytes were written to the file that was rotated away, after it had not "
                f"grown for rotate_wait_ms={self._config.rotate_wait_ms}, and are not read; raise that"
            )

    def _restart(self) -> None:
        file = self._followed
        assert file is not None  # noqa: S101 - started
        if file.begin(at_end=False):
            self._moved()
        if not self._waiting:
            self._waiting.append(self._progress())

    def _moved(self) -> None:
        """The file is another one, or read from somewhere else."""
        assert self._followed is not None  # noqa: S101 - started
        self._place = self._followed.place
        self._buffer = LineBuffer(self._place.offset, self._config.line_bytes_max)

    def _lose(self, reason: str) -> None:
        if self._config.on_gap == "stop":
            raise PositionPurged(
                f"{self.physical}: {reason}. Set `on_gap: continue` to record a gap and go on at the begin of the file "
                f"that is there",
                physical=self.physical,
            )
        self._gap(reason)

    # A process

    def _look_at_process(self, wait_s: float) -> None:
        if self._process is None:
            until_s = self._start_s - time.monotonic()
            if until_s > 0:
                time.sleep(min(until_s, wait_s))
                return
            self._begin_run()
            return
        content = self._process.read(self._config.group_bytes_max, wait_s)
        if content is None:
            self._take(self._buffer.finish())
            self._end_run()
        elif content:
            self._take(self._buffer.feed(content))

    def _begin_run(self) -> None:
        command = self._config.command
        assert command is not None  # noqa: S101 - checked by the options
        environment = {name: value.get_secret_value() for name, value in self._config.environment.items()}
        self._process = Process(self.physical, command, environment)
        self._place = FilePlace(self._origin, self._place.number + 1)
        self._buffer = LineBuffer(0, self._config.line_bytes_max)
        self._began_s = time.monotonic()

    def _end_run(self) -> None:
        process, self._process = self._process, None
        assert process is not None  # noqa: S101 - it has ended
        process.wait(_END_S)
        ending, config = process.end(), self._config
        if config.on_exit == "stop":
            self._stopped = self._stopped or FatalError(f"{self.physical}: the process {ending}; `on_exit` is stop")
            return
        if (time.monotonic() - self._began_s) * 1e3 >= config.restart_ms_max:
            self._backoff.reset()
        wait_ms = self._backoff.next_ms()
        self._start_s = time.monotonic() + wait_ms / 1e3
        self._logger.warning("the process has ended and is started again", how=ending, wait_ms=round(wait_ms))

    # Groups

    def _take(self, lines: Lines) -> None:
        """Make whole lines a transaction, with what is wrong in them."""
        if not len(lines.starts):
            return
        texts, end = texts_of(lines, self._config.format), lines.end
        policy = self._config.on_poison
        if texts.problems and policy == "stop":
            first = min(texts.problems)
            end = int(texts.starts[first])
            self._stopped = UnrepresentableValue(
                f"{self.physical}: {self._table.source}: the line at byte {end} of {self._stream}: "
                f"{texts.problems[first]}. Set `on_poison` to skip, which records a gap in the log and goes on behind "
                f"it, or to text, which makes it a row"
            )
            texts = texts.chosen(np.arange(first))
        elif texts.problems and policy == "skip":
            problems = [f"byte {texts.starts[at]}: {reason}" for at, reason in sorted(texts.problems.items())]
            more = f"; and {len(problems) - _SHOWN_MAX} more" if len(problems) > _SHOWN_MAX else ""
            self._gap(
                f"{len(problems)} lines of {self._stream} are passed over: {'; '.join(problems[:_SHOWN_MAX])}{more}"
            )
            texts = texts.chosen(
                np.array([at for at in range(len(texts.starts)) if at not in texts.problems], np.int64)
            )
        if end == self._place.offset:
            return
        if self._followed is not None:
            self._followed.take(end)
            self._place = self._followed.place
        else:
            self._place = FilePlace(self._origin, self._place.number, end)
        self._waiting.append(self._transaction(texts) if len(texts.starts) else self._progress())

    @property
    def _stream(self) -> str:
        return f"{'file' if self._config.path is not None else 'run'}-{self._place.number}"

    def _transaction(self, lines: Texts) -> Group:
        count = len(lines.starts)
        self._commit_us = self._clock.now_ns() // 1000
        scn, self._seq, self._txid = self._counter.next(), count, self._new_txid()
        problems = pa.array([lines.problems.get(at) for at in range(count)], pa.string()) if lines.problems else None
        values = {
            "stream": pa.repeat(pa.scalar(self._stream), count),
            "offset": pa.array(lines.starts),
            "line": lines.texts,
            "problem": pa.nulls(count, pa.string()) if problems is None else problems,
        }
        columns = [values[name].cast(frame_schema(self._table).field(name).type) for name in self._table.names]
        columns += bus_columns(ChangeType.INSERT, scn, np.arange(1, count + 1), self._commit_us, self._txid)
        batch = pa.RecordBatch.from_arrays(columns, schema=frame_schema(self._table))
        return Group(self._commit(), (Rows(self._table, batch),), unrepeatable=True)

    def _gap(self, reason: str) -> None:
        """Record that lines are missing, at the position before: if we are killed in between, the gap may come twice,
        but is never lost.
        """
        self._logger.warning("lines are missing", reason=reason)
        self._seq = next_bus_seq(self._seq, self._clock.now_ns())
        scn = self._counter.scn
        body = gap_body(self._table.source, scn, scn, reason, is_read_again=False)
        control = Control(ControlKind.GAP, self._table, scn, self._seq, body)
        self._waiting.append(Group(self._commit(), (), control, unrepeatable=True))

    def _progress(self) -> Group:
        """A commit alone, which says how far the stream has been read."""
        self._counter.next()
        self._seq, self._txid = 0, self._new_txid()
        return Group(self._commit(), unrepeatable=True)

    def _commit(self) -> Commit:
        commit_us = self._commit_us or self._clock.now_ns() // 1000
        return Commit(self._counter.scn, self._seq, self._txid, self._place.to_json(), commit_us)

    def _new_txid(self) -> str:
        """Of the transaction that ends at the place: another one at the same SCN has another id."""
        text = json.dumps(self._place.to_json(), sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _table_of(config: StreamConfig) -> TableSchema:
    columns = (
        Column("stream", "string", nullable=False),
        Column("offset", "int64", nullable=False),
        Column("line", "string"),
        Column("problem", "string"),
    )
    excluded = config.excluded_columns(config.table, _KEY)
    return TableSchema(config.table, tuple(column for column in columns if column.name not in excluded), _KEY)
