"""Applies what a statement says to a table: its columns, its keys, and what that did to the rows that are there."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final
from zoneinfo import ZoneInfo

from databus.sources.mysql._charsets import BYTES_A_CHARACTER
from databus.sources.mysql._definition import BINARY, ColumnDefinition, FieldType
from databus.sources.mysql.tables._change_class import FILLS, UNPROVEN, Reason, is_strict, reason_of
from databus.sources.mysql.tables._column_types import charset_of, known_charset, resize_text, resolve, resolve_charset
from databus.sources.mysql.tables._generated_columns import (
    computed,
    looks_same,
    recomputed_columns,
    spaced,
    with_new_names,
)
from databus.sources.mysql.tables._lexer import ServerKind, UnknownEffect, UnreadableStatement
from databus.sources.mysql.tables._literal_charsets import LiteralCharsets
from databus.sources.mysql.tables._literals import (
    UnknownLiteral,
    ZeroDate,
    filled_value,
    implicit_value,
    spelled,
)
from databus.sources.mysql.tables._syntax import (
    FIRST,
    Action,
    AddColumn,
    AddKey,
    AlterTable,
    ChangeColumn,
    ChangeRows,
    ColumnText,
    Convert,
    CreateTable,
    DropColumn,
    DropKey,
    KeyPart,
    KeyText,
    RenameColumn,
    RenameKey,
    SetDefault,
    SetOptions,
    SetVersioning,
    SetVisibility,
    SqlLiteral,
)
from databus.sources.mysql.tables._table_state import PRIMARY, Key, TableState, same_name

_UTC_OFFSET: Final = re.compile(r"[+-]\d{1,2}:\d\d")
_TIMESTAMP_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESTAMP_DAYS: Final = 25_000  # to 2038, what a TIMESTAMP can hold
_TIMESTAMPS: Final = frozenset({FieldType.TIMESTAMP, FieldType.TIMESTAMP2})
_DATES: Final = frozenset({FieldType.DATE, FieldType.NEWDATE, FieldType.DATETIME, FieldType.DATETIME2})
_ENGINES: Final = frozenset({"INNODB", "MYISAM", "ARIA", "MEMORY", "HEAP", "ROCKSDB", "TOKUDB", "ARCHIVE", "NDB"})
"""Engines that keep the rows they are given; a change to any other engine may lose them."""

_BY_SESSION: Final = "depends on the session's explicit_defaults_for_timestamp, which no log says"
_ZERO_TIMESTAMP: Final = SqlLiteral("string", "0000-00-00 00:00:00")


@dataclass(frozen=True, slots=True)
class Setting:
    """The server, session and database in which a statement ran, as far as its meaning depends on them."""

    server: ServerKind
    sql_mode: int
    explicit_timestamps: bool | None
    """`explicit_defaults_for_timestamp`; None where nothing says it."""
    database_charset: str
    """The default of tables that do not say theirs, or `UNKNOWN_CHARSET`."""
    zero_dates: str = "error"
    """With `null` the value of a zero date is known, NULL; with `text` it is its text."""
    written: LiteralCharsets = field(default_factory=LiteralCharsets)
    """The character sets of its literals."""
    time_zone: str | None = None
    """The session's, where the statement used it."""
    system_zone: str | None = None
    """What the time zone SYSTEM is."""

    @property
    def is_explicit_for_timestamp(self) -> bool:
        """`explicit_timestamps`, where a column depends on it. Raises `UnknownEffect`."""
        if self.explicit_timestamps is None:
            raise UnknownEffect(
                "what a TIMESTAMP without NULL, NOT NULL or a default is depends on the server's "
                "explicit_defaults_for_timestamp, which the log does not say; set the option of that name"
            )
        return self.explicit_timestamps

    def literal(self, column: ColumnDefinition, literal: SqlLiteral | None) -> SqlLiteral | None:
        """A default as the column gets it."""
        return None if literal is None else self.written.literal_in(literal, column.charset)


