"""Filter over whole tables for outboxes: each row that is inserted is one message. Pure.

An application writes its messages into a table, in the transaction that they are about, and may remove them later.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from databus.core import CHANGE_TYPE, COMMIT_VERSION, SEQ, ChangeType, ConfigError, ControlKind, InputError
from databus.filters import TableStep
from databus.flow._change_filters import without_removal
from databus.flow._filters import TableFilter
from databus.flow._lineage import Lineage
from databus.schema import Column, TableSchema, column_named

TOPIC: Final = "topic"
KEY: Final = "key"
PAYLOAD: Final = "payload"
ID: Final = "id"
_ROUTE: Final = "{route}"


@dataclass(frozen=True, kw_only=True)
class Outbox(TableFilter):
    """Makes messages of the rows that are inserted: their id, topic, key and payload, and the columns of `keep`.

    id, route, key, payload: the columns that these are made of. topic: the topic's name, in which `{route}` stands for
    the value of the column `route`. Messages of one `key` are told apart from others, and stay in order.
    """

    id: str
    route: str
    key: str
    payload: str
    topic: str
    keep: tuple[str, ...] = ()
    needs_tables: ClassVar[bool] = True

    @property
    def hides(self) -> bool:
        """Nothing: what goes on is named."""
        return False

    @property
    def not_a_copy(self) -> str:
        """See `TableFilter.not_a_copy`."""
        return "makes messages of an outbox's rows"

    @property
    def names(self) -> Sequence[str]:
        """See `TableFilter.names`."""
        return (self.id, self.route, self.key, self.payload, *self.keep)

    def columns_left(self, names: Sequence[str]) -> list[str]:
        """See `TableFilter.columns_left`. A table that lacks a column of these is left alone."""
        if any(column_named(each, names) is None for each in self.names):
            return [*names]
        return [ID, TOPIC, KEY, PAYLOAD, *(column_named(each, names) or each for each in self.keep)]

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
        named = {each: column_named(each, table.names) or each for each in self.names}
        route = table.column(named[self.route])
        if route.type != "string":
            raise ConfigError(f"route: column {route.name} is {route.type}; a topic is named by text")
        made_of = {ID: named[self.id], TOPIC: route.name, KEY: named[self.key], PAYLOAD: named[self.payload]}
        made_of |= {named[each]: named[each] for each in self.keep}
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
