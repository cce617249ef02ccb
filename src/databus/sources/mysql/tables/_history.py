"""History: what every table of the user's databases is at the log's present position. It follows the DDL in the log.

All tables are kept, captured or not, since a rename may make any of them a captured one; those that nothing touches
stay as the text they were loaded from.
"""

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from databus.core import LimitExceeded, SourceChanged, source_name
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.tables._apply import Outcome, Setting, alter, create
from databus.sources.mysql.tables._catalogue import Catalogue
from databus.sources.mysql.tables._change_class import UNPROVEN, Reason
from databus.sources.mysql.tables._column_types import UNKNOWN_CHARSET, resolve_charset
from databus.sources.mysql.tables._lexer import ServerKind, UnknownEffect, UnreadableStatement
from databus.sources.mysql.tables._literal_charsets import LiteralCharsets
from databus.sources.mysql.tables._members import hides_charset, is_in_servers_words, with_likely_members
from databus.sources.mysql.tables._statements import DdlStatement, read_statement, server_charset_of
from databus.sources.mysql.tables._syntax import (
    AlterTable,
    ChangeRows,
    ChangesRows,
    CreateOther,
    CreateTable,
    DropDatabase,
    DropTables,
    Name,
    Parsed,
    RenameTables,
    RenameTo,
    SetDatabase,
    Truncate,
    moves_rows,
)
from databus.sources.mysql.tables._table_events import Altered, Created, Dropped, TableEvent, Truncated, Unknown
from databus.sources.mysql.tables._table_state import TableState, as_shown
from databus.sources.mysql.tables._touched_tables import touched_names
from databus.sources.mysql.tables._unknown_tables import (
    PARTIAL,
    Note,
    Presence,
    TableName,
    announced,
    contents_known,
    doubtful,
    gone,
    not_known,
    unlogged,
)

TEMPORARY: Final = ", so that a temporary table of that name may be meant, which the log does not say"
_OPTION: Final = "lower_case_table_names"
TABLES_MAX: Final = 50_000


@dataclass(slots=True)
class HistoryChanges:
    """What a store must keep."""

    tables: dict[TableName, bytes | None] = field(default_factory=dict)
    """Tables with their text; None for a table that is gone."""
    databases: dict[str, str | None] = field(default_factory=dict)
    """Databases with their default character sets; None for one that is gone."""
    others: dict[TableName, bool] = field(default_factory=dict)
    """Names of views and sequences, and whether they are there."""
    notes: dict[Note, bool] = field(default_factory=dict)
    """What `Presence` notes of tables that are not known."""

    def __bool__(self) -> bool:
        return bool(self.tables or self.databases or self.others or self.notes)


@dataclass(slots=True)
class Work:
    """What a statement does, until all of it is understood."""

    tables: dict[TableName, TableState | None] = field(default_factory=dict)
    origin: dict[TableName, TableName | None] = field(default_factory=dict)
    """Where the table of a name comes from: the name that it had before; None for a table that the statement made."""
    outcomes: dict[TableName, Outcome] = field(default_factory=dict)
    filled: set[TableName] = field(default_factory=set)
    """Tables that got rows that no log entry shows."""
    truncated: set[TableName] = field(default_factory=set)
    databases: dict[str, str | None] = field(default_factory=dict)
    others: dict[TableName, bool] = field(default_factory=dict)
    notes: dict[Note, bool] = field(default_factory=dict)

    def move(self, old: TableName, new: TableName, state: TableState) -> None:
        """Give a table another name."""
        origin = self.origin.get(old, old)
        self.tables[new], self.origin[new] = replace(state, database=new[0], name=new[1]), origin
        self.tables[old], self.origin[old] = None, None
        if origin is None and old in self.filled:
            self.filled.add(new)


def text_of(state: TableState) -> bytes:
    """A table as one line of text, compressed: thousands of tables stay in memory, captured or not."""
    raw = json.dumps(state.to_json(), separators=(",", ":")).encode()
    return base64.b64encode(zlib.compress(raw, 1))