def create(statement: CreateTable, database: str, name: str, setting: Setting) -> TableState:
    """The table that a CREATE TABLE with columns makes. Raises `UnreadableStatement`."""
    options = statement.options
    charset = resolve_charset(options.charset, options.collation, setting.database_charset)
    versioning = ""
    if options.is_versioned:
        versioning = "explicit" if any(column.is_row_time for column in statement.columns) else "implicit"
    columns = tuple(_define(column, charset, setting) for column in statement.columns)
    state = TableState(database, name, columns, (), charset, versioning)
    texts = {column.name: column for column in statement.columns}
    return _settle(_with_keys(state, statement.keys, setting.server, is_new=True), texts, setting)


def _define(text: ColumnText, charset: str, setting: Setting) -> ColumnDefinition:
    column_type = resolve(text.type, charset, setting.server, setting.sql_mode, setting.written)
    is_nullable = text.is_nullable
    if is_nullable is None:
        depends = column_type.type is FieldType.TIMESTAMP2 and not (text.is_generated or text.is_row_time)
        is_bare = depends and not setting.is_explicit_for_timestamp
        is_nullable = not (is_bare or text.is_auto_increment)
    column = ColumnDefinition(
        name=text.name,
        type=column_type.type,
        meta=column_type.meta,
        column_type=column_type.column_type,
        is_unsigned=column_type.is_unsigned,
        is_nullable=is_nullable and not text.is_primary and not text.is_row_time,
        charset=column_type.charset,
        members=column_type.members,
        is_generated=text.is_generated,
        is_invisible=text.is_invisible,
        is_auto_increment=text.is_auto_increment,
    )
    if text.is_generated or (column_type.type is FieldType.BLOB and not setting.server.is_mariadb):
        return column  # MySQL takes no literal as the default of a BLOB, and '' for none
    return replace(column, default=spelled(column, setting.literal(column, text.default)))


def _settle(state: TableState, texts: Mapping[str, ColumnText], setting: Setting) -> TableState:
    """Add what the server adds by itself: NOT NULL of the primary key and of periods, defaults of timestamps, the order
    of keys; and which columns its generated columns use.
    """
    names = [part.name for key in state.keys if key.kind in ("primary", "period") for part in key.parts]
    columns = list(state.columns)
    seen_timestamp = False
    for index, column in enumerate(columns):
        if column.is_nullable and any(same_name(column.name, name) for name in names):
            columns[index] = replace(column, is_nullable=False)
        text = texts.get(column.name)
        if text is not None and text.is_generated:
            words, is_stored = text.expression, text.is_stored and not text.is_row_time
            columns[index] = computed(columns[index], spaced(words), words, columns, is_stored=is_stored)
        is_bare = text is not None and text.default is None and not text.is_generated
        updates = text is not None and text.on_update
        if column.type is not FieldType.TIMESTAMP2:
            continue
        if setting.explicit_timestamps is None and (not is_bare or columns[index].is_nullable):
            continue  # it is the same with either value of the setting
        if setting.is_explicit_for_timestamp and not (updates and setting.server.is_mariadb):
            continue
        takes_zero = seen_timestamp or updates
        if is_bare and takes_zero and not columns[index].is_nullable:
            columns[index] = replace(columns[index], default=spelled(column, _ZERO_TIMESTAMP))
        seen_timestamp = True
    return replace(state, columns=tuple(columns)).with_sorted_keys()


@dataclass(slots=True)
class Outcome:
    """What an ALTER TABLE made of a table. The fields are those of `Altered`."""

    state: TableState
    reasons: list[Reason] = field(default_factory=list)
    text_reasons: list[Reason] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    fill: dict[str, Any] = field(default_factory=dict)


def alter(state: TableState, statement: AlterTable, setting: Setting) -> Outcome:
    """Apply all actions at once, as the server does; the table keeps its name. Raises `UnreadableStatement`."""
    return _Alteration(state, statement, setting).run()


