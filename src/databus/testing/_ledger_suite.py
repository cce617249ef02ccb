"""Checks of an output together with its ledger, as a pipeline has them: part of the conformance suite of outputs.

A "process" of a check is an output, its ledger and its lock, new objects on what an earlier process has left.
"""

import unittest
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final
from unittest import mock

from databus.core import (
    Checkpoint,
    ControlKind,
    CorruptData,
    DiskFull,
    LockHeld,
    PositionForeign,
    SourceCheckpoint,
    UnsupportedFeature,
)
from databus.filters import TableChoice
from databus.flow import DirectWriter, RowCounts, StagedBatch, Tasks
from databus.pipeline import ChangeBatch, Input, Output, RunContext, Shape
from databus.pipeline.engine import Brought, Ledger, Offsets, OutputFeed, OutputHandle, Way, begin
from databus.pipeline.running import rename_target
from databus.places import Held, Noted
from databus.plugins import Removes, Written
from databus.schema import TableSchema
from databus.testing._change_log import ORDERS, STOCK, ChangeLog, random_log
from databus.testing._output_harness import OutputHarness, assert_holds
from databus.testing._staged_writes import write_buckets, write_by_tasks


class _Origin(Input):
    """Where the rows come from: a log that has all changes of its database."""

    emits = Shape.TABLES
    resumes = True

    def __init__(self, log: str) -> None:
        super().__init__(None)
        self.log = log

    @property
    def wants_all(self) -> bool:
        """See `Input.wants_all`."""
        return True

    def typed(self, *_: Any) -> Any:
        """Not called."""
        raise NotImplementedError

    def schema_of(self, *_: Any) -> tuple[str, TableSchema]:
        """Not called."""
        raise NotImplementedError

    def log_of(self, *_: Any) -> str:
        """See `Input.log_of`."""
        return self.log

    def uuid_of(self, *_: Any) -> str:
        """See `Input.uuid_of`: each log here is of a database of its own."""
        return f"database of {self.log}"

    def beginning(self, *_: Any) -> Checkpoint | None:
        """See `Input.beginning`."""
        return Checkpoint({"shop": SourceCheckpoint(self.uuid_of())})

    def tables_of(self, *_: Any) -> list[str]:
        """See `Input.tables_of`."""
        return [f"shop/{table.source}" for table in (ORDERS, STOCK)]

    def read_anew(self, *_: Any) -> None:
        """See `Input.read_anew`."""


class _Process:
    """A process that writes the output. Once it is closed, or killed, another may follow."""

    def __init__(self, harness: OutputHarness, log: str = "log-1") -> None:
        self.output = harness.make()
        folder = self.output.context.folder / ".databus"
        self.handle = OutputHandle("suite", self.output, folder)
        feed = OutputFeed("outputs.suite", (Way("inputs.shop", (TableChoice(("shop/*",)),)),))
        self.handle.brought = {"shop": Brought(feed, lambda _: "")}
        self.handle.open()
        self.origin = _Origin(log)
        offsets = Offsets(folder / "offsets", self.origin, "shop", log)
        context = RunContext("suite", "shop", folder)
        begin([(feed, self.handle)], offsets, context, lambda *_: None)

    def write(self, *batches: ChangeBatch) -> None:
        """Write batches, and note each in the ledger."""
        for batch in batches:
            self.write_only(batch)
            end = replace(batch.end, uuid=f"database of {self.origin.log}")
            self.handle.advance(Checkpoint({batch.physical: end}))

    def write_only(self, batch: ChangeBatch) -> None:
        """Write one, and die before it is noted in the ledger."""
        writer = self.output.part_writer()
        if isinstance(writer, DirectWriter):
            for staged, written in self.handle.write_direct(batch, partial(write_buckets, self.output, batch)):
                _check_counts(staged.counts.rows, written)
        elif writer is None:
            came = {source: RowCounts(rows) for source, rows in batch.rows_by_source().items()}
            _check_counts(came, self.handle.write(batch))
        else:
            write_by_tasks(self.output, batch, self._commit, lambda staged: self.handle.discard([staged]))

    def _commit(self, staged: StagedBatch, tasks: Tasks) -> Written:
        written = self.handle.commit(staged, tasks)
        _check_counts(staged.counts.rows, written)
        return written

    def reached(self, log: ChangeLog) -> int:
        """How many entries of the log are in the target, as its ledger says."""
        position = self.handle.known(log.physical)
        at = None if position is None else position.least(((TableChoice(("*",)),),))
        if at is None or not at.scn:
            return 0
        return next(n for n in range(len(log.entries) + 1) if log.position(n).pair == at.pair)