def is_same(left: TableState | None, right: TableState | None) -> bool:
    """Whether two tables are the same to the store, which keeps more than a comparison of columns looks at."""
    return left == right and (left is None or right is None or left.to_json() == right.to_json())


def state_of(name: TableName, text: bytes) -> TableState:
    return TableState.from_json(*name, json.loads(zlib.decompress(base64.b64decode(text))))


class Spelling:
    """Names as the server compares them. fold: in lower case; None: unknown, so such names are in doubt."""

    def __init__(self, fold: bool | None) -> None:
        self._fold = fold
        self._spelled: dict[TableName, TableName] = {}  # in lower case: as it is known

    def of(self, name: str) -> str:
        """The name by which a table or database is known."""
        return name.lower() if self._fold else name

    def clear(self) -> None:
        """Know no table."""
        self._spelled.clear()

    def add(self, name: TableName) -> None:
        """Know a table by that name."""
        if self._fold is None:
            self._spelled[name[0].lower(), name[1].lower()] = name

    def rival(self, name: TableName) -> TableName | None:
        """The name of a known table that may be the same one."""
        if self._fold is not None:
            return None
        other = self._spelled.get((name[0].lower(), name[1].lower()))
        return None if other == name else other

    def doubt(self, name: TableName, other: TableName) -> str:
        """What is unknown, and what to do."""
        return (
            f"{source_name(*name)} and {source_name(*other)} are one table or two, by the server's {_OPTION}, which "
            f"the log does not say; set the option of that name"
        )