def _with_whole_additions(actions: Sequence[Action], old: TableState) -> tuple[Action, ...]:
    """The actions that have an effect; each added column as it is at the end of the statement.

    MariaDB lets the same statement, before or after that, give it another default, define it again, or add it again IF
    NOT EXISTS. No value of the first definition is in any row then.
    """
    actions = [action for action in actions if _does_something(action, old)]
    dropped = {action.name.casefold() for action in actions if isinstance(action, DropColumn)}
    remaining = {name for column in old.columns if (name := column.name.casefold()) not in dropped}
    whole: dict[str, AddColumn] = {}
    others: list[Action | str] = []  # a name where a column is added
    for action in actions:
        if isinstance(action, AddColumn):
            whole.setdefault(action.column.name.casefold(), action)
    for action in actions:
        match action:
            case AddColumn(column):
                others += [] if column.name.casefold() in others else [column.name.casefold()]
            case SetDefault(column, default) if column.casefold() in whole.keys() - remaining:
                added = whole[column.casefold()]
                whole[column.casefold()] = replace(added, column=replace(added.column, default=default))
            case ChangeColumn(name, column, place) if name.casefold() in whole.keys() - remaining:
                whole[name.casefold()] = replace(whole[name.casefold()], column=column, place=place)
            case _:
                others.append(action)
    return tuple(whole[action] if isinstance(action, str) else action for action in others)


def _does_something(action: Action, old: TableState) -> bool:
    """Whether its IF EXISTS or IF NOT EXISTS is true for the columns that the table has before the statement."""
    match action:
        case AddColumn(column, _, True):
            return old.column(column.name) is None
        case ChangeColumn(name, _, _, True) | RenameColumn(name, _, True):
            return old.column(name) is not None
        case DropColumn(name, True) | SetDefault(name, _, True):
            return old.column(name) is not None
        case _:
            return True


