"""A session: capture from `start` to `close`, whether the log comes from a server or from files.

What the scanner finds becomes groups: runs of rows through the assembler, statements through the history. Where the log
stands between two transactions, what the bus itself adds has its place (`_bus_groups`). Everything but that is a
function of the log, so that a session that starts where another was killed yields the same.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from databus.core import Clock, ControlKind, DatabusError, FatalError, SourceChanged, UnsupportedFeature, make_scn
from databus.sources._contract import SourceLag
from databus.sources.mysql._bus_groups import BusGroups
from databus.sources.mysql._captured_tables import CapturedTables
from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._ddl_controls import controls_of, is_captured
from databus.sources.mysql._definition_lookup import TableLookup
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql._held_tables import HeldTables
from databus.sources.mysql._log_groups import Assembler
from databus.sources.mysql._prepared_store import PreparedStore
from databus.sources.mysql._rolled_back_rows import TakingBack
from databus.sources.mysql._session_position import (
    BEGINS_US,
    HELD_KEY,
    Gap,
    SessionPosition,
    StreamPosition,
    as_one,
    held_at,
)
from databus.sources.mysql._unread_tables import KEY as UNREAD_KEY
from databus.sources.mysql._unread_tables import Asked, Unread
from databus.sources.mysql.binlog import (
    Abandoned,
    DomainRestarted,
    Heartbeat,
    LoggedStatement,
    LogItem,
    LogPosition,
    LogRun,
    Rotated,
    Scanner,
    Scheme,
    TableMap,
    TakenBack,
)
from databus.sources.mysql.binlog import ordinal_of as ordinal_at
from databus.sources.mysql.rows import DecodePlan
from databus.sources.mysql.snapshot import MysqlSnapshotReader
from databus.sources.mysql.tables import TableState, altered_names
from databus.sources.snapshots import Progress
from databus.wire import Commit, Control, Group, OpenSnapshot

_POLLED_S: Final = 1.0  # without `poll` for so long capture is paused, and the log's end unknown


class LogFeed(Protocol):
    """Where the log's bytes come from."""

    def take(self, wait_s: float) -> npt.NDArray[np.uint8] | None:
        """The next bytes; None if none came in time. Raises what ended them."""
        ...

    def wake(self) -> None:
        """Let `take` return at once. Any thread."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class BinlogSession:
    """Capture from one place on. One thread, but for `want`."""

    def __init__(
        self,
        physical: str,
        config: MysqlConfig | BinlogConfig,
        clock: Clock,
        *,
        scheme: Scheme,
        place: StreamPosition,
        is_new: bool,
        feed: LogFeed,
        scanner: Scanner,
        tables: CapturedTables,
        history: HistoryKeeper,
        snapshots: Mapping[str, OpenSnapshot],
        reader: MysqlSnapshotReader | None,
        lookup: TableLookup | None = None,
        taking_back: TakingBack | None = None,
        prepared: PreparedStore | None = None,
        unread: Unread | None = None,
        expire_ms: float | None = None,
        bytes_behind: Callable[[str, int], int | None] = lambda _file, _offset: None,
    ) -> None:
        self._physical = physical
        self._config = config
        self._clock = clock
        self._feed = feed
        self._scanner = scanner
        self._tables = tables
        self._history = history
        self._lookup = lookup
        self._looked_up: dict[int, TableState] = {}  # by slot, until its rows come
        self._expire_ms = expire_ms
        self._bytes_behind = bytes_behind  # of the log, after a file and offset
        self._taking_back = taking_back or TakingBack(physical, None, "")
        self._prepared = prepared
        if prepared is not None and reader is not None:
            prepared.history = reader.xa
        self._scheme = scheme
        tables.held = held_at(place.position)
        # `with_waiting` adds to each commit which tables wait, and which are held
        position = {name: value for name, value in place.position.items() if name not in (UNREAD_KEY, HELD_KEY)}
        place = replace(place, position=position)
        self._position = SessionPosition(place, snapshots, clock)
        self._bus_groups = BusGroups(
            physical, config, self._position, tables, history, reader, Unread(None) if unread is None else unread
        )
        self._held = HeldTables(physical, config, self._position, tables, history, lookup, self._bus_groups)
        self._assembler = Assembler(
            place.timeline, config.group_bytes_max, config.row_bytes_max, tables.plan, place.position
        )
        self._ready: deque[Group] = deque()
        self._groups: Iterator[Group] = iter(())
        self._rest: tuple[LogRun, int] | None = None  # what is still to come of a run, from that transaction on
        self._is_new = is_new
        self._begins_us: int | None = place.position.get(BEGINS_US)
        self.is_over = False  # with `snapshot: only`, once all is read
        self._stopped: DatabusError | None = None
        self._yielded = place  # the place of the last group that was yielded
        self._yielded_s = time.monotonic()
        self._is_part_out = False  # the last group that was yielded wants another to end its transaction
        self._is_current = False
        self._polled_s = time.monotonic()

    # What the source calls

    def begin(self, snapshots: Sequence[str], gap: Gap | None) -> None:
        """Make the first groups: that something was lost, and that these tables are being read."""
        groups = self._bus_groups.begin(snapshots, gap)
        if not groups and self._is_new:  # a commit alone, so that the log has a position from the first moment on
            groups = [Group(self._position.commit())]
        self._is_new = False
        self._ready.extend(as_one(groups, self._position.place.position))

    def go_on_reading(self) -> None:
        """Continue the snapshots that were open in the log."""
        self._bus_groups.go_on_reading()

    def want(self, sources: Sequence[str], where: str | None) -> None:
        """Read these tables, or what `where` says of them, at the next place between two transactions. Any thread."""
        self._bus_groups.want(sources, where)
        self._feed.wake()

    def want_no_more(self, sources: Sequence[str]) -> None:
        """Read these tables no further. Any thread."""
        self._bus_groups.want_no_more(sources)
        self._feed.wake()

    def poll(self, wait_ms: int) -> Group | None:
        """The next group, or None if nothing came in time."""
        self._polled_s = time.monotonic()
        deadline = self._polled_s + wait_ms / 1e3
        while True:
            if self._is_all_read():
                time.sleep(max(deadline - time.monotonic(), 0.0))  # nothing comes any more: the caller must not spin
                return None
            try:
                group = self._next()
            except (FatalError, DomainRestarted) as error:
                group = self._last_before(error)
            if group is not None:
                self._note_yielded(group)
                return self._bus_groups.with_waiting(group)
            if not self._read_on(deadline):
                group = self._progress()
                return None if group is None else self._bus_groups.with_waiting(group)

    def durable(self, position: Mapping[str, Any]) -> None:
        """The log is never cut back to before this position, so the history may forget what was before."""
        self._bus_groups.unread.durable(position)
        has_ended = self._prepared is not None and self._prepared.has_ended
        if self._history.is_long or has_ended:
            ordinal = ordinal_at(LogPosition.from_json(position), self._scheme)
            scn = make_scn(self._position.place.timeline, ordinal)
            if self._history.is_long:
                self._history.compact(scn)
            if self._prepared is not None and has_ended:
                self._prepared.durable(scn)

    def lag(self) -> SourceLag:
        """How far behind, by the commit time of the last transaction seen."""
        position = self._position.place.position
        bytes_ = 0 if self._is_at_end() else self._bytes_behind(position["file"], position["offset"])
        age_ms = max(self._clock.now_ns() / 1e6 - self._position.place.commit_us / 1e3, 0.0)
        behind_ms: float | None = age_ms
        if self._is_current and not bytes_:  # None while capture is paused, until the server says where its log ends
            behind_ms = None if bytes_ is None else 0.0
        left_ms = None if self._expire_ms is None else max(self._expire_ms - (behind_ms or 0.0), 0.0)
        return SourceLag(behind_ms, None, left_ms, bytes=bytes_)

    def progress(self) -> list[Progress]:
        """How far each table is that is being read."""
        return self._bus_groups.progress()

    @property
    def tables_unread(self) -> int:
        """How many tables wait to be read."""
        return len(self._bus_groups.unread)

    @property
    def statements_unknown(self) -> int:
        """How many statements were not understood, so that tables are read again."""
        return self._held.count

    def rests_at(self) -> tuple[str, int] | None:
        """The end of the log as it came last, while nothing more comes."""
        position = self._scanner.position
        return (position.file, position.offset) if self._is_at_end() and not self.is_over else None

    def _is_at_end(self) -> bool:
        """Whether nothing more comes. Unknown, and so False, while capture is paused."""
        return self._is_current and time.monotonic() - self._polled_s < _POLLED_S

    def close(self) -> None:
        """Close the log, the readers and the history."""
        self._feed.close()
        self._bus_groups.close()
        self._history.close()
        if self._prepared is not None:
            self._prepared.close()

    def _is_all_read(self) -> bool:
        """Whether `snapshot: only` is done: the log stays where the last snapshot ended, and the feed is closed."""
        if self.is_over or not isinstance(self._config, MysqlConfig) or self._config.snapshot != "only":
            return self.is_over
        self.is_over = not (self._bus_groups.is_reading or self._ready or self._is_part_out)
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
                if group.commit.continues and not self._is_part_out and self._position.place.scn != self._yielded.scn:
                    self._ready.append(group)  # behind a commit, so that the log may be cut back to right before it
                    self._saw(group)
                    return Group(self._position.commit())
                self._saw(group)
                if group.rows or group.commit.continues or self._is_part_out or self._is_progress_due():
                    return group
                continue
            if self._rest is not None:
                self._groups = self._take_up(*self._rest)
                continue
            added = self._add() if self._assembler.is_between_transactions else None
            if added is not None:
                self._ready.extend(added)
                continue
            item = self._scanner.next()
            if item is None:
                return None
            self._handle(item)

    def _add(self) -> list[Group] | None:
        """What the bus itself adds here, if anything."""
        known = self._held.add()
        return self._bus_groups.add() if known is None else known

    def _read_on(self, deadline: float) -> bool:
        """Get more of the log. False: nothing came in time."""
        block = self._feed.take(max(deadline - time.monotonic(), 0.0))
        self._polled_s = time.monotonic()
        if block is None:
            self._is_current = True
            return time.monotonic() < deadline  # before it, `wake` was called: a chunk is ready, or is asked for
        self._is_current = False
        self._scanner.feed(block)
        return True

    def _handle(self, item: LogItem) -> None:  # noqa: C901 - one case for each kind
        match item:
            case LogRun():
                run = self._taking_back.run(item)
                self._rest = None if run is None else (run, self._pass_over(run))
            case TakenBack():
                self._taking_back.take_back(item, is_in_time=self._assembler.take_back(item.first))
            case _ if self._taking_back.is_too_late:
                pass  # rolled back rows went out: at this transaction's end, capture goes back to before it
            case LoggedStatement() if self._begins_us is not None and item.commit_us < self._begins_us:
                self._history.apply(item, make_scn(self._position.place.timeline, item.scn))
                if item.position is not None:
                    self._pass(item.scn, item.txid, item.commit_us, item.position)
            case LoggedStatement():
                self._begins_us = None
                self._ready.extend(self._statement(item))
            case Heartbeat():
                self._is_current = True  # a server sends one only when it has nothing more
                self._move(item.position)
            case Rotated():
                if self._assembler.is_between_transactions:
                    self._move(self._scanner.position.to_json())
            case Abandoned():
                if self._assembler.abandon():
                    self._taking_back.abandon(item)

    def _pass_over(self, run: LogRun) -> int:
        """Move behind the transactions of a run that were committed before the begin; the number of the first that was
        not.
        """
        if self._begins_us is None:
            return 0
        late = np.flatnonzero(run.commit_us >= self._begins_us)
        first = int(late[0]) if len(late) else len(run)
        last = min(first, len(run) if run.is_complete else len(run) - 1) - 1
        if last >= 0:
            self._pass(int(run.scn[last]), run.txid(last), int(run.commit_us[last]), run.position(last))
        if first < len(run):
            self._begins_us = None
        return first

    def _pass(self, ordinal: int, txid: str, commit_us: int, position: Mapping[str, Any]) -> None:
        scn = make_scn(self._position.place.timeline, ordinal)
        self._position.pass_transaction(scn, 0, txid, commit_us, self._position.place.position)
        self._move(position)

    def _move(self, position: Mapping[str, Any]) -> None:
        """The log stands further, without a transaction."""
        if self._begins_us is not None:  # a session that resumes here must pass over transactions too
            position = {**position, BEGINS_US: self._begins_us}
        self._position.move(position)
        self._assembler.position = position
        self._bus_groups.advance()

    def _take_up(self, run: LogRun, first: int) -> Iterator[Group]:
        """The groups of a run from a transaction on, up to where the log itself shows a table to be another than
        consumers know: what is before that goes out first, and then a control.
        """
        self._rest = None
        run = self._held.without(run, self._scanner.tables)
        for slot, transaction in run.slots(first):
            try:
                plan = self._plan(slot)
                is_looked_up = slot in self._looked_up
                if not (is_looked_up or self._tables.is_news(plan.table)):
                    continue
                is_another = is_looked_up or self._tables.is_another(plan.table) or self._is_unlogged(plan)
                if transaction > first and is_another:
                    self._rest = run, transaction
                    return self._assembler.add(run, self._position.snapshots, first, transaction)
                self._learn(plan, self._looked_up.pop(slot, None))
            except FatalError as error:  # raised where its rows come: what is before them is good
                self._tables.refuse(slot, type(error)(f"{error} (first met in {run.place_of(slot, first)})"))
        return self._assembler.add(run, self._position.snapshots, first)

    def _plan(self, slot: int) -> DecodePlan:
        if self._tables.is_prepared(slot):
            return self._tables.plan(slot)
        table_map = self._scanner.tables[slot]
        try:
            return self._tables.prepare(slot, table_map)
        except SourceChanged as why:
            if self._lookup is None:
                raise
            return self._look_up(slot, table_map, self._lookup, why)

    def _look_up(self, slot: int, table_map: TableMap, lookup: TableLookup, why: SourceChanged) -> DecodePlan:
        """The plan of a table that is not what the history says, by the server's catalogue."""
        position = LogPosition.from_json(self._position.place.position)
        try:
            table_state = lookup.table_at(table_map.database, table_map.name, position)
            plan = self._tables.prepare(slot, table_map, table_state.definition)
        except SourceChanged as error:
            raise SourceChanged(f"{why}. The server cannot tell what it was: {error}") from error
        self._looked_up[slot] = table_state
        return plan

    def _learn(self, plan: DecodePlan, looked_up: TableState | None) -> None:
        """The log itself shows here what a table is; if consumers know it differently, a control goes out first."""
        table = plan.table
        known = self._tables.in_force.get(table.source)
        is_another = self._is_unlogged(plan) or (
            known is not None
            and (self._tables.is_another(table) or (looked_up is not None and self._tables.is_news(table)))
        )
        if is_another:
            if not self._assembler.is_between_transactions:
                raise UnsupportedFeature(
                    f"{self._physical}: {table.source} changed in the middle of a transaction (the log shows another "
                    f"table than before); have it read again by `databus snapshot`, from a position behind it"
                )
            self._bus_groups.refuse_class3(table.source)
        if looked_up is None:
            self._history.learn(plan.definition, self._position.place.scn)
        else:
            self._history.put(looked_up, self._position.place.scn)
            self._tables.doubt_plans(plan)
        self._tables.in_force[table.source] = table
        if is_another:  # else its rows say what it is
            self._ready.extend(self._bus_groups.tell_class3(table, known))
        else:
            self._bus_groups.read_on_as_it_is(table.source)

    def _is_unlogged(self, plan: DecodePlan) -> bool:
        """Whether the log has rows of a table, but not its creation: the table may have had rows before."""
        source, definition = plan.table.source, plan.definition
        return source not in self._tables.in_force and self._history.is_unlogged(definition.database, definition.name)

    def _saw(self, group: Group) -> None:
        """A group of the assembler goes out: what follows stands behind it, and chunks must know its keys."""
        commit = group.commit
        self._bus_groups.saw(group)
        if commit.continues:
            return
        self._position.pass_transaction(commit.scn, commit.seq, commit.txid, commit.commit_us, commit.position)
        self._bus_groups.advance()

    def _is_progress_due(self) -> bool:
        """Whether a commit without rows is worth a frame, so that consumers' checkpoints do not fall behind."""
        if time.monotonic() - self._yielded_s >= self._config.progress_ms / 1e3:
            return True
        place, last = self._position.place.position, self._yielded.position
        return bool(place["file"] != last["file"] or place["offset"] - last["offset"] >= self._config.progress_bytes)

    def _progress(self) -> Group | None:
        """While nothing more comes: a commit for what was passed over, if it is due."""
        if not self._is_further() or not self._assembler.is_between_transactions:
            return None
        if not self._is_progress_due():
            return None
        group = Group(self._position.commit())
        self._note_yielded(group)
        return group

    def _is_further(self) -> bool:
        """Whether the log does not say yet how far this is. A file counts by itself: the server may purge the one
        before, and then only this place shows that nothing of it is missing.
        """
        place, last = self._position.place, self._yielded
        return place.scn != last.scn or place.position["file"] != last.position["file"]

    def _last_before(self, error: DatabusError) -> Group:
        """A commit up to what cannot be captured, so that the log ends right before it. Raises `error` if it does."""
        if self._stopped is not None or not self._is_further() or self._is_part_out:
            raise error
        self._stopped = error
        return Group(self._position.commit())

    def _note_yielded(self, group: Group) -> None:
        if self._prepared is not None:
            self._prepared.sync(group.commit.scn)  # durable before the relay's log goes beyond the prepare
        self._is_part_out = group.commit.continues
        if not group.commit.continues:
            self._yielded = self._position.place
            self._yielded_s = time.monotonic()

    # Statements

    def _statement(self, statement: LoggedStatement) -> list[Group]:
        scn = make_scn(self._position.place.timeline, statement.scn)
        if self._prepared is not None and self._prepared.has_open:
            mode = statement.query.sql_mode or 0
            self._prepared.alter(altered_names(statement.text, self._history.server, mode, statement.database), scn)
        self._held.saw(statement, scn)
        events = [event for event in self._history.apply(statement, scn) if is_captured(event, self._tables.selection)]
        events = self._held.take(events, scn)
        seq = self._assembler.seq
        groups: list[Group] = []
        class3: list[str] = []
        for event in events:
            for kind, table, body in controls_of(event, self._tables, self._physical):
                seq += 1
                if kind is ControlKind.DROP:  # first, so that its own commit does not call it open
                    self._bus_groups.stop_reading(table.source)
                commit = Commit(
                    scn,
                    seq,
                    statement.txid,
                    self._assembler.position,
                    statement.commit_us,
                    dict(self._position.snapshots),
                    continues=True,
                )
                groups.append(Group(commit, (), Control(kind, table, scn, seq, body)))
                self._bus_groups.saw_control(table.source, scn)
                if kind is ControlKind.SCHEMA and body["class"] == 3:
                    self._bus_groups.refuse_class3(table.source)
                    class3.append(table.source)
        if events:
            self._tables.forget_plans()
            self._bus_groups.redefine(events)
        if not statement.is_complete:  # CREATE TABLE ... SELECT: its rows follow in the same transaction
            self._assembler.open(seq, is_yielded=bool(groups))
            return groups
        assert statement.position is not None  # noqa: S101 - it is complete
        self._assembler.end(statement.position)
        self._position.pass_transaction(scn, seq, statement.txid, statement.commit_us, statement.position)
        self._bus_groups.advance()
        groups += self._bus_groups.ask([Asked(name) for name in class3 if name in self._tables.in_force])
        if not groups:
            return [Group(self._position.commit())] if self._is_progress_due() else []
        return as_one(groups, self._position.place.position)
