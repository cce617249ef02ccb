"""The triggers' SQL; pure.

Each captured table has a set of triggers and a scratch table. The AFTER triggers append images to the change table, one
row each, an update two. Three things make it more than that.

**Rows that are replaced.** INSERT and UPDATE may silently delete rows that hold the new row's value in another unique
key (OR REPLACE, or a constraint declared so): SQLite fires no delete trigger for those. So the BEFORE triggers copy the
rows in conflict into the scratch table, and the AFTER triggers log a delete, ahead of their own change, for those that
went. Where even the AFTER trigger is not fired, because a foreign key's action has deleted the new row meanwhile, the
next cut logs it (`gone_sql`).

**Statements nest** (a user's trigger, a foreign key's action), so the scratch table cannot simply be emptied by each: a
nested statement would forget what the outer one is about to replace. Instead every row in it is kept the image of a row
that lives: a delete removes it there, an update updates it there, and what a BEFORE trigger has put there in vain
(OR IGNORE, an upsert) does no harm. It is emptied at each cut, and holds at most `SCRATCH_ROWS_MAX` rows between.

**Images may be stale.** OLD is the row before the BEFORE triggers, NEW the row as it was written, and a nested
statement may have changed, moved, deleted or replaced that very row in between, and has been logged first. So what
differs is logged too, as images that cancel out: a sum over the images is right, and so is a copy that keeps the last
one of each key. What may change a row before it is written (a user's BEFORE trigger, an action of a row that it
replaces) is seen by a copy of it in the scratch table that is `held` for its AFTER trigger; what changes it afterwards
(the actions of foreign keys that follow its key), by looking at the table.

No statement here relies on a conflict clause: the one of the user's statement would override it. A `+` before what is
looked up in the scratch table takes its affinity away, with which the index there, of untyped values, would not serve.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from databus.sources.sqlite._tables import OWN_PREFIX, ColumnShape, IndexPart, TableShape, UniqueKey, quoted

CHANGE_TABLE: Final = f"{OWN_PREFIX}change"
SCRATCH_ROWS_MAX: Final = 10_000

INSERT: Final = 1
UPDATE_PREIMAGE: Final = 2
UPDATE_POSTIMAGE: Final = 3
DELETE: Final = 4

_KINDS: Final = ("bi", "bu", "ai", "ri", "cu", "au", "ku", "ru", "ad", "kd")
"""What the triggers are fired by and do, in the order in which they are made.

b: before; r: log what was replaced; k: keep the scratch table up to date; a: log the change; c: confirm it.
"""

_OP: Final = f"{OWN_PREFIX}op"
_PAIR: Final = f"SELECT {UPDATE_PREIMAGE} AS kind, 0 AS is_new UNION ALL SELECT {UPDATE_POSTIMAGE}, 1"
"""The two rows of an update, to be joined with what they hold."""

_IN_AND_OUT: Final = f"SELECT {INSERT} AS kind UNION ALL SELECT {DELETE}"


@dataclass(frozen=True, slots=True)
class TriggerPlan:
    """What the triggers of a table are made from."""

    shape: TableShape
    number: int
    """The table's number, in the names of its triggers."""
    version: int
    """The version that its change rows carry."""
    columns: tuple[str, ...]
    """The captured columns, in slot order."""
    has_before_triggers: bool
    """Whether the user has BEFORE triggers, of any event; then more has to be watched."""


def trigger_names(number: int) -> tuple[str, ...]:
    """The names of the triggers that each captured table has, in the order in which they are made."""
    return tuple(f"{OWN_PREFIX}{number}_{kind}" for kind in _KINDS)


def before_delete_name(number: int) -> str:
    """The name of the trigger that only a table with BEFORE triggers of its user has."""
    return f"{OWN_PREFIX}{number}_bd"


def scratch_name(number: int) -> str:
    """The name of a table's scratch table."""
    return f"{OWN_PREFIX}scratch_{number}"