class _Alteration:
    """One ALTER TABLE. Columns are placed as the server places them: those that stay and those changed in place first,
    in their old order, then added and moved ones one by one.
    """

    def __init__(self, state: TableState, statement: AlterTable, setting: Setting) -> None:
        self._old = state
        self._setting = setting
        self._statement = statement
        self._actions = _with_whole_additions(statement.actions, state)
        self._table_charset, self._charset = self._new_charsets()
        self._converts = next((action for action in statement.actions if isinstance(action, Convert)), None)
        self._texts: dict[str, ColumnText] = {}
        self._origin: dict[str, ColumnDefinition] = {}  # by new name, the column that it was
        self._redefined: set[str] = set()

    def run(self) -> Outcome:
        columns = self._placed(self._kept())
        self._check_names(columns)
        state = replace(self._old, columns=tuple(columns), charset=self._table_charset)
        state = _settle(self._keyed(state), self._texts, self._setting)
        state = self._versioned(state)
        outcome = Outcome(state)
        self._explain_columns(outcome)
        self._explain_generated(outcome)
        self._explain_table(outcome)
        self._explain_copied(outcome)
        return outcome

    def _new_charsets(self) -> tuple[str, str]:
        """The new default of the table, and that of the columns at hand: MariaDB takes CONVERT's for columns only."""
        table, converted = self._old.charset, None
        for action in self._actions:
            if isinstance(action, Convert):
                inherited = self._setting.database_charset if action.charset is None else table
                converted = known_charset(resolve_charset(action.charset, action.collation, inherited))
            elif isinstance(action, SetOptions):
                table = resolve_charset(action.options.charset, action.options.collation, table)
        if converted is None:
            return table, table
        keeps = self._setting.server.is_mariadb and table != self._old.charset
        return (table if keeps else converted), converted

    def _required(self, name: str) -> ColumnDefinition:
        column = self._old.column(name)
        if column is None:
            raise UnreadableStatement(f"the table has no column {name[:64]!r} that we know of")
        return column

    def _kept(self) -> list[ColumnDefinition]:
        """The old columns that stay, renamed and changed in their old places."""
        changes = {column.name: column for column in self._old.columns}
        for action in self._actions:
            if isinstance(action, DropColumn):
                changes.pop(self._required(action.name).name, None)  # IF EXISTS may name it twice
            elif isinstance(action, ChangeColumn):
                changes[self._required(action.old).name] = self._changed(action.column)
            elif isinstance(action, RenameColumn | SetDefault | SetVisibility):
                self._adjust(changes, action)
        kept = []
        for name, column in changes.items():
            kept.append(self._converted(column))
            self._origin[column.name] = next(old for old in self._old.columns if old.name == name)
        renamed = {old.name: name for name, old in self._origin.items()}
        return [with_new_names(column, renamed) for column in kept]

    def _adjust(self, changes: dict[str, ColumnDefinition], action: RenameColumn | SetDefault | SetVisibility) -> None:
        name = self._required(action.old if isinstance(action, RenameColumn) else action.column).name
        column = changes[name]
        if isinstance(action, RenameColumn):
            changes[name] = replace(column, name=action.new)
        elif isinstance(action, SetDefault):
            changes[name] = replace(column, default=spelled(column, self._setting.literal(column, action.default)))
        else:
            changes[name] = replace(column, is_invisible=action.is_invisible)

    def _changed(self, text: ColumnText) -> ColumnDefinition:
        self._texts[text.name] = text
        self._redefined.add(text.name)
        return self._defined(text)

    def _defined(self, text: ColumnText) -> ColumnDefinition:
        """A column as the statement defines it; CONVERT wins over a character set of its own, but for bytes."""
        if self._converts is not None and charset_of(text.type, self._charset) != BINARY:
            kind = replace(text.type, charset=self._charset, collation=None, is_national=False)
            text = replace(text, type=kind)
        return _define(text, self._charset, self._setting)

    def _converted(self, column: ColumnDefinition) -> ColumnDefinition:
        if self._converts is None or column.charset in (None, BINARY) or column.name in self._redefined:
            return column
        return resize_text(column, self._charset, self._setting.server)

    def _placed(self, columns: list[ColumnDefinition]) -> list[ColumnDefinition]:
        """With added and moved columns, one by one in the order of the statement."""
        for action in self._actions:
            if isinstance(action, AddColumn):
                self._texts[action.column.name] = action.column
                self._insert(columns, self._defined(action.column), action.place)
            elif isinstance(action, ChangeColumn) and action.place is not None:
                moved = [column for column in columns if column.name == action.column.name]
                for column in moved:
                    columns.remove(column)
                    self._insert(columns, column, action.place)
        return columns

    def _insert(self, columns: list[ColumnDefinition], column: ColumnDefinition, place: str | None) -> None:
        if place is None:
            columns.append(column)
        elif place == FIRST:
            columns.insert(0, column)
        else:
            indexes = [index for index, other in enumerate(columns) if same_name(other.name, place)]
            if not indexes:
                raise UnreadableStatement(f"AFTER {place[:64]!r}: the table has no such column that we know of")
            columns.insert(indexes[0] + 1, column)

    def _check_names(self, columns: list[ColumnDefinition]) -> None:
        names = [column.name.casefold() for column in columns]
        if len(set(names)) != len(names):
            raise UnreadableStatement("the table already has a column of that name, as far as we know")
        if not columns:
            raise UnreadableStatement("no column is left, as far as we know")

    def _keyed(self, state: TableState) -> TableState:
        """Keys without what was dropped, with new names of columns, then the new keys."""
        named = {origin.name: name for name, origin in self._origin.items()}
        for column in self._old.columns:
            added = state.column(column.name)
            if column.name not in named and added is not None and added.name not in self._origin:
                named[column.name] = added.name
        keys = []
        for key in self._old.keys:
            parts = tuple(
                self._carried(part, state, named) for part in key.parts if not part.name or part.name in named
            )
            if parts:
                keys.append(replace(key, parts=parts))
        for action in self._actions:
            if isinstance(action, DropKey):
                kept = [key for key in keys if not _is_named(key, action)]
                if len(kept) == len(keys) and not action.is_optional and self._depends_on_keys():
                    raise UnreadableStatement(f"the table has no key {action.name[:64]!r} that we know of")
                keys = kept
            elif isinstance(action, RenameKey):
                keys = [replace(key, name=action.new) if _is_named(key, DropKey(action.old)) else key for key in keys]
        if self._setting.server.is_mariadb:  # it decides again which keys are hashed, whatever was asked for
            keys = [replace(key, is_hashed=key.kind == "unique" and state.needs_hash(key.parts)) for key in keys]
        state = replace(state, keys=tuple(keys))
        return _with_keys(state, (a.key for a in self._actions if isinstance(a, AddKey)), self._setting.server)

    def _carried(self, part: KeyPart, state: TableState, named: Mapping[str, str]) -> KeyPart:
        """A key's part in the new table."""
        old, new = self._old.column(part.name), state.column(named.get(part.name, ""))
        if old is None or new is None:
            return part
        return _carried(part, old, new, is_other=new.name not in self._origin)

    def _depends_on_keys(self) -> bool:
        """Whether a unique key, not the primary one, identifies a row: then a wrong guess about keys would matter."""
        return any(key.kind == "unique" for key in self._old.keys) and not any(
            key.kind == "primary" for key in self._old.keys
        )

    def _versioned(self, state: TableState) -> TableState:
        for action in self._actions:
            if isinstance(action, SetVersioning):
                has_own = any(text.is_row_time for text in self._texts.values())
                row_times = ("explicit" if has_own else "implicit") if action.is_versioned else ""
                state = replace(state, row_times=row_times)
        return state

    def _explain_columns(self, outcome: Outcome) -> None:
        old_names = {column.name for column in self._old.columns}
        for column in outcome.state.columns:
            origin = self._origin.get(column.name)
            if origin is None:
                self._explain_added(outcome, column, old_names)
                continue
            if origin.name != column.name:
                outcome.renamed[origin.name] = column.name
                if column.name in old_names:
                    outcome.reasons.append(Reason(column.name, UNPROVEN, "another column had that name"))
            is_converted = self._converts is not None and bool(column.members)  # its collation may be another one
            if is_converted or column.name in self._redefined or replace(column, uses=origin.uses) != origin:
                reason = reason_of(origin, column, self._setting.sql_mode)
                outcome.reasons += [] if reason is None else [reason]
            text = self._texts.get(column.name)
            if text is not None and text.engine_option:
                outcome.reasons.append(Reason(column.name, UNPROVEN, f"{text.engine_option} may give it other values"))
            if origin.is_nullable and self._depends_on_session(column):
                outcome.reasons.append(Reason(column.name, UNPROVEN, f"whether it may be NULL {_BY_SESSION}"))

    def _explain_generated(self, outcome: Outcome) -> None:
        """Generated columns that this ALTER does not change itself, but through a column that they use."""
        changed = {column.name for column in self._old.columns if not self._looks_same(column, outcome.state)}
        recomputed = recomputed_columns(self._old.columns, changed)
        for name, origin in self._origin.items():
            if origin.name in recomputed and origin.uses != () and name not in self._redefined:
                why = "it is generated, or may be, from a column that has changed"
                outcome.reasons.append(Reason(name, UNPROVEN, why))

    def _looks_same(self, old: ColumnDefinition, state: TableState) -> bool:
        """Whether an expression that names an old column sees the same values by that name as before."""
        current = next((state.column(name) for name, origin in self._origin.items() if origin is old), None)
        if current is None or not same_name(current.name, old.name):
            other = state.column(old.name)
            if other is not None and other is not current:
                return False
        converts = self._converts is not None
        return current is None or looks_same(old, current, is_redefined=converts or current.name in self._redefined)

    def _depends_on_session(self, column: ColumnDefinition) -> bool:
        """Whether a setting that MariaDB logs with no statement decides if the column may be NULL."""
        text = self._texts.get(column.name)
        if text is None or text.is_nullable is not None or text.is_generated or text.is_row_time:
            return False
        return column.type is FieldType.TIMESTAMP2 and self._setting.server.is_mariadb

    def _explain_added(self, outcome: Outcome, column: ColumnDefinition, old_names: set[str]) -> None:
        if column.name in old_names:
            outcome.reasons.append(Reason(column.name, UNPROVEN, "another column had that name"))
            return
        try:
            value = self._fill(column, self._texts[column.name])
        except UnknownLiteral as why:
            outcome.reasons.append(Reason(column.name, UNPROVEN, str(why)))
            return
        outcome.fill[column.name] = value
        outcome.reasons.append(Reason(column.name, FILLS, "it was added with a known value"))

    def _fill(self, column: ColumnDefinition, text: ColumnText) -> Any:
        """The value that existing rows have in a new column. Raises `UnknownLiteral`."""
        if text.is_generated or text.is_auto_increment:
            raise UnknownLiteral(f"{column.name} is generated")
        if text.engine_option:
            raise UnknownLiteral(f"{text.engine_option} may say what {column.name} holds")
        if column.type is FieldType.TIMESTAMP2 and not self._setting.explicit_timestamps:
            is_bare = not column.is_nullable and text.default is None
            if is_bare:
                raise UnknownLiteral(f"{column.name} may be filled with the time of the change")
        is_unsaid = text.default is None and text.is_nullable is not True
        if column.type is FieldType.TIMESTAMP2 and self._setting.server.is_mariadb and is_unsaid:
            raise UnknownLiteral(f"{column.name} {_BY_SESSION}")
        default = self._setting.literal(column, text.default)
        if default is not None and default.kind != "null":
            value = filled_value(column, default)
        else:
            value = None if column.is_nullable else implicit_value(column)
        if not isinstance(value, ZeroDate):
            return value
        if self._setting.zero_dates == "null":
            return None
        if self._setting.zero_dates == "text" and value.is_zero:
            return value.text + (f".{'0' * column.meta}" if column.meta else "")
        raise UnknownLiteral(f"{column.name} is filled with {value.text}, which is no date")

    def _explain_copied(self, outcome: Outcome) -> None:
        """Columns whose values the copy of the table may have changed, by settings of the session."""
        setting = self._setting
        if self._statement.copies is False:
            return
        if not setting.server.is_mariadb:
            outcome.reasons += _moved_times(self._origin, setting.time_zone, setting.system_zone)
        sql_mode = 0 if self._statement.is_lenient else setting.sql_mode
        outcome.text_reasons += _changed_dates(self._origin, sql_mode)
        old, is_asked = {column.name: column for column in self._old.columns}, bool(self._statement.copies)
        outcome.reasons += _computed_again(self._origin, old, sql_mode, is_asked=is_asked)

    def _explain_table(self, outcome: Outcome) -> None:
        old, new = self._old, outcome.state
        key = tuple(outcome.renamed.get(name, name) for name in old.row_key())
        if key != new.row_key():
            outcome.reasons.append(Reason(None, UNPROVEN, "what identifies a row is another"))
        if old.row_times != new.row_times:
            outcome.reasons.append(Reason(None, UNPROVEN, "it began or ceased to keep rows of the past"))
        if self._statement.ignores:
            outcome.reasons.append(Reason(None, UNPROVEN, "IGNORE takes rows away, or changes values, that do not fit"))
        for action in self._actions:
            if isinstance(action, ChangeRows):
                outcome.reasons.append(Reason(None, UNPROVEN, action.why))
            elif isinstance(action, SetOptions) and action.options.other_rows:
                outcome.reasons.append(Reason(None, UNPROVEN, f"{action.options.other_rows} may give it other rows"))
            elif isinstance(action, SetOptions) and (action.options.engine or "InnoDB").upper() not in _ENGINES:
                outcome.reasons.append(Reason(None, UNPROVEN, f"its engine became {action.options.engine}"))


