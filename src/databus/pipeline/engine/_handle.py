"""An output in a run: the output, its ledger, and the lock that lets one query at a time use them."""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from databus.core import (
    Checkpoint,
    Clock,
    ControlKind,
    CorruptData,
    DatabusError,
    InputError,
    Pair,
    SourceCheckpoint,
    SystemClock,
    UnsupportedFeature,
)
from databus.disk import Location, located
from databus.flow import Batch, Bucket, ChangeBatch, Here, Item, StagedBatch, TableControl, Tasks
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.engine._plan import OutputFeed, WayOf, why_stopped
from databus.places import ASKED, GAP, Choice, Held, Noted, Position, identity, read_by
from databus.plugins import (
    ChecksTables,
    Discards,
    FollowsOptions,
    KeepsLedger,
    Output,
    OutputConfig,
    Removes,
    TakesFrames,
    TakesOver,
    Written,
)
from databus.schema import TableSchema
from databus.wire import is_answer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BatchT = TypeVar("BatchT", bound=Batch)
LEDGERS: Final = "ledgers"
"""In the pipeline's state: the folder for ledgers of outputs whose targets keep nothing."""
_HASH_DIGITS: Final = 16


def ledger_path(output: Output, state: Path) -> Location:
    """The file of an output's ledger. state: the pipeline's folder, for a target that keeps no ledger."""
    context = output.context
    if not isinstance(output, KeepsLedger):
        return located(state) / LEDGERS / f"{context.output}.json"
    return located(output.ledger_folder()) / f".databus-{context.pipeline}-{context.output}.ledger.json"


def options_hash(output: Output) -> str:
    """A hash that recognises an output under another name: of its own options, without secrets and without those of its
    inputs and queries.
    """
    own = {name: value for name, value in output.config if name == "type" or name not in OutputConfig.model_fields}
    return hashlib.sha256(repr(own).encode()).hexdigest()[:_HASH_DIGITS]


Refused = Mapping[str, str]
"""The reason, by full name of a table that an output refuses."""


@dataclass(frozen=True)
class BatchSpan:
    """The tables of a batch, and its start."""

    start: Pair
    only: frozenset[str] | None = None
    """Full names of tables that catch up in a range of their own; None for all of the query, except those whose place
    is below the start, and those of `but`.
    """
    but: frozenset[str] = frozenset()
    """Tables that are written after it by ranges of their own."""


@dataclass(frozen=True)
class Brought:
    """What one query writes to an output."""

    feed: OutputFeed
    way_of: WayOf
    """A hash of what decides the rows of a table."""


