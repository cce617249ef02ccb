"""Keeper: the history of the tables' definitions and the file that keeps it beside the log, as one.

What a statement did is durable in the file before the control about it goes out, so that a session that starts at the
log's end knows the tables as of there, however far behind the server that is.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pymysql

from databus.core import SourceChanged, crash_point, name_parts, source_name
from databus.operate import logger_of
from databus.schema import TableSchema
from databus.sources.mysql._definition import TableDefinition
from databus.sources.mysql.binlog import LoggedStatement
from databus.sources.mysql.server import telling
from databus.sources.mysql.tables import (
    Catalogue,
    HistoryChanges,
    HistoryStore,
    ServerKind,
    TableEvent,
    TableHistory,
    TableState,
    announced,
    doubtful,
    read_catalogue,
)

_LONG_BYTES: Final = 4 << 20  # a larger file is compacted

Describe = Callable[[TableDefinition], TableSchema]


class HistoryKeeper:
    """A history, and where it is kept; nowhere without a `folder`."""

    def __init__(self, physical: str, history: TableHistory, folder: Path | None = None) -> None:
        self._physical = physical
        self._history = history
        self._store = None if folder is None else HistoryStore(folder)
        self._unread: Mapping[tuple[str, str], str] = {}
        self._is_begun = False

    @property
    def server(self) -> ServerKind:
        """Whose statements are followed."""
        return self._history.server

    def read_catalogue(
        self, connection: "pymysql.Connection[Any]", tables: Sequence[tuple[str, str]] | None = None
    ) -> Catalogue:
        """The tables, or those (database, name) only, as they are on the server now."""

        def query(sql: str) -> Sequence[Sequence[Any]]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())

        with telling(self._physical, "reading the tables' definitions"):
            return read_catalogue(query, self._history.server, tables=tables)

    def use(self, catalogue: Catalogue) -> None:
        """Know what the catalogue says; kept once `begin` has said from which SCN on."""
        self._history.begin(catalogue)
        self._unread = catalogue.unread

    def doubt_unknown(self, sources: Iterable[str]) -> None:
        """Note these tables as known to consumers: what happens to them matters, even if the history lacks them."""
        for source in sources:
            database, name = name_parts(source)
            if self._history.definition(database, name) is None:
                self._history.doubt(database, name)

    def begin(self, scn: int) -> None:
        """Keep what is known now, as of `scn`."""
        if self._store is not None:
            self._store.begin(scn, self._history)
            self._is_begun = True

    def load(
        self,
        scn: int,
        in_force: Mapping[str, TableSchema],
        describe: Describe,
        connection: "pymysql.Connection[Any] | None",
    ) -> None:
        """Load what was known at `scn`.

        Where the file is missing, tables are taken from the server's catalogue as far as they are provably the same as
        at `scn`: those that consumers know (`in_force`) and that describe themselves alike. Raises `SourceChanged`
        naming the file where nothing is known otherwise, `CorruptData` if it is damaged.
        """
        if self._store is not None and self._store.exists:
            self._store.load(scn, self._history)
            self._is_begun = True
            return
        catalogue = Catalogue() if connection is None else self.read_catalogue(connection)
        catalogue.is_whole = False  # of what was there at `scn`
        same = [table for table in catalogue.tables if _is_same(table.definition, in_force, describe)]
        catalogue.tables = same
        self.use(catalogue)
        self.doubt_unknown(in_force)
        self.begin(scn)
        logger_of("databus.sources.mysql").warning(
            "the history of the tables is missing; those that are as they were go on, others by the log's own metadata",
            physical=self._physical,
            tables=len(same),
        )

    def definitions(self) -> list[TableDefinition]:
        """All tables that are known, captured or not."""
        definitions = (self._history.definition(*name) for name in list(self._history.names()))
        return [definition for definition in definitions if definition is not None]

    def definition(self, database: str, name: str) -> TableDefinition | None:
        """What a table is here; None if that is unknown."""
        return self._history.definition(database, name)

    def refuse_unread(self, captured: Callable[[str, str], bool]) -> None:
        """Raise `SourceChanged` if a captured table is of a kind that databus cannot read."""
        for name, why in self._unread.items():
            if captured(*name):
                raise SourceChanged(
                    f"{self._physical}: {source_name(*name)} cannot be captured: {why}; leave it out with `exclude`"
                )

    def why_unknown(self, database: str, name: str) -> str:
        """Why a table's definition is unknown; empty if the reason is unknown too."""
        return self._history.why_unknown(database, name)

    def is_unlogged(self, database: str, name: str) -> bool:
        """Whether there was no such table before the log showed its rows, as far as statements of the log say."""
        return self._history.is_unlogged(database, name)

    def is_other(self, database: str, name: str) -> bool:
        """Whether that name is a view's or a sequence's."""
        return self._history.is_other(database, name)

    def learn(self, definition: TableDefinition, scn: int) -> None:
        """The log itself has shown what a table is."""
        self._history.learn(definition)
        self._keep(scn)

    def put(self, table: TableState, scn: int) -> None:
        """The server's catalogue has shown what a table is."""
        self._history.put(table)
        self._keep(scn)

    def forget(self, name: tuple[str, str], scn: int) -> None:
        """Forget a table's definition, which consumers have got."""
        self._change(HistoryChanges(tables={name: None}, notes={doubtful(name): True, announced(name): True}), scn)

    def lacks(self, name: tuple[str, str], scn: int, *, is_other: bool) -> None:
        """The server's catalogue has shown that there is no such table. is_other: a view or a sequence has its name."""
        notes = {doubtful(name): False, announced(name): False}
        self._change(HistoryChanges(tables={name: None}, others={name: is_other}, notes=notes), scn)

    def apply(self, statement: LoggedStatement, scn: int) -> list[TableEvent]:
        """Move past a statement of the log, durably. `scn`: of its transaction."""
        events = self._history.apply(statement.query, rows_follow=not statement.is_complete)
        self._keep(scn)
        return events

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()

    def _change(self, changes: HistoryChanges, scn: int) -> None:
        self._history.restore(changes)
        self._append(changes, scn)

    def _keep(self, scn: int) -> None:
        self._append(self._history.take_changes(), scn)

    def _append(self, changes: HistoryChanges, scn: int) -> None:
        if self._store is not None and self._is_begun:
            crash_point("mysql.history.before_keep")
            self._store.append(scn, changes)
            crash_point("mysql.history.after_keep")

    @property
    def is_long(self) -> bool:
        """Whether the file is worth making shorter."""
        return self._store is not None and self._store.bytes > _LONG_BYTES

    def compact(self, durable_scn: int) -> None:
        """Drop what is not needed to start at `durable_scn` or later, if that is worth it."""
        if self._store is not None and self._is_begun:
            self._store.compact(durable_scn)


def _is_same(definition: TableDefinition, in_force: Mapping[str, TableSchema], describe: Describe) -> bool:
    known = in_force.get(definition.source)
    return known is not None and describe(definition).fingerprint == known.fingerprint