# What an ALTER TABLE does to columns that it does not name, where the server writes all rows into a new table.
#
# MySQL and MariaDB store each value again then, as the session is set: a TIMESTAMP goes through its time zone, an
# invalid date through its sql_mode, and stored generated columns are computed. Whether a server copies depends on
# settings that no log has (old_alter_table, the engine), unless the statement says it. So a change is proven harmless
# by its session, by the columns, or by ALGORITHM=INPLACE, INSTANT or NOCOPY, which servers refuse where they must copy.


def _moved_times(
    kept: Mapping[str, ColumnDefinition], time_zone: str | None, system_zone: str | None
) -> Iterator[Reason]:
    """Of MySQL, why values of TIMESTAMP columns may be others. kept: old columns by their new names.

    time_zone: as logged, which is where the statement used it, and no copy of a TIMESTAMP does without; None elsewhere.
    """
    if time_zone is None or _has_one_offset(time_zone, system_zone):
        return
    for name, column in kept.items():
        if column.type in _TIMESTAMPS:
            why = f"a copy of the table may have moved times in an hour that comes twice in time_zone {time_zone!r}"
            yield Reason(name, UNPROVEN, why)


def _changed_dates(kept: Mapping[str, ColumnDefinition], sql_mode: int) -> Iterator[Reason]:
    """Why invalid dates may be others, where consumers have their text; else they are NULL, or never came.

    A strict server refuses to copy them, or leaves them.
    """
    if is_strict(sql_mode):
        return
    for name, column in kept.items():
        if column.type in _DATES:
            why = "a copy of the table may have made invalid dates 0000-00-00, as sql_mode is not strict"
            yield Reason(name, UNPROVEN, why)


