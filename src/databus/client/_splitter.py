"""Splitting: groups of frames in, windows out. Pure; start with `Splitter`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import numpy as np

from databus.client._window import Int, Keys, TableOf, Window, WindowView
from databus.core import BUS_SEQ_MIN, SEQ_DONE, UNBEGUN, CorruptData, Pair, SourceCheckpoint
from databus.wire import (
    Frame,
    FrameGroup,
    done_by,
    ends_in_other_log,
    is_answer,
    is_inside_transaction,
    resumes_after,
    snapshots_after,
    snapshots_at,
)

NO_PAIR: Final[Pair] = (0, -1)


class Splitter:
    """Cuts the groups of one physical source into windows, dropping what is at or below where the consumer stands.

    Pure: no sockets, no clocks. `connected` tells it which log the next groups come from.
    """

    def __init__(self, physical: str, start: SourceCheckpoint, table_of: TableOf, until: Pair | None = None) -> None:
        self._physical = physical
        self._table_of = table_of
        self._until = until
        self._bound = until  # what is given out ends there
        self._after: Pair = start.pair
        self._snapshots: Mapping[str, int] = dict(start.snapshots)
        self._uuid = start.uuid
        self._log = start.log or ""
        self._until_log = ""  # in which `until` was found: the first one that is connected
        self._is_inside = is_inside_transaction(start.pair)  # a part of it has been given out
        self._look_back: Literal["state", "since", "every"] | None = None
        self._restarts = False  # the next window begins anew what was given out in part

    @property
    def is_done(self) -> bool:
        """Whether `until` has been reached."""
        return self._until is not None and self._after >= self._until

    def connected(
        self,
        uuid: str,
        log: str,
        unread: Sequence[str] = (),
        look_back: Literal["state", "since", "every"] | None = None,
    ) -> bool:
        """The next groups come from this log, or, with `look_back`, from a bootstrap service. Whether they start a
        transaction anew of which a part was given out.

        Another log goes on from the end of the transaction before, and may count its rows otherwise: nothing of it is
        dropped. unread: tables whose snapshots were open in the log before; they are read anew.
        """
        self._look_back = look_back
        if is_answer(log):
            self._bound = None  # it is given whole: what it was asked for is not all there before its end
        else:
            self._until_log = self._until_log or log
            if log != self._until_log:
                self._until = ends_in_other_log(self._until)
            self._bound = self._until
        if unread:
            self._snapshots = dict.fromkeys(unread, UNBEGUN)
        is_other_log = self._log not in ("", log)
        self._uuid, self._log = uuid, log
        begins_again = is_other_log and is_inside_transaction(self._after)
        self._after = resumes_after(self._after, is_other_log=is_other_log)
        if not begins_again:
            return False
        self._is_inside = False
        self._restarts = True
        return True

    def split(self, group: FrameGroup) -> list[Window]:
        """The group's windows. Raises `CorruptData` if its rows are not in order or lie beyond its commit."""
        commit = group.commit
        end = done_by(commit)
        if end <= self._after or (self.is_done and self._bound is not None):
            return []
        view = WindowView(group, self._physical, self._uuid, self._log, self._table_of)
        view.look_back = self._look_back
        view.is_cut = self._bound is not None and end > self._bound
        control = group.control
        has_control = control is not None and self._after < control.header.first and not self._is_beyond(control)
        if has_control and (event := view.control) is not None:
            self._snapshots = snapshots_after(self._snapshots, event.table.source, event.kind, event.body)
        view.snapshots = self._snapshots = snapshots_at(self._snapshots, commit)
        keys = _whole(view, self._after, self._bound) or _spread(view, self._after, self._bound)
        windows = self._windows(view, keys, control if has_control else None)
        self._after = end if self._bound is None else min(end, self._bound)
        self._is_inside = commit.continues and (self._is_inside or bool(windows))
        return windows

    def _is_beyond(self, control: Frame) -> bool:
        return self._bound is not None and control.header.first > self._bound

    def _windows(self, view: WindowView, keys: list[int], control: Frame | None) -> list[Window]:
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
        last.continues = commit.continues or (view.is_cut and is_inside_transaction(self._bound or NO_PAIR))
        last.is_part = last.continues
        first.is_part = first.is_part or self._is_inside
        first.restarts, self._restarts = self._restarts, False
        return windows


def _key(pair: Pair) -> int:
    """What tells windows apart, in their order: the SCN, and behind its transaction what the bus put there."""
    return pair[0] << 1 | (pair[1] >= BUS_SEQ_MIN)


def _whole(view: WindowView, after: Pair, until: Pair | None) -> list[int] | None:
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
            raise CorruptData(
                f"{frame.place}: rows up to {header.last} in a group that ends at {view.group.commit.last}"
            )
    view.starts = [[0] for _ in view.frames]
    view.stops = [[frame.header.rows] for frame in view.frames]
    return [key]


def _spread(view: WindowView, after: Pair, until: Pair | None) -> list[int]:
    """The windows of a group of many; sets where each begins and ends in each frame."""
    by_frame: list[tuple[Keys, int]] = []
    for number, frame in enumerate(view.frames):
        scns, seqs = view.scns[number], view.seqs[number]
        _check_order(frame, scns, seqs, view.group.commit.last)
        dropped = 0 if frame.header.first > after else _count_up_to(scns, seqs, after)
        kept = len(scns) if until is None or frame.header.last <= until else _count_up_to(scns, seqs, until)
        keys: Keys = (scns[dropped:kept].astype(np.uint64) << np.uint64(1)) | (seqs[dropped:kept] >= BUS_SEQ_MIN)
        by_frame.append((keys, dropped))
    distinct: Keys = np.unique(np.concatenate([keys for keys, _ in by_frame])) if by_frame else np.empty(0, np.uint64)
    for keys, dropped in by_frame:
        view.starts.append((np.searchsorted(keys, distinct, "left") + dropped).tolist())
        view.stops.append((np.searchsorted(keys, distinct, "right") + dropped).tolist())
    distinct_keys: list[int] = distinct.tolist()
    return distinct_keys


def _count_up_to(scns: Int, seqs: Int, pair: Pair) -> int:
    """How many rows are at or below the pair."""
    start, stop = np.searchsorted(scns, pair[0], "left"), np.searchsorted(scns, pair[0], "right")
    return int(start + np.searchsorted(seqs[start:stop], min(pair[1], 2**63 - 1), "right"))


def _check_order(frame: Frame, scns: Int, seqs: Int, end: Pair) -> None:
    falls = (scns[1:] < scns[:-1]) | ((scns[1:] == scns[:-1]) & (seqs[1:] <= seqs[:-1]))
    if falls.any():
        row = int(np.flatnonzero(falls)[0]) + 1
        raise CorruptData(f"{frame.place}: row {row} is not after the row before it")
    if len(scns) and (int(scns[-1]), int(seqs[-1])) > end:
        raise CorruptData(f"{frame.place}: rows up to {(int(scns[-1]), int(seqs[-1]))} in a group that ends at {end}")


def windows_of(
    group: FrameGroup, after: Pair = NO_PAIR, *, physical: str, table_of: TableOf, uuid: str = "", log: str = ""
) -> Iterator[Window]:
    """The windows of one group that lie after a pair. Several groups in a row: see `Splitter`."""
    scn, seq = after
    splitter = Splitter(
        physical, SourceCheckpoint(uuid, max(scn, 0), None if seq == SEQ_DONE else max(seq, 0)), table_of
    )
    splitter.connected(uuid, log)
    yield from splitter.split(group)