def _check_counts(counts: Mapping[str, RowCounts], written: Written) -> None:
    """An output says of each row that it was given whether it is new, refused, or was there."""
    for source, of in counts.items():
        known = (written.rows or {}).get(source, 0) + written.already.get(source, 0) + of.already + of.letters
        assert known + sum(of.dropped.values()) == of.came, f"of {of.came} rows of {source} {known} are in its counts"


@contextmanager
def _process(harness: OutputHarness) -> Iterator[_Process]:
    process = _Process(harness)
    try:
        yield process
    finally:
        process.handle.close()


def _assert_holds(harness: OutputHarness, log: ChangeLog, entries: int | None = None) -> None:
    """The target holds the log's first entries, all by default."""
    part = replace(log, entries=log.entries[:entries])
    assert_holds(harness, part, (ORDERS, STOCK), harness.make().delivery)


def check_goes_on_where_the_ledger_says(harness: OutputHarness) -> None:
    """Each process begins where the one before it ended, whatever has become of Spark's checkpoint."""
    log = random_log(21)
    while True:
        with _process(harness) as process:
            begin = process.reached(log)
            if begin == len(log.entries):
                break
            process.write(log.batch(begin, min(begin + 40, len(log.entries))))
    _assert_holds(harness, log)


def check_kill_before_the_ledger_is_written(harness: OutputHarness) -> None:
    """What is in the target and not in its ledger comes again, cut at another place."""
    log = random_log(22)
    size = len(log.entries)
    with _process(harness) as process:
        process.write(log.batch(0, 50))
        process.write_only(log.batch(50, 90))
    with _process(harness) as process:
        begin = process.reached(log)
        assert begin == 50, f"the ledger says {begin} entries, and 50 were noted"
        process.write(log.batch(50, 71), log.batch(71, size))
    _assert_holds(harness, log)


def check_gap(harness: OutputHarness) -> None:
    """Changes that do not follow what the target holds are refused, and it stays as it was."""
    log = random_log(23)
    size = len(log.entries)
    with _process(harness) as process:
        process.write(log.batch(0, 40))
        _refused(process, log.batch(60, size), UnsupportedFeature)
    _assert_holds(harness, log, 40)
    with _process(harness) as process:
        _refused(process, log.batch(60, size), UnsupportedFeature)
        process.write(log.batch(40, 60), log.batch(60, size))
    _assert_holds(harness, log)


def check_lost_ledger(harness: OutputHarness) -> None:
    """Without its ledger the target goes on where it says that it stands, or is written from the beginning again."""
    log = random_log(24)
    size = len(log.entries)
    with _process(harness) as process:
        process.write(log.batch(0, 60))
    process.handle.ledger_path.remove()
    with _process(harness) as process:
        _refused(process, log.batch(80, size), UnsupportedFeature)
        begin = process.reached(log)
        process.write(log.batch(begin, begin + 3), log.batch(begin + 3, size))
    _assert_holds(harness, log)


def check_another_database_over_a_lost_ledger(harness: OutputHarness) -> None:
    """Without a ledger, a target that knows its database refuses rows of another one: none of them is written."""
    log = ChangeLog().begin()
    log.insert(ORDERS, {"id": 1, "note": "ours", "total": None})
    log.begin().insert(ORDERS, {"id": 2, "note": "ours", "total": None})
    with _process(harness) as process:
        process.write(log.batch(0, 2))
        word = (process.output.held({"shop/main.orders": None}) or {}).get("shop/main.orders")
    if word is None or word.place is None:
        raise unittest.SkipTest("this output cannot say what its target holds")
    process.handle.ledger_path.remove()
    with suppress(PositionForeign):
        process = _Process(harness, "log-2")
        process.handle.close()
        raise AssertionError("it goes on with rows of another database")
    assert_holds(harness, log, (ORDERS,), harness.make().delivery)