class OutputHandle:
    """An output in a run. Any thread may call it."""

    check_table: Callable[[TableSchema], None]
    """See `ChecksTables`."""
    follow_options: Callable[[str], None]
    """See `FollowsOptions`."""

    def __init__(self, name: str, output: Output, state: Path, clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self.output = output
        config: OutputConfig = output.config
        self.guards, self.catches_up_together = config.guard, config.catches_up_together
        self.frames = output if isinstance(output, TakesFrames) else None
        self.check_table = output.check_table if isinstance(output, ChecksTables) else _nothing
        self.follow_options = output.follow_options if isinstance(output, FollowsOptions) else _nothing
        self._discard = output.discard if isinstance(output, Discards) else _nothing
        self._take_over = output.take_over if isinstance(output, TakesOver) else None
        self._remove = output.remove if isinstance(output, Removes) else None
        self.brought: Mapping[str | None, Brought] = {}
        """By physical source, set before the first query starts; under None that of an input that makes typed rows."""
        self.refused: Mapping[str, Refused] = {}
        """By physical source. A refused table is treated as if it was not chosen, and its place is forgotten: once it
        is accepted, it begins like a new one, after the rows that could not be taken.
        """
        self.ledger_path = ledger_path(output, state)
        self.ledger: Ledger | None = None  # once it is taken
        self._now: dict[str, Position] = {}  # as written; in the ledger once the micro-batch is done
        self._tables: dict[str, tuple[str, ...]] = {}  # by physical source, its tables when a query began
        self._accepted: set[str] = set()  # logs of places in the target that belong to this history
        self._looked_at: set[str] = set()  # tables whose marks in the target were checked since it was opened
        self._offsets: dict[str, Mapping[str, int]] = {}  # see `Written`, of what is being written
        self._lock = threading.RLock()
        self._is_open = False
        self._busy_since_s = 0.0

    def choice(self, physical: str) -> Choice:
        """The tables of a physical source that it takes."""
        feed = self._brought(physical).feed
        return feed.without(self.refused.get(physical, ())).choice

    def way_of(self, physical: str) -> WayOf:
        """The hashes of what decides the rows of tables of a physical source."""
        return self._brought(physical).way_of

    def _brought(self, physical: str) -> Brought:
        return self.brought.get(physical) or self.brought[None]

    def refuse(self, physical: str, refused: Refused) -> None:
        """Write nothing of these tables of a physical source, whose query is not running."""
        with self._lock:
            self.refused = {**self.refused, physical: refused}

    @property
    def how_to_start_over(self) -> str:
        """Advice for an output that cannot continue at its place."""
        if self._remove is not None:
            return (
                f"If this is another database, give the output another `path`; if it is the right one, rebuild the "
                f"output: `databus rebuild FILE {self.name}` (FILE is the pipeline's file)"
            )
        return f"Give outputs.{self.name} another name, under which it is written from the beginning"

    @property
    def busy_s(self) -> float:
        """How long its present call has taken; 0 for an output without one."""
        since_s = self._busy_since_s
        return self._clock.monotonic_s() - since_s if since_s else 0.0

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            before = self._busy_since_s  # calls may be nested: the outermost counts
            self._busy_since_s = before or self._clock.monotonic_s()
            try:
                yield
            finally:
                self._busy_since_s = before

    # Places

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Meanwhile nothing is written and no other query begins, so the places of tables do not change."""
        with self._lock:
            yield

    def known(self, physical: str) -> Position | None:
        """The places of a physical source's tables in the ledger, if it has any. Raises `CorruptData`."""
        with self._lock:
            return self._taken().positions.get(physical)

    def position(self, physical: str) -> Position:
        """The same with what was written since, by batches that are not in the ledger yet."""
        with self._lock:
            return self._now.get(physical) or self.known(physical) or Position()

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held] | None:
        """See `Output.held`."""
        with self._held():
            if self.ledger is None:
                self._taken()
            return self.output.held(tables)

    def put(
        self, physical: str, position: Position, tables: Collection[str] = (), accepted: Collection[str] = ()
    ) -> None:
        """Write the places of a physical source's tables to the ledger, before a query begins. tables: those of the
        source. accepted: logs of places in the target that belong to this history.
        """
        with self._held():
            self._tables[physical] = tuple(sorted(tables))
            self._accepted |= {*accepted}
            if position == self.known(physical):
                self._now.pop(physical, None)
            else:
                self._put(physical, position)

    def tables(self) -> list[str]:
        """Full names of the tables that the target may have rows of, for a target that can remove them."""
        with self._held():
            written = {
                name for position in self._taken().positions.values() for name in (*position.marks, *position.seeds)
            }
            return sorted(written.union(self.output.tables() if isinstance(self.output, Removes) else ()))

    def rebuild(self, tables: Collection[str]) -> None:
        """Remove tables, by full names, from the target and the ledger. Raises `InputError` if it cannot."""
        with self._held():
            ledger = self._taken()
            ledger.check_epoch()
            self._rebuild(ledger, tables)

    def _rebuild(self, ledger: Ledger, tables: Collection[str]) -> None:
        if self._remove is None:
            raise InputError(
                f"outputs.{self.name}: {type(self.output).__name__} has no `remove`, so what it wrote cannot be "
                f"rebuilt. Give the output another name and an empty target, or say `on_change: continue`"
            )
        ledger.rebuild(tables, self._remove)
        self._now.clear()
        self._open(ledger)  # it may have cached what is gone

    def advance(self, checkpoint: Checkpoint, span: BatchSpan | None = None) -> None:
        """Note that all of a batch up to `checkpoint` is in the target, and the places of tables in `hold`."""
        with self._held():
            for physical, end in checkpoint.sources.items():
                self._put(physical, self.after(physical, end, span))

    def offsets(self) -> Mapping[str, Mapping[str, int]]:
        """See `Written`: of what was written since the last call."""
        offsets, self._offsets = self._offsets, {}
        return offsets

    def after(self, physical: str, end: SourceCheckpoint, span: BatchSpan | None = None) -> Position:
        """The places of tables once a batch up to there is in the target."""
        position, choice = self.position(physical), self.choice(physical)
        if span is None or span.only is None:
            start = position.at.pair if span is None and position.at is not None else (0, 0)
            start, but = (start, frozenset[str]()) if span is None else (span.start, span.but)
            position = replace(position, tables=choice) if position.at is None else position
            position = position.reached(end, read_by(choice, {*position.behind(start), *but})).normal()
        for table in sorted(() if span is None or span.only is None else span.only):
            position = position.moved(table, end)
        return position

    def hold(self, physical: str, names: Collection[str], to: SourceCheckpoint | None = None) -> None:
        """Keep tables at their places, or move them to one that they have reached, whatever is written of others.
        Durable with the next `advance`.
        """
        with self._held():
            position = self.position(physical)
            for name in sorted(names):
                if to is not None and position.done(name) < to.pair:  # one that is further on keeps its place
                    position = position.moved(name, to)
            self._now[physical] = position.holding(names)

    def expect_snapshot(self, physical: str, tables: Collection[str]) -> None:
        """Note that a snapshot of these tables, by full names, was asked for; durable with the next `advance`."""
        with self._held():
            self._now[physical] = self.position(physical).seeded(dict.fromkeys(tables, ASKED))

    def _put(self, physical: str, position: Position) -> None:
        ledger = self._taken()
        ledger.check_epoch()
        ledger.put(physical, position)
        self._now.pop(physical, None)

    def _taken(self) -> Ledger:
        """The ledger; from then on this process is the target's only writer."""
        if self.ledger is None:
            context = self.output.context
            ledger = Ledger.load(self.ledger_path, context.pipeline, context.output)
            ledger.made_of = options_hash(self.output)
            ledger.take()
            if ledger.removing:  # a process was killed during a removal
                self._rebuild(ledger, ledger.removing)
            self.ledger = ledger
        return self.ledger

    # Writing

    def open(self) -> None:
        """Open it, again before each start of a query."""
        with self._held():
            self._open(None if self._take_over is None else self._taken())

    def _open(self, ledger: Ledger | None) -> None:
        self._close()
        self._is_open = True
        self.output.open()
        if self._take_over is not None and ledger is not None:
            self._take_over(
                ledger.positions,
                tuple(selection for brought in self.brought.values() for selection in brought.feed.choice),
            )

    def close(self) -> None:
        """Close it; callable twice. Its queries have reported errors already."""
        with suppress(DatabusError), self._held():
            self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._looked_at.clear()
            self.output.close()

    def write(self, batch: ChangeBatch, span: BatchSpan | None = None) -> Written:
        """Apply a batch; returns what was written, with the rows of each source.

        Raises `UnsupportedFeature` if changes between it and the last one are missing.
        """
        new = self._new_of(batch, span)
        written = self._apply(new, self.output.write, span)
        had = batch.rows_by_source() - new.rows_by_source() + Counter(written.already)
        return replace(written, already=had)

    def commit(self, batch: StagedBatch, tasks: Tasks, span: BatchSpan | None = None) -> Written:
        """The same, for a batch whose rows tasks have written; see `Output.commit`."""
        return self._apply(batch, partial(self.output.commit, tasks=tasks), span)

    def write_direct(
        self, beginning: Batch, write: Callable[[Bucket], Sequence[StagedBatch]], span: BatchSpan | None = None
    ) -> list[tuple[StagedBatch, Written]]:
        """Have tasks write a batch, by `write`; returns its batches, each with what was written. beginning: where the
        batch begins.
        """
        output, physical = self.output, beginning.physical
        with self._held():
            self._check_gap(beginning, span)
            self._taken().check_epoch()
            position = self.position(physical)
            if position.at is None:
                position = replace(position, tables=self.choice(physical))
            moves_at = span is None or span.only is None
            bucket = Bucket(
                output.context.pipeline,
                output.context.output,
                physical,
                position=replace(position, ways={}, marks={}),
                moves_at=moves_at,
                there=self._tables.get(physical, ()),
                reached=position.last_written,
                accepted=frozenset(self._accepted),
            )
            done = write(bucket)
            return [(staged, self._apply(staged, partial(output.commit, tasks=Here()), span)) for staged in done]

    def discard(self, batches: Sequence[StagedBatch]) -> None:
        """Remove what tasks have written without a commit."""
        with self._held():
            for batch in batches:
                self._discard(batch)

    def _new_of(self, batch: ChangeBatch, span: BatchSpan | None) -> ChangeBatch:
        """The part of a batch that is above the places of its tables, without tables whose place is below its start.
        span: of the whole batch, of which this may be a piece.
        """
        position = self.position(batch.physical)
        behind = position.behind(batch.start.pair if span is None else span.start)
        return batch.above(position.done, lambda table: table not in behind)

    def _apply(self, batch: BatchT, apply: Callable[[BatchT], Written | None], span: BatchSpan | None) -> Written:
        way_of = self.way_of(batch.physical)
        with self._held():
            self._check_gap(batch, span)
            position = self.position(batch.physical)
            tables = {f"{batch.physical}/{item.table.source}" for item in batch.items}
            self._check_new(tables.difference(position.marks, position.seeds), batch, span)
            self._taken().check_epoch()
            self._check_holds(
                {table: position.marks[table] for table in tables & position.marks.keys() - self._looked_at}
            )
            self._looked_at |= tables
            end = replace(batch.end, uuid=position.uuid or batch.end.uuid)
            batch = replace(batch, end=end, seeds=position.seeds, ways={table: way_of(table) for table in tables})
            batch = _with_snapshots(batch, position)
            written = apply(_with_gaps(self.output, batch, position)) or Written()
            marks = dict(written.marks)
            if is_answer(batch.end.log):  # a pair alone does not say of which answer
                marks = {table: Noted(min(mark.pair, position.done(table)), mark.mark) for table, mark in marks.items()}
            ways, seeds = {**position.ways, **batch.ways}, batch.seeds_after()
            self._now[batch.physical] = replace(position.noting(marks, tables), ways=ways, seeds=seeds)
            self._offsets.update(written.offsets)
            return replace(written, rows=batch.rows_by_source()) if written.rows is None else written

    def _check_gap(self, batch: Batch, span: BatchSpan | None) -> None:
        position = self.position(batch.physical)
        start = batch.start.pair if span is None else span.start  # the batch may be a piece of a larger one
        places = [position.at] if span is None or span.only is None else map(position.place, span.only)
        for reached in places:
            if reached is None or start <= reached.pair:
                continue
            raise UnsupportedFeature(
                f"outputs.{self.name}: the next changes begin after {start} (SCN, _seq) of "
                f"{batch.physical}, and its target has come to {reached.pair} ({self.ledger_path}): what lies between "
                f"is missing. {self.how_to_start_over}"
            )

    def _check_holds(self, noted: Mapping[str, Noted]) -> None:
        """Raises `CorruptData` if the target lacks what it had of tables after their last write."""
        if not noted or self.output.config.may_lack:
            return
        held = self.held(noted) or {}
        gone = sorted(table for table in noted if _is_gone(noted[table], held.get(table)))
        if gone:
            raise self.gone(gone[0], noted[gone[0]], held.get(gone[0]))

    def gone(self, table: str, noted: Noted, word: Held | None) -> CorruptData:
        """The error for a target that lacks what it had of a table."""
        has = "is gone"
        if word is not None and word.place is not None:
            has = f"holds changes up to {word.place.pair} (SCN, _seq)"
            if word.place.pair >= noted.pair:
                has = "was put back to how it was before, or another program has changed its rows"
        return CorruptData(
            f"outputs.{self.name}: its copy of {table} {has}; it had come to {noted.pair}, says "
            f"{self.ledger_path}. Restore what was there; or rebuild it: `databus rebuild FILE "
            f"{self.name} {table}` (FILE is the pipeline's file)"
        )

    def _check_new(self, tables: Collection[str], batch: Batch, span: BatchSpan | None) -> None:
        """Refuse changes after a gap, in tables that the target knows and the ledger does not."""
        held = (self.held(dict.fromkeys(sorted(tables))) or {}) if tables else {}
        start = batch.start.pair if span is None else span.start
        for table, word in held.items():
            if word.place is None:
                continue
            log = batch.end.log or ""
            if word.place.log not in (None, log, identity(log)) and word.place.log not in self._accepted:
                raise UnsupportedFeature(
                    f"outputs.{self.name}: {self.ledger_path} does not know the copy of {table} that is there, and its "
                    f"rows came from another log than {batch.end.log}: perhaps of another database. Restore that file; "
                    f"or rebuild the copy: `databus rebuild FILE {self.name} {table}` (FILE is the pipeline's file)"
                )
            if start > word.place.pair:
                raise UnsupportedFeature(
                    f"outputs.{self.name}: the next changes of {table} begin after {start} (SCN, _seq), and "
                    f"its copy holds those up to {word.place.pair}; {self.ledger_path} does not say that none lies "
                    f"between. Restore that file; or rebuild the copy: `databus rebuild FILE {self.name} {table}` "
                    f"(FILE is the pipeline's file)"
                )
            way = self.way_of(batch.physical)(table)
            if self.output.config.on_change != "continue" and word.way and way and way != word.way:
                raise InputError(f"outputs.{self.name}: {why_stopped(self.name, [table])}")

    def write_frame(self, frames: TakesFrames, rows: "DataFrame", batch_id: int) -> int | None:
        """Apply a micro-batch as a DataFrame; see `TakesFrames`."""
        with self._held():
            self._taken().check_epoch()
            return frames.write_frame(rows, batch_id)