def scratch_sql(plan: TriggerPlan) -> list[str]:
    """The scratch table with indexes and limit: what finds a row, the values of its other unique keys, its image."""
    scratch = scratch_name(plan.number)
    names = _Names(plan)
    columns = ", ".join([*names.identity, *(name for key in names.keys for name in key), *names.images])
    keys = [(names.identity, plan.shape.identity), *zip(names.keys, plan.shape.uniques, strict=True)]
    statements = [f"CREATE TABLE {scratch}(n INTEGER PRIMARY KEY, held INTEGER NOT NULL, {columns})"]
    for number, (parts, key) in enumerate(keys):
        indexed = ", ".join(f"{n} COLLATE {quoted(p.collation)}" for n, p in zip(parts, key.parts, strict=True))
        statements.append(f"CREATE INDEX {scratch}_{number} ON {scratch}({indexed})")
    statements.append(
        f"CREATE TRIGGER {scratch}_limit AFTER INSERT ON {scratch} "
        f"BEGIN DELETE FROM {scratch} WHERE n <= NEW.n - {SCRATCH_ROWS_MAX}; END"
    )
    return statements


def trigger_sql(plan: TriggerPlan) -> dict[str, str]:
    """The triggers by name, in the order in which they are made: SQLite fires the newest first."""
    return _Writer(plan).statements()


def gone_sql(plan: TriggerPlan) -> str:
    """A statement that logs a delete for each row in the scratch table that the table does not hold any more."""
    return _Writer(plan).log_gone()


class _Names:
    """Names of the scratch table's columns."""

    def __init__(self, plan: TriggerPlan) -> None:
        self.identity = [f"k{i}" for i in range(len(plan.shape.identity.parts))]
        self.keys = [[f"x{i}_{j}" for j in range(len(key.parts))] for i, key in enumerate(plan.shape.uniques)]
        self.images = [f"i{i}" for i in range(len(plan.columns))]


