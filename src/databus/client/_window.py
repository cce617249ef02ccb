"""Windows: what a consumer gets between two checkpoints.

A window is one transaction, or what the bus itself put between two (snapshot chunks, its own controls). A transaction
spread over several groups comes as several windows, *parts*, all but the last with `continues`; so any transaction
passes through the memory of one group. `_splitter` makes them.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.client._partition import Partition
from databus.client._rows import Cells, Row, merged_rows
from databus.core import (
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQ,
    TXID,
    Checkpoint,
    ControlKind,
    Pair,
    SourceCheckpoint,
    UnsupportedFeature,
)
from databus.filters import StreamPartition
from databus.schema import TableSchema
from databus.wire import Commit, Frame, FrameGroup, end_of_answer, is_answer, position_at

Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
TableOf = Callable[[int], TableSchema]
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NO_SNAPSHOTS: Final[Mapping[str, int]] = {}
_NO_OTHERS: Final[Mapping[str, SourceCheckpoint]] = {}


class ControlEvent:
    """Something that happened to a table as a whole, as it stands in the stream. body: the control's JSON."""

    __slots__ = ("body", "kind", "pair", "source", "table")

    def __init__(self, source: str, table: TableSchema, frame: Frame) -> None:
        self.source = source
        self.table = table
        self.body: Mapping[str, Any] = frame.control
        self.pair: Pair = frame.header.first
        self.kind: ControlKind = frame.control_kind

    def covers(self, key_hash: int) -> bool:
        """Whether it speaks of the rows of this `Row.key_hash`: behind a partition it does of that partition's alone.

        A copy that several partitions fill removes by it, for a `truncate` or at the end of a snapshot.
        """
        part = self.body.get("partition")
        return part is None or StreamPartition.parse(str(part)).holds(key_hash)

    def __repr__(self) -> str:
        return f"<{self.source} {self.kind} {self.pair[0]}:{self.pair[1]}>"


class Changes:
    """The changes of one source in a window, in one schema, in order. source: `physical/db.table`."""

    __slots__ = ("_number", "_start", "_stop", "_view", "source", "table")

    def __init__(self, view: "WindowView", number: int, start: int, stop: int) -> None:
        self._view, self._number, self._start, self._stop = view, number, start, stop
        self.table = view.tables[number]
        self.source = view.sources[number]

    def __len__(self) -> int:
        return self._stop - self._start

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows in `databus.schema.frame_schema(table)`, zero-copy."""
        batch = self._view.frames[self._number].batch
        return batch if len(self) == len(batch) else batch.slice(self._start, len(self))

    def rows(self) -> list[Row]:
        """The rows as objects, both images of an update joined."""
        rows = range(self._start, self._stop)
        scns: Int = self._view.scns[self._number][self._start : self._stop]
        if len(self) == 0 or scns[0] == scns[-1]:
            return merged_rows(
                self._view.cells, [self._number] * len(rows), list(rows), int(scns[0]) if len(self) else 0
            )
        out: list[Row] = []
        bounds = [0, *(np.flatnonzero(scns[1:] != scns[:-1]) + 1).tolist(), len(scns)]
        for start, stop in pairwise(bounds):
            indices = list(rows[start:stop])
            out += merged_rows(self._view.cells, [self._number] * len(indices), indices, int(scns[start]))
        return out


class WindowView:
    """One group, and what is made of it only when asked for."""

    def __init__(self, group: FrameGroup, physical: str, uuid: str, log: str, table_of: TableOf) -> None:
        self.group = group
        self.physical = physical
        self.uuid = uuid
        self.log = log
        self.frames = group.rows
        self._table_of = table_of
        self.starts: list[list[int]] = []  # by frame: the first row of each window
        self.stops: list[list[int]] = []  # by frame: the row after the last of each window
        self.snapshots: Mapping[str, int] = _NO_SNAPSHOTS
        self.look_back: Literal["state", "since", "every"] | None = None
        self.is_cut = False  # by `until`: the group's end is not the last window's

    @cached_property
    def tables(self) -> list[TableSchema]:
        return [self._table_of(frame.header.fingerprint) for frame in self.frames]

    @cached_property
    def sources(self) -> list[str]:
        return [f"{self.physical}/{table.source}" for table in self.tables]

    @cached_property
    def pieces(self) -> list[tuple[str, pa.RecordBatch, int, list[int], list[int]]]:
        """By frame: source, batch, rows, and where the windows begin and end in it."""
        batches = [frame.batch for frame in self.frames]
        return list(zip(self.sources, batches, map(len, batches), self.starts, self.stops, strict=True))

    @cached_property
    def schemas(self) -> dict[str, int]:
        return {s: t.fingerprint for s, t in zip(self.sources, self.tables, strict=True)}

    @cached_property
    def control(self) -> ControlEvent | None:
        frame = self.group.control
        if frame is None:
            return None
        table = self._table_of(frame.header.fingerprint)
        return ControlEvent(f"{self.physical}/{table.source}", table, frame)

    @cached_property
    def commit(self) -> Commit:
        return Commit.from_header(self.group.commit)

    @cached_property
    def cells(self) -> list[Cells]:
        return [
            Cells(frame, source, table)
            for frame, source, table in zip(self.frames, self.sources, self.tables, strict=True)
        ]

    @cached_property
    def scns(self) -> list[Int]:
        return [frame.batch.column(COMMIT_VERSION).to_numpy() for frame in self.frames]

    @cached_property
    def seqs(self) -> list[Int]:
        return [frame.batch.column(SEQ).to_numpy() for frame in self.frames]

    @cached_property
    def times_us(self) -> list[Int]:
        return [frame.batch.column(COMMIT_TIMESTAMP).cast(pa.int64()).to_numpy() for frame in self.frames]

    @cached_property
    def txids(self) -> list[tuple[Int, list[str]]]:
        """By frame: for each row the number of its transaction's id, and the ids."""
        columns = [frame.batch.column(TXID) for frame in self.frames]
        return [(column.indices.to_numpy(), column.dictionary.to_pylist()) for column in columns]

    @cached_property
    def order(self) -> tuple[list[int], list[int]]:
        """All rows of the group merged by (SCN, `_seq`): the number of the frame, and that of the row in it."""
        counts = [frame.header.rows for frame in self.frames]
        frame_numbers = np.repeat(np.arange(len(counts)), counts)
        row_numbers = np.concatenate([np.arange(count) for count in counts])
        order = np.lexsort((np.concatenate(self.seqs), np.concatenate(self.scns)))
        return frame_numbers[order].tolist(), row_numbers[order].tolist()


