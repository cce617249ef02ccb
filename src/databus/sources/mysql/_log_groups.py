"""Assembling: runs of the log become groups. Pure: a run and its tables' plans in, whole groups out.

A group ends at the end of a transaction, when nothing more of the run waits or it has reached `group_bytes_max`. A
transaction that alone exceeds that is yielded in parts, never cut inside an event, so never between two images of an
update. The unfinished end of a run waits here, as places in its buffer, until the next run brings the rest or it
exceeds the limit.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import BUS_COLUMNS, COMMIT_VERSION, SEQ, FatalError, make_scn
from databus.schema import frame_schema
from databus.sources.mysql.binlog import LogRun
from databus.sources.mysql.rows import SMALL_BYTES, Decoded, DecodePlan, SmallEvents, bus_arrays, decode, small_events
from databus.wire import Commit, Group, OpenSnapshot, Rows

Ints = npt.NDArray[np.int64]

_SCN_FROM_END: Final = len(BUS_COLUMNS) - BUS_COLUMNS.index(COMMIT_VERSION)
_SEQ_FROM_END: Final = len(BUS_COLUMNS) - BUS_COLUMNS.index(SEQ)


@dataclass(frozen=True, slots=True)
class _RunPiece:
    """Consecutive rows events of a run, `lo` to `hi` - 1. All transactions but the first begin in this piece."""

    run: LogRun
    lo: int
    hi: int
    bytes: int
    """The bytes of their row images."""

    @property
    def last_transaction(self) -> int:
        """The transaction of its last event; -1 without events."""
        return int(self.run.event_transaction[self.hi - 1]) if self.hi > self.lo else -1


@dataclass(slots=True)
class _Stretch:
    """Pieces that make one group."""

    pieces: list[_RunPiece]
    first: int
    """The first transaction of the last piece's run that is in it."""
    last: int
    """The last one."""
    continues: bool
    """The last transaction goes on in the next group."""