def check_second_writer(harness: OutputHarness) -> None:
    """The last process that takes the target is its only writer; the one before is refused, and writes nothing more."""
    log = random_log(25)
    size = len(log.entries)
    with _process(harness) as first:
        first.write(log.batch(0, 30))
        with _process(harness) as second:
            second.write(log.batch(30, 60))
            _refused(first, log.batch(30, size), LockHeld)
    _assert_holds(harness, log, 60)  # both have ended: what they handed on may take a moment until then
    with _process(harness) as third:
        third.write(log.batch(60, size))
    _assert_holds(harness, log)


def check_new_table(harness: OutputHarness) -> None:
    """A table that is new to the output, in the middle of a log, is whole when the snapshot that it waits for ends."""
    log = ChangeLog().begin()
    log.insert(ORDERS, {"id": 1, "note": "before", "total": None})
    with _process(harness) as process:
        process.write(log.batch(0, 1))
    log.entries.clear()  # what the target is given of `stock` begins here; of `orders` nothing more comes
    stock = {"price": 1, 'the "count"': 1, "raw": b""}
    log.begin().insert(STOCK, {"Shelf no": "changed while it waits", **stock})
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, STOCK, generation=1)
    log.snapshot(STOCK, [{"Shelf no": shelf, **stock} for shelf in ("changed while it waits", "old")])
    log.bus_control(ControlKind.SNAPSHOT_END, STOCK, generation=1, begin=list(begin.pair), complete=True)
    with _process(harness) as process:
        position = process.handle.known("shop")
        assert position is not None, "the ledger is gone"
        assert position.at is not None, "the ledger says no place"
        process.handle.put("shop", position.reading(["shop/main.stock"]))
        process.write(*_following(log, [1, 3], position.at.scn))
        position = process.handle.known("shop")
        assert position is not None
        assert not position.seeds, f"still incomplete: {position.seeds}"
    assert_holds(harness, log, (STOCK,), harness.make().delivery)


def _following(log: ChangeLog, cuts: Sequence[int], scn: int) -> list[ChangeBatch]:
    """The log as batches, the first of which begins where an earlier log of the same source ended."""
    first, *others = log.batches(cuts)
    return [replace(first, start=replace(first.start, scn=scn)), *others]


def check_move_within_a_snapshot(harness: OutputHarness) -> None:
    """The end of a snapshot whose begin never came removes nothing, or is refused: its first rows went elsewhere."""
    log = ChangeLog().begin()
    for i in range(4):
        log.insert(ORDERS, {"id": i, "note": "logged", "total": None})
    begin = log.bus_control(ControlKind.SNAPSHOT_BEGIN, ORDERS, generation=1)
    log.entries.remove(begin)  # it stands in the log of the other relay only, as do the rows 0 and 1
    log.snapshot(ORDERS, [{"id": i, "note": "read", "total": None} for i in (2, 3)])
    log.bus_control(ControlKind.SNAPSHOT_END, ORDERS, generation=1, begin=list(begin.pair), complete=True)
    batch = log.batch(4, len(log.entries))
    start = replace(batch.start, seq=begin.pair[1])
    with _process(harness) as process:
        process.write(log.batch(0, 4))
        process.handle.advance(Checkpoint({"shop": start}))
        with suppress(UnsupportedFeature):
            process.write(replace(batch, start=start))
    left = {row["id"] for row in harness.read(log.physical, ORDERS)}
    assert left == {0, 1, 2, 3}, f"rows are gone that the source has: {left}"