def _computed_again(
    kept: Mapping[str, ColumnDefinition], old: Mapping[str, ColumnDefinition], sql_mode: int, *, is_asked: bool
) -> Iterator[Reason]:
    """Why values of stored generated columns may be others. is_asked: whether the statement asks for a copy."""
    for name, column in kept.items():
        if column.uses is None:
            if is_asked:
                yield Reason(name, UNPROVEN, "it may be generated, and a copy of the table has computed it again")
        elif column.is_generated and not (column.is_steady and _are_steady(column.uses, old, sql_mode)):
            yield Reason(name, UNPROVEN, "a copy of the table may have computed it again, under other settings")


def _are_steady(names: tuple[str, ...], old: Mapping[str, ColumnDefinition], sql_mode: int) -> bool:
    """Whether expressions see the same in these columns in every session."""
    used = [old[name] for name in names if name in old]
    has_zone = any(column.type in _TIMESTAMPS for column in used)
    is_padded = any(column.type is FieldType.STRING and column.charset != BINARY for column in used)
    may_change = not is_strict(sql_mode) and any(column.type in _DATES for column in used)
    return not (has_zone or is_padded or may_change)  # padded: by PAD_CHAR_TO_FULL_LENGTH


def _has_one_offset(time_zone: str, system_zone: str | None) -> bool:
    """Whether a session's time_zone is at the same distance from UTC at all times that a TIMESTAMP can hold.

    system_zone: the server's system_time_zone, which stands for SYSTEM; None if it is unknown.
    """
    if time_zone.upper() == "SYSTEM":
        return system_zone == "UTC"  # any other abbreviation may be one half of a zone's, such as GMT of London's
    return _UTC_OFFSET.fullmatch(time_zone) is not None or _is_fixed(time_zone)