def _nothing(*_: object) -> None:
    """Instead of an optional method that an output does not have."""


def _with_snapshots(batch: BatchT, position: Position) -> BatchT:
    """The batch with all snapshots in its start whose begin a table was given, also by a range of its own."""
    begun = {
        name.partition("/")[2]: seed
        for name, seed in position.seeds.items()
        if isinstance(seed, int) and name.startswith(f"{batch.physical}/")
    }
    if begun.keys() <= batch.start.snapshots.keys():
        return batch
    return replace(batch, start=replace(batch.start, snapshots={**begun, **batch.start.snapshots}))


def _with_gaps(output: Output, batch: BatchT, position: Position) -> BatchT:
    """The batch with a `gap` before the changes of tables of which the log had lost some.

    Not for an output that a snapshot fills again: the snapshot replaces the rows of the missing changes.
    """
    items: list[Item] = []
    open_gaps = set() if output.config.is_refilled else {name for name, seed in position.seeds.items() if seed == GAP}
    for item in batch.items:
        name = f"{batch.physical}/{item.table.source}"
        noted = position.marks.get(name) if name in open_gaps else None
        open_gaps.discard(name)
        if noted is not None and batch.start.pair > noted.pair:
            scns = noted.pair[0], batch.start.scn
            gap = {"from": scns[0], "to": scns[1], "reason": "this output did not take the table for a while"}
            body = {"kind": ControlKind.GAP, **gap, "resnapshot": True}
            items.append(TableControl(item.table, ControlKind.GAP, batch.start.pair, body))
        items.append(item)
    return replace(batch, items=tuple(items))


def _is_gone(noted: Noted, word: Held | None) -> bool:
    pair = None if word is None or word.place is None else word.place.pair
    return word is None or word.mark != noted.mark or (pair is not None and pair < noted.pair)
