"""Batches: many windows at once, for a consumer that is far behind. One Arrow table a source, whatever the windows."""

import datetime as dt
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Literal

import pyarrow as pa

from databus.client._partition import Partition
from databus.client._rows import Row
from databus.client._window import Changes, ControlEvent, Window
from databus.core import Checkpoint, SourceCheckpoint


class WindowBatch:
    """Consecutive windows of one physical source; it reads like one of them.

    Only its first window may have a control or begin a transaction again, and no source has rows in two schemas, unless
    one window alone does.
    """

    __slots__ = ("windows",)
    is_replayed = False  # such windows come by themselves

    def __init__(self, windows: list[Window]) -> None:
        self.windows = windows

    @property
    def physical(self) -> str:
        """The physical source."""
        return self.windows[0].physical

    @property
    def scn(self) -> int:
        """The SCN of its last window."""
        return self.windows[-1].scn

    @property
    def first_scn(self) -> int:
        """The SCN of its first window."""
        return self.windows[0].scn

    @property
    def control(self) -> ControlEvent | None:
        """The control that comes before its rows, if any."""
        return self.windows[0].control

    @property
    def has_control(self) -> bool:
        """Whether it begins with one."""
        return self.windows[0].has_control

    @property
    def continues(self) -> bool:
        """Whether its last window is a part of a transaction that goes on."""
        return self.windows[-1].continues

    @property
    def is_part(self) -> bool:
        """Whether it begins or ends inside a transaction."""
        return self.windows[0].is_part or self.windows[-1].is_part

    @property
    def restarts(self) -> bool:
        """Whether its first window begins a transaction again: see `Window`."""
        return self.windows[0].restarts

    @property
    def is_snapshot(self) -> bool:
        """Whether all its rows were read, not logged."""
        return all(window.is_snapshot for window in self.windows if len(window))

    @property
    def look_back(self) -> Literal["state", "since", "every"] | None:
        """See `Window.look_back`; it is the same of all its windows."""
        return self.windows[0].look_back

    @property
    def is_consistent(self) -> bool:
        """See `Window.is_consistent`."""
        return self.windows[-1].is_consistent

    @property
    def is_empty(self) -> bool:
        """Whether it only moves the checkpoint."""
        return all(window.is_empty for window in self.windows)

    def __len__(self) -> int:
        return sum(map(len, self.windows))

    def changes(self) -> Iterator[Changes]:
        """Its rows, source by source; those of one source may come in several pieces, in order."""
        runs = self._runs()
        pieces = list(chain.from_iterable(first.changes_until(last) for first, last in runs))
        order = {source: number for number, source in enumerate(dict.fromkeys(piece.source for piece in pieces))}
        yield from sorted(pieces, key=lambda piece: order[piece.source])

    def _runs(self) -> list[tuple[Window, Window]]:
        """First and last window of each group."""
        runs: list[tuple[Window, Window]] = []
        for window in self.windows:
            if runs and runs[-1][1].is_of_group_of(window):
                runs[-1] = runs[-1][0], window
            else:
                runs.append((window, window))
        return runs

    def tables(self) -> dict[str, pa.Table]:
        """Its rows as Arrow by source, in `databus.schema.frame_schema`; nothing is copied."""
        by_source: dict[str, list[pa.RecordBatch]] = {}
        for piece in self.changes():
            by_source.setdefault(piece.source, []).append(piece.batch)
        return {source: pa.Table.from_batches(batches) for source, batches in by_source.items()}

    def rows(self) -> Iterator[Row]:
        """Its rows as objects, merged over all tables in the order of the changes."""
        return chain.from_iterable(window.rows() for window in self.windows)

    @property
    def txid(self) -> str:
        """The id of its last transaction."""
        return self.windows[-1].txid

    @property
    def commit_us(self) -> int:
        """When its last transaction was committed, microseconds since 1970."""
        return self.windows[-1].commit_us

    @property
    def committed_at(self) -> dt.datetime:
        """When its last transaction was committed."""
        return self.windows[-1].committed_at

    @property
    def position(self) -> SourceCheckpoint:
        """Where a consumer stands that has done it."""
        return self.windows[-1].position

    @property
    def checkpoint(self) -> Checkpoint:
        """The whole checkpoint as of its last window: see `Window.checkpoint`."""
        return self.windows[-1].checkpoint

    @property
    def partition(self) -> Partition | None:
        """Of a group, the partition that it is of."""
        return self.windows[-1].partition

    @property
    def fence(self) -> int:
        """Of a group, the number of this holder of its partition."""
        return self.windows[-1].fence

    def belong_to(self, partition: Partition, fence: int) -> None:
        """See `Window.belong_to`."""
        self.windows[-1].belong_to(partition, fence)

    def stand_beside(self, others: Mapping[str, SourceCheckpoint]) -> None:
        """See `Window.stand_beside`."""
        for window in self.windows:
            window.stand_beside(others)

    def __repr__(self) -> str:
        return f"<{len(self.windows)} windows {self.physical} {self.first_scn}..{self.scn}, {len(self)} rows>"


class Batcher:
    """Joins windows into batches. Pure: `add` takes windows of one physical source in order."""

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._windows: list[Window] = []
        self._rows = 0
        self._schemas: dict[str, int] = {}

    def add(self, window: Window) -> WindowBatch | None:
        """Take a window. Returns the batch that it does not belong to any more, if it began a new one."""
        schemas = window.schemas()
        is_other = any(self._schemas.get(source, fingerprint) != fingerprint for source, fingerprint in schemas.items())
        done = None
        is_new = window.has_control or window.restarts or is_other
        is_new = is_new or (bool(self._windows) and window.look_back != self._windows[-1].look_back)
        if self._windows and (is_new or self._rows >= self._rows_max):
            done = self.take()
        self._windows.append(window)
        self._rows += len(window)
        self._schemas.update(schemas)
        return done

    @property
    def is_full(self) -> bool:
        """Whether the limit of rows is reached."""
        return self._rows >= self._rows_max

    def take(self) -> WindowBatch | None:
        """What has been added so far, as a batch."""
        windows, self._windows, self._rows, self._schemas = self._windows, [], 0, {}
        return WindowBatch(windows) if windows else None
