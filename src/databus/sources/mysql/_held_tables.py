"""Held tables: a statement that databus does not understand may have changed them. From there on their rows are not
captured, until it is known what they are; then consumers get a control, and the tables are read again.

What a table is, the server's catalogue says, from the place on behind which no statement of the log names the table
any more (`TableLookup`). Up to there its rows are not captured, since nothing says how to decode them; the reading has
what they did. Each commit's position names the tables that are held there, so a session that goes on holds the same
ones.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from databus.core import ControlKind, source_name
from databus.operate import logger_of
from databus.schema import TableSchema
from databus.sources._bus_frames import gap_body
from databus.sources.mysql._bus_groups import BusGroups
from databus.sources.mysql._captured_tables import CapturedTables
from databus.sources.mysql._charsets import shown
from databus.sources.mysql._config import BinlogConfig, MysqlConfig
from databus.sources.mysql._ddl_controls import schema_body
from databus.sources.mysql._definition_lookup import CatalogueAnswer, NotProven, TableLookup, lower, touched_by
from databus.sources.mysql._durable_history import HistoryKeeper
from databus.sources.mysql._session_position import HeldTable, SessionPosition, as_one
from databus.sources.mysql._unread_tables import Asked
from databus.sources.mysql.binlog import LoggedStatement, LogPosition, LogRun, TableMap
from databus.sources.mysql.tables import Altered, Created, Dropped, TableEvent, Unknown
from databus.wire import Group

_READ_S_MAX: Final = 20.0  # for the log up to its end: capture waits meanwhile
_AGAIN_S: Final = 60.0  # until the next try


def held_after(held: dict[str, HeldTable], events: Iterable[TableEvent], scn: int) -> None:
    """Move past what became of tables: a statement that is understood says what a table is, or that it is gone."""
    for event in events:
        match event:
            case Unknown(_, _, names, _):
                for name in names:
                    held.setdefault(source_name(*name), HeldTable(name, scn))
            case Created(definition) | Altered(_, definition) | Dropped(definition):
                held.pop(definition.source, None)
            case _:
                pass


@dataclass(slots=True)
class _Wait:
    """What is known of a held table."""

    ddl: str = ""
    """The first statement that was not understood."""
    answer: CatalogueAnswer | None = None
    """What the table is, once as many statements have come as `later` says; None until the server was asked."""
    due_s: float = 0.0
    """When the server is asked next."""


class HeldTables:
    """The held tables of one session. One thread.

    count: how many statements were not understood since the session began.
    """

    def __init__(
        self,
        physical: str,
        config: MysqlConfig | BinlogConfig,
        position: SessionPosition,
        tables: CapturedTables,
        history: HistoryKeeper,
        lookup: TableLookup | None,
        bus_groups: BusGroups,
    ) -> None:
        self._config = config
        self._position = position
        self._tables = tables
        self._history = history
        self._lookup = lookup
        self._bus_groups = bus_groups
        self._logger = logger_of("databus.sources.mysql").bind(physical=physical)
        self._waits = {source: _Wait() for source in tables.held}
        self._scn = 0  # of the last statement: its transaction may go on with rows, and no table is released inside it
        self.count = 0
        for held in tables.held.values():  # the history may have known it again, and the log not
            history.forget(held.name, position.place.scn)

    def take(self, events: Sequence[TableEvent], scn: int) -> list[TableEvent]:
        """Hold the tables that a statement may have changed; its other events are the result."""
        left = [event for event in events if not (isinstance(event, Unknown) and self._holds(event))]
        if not self._waits and len(left) == len(events):
            return left
        held_after(self._tables.held, events, scn)
        self._waits = {source: self._waits.get(source, _Wait()) for source in self._tables.held}
        for event in events:
            if isinstance(event, Unknown) and event not in left:
                self._hold(event, scn)
        return left

    def saw(self, statement: LoggedStatement, scn: int) -> None:
        """Move past a statement of the log: it may be the last one that a table's definition had to wait for."""
        self._scn = scn
        if not self._waits:
            return
        touched = touched_by(statement, self._history.server)
        for source, wait in self._waits.items():
            if lower(self._tables.held[source].name) not in touched:
                continue
            if wait.answer is None:
                wait.due_s = 0.0
            elif wait.answer.later:
                wait.answer.later -= 1

    def without(self, run: LogRun, table_maps: Sequence[TableMap]) -> LogRun:
        """The run without the rows of held tables."""
        if not self._waits or not len(run.event_slot):
            return run
        slots = [slot for slot in np.unique(run.event_slot).tolist() if table_maps[slot].source in self._waits]
        return run.only(~np.isin(run.event_slot, slots)) if slots else run

    def add(self) -> list[Group] | None:
        """Between two transactions: the groups that release the tables whose definition is known here; None if there is
        no such table.
        """
        if not self._waits or self._lookup is None or self._position.place.scn < self._scn:
            return None
        self._look_up(self._lookup)
        known = [source for source, wait in self._waits.items() if wait.answer is not None and not wait.answer.later]
        if not known:
            return None
        groups = [group for source in known for group in self._release(source)]
        groups = groups or [Group(self._position.commit())]  # so that the log says that they are held no more
        return as_one(groups, self._position.place.position)

    def _holds(self, event: Unknown) -> bool:
        config = self._config
        rereads = isinstance(config, MysqlConfig) and config.unknown_ddl == "reread" and config.on_class3 != "stop"
        return rereads and event.is_all

    def _hold(self, event: Unknown, scn: int) -> None:
        self.count += 1
        self._tables.forget_plans()
        for name in event.tables:
            source = source_name(*name)
            self._history.forget(name, scn)
            self._bus_groups.stop_reading(source)
            self._waits[source].ddl = self._waits[source].ddl or event.ddl
        self._logger.warning(
            "a statement is not understood; the tables that it names are read again",
            statement=shown(event.ddl[:500]),
            why=shown(event.why),
            tables=[source_name(*name) for name in event.tables],
            mend="report the statement; with `unknown_ddl: stop` capture stops before it",
        )

    def _forget(self, source: str) -> None:
        self._tables.held.pop(source, None)
        self._waits.pop(source, None)

    def _look_up(self, lookup: TableLookup) -> None:
        now_s = time.monotonic()
        due = [source for source, wait in self._waits.items() if wait.answer is None and wait.due_s <= now_s]
        if not due:
            return
        names = {source: self._tables.held[source].name for source in due}
        try:
            answers = lookup.tables_at(
                list(names.values()), LogPosition.from_json(self._position.place.position), _READ_S_MAX
            )
        except NotProven as why:
            self._logger.info("held tables are not read yet", tables=due, why=str(why))
            answers = {}
        for source in due:
            self._waits[source].answer = answers.get(names[source])
            self._waits[source].due_s = time.monotonic() + _AGAIN_S

    def _release(self, source: str) -> Iterable[Group]:
        """The table is captured again, from here on."""
        held, wait = self._tables.held[source], self._waits[source]
        answer, scn = wait.answer, self._position.place.scn
        assert answer is not None  # noqa: S101 - its caller has looked
        if answer.table is None:
            self._history.lacks(held.name, scn, is_other=answer.is_other)
            self._forget(source)
            known = self._tables.in_force.pop(source, None)
            if known is not None:
                body = {"kind": ControlKind.DROP, "source": source}
                yield self._position.control(ControlKind.DROP, known, body)
            return
        # `describe` raises before a control goes out: so a session that begins here again stops here too.
        table = self._tables.describe(answer.table.definition)
        self._history.put(answer.table, scn)
        self._forget(source)
        known, _ = self._tables.redefine(answer.table.definition)
        self._tables.forget_plans()
        if held.scn < scn:
            yield self._gap(held, table)
        body = schema_body(table, known, wait.ddl, 3)
        yield self._position.control(ControlKind.SCHEMA, table, body)
        yield from self._bus_groups.ask([Asked(source)])

    def _gap(self, held: HeldTable, table: TableSchema) -> Group:
        """The gap of a table: its rows were not captured while it was held."""
        reason = "a statement that was not understood: until it was known what the table is, its rows were left out"
        body = gap_body(table.source, held.scn, self._position.place.scn, reason, is_read_again=True)
        return self._position.control(ControlKind.GAP, table, body)
