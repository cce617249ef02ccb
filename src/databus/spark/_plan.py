"""The driver's half: where to begin, where a batch ends, and into which ranges it is cut. All by asking the relay.

A batch is a function of its two offsets alone, so a replay reads the same rows whatever has happened in between.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from databus.core import (
    CHANGE_TYPE,
    SEQ,
    UNREAD_TABLES,
    ChangeType,
    Checkpoint,
    ConfigError,
    ControlKind,
    CorruptData,
    Pair,
    PositionPurged,
    SchemaChanged,
    SourceCheckpoint,
)
from databus.link import Range, RangeControl, RelayClient, other_log, patiently
from databus.schema import SchemaChange, TableSchema
from databus.spark._options import DatabusOptions
from databus.spark._target import ServedTable, Target, connect, resolve
from databus.spark._typed import refusal
from databus.wire import is_answer, is_inside_answer, is_inside_transaction, is_of_other_log, position_at, resumes_after

if TYPE_CHECKING:
    from databus.client import Window


# Where a table's schema changes in the log: what a typed reader has to know before it reads what stands before it.


def find_changes(
    client: RelayClient, target: Target, start: SourceCheckpoint, until: Pair, retry_ms: int
) -> list[SchemaChange]:
    """The `schema` controls of the target's table after `start`, up to and including `until`, in order.

    The relay looks at headers alone, and opens the log only where it finds a control.
    """
    changes: list[SchemaChange] = []
    position = start
    while position.pair < until:
        range_ = partial(client.range, target.physical, position, sources=target.sources, to=until)
        looked = patiently(partial(range_, stop_at_controls=True), retry_ms)
        changes += [
            patiently(partial(_read, client, target, position, control), retry_ms)
            for control in looked.controls
            if control.kind == ControlKind.SCHEMA and start.pair < control.pair <= until
        ]
        if looked.groups == 0:
            break
        position = looked.position
    return changes


def _read(client: RelayClient, target: Target, at: SourceCheckpoint, control: RangeControl) -> SchemaChange:
    """A control, from the first group after `at`."""
    with client.stream(target.physical, at, sources=target.sources, to=control.pair, wait_ms=0) as stream:
        for group in (group for groups in stream for group in groups):
            frame = group.control
            if frame is not None and frame.header.first == control.pair:
                body = frame.control
                before = _before(client, body.get("previous"))
                return SchemaChange.of_control(control.pair, body, before, client.table_of(control.fingerprint))
    raise CorruptData(f"{target.name}: the control at {control.pair} is not where the relay saw it")


def _before(client: RelayClient, previous: object) -> TableSchema | None:
    """The definition before a change, by its fingerprint in hexadecimal."""
    return None if previous is None else client.table_of(int(str(previous), 16))


_SEQ_MAX: Final = 2**63 - 1
_END: Final = (2**63 - 1, _SEQ_MAX)


@dataclass(frozen=True)
class RangePartition(InputPartition):  # type: ignore[misc]  # pyspark is untyped
    """A contiguous range of groups: read after `start` up to the group that reaches `until`, and drop what lies outside
    of (`after`, `until`].
    """

    start: SourceCheckpoint
    after: Pair
    until: Pair
    changes: tuple[SchemaChange, ...] = ()
    """Those of a typed table's schema that stand after `start`, up to the schema that is read as."""
    begins: bool = False
    """Whether it is the first of its batch."""
    ranges: int = 1
    """How many its batch has."""
    log: str = ""
    """The one that it was planned on; empty where an older relay does not say."""


