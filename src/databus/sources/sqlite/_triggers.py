"""The triggers' SQL; pure.

Each captured table has five triggers and a scratch table. The AFTER triggers append images to the change table, one row
each, an update two. INSERT and UPDATE may silently delete rows that hold the new row's value in another unique key (OR
REPLACE, or a constraint declared so): SQLite fires no delete trigger for those. So the BEFORE triggers copy the rows in
conflict into the scratch table, and the AFTER triggers log a delete, ahead of their own change, for those that went.

Statements nest (a user's trigger, a foreign key's action), so the scratch table cannot simply be emptied by each: a
nested statement would forget what the outer one is about to replace. Instead every row in it is kept the image of a row
that lives: a delete removes it there, an update updates it there, and what a BEFORE trigger has put there in vain
(OR IGNORE, an upsert) does no harm. It is emptied at each cut, and holds at most `SCRATCH_ROWS_MAX` rows between.

No statement here relies on a conflict clause: the one of the user's statement would override it.
"""

from dataclasses import dataclass
from typing import Final

from databus.sources.sqlite._tables import OWN_PREFIX, ColumnShape, KeyPart, TableShape, UniqueKey, quoted

CHANGE_TABLE: Final = f"{OWN_PREFIX}change"
SCRATCH_ROWS_MAX: Final = 10_000

INSERT: Final = 1
UPDATE_PREIMAGE: Final = 2
UPDATE_POSTIMAGE: Final = 3
DELETE: Final = 4


@dataclass(frozen=True, slots=True)
class TriggerPlan:
    """What the triggers of a table are made from.

    number: of the table, in the names of its triggers. version: what its change rows carry. columns: those captured,
    in slot order.
    """

    shape: TableShape
    number: int
    version: int
    columns: tuple[str, ...]


def trigger_names(number: int) -> tuple[str, ...]:
    """The names of a table's triggers, in the order in which they are made."""
    return tuple(f"{OWN_PREFIX}{number}_{kind}" for kind in ("bi", "bu", "ai", "au", "ad"))


def scratch_name(number: int) -> str:
    """The name of a table's scratch table."""
    return f"{OWN_PREFIX}scratch_{number}"


def scratch_sql(plan: TriggerPlan) -> list[str]:
    """The scratch table with indexes and limit: what finds a row, the values of its other unique keys, its image."""
    scratch = scratch_name(plan.number)
    names = _Names(plan)
    columns = ", ".join([*names.identity, *(name for key in names.keys for name in key), *names.images])
    keys = [(names.identity, plan.shape.identity), *zip(names.keys, plan.shape.uniques, strict=True)]
    statements = [f"CREATE TABLE {scratch}(n INTEGER PRIMARY KEY, {columns})"]
    for number, (parts, key) in enumerate(keys):
        indexed = ", ".join(f"{n} COLLATE {quoted(p.collation)}" for n, p in zip(parts, key.parts, strict=True))
        statements.append(f"CREATE INDEX {scratch}_{number} ON {scratch}({indexed})")
    statements.append(
        f"CREATE TRIGGER {scratch}_limit AFTER INSERT ON {scratch} "
        f"BEGIN DELETE FROM {scratch} WHERE n <= NEW.n - {SCRATCH_ROWS_MAX}; END"
    )
    return statements