@cache
def _is_fixed(name: str) -> bool:
    try:
        zone = ZoneInfo(name)
    except (ValueError, OSError, LookupError):  # an administrator's own
        return False
    return (
        len({(_TIMESTAMP_FIRST + timedelta(days=day)).astimezone(zone).utcoffset() for day in range(_TIMESTAMP_DAYS)})
        == 1
    )


# What a server makes of the keys that a statement names: their columns, names, prefixes, and MariaDB's hashes.


def _with_keys(state: TableState, keys: Iterable[KeyText], server: ServerKind, *, is_new: bool = False) -> TableState:
    """The table with keys that a statement adds. is_new: it is CREATE TABLE."""
    made = list(state.keys)
    for key in sorted(keys, key=lambda key: key.kind != "period"):  # others may stand on them, wherever they are said
        same = DropKey(key.name, is_period=key.kind == "period")
        is_there = any(_is_named(other, same) for other in made)
        if key.kind == "foreign" or (key.is_optional and key.name and is_there):
            continue
        parts = tuple(_own_case(state, column) for part in key.parts for column in _columns_of(part, made))
        name = key.name or _made_up_name(parts, [other.name for other in made])
        is_long = key.kind == "unique" and server.is_mariadb and (key.is_hash or state.needs_hash(parts))
        if is_long and any(_is_geometry(state, part) for part in parts):  # MariaDB hashes those in CREATE only
            parts = tuple(replace(part, prefix=8) if _is_geometry(state, part) else part for part in parts)
            is_long = is_new or state.needs_hash(parts)
        made.append(Key(key.kind, name, parts, is_hashed=is_long))
    return replace(state, keys=tuple(made))


