"""An output at work: it, its ledger, and the lock that lets one query at a time have them."""

import hashlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from databus.core import (
    Checkpoint,
    Clock,
    ControlKind,
    CorruptData,
    InputError,
    Pair,
    SourceCheckpoint,
    SystemClock,
    UnsupportedFeature,
)
from databus.disk import Location, located
from databus.flow import Batch, Bucket, ChangeBatch, Here, Item, StagedBatch, StagedRows, TableControl, Tasks
from databus.pipeline.engine._ledger import Ledger
from databus.pipeline.engine._plan import Feed, WayOf, why_stopped
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
    """The file of an output's ledger. state: the pipeline's folder, for a target that keeps nothing."""
    context = output.context
    if not isinstance(output, KeepsLedger):
        return located(state) / LEDGERS / f"{context.output}.json"
    return located(output.ledger_folder()) / f".databus-{context.pipeline}-{context.output}.ledger.json"


def options_hash(output: Output) -> str:
    """By which an output is known again under another name: of what it is by itself, without secrets, whatever comes to
    it and however its queries run.
    """
    own = {name: value for name, value in output.config if name == "type" or name not in OutputConfig.model_fields}
    return hashlib.sha256(repr(own).encode()).hexdigest()[:_HASH_DIGITS]


Refused = Mapping[str, str]
"""By full name of a table that an output refuses: why."""


@dataclass(frozen=True)
class Span:
    """What a batch is over."""

    start: Pair
    """Where it begins."""
    only: frozenset[str] | None = None
    """Tables that have a range of their own, by full names; None for all of the query, but those that stand below the
    start and those of `but`.
    """
    but: frozenset[str] = frozenset()
    """Tables that are written by ranges of their own behind it."""


@dataclass(frozen=True)
class Brought:
    """What one query brings into an output."""

    feed: Feed
    way_of: WayOf
    """How it makes the rows of a table."""