def trigger_sql(plan: TriggerPlan) -> list[str]:
    """The five triggers."""
    return _Writer(plan).statements()


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

    def statements(self) -> list[str]:
        before_insert, before_update, after_insert, after_update, after_delete = trigger_names(self._plan.number)
        old_identity = self._identity_is("OLD")
        return [
            self._trigger(before_insert, "BEFORE INSERT", self._collect("")),
            self._trigger(before_update, f"BEFORE UPDATE{self._of_keys()}", self._collect(self._not_itself())),
            self._trigger(after_insert, "AFTER INSERT", [*self._replaced(""), self._log((INSERT, "NEW"))]),
            self._trigger(
                after_update,
                "AFTER UPDATE",
                [
                    *self._replaced(f"NOT ({old_identity}) AND "),
                    f"UPDATE {self._scratch} SET {self._refreshed()} WHERE {old_identity}",
                    self._log((UPDATE_PREIMAGE, "OLD"), (UPDATE_POSTIMAGE, "NEW")),
                ],
            ),
            self._trigger(
                after_delete,
                "AFTER DELETE",
                [self._log((DELETE, "OLD")), f"DELETE FROM {self._scratch} WHERE {old_identity}"],
            ),
        ]

    def _trigger(self, name: str, when: str, statements: list[str]) -> str:
        body = "".join(f"  {statement};\n" for statement in statements)
        return f"CREATE TRIGGER {name} {when} ON {self._table} BEGIN\n{body}END"

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

    def _collect(self, but: str) -> list[str]:
        """Copy the rows that hold a key of NEW; those already copied are up to date."""
        into = ", ".join(
            [*self._names.identity, *(name for key in self._names.keys for name in key), *self._names.images]
        )
        values = [f"{self._table}.{quoted(part.text)}" for part in self._shape.identity.parts]
        for key in self._shape.uniques:
            values += [self._value_in_table(part, key) for part in key.parts]
        values += [f"{self._table}.{quoted(name)}" for name in self._plan.columns]
        there = " AND ".join(
            f"{name} {_collate(part)} = {self._table}.{quoted(part.text)}"
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        )
        return [
            f"INSERT INTO {self._scratch}({into}) SELECT {', '.join(values)} FROM {self._table} "
            f"WHERE {self._conflicts(key)}{but} AND NOT EXISTS (SELECT 1 FROM {self._scratch} WHERE {there})"
            for key in (self._shape.identity, *self._shape.uniques)
        ]

    def _conflicts(self, key: UniqueKey) -> str:
        """Rows of the table that hold this key of NEW, written so that the key's index serves."""
        terms = []
        for part in key.parts:
            mine = f"{self._table}.{quoted(part.text)}" if part.is_column else f"({part.text})"
            terms.append(f"{mine} {_collate(part)} = {self._value_of_row(part, key, 'NEW', before=True)}")
        if key.condition is not None:
            terms.append(f"({key.condition})")
        return " AND ".join(terms)

    def _value_in_table(self, part: KeyPart, key: UniqueKey) -> str:
        value = f"{self._table}.{quoted(part.text)}" if part.is_column else f"({part.text})"
        return value if key.condition is None else f"CASE WHEN {key.condition} THEN {value} END"

    def _value_of_row(self, part: KeyPart, key: UniqueKey, row: str, *, before: bool) -> str:
        """A key's part of OLD or NEW. Names in an expression are the table's, so the row poses as the table."""
        if part.is_column and key.condition is None:
            return self._column_of_row(part.text, row, before=before)
        value = f"{self._table}.{quoted(part.text)}" if part.is_column else f"({part.text})"
        if key.condition is not None:
            value = f"CASE WHEN {key.condition} THEN {value} END"
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
            f"{name} {_collate(part)} = {row}.{quoted(part.text)}"
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        )

    def _replaced(self, but: str) -> list[str]:
        """Log a delete for each row that the statement replaced by NEW, and forget it."""
        shared = [f"({self._identity_is('NEW')})"]
        for names, key in zip(self._names.keys, self._shape.uniques, strict=True):
            terms = [
                f"{name} {_collate(part)} = {self._value_of_row(part, key, 'NEW', before=False)}"
                for name, part in zip(names, key.parts, strict=True)
            ]
            shared.append(f"({' AND '.join(terms)})")
        lives = " AND ".join(
            f"{self._table}.{quoted(part.text)} {_collate(part)} = {self._scratch}.{name}"
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        )
        gone = (
            f"{but}({' OR '.join(shared)}) AND ({shared[0]} OR NOT EXISTS (SELECT 1 FROM {self._table} WHERE {lives}))"
        )
        slots = "".join(f", c{i}" for i in range(len(self._plan.columns)))
        images = "".join(f", {name}" for name in self._names.images)
        log = (
            f"INSERT INTO {CHANGE_TABLE}(t, op{slots}) SELECT {self._plan.version}, {DELETE}{images} "
            f"FROM {self._scratch} WHERE {gone} ORDER BY n"
        )
        return [log, f"DELETE FROM {self._scratch} WHERE {gone}"]

    def _refreshed(self) -> str:
        pairs = [
            (name, f"NEW.{quoted(part.text)}")
            for name, part in zip(self._names.identity, self._shape.identity.parts, strict=True)
        ]
        for names, key in zip(self._names.keys, self._shape.uniques, strict=True):
            pairs += [
                (name, self._value_of_row(part, key, "NEW", before=False))
                for name, part in zip(names, key.parts, strict=True)
            ]
        pairs += [(name, f"NEW.{quoted(c)}") for name, c in zip(self._names.images, self._plan.columns, strict=True)]
        return ", ".join(f"{name} = {value}" for name, value in pairs)

    def _log(self, *images: tuple[int, str]) -> str:
        slots = "".join(f", c{i}" for i in range(len(self._plan.columns)))
        rows = ", ".join(
            f"({self._plan.version}, {op}{''.join(f', {row}.{quoted(c)}' for c in self._plan.columns)})"
            for op, row in images
        )
        return f"INSERT INTO {CHANGE_TABLE}(t, op{slots}) VALUES {rows}"


def _collate(part: KeyPart) -> str:
    return f"COLLATE {quoted(part.collation)}"