class TableHistory:
    """The tables at one position; `apply` moves it past a statement.

    captured: whether consumers see a table of that name: events are of those only. fold: names are compared in lower
    case (lower_case_table_names). explicit_timestamps: the server's explicit_defaults_for_timestamp, for statements
    that do not carry it. system_zone: its system_time_zone. Of these, None says that it is unknown: what depends on it
    is not understood, or class 3. database_charsets: the defaults of databases that were there when the history began,
    where no catalogue says them. zero_dates: the policy for values, `error` or `null`. existing: asks MariaDB which
    of these tables it has now; None where there is none to ask.
    """

    def __init__(
        self,
        server: ServerKind,
        captured: Callable[[str, str], bool],
        *,
        fold: bool | None = False,
        explicit_timestamps: bool | None = True,
        database_charsets: Mapping[str, str] | None = None,
        zero_dates: str = "error",
        system_zone: str | None = None,
        existing: Callable[[Sequence[TableName]], Iterable[TableName]] | None = None,
        tables_max: int = TABLES_MAX,
    ) -> None:
        self.server = server
        self._captured = captured
        self._spelling = Spelling(fold)
        self._presence = Presence()
        self._known_charsets = {self._spelling.of(name): charset for name, charset in (database_charsets or {}).items()}
        self._reasons: dict[TableName, str] = {}  # why a table is not known, where a statement of this session says
        self._explicit_timestamps = explicit_timestamps
        self._zero_dates = zero_dates
        self._system_zone = system_zone
        self._existing = None
        if existing is not None and server.is_mariadb:
            self._existing = lambda names: {self._name(*name) for name in existing(names)}
        self._tables_max = tables_max
        self._tables: dict[TableName, TableState | bytes] = {}
        self._databases: dict[str, str] = {}
        self._others: set[TableName] = set()
        self._changes = HistoryChanges()

    def __len__(self) -> int:
        return len(self._tables)

    def definition(self, database: str, table: str) -> TableDefinition | None:
        """What that table is here; None where there is none, or it is not known. Raises `SourceChanged` where only the
        server's lower_case_table_names says whether it is a known one.
        """
        name = self._name(database, table)
        if (other := self._spelling.rival(name)) is not None:
            raise SourceChanged(f"{database}.{table}: {self._spelling.doubt(name, other)}")
        state = self._state(name)
        return None if state is None else state.definition

    def is_other(self, database: str, table: str) -> bool:
        """Whether that name is a view's or a sequence's, whose rows are no table's."""
        return self._name(database, table) in self._others

    def why_unknown(self, database: str, table: str) -> str:
        """Why that table's definition is unknown, as far as statements of this session say."""
        return self._reasons.get(self._name(database, table), "")

    def is_unlogged(self, database: str, table: str) -> bool:
        """Whether there was no such table before the log showed its rows, as far as statements of the log say."""
        name = self._name(database, table)
        is_missing = name not in self._tables and not self._presence.may_be_there(name, {})
        return is_missing or unlogged(name) in self._presence

    def names(self) -> Iterator[TableName]:
        """The (database, name) of all tables."""
        return iter(self._tables)

    def begin(self, catalogue: Catalogue) -> None:
        """Know what the catalogue says, and nothing else."""
        self._tables.clear()
        self._presence.clear()
        self._spelling.clear()
        self._others = {self._name(*name) for name in catalogue.others}
        self._databases = {self._spelling.of(name): charset for name, charset in catalogue.databases.items()}
        self._changes = HistoryChanges(databases=dict(self._databases), others=dict.fromkeys(self._others, True))
        self._note({} if catalogue.is_whole else {PARTIAL: True})
        for table in catalogue.tables:
            self.put(table)

    def put(self, table: TableState) -> None:
        """Know that table as it is now: after an `Unknown`, once the catalogue is provably the same as of here."""
        name = self._name(table.database, table.name)
        self._keep(name, table, is_unlogged=self.is_unlogged(*name))

    def learn(self, definition: TableDefinition) -> None:
        """Know a table as the log itself shows it (`from_table_map`); what no table map has stays as it was."""
        name = self._name(definition.database, definition.name)
        known = self._state(name)
        if known is not None and known.definition == definition:
            return
        self._keep(name, as_shown(name, definition, known), is_unlogged=self.is_unlogged(*name))

    def doubt(self, database: str, table: str) -> None:
        """Note that the table is not known here, though consumers have got a definition of it."""
        self._note({announced(self._name(database, table)): True})

    def restore(self, changes: HistoryChanges) -> None:
        """Take what a store kept; none of it counts as changed."""
        for name, text in changes.tables.items():
            if text is None:
                self._tables.pop(name, None)
            else:
                self._tables[name] = text
                self._spelling.add(name)
        self._take(changes.databases, changes.others)
        for note, holds in changes.notes.items():
            self._presence.set(note, holds)
        self._check_count()

    def _take(self, databases: Mapping[str, str | None], others: Mapping[TableName, bool]) -> None:
        for database, charset in databases.items():
            if charset is None:
                self._databases.pop(database, None)
            else:
                self._databases[database] = charset
        for name, is_there in others.items():
            (self._others.add if is_there else self._others.discard)(name)

    def take_changes(self) -> HistoryChanges:
        """What has changed since the last call, for the store."""
        taken, self._changes = self._changes, HistoryChanges()
        return taken

    def everything(self) -> HistoryChanges:
        """All that is known, as changes of an empty history."""
        tables: dict[TableName, bytes | None] = {
            name: state if isinstance(state, bytes) else text_of(state) for name, state in self._tables.items()
        }
        others = dict.fromkeys(self._others, True)
        return HistoryChanges(tables, dict(self._databases), others, dict.fromkeys(self._presence, True))

    def apply(self, statement: DdlStatement, *, rows_follow: bool = False) -> list[TableEvent]:
        """Move past a statement. What it did to captured tables, in an order that consumers can follow.

        rows_follow: rows come in the same transaction: a CREATE TABLE ... SELECT, in words of the server's own.
        A statement that is not understood makes the tables that it names unknown, and gives `Unknown` if one of them
        is captured.
        """
        try:
            parsed = read_statement(statement.text, self.server, statement.sql_mode or 0, statement.database)
            if parsed is None:
                return []
            work = Work()
            self._do(parsed, statement, work)
            _check_temporary(parsed, statement, work.tables, self._captured, self._existing)
        except UnreadableStatement as why:
            return self._not_understood(statement, why)
        if rows_follow or is_in_servers_words(statement.text, self.server):
            work.tables = {
                at: made and with_likely_members(made, filter(None, map(self._state, list(self._tables))))
                for at, made in work.tables.items()
            }
        return self._commit(work, statement)

    def _name(self, database: str, table: str) -> TableName:
        return self._spelling.of(database), self._spelling.of(table)

    def _of(self, name: Name) -> TableName:
        own_name = self._name(name.database, name.table)
        if (other := self._spelling.rival(own_name)) is not None:
            raise UnknownEffect(self._spelling.doubt(own_name, other))
        return own_name

    def _state(self, name: TableName) -> TableState | None:
        state = self._tables.get(name)
        if isinstance(state, bytes):
            state = state_of(name, state)
            self._tables[name] = state
        return state

    def _keep(self, name: TableName, state: TableState | None, *, is_unlogged: bool = False) -> None:
        if state is None:
            self._tables.pop(name, None)
            self._changes.tables[name] = None
            return
        self._tables[name] = state
        self._changes.tables[name] = text_of(state)
        self._spelling.add(name)
        self._reasons.pop(name, None)
        self._note({doubtful(name): False, announced(name): False, gone(name): False, unlogged(name): is_unlogged})
        self._check_count()

    def _note(self, notes: Mapping[Note, bool]) -> None:
        for note, holds in notes.items():
            if self._presence.set(note, holds):
                self._changes.notes[note] = holds

    def _check_count(self) -> None:
        if len(self._tables) + len(self._presence) > self._tables_max:
            raise LimitExceeded(
                f"the server has more than history_tables_max ({self._tables_max:,}) tables, captured or not; raise it "
                f"(each takes some 0.5 KB of memory and disk)"
            )

    # What each kind of statement does. All of it goes into `work`, so that a statement is followed whole or not at all.

    def _do(self, parsed: Parsed, statement: DdlStatement, work: Work) -> None:
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
                    self._drop_named(self._of(name), parsed, work)
            case Truncate():
                self._truncate(self._of(parsed.name), work)
            case CreateOther():
                self._create_other(self._of(parsed.name), parsed, work)
            case SetDatabase():
                self._set_database(parsed, statement, work)
            case DropDatabase():
                self._drop_database(self._spelling.of(parsed.database), work)
            case ChangesRows():
                raise UnreadableStatement(f"{parsed.verb} was logged as a statement: binlog_format must be ROW")

    def _do_failed(self, parsed: Parsed, statement: DdlStatement, work: Work) -> None:
        """Servers log a statement that failed if it had an effect: CREATE OR REPLACE had dropped the old table."""
        if isinstance(parsed, AlterTable) and parsed.keeps_all:
            return  # ANALYZE PARTITION is logged of tables that are not there; a copy that fails leaves the table
        if not isinstance(parsed, CreateTable):
            raise UnreadableStatement(f"it failed with error {statement.error_code}, and may have been done in part")
        if parsed.or_replace:
            self._drop(self._of(parsed.name), work)

    def _now(self, name: TableName, work: Work) -> TableState | None:
        return work.tables[name] if name in work.tables else self._state(name)

    def _known(self, name: TableName, work: Work) -> TableState:
        state = self._now(name, work)
        if state is None:
            if self._presence.may_be_there(name, work.notes):
                raise UnknownEffect(f"{name[0]}.{name[1]} was made before the history begins, or in a way not known")
            raise not_known(name)
        if state.charset == UNKNOWN_CHARSET:
            state = replace(state, charset=self._known_charsets.get(name[0], UNKNOWN_CHARSET))
        return state

    def _is_other(self, name: TableName, work: Work) -> bool:
        return work.others.get(name, name in self._others)

    def _setting(self, database: str, statement: DdlStatement, work: Work) -> Setting:
        explicit = statement.explicit_defaults_for_timestamp
        charset = work.databases.get(database) or self._databases.get(database)
        if charset is None and self._presence.may_hold_more(database, work.notes):
            charset = self._known_charsets.get(database)
        return Setting(
            self.server,
            statement.sql_mode or 0,
            self._explicit_timestamps if explicit is None else explicit,
            UNKNOWN_CHARSET if charset is None or hides_charset(statement.text) else charset,
            self._zero_dates,
            LiteralCharsets.by(statement.charsets),
            statement.time_zone,
            self._system_zone,
        )

    def _create(self, parsed: CreateTable, statement: DdlStatement, work: Work) -> None:
        name = self._of(parsed.name)
        existing = self._now(name, work)
        if parsed.is_optional and (existing is not None or self._is_other(name, work)):
            return
        if parsed.is_optional and self._presence.may_be_there(name, work.notes):
            raise UnknownEffect(
                f"whether CREATE TABLE IF NOT EXISTS made {name[0]}.{name[1]} or found another table of that name is "
                f"not known, since the history begins in the middle of the log"
            )
        if parsed.like is not None:
            made = replace(self._known(self._of(parsed.like), work), database=name[0], name=name[1])
        elif parsed.is_select:
            raise UnreadableStatement("its columns come from a query, and the statement does not say them")
        else:
            made = create(parsed, *name, self._setting(name[0], statement, work))
        if existing is not None and not parsed.or_replace:
            if made.is_like(existing):
                return  # the catalogue that the history began with had it already
            raise UnreadableStatement(f"{name[0]}.{name[1]} is there already, as far as we know, and is another table")
        work.tables[name], work.origin[name] = made, None
        work.others[name] = False
        work.notes |= {doubtful(name): False, gone(name): False}

    def _alter(self, parsed: AlterTable, statement: DdlStatement, work: Work) -> None:
        for alteration in parsed.others:
            self._alter(alteration, statement, work)
        name = self._of(parsed.name)
        state = self._now(name, work)
        is_none = parsed.is_optional and not self._presence.may_be_there(name, work.notes)
        if state is None and (is_none or parsed.keeps_all or self._is_other(name, work)):
            return
        if state is None and any(moves_rows(action) for action in parsed.actions):
            raise not_known(name)
        state = self._known(name, work)
        outcome = alter(state, parsed, self._setting(name[0], statement, work))
        work.tables[name], work.origin[name], work.outcomes[name] = outcome.state, name, outcome
        for action in parsed.actions:
            if isinstance(action, ChangeRows):
                self._change_rows(action, outcome.state, work)
            elif isinstance(action, RenameTo):
                self._rename(name, self._of(action.name), work)

    def _change_rows(self, action: ChangeRows, state: TableState, work: Work) -> None:
        if action.other is not None:
            other = self._of(action.other)
            other_state = self._known(other, work)
            work.tables[other], work.origin[other] = other_state, other
            work.outcomes[other] = Outcome(other_state, [Reason(None, UNPROVEN, action.why)])
        if action.makes is not None:
            made = self._of(action.makes)
            work.tables[made], work.origin[made] = replace(state, database=made[0], name=made[1]), None
            work.filled.add(made)
        if action.takes is not None:
            self._drop(self._of(action.takes), work)

    def _rename(self, old: TableName, new: TableName, work: Work, *, is_optional: bool = False) -> None:
        if self._is_other(old, work):
            work.others[old], work.others[new] = False, True
            return
        state = self._now(old, work)
        if state is None:
            if is_optional and not self._presence.may_be_there(old, work.notes):
                return
            raise not_known(old)  # it may bring rows under a captured name that no consumer has seen
        if old == new:
            return
        if self.server.is_mariadb and self._now(new, work) is not None:
            raise UnreadableStatement(f"{new[0]}.{new[1]} is there already, as far as we know{TEMPORARY}")
        work.move(old, new, state)
        self._note_gone(old, work)
        work.notes |= {doubtful(new): False, gone(new): False}

    def _create_other(self, name: TableName, parsed: CreateOther, work: Work) -> None:
        is_doubtful = parsed.is_optional and self._presence.may_be_there(name, work.notes)
        if self._now(name, work) is None and not is_doubtful:
            work.others[name] = True

    def _drop_named(self, name: TableName, parsed: DropTables, work: Work) -> None:
        """A name in DROP TABLE, DROP VIEW or DROP SEQUENCE. DROP TABLE drops no view, but on MariaDB a sequence."""
        if self._is_other(name, work):
            work.others[name] = parsed.is_table and not self.server.is_mariadb
        elif parsed.is_table:
            self._drop(name, work)
        elif not parsed.is_optional and self._now(name, work) is None:
            self._note_gone(name, work)

    def _drop(self, name: TableName, work: Work) -> None:
        work.others[name] = False
        if self._now(name, work) is not None or announced(name) in self._presence:
            work.tables[name], work.origin[name] = None, None
        self._note_gone(name, work)

    def _note_gone(self, name: TableName, work: Work) -> None:
        work.notes |= {doubtful(name): False, announced(name): False}
        if self._presence.may_hold_more(name[0], work.notes):
            work.notes[gone(name)] = True

    def _truncate(self, name: TableName, work: Work) -> None:
        if self._is_other(name, work):
            return
        is_announced = announced(name) in self._presence
        if not is_announced and self._now(name, work) is None and self._presence.may_be_there(name, work.notes):
            return  # no consumer has a row of it
        if not is_announced:
            self._known(name, work)
        work.truncated.add(name)

    def _set_database(self, parsed: SetDatabase, statement: DdlStatement, work: Work) -> None:
        database = self._spelling.of(parsed.database)
        old_charset = self._databases.get(database)
        if parsed.is_new and parsed.is_optional and (old_charset or self._presence.may_hold_more(database, work.notes)):
            return
        if parsed.or_replace:
            self._drop_database(database, work)
        inherited = server_charset_of(statement) if parsed.is_new else old_charset or UNKNOWN_CHARSET
        charset = resolve_charset(parsed.options.charset, parsed.options.collation, inherited)
        if charset != UNKNOWN_CHARSET:
            work.databases[database] = charset
        if parsed.is_new and PARTIAL in self._presence:
            work.notes[contents_known(database)] = True

    def _drop_database(self, database: str, work: Work) -> None:
        work.databases[database] = None
        work.notes |= {note: False for note in self._presence if note[1:2] == (database,)}
        if PARTIAL in self._presence:
            work.notes[contents_known(database)] = True
        for name in [*self._tables, *self._others, *self._presence.announced()]:
            if name[0] == database:
                self._drop(name, work)

    # From what a statement did to the events for consumers

    def _commit(self, work: Work, statement: DdlStatement) -> list[TableEvent]:
        events: list[TableEvent] = []
        for name in sorted(work.tables.keys() | work.truncated, key=lambda name: work.tables.get(name, ()) is not None):
            if self._captured(*name):
                before = self._state(name)
                if before is None and announced(name) in self._presence:
                    before = TableState(*name, ())  # only its name matters
                events += _events_of(name, before, work, statement.text)
        for name, state in work.tables.items():
            if not is_same(self._state(name), state):
                self._keep(name, state)
        others = {name: is_there for name, is_there in work.others.items() if is_there != (name in self._others)}
        self._take(work.databases, others)
        self._changes.databases |= work.databases
        self._changes.others |= others
        self._note(work.notes)
        return events

    def _not_understood(self, statement: DdlStatement, why: UnreadableStatement) -> list[TableEvent]:
        """Forget the tables that it touches. If its effect is unknown, only tables that were known are reported."""
        names = touched_names(statement.text, self.server, statement.sql_mode or 0, statement.database)
        first = [self._name(*name) for name in names.certain]
        others = [self._name(*name) for name in names.possible]
        rivals = [other for name in (*first, *others) if (other := self._spelling.rival(name)) is not None]
        known = {
            name for name in (*first, *others, *rivals) if name in self._tables or announced(name) in self._presence
        }
        touched = dict.fromkeys([*first, *rivals, *(name for name in others if name in known)])
        if len(first) < 2:  # else a RENAME may have given the name of a view to a table
            touched = {name: None for name in touched if name not in self._others}
        lost = known if PARTIAL in self._presence else known.union(first)
        for name in touched:
            if name in self._tables:
                self._keep(name, None)
            self._note({doubtful(name): True})
            self._reasons[name] = f"{statement.text[:200]!r}: {why}"
        reported = lost if isinstance(why, UnknownEffect) else touched
        tables = tuple(name for name in touched if self._captured(*name) and name in reported)
        return [Unknown(statement.text, str(why), tables, names.is_all)] if tables else []


