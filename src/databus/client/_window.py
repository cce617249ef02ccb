"""Windows: what a consumer gets between two checkpoints. Pure: groups of frames in, windows out.

A window is one transaction, or what the bus itself put between two (snapshot chunks, its own controls). A transaction
spread over several groups comes as several windows, *parts*, all but the last with `continues`; so any transaction
passes through the memory of one group. Start with `Splitter`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.client._rows import Cells, Row, merged_rows
from databus.core import (
    BUS_SEQ_MIN,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQ,
    SEQ_DONE,
    TXID,
    Checkpoint,
    ControlKind,
    Corrupt,
    Pair,
    SourceCheckpoint,
    Unsupported,
)
from databus.schema import TableSchema
from databus.wire import Commit, Frame, FrameGroup, Header

Int = npt.NDArray[np.int64]
Keys = npt.NDArray[np.uint64]
TableOf = Callable[[int], TableSchema]
_NO_SNAPSHOTS: Final[Mapping[str, int]] = {}
_NO_PAIR: Final[Pair] = (0, -1)


class ControlEvent:
    """Something that happened to a table as a whole, as it stands in the stream. body: the control's JSON."""

    __slots__ = ("body", "kind", "pair", "source", "table")

    def __init__(self, source: str, table: TableSchema, frame: Frame) -> None:
        self.source = source
        self.table = table
        self.body: Mapping[str, Any] = frame.control
        self.pair: Pair = frame.header.first
        try:
            self.kind = ControlKind(self.body["kind"])
        except (KeyError, ValueError) as error:
            raise Corrupt(f"{frame.place}: not a control that this databus knows: {self.body.get('kind')!r}") from error

    def __repr__(self) -> str:
        return f"<{self.source} {self.kind} {self.pair[0]}:{self.pair[1]}>"


class Changes:
    """The changes of one source in a window, in one schema, in order. source: `physical/db.table`."""

    __slots__ = ("_number", "_start", "_stop", "_view", "source", "table")

    def __init__(self, view: "_View", number: int, start: int, stop: int) -> None:
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


