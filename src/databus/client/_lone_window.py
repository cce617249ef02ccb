"""Windows that a client makes of others: one without the rows that are dead letters, and one of a change by itself."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from databus.client._window import Changes, Window, WindowView
from databus.core import COMMIT_TIMESTAMP, COMMIT_VERSION, SEQ, Pair, SourceCheckpoint
from databus.schema import TableSchema
from databus.wire import ROWS, Frame, FrameGroup, Header

Kept = Iterable[tuple[Changes, pa.RecordBatch]]
"""Rows that are left, and of which piece of a window they are."""


class _CutView(WindowView):
    """A group of which only some rows are left, all of one window."""

    def __init__(self, view: WindowView, kept: Kept) -> None:
        super().__init__(view.group, view.physical, view.uuid, view.log, view._table_of)  # noqa: SLF001 - its own class
        frames = []
        for changes, batch in kept:
            whole = view.frames[changes._number]  # noqa: SLF001 - of the same package
            frames.append(Frame(whole.header._replace(rows=len(batch)), whole.body, whole.place, batch))
        self.frames = tuple(frames)
        self.starts, self.stops = [[0] for _ in frames], [[len(frame.batch)] for frame in frames]
        self.snapshots = view.snapshots


class CutWindow(Window):
    """A window without the rows that are dead letters, or were delivered one by one. It stands where the whole does."""

    __slots__ = ("_whole",)

    def __init__(self, whole: Window, kept: Kept, *, has_control: bool) -> None:
        super().__init__(_CutView(whole._view, kept), 0, whole.scn << 1 | whole._bus)  # noqa: SLF001 - its own class
        self._whole = whole
        self.continues, self.is_part, self.restarts = whole.continues, whole.is_part, whole.restarts
        self.partition, self.fence = whole.partition, whole.fence
        self.has_control = has_control
        self.is_empty = not has_control and len(self) == 0

    @property
    def position(self) -> SourceCheckpoint:
        """See `Window.position`."""
        return self._whole.position

    @property
    def txid(self) -> str:
        """See `Window.txid`."""
        return self._whole.txid

    @property
    def commit_us(self) -> int:
        """See `Window.commit_us`."""
        return self._whole.commit_us


class LoneWindow(Window):
    """One change by itself, or a control without the rows behind it.

    place: where its consumer stands, which it does not move. before: after which everything that was not done comes
    again where it fails. is_letter: it was a dead letter.
    """

    __slots__ = ("_place", "before", "is_letter")
    is_replayed = True

    def __init__(self, view: WindowView, key: int, place: SourceCheckpoint, before: SourceCheckpoint) -> None:
        super().__init__(view, 0, key)
        self._place = place
        self.before = before
        self.is_letter = False

    @property
    def position(self) -> SourceCheckpoint:
        """Where its consumer stands."""
        return self._place

    @property
    def only(self) -> Changes:
        """Its rows."""
        return next(self.changes())


def lone_changes(whole: Window, place: SourceCheckpoint, changes: Iterable[tuple[Changes, int, int]]) -> list[Window]:
    """Windows of a window: its control, its changes in order, and what is left, which moves the place.

    changes: of each the piece that it is of, and between which rows of that it stands.
    """
    key, view = whole.scn << 1 | whole._bus, whole._view  # noqa: SLF001 - of the same package
    made: list[Window] = []
    if whole.has_control:
        control = LoneWindow(_CutView(view, ()), key, place, place)
        control.has_control = True
        made.append(control)
    rows = [
        (_pair_of(batch, 0), piece, batch)
        for piece, start, stop in changes
        for batch in [piece.batch.slice(start, stop - start)]
    ]
    for (scn, seq), piece, batch in sorted(rows, key=lambda row: row[0]):
        # the rows before it are done, and are not to be undone where it fails
        before = replace(whole.position, scn=scn, seq=seq - 1, log=view.log) if (scn, seq - 1) > place.pair else place
        made.append(LoneWindow(_CutView(view, [(piece, batch)]), key, place, before))
    return [*made, CutWindow(whole, (), has_control=False)]


def letter_window(source: str, table: TableSchema, batch: pa.RecordBatch, place: SourceCheckpoint) -> LoneWindow:
    """A window of a dead letter: both rows of an update, or one row. source: the table's full name."""
    first, last = _pair_of(batch, 0), _pair_of(batch, len(batch) - 1)
    at_us = int(batch.column(COMMIT_TIMESTAMP).cast(pa.int64())[0].as_py())
    header = Header(ROWS, 0, 0, 0, len(batch), 0, 0, 0, table.fingerprint, *first, *last, at_us, 0, b"")
    frame = Frame(header, memoryview(b""), f"dead letter {source} {last[0]}/{last[1]}", batch)
    view = WindowView(
        FrameGroup((frame,), header), source.partition("/")[0], place.uuid, place.log or "", lambda _: table
    )
    view.starts, view.stops = [[0]], [[len(batch)]]
    window = LoneWindow(view, last[0] << 1 | bool(batch.column("_snapshot")[0].as_py()), place, place)
    window.is_letter = True
    return window


def pairs_in(batch: pa.RecordBatch) -> Sequence[Pair]:
    """The pair of each row."""
    return list(zip(batch.column(COMMIT_VERSION).to_pylist(), batch.column(SEQ).to_pylist(), strict=True))


def _pair_of(batch: pa.RecordBatch, row: int) -> Pair:
    return batch.column(COMMIT_VERSION)[row].as_py(), batch.column(SEQ)[row].as_py()