def _events_of(name: TableName, before: TableState | None, work: Work, ddl: str) -> Iterator[TableEvent]:
    """The events of one table."""
    after = work.tables.get(name, before)
    if before is not None and after is not None and (work.origin.get(name, name) == name):
        if name in work.truncated:
            yield Truncated(after.definition, ddl)
            return
        yield from _altered(before, after, work.outcomes.get(name), ddl)
    elif before is not None and after is not None and work.origin.get(name) is not None:
        swapped = (Reason(None, UNPROVEN, "another table took its name"),)
        yield Altered(before.definition, after.definition, ddl, swapped)
    else:
        if before is not None:
            yield Dropped(before.definition, ddl)
        if after is not None:
            is_empty = work.origin.get(name) is None and name not in work.filled
            yield Created(after.definition, ddl, is_empty)


def _altered(before: TableState, after: TableState, outcome: Outcome | None, ddl: str) -> Iterator[TableEvent]:
    if outcome is None:
        return
    old, new = before.definition, after.definition
    if old == new and not outcome.reasons and not outcome.text_reasons:
        return
    text_reasons = tuple(outcome.text_reasons)
    event = Altered(old, new, ddl, tuple(outcome.reasons), outcome.renamed, outcome.fill, text_reasons)
    yield event if event.number < UNPROVEN else replace(event, renamed={}, fill={})