class _View:
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
    checkpoint.
    """

    __slots__ = ("_bus", "_index", "_last", "_view", "continues", "has_control", "is_empty", "is_part", "scn")

    def __init__(self, view: _View, index: int, key: int) -> None:
        """key: twice the SCN, plus one for what the bus itself put there. The splitter sets the flags after."""
        self._view = view
        self._index = index
        self.scn = key >> 1
        self._bus = key & 1
        self._last = self.continues = self.is_part = self.has_control = self.is_empty = False

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

        Raises `Unsupported` in the rare window in which a table changed its schema without a control: see `changes`.
        """
        index = self._index
        out: dict[str, pa.RecordBatch] = {}
        for source, batch, rows, starts, stops in self._view.pieces:
            start = starts[index]
            count = stops[index] - start
            if not count:
                continue
            if source in out:
                raise Unsupported(
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
        found = [
            (int(view.seqs[number][stops[index] - 1]), number, stops[index] - 1)
            for number, (starts, stops) in enumerate(zip(view.starts, view.stops, strict=True))
            if stops[index] > starts[index]
        ]
        return max(found)[1:]

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
    def position(self) -> SourceCheckpoint:
        """Where a consumer stands that has done it. At the end of a group: the group's end, rows or not."""
        view = self._view
        if self._last:
            scn, seq = view.group.commit.last
        elif len(self):
            number, row = self._last_row()
            scn, seq = self.scn, int(view.seqs[number][row])
        else:
            scn, seq = view.control.pair if view.control is not None else (self.scn, 0)
        has_seq = self.continues or seq >= BUS_SEQ_MIN
        return SourceCheckpoint(
            uuid=view.uuid,
            scn=scn,
            seq=seq if has_seq else None,
            txid=view.commit.txid if self._last else self.txid,
            ts_us=view.group.commit.commit_us if self._last else self.commit_us,
            log=view.log if has_seq or view.snapshots else None,
            snapshots=view.snapshots,
        )

    @property
    def checkpoint(self) -> Checkpoint:
        """`position` as a checkpoint of this physical source alone."""
        return Checkpoint({self.physical: self.position})

    def __repr__(self) -> str:
        more = ", continues" if self.continues else ""
        return f"<window {self.physical} {self.scn}, {len(self)} rows{more}>"


def done_by(commit: Header) -> Pair:
    """Everything up to this pair has been read once a group with this commit has: of a whole transaction, all."""
    if commit.continues or commit.last_seq >= BUS_SEQ_MIN:
        return commit.last
    return commit.last_scn, SEQ_DONE


def snapshots_after(snapshots: Mapping[str, int], control: ControlEvent) -> Mapping[str, int]:
    """The open snapshots, by source the generation, once a control has been delivered."""
    name = control.table.source
    if control.kind == ControlKind.SNAPSHOT_BEGIN:
        return {**snapshots, name: int(control.body["generation"])}
    if control.kind == ControlKind.SNAPSHOT_END:
        return {each: value for each, value in snapshots.items() if each != name}
    return snapshots


class Splitter:
    """Cuts the groups of one physical source into windows, dropping what is at or below where the consumer stands.

    Pure: no sockets, no clocks. `connected` tells it which log the next groups come from.
    """

    def __init__(self, physical: str, start: SourceCheckpoint, table_of: TableOf, until: Pair | None = None) -> None:
        self._physical = physical
        self._table_of = table_of
        self._until = until
        self._after: Pair = start.pair
        self._snapshots: Mapping[str, int] = dict(start.snapshots)
        self._uuid = start.uuid
        self._log = start.log or ""
        self._is_inside = _is_mid_transaction(start.pair)  # a part of it has been given out

    @property
    def is_done(self) -> bool:
        """Whether `until` has been reached."""
        return self._until is not None and self._after >= self._until

    def connected(self, uuid: str, log: str) -> bool:
        """The next groups come from this log. Whether they start a transaction anew of which a part was given out.

        Another log goes on from the end of the transaction before, and may count its rows otherwise: nothing of it is
        dropped. What the other log read by snapshot is read anew.
        """
        is_other = self._log not in ("", log)
        self._uuid, self._log = uuid, log
        if not is_other:
            return False
        scn, seq = self._after
        if not _is_mid_transaction(self._after):
            self._after = scn, min(seq, SEQ_DONE)
            return False
        self._after = scn, -1
        self._is_inside = False
        return True

    def split(self, group: FrameGroup) -> list[Window]:
        """The group's windows. Raises `Corrupt` if its rows are not in order or lie beyond its commit."""
        commit = group.commit
        end = done_by(commit)
        if end <= self._after or self.is_done:
            return []
        view = _View(group, self._physical, self._uuid, self._log, self._table_of)
        view.is_cut = self._until is not None and end > self._until
        control = group.control
        has_control = control is not None and self._after < control.header.first and not self._is_beyond(control)
        if has_control and view.control is not None:
            self._snapshots = snapshots_after(self._snapshots, view.control)
        view.snapshots = self._snapshots
        keys = _whole(view, self._after, self._until) or _spread(view, self._after, self._until)
        windows = self._windows(view, keys, control if has_control else None)
        self._after = end if self._until is None else min(end, self._until)
        self._is_inside = commit.continues and (self._is_inside or bool(windows))
        return windows

    def _is_beyond(self, control: Frame) -> bool:
        return self._until is not None and control.header.first > self._until

    def _windows(self, view: _View, keys: list[int], control: Frame | None) -> list[Window]:
        commit = view.group.commit
        if control is not None:
            own = _key(control.header.first)
            if not keys or keys[0] != own:  # the control is a window of its own, without rows
                keys = [own, *keys]
                view.stops = [[*starts[:1], *stops] for starts, stops in zip(view.starts, view.stops, strict=True)]
                view.starts = [[*starts[:1], *starts] for starts in view.starts]
        is_empty = not keys
        if is_empty:
            if commit.continues or view.is_cut:
                return []
            keys = [_key(commit.last)]
        if len(view.starts) != len(view.frames) or not all(view.starts):
            view.starts = view.stops = [[0] * len(keys) for _ in view.frames]
        windows = [Window(view, index, key) for index, key in enumerate(keys)]
        first, last = windows[0], windows[-1]
        first.has_control, first.is_empty = control is not None, is_empty
        last._last = not view.is_cut  # noqa: SLF001 - made here
        last.continues = commit.continues or (view.is_cut and _is_mid_transaction(self._until or _NO_PAIR))
        last.is_part = last.continues
        first.is_part = first.is_part or self._is_inside
        return windows


def _key(pair: Pair) -> int:
    """What tells windows apart, in their order: the SCN, and behind its transaction what the bus put there."""
    return pair[0] << 1 | (pair[1] >= BUS_SEQ_MIN)


def _is_mid_transaction(pair: Pair) -> bool:
    return 0 <= pair[1] < SEQ_DONE


def _whole(view: _View, after: Pair, until: Pair | None) -> list[int] | None:
    """The group's only window, found from headers alone; None if there may be more, or if it is not whole."""
    if not view.frames:
        return None
    key = _key(view.frames[0].header.first)
    for frame in view.frames:
        header = frame.header
        if header.first <= after or _key(header.first) != key or _key(header.last) != key:
            return None
        if until is not None and header.last > until:
            return None
        if header.last > view.group.commit.last:
            raise Corrupt(f"{frame.place}: rows up to {header.last} in a group that ends at {view.group.commit.last}")
    view.starts = [[0] for _ in view.frames]
    view.stops = [[frame.header.rows] for frame in view.frames]
    return [key]


def _spread(view: _View, after: Pair, until: Pair | None) -> list[int]:
    """The windows of a group of many; sets where each begins and ends in each frame."""
    by_frame: list[tuple[Keys, int]] = []
    for number, frame in enumerate(view.frames):
        scns, seqs = view.scns[number], view.seqs[number]
        _check_order(frame, scns, seqs, view.group.commit.last)
        dropped = 0 if frame.header.first > after else _count_up_to(scns, seqs, after)
        kept = len(scns) if until is None or frame.header.last <= until else _count_up_to(scns, seqs, until)
        keys: Keys = (scns[dropped:kept].astype(np.uint64) << np.uint64(1)) | (seqs[dropped:kept] >= BUS_SEQ_MIN)
        by_frame.append((keys, dropped))
    found: Keys = np.unique(np.concatenate([keys for keys, _ in by_frame])) if by_frame else np.empty(0, np.uint64)
    for keys, dropped in by_frame:
        view.starts.append((np.searchsorted(keys, found, "left") + dropped).tolist())
        view.stops.append((np.searchsorted(keys, found, "right") + dropped).tolist())
    keys_found: list[int] = found.tolist()
    return keys_found


def _count_up_to(scns: Int, seqs: Int, pair: Pair) -> int:
    """How many rows are at or below the pair."""
    start, stop = np.searchsorted(scns, pair[0], "left"), np.searchsorted(scns, pair[0], "right")
    return int(start + np.searchsorted(seqs[start:stop], min(pair[1], 2**63 - 1), "right"))


def _check_order(frame: Frame, scns: Int, seqs: Int, end: Pair) -> None:
    falls = (scns[1:] < scns[:-1]) | ((scns[1:] == scns[:-1]) & (seqs[1:] <= seqs[:-1]))
    if falls.any():
        row = int(np.flatnonzero(falls)[0]) + 1
        raise Corrupt(f"{frame.place}: row {row} is not after the row before it")
    if len(scns) and (int(scns[-1]), int(seqs[-1])) > end:
        raise Corrupt(f"{frame.place}: rows up to {(int(scns[-1]), int(seqs[-1]))} in a group that ends at {end}")


def windows_of(
    group: FrameGroup,
    after: Pair = _NO_PAIR,
    *,
    physical: str,
    table_of: TableOf,
    uuid: str = "",
    log: str = "",
) -> Iterator[Window]:
    """The windows of one group that lie after a pair. Several groups in a row: see `Splitter`."""
    scn, seq = after
    splitter = Splitter(
        physical, SourceCheckpoint(uuid, max(scn, 0), None if seq == SEQ_DONE else max(seq, 0)), table_of
    )
    splitter.connected(uuid, log)
    yield from splitter.split(group)
