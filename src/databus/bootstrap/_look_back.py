"""What happened to a table, from the log store: every change (`history_of`), or what they come to (`diff_of`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.bootstrap._net_changes import net_changes
from databus.bootstrap._plan import NOTHING
from databus.bootstrap._table_past import Moment, TablePast
from databus.core import ConfigError, ControlKind, InputError, Pair
from databus.disk import Location
from databus.filters import begins_update
from databus.flow import TableControl, TableRows, as_stored, control_text, is_stored_as, retyping, row_lines
from databus.schema import NEEDS_SNAPSHOT, Predicate, column_named
from databus.sinks import DeltaCopy, control_row


@dataclass(frozen=True)
class RowKey:
    """A condition that says which rows are meant, such as `id = 7`."""

    text: str
    predicate: Predicate
    names: tuple[str, ...]
    """The columns that it speaks of; of a table with a key, those of the key."""
    before: tuple[tuple[str, ...], ...] = ()
    """What these were called in earlier definitions."""

    @classmethod
    def of(cls, text: str, past: TablePast) -> Self:
        """Raises `InputError` for one that names no column of the table, or not its key."""
        predicate, table = Predicate.parse(text), past.definition
        names = {column_named(name, table.names) or name for name in predicate.columns}
        unknown = sorted(names - set(table.names))
        if unknown:
            raise InputError(f"--key {text}: {past.name} has no column {unknown[0]!r}; it has {', '.join(table.names)}")
        if table.key and names != set(table.key):
            raise InputError(f"--key {text}: name the key of {past.name}, which is {', '.join(table.key)}, and no more")
        if not table.key:
            return cls(text, predicate, tuple(sorted(names)))
        ever = past.look.schemas.definitions(past.source)
        keys = dict.fromkeys(definition.key for definition in ever if definition.key != table.key)
        before = [key for key in keys if len(key) == len(table.key)]
        for key in before:  # a row does not say which definition it is of
            others = ({*key} & {*definition.names} - {*definition.key} for definition in ever)
            other = sorted(set().union(*others))
            if other:
                raise InputError(
                    f"--key {text}: {past.name} had the key {', '.join(key)} once, and {other[0]} is another column at "
                    "another time, so its rows cannot be told apart by that"
                )
        return cls(text, predicate, table.key, tuple(before))

    def finds(self, rows: pa.Table) -> pa.Array:
        """By row, whether it is meant. Rows of older times may have the key under other names."""
        is_meant = pa.repeat(False, rows.num_rows)
        for names in (self.names, *self.before):
            columns = [[column for column in rows.column_names if is_stored_as(column, name)] for name in names]
            for variant in product(*columns):
                key = rows.select(variant).rename_columns(list(self.names))
                try:
                    holds = self.predicate.over(key.schema).holds(key)
                except ConfigError:  # the key had another type then, and no value like this one
                    continue
                is_meant = pc.or_(is_meant, holds.combine_chunks() if isinstance(holds, pa.ChunkedArray) else holds)
        return is_meant


Items = Iterator[TableRows | TableControl]


def history_of(past: TablePast, key: RowKey | None, since: Moment | None, until: Moment | None) -> Items:
    """All changes of a table between two moments, both included, with its controls; of an update both images, if one of
    them is meant.
    """
    after = NOTHING if since is None else past.before(since)
    for item in past.items(after, past.end if until is None else past.last_at(until)):
        if isinstance(item, TableControl) or key is None:
            yield item
            continue
        is_meant, begins = np.array(key.finds(item.rows)), begins_update(item.rows)
        ends = np.append(False, begins[:-1])
        follows, precedes = np.append(is_meant[1:], False), np.append(False, is_meant[:-1])
        is_meant |= (follows & begins) | (precedes & ends)
        if is_meant.any():
            yield TableRows(item.table, item.rows.filter(pa.array(is_meant)))


def diff_of(past: TablePast, since: Moment, until: Moment | None) -> Iterator[TableRows]:
    """What the changes after a moment, up to another, come to. Raises `InputError` where the log does not say it."""
    after, end = past.last_at(since), past.end if until is None else past.last_at(until)
    if end < after:
        raise InputError(f"--to {until.written if until else 'now'} is before --from {since.written}")
    if not past.definition.key:
        raise InputError(f"{past.name}: has no key, so no row is known again; `databus history` shows its changes")
    past.check_kept(after, f"--from {since.written}")
    _check_told(past, after, end)
    table = past.definition_at(end)
    for rows in net_changes(lambda: past.items(after, end), table, past.rows_between(after, end)):
        yield TableRows(table, rows)


def _check_told(past: TablePast, after: Pair, end: Pair) -> None:
    """Whether the log has an image of each row that went or came in a range. Raises `InputError`."""
    controls = past.look.kept.controls(past.source)
    is_new = bool(controls) and controls[0].begins_table and after < controls[0].pair  # nothing was there before
    for control in controls:
        if not after < control.pair <= end or (is_new and control is controls[0]):
            continue
        is_again = control.kind is ControlKind.SNAPSHOT_BEGIN and not is_new
        is_read = control.kind is ControlKind.SCHEMA and int(control.body.get("class", 1)) >= NEEDS_SNAPSHOT
        if control.kind in _WORDS or is_again or is_read:
            raise InputError(
                f"{past.name}: {_WORDS.get(control.kind, 'it was read again')} at SCN {control.pair[0]}, between "
                "--from and --to, and the log has no image of each row that went. Copy both states (`databus state`), "
                "and compare them"
            )


_WORDS: Final = {
    ControlKind.TRUNCATE: "it was truncated",
    ControlKind.DROP: "it was dropped",
    ControlKind.GAP: "changes are missing",
}


def lines_of(past: TablePast, items: Items) -> Iterator[str]:
    """Items as lines of JSON."""
    for item in items:
        if isinstance(item, TableControl):
            yield control_text(past.name, item).rstrip("\n")
        else:
            for text in row_lines(past.name, item.table, item.rows):
                yield from text.splitlines()


def written_into(folder: Location, past: TablePast, items: Items) -> int:
    """Write items into a new Delta table, in the columns that the log store has; returns how many rows these are."""
    check_new(folder)
    schema = past.look.log.schema(past.source)
    tables = (item.rows if isinstance(item, TableRows) else control_row(item, has_body=True) for item in items)
    named = (as_stored(rows, retyping(schema)) for rows in tables)
    rows: int = DeltaCopy(folder, past.name).begin(schema, named)
    return rows


def check_new(folder: Location) -> None:
    """Raises `InputError` if something is there."""
    if folder.names():
        raise InputError(f"--into {folder}: is not empty; name a folder that is not there yet")
