"""An output at work: it, its ledger, and the lock that lets one query at a time have them."""

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from databus.core import (
    Checkpoint,
    ControlKind,
    CorruptData,
    InputError,
    SourceCheckpoint,
    UnsupportedFeature,
)
from databus.disk import Location, located
from databus.operate import logger_of
from databus.pipeline._bringing import Bringing, Refused
from databus.pipeline._ledger import Ledger
from databus.pipeline._node_config import OutputConfig
from databus.pipeline._output_contract import DirectOutput, Output, OutputContext, Place, SparkOutput
from databus.pipeline._streams import Brings, Entry, Stream
from databus.pipeline._way import Readable, made_otherwise, why_stopped
from databus.tasks import (
    Batch,
    Bucket,
    ChangeBatch,
    Item,
    StagedBatch,
    StagedRows,
    TableControl,
    Tasks,
    run_here,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


BatchT = TypeVar("BatchT", bound=Batch)
LEDGERS: Final = "ledgers"
"""In the pipeline's state: the folder for ledgers of outputs whose targets keep nothing."""
_HASH_DIGITS: Final = 16


def ledger_path(output: Output | SparkOutput, state: Path) -> Location:
    """The file of an output's ledger. state: the pipeline's folder, for a target that keeps nothing."""
    context: OutputContext = output.context
    folder = output.ledger_folder() if isinstance(output, Output) else None
    if folder is None:
        return located(state) / LEDGERS / f"{context.output}.json"
    return located(folder) / f".databus-{context.pipeline}-{context.output}.ledger.json"


def options_hash(output: Output | SparkOutput) -> str:
    """By which an output is known again under another name: of what it is by itself, without secrets, whatever comes to
    it and however its queries run.
    """
    own = {name: value for name, value in output.config if name == "type" or name not in OutputConfig.model_fields}
    return hashlib.sha256(repr(own).encode()).hexdigest()[:_HASH_DIGITS]


class OutputHandle:
    """bringing: all queries that bring something into it, by name; set before the first of them starts."""

    def __init__(self, name: str, output: Output | SparkOutput, state: Path) -> None:
        self.name = name
        self.output = output
        self._bringing: Mapping[str, Bringing] = {}
        self.refused: Mapping[str, Refused] = {}  # by name of the query that would bring it
        self.ledger_path = ledger_path(output, state)
        self.ledger: Ledger | None = None  # once it is taken
        self._now: dict[str, Stream] = {}  # as written, which the ledger says once the micro-batch is done
        self._adopted: set[str] = set()
        self._accepted: set[str] = set()  # logs of places in the target that are known to be of this history
        self._looked_at: set[str] = set()  # tables that were looked for in the target since it is open
        self._lock = threading.RLock()
        self._is_open = False
        self._busy_since_s = 0.0

    @property
    def bringing(self) -> Mapping[str, Bringing]:
        """See the class; without what is refused."""
        return {name: each.without(self.refused.get(name, ())) for name, each in self._bringing.items()}

    @bringing.setter
    def bringing(self, bringing: Mapping[str, Bringing]) -> None:
        self._bringing = bringing

    def refuse(self, name: str, refused: Refused) -> None:
        """Have nothing written of these tables of a query, which is not running."""
        with self._lock:
            self.refused = {**self.refused, name: refused}

    @property
    def how_to_begin_anew(self) -> str:
        """The way out where it cannot go on from where it stands."""
        if isinstance(self.output, Output) and self.output.can_be_made_anew:
            return (
                f"If this is another database, give the output another `path`; if it is the right one, have the output "
                f"made anew: `databus rebuild FILE {self.name}` (FILE is the pipeline's file)"
            )
        return f"Give outputs.{self.name} another name, under which it is written from the beginning"

    @property
    def busy_s(self) -> float:
        """How long it has been at what it does now; 0 for an output that does nothing."""
        since_s = self._busy_since_s
        return time.monotonic() - since_s if since_s else 0.0

    @contextmanager
    def _held(self) -> Iterator[None]:
        with self._lock:
            self._busy_since_s = time.monotonic()
            try:
                yield
            finally:
                self._busy_since_s = 0.0

    def stream(self, name: str) -> Stream | None:
        """How far a query has come, as the target says; None if it has nothing of it. Raises `CorruptData`."""
        with self._lock:
            return self._taken().found(name, self.bringing[name].of, self._brings)

    def has_begun(self, name: str) -> bool:
        """Whether a query has begun since what it brings was changed, or what others do that it may go on from."""
        with self._lock:
            return self._taken().has_begun(name, self._brings)

    def ahead(self, name: str, tables: Callable[[], Collection[str]]) -> list[SourceCheckpoint]:
        """Where the target says that it has come with a query, as far as its ledger does not know of that.

        tables: gives the full names of those of the query.
        """
        if not isinstance(self.output, DirectOutput):
            return []
        with self._held():
            stream = self.stream(name)
            known = stream.pair if stream is not None and stream.reached is not None else (0, 0)
            names = {name, *(() if stream is None else [each.name for each in stream.before])}
            found = {each.pair: each for each in self.output.reached(names)}
            ahead = [each for pair, each in found.items() if pair > known]
            if name in self._adopted or not self.output.tells_of_tables:
                return ahead
            new = set(tables()).difference(() if stream is None else stream.tables)
            return [*ahead, *self.output.found(new)]

    def stands(self, name: str) -> SourceCheckpoint | None:
        """Where the target says that a query stands of which its ledger says no place, as where that is lost."""
        with self._held():
            stream = self.stream(name)
            if not isinstance(self.output, DirectOutput) or (stream is not None and stream.checkpoint.sources):
                return None
            return min(self.output.stands(name, self.bringing[name].of), key=lambda each: each.pair, default=None)

    def accept(self, at: SourceCheckpoint) -> None:
        """Note that a place of `ahead` is of the history that is written."""
        if at.log is not None:
            self._accepted.add(at.log)

    @property
    def is_new(self) -> bool:
        """Whether the target has nothing of any query, as far as its ledger says."""
        with self._lock:
            return not self._taken().streams

    def adopt(self, name: str) -> None:
        """Take what a query has written so far, of which there is no ledger, for what its checkpoint says."""
        self._adopted.add(name)

    def inherit(self, name: str, tables: Collection[str]) -> Stream | None:
        """Let a query that has not begun go on where those stand that brought its tables so far. None if none did."""
        with self._held():
            found = self._taken().inherited(tables, self._brings)
            if found is None:
                return None
            self._put(name, found)
            return self.stream(name)

    @property
    def _brings(self) -> Mapping[str, Brings]:
        """What all queries are to bring."""
        return {name: (each.of, each.selections) for name, each in self.bringing.items()}

    def least_of(self, tables: Collection[str]) -> Checkpoint | None:
        """Where `inherit` would have a query go on; None if none brought any of these tables."""
        with self._held():
            found = self._taken().inherited(tables, self._brings)
            return None if found is None else found.checkpoint

    def check(self, name: str, readable: Readable = frozenset) -> None:
        """Look whether the target still holds what it held when a query last wrote to it, and whether that was made in
        the way that it is now. readable: of tables to be made anew, those that will be read; raises what is wrong.

        Raises `CorruptData`, and `InputError` where the output does not say what to do.
        """
        stream = self.stream(name)
        if not isinstance(self.output, Output):
            return
        if stream is not None:
            self._check_holds(self.output, stream, stream.tables)
            self._note_marks(name, stream)
        changed = self._made_otherwise(name, stream)
        if changed:
            self._go_another_way(self.output, changed, readable)
        for table in () if stream is None else stream.tables:
            self.output.follow_options(table)

    def _note_marks(self, name: str, stream: Stream) -> None:
        """Note durably by what the target is known from now on, where the options say to go on with what is there."""
        if not isinstance(self.output, DirectOutput) or not self.has_begun(name):
            return
        marked = {
            table: replace(entry, place=replace(entry.place, mark=self.output.mark(table)))
            for table, entry in stream.tables.items()
            if entry.place is not None
        }
        if any(entry != stream.tables[table] for table, entry in marked.items()):
            with self._held():
                self._put(name, replace(stream, tables={**stream.tables, **marked}))

    def _made_otherwise(self, name: str, stream: Stream | None) -> list[str]:
        """The tables of a query of which the target has rows that came by another way than they would now."""
        mine = self.bringing[name]
        if stream is not None:
            return made_otherwise(stream, mine.way_of)
        brought = Stream(mine.of, Checkpoint(), mine.selections)  # the ledger is lost, or was never there
        return [each for each in self.staged.tables() if brought.had(each) and not self._came_by_now(name, each)]

    def _came_by_now(self, name: str, table: str) -> bool:
        way = self.bringing[name].way_of(table)
        return not way or self.staged.came_by(table, way)

    def _check_holds(self, output: Output, stream: Stream, tables: Iterable[str]) -> None:
        places = {table: place for table in tables if (place := stream.tables[table].place) is not None}
        for table in output.lacking(places):
            place, found = places[table], output.place(table)
            has = "is gone" if found is None else f"holds changes up to {found.pair} (SCN, _seq)"
            if found is not None and found.pair >= place.pair:
                has = "was put back to how it was before, or another program has changed its rows"
            raise CorruptData(
                f"outputs.{self.name}: its copy of {table} {has}; it had come to {place.pair}, says "
                f"{self.ledger_path}. Restore what was there; or have it made anew: `databus rebuild FILE "
                f"{self.name} {table}` (FILE is the pipeline's file)"
            )

    def _go_another_way(self, output: Output, tables: Sequence[str], readable: Readable) -> None:
        names, on_change = ", ".join(sorted(tables)), output.config.on_change
        if on_change == "stop":
            raise InputError(f"outputs.{self.name}: {why_stopped(self.name, tables)}")
        logger = logger_of("databus.pipeline")
        if on_change == "continue":
            logger.warning("older rows were made in another way, and stay", output=self.name, tables=names)
            return
        anew = readable(tables)
        if left := ", ".join({*tables} - anew):
            logger.warning("not captured now, so its copy stays as it is", output=self.name, tables=left)
        if anew:
            self._make_anew(self._taken(), output, anew)
            told = ", ".join(sorted(anew))
            logger.warning("made anew, since what decides their rows was changed", output=self.name, tables=told)

    def _make_anew(self, ledger: Ledger, output: Output, tables: Collection[str]) -> None:
        with self._held():
            ledger.check_epoch()
            ledger.make_anew(tables, output.remove)
            self._close()  # it may remember what is gone
            output.open()
            self._is_open = True

    def begin(self, name: str, checkpoint: Checkpoint, incomplete: Collection[str]) -> None:
        """Note where a query begins, and which tables of it a snapshot, which was asked for, makes complete."""
        with self._held():
            self._put(name, replace(self._current(name), checkpoint=checkpoint).reading(incomplete))

    def announce(self, name: str) -> None:
        """Note that a query begins of which the target has nothing. What it writes is then known as its own by a query
        that goes on from it under another name, though it is killed before it has said how far it came.
        """
        with self._held():
            if isinstance(self.output, DirectOutput) and self.stream(name) is None:
                self._put(name, Stream(self.bringing[name].of, Checkpoint()))

    def advance(self, name: str, checkpoint: Checkpoint) -> None:
        """Note that all of a query up to `checkpoint` is in the target."""
        with self._held():
            self._put(name, replace(self._current(name), checkpoint=checkpoint))

    def expect_snapshot(self, name: str, tables: Collection[str]) -> None:
        """Note that a snapshot of these tables, by full names, was asked for; durable with the next `advance`."""
        with self._held():
            self._now[name] = self._current(name).reading(tables)

    def _put(self, name: str, stream: Stream) -> None:
        ledger, mine = self._taken(), self.bringing[name]
        ledger.check_epoch()
        stream = replace(stream, of=mine.of, selections=mine.selections)
        if not isinstance(self.output, DirectOutput):
            stream = replace(stream, before=(), written=())
        ledger.put(name, stream, self._brings)
        self._now.pop(name, None)

    def _current(self, name: str) -> Stream:
        return self._now.get(name) or self.stream(name) or Stream(self.bringing[name].of, Checkpoint())

    def _taken(self) -> Ledger:
        """The ledger; the target is ours from then on."""
        if self.ledger is None:
            context = self.output.context
            ledger = Ledger.load(self.ledger_path, context.pipeline, context.output)
            ledger.made_of = options_hash(self.output)
            ledger.take()
            if ledger.removing and isinstance(self.output, Output):  # somebody was killed before all was removed
                self._make_anew(ledger, self.output, ledger.removing)
            self.ledger = ledger
        return self.ledger

    def open(self, name: str) -> None:
        """Open it anew, as before each start of a query: `name`."""
        with self._held():
            self._now.pop(name, None)
            if isinstance(self.output, Output):
                self._close()
                if isinstance(self.output, DirectOutput):
                    self.output.streams = self._taken().needed(self._brings).union(self.bringing)
                    self.output.in_ledger = self._taken().buckets()
                self._is_open = True
                self.output.open()

    def close(self) -> None:
        """Close it; callable twice."""
        with self._held():
            self._close()

    def _close(self) -> None:
        if self._is_open and isinstance(self.output, Output):
            self._is_open = False
            self._looked_at.clear()
            self.output.close()

    @property
    def staged(self) -> Output:
        """The output, of which tasks write the rows."""
        assert isinstance(self.output, Output)  # noqa: S101 - the caller looked
        return self.output

    def write(self, name: str, batch: ChangeBatch) -> Mapping[str, int]:
        """Apply a batch of a query; returns the rows of each source that were written.

        Raises `UnsupportedFeature` if something is missing between it and the last.
        """
        assert isinstance(self.output, Output)  # noqa: S101 - `validate` refuses tables for the others
        return self._apply(name, batch, self.output.write)

    def commit(self, name: str, batch: StagedBatch, tasks: Tasks) -> Mapping[str, int]:
        """The same, for a batch whose rows tasks have written; see `Output.commit`."""
        return self._apply(name, batch, partial(self.staged.commit, tasks=tasks))

    def write_direct(
        self, name: str, given: Batch, write: Callable[[Bucket], Sequence[StagedBatch]]
    ) -> list[tuple[StagedBatch, Mapping[str, int]]]:
        """Have tasks write a batch of a query, by `write`; returns what it does, each with the rows of each source that
        were written. given: where the batch begins.
        """
        output = self.direct
        with self._held():
            known = self._current(name)
            self._check_gap(known, given)
            self._taken().check_epoch()
            context, at = output.context, known.checkpoint.sources.get(given.physical)
            buckets = output.direct_writer().buckets
            first = Bucket(context.pipeline, context.output, name, 0, buckets, at, known.reached, known.of)
            selections, accepted = self.bringing[name].selections, frozenset(self._accepted)
            first = replace(first, selections=selections, written=known.written, accepted=accepted)
            if known.before:
                self._go_on(output, first, known)
            done = write(first)
            return [(each, self._apply(name, each, partial(output.commit, tasks=run_here))) for each in done]

    def _go_on(self, output: DirectOutput, bucket: Bucket, known: Stream) -> None:
        """Have the target of a stream know from which others it goes on, and the ledger that it knows."""
        name = bucket.stream
        before = [replace(each, is_current=each.name != name and each.name in self.bringing) for each in known.before]
        output.go_on(
            bucket,
            before,
            {each.name for each in before} - self._taken().needed(self._brings, but=name) - {*self.bringing},
        )
        noted, written = self.stream(name), self._now.get(name)
        self._put(name, replace(noted or known, before=()))
        if written is not None:
            self._now[name] = replace(written, before=())

    @property
    def direct(self) -> DirectOutput:
        """The output, whose buckets tasks write."""
        assert isinstance(self.output, DirectOutput)  # noqa: S101 - the caller looked
        return self.output

    def discard(self, batches: Sequence[StagedBatch]) -> None:
        """Remove what tasks have written and no commit shows."""
        with self._held():
            for batch in batches:
                self.staged.discard(batch)

    def _apply(self, name: str, batch: BatchT, apply: Callable[[BatchT], None]) -> Mapping[str, int]:
        assert isinstance(self.output, Output)  # noqa: S101 - as its callers
        with self._held():
            known = self._current(name)
            self._check_gap(known, batch)
            tables = {f"{batch.physical}/{item.table.source}" for item in batch.items}
            self._check_new(name, tables.difference(known.tables, known.incomplete), batch)
            self._taken().check_epoch()
            self._check_holds(self.output, known, tables.intersection(known.tables) - self._looked_at)
            self._looked_at |= tables
            self.output.incomplete, self.output.way_of = known.incomplete, self.bringing[name].way_of
            apply(self._with_gaps(known.incomplete.difference(known.tables), batch))
            way_of = self.output.way_of
            entries = {table: Entry(self._place_after(batch, table), way_of(table)) for table in tables}
            done = replace(known.after(batch), tables={**known.tables, **entries}, reached=batch.end.pair)
            self._now[name] = done
            return _rows_of(batch) if self.output.written is None else self.output.written

    def _place_after(self, batch: Batch, table: str) -> Place | None:
        if isinstance(self.output, DirectOutput):  # of which each bucket is there now
            return Place(batch.end.pair, self.output.mark(table))
        return self.staged.place(table)

    def _check_gap(self, known: Stream, batch: Batch) -> None:
        reached = known.checkpoint.sources.get(batch.physical)
        if reached is not None and batch.start.pair > reached.pair:
            raise UnsupportedFeature(
                f"outputs.{self.name}: the next changes begin after {batch.start.pair} (SCN, _seq) of "
                f"{batch.physical}, and its target has come to {reached.pair} ({self.ledger_path}): what lies between "
                f"is missing. {self.how_to_begin_anew}"
            )

    def _check_new(self, name: str, tables: Collection[str], batch: Batch) -> None:
        """Refuse what follows a gap in tables that the ledger does not know, and the target does."""
        assert isinstance(self.output, Output)  # noqa: S101 - as its caller
        for table in () if name in self._adopted else sorted(tables):
            found = self.output.place(table)
            if found is None:
                continue
            if not self.output.is_from(table, batch.end.log or ""):
                raise UnsupportedFeature(
                    f"outputs.{self.name}: {self.ledger_path} does not know the copy of {table} that is there, and its "
                    f"rows came from another log than {batch.end.log}: perhaps of another database. Restore that file; "
                    f"or have the copy made anew: `databus rebuild FILE {self.name} {table}` (FILE is the pipeline's "
                    f"file)"
                )
            if batch.start.pair > found.pair:
                raise UnsupportedFeature(
                    f"outputs.{self.name}: the next changes of {table} begin after {batch.start.pair} (SCN, _seq), and "
                    f"its copy holds those up to {found.pair}; {self.ledger_path} does not say that none lies between. "
                    f"Restore that file; or have the copy made anew: `databus rebuild FILE {self.name} {table}`, FILE "
                    f"being the pipeline's"
                )
            if self.output.config.on_change != "continue" and not self._came_by_now(name, table):
                raise InputError(f"outputs.{self.name}: {why_stopped(self.name, [table])}")

    def _with_gaps(self, tables: Collection[str], batch: BatchT) -> BatchT:
        """The batch with a `gap` before what comes of tables that were left out for a while.

        Not for an output that a snapshot fills again: it has no rows that the missing changes were about.
        """
        assert isinstance(self.output, Output)  # noqa: S101 - as its caller
        items: list[Item] = []
        left = set() if self.output.is_refilled else set(tables)
        for item in batch.items:
            name = f"{batch.physical}/{item.table.source}"
            found = self.output.place(name) if name in left else None
            left.discard(name)
            if found is not None and batch.start.pair > found.pair:
                scns = found.pair[0], batch.start.scn
                told = {"from": scns[0], "to": scns[1], "reason": "this output did not take the table for a while"}
                body = {"kind": ControlKind.GAP, **told, "resnapshot": name in self.output.incomplete}
                items.append(TableControl(item.table, ControlKind.GAP, batch.start.pair, body))
            items.append(item)
        return replace(batch, items=tuple(items))

    def write_in_spark(self, rows: "DataFrame", batch_id: int) -> None:
        """Apply a micro-batch."""
        assert isinstance(self.output, SparkOutput)  # noqa: S101 - the caller looked
        with self._held():
            self._taken().check_epoch()
            self.output.write(rows, batch_id)


def _rows_of(batch: Batch) -> dict[str, int]:
    counted: dict[str, int] = {}
    for each in (item for item in batch.items if not isinstance(item, TableControl)):
        count = each.count if isinstance(each, StagedRows) else each.rows.num_rows
        counted[each.table.source] = counted.get(each.table.source, 0) + count
    return counted