def _columns_of(part: KeyPart, made: Sequence[Key]) -> tuple[KeyPart, ...]:
    """A key's part as columns: of a period its end and its start, in the server's order. They identify a row of the
    period, since servers refuse periods that overlap.
    """
    if not part.is_period:
        return (part,)
    period = next((key for key in made if key.kind == "period" and same_name(key.name, part.name)), None)
    if period is None:
        raise UnknownEffect(f"which columns the period {part.name[:64]!r} has is not known")
    return period.parts[::-1]


def _carried(part: KeyPart, old: ColumnDefinition, new: ColumnDefinition, *, is_other: bool) -> KeyPart:
    """A part of a key that an ALTER TABLE leaves, for the column after it.

    is_other: the statement dropped the column and added one of that name. The key takes it, but no more of it than the
    old column had. Else the prefix is dropped if it was the whole column, or does not fit any more.
    """
    if is_other:
        is_text = old.charset is not None and not old.members
        whole = old.meta // BYTES_A_CHARACTER[old.charset or BINARY] if is_text else 1
        part = replace(part, prefix=part.prefix or whole)
    keeps = (is_other or _is_prefix_of(part, old)) and _is_prefix_of(part, new)
    return KeyPart(new.name, part.prefix if keeps else 0)


def _is_prefix_of(part: KeyPart, column: ColumnDefinition) -> bool:
    """Whether the part is, or may be, only the beginning of such a column."""
    if column.type in (FieldType.BLOB, FieldType.BLOB_COMPRESSED, FieldType.GEOMETRY):
        return True
    is_text = column.charset is not None and not column.members
    return is_text and part.prefix * BYTES_A_CHARACTER[column.charset or BINARY] < column.meta


def _is_geometry(state: TableState, part: KeyPart) -> bool:
    column = state.column(part.name)
    return column is not None and column.type is FieldType.GEOMETRY


def _own_case(state: TableState, part: KeyPart) -> KeyPart:
    column = state.column(part.name)
    return part if column is None else replace(part, name=column.name)


def _made_up_name(parts: tuple[KeyPart, ...], taken: list[str]) -> str:
    name = parts[0].name or "functional_index"
    if not same_name(name, PRIMARY) and not any(same_name(name, other) for other in taken):
        return name
    number = 2
    while any(same_name(f"{name}_{number}", other) for other in taken):
        number += 1
    return f"{name}_{number}"


def _is_named(key: Key, action: DropKey) -> bool:
    """Whether a key, or a period, is the one that an action names."""
    return same_name(key.name, action.name) and (key.kind == "period") is action.is_period