class _Writer:
    def __init__(self, plan: TriggerPlan) -> None:
        self._plan = plan
        self._shape = plan.shape
        self._table = quoted(plan.shape.name)
        self._scratch = scratch_name(plan.number)
        self._names = _Names(plan)
        self._columns = {column.name: column for column in plan.shape.columns}

    def statements(self) -> dict[str, str]:
        is_watched = self._plan.has_before_triggers
        of_keys = "" if is_watched else self._of_keys()
        is_aside = f"EXISTS (SELECT 1 FROM {self._scratch})"  # else what it guards has nothing to do
        bodies = {
            "bi": ("BEFORE INSERT", "", self._collect("")),
            "bu": (f"BEFORE UPDATE{of_keys}", "", [*self._collect(self._not_itself()), *self._hold()]),
            "ai": ("AFTER INSERT", "", [*self._put_aside(), self._log((INSERT, "NEW"))]),
            "ri": ("AFTER INSERT", is_aside, self._replaced("")),
            "cu": (f"AFTER UPDATE{of_keys}", self._is_overtaken(), self._confirm_update()),
            "au": ("AFTER UPDATE", "", self._updated()),
            "ku": ("AFTER UPDATE", is_aside, self._keep_up()),
            "ru": (f"AFTER UPDATE{of_keys}", is_aside, self._before_updated()),
            "ad": ("AFTER DELETE", "", self._deleted()),
            "kd": ("AFTER DELETE", is_aside, self._forget(is_watched=is_watched)),
        }
        names = trigger_names(self._plan.number)
        made = {name: self._trigger(name, *bodies[kind]) for name, kind in zip(names, _KINDS, strict=True)}
        if is_watched:
            name = before_delete_name(self._plan.number)
            made[name] = self._trigger(name, "BEFORE DELETE", "", self._hold())
        return made

    def _trigger(self, name: str, event: str, condition: str, statements: list[str]) -> str:
        when = f" WHEN {condition}" if condition else ""
        body = "".join(f"  {statement};\n" for statement in statements)
        return f"CREATE TRIGGER {name} {event} ON {self._table}{when} BEGIN\n{body}END"

    def _updated(self) -> list[str]:
        return [*self._put_aside(), self._log((UPDATE_PREIMAGE, "OLD"), (UPDATE_POSTIMAGE, "NEW"))]

    def _before_updated(self) -> list[str]:
        """What stands ahead of an update that sets a key."""
        copies = [f"{self._scratch}.{name}" for name in self._names.images]
        same = f"{self._is_row(self._shape.identity, 'NEW')} AND NOT {_differ(copies, self._images_of(self._table))}"
        is_new = f"(NOT {self._is_in_table('NEW')} AND EXISTS (SELECT 1 FROM {self._table} WHERE {same}))"
        replaced = self._replaced(f"NOT ({self._identity_is('OLD')}) AND NOT {is_new} AND ")  # changed again meanwhile
        return [*self._catch_up(self._is_in_table("NEW")), *replaced]

    def _deleted(self) -> list[str]:
        """An action of a foreign key may have put a row in the place of the one that went."""
        return [self._log((DELETE, "OLD")), self._log_again(self._is_row(self._row_key(), "OLD"))]

    def _forget(self, *, is_watched: bool) -> list[str]:
        is_back = f"EXISTS (SELECT 1 FROM {self._table} WHERE {self._is_row(self._shape.identity, 'OLD')})"
        caught_up = self._catch_up(f"NOT {is_back}") if is_watched else []
        return [*caught_up, f"DELETE FROM {self._scratch} WHERE {self._is_copy()}"]

    def _keep_up(self) -> list[str]:
        pairs = zip(self._scratch_columns, self._row_of_new(), strict=True)
        sets = ", ".join(f"{name} = {value}" for name, value in pairs)
        return [f"UPDATE {self._scratch} SET {sets} WHERE {self._is_copy()}"]

    def _hold(self) -> list[str]:
        """Keep a copy of OLD, which nested statements keep up to date until the AFTER trigger looks at it."""
        old = self._identity_is("OLD")
        names = [*self._names.identity, *self._names.images]
        values = [f"OLD.{quoted(part.text)}" for part in self._shape.identity.parts]
        values += self._images_of("OLD")
        copies = f"SELECT 1 FROM {self._scratch}"
        may_nest = "" if self._plan.has_before_triggers else f" WHERE EXISTS ({copies})"  # if a row may be replaced
        return [
            f"DELETE FROM {self._scratch} WHERE held AND {old}",
            f"INSERT INTO {self._scratch}(held, {', '.join(names)}) SELECT 1, {', '.join(values)}{may_nest}",
        ]

    def _catch_up(self, condition: str) -> list[str]:
        """Where OLD is not the row as it was last logged: log that it became OLD again, which the change is from."""
        both = list(zip(self._names.images, self._images_of("OLD"), strict=True))
        is_old = self._identity_is("OLD")
        is_stale = f"held AND {is_old} AND {_differ(*zip(*both, strict=True))} AND {condition}"
        values = [f"CASE WHEN {_OP}.is_new THEN {old} ELSE {image} END" for image, old in both]
        to_old = f"UPDATE {self._scratch} SET {', '.join(f'{image} = {old}' for image, old in both)}"
        columns = [f"{self._scratch}.{name}" for name in self._names.images]
        is_same = f"NOT {_differ(columns, [f'{_OP}.{name}' for name in self._names.images])}"
        stale = f"SELECT {', '.join(self._names.images)} FROM {self._scratch} WHERE {is_stale}"
        is_its_copy = f"{is_old} AND EXISTS (SELECT 1 FROM ({stale}) AS {_OP} WHERE {is_same})"
        return [
            self._log_each(_PAIR, values, f"CROSS JOIN {self._scratch} WHERE {is_stale}"),
            f"{to_old} WHERE NOT held AND {is_its_copy}",
            f"{to_old} WHERE {is_stale}",
        ]

    def _is_copy(self) -> str:
        """Whether the scratch table's row is OLD; another one there had the same identity, and was replaced."""
        return f"{self._identity_is('OLD')} AND NOT {_differ(self._names.images, self._images_of('OLD'))}"

    def _is_overtaken(self) -> str:
        """When the table does not hold NEW, or holds another row with the key of OLD: nested statements did that.

        Only a change of a key is followed by actions of foreign keys, and these alone come before our AFTER triggers.
        """
        keys = [self._shape.identity, *(key for key in self._shape.uniques if key.is_plain)]
        names = [quoted(name) for name in dict.fromkeys(part.text for key in keys for part in key.parts)]
        differs = _differ([f"OLD.{name}" for name in names], [f"NEW.{name}" for name in names])
        others = f"SELECT 1 FROM {self._table} WHERE {self._is_in_place_of_old()}"
        return f"{differs} AND (NOT {self._is_in_table('NEW')} OR EXISTS ({others}))"

    def _is_in_place_of_old(self) -> str:
        key = self._row_key()
        return f"{self._is_row(key, 'OLD')} AND NOT ({self._is_row(key, 'NEW')})"

    def _confirm_update(self) -> list[str]:
        """Log once more what the table holds with the key of OLD, and with that of NEW, so that it stands last."""
        table, is_new = self._table, self._is_row(self._row_key(), "NEW")
        back_and_on = f"{_PAIR} UNION ALL SELECT {UPDATE_PREIMAGE}, 1 UNION ALL SELECT {UPDATE_POSTIMAGE}, 0"
        both = zip(self._images_of("NEW"), self._images_of(table), strict=True)
        of_either = [f"CASE WHEN {_OP}.is_new THEN {new} ELSE {old} END" for new, old in both]
        differs = _differ(self._images_of(table), self._images_of("NEW"))
        held = f"SELECT 1 FROM {table} WHERE {is_new}"
        columns = ", ".join(self._scratch_columns)
        now = f"{', '.join(self._row_of_table())} FROM {table} WHERE {self._is_row(self._shape.identity, 'NEW')}"
        is_stale = f"{self._identity_is('NEW')} AND NOT {self._is_in_table('NEW')}"
        return [
            self._log_again(self._is_in_place_of_old()),
            self._log_each(back_and_on, of_either, f"CROSS JOIN {table} WHERE {is_new} AND {differs}"),
            self._log_each(_IN_AND_OUT, self._images_of("NEW"), f"WHERE NOT EXISTS ({held})"),
            f"UPDATE {self._scratch} SET ({columns}) = (SELECT {now}) WHERE {is_stale}",
        ]

    def _log_again(self, condition: str) -> str:
        """Log a row of the table as an update that changes nothing, so that it stands after what was logged last."""
        return self._log_each(_PAIR, self._images_of(self._table), f"CROSS JOIN {self._table} WHERE {condition}")

    def _log_each(self, kinds: str, values: list[str], rest: str) -> str:
        """Log rows of these kinds, in order. rest: what they are joined with, and where."""
        selected = f"SELECT {self._plan.version}, {_OP}.kind, {', '.join(values)} FROM ({kinds}) AS {_OP} {rest}"
        return f"INSERT INTO {CHANGE_TABLE}(t, op{self._slots}) {selected}"

    def log_gone(self) -> str:
        key = self._row_key()
        if key is self._shape.identity:
            columns = self._names.identity
        else:
            columns = [self._names.images[self._plan.columns.index(part.text)] for part in key.parts]
        lives = " AND ".join(
            f"{self._table}.{quoted(part.text)} {_collate(part)} = {self._scratch}.{name}"
            for name, part in zip(columns, key.parts, strict=True)
        )
        images = "".join(f", {name}" for name in self._names.images)
        return (
            f"INSERT INTO {CHANGE_TABLE}(t, op{self._slots}) SELECT {self._plan.version}, {DELETE}{images} "
            f"FROM {self._scratch} WHERE NOT held AND {self._names.identity[0]} IS NOT NULL "
            f"AND NOT EXISTS (SELECT 1 FROM {self._table} WHERE {lives}) ORDER BY n"
        )

    def _row_key(self) -> UniqueKey:
        """The key of rows in a copy: the declared one, else the one that SQLite itself uses."""
        declared = self._shape.primary_key
        if self._shape.has_rowid and self._shape.rowid_column is None and declared:
            return next(k for k in self._shape.uniques if k.is_plain and tuple(p.text for p in k.parts) == declared)
        return self._shape.identity

    def _is_row(self, key: UniqueKey, row: str) -> str:
        """Whether the table's row is the one with the key of OLD or NEW."""
        return " AND ".join(
            f"{self._table}.{quoted(part.text)} {_collate(part)} = {row}.{quoted(part.text)}" for part in key.parts
        )

    def _is_in_table(self, row: str) -> str:
        is_row = self._is_row(self._shape.identity, row)
        return f"EXISTS (SELECT 1 FROM {self._table} WHERE {is_row} AND {self._is_same(row)})"

    def _is_same(self, row: str) -> str:
        """Whether the table's row has the very values of OLD or NEW."""
        return f"NOT {_differ(self._images_of(self._table), self._images_of(row))}"

    def _images_of(self, row: str) -> list[str]:
        return [f"{row}.{quoted(name)}" for name in self._plan.columns]

    @property
    def _slots(self) -> str:
        return "".join(f", c{slot}" for slot in range(len(self._plan.columns)))

    @property
    def _scratch_columns(self) -> list[str]:
        return [*self._names.identity, *(name for key in self._names.keys for name in key), *self._names.images]

    def _row_of_table(self) -> list[str]:
        """A row of the table, as the columns of the scratch table."""
        values = [f"{self._table}.{quoted(part.text)}" for part in self._shape.identity.parts]
        for key in self._shape.uniques:
            values += [self._value_in_table(part, key) for part in key.parts]
        return values + self._images_of(self._table)

    def _row_of_new(self) -> list[str]:
        """NEW, as the columns of the scratch table."""
        values = [f"NEW.{quoted(part.text)}" for part in self._shape.identity.parts]
        for key in self._shape.uniques:
            values += [self._value_of_row(part, key, "NEW", before=False) for part in key.parts]
        return values + self._images_of("NEW")

    def _put_aside(self) -> list[str]:
        """What is written in a user's BEFORE trigger may be what the statement that it belongs to replaces."""
        if not self._plan.has_before_triggers:
            return []
        copies = f"SELECT 1 FROM {self._scratch} WHERE NOT held AND {self._identity_is('NEW')}"
        columns, values = ", ".join(self._scratch_columns), ", ".join(self._row_of_new())
        return [f"INSERT INTO {self._scratch}(held, {columns}) SELECT 0, {values} WHERE NOT EXISTS ({copies})"]

    def _of_keys(self) -> str:
        """Only updates that set a part of a key can replace rows. A rowid can be set by any of its names."""
        if not all(key.is_plain for key in self._shape.uniques):
            return ""
        names = [part.text for key in (self._shape.identity, *self._shape.uniques) for part in key.parts]
        if any(self._columns[name].is_generated for name in names if name in self._columns):
            return ""
        if self._shape.has_rowid:
            names += ["rowid", "_rowid_", "oid"]
        if self._shape.rowid_column is not None:
            names.append(self._shape.rowid_column)
        return " OF " + ", ".join(quoted(name) for name in dict.fromkeys(names))

    def _not_itself(self) -> str:
        parts = self._shape.identity.parts
        same = " AND ".join(f"{self._table}.{quoted(p.text)} {_collate(p)} IS OLD.{quoted(p.text)}" for p in parts)
        return f" AND NOT ({same})"

    def _collect(self, exception: str) -> list[str]:
        """Copy the rows that hold a key of NEW; those already copied are up to date."""
        is_copied = " AND ".join(
            f"{name} {_collate(part)} = +{self._table}.{quoted(part.text)}"
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        )
        return [
            f"INSERT INTO {self._scratch}(held, {', '.join(self._scratch_columns)}) "
            f"SELECT 0, {', '.join(self._row_of_table())} FROM {self._table} WHERE {self._conflicts(key)}{exception} "
            f"AND NOT EXISTS (SELECT 1 FROM {self._scratch} WHERE NOT held AND {is_copied})"
            for key in (self._shape.identity, *self._shape.uniques)
        ]

    def _conflicts(self, key: UniqueKey) -> str:
        """Rows of the table that hold this key of NEW, written so that the key's index serves."""
        terms = []
        for part in key.parts:
            value = f"{self._table}.{quoted(part.text)}" if part.is_column else f"({part.text})"
            terms.append(f"{value} {_collate(part)} = {self._value_of_row(part, key, 'NEW', before=True)}")
        if key.condition is not None:
            terms.append(f"({key.condition})")
        return " AND ".join(terms)

    def _value_in_table(self, part: IndexPart, key: UniqueKey) -> str:
        value = f"{self._table}.{quoted(part.text)}" if part.is_column else f"({part.text})"
        return value if key.condition is None else f"CASE WHEN {key.condition} THEN {value} END"

    def _value_of_row(self, part: IndexPart, key: UniqueKey, row: str, *, before: bool) -> str:
        """A key's part of OLD or NEW. Names in an expression are the table's, so the row poses as the table."""
        if part.is_column and key.condition is None:
            return self._column_of_row(part.text, row, before=before)
        value = self._value_in_table(part, key)
        columns = ", ".join(f"{self._column_of_row(c, row, before=before)} AS {quoted(c)}" for c in self._columns)
        return f"(SELECT {value} FROM (SELECT {columns}) AS {self._table})"

    def _column_of_row(self, name: str, row: str, *, before: bool) -> str:
        value = f"{row}.{quoted(name)}"
        column: ColumnShape | None = self._columns.get(name)
        if before and column is not None and column.not_null and column.default is not None:
            return f"coalesce({value}, {column.default})"  # what OR REPLACE puts where NULL is not allowed
        return value

    def _identity_is(self, row: str) -> str:
        return " AND ".join(
            f"{name} {_collate(part)} = +{row}.{quoted(part.text)}"
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        )

    def _replaced(self, exception: str) -> list[str]:
        """Log a delete for each row that the statement replaced by NEW, and forget it."""
        shared = [f"({self._identity_is('NEW')})"]
        for names, key in zip(self._names.keys, self._shape.uniques, strict=True):
            terms = [
                f"{name} {_collate(part)} = +{self._value_of_row(part, key, 'NEW', before=False)}"
                for name, part in zip(names, key.parts, strict=True)
            ]
            shared.append(f"({' AND '.join(terms)})")
        lives = " AND ".join(
            f"{self._table}.{quoted(part.text)} {_collate(part)} = {self._scratch}.{name}"
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        )
        is_replaced = (
            f"{exception}NOT held AND ({' OR '.join(shared)}) "
            f"AND ({shared[0]} OR NOT EXISTS (SELECT 1 FROM {self._table} WHERE {lives}))"
        )
        images = "".join(f", {name}" for name in self._names.images)
        log = (
            f"INSERT INTO {CHANGE_TABLE}(t, op{self._slots}) SELECT {self._plan.version}, {DELETE}{images} "
            f"FROM {self._scratch} WHERE {is_replaced} ORDER BY n"
        )
        return [log, f"DELETE FROM {self._scratch} WHERE {is_replaced}"]

    def _log(self, *images: tuple[int, str]) -> str:
        rows = ", ".join(
            f"({self._plan.version}, {op}{''.join(f', {image}' for image in self._images_of(row))})"
            for op, row in images
        )
        return f"INSERT INTO {CHANGE_TABLE}(t, op{self._slots}) VALUES {rows}"


def _collate(part: IndexPart) -> str:
    return f"COLLATE {quoted(part.collation)}"


def _differ(left: Sequence[str], right: Sequence[str]) -> str:
    """Whether these values are not the very same ones."""
    one = ", ".join(f"{value} COLLATE BINARY, typeof({value})" for value in left)
    other = ", ".join(f"{value}, typeof({value})" for value in right)
    return f"({one}) IS NOT ({other})"