class Window:
    """One transaction, one part of a large one, or one snapshot chunk. Nothing is decoded before it is asked for.

    It keeps the memory alive that its rows were received in; copy what has to stay long.
    continues: more parts of this transaction follow. is_part: it is one of several parts. is_empty: it only moves the
    checkpoint. restarts: parts of a transaction were given out, and it goes on no more: undo what they did. It comes
    again from its first row, in this window where the relay reads another log now; later, or to another member, where
    the partition was lost. partition, fence: of a group, what it is one of and the number of this holder; None and 0
    without a name. is_replayed: it is one change by itself, of a transaction that failed or a dead letter that is
    replayed: it may come again after a crash, and its position and checkpoint are where the consumer stands, which it
    does not move.
    """

    is_replayed = False

    __slots__ = (
        "_bus",
        "_index",
        "_last",
        "_others",
        "_view",
        "continues",
        "fence",
        "has_control",
        "is_empty",
        "is_part",
        "partition",
        "restarts",
        "scn",
    )

    def __init__(self, view: WindowView, index: int, key: int) -> None:
        """key: twice the SCN, plus one for what the bus itself put there. The splitter sets the flags after."""
        self._view = view
        self._index = index
        self.scn = key >> 1
        self._bus = key & 1
        self._last = self.continues = self.is_part = self.has_control = self.is_empty = self.restarts = False
        self._others = _NO_OTHERS
        self.partition: Partition | None = None
        self.fence = 0

    @property
    def physical(self) -> str:
        """The physical source."""
        return self._view.physical

    @property
    def control(self) -> ControlEvent | None:
        """The control that comes before the window's rows, if any."""
        return self._view.control if self.has_control else None

    @property
    def is_snapshot(self) -> bool:
        """Whether its rows were read, not logged."""
        return bool(self._bus) and len(self) > 0

    def __len__(self) -> int:
        """How many row images it has; an update counts two."""
        view, index = self._view, self._index
        return sum(stops[index] - starts[index] for starts, stops in zip(view.starts, view.stops, strict=True))

    def changes(self) -> Iterator[Changes]:
        """Its rows, source by source."""
        view, index = self._view, self._index
        for number, (starts, stops) in enumerate(zip(view.starts, view.stops, strict=True)):
            if stops[index] > starts[index]:
                yield Changes(view, number, starts[index], stops[index])

    def changes_until(self, last: "Window") -> Iterator[Changes]:
        """The rows from this window to `last`, of the same group, source by source."""
        view, end = self._view, last._index  # noqa: SLF001 - its own class
        for number, (starts, stops) in enumerate(zip(view.starts, view.stops, strict=True)):
            if stops[end] > starts[self._index]:
                yield Changes(view, number, starts[self._index], stops[end])

    def is_of_group_of(self, other: "Window") -> bool:
        """Whether both came in one group."""
        return self._view is other._view  # noqa: SLF001 - its own class

    def schemas(self) -> Mapping[str, int]:
        """Fingerprint by source, of the whole group that it came in."""
        return self._view.schemas

    def tables(self) -> dict[str, pa.RecordBatch]:
        """Its rows as Arrow by source, zero-copy slices in `databus.schema.frame_schema`.

        Raises `UnsupportedFeature` in the rare window in which a table changed its schema without a control: see
        `changes`.
        """
        index = self._index
        out: dict[str, pa.RecordBatch] = {}
        for source, batch, rows, starts, stops in self._view.pieces:
            start = starts[index]
            count = stops[index] - start
            if not count:
                continue
            if source in out:
                raise UnsupportedFeature(
                    f"{source}: window {self.scn} has rows in two schemas; take them apart with `window.changes()`"
                )
            out[source] = batch if count == rows else batch.slice(start, count)
        return out

    def rows(self) -> list[Row]:
        """Its rows as objects, merged over all tables in the order of the changes."""
        view, index = self._view, self._index
        start = sum(starts[index] for starts in view.starts)
        stop = sum(stops[index] for stops in view.stops)
        if start == stop:
            return []
        if len(view.frames) == 1:
            return merged_rows(view.cells, [0] * (stop - start), list(range(start, stop)), self.scn)
        frame_numbers, row_numbers = view.order
        return merged_rows(view.cells, frame_numbers[start:stop], row_numbers[start:stop], self.scn)

    def _last_row(self) -> tuple[int, int]:
        """The frame and the row of its last change; there is one."""
        view, index = self._view, self._index
        last_rows = [
            (int(view.seqs[number][stops[index] - 1]), number, stops[index] - 1)
            for number, (starts, stops) in enumerate(zip(view.starts, view.stops, strict=True))
            if stops[index] > starts[index]
        ]
        return max(last_rows)[1:]

    def _is_of_commit(self) -> bool:
        """Whether the group's commit frame is its own: transactions without rows of any table here may follow it."""
        return self._last and (self._view.group.commit.last[0] == self.scn or len(self) == 0)

    @property
    def txid(self) -> str:
        """The transaction's id at the source."""
        if self._is_of_commit():
            return self._view.commit.txid
        if len(self) == 0:
            return ""  # a control inside a group: its transaction's id stands nowhere, and is not checked
        number, row = self._last_row()
        indices, ids = self._view.txids[number]
        txid: str = ids[indices[row]]
        return txid

    @property
    def commit_us(self) -> int:
        """When it was committed at the source, microseconds since 1970."""
        if self._is_of_commit() or len(self) == 0:
            return self._view.group.commit.commit_us
        number, row = self._last_row()
        return int(self._view.times_us[number][row])

    @property
    def committed_at(self) -> dt.datetime:
        """When it was committed at the source."""
        return _EPOCH + dt.timedelta(microseconds=self.commit_us)

    @property
    def position(self) -> SourceCheckpoint:
        """Where a consumer stands that has done it. At the end of a group: the group's end, rows or not."""
        view = self._view
        if self._last:
            if (end := end_of_answer(view.group.commit, view.log)) is not None:
                return end
            scn, seq = view.group.commit.last
        elif len(self):
            number, row = self._last_row()
            scn, seq = self.scn, int(view.seqs[number][row])
        else:
            scn, seq = view.control.pair if view.control is not None else (self.scn, 0)
        return position_at(
            (scn, seq),
            continues=self.continues,
            uuid=view.uuid,
            txid=view.commit.txid if self._last else self.txid,
            ts_us=view.group.commit.commit_us if self._last else self.commit_us,
            log=view.log,
            snapshots=view.snapshots,
        )

    @property
    def look_back(self) -> Literal["state", "since", "every"] | None:
        """Where it comes from: None from the relay; else from the bootstrap service, which gives a whole `state`, what
        has changed `since` the consumer's position, or `every` change.
        """
        return self._view.look_back

    @property
    def is_consistent(self) -> bool:
        """Whether all tables stand at one position once it is done: not before the end of what the bootstrap service
        gives.
        """
        return not is_answer(self.position.log)

    @property
    def checkpoint(self) -> Checkpoint:
        """Where a consumer stands that has done it: `position`, and for the other physical sources that are followed
        with it, what was done of them before it was given out. So it can be stored alone.
        """
        return Checkpoint({**self._others, self.physical: self.position})

    def stand_beside(self, others: Mapping[str, SourceCheckpoint]) -> None:
        """Tell it where the other physical sources stand, for its checkpoint. By whoever gives it out."""
        self._others = others

    def belong_to(self, partition: Partition, fence: int) -> None:
        """Tell it of which partition it is. By whoever gives it out."""
        self.partition, self.fence = partition, fence

    @property
    def is_passed_over(self) -> bool:
        """Whether there is nothing in it for a consumer but its position."""
        return self.is_empty and not self.is_part and not self.restarts

    def __repr__(self) -> str:
        more = ", continues" if self.continues else ""
        return f"<window {self.physical} {self.scn}, {len(self)} rows{more}>"