class Planner:
    """Plans the batches of one query. Lives in one process, used by one thread."""

    def __init__(self, options: DatabusOptions, target: Target | None) -> None:
        self._options = options
        self._client: RelayClient = connect(options)
        self.target = target or patiently(lambda: resolve(self._client, options), options.retry_ms)
        self._last: tuple[SourceCheckpoint, SourceCheckpoint, Range] | None = None
        self._exhausted: tuple[SourceCheckpoint, Pair] | None = None  # nothing is left after a place, up to a bound
        self._has_asked = False  # whether the relay has taken a position of this query for one of its log
        self._changes: tuple[Pair, tuple[SchemaChange, ...]] | None = None
        self.published: SourceCheckpoint | None = None

    def close(self) -> None:
        """End whatever waits."""
        self._client.close()

    @property
    def _first(self) -> Pair:
        """The pair after which `startingVersion` begins: behind the snapshot rows of the SCN before, too."""
        version = self._options.starting_version
        return (version - 1, _SEQ_MAX) if isinstance(version, int) else (-1, 0)

    @property
    def bound(self) -> Pair:
        """The last pair that the query may read."""
        version = self._options.ending_version
        return _END if version is None else (version, _SEQ_MAX)

    def head(self) -> SourceCheckpoint:
        """The end of the log now."""
        return patiently(lambda: self._client.head(self.target.physical).published, self._options.retry_ms)

    def initial(self) -> SourceCheckpoint:
        """Where the query begins."""
        return patiently(self._initial, self._options.retry_ms)

    def _initial(self) -> SourceCheckpoint:
        options, physical = self._options, self.target.physical
        if options.starting_checkpoint is not None:
            given = Checkpoint.from_json(options.starting_checkpoint).sources.get(physical)
            if given is None:
                raise ConfigError(f'option "startingCheckpoint": it says nothing about {physical}')
            return given
        if options.starting_timestamp is not None:
            return self._client.position(physical, time_us=options.starting_timestamp)
        version = options.starting_version
        if isinstance(version, int) and version > 0:
            return self._client.position(physical, scn=version - 1)
        return self._client.position(physical, start=version if isinstance(version, str) else "beginning")

    def end_after(
        self, start: SourceCheckpoint, *, rows_max: int | None, bytes_max: int | None, available: Pair | None
    ) -> SourceCheckpoint:
        """Where the batch after `start` ends within the limits; `start` itself if there is nothing.

        Waits up to `wait_ms` for rows or controls; commits alone move the position only once that has passed, so that
        a table at rest in a busy database makes no batches. available: the end of what may be read, for a query that
        takes what is there and does not wait. Raises `SchemaChanged` if the next group begins with a change of the
        table's schema that the query does not know.
        """
        bound = self.bound if available is None else min(available, self.bound)
        if is_inside_answer(start):
            bound = _END  # it is read to its end, wherever its rows stand
        wait_ms = 0 if available is not None else self._options.wait_ms
        if start.pair >= bound or (start, bound) == self._exhausted:
            if (
                available is not None and not self._has_asked
            ):  # the end of this log tells nothing of another one's place
                self._range(start, rows_max=1)
            time.sleep(wait_ms / 1e3)  # the query has all that it may ever read
            return start
        to = None if bound == _END else bound
        answer = self._range(start, rows_max=rows_max, bytes_max=bytes_max, to=to, wait_ms=wait_ms)
        self.published = answer.published
        if answer.groups == 0:
            return start
        self._admit(start, answer)
        if is_answer(answer.log):
            self._last = (start, answer.position, answer)
            return self._answered(answer)
        end = self._within(start, answer, rows_max, bytes_max, bound)
        if end == answer.position:
            self._last = (start, end, answer)
        elif end == start:
            self._exhausted = start, bound  # what comes next lies above the bound
        return end

    def _answered(self, answer: Range) -> SourceCheckpoint:
        """Where a part of an answer ends. Raises `PositionPurged` where the query is to read less than it has."""
        end = answer.position
        if end.pair > self.bound:
            raise PositionPurged(
                f"{self.target.name}: the relay has lost what is asked for, and its bootstrap service has the tables "
                f"as they were at SCN {end.scn}, above endingVersion {self._options.ending_version}; ask for that, or "
                "more",
                physical=self.target.physical,
            )
        return end

    def _range(
        self,
        start: SourceCheckpoint,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
        to: Pair | None = None,
        wait_ms: int = 0,
        stop_at_controls: bool = True,
    ) -> Range:
        answer = patiently(
            lambda: self._client.range(
                self.target.physical,
                start,
                sources=self.target.sources,
                rows_max=rows_max,
                bytes_max=bytes_max,
                to=to,
                partitions=self._options.partitions,
                wait_ms=wait_ms,
                stop_at_controls=stop_at_controls and self.target.table is not None,
            ),
            self._options.retry_ms,
        )
        self._has_asked = True
        self._check_log(answer.log)
        return answer

    def _check_log(self, log: str) -> None:
        """Refuse another log than the one that numbered a typed query's table: there it may number another so."""
        if self.target.table is not None and log not in ("", self.target.log):
            raise other_log(self.target.physical, self.target.log, log)

    def _admit(self, start: SourceCheckpoint, answer: Range) -> None:
        """Let the controls at the start of a typed batch pass, or raise."""
        table = self.target.table
        for control in answer.controls if table is not None else ():
            if control.kind == ControlKind.SCHEMA:
                self._admit_schema(start, control)
            elif not self._options.meta_full and self._options.controls == "stop":
                raise refusal(self.target.name, control.kind, control.pair)

    def _admit_schema(self, start: SourceCheckpoint, control: RangeControl) -> None:
        table = self.target.table
        assert table is not None  # noqa: S101 - only typed queries look at controls
        if control.fingerprint == table.schema.fingerprint:
            return
        if any(change.pair == control.pair for change in self._changes_after(start)):
            return  # rows from before it are made into the schema that is read as
        raise SchemaChanged(
            f"{self.target.name}: its schema changes from {table.schema.fingerprint:016x} to "
            f"{control.fingerprint:016x} at SCN {control.pair[0]}, seq {control.pair[1]}, and this query reads typed "
            "rows of the old one; everything before has been read. Start the query again, with the same checkpoint: it "
            "takes the new schema, and begins with the change"
        )

    def _changes_after(self, start: SourceCheckpoint) -> tuple[SchemaChange, ...]:
        """The changes of the table's schema after a position, up to the schema that is read as; looked for once."""
        table = self.target.table
        if table is None or len(table.known) == 1:
            return ()
        if self._changes is None or start.pair < self._changes[0]:
            changes = self._find_changes(table, start)
            self._changes = (start.pair, changes)
        return tuple(change for change in self._changes[1] if change.pair > start.pair)

    def _find_changes(self, table: ServedTable, start: SourceCheckpoint) -> tuple[SchemaChange, ...]:
        changes = find_changes(self._client, self.target, start, table.settled, self._options.retry_ms)
        wanted = table.schema.fingerprint
        if self._options.schema_fingerprint is not None:  # not today's: the first time that it came into force
            begins_so = bool(changes) and changes[0].before is not None and changes[0].before.fingerprint == wanted
            ends = (
                [] if begins_so else [at for at, change in enumerate(changes, 1) if change.after.fingerprint == wanted]
            )
            return tuple(changes[: min(ends, default=0)])
        above = [at for at, change in enumerate(changes, 1) if change.pair > self.target.published]
        reached = [at for at in above if changes[at - 1].after.fingerprint == wanted]
        return tuple(changes[: max([len(changes) - len(above), *reached])])

    def _within(
        self,
        start: SourceCheckpoint,
        answer: Range,
        rows_max: int | None,
        bytes_max: int | None,
        bound: Pair,
    ) -> SourceCheckpoint:
        """The end of `found`, or a position inside of it where one group alone exceeds a limit or passes the bound."""
        fit = answer.rows if rows_max is None else rows_max
        if bytes_max is not None and answer.bytes > bytes_max:
            fit = min(fit, max(1, answer.rows * bytes_max // answer.bytes))
        if answer.rows <= fit and answer.position.pair <= bound:
            return answer.position
        return patiently(lambda: self._cut(start, answer.position, fit, bound), self._options.retry_ms)

    def _cut(self, start: SourceCheckpoint, end: SourceCheckpoint, rows_max: int, bound: Pair) -> SourceCheckpoint:
        """Read from `start` and end after `rows_max` rows, or before the first above `bound`: at the end of a
        transaction if one fits, else inside of it, but never between the two images of an update.
        """
        from databus.client import Splitter  # a third of what a reader imports, which each query starts one of

        target = self.target
        splitter = Splitter(target.physical, start, self._client.table_of, bound)
        last, rows = start, 0
        with self._client.stream(target.physical, start, sources=target.sources, to=end.pair, wait_ms=0) as stream:
            self._check_log(stream.log)
            splitter.connected(stream.uuid, stream.log)
            for window in (part for groups in stream for group in groups for part in splitter.split(group)):
                rows += len(window)
                if rows > rows_max:
                    return last if last is not start else _inside(window, rows_max, stream.log)
                last = window.position
        return last

    def split(self, start: SourceCheckpoint, end: SourceCheckpoint) -> list[RangePartition]:
        """The batch (start, end] as contiguous ranges of groups of like size; none if it has nothing to show."""
        planned = None if self._last is None or self._last[:2] != (start, end) else self._last[2]
        if planned is None and is_answer(end.log):
            planned = self._part_of_answer(start, end)
        return self._ranges(start, end.pair, planned)

    def _part_of_answer(self, start: SourceCheckpoint, end: SourceCheckpoint) -> Range:
        """A batch that was planned before, of the same answer. Raises `PositionPurged` where that is gone."""
        inside = replace(start, log=end.log, snapshots={UNREAD_TABLES: 0})
        answer = self._range(inside, to=end.pair)
        if answer.log != end.log:
            raise PositionPurged(
                f"{self.target.name}: a batch was planned of an answer of the bootstrap service that it does not have "
                f"any more ({end.log}). Start the query with another checkpoint location, from where it stood: SCN "
                f"{start.scn}",
                physical=self.target.physical,
            )
        return answer

    def split_all(self) -> list[RangePartition]:
        """All that a query that runs once reads: up to the end of the log when it was loaded."""
        start, end = self.initial(), min(self.target.published, self.bound)
        parts: list[RangePartition] = []
        while start.pair < end or is_inside_answer(start):
            answer = self._range(start, to=None if is_inside_answer(start) else end, stop_at_controls=False)
            if not is_answer(answer.log):
                break
            parts += self._ranges(start, self._answered(answer).pair, answer)
            start = answer.position
        return parts + self._ranges(start, end, None)

    def _ranges(self, start: SourceCheckpoint, end: Pair, answer: Range | None) -> list[RangePartition]:
        if end < (start.scn, 0) or (end <= start.pair and not is_inside_transaction(start.pair)):
            return []
        answer = answer or self._whole_range(start, end)
        begin = resumes_after(start.pair, is_other_log=bool(answer.log) and is_of_other_log(start, answer.log))
        if (
            is_answer(answer.log) and answer.start is not None
        ):  # asked for by its name, so that all of it is of one state
            start, begin = answer.start, answer.start.pair
        if end <= begin or answer.is_empty:
            return []
        inner = sorted((split for split in answer.splits if begin < split.pair < end), key=lambda split: split.pair)
        least = self._options.partition_bytes_min
        starts = [start, *(inner if least == 0 else _spread(inner, answer.bytes // least))]
        ends = [*(place.pair for place in starts[1:]), end]
        changes = self._changes_after(start)
        afters = [begin, *(place.pair for place in starts[1:])]
        bounds = [
            (place, max(after, self._first), until) for place, after, until in zip(starts, afters, ends, strict=True)
        ]
        bounds = [bound for bound in bounds if bound[1] < bound[2]]
        return [
            RangePartition(
                place,
                after,
                until,
                tuple(change for change in changes if change.pair > after),
                begins=number == 0,
                ranges=len(bounds),
                log=answer.log,
            )
            for number, (place, after, until) in enumerate(bounds)
        ]

    def _whole_range(self, start: SourceCheckpoint, end: Pair) -> Range:
        """All of (start, end]. A relay looks for only so long at a time, and answers how far it got."""
        whole = self._range(start, to=end, stop_at_controls=False)
        while whole.position.pair < end:
            more = self._range(whole.position, to=end, stop_at_controls=False)
            if more.groups == 0:
                break
            whole = whole.then(more)
        return whole


def _spread(splits: Sequence[SourceCheckpoint], ranges: int) -> list[SourceCheckpoint]:
    """Of the splits between ranges of like size, those that leave at most so many ranges of like size; one at least."""
    now = len(splits) + 1
    ranges = min(max(ranges, 1), now)
    return [splits[now * number // ranges - 1] for number in range(1, ranges)]


def _inside(window: "Window", rows_max: int, log: str) -> SourceCheckpoint:
    """The position after `rows_max` rows of a window that has more; one fewer, or more, not to part an update."""
    parts = [change.batch.select([CHANGE_TYPE, SEQ]) for change in window.changes()]
    rows = pa.Table.from_batches(parts).sort_by(SEQ)
    is_preimage = rows.column(CHANGE_TYPE)[rows_max - 1].as_py() == ChangeType.UPDATE_PREIMAGE
    at = rows_max + (0 if not is_preimage else -1 if rows_max > 1 else 1)
    if at == len(rows):
        return window.position
    end = window.position
    return position_at(
        (window.scn, rows.column(SEQ)[at - 1].as_py()),
        continues=True,
        uuid=end.uuid,
        txid=window.txid,  # not the end's: transactions without rows of these tables may follow in its group
        ts_us=window.commit_us,
        log=log,
        snapshots=end.snapshots,
    )
