"""A session: capture from `start` to `close`, whether the log comes from a server or from files.

What the scanner finds becomes groups: runs of rows through the assembler, statements through the history. Where the log
stands between two transactions, what the bus itself adds has its place: begins and ends of snapshots, chunks, gaps.
Everything but chunks and their controls is a function of the log, so that a session that starts where another was
killed yields the same.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from databus.core import (
    ChangeType,
    Clock,
    ControlKind,
    Stop,
    Unavailable,
    Unsupported,
    crash_point,
    make_scn,
    next_bus_seq,
)
from databus.schema import TableSchema, frame_schema
from databus.sources._contract import SourceLag
from databus.sources.mysql._assemble import Assembler
from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._controls import controls_of, is_captured, schema_body
from databus.sources.mysql._keeper import HistoryKeeper
from databus.sources.mysql._tables import Tables
from databus.sources.mysql.binlog import Abandoned, Heartbeat, Position, Rotated, Run, Scanner, Scheme, Statement
from databus.sources.mysql.binlog import ordinal_of as ordinal_at
from databus.sources.mysql.history import Altered, Created, TableEvent
from databus.sources.mysql.rows import Plan
from databus.sources.mysql.snapshot import BegunAnew, Placed, Progress, SnapshotReader, TableTask
from databus.wire import Commit, Control, Group, OpenSnapshot, Rows

BEGINS_US: Final = "begins_us"
"""In a position: what was committed before that is not captured."""


class Feed(Protocol):
    """Where the log's bytes come from."""

    def take(self, wait_s: float) -> npt.NDArray[np.uint8] | None:
        """The next bytes; None if none came in time. Raises what ended them."""
        ...

    def wake(self) -> None:
        """Let `take` return at once. Any thread."""
        ...

    def close(self) -> None:
        """Let go."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where a session begins: after this transaction. seq: the last one given at its SCN. scn: with its timeline."""

    scn: int
    seq: int
    txid: str
    commit_us: int
    position: Mapping[str, Any]
    timeline: int


@dataclass(frozen=True, slots=True)
class Gap:
    """What was lost before this session begins. from_scn: the last one before it."""

    from_scn: int
    reason: str