class OutputHandle:
    """An output at work."""

    check_table: Callable[[TableSchema], None]
    """See `ChecksTables`."""
    follow_options: Callable[[str], None]
    """See `FollowsOptions`."""

    def __init__(self, name: str, output: Output, state: Path, clock: Clock | None = None) -> None:
        self.name = name
        self._clock = clock or SystemClock()
        self.output = output
        self.frames = output if isinstance(output, TakesFrames) else None
        self.check_table = output.check_table if isinstance(output, ChecksTables) else _nothing
        self.follow_options = output.follow_options if isinstance(output, FollowsOptions) else _nothing
        self._discard = output.discard if isinstance(output, Discards) else _nothing
        self._take_over = output.take_over if isinstance(output, TakesOver) else None
        self._remove = output.remove if isinstance(output, Removes) else None
        self.brought: Mapping[str | None, Brought] = {}
        """By physical source, set before the first query starts; None for that of an input that makes typed rows."""
        self.refused: Mapping[str, Refused] = {}
        """By physical source. A refused table is treated like one that is not chosen, but that its place is forgotten:
        once it is refused no longer, it begins like a new one, behind the rows that could not be taken.
        """
        self.ledger_path = ledger_path(output, state)
        self.ledger: Ledger | None = None  # once it is taken
        self._now: dict[str, Position] = {}  # as written, which the ledger says once the micro-batch is done
        self._there: dict[str, tuple[str, ...]] = {}  # by physical source, its tables when a query began
        self._accepted: set[str] = set()  # logs of places in the target that are known to be of this history
        self._looked_at: set[str] = set()  # tables that were looked for in the target since it is open
        self._offsets: dict[str, Mapping[str, int]] = {}  # see `Written`, of what is being written
        self._lock = threading.RLock()
        self._is_open = False
        self._busy_since_s = 0.0

    def choice(self, physical: str) -> Choice:
        """The tables of a physical source that come into it."""
        feed = self._brought(physical).feed
        return feed.without(self.refused.get(physical, ())).choice

    def way_of(self, physical: str) -> WayOf:
        """How rows of tables of a physical source come into it."""
        return self._brought(physical).way_of

    def _brought(self, physical: str) -> Brought:
        return self.brought.get(physical) or self.brought[None]

    def refuse(self, physical: str, refused: Refused) -> None:
        """Have nothing written of these tables of a physical source, whose query is not running."""
        with self._lock:
            self.refused = {**self.refused, physical: refused}

    @property
    def guards(self) -> bool:
        """Whether the relay keeps its log for it."""
        config: OutputConfig = self.output.config
        return config.guard

    @property
    def how_to_begin_anew(self) -> str:
        """The way out where it cannot go on from where it stands."""
        if self._remove is not None:
            return (
                f"If this is another database, give the output another `path`; if it is the right one, have the output "
                f"made anew: `databus rebuild FILE {self.name}` (FILE is the pipeline's file)"
            )
        return f"Give outputs.{self.name} another name, under which it is written from the beginning"

    @property
    def catches_up_together(self) -> bool:
        """Whether all of its tables go back to where the last of them stands, so that they are given in one order."""
        config: OutputConfig = self.output.config
        return config.catches_up_together

    @property
    def busy_s(self) -> float:
        """How long it has been at what it does now; 0 for an output that does nothing."""
        since_s = self._busy_since_s
        return self._clock.monotonic_s() - since_s if since_s else 0.0

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            before = self._busy_since_s  # it may ask its target something in the middle of what it does
            self._busy_since_s = before or self._clock.monotonic_s()
            try:
                yield
            finally:
                self._busy_since_s = before

    # Where it stands

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing is written, and nobody else begins: what one finds out meanwhile of where tables stand stays true."""
        with self._lock:
            yield

    def known(self, physical: str) -> Position | None:
        """Where the tables of a physical source stand, as the ledger says; None where it says nothing. Raises
        `CorruptData`.
        """
        with self._lock:
            return self._taken().positions.get(physical)

    def position(self, physical: str) -> Position:
        """The same with what was written since, by batches that are not noted yet."""
        with self._lock:
            return self._now.get(physical) or self.known(physical) or Position()

    def held(self, tables: Mapping[str, Noted | None]) -> Mapping[str, Held] | None:
        """See `Output.held`."""
        with self._held():
            if self.ledger is None:
                self._taken()
            return self.output.held(tables)

    def put(
        self, physical: str, position: Position, there: Collection[str] = (), accepted: Collection[str] = ()
    ) -> None:
        """Note durably where the tables of a physical source stand, before a query begins. there: its tables.
        accepted: logs that places of the target are of, which is of this history.
        """
        with self._held():
            self._there[physical] = tuple(sorted(there))
            self._accepted |= {*accepted}
            if position == self.known(physical):
                self._now.pop(physical, None)
            else:
                self._put(physical, position)

    def tables(self) -> list[str]:
        """Of which the target may have something, by full names; for a target that can remove them."""
        with self._held():
            written = {name for each in self._taken().positions.values() for name in (*each.marks, *each.seeds)}
            return sorted(written.union(self.output.tables() if isinstance(self.output, Removes) else ()))

    def make_anew(self, tables: Collection[str]) -> None:
        """Have the target forget tables, by full names, and the ledger too. Raises `InputError` where it cannot."""
        with self._held():
            ledger = self._taken()
            ledger.check_epoch()
            self._make_anew(ledger, tables)

    def _make_anew(self, ledger: Ledger, tables: Collection[str]) -> None:
        if self._remove is None:
            raise InputError(
                f"outputs.{self.name}: {type(self.output).__name__} has no `remove`, so what it wrote cannot be made "
                f"anew. Give the output another name and an empty target, or say `on_change: continue`"
            )
        ledger.make_anew(tables, self._remove)
        self._now.clear()
        self._open(ledger)  # it may remember what is gone

    def advance(self, checkpoint: Checkpoint, span: Span | None = None) -> None:
        """Note that all of a batch up to `checkpoint` is in the target, and where tables stand that were held."""
        with self._held():
            for physical, end in checkpoint.sources.items():
                self._put(physical, self.after(physical, end, span))

    def offsets(self) -> Mapping[str, Mapping[str, int]]:
        """See `Written`: of what was written since this was asked last."""
        found, self._offsets = self._offsets, {}
        return found

    def after(self, physical: str, end: SourceCheckpoint, span: Span | None = None) -> Position:
        """Where tables stand once a batch up to there is in the target."""
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
        """Have tables stay where they stand, or at a place that they have come to, whatever is written of others;
        durable with that, and with `advance`.
        """
        with self._held():
            position = self.position(physical)
            for name in sorted(names):
                if to is not None and position.done(name) < to.pair:  # one that is further drops what it has
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
        """The ledger; the target is ours from then on."""
        if self.ledger is None:
            context = self.output.context
            ledger = Ledger.load(self.ledger_path, context.pipeline, context.output)
            ledger.made_of = options_hash(self.output)
            ledger.take()
            if ledger.removing:  # somebody was killed before all was removed
                self._make_anew(ledger, ledger.removing)
            self.ledger = ledger
        return self.ledger

    # What is written

    def open(self) -> None:
        """Open it anew, as before each start of a query."""
        with self._held():
            self._open(None if self._take_over is None else self._taken())

    def _open(self, ledger: Ledger | None) -> None:
        self._close()
        self._is_open = True
        self.output.open()
        if self._take_over is not None and ledger is not None:
            self._take_over(
                ledger.positions, tuple(each for mine in self.brought.values() for each in mine.feed.choice)
            )

    def close(self) -> None:
        """Close it; callable twice."""
        with self._held():
            self._close()

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._looked_at.clear()
            self.output.close()

    def write(self, batch: ChangeBatch, span: Span | None = None) -> Mapping[str, int]:
        """Apply a batch; returns the rows of each source that were written.

        Raises `UnsupportedFeature` if something is missing between it and the last.
        """
        return self._apply(self._new_of(batch, span), self.output.write, span)

    def commit(self, batch: StagedBatch, tasks: Tasks, span: Span | None = None) -> Mapping[str, int]:
        """The same, for a batch whose rows tasks have written; see `Output.commit`."""
        return self._apply(batch, partial(self.output.commit, tasks=tasks), span)

    def write_direct(
        self, given: Batch, write: Callable[[Bucket], Sequence[StagedBatch]], span: Span | None = None
    ) -> list[tuple[StagedBatch, Mapping[str, int]]]:
        """Have tasks write a batch, by `write`; returns what it does, each with the rows of each source that
        were written. given: where the batch begins.
        """
        output, physical = self.output, given.physical
        with self._held():
            self._check_gap(given, span)
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
                there=self._there.get(physical, ()),
                reached=position.last_written,
                accepted=frozenset(self._accepted),
            )
            done = write(bucket)
            return [(each, self._apply(each, partial(output.commit, tasks=Here()), span)) for each in done]

    def discard(self, batches: Sequence[StagedBatch]) -> None:
        """Remove what tasks have written and no commit shows."""
        with self._held():
            for batch in batches:
                self._discard(batch)

    def _new_of(self, batch: ChangeBatch, span: Span | None) -> ChangeBatch:
        """What of a batch is for tables that do not stand below its start, and above where they stand. span: what it is
        a piece of.
        """
        position = self.position(batch.physical)
        behind = position.behind(batch.start.pair if span is None else span.start)
        return batch.above(position.done, lambda table: table not in behind)

    def _apply(self, batch: BatchT, apply: Callable[[BatchT], Written | None], span: Span | None) -> Mapping[str, int]:
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
            if is_answer(batch.end.log):  # by a pair alone nobody could tell of which
                marks = {table: Noted(min(mark.pair, position.done(table)), mark.mark) for table, mark in marks.items()}
            ways, seeds = {**position.ways, **batch.ways}, batch.seeds_after()
            self._now[batch.physical] = replace(position.noting(marks, tables), ways=ways, seeds=seeds)
            self._offsets.update(written.offsets)
            return _rows_of(batch) if written.rows is None else written.rows

    def _check_gap(self, batch: Batch, span: Span | None) -> None:
        position = self.position(batch.physical)
        start = batch.start.pair if span is None else span.start  # a batch may be a piece of it
        places = [position.at] if span is None or span.only is None else map(position.place, span.only)
        for reached in places:
            if reached is None or start <= reached.pair:
                continue
            raise UnsupportedFeature(
                f"outputs.{self.name}: the next changes begin after {start} (SCN, _seq) of "
                f"{batch.physical}, and its target has come to {reached.pair} ({self.ledger_path}): what lies between "
                f"is missing. {self.how_to_begin_anew}"
            )

    def _check_holds(self, noted: Mapping[str, Noted]) -> None:
        """Raises `CorruptData` where the target lacks what it had of tables when they were written last."""
        if not noted or self.output.config.may_lack:
            return
        held = self.held(noted) or {}
        gone = sorted(table for table in noted if _is_gone(noted[table], held.get(table)))
        if gone:
            raise self.gone(gone[0], noted[gone[0]], held.get(gone[0]))

    def gone(self, table: str, noted: Noted, word: Held | None) -> CorruptData:
        """What is said where the target lacks what it had of a table."""
        has = "is gone"
        if word is not None and word.place is not None:
            has = f"holds changes up to {word.place.pair} (SCN, _seq)"
            if word.place.pair >= noted.pair:
                has = "was put back to how it was before, or another program has changed its rows"
        return CorruptData(
            f"outputs.{self.name}: its copy of {table} {has}; it had come to {noted.pair}, says "
            f"{self.ledger_path}. Restore what was there; or have it made anew: `databus rebuild FILE "
            f"{self.name} {table}` (FILE is the pipeline's file)"
        )

    def _check_new(self, tables: Collection[str], batch: Batch, span: Span | None) -> None:
        """Refuse what follows a gap in tables that the ledger does not know, and the target does."""
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
                    f"or have the copy made anew: `databus rebuild FILE {self.name} {table}` (FILE is the pipeline's "
                    f"file)"
                )
            if start > word.place.pair:
                raise UnsupportedFeature(
                    f"outputs.{self.name}: the next changes of {table} begin after {start} (SCN, _seq), and "
                    f"its copy holds those up to {word.place.pair}; {self.ledger_path} does not say that none lies "
                    f"between. Restore that file; or have the copy made anew: `databus rebuild FILE {self.name} "
                    f"{table}`, FILE being the pipeline's"
                )
            way = self.way_of(batch.physical)(table)
            if self.output.config.on_change != "continue" and word.way and way and way != word.way:
                raise InputError(f"outputs.{self.name}: {why_stopped(self.name, [table])}")

    def write_frame(self, frames: TakesFrames, rows: "DataFrame", batch_id: int) -> int | None:
        """Apply a micro-batch as Spark has it; see `TakesFrames`."""
        with self._held():
            self._taken().check_epoch()
            return frames.write_frame(rows, batch_id)


def _nothing(*_: object) -> None:
    """What an output does that cannot do it."""


def _with_snapshots(batch: BatchT, position: Position) -> BatchT:
    """The batch where its start says of each snapshot whose begin a table was given, also by a range of its own."""
    begun = {
        name.partition("/")[2]: seed
        for name, seed in position.seeds.items()
        if isinstance(seed, int) and name.startswith(f"{batch.physical}/")
    }
    if begun.keys() <= batch.start.snapshots.keys():
        return batch
    return replace(batch, start=replace(batch.start, snapshots={**begun, **batch.start.snapshots}))


def _with_gaps(output: Output, batch: BatchT, position: Position) -> BatchT:
    """The batch with a `gap` before what comes of tables of which the log had lost something.

    Not for an output that a snapshot fills again: it has no rows that the missing changes were about.
    """
    items: list[Item] = []
    left = set() if output.config.is_refilled else {name for name, seed in position.seeds.items() if seed == GAP}
    for item in batch.items:
        name = f"{batch.physical}/{item.table.source}"
        noted = position.marks.get(name) if name in left else None
        left.discard(name)
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


def _rows_of(batch: Batch) -> dict[str, int]:
    counted: dict[str, int] = {}
    for each in (item for item in batch.items if not isinstance(item, TableControl)):
        count = each.count if isinstance(each, StagedRows) else each.rows.num_rows
        counted[each.table.source] = counted.get(each.table.source, 0) + count
    return counted