class Assembler:
    """Makes groups of runs, in order. plan_of: by slot of the log's table maps. position: where the first run begins.

    `seq` is the last one given in the transaction at hand; `position` is that after the last whole transaction yielded.
    """

    def __init__(
        self,
        timeline: int,
        group_bytes_max: int,
        row_bytes_max: int,
        plan_of: Callable[[int], DecodePlan],
        position: Mapping[str, Any],
    ) -> None:
        self._base = make_scn(timeline, 0)
        self._group_bytes_max = group_bytes_max
        self._row_bytes_max = row_bytes_max
        self._plan_of = plan_of
        self._waiting: list[_RunPiece] = []  # of the transaction that the last run left unfinished
        self._waiting_bytes = 0
        self._is_open = False  # a part of that transaction has been yielded
        self._small: dict[int, tuple[DecodePlan, SmallEvents | None]] = {}  # by slot
        self._yielded_events = 0  # the number after that of the last event in those parts
        self.seq = 0
        self.position = position

    @property
    def is_between_transactions(self) -> bool:
        """Whether everything begun has been yielded to its end."""
        return not self._waiting and not self._is_open

    def open(self, seq: int, *, is_yielded: bool) -> None:
        """A transaction has begun with a statement; its rows follow. is_yielded: a group of it is out."""
        self._is_open, self.seq = is_yielded, seq

    def end(self, position: Mapping[str, Any]) -> None:
        """A transaction without rows is over."""
        self._is_open, self.seq, self.position, self._yielded_events = False, 0, position, 0

    def abandon(self) -> bool:
        """Forget the transaction at hand: it was rolled back. Returns whether a part of it was yielded."""
        was_open, self._is_open = self._is_open, False
        self._waiting, self._waiting_bytes, self.seq, self._yielded_events = [], 0, 0, 0
        return was_open

    def take_back(self, first: int) -> bool:
        """Drop the transaction's events from number `first` on: rolled back. Returns whether none was yielded."""
        kept = []
        for piece in self._waiting:
            numbers = piece.run.event_number[piece.lo : piece.hi]
            hi = piece.lo + int(np.searchsorted(numbers, first))
            size = int((piece.run.event_end[piece.lo : hi] - piece.run.event_start[piece.lo : hi]).sum())
            if hi > piece.lo:
                kept.append(_RunPiece(piece.run, piece.lo, hi, size))
        self._waiting, self._waiting_bytes = kept, sum(piece.bytes for piece in kept)
        return not (self._is_open and self._yielded_events > first)

    def add(
        self, run: LogRun, snapshots: Mapping[str, OpenSnapshot], first: int = 0, until: int | None = None
    ) -> Iterator[Group]:
        """The groups that are complete with this run. snapshots: the open ones, for the commits. first: transactions
        before it are passed over. until: transactions from it on are added later.
        """
        if not run.continues and not self.is_between_transactions:
            raise AssertionError("a run begins a transaction while another is unfinished")
        for stretch in self._stretches(run, first, len(run) if until is None else until):
            before = self.seq, self.position, self._is_open
            try:
                group = self._group(stretch, snapshots)
            except FatalError:
                # A transaction of the run cannot be captured: yield those before it one by one, from where that began.
                self.seq, self.position, self._is_open = before
                for single in _singles(stretch):
                    yield self._group(single, snapshots)
            else:
                yield group

    def _stretches(self, run: LogRun, first: int, transactions: int) -> Iterator[_Stretch]:
        if self._fits_as_it_is(run, first, transactions):
            events = len(run.event_slot)
            pieces = [_RunPiece(run, 0, events, 0)]
            yield _Stretch(pieces, 0, transactions - 1, continues=False)
            return
        firsts = np.searchsorted(run.event_transaction, np.arange(transactions + 1))
        sizes = run.event_end - run.event_start
        until = np.concatenate(([0], np.cumsum(sizes)))
        at_transaction = until[firsts]
        # The last transaction of a run may be unfinished: it goes by parts.
        whole = transactions if run.is_complete or transactions < len(run) else transactions - 1
        at = first
        while at < whole:
            waiting = self._waiting_bytes if at == 0 else 0
            limit = at_transaction[at] + self._group_bytes_max - waiting
            end = min(int(np.searchsorted(at_transaction, limit, side="right")) - 1, whole)
            if at == 0 and self._waiting:
                end = min(end, 1)  # by itself: joined with what came before, the whole group would be copied
            if end > at and not (at == 0 and self._is_open):
                yield self._take(run, int(firsts[at]), int(firsts[end]), until, at, end - 1, continues=False)
                at = end
                continue
            yield from self._parts(run, int(firsts[at]), int(firsts[at + 1]), until, at, is_complete=True)
            at += 1
        if at < transactions:
            yield from self._parts(run, int(firsts[at]), int(firsts[at + 1]), until, at, is_complete=False)

    def _fits_as_it_is(self, run: LogRun, first: int, transactions: int) -> bool:
        """Whether the whole run is one group: nearly always so, if a server is followed."""
        if first or transactions < len(run) or not run.is_complete or not self.is_between_transactions:
            return False
        return not len(run.event_slot) or int(run.event_end[-1] - run.event_start[0]) <= self._group_bytes_max

    def _parts(
        self, run: LogRun, lo: int, hi: int, until: Ints, transaction: int, *, is_complete: bool
    ) -> Iterator[_Stretch]:
        """One transaction's events: in parts while it exceeds the limit; the rest ends it, or waits."""
        while self._waiting_bytes + int(until[hi] - until[lo]) > self._group_bytes_max:
            room = max(self._group_bytes_max - self._waiting_bytes, 0)
            end = min(max(int(np.searchsorted(until, until[lo] + room, side="right")) - 1, lo), hi)
            if end == lo and not self._waiting:
                end = lo + 1  # an event above the limit goes out by itself, as no event is cut
            if end == hi and is_complete:
                break  # the rest is the last part, which ends the transaction
            yield self._take(run, lo, end, until, transaction, transaction, continues=True)
            lo = end
        if is_complete:
            yield self._take(run, lo, hi, until, transaction, transaction, continues=False)
        elif hi > lo:
            self._waiting.append(_RunPiece(run, lo, hi, int(until[hi] - until[lo])))
            self._waiting_bytes += self._waiting[-1].bytes

    def _take(self, run: LogRun, lo: int, hi: int, until: Ints, first: int, last: int, *, continues: bool) -> _Stretch:
        pieces = [*self._waiting, _RunPiece(run, lo, hi, int(until[hi] - until[lo]))]
        self._waiting, self._waiting_bytes = [], 0
        return _Stretch(pieces, first, last, continues)

    def _group(self, stretch: _Stretch, snapshots: Mapping[str, OpenSnapshot]) -> Group:
        run, last = stretch.pieces[-1].run, stretch.last
        batches: dict[int, list[Rows]] = {}
        for piece in stretch.pieces:
            for rows in self._rows(piece):
                batches.setdefault(rows.table.fingerprint, []).append(rows)
        if stretch.pieces[-1].last_transaction < last and (last > 0 or not run.continues):
            self.seq = 0  # the last transaction has no row of a captured table
        if not stretch.continues:
            self.position = run.position(last)
        txid = run.txid(last)
        commit = Commit(
            self._base + int(run.scn[last]),
            self.seq,
            txid,
            self.position,
            int(run.commit_us[last]),
            dict(snapshots),
            continues=stretch.continues,
        )
        self._is_open = stretch.continues
        if stretch.continues:
            self._note_yielded(stretch)
        else:
            self.seq = self._yielded_events = 0
        return Group(commit, tuple(_joined(rows) for rows in batches.values()))

    def _note_yielded(self, stretch: _Stretch) -> None:
        for piece in stretch.pieces:
            if piece.hi > piece.lo:
                self._yielded_events = int(piece.run.event_number[piece.hi - 1]) + 1

    def _rows(self, piece: _RunPiece) -> Iterator[Rows]:
        """The rows of a piece by table map; sets `seq` to that of its last event's last image."""
        run, lo, hi = piece.run, piece.lo, piece.hi
        if lo == hi:
            return
        if lo + 1 == hi:
            yield from self._rows_of_one(run, lo)
            return
        slots, transactions = run.event_slot[lo:hi], run.event_transaction[lo:hi]
        counts = np.zeros(hi - lo, np.int64)
        parts: list[tuple[DecodePlan, Decoded, npt.NDArray[np.intp]]] = []
        for slot in _in_order(slots):
            indexes = np.flatnonzero(slots == slot)
            plan = self._plan_of(int(slot))
            events = indexes + lo
            for decoded in decode(
                plan,
                run.buffer,
                run.event_kind[events],
                run.event_start[events],
                run.event_end[events],
                run.place,
                row_bytes_max=self._row_bytes_max,
            ):
                part = indexes[decoded.first_event :][: len(decoded.images_per_event)]
                counts[part] = decoded.images_per_event
                parts.append((plan, decoded, part))
        before = np.cumsum(counts) - counts
        begins = np.searchsorted(transactions, transactions)  # of each event: the first one of its transaction
        starts = before - before[begins]
        if self._is_open or (run.continues and transactions[0] == 0):
            starts[transactions == transactions[0]] += self.seq  # its first rows are in an earlier piece
        self.seq = int(starts[-1] + counts[-1])
        for plan, decoded, indexes in parts:
            if len(decoded.change_types):
                yield Rows(plan.table, self._batch(run, plan, decoded, starts[indexes], transactions[indexes]))

    def _rows_of_one(self, run: LogRun, event: int) -> Iterator[Rows]:
        """The same for one event: an array's operations cost more than all else of a small transaction."""
        transaction = int(run.event_transaction[event])
        goes_on = self._is_open or (run.continues and transaction == 0)
        if not goes_on:
            self.seq = 0
        slot = int(run.event_slot[event])
        plan = self._plan_of(slot)
        one = slice(event, event + 1)
        images = run.buffer, run.event_kind[one], run.event_start[one], run.event_end[one], run.place
        small = self._small_of(slot, plan)
        if small is not None and run.event_end[event] - run.event_start[event] <= SMALL_BYTES:
            numbers = int(run.scn[transaction]) + self._base, self.seq, int(run.commit_us[transaction])
            txid = run.txid(transaction)
            small_batch = small.decode(*images, numbers=numbers, txid=txid, row_bytes_max=self._row_bytes_max)
            if small_batch is not None:
                self.seq += small_batch.images
                yield Rows(plan.table, small_batch.batch, small_batch.body)
            return
        before = np.array([self.seq], np.int64)
        for decoded in decode(plan, *images, row_bytes_max=self._row_bytes_max):
            self.seq += decoded.images
            if decoded.images:
                yield Rows(plan.table, self._batch(run, plan, decoded, before, run.event_transaction[one]))

    def _small_of(self, slot: int, plan: DecodePlan) -> SmallEvents | None:
        known, small = self._small.get(slot, (None, None))
        if known is not plan:
            small = small_events(plan)
            self._small[slot] = plan, small
        return small

    def _batch(
        self, run: LogRun, plan: DecodePlan, decoded: Decoded, before: Ints, transactions: npt.NDArray[np.int32]
    ) -> pa.RecordBatch:
        own = bus_arrays(
            decoded, before, transactions, scns=run.scn + self._base, commits_us=run.commit_us, txids=run.txids
        )
        return pa.RecordBatch.from_arrays([*decoded.arrays, *own], schema=frame_schema(plan.table))