class Session:
    """Capture from one place on. One thread, but for `want`."""

    def __init__(
        self,
        physical: str,
        config: MysqlConfig | BinlogConfig,
        clock: Clock,
        *,
        scheme: Scheme,
        place: Place,
        is_new: bool,
        feed: Feed,
        scanner: Scanner,
        tables: Tables,
        history: HistoryKeeper,
        snapshots: Mapping[str, OpenSnapshot],
        reader: SnapshotReader | None,
        expire_ms: float | None = None,
    ) -> None:
        self._physical = physical
        self._config = config
        self._clock = clock
        self._feed = feed
        self._scanner = scanner
        self._tables = tables
        self._history = history
        self._reader = reader
        self._expire_ms = expire_ms
        self._scheme = scheme
        self._place = place
        self._snapshots = dict(snapshots)
        self._assembler = Assembler(
            place.timeline, config.group_bytes_max, config.row_bytes_max, tables.plan, place.position
        )
        self._ready: deque[Group] = deque()
        self._groups: Iterator[Group] = iter(())
        self._rest: tuple[Run, int] | None = None  # what is still to come of a run, from that transaction on
        self._asked: deque[tuple[str, str | None]] = deque()
        self._is_new = is_new
        self._begins_us: int | None = place.position.get(BEGINS_US)
        self.is_over = False  # with `snapshot: only`, once all is read
        self._stopped: Stop | None = None
        self._yielded = place  # the place of the last group that was yielded
        self._yielded_s = time.monotonic()
        self._is_part_out = False  # the last group that was yielded wants another to end its transaction
        self._is_current = False
        if reader is not None:
            reader.advance(place.scn, place.position)

    # What the source calls

    def begin(self, snapshots: Sequence[str], gap: Gap | None) -> None:
        """Say first that something was lost, and that these tables are being read."""
        names = [name for name in snapshots if name in self._tables.in_force]
        groups: list[Group] = []
        if gap is not None:
            for name in sorted(self._tables.in_force):
                body = {
                    "kind": ControlKind.GAP,
                    "source": name,
                    "from": gap.from_scn,
                    "to": self._place.scn,
                    "reason": gap.reason,
                    "resnapshot": name in names,
                }
                groups.append(self._bus_control(ControlKind.GAP, self._tables.in_force[name], body))
        for name in [name for name in names if self._task(name) is None]:  # dropped in what was lost
            names.remove(name)
            body = {"kind": ControlKind.DROP, "source": name}
            groups.append(self._bus_control(ControlKind.DROP, self._tables.in_force.pop(name), body))
        groups += [self._begin_snapshot(name) for name in names]
        if not groups and self._is_new:  # a commit alone, so that the log has a position from the first moment on
            groups = [Group(self._commit())]
        self._is_new = False
        self._ready.extend(_as_one(groups, self._place.position))

    def go_on_reading(self) -> None:
        """Take up the snapshots that were open in the log."""
        if self._reader is None:
            return
        for name, opened in list(self._snapshots.items()):
            task = self._task(name)
            if task is None:
                self._snapshots.pop(name)
                continue
            if opened.last_key == ():  # read as a whole, so there is no place to go on from
                self._asked.append((name, opened.where))
            else:
                self._reader.begin(task, opened.last_key)

    def want(self, sources: Sequence[str], where: str | None) -> None:
        """Read these tables, or what `where` says of them, at the next place between two transactions. Any thread."""
        self._asked.extend((name, where) for name in sources)
        self._feed.wake()

    def poll(self, wait_ms: int) -> Group | None:
        """The next group, or None if nothing came in time."""
        deadline = time.monotonic() + wait_ms / 1e3
        while True:
            if self._is_all_read():
                time.sleep(max(deadline - time.monotonic(), 0.0))
                return None
            try:
                group = self._next()
            except Stop as error:
                group = self._last_before(error)
            if group is not None:
                self._note_yielded(group)
                return group
            if not self._read_on(deadline):
                return self._progress()

    def durable(self, position: Mapping[str, Any]) -> None:
        """Up to here the log is never cut back, so the history need not know what was before."""
        if self._history.is_long:
            ordinal = ordinal_at(Position.from_json(position), self._scheme)
            self._history.compact(make_scn(self._place.timeline, ordinal))

    def lag(self) -> SourceLag:
        """How far behind, by the commit time of the last transaction seen."""
        behind_ms = 0.0
        if not self._is_current:
            behind_ms = max(self._clock.now_ns() / 1e6 - self._place.commit_us / 1e3, 0.0)
        left_ms = None if self._expire_ms is None else max(self._expire_ms - behind_ms, 0.0)
        return SourceLag(behind_ms, None, left_ms)

    def progress(self) -> list[Progress]:
        """How far each table is that is being read."""
        return [] if self._reader is None else self._reader.progress()

    def rests_at(self) -> tuple[str, int] | None:
        """The end of the log as it came last, while nothing more comes."""
        here = self._scanner.position
        return (here.file, here.offset) if self._is_current and not self.is_over else None

    def close(self) -> None:
        """Let go of the log, the readers and the history."""
        self._feed.close()
        if self._reader is not None:
            self._reader.close()
        self._history.close()

    def _is_all_read(self) -> bool:
        """Whether `snapshot: only` is done: the log stays where the last reading ended, and the server is let go."""
        if self.is_over or not isinstance(self._config, MysqlConfig) or self._config.snapshot != "only":
            return self.is_over
        self.is_over = not (self._snapshots or self._asked or self._ready or self._is_part_out)
        if self.is_over:
            self._feed.close()
        return self.is_over

    # The log

    def _next(self) -> Group | None:
        """What comes next, if it is here already."""
        while True:
            if self._ready:
                return self._ready.popleft()
            if self._stopped is not None:
                raise self._stopped
            group = next(self._groups, None)
            if group is not None:
                if group.commit.continues and not self._is_part_out and self._place.scn != self._yielded.scn:
                    self._ready.append(group)  # behind a commit, so that the log may be cut back to right before it
                    self._saw(group)
                    return Group(self._commit())
                self._saw(group)
                if group.rows or group.commit.continues or self._is_part_out or self._is_progress_due():
                    return group
                continue
            if self._rest is not None:
                self._groups = self._take_up(*self._rest)
                continue
            if self._assembler.is_between_transactions and self._add_between():
                continue
            found = self._scanner.next()
            if found is None:
                return None
            self._handle(found)

    def _read_on(self, deadline: float) -> bool:
        """Get more of the log. False: nothing came in time."""
        block = self._feed.take(max(deadline - time.monotonic(), 0.0))
        if block is None:
            self._is_current = True
            return time.monotonic() < deadline  # else somebody woke us: a chunk is ready, or is asked for
        self._is_current = False
        self._scanner.feed(block)
        return True

    def _handle(self, found: Run | Statement | Rotated | Heartbeat | Abandoned) -> None:
        match found:
            case Run():
                self._rest = found, self._pass_over(found)
            case Statement() if self._begins_us is not None and found.commit_us < self._begins_us:
                self._history.apply(found, make_scn(self._place.timeline, found.scn))
                if found.position is not None:
                    self._pass(found.scn, found.txid, found.commit_us, found.position)
            case Statement():
                self._begins_us = None
                self._ready.extend(self._statement(found))
            case Heartbeat():
                self._is_current = True
                self._move(found.position)
            case Rotated():
                if self._assembler.is_between_transactions:
                    self._move(self._scanner.position.to_json())
            case Abandoned():
                if self._assembler.abandon():
                    raise Unavailable(
                        f"{self._physical}: a transaction at {found.place} never ends, since the server that wrote it "
                        f"crashed; what was captured of it is taken back"
                    )

    def _pass_over(self, run: Run) -> int:
        """Move behind the transactions of a run that were committed before the begin; the number of the first that was
        not.
        """
        if self._begins_us is None:
            return 0
        late = np.flatnonzero(run.commit_us >= self._begins_us)
        first = int(late[0]) if len(late) else len(run)
        last = min(first, len(run) if run.is_complete else len(run) - 1) - 1
        if last >= 0:
            (txid,) = run.txids(last, last + 1).to_pylist()
            self._pass(int(run.scn[last]), txid, int(run.commit_us[last]), run.position(last))
        if first < len(run):
            self._begins_us = None
        return first

    def _pass(self, ordinal: int, txid: str, commit_us: int, position: Mapping[str, Any]) -> None:
        scn = make_scn(self._place.timeline, ordinal)
        self._place = replace(self._place, scn=scn, seq=0, txid=txid, commit_us=commit_us)
        self._move(position)

    def _move(self, position: Mapping[str, Any]) -> None:
        """The log stands further, without a transaction."""
        if self._begins_us is not None:  # whoever goes on from here goes on passing over
            position = {**position, BEGINS_US: self._begins_us}
        self._place = replace(self._place, position=position)
        self._assembler.position = position
        if self._reader is not None:
            self._reader.advance(self._place.scn, position)

    def _take_up(self, run: Run, first: int) -> Iterator[Group]:
        """The groups of a run from a transaction on, up to where the log itself shows a table to be another than
        consumers know: what is before that goes out first, and then they are told.
        """
        self._rest = None
        for slot, transaction in run.slots(first):
            try:
                plan = self._plan(slot)
                if not self._tables.is_news(plan.table):
                    continue
                if transaction > first and self._tables.is_another(plan.table):
                    self._rest = run, transaction
                    return self._assembler.add(run, self._snapshots, first, transaction)
                self._learn(plan)
            except Stop as error:  # raised where its rows come: what is before them is good
                self._tables.refuse(slot, error)
        return self._assembler.add(run, self._snapshots, first)

    def _plan(self, slot: int) -> Plan:
        if not self._tables.is_prepared(slot):
            return self._tables.prepare(slot, self._scanner.tables[slot])
        return self._tables.plan(slot)

    def _learn(self, plan: Plan) -> None:
        """The log itself shows here what a table is; where consumers know another one, tell them first."""
        table = plan.table
        known, is_another = self._tables.in_force.get(table.source), self._tables.is_another(table)
        if is_another:
            self._check_class3(table.source, "the log shows another table than before")
        self._history.learn(plan.definition, self._place.scn)
        self._tables.in_force[table.source] = table
        if is_another:  # else its rows say what it is
            self._tell_class3(table, schema_body(table, known, "", 3))

    def _saw(self, group: Group) -> None:
        """A group of the assembler goes out: what follows stands behind it, and chunks must know its keys."""
        commit = group.commit
        if self._reader is not None:
            for rows in group.rows:
                if self._reader.watches(rows.table.source):
                    batch = rows.batch
                    keys = [batch.column(name) for name in rows.table.key]
                    self._reader.images(rows.table.source, batch.column("_commit_version").to_numpy(), keys)
        if commit.continues:
            return
        self._place = replace(
            self._place,
            scn=commit.scn,
            seq=commit.seq,
            txid=commit.txid,
            commit_us=commit.commit_us,
            position=commit.position,
        )
        if self._reader is not None:
            self._reader.advance(commit.scn, commit.position)

    def _is_progress_due(self) -> bool:
        """Whether a commit without rows is worth a frame: consumers' checkpoints shall not fall behind."""
        if time.monotonic() - self._yielded_s >= self._config.progress_ms / 1e3:
            return True
        here, there = self._place.position, self._yielded.position
        return bool(here["file"] != there["file"] or here["offset"] - there["offset"] >= self._config.progress_bytes)

    def _progress(self) -> Group | None:
        """Where nothing more comes: a commit for what was passed over, if it is due."""
        if self._place.scn == self._yielded.scn or not self._assembler.is_between_transactions:
            return None
        if not self._is_progress_due():
            return None
        group = Group(self._commit())
        self._note_yielded(group)
        return group

    def _last_before(self, error: Stop) -> Group:
        """A commit up to what cannot be captured, so that the log ends right before it. Raises `error` if it does."""
        if self._stopped is not None or self._place.scn == self._yielded.scn or self._is_part_out:
            raise error
        self._stopped = error
        return Group(self._commit())

    def _note_yielded(self, group: Group) -> None:
        self._is_part_out = group.commit.continues
        if not group.commit.continues:
            self._yielded = self._place
            self._yielded_s = time.monotonic()

    # Statements

    def _statement(self, statement: Statement) -> list[Group]:
        scn = make_scn(self._place.timeline, statement.scn)
        events = [event for event in self._history.apply(statement, scn) if is_captured(event, self._tables.selection)]
        seq = self._assembler.seq
        groups: list[Group] = []
        class3: list[str] = []
        for event in events:
            for kind, table, body in controls_of(event, self._tables, self._physical):
                seq += 1
                commit = Commit(
                    scn,
                    seq,
                    statement.txid,
                    self._assembler.position,
                    statement.commit_us,
                    dict(self._snapshots),
                    continues=True,
                )
                groups.append(Group(commit, (), Control(kind, table, scn, seq, body)))
                if self._reader is not None:
                    self._reader.control(table.source, scn)
                if kind is ControlKind.SCHEMA and body["class"] == 3:
                    self._refuse_class3(table.source)
                    class3.append(table.source)
                if kind is ControlKind.DROP:
                    self._stop_reading(table.source)
        if events:
            self._tables.forget_plans()
            self._redefine(events)
        if not statement.is_complete:  # CREATE TABLE ... SELECT: its rows follow in the same transaction
            self._assembler.open(seq, is_yielded=bool(groups))
            return groups
        assert statement.position is not None  # noqa: S101 - it is complete
        self._assembler.end(statement.position)
        self._place = replace(
            self._place,
            scn=scn,
            seq=seq,
            txid=statement.txid,
            commit_us=statement.commit_us,
            position=statement.position,
        )
        if self._reader is not None:
            self._reader.advance(scn, statement.position)
        groups += [self._begin_snapshot(name) for name in class3 if name in self._tables.in_force]
        if not groups:
            return [Group(self._commit())] if self._is_progress_due() else []
        return _as_one(groups, self._place.position)

    def _redefine(self, events: Sequence[TableEvent]) -> None:
        """Tables that are being read are read on as what they are now, whatever consumers are told of the change."""
        if self._reader is None:
            return
        for event in events:
            if isinstance(event, Altered | Created) and self._reader.watches(event.after.source):
                task = self._task(event.after.source)
                if task is not None:
                    self._reader.redefine(task)

    def _refuse_class3(self, source: str) -> None:
        """Raise, before anybody hears of it, if a table whose data changed unseen may not be read again: a session that
        begins here anew stops here too.
        """
        if self._config.on_class3 == "stop":
            raise Unsupported(
                f"{self._physical}: the data of {source} changed in a way that the log does not show; set `on_class3: "
                f"resnapshot` to have the table read again"
            )

    # What the bus adds between two transactions

    def _add_between(self) -> bool:
        """Begin what was asked for, place a chunk. False: nothing."""
        if self._asked:
            asked = dict(self._asked.popleft() for _ in range(len(self._asked)))
            groups = [
                self._begin_snapshot(name, where) for name, where in asked.items() if name in self._tables.in_force
            ]
            self._ready.extend(_as_one(groups, self._place.position))
            return bool(groups)
        if self._reader is None:
            return False
        found = self._reader.take()
        if found is None:
            return False
        if isinstance(found, BegunAnew):
            where = self._snapshots[found.source].where
            self._ready.append(self._begin_snapshot(found.source, where, tells_reader=False))
        else:
            self._ready.extend(self._chunk(found))
        return True

    def _task(self, source: str) -> TableTask | None:
        """What the reader must know of a table; None if it is none any more."""
        database, _, name = source.partition(".")
        definition = self._history.definition(database, name)
        table = self._tables.in_force.get(source)
        if definition is None or table is None:
            return None
        locks = isinstance(self._config, MysqlConfig) and self._config.lock_tables_without_key and not table.key
        return TableTask(definition, table, self._where(source), self._tables.policies, locks)

    def _where(self, source: str) -> str | None:
        """What narrows the reading of a table: the request's own condition, or the configuration's."""
        opened = self._snapshots.get(source)
        if opened is not None and opened.where is not None:
            return opened.where
        return self._config.where.get(source) if isinstance(self._config, MysqlConfig) else None

    def _begin_snapshot(self, source: str, where: str | None = None, *, tells_reader: bool = True) -> Group:
        """The begin of a reading, which supersedes one that is open."""
        seq = self._bus_seq()
        self._snapshots[source] = OpenSnapshot(seq, None, (self._place.scn, seq), where)
        task = self._task(source)
        if tells_reader and self._reader is not None and task is not None:
            self._reader.begin(task)
        body = {"kind": ControlKind.SNAPSHOT_BEGIN, "source": source, "generation": seq}
        return self._control_group(ControlKind.SNAPSHOT_BEGIN, self._tables.in_force[source], body, seq)

    def _stop_reading(self, source: str) -> None:
        self._snapshots.pop(source, None)
        if self._reader is not None:
            self._reader.drop(source)

    def _chunk(self, placed: Placed) -> Iterator[Group]:
        """A chunk's rows, and the end of the reading if it was the last."""
        opened = self._snapshots[placed.source]
        self._snapshots[placed.source] = replace(opened, last_key=placed.last_key)
        if placed.rows:
            crash_point("mysql.snapshot.before_chunk")
            yield self._rows_group(placed)
        if not placed.is_last:
            return
        where = self._where(placed.source)
        del self._snapshots[placed.source]
        seq = self._bus_seq()
        body = {
            "kind": ControlKind.SNAPSHOT_END,
            "source": placed.source,
            "generation": opened.generation,
            "begin": list(opened.begin),
            "complete": where is None,
        }
        yield self._control_group(ControlKind.SNAPSHOT_END, placed.table, body, seq)

    def _rows_group(self, placed: Placed) -> Group:
        first = self._bus_seq()
        seqs = np.arange(first, first + placed.rows, dtype=np.int64)
        self._place = replace(self._place, seq=int(seqs[-1]))
        place = self._place
        columns = [
            pa.array(np.full(placed.rows, ChangeType.INSERT, np.int8)),
            pa.array(np.full(placed.rows, place.scn)),
            pa.array(seqs),
            pa.array(np.full(placed.rows, place.commit_us)).view(pa.timestamp("us", tz="UTC")),
            pa.DictionaryArray.from_arrays(np.zeros(placed.rows, np.int32), pa.array([place.txid], pa.string())),
            pa.array(np.ones(placed.rows, np.bool_)),
        ]
        batch = pa.RecordBatch.from_arrays([*placed.arrays, *columns], schema=frame_schema(placed.table))
        return Group(self._commit(), (Rows(placed.table, batch),), snapshot=True)

    def _check_class3(self, source: str, why: str) -> None:
        """Raise if consumers cannot be told here that a table is another, or may not be."""
        if not self._assembler.is_between_transactions:
            raise Unsupported(
                f"{self._physical}: {source} changed in the middle of a transaction ({why}); have it read again by "
                f"`databus snapshot`, from a position behind it"
            )
        self._refuse_class3(source)

    def _tell_class3(self, table: TableSchema, body: Mapping[str, Any]) -> None:
        """A table is another than consumers know, without a statement that says how: tell them, and read it again."""
        groups = [self._bus_control(ControlKind.SCHEMA, table, body), self._begin_snapshot(table.source)]
        self._ready.extend(_as_one(groups, self._place.position))

    def _bus_control(self, kind: ControlKind, table: TableSchema, body: Mapping[str, Any]) -> Group:
        return self._control_group(kind, table, body, self._bus_seq())

    def _control_group(self, kind: ControlKind, table: TableSchema, body: Mapping[str, Any], seq: int) -> Group:
        """A control of the bus's own: no function of the log, so it is served after fsync."""
        return Group(self._commit(), (), Control(kind, table, self._place.scn, seq, body), snapshot=True)

    def _bus_seq(self) -> int:
        self._place = replace(self._place, seq=next_bus_seq(self._place.seq, self._clock.now_ns()))
        return self._place.seq

    def _commit(self) -> Commit:
        place = self._place
        return Commit(place.scn, place.seq, place.txid, place.position, place.commit_us, dict(self._snapshots))


def _as_one(groups: Sequence[Group], position: Mapping[str, Any]) -> list[Group]:
    """Groups that stand or fall together: only the last one ends what they belong to."""
    return [
        replace(group, commit=replace(group.commit, continues=group is not groups[-1], position=position))
        for group in groups
    ]
