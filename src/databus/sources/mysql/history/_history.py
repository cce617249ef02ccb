"""History: what every table of the user's databases is at the log's present position. It follows the DDL in the log.

All tables are kept, captured or not, since a rename may make any of them a captured one; those that nothing touches
stay as the text they were loaded from.
"""

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from databus.core import LimitExceeded
from databus.sources.mysql._charsets import charset_of_number
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.history._apply import Outcome, Setting, alter, create
from databus.sources.mysql.history._catalogue import Catalogue
from databus.sources.mysql.history._classes import UNPROVEN, Reason
from databus.sources.mysql.history._events import Altered, Created, Dropped, TableEvent, Truncated, Unknown
from databus.sources.mysql.history._state import PRIMARY, Key, TableState
from databus.sources.mysql.history._statements import read_statement
from databus.sources.mysql.history._syntax import (
    AlterTable,
    ChangeRows,
    ChangesRows,
    CreateOther,
    CreateTable,
    DropDatabase,
    DropTables,
    KeyPart,
    Name,
    Parsed,
    Rename,
    RenameTables,
    SetDatabase,
    Truncate,
)
from databus.sources.mysql.history._tokens import Server, Unreadable
from databus.sources.mysql.history._touched import touched_names
from databus.sources.mysql.history._types import resolve_charset
from databus.sources.mysql.history._written import Written

TABLES_MAX: Final = 50_000

TableName = tuple[str, str]


class Statement(Protocol):
    """A statement of the log: see `databus.sources.mysql.binlog.Query`."""

    @property
    def text(self) -> str: ...
    @property
    def database(self) -> str: ...
    @property
    def error_code(self) -> int: ...
    @property
    def sql_mode(self) -> int | None: ...
    @property
    def charsets(self) -> tuple[int, int, int] | None: ...
    @property
    def explicit_defaults_for_timestamp(self) -> bool | None: ...


@dataclass(slots=True)
class Changes:
    """What a store must keep: tables with their text (None: gone), databases with their character sets, other names."""

    tables: dict[TableName, bytes | None] = field(default_factory=dict)
    databases: dict[str, str | None] = field(default_factory=dict)
    others: dict[TableName, bool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.tables or self.databases or self.others)


@dataclass(slots=True)
class _Work:
    """What a statement does, until all of it is understood. origin: where the table of a name comes from: the name that
    it had, None for a table made by the statement.
    """

    tables: dict[TableName, TableState | None] = field(default_factory=dict)
    origin: dict[TableName, TableName | None] = field(default_factory=dict)
    outcomes: dict[TableName, Outcome] = field(default_factory=dict)
    filled: set[TableName] = field(default_factory=set)
    truncated: set[TableName] = field(default_factory=set)
    databases: dict[str, str | None] = field(default_factory=dict)
    others: dict[TableName, bool] = field(default_factory=dict)


def _text(state: TableState) -> bytes:
    """A table as one line of text, compressed: thousands that nobody captures stay in memory."""
    raw = json.dumps(state.to_json(), separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(raw, 1))


def _state_of(name: TableName, text: bytes) -> TableState:
    return TableState.from_json(*name, json.loads(zlib.decompress(base64.b64decode(text))))