def check_says_what_it_holds(harness: OutputHarness) -> None:
    """`held` and `remove` agree, in the process that wrote and in the next."""
    log, name = random_log(26), "shop/main.orders"
    with _process(harness) as process:
        assert not process.output.held({name: None}), "an empty target says that it holds something"
        process.write(log.batch(0, len(log.entries)))
        position = process.handle.known("shop")
        noted = None if position is None else position.marks.get(name)
    if noted is None:
        raise unittest.SkipTest("this output cannot say what its target holds")
    last = max(entry.pair for entry in log.entries if entry.table is ORDERS)
    with _process(harness) as process:
        word = _held(process, name, noted)
        assert word.mark == noted.mark, "it does not hold what it says"
        place = _held(process, name, None).place
        assert place is None or place.pair >= last, f"it says that it holds changes up to {place}, and was given {last}"
        process.handle.close()
        if not isinstance(process.output, Removes):
            return
        try:
            process.output.remove([name])
        except UnsupportedFeature:  # not of this table alone
            return
    output = harness.make()
    assert not output.held({name: noted}), "it holds something of a table that was removed"
    with suppress(CorruptData):
        process = _Process(harness)
        process.handle.close()
        raise AssertionError("the ledger does not miss a table that is gone")


def _held(process: _Process, name: str, noted: Noted | None) -> Held:
    held = process.output.held({name: noted})
    assert held is not None, "it has a mark, and cannot say what it holds"
    return held[name]


def check_another_name(harness: OutputHarness) -> None:
    """By another name it goes on where it stood, also with a batch that its ledger did not know; the rename may be
    killed on either side of the target.
    """
    log = random_log(28)
    size = len(log.entries)
    with _process(harness) as process:
        process.write(log.batch(0, 50))
        process.write_only(log.batch(50, 90))
        before, ledger = process.output, process.handle.ledger_path
    folder, renamed = before.context.folder / ".databus", _Renamed(harness)
    for step in ("reserve", "come_from"):
        with mock.patch.object(Ledger, step, side_effect=InterruptedError), suppress(InterruptedError):
            rename_target(before, renamed.make(), folder, folder)
            raise AssertionError(f"it was renamed without `Ledger.{step}`")
    (rename,) = rename_target(before, renamed.make(), folder, folder)
    assert (rename.output, ledger.exists()) == ("renamed", False)
    with _process(renamed) as process:
        begin = process.reached(log)
        assert begin >= 50, f"it begins at {begin} entries, and 50 were noted"
        process.write(log.batch(begin, 97), log.batch(97, size))
    _assert_holds(harness, log)


class _Renamed:
    """An output by another name, in the same target."""

    def __init__(self, harness: OutputHarness) -> None:
        self.keeps, self.read, self.full = harness.keeps, harness.read, harness.full
        self._harness = harness

    def make(self) -> Output:
        """See `OutputHarness.make`."""
        made = self._harness.make()
        return type(made)(made.config, replace(made.context, output="renamed"))


def check_full(harness: OutputHarness) -> None:
    """A target without room is a `DiskFull`; the same batch is taken when there is room again."""
    full = harness.full()
    if full is None:
        raise unittest.SkipTest("this output's target cannot be filled in a test")
    log = random_log(27)
    size = len(log.entries)
    with _process(harness) as process:
        process.write(log.batch(0, 20))
        with full:
            _refused(process, log.batch(20, size), DiskFull)
        process.handle.open()
        process.write(log.batch(20, size))
    _assert_holds(harness, log)


def _refused(process: _Process, batch: ChangeBatch, kind: type[Exception]) -> None:
    try:
        process.write(batch)
    except kind:
        return
    raise AssertionError(f"{batch.start.pair} to {batch.end.pair} was taken, and {kind.__name__} was expected")


LEDGER_CHECKS: Final[tuple[Callable[[OutputHarness], None], ...]] = (
    check_goes_on_where_the_ledger_says,
    check_kill_before_the_ledger_is_written,
    check_gap,
    check_lost_ledger,
    check_another_database_over_a_lost_ledger,
    check_second_writer,
    check_new_table,
    check_move_within_a_snapshot,
    check_says_what_it_holds,
    check_another_name,
    check_full,
)