def _singles(stretch: _Stretch) -> Iterator[_Stretch]:
    """A stretch for each transaction with rows, and one for those without before it."""
    *waiting, piece = stretch.pieces
    run, at, done = piece.run, piece.lo, stretch.first - 1
    of_events = run.event_transaction[piece.lo : piece.hi]
    if waiting and not (len(of_events) and of_events[0] == stretch.first):
        yield _Stretch([*waiting, _RunPiece(run, at, at, 0)], stretch.first, stretch.first, continues=False)
        waiting, done = [], stretch.first
    for transaction in np.unique(of_events).tolist():
        if transaction - 1 > done:
            yield _Stretch([_RunPiece(run, at, at, 0)], done + 1, transaction - 1, continues=False)
        end = min(int(np.searchsorted(run.event_transaction, transaction, side="right")), piece.hi)
        is_last = transaction == stretch.last
        yield _Stretch([*waiting, _RunPiece(run, at, end, 0)], transaction, transaction, is_last and stretch.continues)
        waiting, at, done = [], end, transaction
    if done < stretch.last:
        yield _Stretch([_RunPiece(run, at, at, 0)], done + 1, stretch.last, stretch.continues)


def _in_order(slots: npt.NDArray[np.int32]) -> list[int]:
    """The distinct slots, in the order of their first events."""
    if (slots == slots[0]).all():
        return [int(slots[0])]
    values, firsts = np.unique(slots, return_index=True)
    ordered: list[int] = values[np.argsort(firsts)].tolist()
    return ordered


def _joined(parts: list[Rows]) -> Rows:
    """One frame for all rows of one table in one schema, in order, however many table maps and runs they came by."""
    if len(parts) == 1:
        return parts[0]
    batch = pa.concat_batches([part.batch for part in parts])
    scns = batch.column(batch.num_columns - _SCN_FROM_END).to_numpy()
    seqs = batch.column(batch.num_columns - _SEQ_FROM_END).to_numpy()
    order: Any = np.lexsort((seqs, scns))
    if not np.array_equal(order, np.arange(len(order))):
        batch = batch.take(pa.array(order))
    return Rows(parts[0].table, batch)