class History:
    """The tables at one position; `apply` moves it past a statement.

    captured: whether consumers see a table of that name: events tell of those only. fold: names are compared in lower
    case (lower_case_table_names). explicit_timestamps: the server's explicit_defaults_for_timestamp, for statements
    that do not carry it. zero_dates: the policy for values, `error` or `null`.
    """

    def __init__(
        self,
        server: Server,
        captured: Callable[[str, str], bool],
        *,
        fold: bool = False,
        explicit_timestamps: bool = True,
        zero_dates: str = "error",
        tables_max: int = TABLES_MAX,
    ) -> None:
        self.server = server
        self._captured = captured
        self._fold = fold
        self._explicit_timestamps = explicit_timestamps
        self._zero_dates = zero_dates
        self._tables_max = tables_max
        self._tables: dict[TableName, TableState | bytes] = {}
        self._databases: dict[str, str] = {}
        self._others: set[TableName] = set()
        self._changes = Changes()

    def __len__(self) -> int:
        return len(self._tables)

    def definition(self, database: str, table: str) -> TableDefinition | None:
        """What that table is here; None where there is none, or it is not known."""
        state = self._state(self._name(database, table))
        return None if state is None else state.definition

    def is_other(self, database: str, table: str) -> bool:
        """Whether that name is a view's or a sequence's, whose rows are no table's."""
        return self._name(database, table) in self._others

    def names(self) -> Iterator[TableName]:
        """The (database, name) of all tables."""
        return iter(self._tables)

    def begin(self, catalogue: Catalogue) -> None:
        """Know what the catalogue says, and nothing else."""
        self._tables.clear()
        self._others = {self._name(*name) for name in catalogue.others}
        self._databases = {self._folded(name): charset for name, charset in catalogue.databases.items()}
        self._changes = Changes(databases=dict(self._databases), others=dict.fromkeys(self._others, True))
        for table in catalogue.tables:
            self.put(table)

    def put(self, table: TableState) -> None:
        """Know that table as it is now: after an `Unknown`, once the catalogue is provably the same as of here."""
        self._keep(self._name(table.database, table.name), table)

    def learn(self, definition: TableDefinition) -> None:
        """Know a table as the log itself shows it (`from_table_map`); what no table map tells stays as it was."""
        name = self._name(definition.database, definition.name)
        known = self._state(name)
        if known is not None and known.definition == definition:
            return
        columns = tuple(column for column in definition.columns if not column.is_hidden)
        row_times = "" if not definition.is_versioned else known.row_times if known is not None else "explicit"
        state = TableState(*name, columns, () if known is None else known.keys, definition.charset, row_times)
        if state.row_key() != definition.key:
            state = replace(state, keys=(Key("primary", PRIMARY, tuple(map(KeyPart, definition.key))),))
        if not definition.key:
            state = replace(state, keys=())
        self._keep(name, state)

    def restore(self, changes: Changes) -> None:
        """Take what a store kept, as it was kept; nothing of it counts as changed."""
        for name, text in changes.tables.items():
            if text is None:
                self._tables.pop(name, None)
            else:
                self._tables[name] = text
        for database, charset in changes.databases.items():
            if charset is None:
                self._databases.pop(database, None)
            else:
                self._databases[database] = charset
        for name, is_there in changes.others.items():
            (self._others.add if is_there else self._others.discard)(name)
        self._check_count()

    def take_changes(self) -> Changes:
        """What has changed since the last call, for the store."""
        taken, self._changes = self._changes, Changes()
        return taken

    def everything(self) -> Changes:
        """All that is known, as changes of nothing."""
        tables: dict[TableName, bytes | None] = {
            name: found if isinstance(found, bytes) else _text(found) for name, found in self._tables.items()
        }
        return Changes(tables, dict(self._databases), dict.fromkeys(self._others, True))

    def apply(self, statement: Statement) -> list[TableEvent]:
        """Move past a statement. What it did to captured tables, in an order that consumers can follow.

        A statement that is not understood changes nothing but that the tables it names are not known any more, and
        gives `Unknown` if one of them is captured.
        """
        sql_mode = statement.sql_mode or 0
        try:
            parsed = read_statement(statement.text, self.server, sql_mode, statement.database)
            if parsed is None:
                return []
            work = _Work()
            self._do(parsed, statement, work)
        except Unreadable as why:
            return self._not_understood(statement, str(why))
        return self._commit(work, statement)

    def _folded(self, name: str) -> str:
        return name.lower() if self._fold else name

    def _name(self, database: str, table: str) -> TableName:
        return self._folded(database), self._folded(table)

    def _of(self, name: Name) -> TableName:
        return self._name(name.database, name.table)

    def _state(self, name: TableName) -> TableState | None:
        found = self._tables.get(name)
        if isinstance(found, bytes):
            found = _state_of(name, found)
            self._tables[name] = found
        return found

    def _keep(self, name: TableName, state: TableState | None) -> None:
        if state is None:
            self._tables.pop(name, None)
            self._changes.tables[name] = None
            return
        self._tables[name] = state
        self._changes.tables[name] = _text(state)
        self._check_count()

    def _check_count(self) -> None:
        if len(self._tables) > self._tables_max:
            raise LimitExceeded(
                f"the server has more than history_tables_max ({self._tables_max:,}) tables, captured or not; raise it "
                f"(each takes some 0.5 KB of memory and disk)"
            )

    # What each kind of statement does. All of it goes into `work`, so that a statement is followed whole or not at all.

    def _do(self, parsed: Parsed, statement: Statement, work: _Work) -> None:
        if statement.error_code and not isinstance(parsed, DropTables | DropDatabase):
            self._do_failed(parsed, statement, work)
            return
        match parsed:
            case CreateTable():
                self._create(parsed, statement, work)
            case AlterTable():
                self._alter(parsed, statement, work)
            case RenameTables():
                for old, new in parsed.pairs:
                    self._rename(self._of(old), self._of(new), work, is_optional=parsed.is_optional)
            case DropTables():
                for name in parsed.names:
                    self._drop(self._of(name), work)
            case Truncate():
                self._truncate(self._of(parsed.name), work)
            case CreateOther():
                work.others[self._of(parsed.name)] = True
            case SetDatabase():
                self._set_database(parsed, statement, work)
            case DropDatabase():
                self._drop_database(self._folded(parsed.database), work)
            case ChangesRows():
                raise Unreadable(f"{parsed.verb} was logged as a statement, not as rows: binlog_format must be ROW")

    def _do_failed(self, parsed: Parsed, statement: Statement, work: _Work) -> None:
        """A statement that failed is logged where it did something: CREATE OR REPLACE had dropped the old table."""
        if not isinstance(parsed, CreateTable):
            raise Unreadable(f"it failed with error {statement.error_code}, and may have been done in part")
        if parsed.or_replace:
            self._drop(self._of(parsed.name), work)

    def _now(self, name: TableName, work: _Work) -> TableState | None:
        return work.tables[name] if name in work.tables else self._state(name)

    def _known(self, name: TableName, work: _Work) -> TableState:
        state = self._now(name, work)
        if state is None:
            raise Unreadable(f"{name[0]}.{name[1]} is not in the history")
        return state

    def _is_other(self, name: TableName, work: _Work) -> bool:
        return work.others.get(name, name in self._others)

    def _setting(self, database: str, statement: Statement, work: _Work) -> Setting:
        explicit = statement.explicit_defaults_for_timestamp
        charset = work.databases.get(database) or self._databases.get(database)
        return Setting(
            self.server,
            statement.sql_mode or 0,
            self._explicit_timestamps if explicit is None else explicit,
            charset or self._server_charset(statement),
            self._zero_dates,
            Written.by(statement.charsets),
        )

    def _server_charset(self, statement: Statement) -> str:
        number = statement.charsets[2] if statement.charsets is not None else 0
        return charset_of_number(number) or "utf8mb4"

    def _create(self, parsed: CreateTable, statement: Statement, work: _Work) -> None:
        name = self._of(parsed.name)
        there = self._now(name, work)
        if parsed.is_optional and (there is not None or self._is_other(name, work)):
            return
        if parsed.like is not None:
            made = replace(self._known(self._of(parsed.like), work), database=name[0], name=name[1])
        elif parsed.is_select:
            raise Unreadable("its columns come from a query, and the statement does not say them")
        else:
            made = create(parsed, *name, self._setting(name[0], statement, work))
        if there is not None and not parsed.or_replace:
            if there == made:
                return  # the catalogue that the history began with had it already
            raise Unreadable(f"{name[0]}.{name[1]} is there already, as far as we know, and is another table")
        work.tables[name], work.origin[name] = made, None
        work.others[name] = False

    def _alter(self, parsed: AlterTable, statement: Statement, work: _Work) -> None:
        name = self._of(parsed.name)
        state = self._now(name, work)
        if state is None and (parsed.is_optional or self._is_other(name, work)):
            return
        state = self._known(name, work)
        outcome = alter(state, parsed, self._setting(name[0], statement, work))
        work.tables[name], work.origin[name], work.outcomes[name] = outcome.state, name, outcome
        for action in parsed.actions:
            if isinstance(action, ChangeRows):
                self._change_rows(action, outcome.state, work)
            elif isinstance(action, Rename):
                self._rename(name, self._of(action.name), work)

    def _change_rows(self, action: ChangeRows, state: TableState, work: _Work) -> None:
        if action.other is not None:
            other = self._of(action.other)
            there = self._known(other, work)
            work.tables[other], work.origin[other] = there, other
            work.outcomes[other] = Outcome(there, [Reason(None, UNPROVEN, action.why)])
        if action.makes is not None:
            made = self._of(action.makes)
            work.tables[made], work.origin[made] = replace(state, database=made[0], name=made[1]), None
            work.filled.add(made)
        if action.takes is not None:
            self._drop(self._of(action.takes), work)

    def _rename(self, old: TableName, new: TableName, work: _Work, *, is_optional: bool = False) -> None:
        if self._is_other(old, work):
            work.others[old], work.others[new] = False, True
            return
        state = self._now(old, work)
        if state is None:
            if is_optional:
                return
            raise Unreadable(f"{old[0]}.{old[1]} is not in the history")
        if old == new:
            return
        origin = work.origin.get(old, old)
        work.tables[new] = replace(state, database=new[0], name=new[1])
        work.origin[new] = origin
        work.tables[old] = None
        work.origin[old] = None
        if origin is None and old in work.filled:
            work.filled.add(new)

    def _drop(self, name: TableName, work: _Work) -> None:
        work.others[name] = False
        if self._now(name, work) is not None:
            work.tables[name], work.origin[name] = None, None

    def _truncate(self, name: TableName, work: _Work) -> None:
        if not self._is_other(name, work):
            self._known(name, work)
            work.truncated.add(name)

    def _set_database(self, parsed: SetDatabase, statement: Statement, work: _Work) -> None:
        database = self._folded(parsed.database)
        there = self._databases.get(database)
        if parsed.is_new and parsed.is_optional and there is not None:
            return
        if parsed.or_replace:
            self._drop_database(database, work)
        inherited = there if there is not None and not parsed.is_new else self._server_charset(statement)
        work.databases[database] = resolve_charset(parsed.options.charset, parsed.options.collation, inherited)

    def _drop_database(self, database: str, work: _Work) -> None:
        work.databases[database] = None
        for name in [*self._tables, *self._others]:
            if name[0] == database:
                self._drop(name, work)

    # From what was done to what consumers are told.

    def _commit(self, work: _Work, statement: Statement) -> list[TableEvent]:
        events: list[TableEvent] = []
        for name in sorted(work.tables.keys() | work.truncated, key=lambda name: work.tables.get(name, ()) is not None):
            if self._captured(*name):
                events += self._explain(name, work, statement.text)
        for name, state in work.tables.items():
            if self._state(name) != state:
                self._keep(name, state)
        for database, charset in work.databases.items():
            if charset is None:
                self._databases.pop(database, None)
            else:
                self._databases[database] = charset
            self._changes.databases[database] = charset
        for name, is_there in work.others.items():
            if is_there != (name in self._others):
                (self._others.add if is_there else self._others.discard)(name)
                self._changes.others[name] = is_there
        return events

    def _explain(self, name: TableName, work: _Work, ddl: str) -> Iterator[TableEvent]:
        before = self._state(name)
        after = work.tables.get(name, before)
        if before is not None and after is not None and (work.origin.get(name, name) == name):
            if name in work.truncated:
                yield Truncated(after.definition, ddl)
                return
            yield from self._altered(before, after, work.outcomes.get(name), ddl)
        elif before is not None and after is not None and work.origin.get(name) is not None:
            swapped = (Reason(None, UNPROVEN, "another table took its name"),)
            yield Altered(before.definition, after.definition, ddl, swapped)
        else:
            if before is not None:
                yield Dropped(before.definition, ddl)
            if after is not None:
                is_empty = work.origin.get(name) is None and name not in work.filled
                yield Created(after.definition, ddl, is_empty)

    def _altered(
        self, before: TableState, after: TableState, outcome: Outcome | None, ddl: str
    ) -> Iterator[TableEvent]:
        if outcome is None:
            return
        old, new = before.definition, after.definition
        if old == new and not outcome.reasons:
            return
        event = Altered(old, new, ddl, tuple(outcome.reasons), outcome.renamed, outcome.fill)
        yield event if event.number < UNPROVEN else replace(event, renamed={}, fill={})

    def _not_understood(self, statement: Statement, why: str) -> list[TableEvent]:
        names = touched_names(statement.text, self.server, statement.sql_mode or 0, statement.database)
        first = [self._name(*name) for name in names.certain]
        others = [self._name(*name) for name in names.possible]
        touched = list(dict.fromkeys([*first, *(name for name in others if name in self._tables)]))
        touched = [name for name in touched if name not in self._others]
        for name in touched:
            if name in self._tables:
                self._keep(name, None)
        captured = tuple(name for name in touched if self._captured(*name))
        return [Unknown(statement.text, why, captured)] if captured else []
