"""Filters over whole tables that choose among changes: a sample of rows, updates that change something, deletes. Pure.

They see whole updates: an image without its other one, dropped by a filter before, is an insert or a delete.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from databus.core import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    SEQ,
    ChangeType,
    ConfigError,
    ControlKind,
    InputError,
    UnsupportedFeature,
)
from databus.filters import Flags, RowChoice, TableStep, begins_update, differs, whole_changes
from databus.flow._filters import TableFilter
from databus.flow._lineage import Lineage
from databus.schema import Column, TableSchema, column_named, forms_of, key_bytes, key_form, key_hashes, sink_schema

_HASHES: Final = 1 << 32


@dataclass(frozen=True, kw_only=True)
class SampleOfKeys(TableFilter):
    """Lets a fraction of the keys pass, always the same ones."""

    fraction: float
    by: tuple[str, ...] = ()
    """The columns that decide; none for the table's key."""
    hides = False

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return self.by

    def _lineage(self, names: Sequence[str]) -> Lineage:
        read = [column_named(name, names) for name in self.by]
        unchanged = Lineage.unchanged(names)
        if not read:
            return replace(unchanged, is_opaque=True)  # by the key, which is not known here
        return unchanged if None in read else replace(unchanged, reads=frozenset(name for name in read if name))

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`. A column that the table got later is NULL."""
        if any(column is None for column in missing.values()):
            return TableStep.unchanged(table)
        later = {column.name: forms_of(column.type).sink for column in missing.values() if column is not None}
        kinds = pa.schema([*sink_schema(table), *later.items()])
        by = [column_named(name, kinds.names) or name for name in self.by] or [*table.key]
        if not by:
            raise ConfigError("it has no key; say in `by` which columns decide whether a row is in the sample")
        forms = [key_form(kinds.field(name).type) for name in by]
        limit = round(self.fraction * _HASHES)
        choice = RowChoice(table, by)

        def apply(rows: pa.Table) -> pa.Table:
            columns = [pa.nulls(rows.num_rows, later[name]) if name in later else rows.column(name) for name in by]
            hashes = key_hashes(key_bytes(columns))
            return choice.left(rows, hashes.astype(np.uint64) < limit)

        own = {name: name for name in table.names}
        return TableStep(table, choice.after, apply, own, reads=frozenset(by), selects=True, judged_by=(by, forms))


@dataclass(frozen=True, kw_only=True)
class Dedupe(TableFilter):
    """Leaves out updates in which no column changes: none of `columns`, or none but those of `ignore`.

    Columns of the key always count. While a snapshot of the table is open all updates pass: its chunks leave out the
    rows that were written meanwhile, whose updates bring them.
    """

    columns: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    needs_tables: ClassVar[bool] = True
    hides = False

    @property
    def not_a_copy(self) -> str:
        """See `TableFilter.not_a_copy`."""
        return "leaves out updates of columns that do not count" if self.names else ""

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return self.columns or self.ignore

    def _lineage(self, names: Sequence[str]) -> Lineage:
        return Lineage.unchanged(names)

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`."""
        del missing
        named = {column_named(name, table.names) for name in self.names}
        counts = [name for name in table.names if name in table.key or (name in named) == (self.columns is not None)]

        def apply(rows: pa.Table) -> pa.Table:
            before = np.flatnonzero(begins_update(rows))
            if not len(before):
                return rows
            changed = np.zeros(len(before), bool)
            for name in counts:
                changed |= differs(rows.column(name), before)
            left = np.ones(rows.num_rows, bool)
            left[before[~changed]] = left[before[~changed] + 1] = False
            return rows if left.all() else rows.filter(pa.array(left))

        own = {name: name for name in table.names}
        return TableStep(table, table, apply, own, selects=True, rests_in_snapshots=True)


@dataclass(frozen=True, kw_only=True)
class Tombstones(TableFilter):
    """Lets no delete pass, or has it mark its row; an update that changes the key deletes the row of the old one."""

    mark: str | None = None
    """The column that says of each row whether it was deleted; None where deletes are dropped."""
    at: str | None = None
    """One with the time."""
    truncate: Literal["stop", "ignore", "pass"] = "stop"
    """What becomes of what empties a table."""
    needs_tables: ClassVar[bool] = True
    hides = False
    names = ()
    not_a_copy = "keeps rows that were deleted in the source"

    @property
    def _more(self) -> list[Column]:
        flag = [] if self.mark is None else [Column(self.mark, "bool", nullable=False)]
        return [*flag, *([] if self.at is None else [Column(self.at, "timestamptz")])]

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TableFilter.columns_left`."""
        return [*names, *(column.name for column in self._more)]

    def _lineage(self, names: Sequence[str]) -> Lineage:
        return Lineage({name: name if name in names else None for name in self.columns_left(names)})

    def control(self, kind: ControlKind, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """See `TableFilter.control`. What a snapshot does not find was deleted, and stays."""
        if kind is ControlKind.SNAPSHOT_END:
            return without_removal(body)
        if kind not in (ControlKind.TRUNCATE, ControlKind.DROP) or self.truncate == "pass":
            return body
        if self.truncate == "ignore":
            return None
        raise UnsupportedFeature(
            f"{'all its rows were removed by TRUNCATE' if kind is ControlKind.TRUNCATE else 'it was dropped'}, which "
            "names no row that could be kept. Say `truncate: ignore` in the filter to have all rows stay as they are, "
            "or `truncate: pass` to have the output do what it does then"
        )

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`."""
        del missing
        if self.mark is not None and not table.first_images:
            raise ConfigError(
                "its deletes may have nothing but the key, and would empty the rows that they mark. Say `deletes: "
                "drop`, so that rows stay as they were; or `first_images: true` in the source, if its messages have "
                "whole rows"
            )
        for column in self._more:
            if column_named(column.name, table.names) is not None:
                raise ConfigError(f"it has a column {column.name} already; give the filter's another name")
        after = replace(table, columns=(*table.columns, *self._more))
        place = len(table.names)

        def apply(rows: pa.Table) -> pa.Table:
            rows, gone = _parted(rows, table.key)
            if self.mark is None:
                return rows.filter(pa.array(~gone)) if gone.any() else rows
            is_gone = pa.array(gone)
            kinds = pc.if_else(is_gone, ChangeType.INSERT.label, rows.column(CHANGE_TYPE))
            rows = rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, kinds)
            rows = rows.add_column(place, self.mark, is_gone)
            if self.at is None:
                return rows
            times = pc.if_else(is_gone, rows.column(COMMIT_TIMESTAMP), pa.scalar(None, pa.timestamp("us", tz="UTC")))
            return rows.add_column(place + 1, self.at, times)

        marks = frozenset(column.name for column in self._more)
        return TableStep(table, after, apply, {name: name for name in table.names}, selects=True, marks=marks)