def _check_temporary(
    parsed: Parsed,
    statement: DdlStatement,
    tables: Mapping[TableName, TableState | None],
    captured: Callable[[str, str], bool],
    existing: Callable[[Sequence[TableName]], set[TableName]] | None,
) -> None:
    """Raise `UnreadableStatement` if a statement may be about temporary tables: the log has statements about them that
    look like statements about tables of the same names. MariaDB logs RENAME TABLE so in any binlog_format; sessions
    without binlog_format=ROW log more, and mark it.

    tables: what it makes of ordinary tables, by old and new names; None for a name that it leaves without a table.
    existing: asks the server which tables it has; None if the server need not be asked. OPTIMIZE and REPAIR may be
    followed all the same: they change no definition.
    """
    alters = isinstance(parsed, AlterTable) and not all(isinstance(action, ChangeRows) for action in parsed.actions)
    if statement.uses_temporary and (alters or isinstance(parsed, Truncate)):
        raise UnreadableStatement(f"its session has temporary tables{TEMPORARY}")
    if existing is None or not isinstance(parsed, RenameTables) or not any(captured(*name) for name in tables):
        return
    dropped = [name for name, state in tables.items() if state is None]
    made = [name for name, state in tables.items() if state is not None]
    present = existing([*dropped, *made])
    if not present.isdisjoint(dropped) and not present.issuperset(made):
        raise UnreadableStatement(f"the server has tables by their old names, and not by their new ones{TEMPORARY}")