def without_removal(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The end of a snapshot, of which a mirror that keeps more than its source is not to think that it has all rows."""
    is_done = bool(body.get("complete", False) or body.get("as_configured", False))
    return {**body, "complete": False, "as_configured": is_done}


def _parted(rows: pa.Table, key: Sequence[str]) -> tuple[pa.Table, Flags]:
    """Rows in which an update that changes the key is a delete and an insert, and which of them are deletes."""
    rows = whole_changes(rows)
    kinds = rows.column(CHANGE_TYPE)
    gone: Flags = pc.equal(kinds, ChangeType.DELETE.label).to_numpy().copy()
    before = np.flatnonzero(begins_update(rows))
    moved = np.zeros(len(before), bool)
    for name in key:
        moved |= differs(rows.column(name), before)
    if not moved.any():
        return rows, gone
    gone[before[moved]] = True
    entered = np.zeros(rows.num_rows, bool)
    entered[before[moved] + 1] = True
    kinds = pc.if_else(pa.array(gone), ChangeType.DELETE.label, kinds)
    kinds = pc.if_else(pa.array(entered), ChangeType.INSERT.label, kinds)
    return rows.set_column(rows.schema.get_field_index(CHANGE_TYPE), CHANGE_TYPE, kinds), gone


TOPIC: Final = "topic"
KEY: Final = "key"
PAYLOAD: Final = "payload"
ID: Final = "id"
_ROUTE: Final = "{route}"


@dataclass(frozen=True, kw_only=True)
class OutboxMessages(TableFilter):
    """Makes messages of the rows that are inserted: their id, topic, key and payload, and the columns of `keep`.

    Messages of one `key` stay in order.
    """

    id: str
    """The column that each message's id is made of; likewise `key` and `payload`."""
    route: str
    key: str
    payload: str
    topic: str
    """The topic's name, in which `{route}` stands for the value of the column `route`."""
    keep: tuple[str, ...] = ()
    needs_tables: ClassVar[bool] = True
    hides = False
    not_a_copy = "makes messages of an outbox's rows"

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return (self.id, self.route, self.key, self.payload, *self.keep)

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TableFilter.columns_left`. A table that lacks a column of these is left alone."""
        if any(column_named(name, names) is None for name in self.names):
            return [*names]
        return [ID, TOPIC, KEY, PAYLOAD, *(column_named(name, names) or name for name in self.keep)]

    def _lineage(self, names: Sequence[str]) -> Lineage:
        left = self.columns_left(names)
        return Lineage(dict.fromkeys(left), frozenset(names))

    def control(self, kind: ControlKind, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """See `TableFilter.control`. That an outbox is emptied is no message."""
        if kind in (ControlKind.TRUNCATE, ControlKind.DROP):
            return None
        return without_removal(body) if kind is ControlKind.SNAPSHOT_END else body

    def over(self, table: TableSchema, missing: Mapping[str, Column | None]) -> TableStep:
        """See `TableFilter.over`."""
        if missing:
            if any(column is not None for column in missing.values()):
                raise ConfigError(f"older rows have no {', '.join(missing)}: begin after them, with `starting_version`")
            return TableStep.unchanged(table)
        if not table.first_images:
            raise ConfigError(
                "its updates may come without first images, and look like inserts then: each would be a message. "
                "Have the database log whole rows, and say `first_images: true` in the source"
            )
        named = {name: column_named(name, table.names) or name for name in self.names}
        route = table.column(named[self.route])
        if route.type != "string":
            raise ConfigError(f"route: column {route.name} is {route.type}; a topic is named by text")
        made_of = {ID: named[self.id], TOPIC: route.name, KEY: named[self.key], PAYLOAD: named[self.payload]}
        made_of |= {named[name]: named[name] for name in self.keep}
        columns = [_named(table.column(old), new) for new, old in made_of.items()]
        after = TableSchema(table.source, tuple(columns), (KEY,))
        bus = len(table.names)

        def apply(rows: pa.Table) -> pa.Table:
            rows = rows.filter(pc.equal(rows.column(CHANGE_TYPE), ChangeType.INSERT.label))
            topics = self._topics(table, rows, rows.column(route.name))
            taken = [topics if new == TOPIC else rows.column(old) for new, old in made_of.items()]
            return pa.table([*taken, *rows.columns[bus:]], names=[*made_of, *rows.column_names[bus:]])

        return TableStep(table, after, apply, made_of, {TOPIC: ("topic", self.topic)}, selects=True)

    def _topics(self, table: TableSchema, rows: pa.Table, routes: pa.ChunkedArray) -> pa.ChunkedArray:
        if routes.null_count:
            place = pc.index(routes.is_null(), True).as_py()
            pair = rows.column(COMMIT_VERSION)[place].as_py(), rows.column(SEQ)[place].as_py()
            raise InputError(
                f"{table.source}: the row at {pair} is a message of an outbox, and its {self.route} is NULL: nobody "
                f"can tell where it is to go. Have a `where` before the filter let `{self.route} IS NOT NULL` pass"
            )
        parts = self.topic.split(_ROUTE)
        pieces = [piece for part in parts[:-1] for piece in (part, routes)]
        return pc.binary_join_element_wise(*pieces, parts[-1], "") if pieces else _always(parts[-1], rows.num_rows)


def _named(column: Column, name: str) -> Column:
    return Column(name, column.type, column.nullable, column.db_type, column.charset)


def _always(text: str, count: int) -> pa.ChunkedArray:
    return pa.chunked_array([pa.repeat(pa.scalar(text, pa.string()), count)])
